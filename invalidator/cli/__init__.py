"""The command line of the invalidator. One function per verb; the work is done elsewhere.

A mistake of the user's ends with one line and the exit code of its error, never with a traceback (exit codes:
0 ok, 1 bug, 2 usage or configuration, 3 upstream unavailable, 4 an operator is needed). What is asked for goes
to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from freshness import __version__
from freshness.config.reader import load_config
from freshness.config.settings import Config
from freshness.database.connection import connect
from freshness.database.schema import load_registry
from freshness.errors import ConfigError, FreshnessError, NodeUnavailable
from freshness.position.token import EventToken, compare
from invalidator.process.app import Invalidator
from invalidator.process.preflight import check_shard
from invalidator.process.status import inspect, locate_key, read_status

if TYPE_CHECKING:
    from invalidator.archive.writer import ArchiveWriter
    from invalidator.stream.open import OpenedStream

STOP_SEEN_SECONDS: Final = 0.25

app = typer.Typer(
    help="Keeps a cache of MySQL data fresh: follows the binlog and invalidates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_CONFIG = Path("freshness.toml")
_COUNTING: Final = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    TimeElapsedColumn(),
    TextColumn("{task.fields[shown]}"),
)


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
    signal.signal(signal.SIGHUP, lambda *_: _reload(invalidator.reload, config))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: invalidator.stop())
    with ExitStack() as stack:
        if settings.http.listen is not None:
            # Only here: the web framework takes longer to import than every other verb needs
            from invalidator.http.service import HttpService, create_api, read_access_token

            api = create_api(
                invalidator,
                lambda: read_status(invalidator.config),
                access_token=read_access_token(settings),
                reload=invalidator.change_topology,
            )
            service = HttpService(api, settings.http.listen)
            service.start()
            stack.callback(service.stop)
        if settings.archive.path is not None:
            from invalidator.archive.record import ArchiveRecorder
            from invalidator.stream.open import StreamOpener

            for keyspace in settings.keyspaces:
                recorder = ArchiveRecorder(StreamOpener(lambda: invalidator.config), keyspace)
                recorder.start()
                stack.callback(recorder.stop)
        invalidator.run()


def _reload(take: Callable[[Config], None], path: Path) -> None:
    try:
        take(load_config(path))
    except ConfigError as error:
        logging.getLogger(__name__).error("the configuration stays as it was: %s", error)


def _load_on_signal(path: Path) -> Callable[[], Config]:
    """The configuration of now, which SIGHUP loads again."""
    loaded = deque([load_config(path)], maxlen=1)
    signal.signal(signal.SIGHUP, lambda *_: _reload(loaded.append, path))
    return lambda: loaded[-1]


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
            connection = connect(shard.writable)
            try:
                findings += check_shard(connection, shard, keyspace.gtid_flavor, tables)
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
    answer = inspect(settings, locate_key(settings, load_registry(settings), name, key))
    if as_json:
        _print_json(answer)
        return
    for title, value in answer.items():
        shown = _plain(value) if isinstance(value, Mapping | list) else value
        typer.echo(f"{title + ':':16}{shown}")


@app.command("invalidate")
def invalidate_by_hand(
    name: Annotated[str, typer.Argument(metavar="OBJECT")],
    key: Annotated[list[str], typer.Argument(metavar="KEY...")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Remove what the cache holds of these keys; nothing older than the primary is now can be stored again."""
    from invalidator.process.by_hand import invalidate_keys
    from invalidator.stream.open import StreamOpener

    settings = load_config(config)
    read_head = StreamOpener(lambda: settings).read_token
    subjects = invalidate_keys(settings, load_registry(settings), name, key, read_head)
    if as_json:
        _print_json([{"object": name, "node": each.node, "item": each.item.decode()} for each in subjects])
        return
    for each in subjects:
        typer.echo(f"{each.item.decode()} on {each.node}: invalidated")


KeyspaceName = Annotated[str | None, typer.Option("--keyspace", help="Needed where there are several.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", help='"now", a resume text, an event token, or a time such as 2026-01-31T12:00:00Z.'
    ),
]


@app.command()
def stream(
    keyspace: KeyspaceName = None,
    key_range: Annotated[str, typer.Option(help='Which keys, such as "-80".')] = "-",
    since: Since = None,
    skew: Annotated[
        bool | None, typer.Option("--skew/--no-skew", help="Align the shards in time, or not.")
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="End after so many lines; 0: never.")] = 0,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Print every row change as a line of JSON, until SIGTERM or SIGINT. SIGHUP loads the configuration again."""
    from invalidator.stream.json_lines import LineWriter, encode_line
    from invalidator.stream.open import StreamOpener

    read_config = _load_on_signal(config)
    stopping = _stop_on_signals()
    opened = StreamOpener(read_config).open(keyspace, key_range, since or "now", minimize_skew=skew)
    try:
        out = LineWriter(opened.layouts, opened.stream.resume.format())
        printed = 0
        while not stopping.is_set():
            opened.follow()
            message = opened.stream.poll(STOP_SEEN_SECONDS)
            for line in out.lines(message) if message is not None else ():
                sys.stdout.buffer.write(encode_line(line))
                printed += 1
                if printed == count:
                    stopping.set()
                    break
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever read it has enough; Python would complain once more when it closes the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        opened.stream.close()


@app.command()
def record(
    out: Annotated[Path | None, typer.Option(help="Folder of the archive; default: archive.path.")] = None,
    keyspace: KeyspaceName = None,
    since: Since = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Write every row change into an archive, until SIGTERM or SIGINT. An archive goes on where it ends. SIGHUP loads
    the configuration again."""
    from invalidator.archive.record import get_archive_path
    from invalidator.archive.record import record as write_archive
    from invalidator.stream.open import StreamOpener

    read_config = _load_on_signal(config)
    folder = get_archive_path(read_config(), out)
    stopping = _stop_on_signals()
    console = Console(stderr=True)
    with Progress(*_COUNTING, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"recording into {folder}", total=None, shown="")

        def report(archive: ArchiveWriter, opened: OpenedStream) -> None:
            now = time.time_ns() // 1000
            lag = (now - opened.stream.resume.min_timestamp_us) / 1e6
            shown = f"{archive.transactions} transactions, {archive.rows_open} rows not on disk, {lag:.1f} s behind"
            progress.update(task, shown=shown)

        write_archive(StreamOpener(read_config), folder, keyspace, since, stopping.is_set, report)


@app.command()
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
    from invalidator.archive.replay import Replay, ReplayResult, open_recording

    settings = load_config(config)
    console = Console(stderr=True)
    with Progress(*_COUNTING, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"replaying {path}", total=None, shown="")

        def report(result: ReplayResult) -> None:
            shown = f"{result.lineage}: {result.transactions} transactions, {result.keys} keys"
            progress.update(task, shown=shown)

        run = Replay(settings, open_recording(path), load_registry, namespace, force, report=report)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: run.stop())
        results = run.run()
    if as_json:
        _print_json(
            {"namespace": run.config.cache.namespace, "lineages": [each.to_json() for each in results]}
        )
    else:
        for each in results:
            typer.echo(
                f"{each.lineage}: {each.transactions} transactions, {each.keys} keys invalidated,"
                f" tables raised: {each.raised or 'none'}, up to {each.position}"
            )
    left_out = sorted({node for each in results for node in each.nodes_left_out})
    if left_out:
        raise NodeUnavailable(
            f"not everything was acknowledged by {', '.join(left_out)}",
            hint="see `invalidator status`; replay again with --force",
        )


@app.command("compare")
def compare_tokens(
    one: Annotated[str, typer.Argument(metavar="TOKEN")],
    two: Annotated[str, typer.Argument(metavar="TOKEN")],
    as_json: AsJson = False,
) -> None:
    """How the first event token stands to the second: older, equal, newer or unknown."""
    tokens = EventToken.parse(one), EventToken.parse(two)
    order = compare(*tokens).value
    if not as_json:
        typer.echo(order)
        return
    described = [
        {
            "lineage": token.lineage,
            "shard": token.shard,
            "epoch": token.epoch,
            "timestamp": token.timestamp_us / 1e6,
            "position": str(token.position),
        }
        for token in tokens
    ]
    _print_json({"order": order, "tokens": described})


def _stop_on_signals() -> threading.Event:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


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
