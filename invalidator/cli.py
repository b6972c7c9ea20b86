"""The command line of the invalidator. One function per verb; the work is done elsewhere.

A mistake of the user's ends with one line and the exit code of its error, never with a traceback (exit codes:
0 ok, 1 bug, 2 usage or configuration, 3 upstream unavailable, 4 an operator is needed). What is asked for goes
to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from freshness import __version__
from freshness.backends.database import connect
from freshness.backends.schema import load_registry
from freshness.config import load_config
from freshness.errors import ConfigError, FreshnessError
from invalidator.app import Invalidator
from invalidator.preflight import check_database
from invalidator.status import find_subject, inspect, read_status

app = typer.Typer(
    help="Keeps a cache of MySQL data fresh: follows the binlog and invalidates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_CONFIG = Path("freshness.toml")


@app.command()
def run(
    config: ConfigPath = DEFAULT_CONFIG,
    shard: Annotated[
        list[str] | None, typer.Option(help="Take only this shard; may be repeated. Else all of them.")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="Look after this cache node only; may be repeated. Else all of them."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Follow the binlogs and invalidate, until SIGTERM or SIGINT. SIGHUP loads the configuration again."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"unknown log level {log_level!r}")
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    settings = load_config(config)
    invalidator = Invalidator(settings, shards=shard or (), nodes=node or ())
    signal.signal(signal.SIGHUP, lambda *_: _reload(invalidator, config))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: invalidator.stop())
    service = None
    if settings.http.listen is not None:
        # Only here: the web framework takes longer to import than every other verb needs
        from invalidator.http import HttpService, create_api

        service = HttpService(
            create_api(invalidator, lambda: read_status(invalidator.config)), settings.http.listen
        )
        service.start()
    try:
        invalidator.run()
    finally:
        if service is not None:
            service.stop()


def _reload(invalidator: Invalidator, path: Path) -> None:
    try:
        invalidator.reload(load_config(path))
    except ConfigError as error:
        logging.getLogger(__name__).error("the configuration stays as it was: %s", error)


@app.command()
def check(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Look for everything that would lose invalidations, and say how to put it right."""
    settings = load_config(config)
    registry = load_registry(settings)
    findings = []
    for keyspace in settings.keyspaces.values():
        tables = {
            table
            for definition in registry.values()
            if definition.config.keyspace == keyspace.name
            for table in definition.columns_by_table
        }
        for shard in keyspace.shards:
            connection = connect(shard.primary)
            try:
                findings += check_database(connection, shard.primary, keyspace.flavor, tables)
            finally:
                connection.close()
    if as_json:
        _print_json(
            [{"severity": f.severity, "code": f.code, "message": f.message, "hint": f.hint} for f in findings]
        )
    else:
        for finding in findings:
            typer.echo(str(finding))
        typer.echo(f"{len(findings)} findings")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(4)


@app.command()
def status(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """What every cache node says of itself. Needs no running invalidator."""
    answer = read_status(load_config(config))
    if as_json:
        _print_json(answer)
        return
    table = Table()
    for title in ("node", "lineage", "state", "lease s", "age s"):
        table.add_column(title, no_wrap=True)
    for title in ("progress", "floor"):
        table.add_column(title, overflow="fold")
    for node in answer["nodes"]:
        table.add_row(
            node["node"],
            node["lineage"],
            node["state"],
            str(node.get("lease_seconds_left", "")),
            str(node.get("heartbeat_age_seconds", "")),
            node.get("progress", ""),
            node.get("floor", ""),
        )
    Console().print(table)


@app.command("inspect")
def inspect_object(
    name: Annotated[str, typer.Argument(metavar="OBJECT")],
    key: Annotated[list[str], typer.Argument(metavar="KEY...")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """What the cache holds of one object, and whether it is what the primary has."""
    settings = load_config(config)
    answer = inspect(settings, find_subject(settings, load_registry(settings), name, key))
    if as_json:
        _print_json(answer)
        return
    for title, value in answer.items():
        shown = _plain(value) if isinstance(value, Mapping | list) else value
        typer.echo(f"{title + ':':16}{shown}")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"freshness {__version__}")


def _plain(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def main() -> None:
    """The console script. Errors of ours become one line and their exit code."""
    try:
        app()
    except FreshnessError as error:
        typer.echo(f"invalidator: {error.message}", err=True)
        if error.hint:
            typer.echo(f"  → {error.hint}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
