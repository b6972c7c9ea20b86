"""``invalidator probe``: sampled entries of the cache, compared with the primary while everything runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from freshness.errors import ConfigError
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json
from invalidator.cli.signals import load_on_hangup, note_stop

PRINTED_WIDTH: Final = 160


def probe(
    share: Annotated[float, typer.Option(help="Of the keys that are sampled: above 0, at most 1.")] = 0.01,
    scales: Annotated[str, typer.Option(help="Seconds after a change at which it is compared.")] = "1,10,60,300",
    rate: Annotated[
        float, typer.Option(min=1, help="Comparisons a second after changes, and as many in sweeps.")
    ] = 100,
    sweep_seconds: Annotated[
        float, typer.Option(min=0, help="How often all nodes are swept for sampled entries.")
    ] = 60,
    repair: Annotated[bool, typer.Option("--repair", help="Remove poisoned entries.")] = False,
    once: Annotated[bool, typer.Option("--once", help="One sweep, without the stream.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Seconds until the end.")] = None,
    metrics_listen: Annotated[str | None, typer.Option(help="HOST:PORT at which metrics are served.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Compare sampled entries with the primary, until SIGTERM or SIGINT. SIGHUP loads the configuration again."""
    from rich.console import Console

    from freshness.exposition import serving
    from invalidator.probe.metrics import ProbeMetrics
    from invalidator.probe.prober import ProbePlan
    from invalidator.probe.process import ProbeProcess
    from invalidator.probe.report import ProbeSummary, print_summary

    if not 0 < share <= 1:
        raise ConfigError(f"--share {share:g}", hint="above 0, at most 1: 0.01 is one key of a hundred")
    plan = ProbePlan(
        share=share, scales_seconds=_read_scales(scales), rate=rate, sweep_seconds=sweep_seconds, repairs=repair
    )
    read_config = load_on_hangup(config)
    is_stopping = note_stop()
    process = ProbeProcess(read_config, plan, is_stopping)
    with ExitStack() as stack:
        if metrics_listen is not None:
            stack.enter_context(serving(ProbeMetrics(process.tally).registry, metrics_listen))
        try:
            if once:
                process.sweep_once()
            else:
                process.run(seconds)
        finally:
            summary = ProbeSummary.of(process.tally)
            if as_json:
                print_json(summary.to_json())
            else:
                print_summary(summary, Console(width=None if sys.stdout.isatty() else PRINTED_WIDTH))
    raise typer.Exit(summary.exit_code)


def _read_scales(text: str) -> tuple[float, ...]:
    try:
        scales = tuple(float(part) for part in text.split(","))
    except ValueError:
        scales = ()
    if not scales or list(scales) != sorted(set(scales)) or not 0 < scales[0] <= scales[-1] <= 86_400:
        raise ConfigError(f"--scales {text}", hint="rising numbers of seconds, such as 1,10,60,300")
    return scales
