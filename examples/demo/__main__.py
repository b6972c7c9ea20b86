"""`python -m examples.demo`: the command line. Exit codes: 0 event tokens kept their promise, 5 they did not,
2 wrong arguments, 3 a server failed, 130 interrupted, 143 terminated."""

from __future__ import annotations

import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from examples.demo.live import open_view
from examples.demo.report import accuse, as_json, as_table, explain
from examples.demo.run import run_demo
from examples.demo.workload import Plan
from examples.demo.world import NodeKind
from freshness.errors import FreshnessError

INTERRUPTED_EXIT_CODE = 130
TERMINATED_EXIT_CODE = 143


class FlavorName(StrEnum):
    mariadb = "mariadb"
    mysql = "mysql"


class TopologyName(StrEnum):
    galera = "galera"
    group = "group"
    haproxy = "haproxy"
    semisync = "semisync"


class BackendName(StrEnum):
    memcached = "memcached"
    redis = "redis"


def demo(
    seconds: Annotated[float, typer.Option(min=2, max=3600, help="How long writers write.")] = 30,
    flavor: Annotated[FlavorName | None, typer.Option(help="Which database; else mariadb.")] = None,
    vitess: Annotated[
        bool, typer.Option("--vitess", help="A real Vitess is the database, which needs Go to be built.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload.")] = 42,
    managed: Annotated[
        bool,
        typer.Option(
            "--managed",
            help="Cache nodes as a cloud runs them: memcached with -o no_modern, Redis that evicts and hides CONFIG.",
        ),
    ] = False,
    backend: Annotated[BackendName, typer.Option(help="Which cache nodes.")] = BackendName.memcached,
    stripes: Annotated[int | None, typer.Option(min=1, help="cache.stripes, else as by default.")] = None,
    node_megabytes: Annotated[
        int | None, typer.Option(min=1, help="Memory of each node, else 64. It may be too little.")
    ] = None,
    interrupted: Annotated[
        int, typer.Option(min=0, max=16, help="So many processes more read, and are interrupted by signals.")
    ] = 0,
    fill_from_log: Annotated[
        bool, typer.Option("--fill-from-log", help="Event tokens: the log's rows take the place of entries.")
    ] = False,
    replicas: Annotated[int, typer.Option(min=0, max=1, help="0: a primary alone, which all read.")] = 1,
    topology: Annotated[
        TopologyName | None,
        typer.Option(help="A cluster of Galera, a group of MySQL's, a proxy, or commits that wait for the replica."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Record the run here, for the audit: freshness-spark audit.")
    ] = None,
    as_json_only: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")] = False,
) -> None:
    """Four ways to keep a cache fresh, side by side on one workload and one lagging replica, or none."""
    if history is not None and backend is BackendName.redis:
        raise typer.BadParameter("a history is recorded on memcached alone: Redis has no versions of items")
    if vitess and (flavor is not None or history is not None or fill_from_log or not replicas):
        raise typer.BadParameter("--vitess goes with none of --flavor, --history, --fill-from-log and --replicas 0")
    if history is not None and not replicas:
        raise typer.BadParameter("a history is recorded with a replica: the witness reads its position")
    if topology is not None and (vitess or history is not None or not replicas):
        raise typer.BadParameter("--topology goes with none of --vitess, --history and --replicas 0")
    flavor = flavor or (FlavorName.mysql if topology is TopologyName.group else FlavorName.mariadb)
    if (topology, flavor) in ((TopologyName.galera, FlavorName.mysql), (TopologyName.group, FlavorName.mariadb)):
        raise typer.BadParameter("Galera is MariaDB's, and a group MySQL's", param_hint="--topology")
    signal.signal(signal.SIGTERM, _terminate)
    notes = Console(stderr=True)
    is_live = notes.is_terminal and not as_json_only
    try:
        with open_view(notes, is_live=is_live) as view:
            result = run_demo(
                "vitess" if vitess else flavor.value,
                Plan(
                    seconds=seconds,
                    seed=seed,
                    interrupted=interrupted,
                    fills_from_log=fill_from_log,
                    has_replica=replicas > 0,
                    topology=topology.value if topology else None,
                ),
                view,
                NodeKind(backend.value, managed, node_megabytes, stripes),
                history and history.resolve(),
            )
    except KeyboardInterrupt:
        notes.print("demo: interrupted; everything it started is stopped", highlight=False)
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    except FreshnessError as error:
        notes.print(f"demo: {error.message}", highlight=False, markup=False, soft_wrap=True)
        if error.hint:
            notes.print(f"  → {error.hint}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from None
    if as_json_only:
        print(json.dumps(as_json(result), indent=2))
    else:
        out = Console()
        out.print(as_table(result))
        for line in explain(result):
            out.print(line, highlight=False)
    for line in accuse(result):
        notes.print(f"demo: event_tokens: {line}", highlight=False, style="red")
    raise typer.Exit(result.exit_code)


def _terminate(*_: object) -> NoReturn:
    sys.exit(TERMINATED_EXIT_CODE)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(demo)
    app()
