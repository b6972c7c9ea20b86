"""``invalidator replay``: a recorded stream, sent once more into the cache nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshness.config.config import load_config
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json, show_progress
from invalidator.cli.signals import call_on_stop


def replay(
    path: Annotated[Path, typer.Argument(help="An archive, a part or a file of it, or JSON lines.")],
    namespace: Annotated[
        str, typer.Option(help='Namespace to replay into; default: the configured one with ".replay".')
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replay into a namespace that is in use: what it holds is lost.")
    ] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Send a recorded stream through the invalidator's loop into the cache nodes, in a namespace of its own."""
    from freshness.database.schema import load_registry
    from invalidator.archive.replay import Replay, open_recording, require_acknowledged

    settings = load_config(config)
    with show_progress(f"replaying {path}") as show:
        work = Replay(
            settings,
            open_recording(path),
            load_registry,
            namespace,
            force,
            report=lambda result: show(result.describe_progress()),
        )
        call_on_stop(work.stop)
        results = work.run()
    if as_json:
        print_json({"namespace": work.config.cache.namespace, "lineages": [each.to_json() for each in results]})
    else:
        for result in results:
            typer.echo(str(result))
    require_acknowledged(results)
