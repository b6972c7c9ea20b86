"""``invalidator stream``: the update stream as lines of JSON on stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from freshness.errors import StorageUnavailable
from invalidator.cli.options import DEFAULT_CONFIG, ConfigPath, KeyspaceName, Since, TableNames
from invalidator.cli.signals import load_on_hangup, note_stop
from invalidator.stream.query import CHUNK_ROWS, CHUNK_ROWS_MAX, RefreshRequest, StreamQuery
from invalidator.stream.selection import Images, Selection, read_names

STOP_SEEN_SECONDS: Final = 0.25


def stream(
    keyspace: KeyspaceName = None,
    key_range: Annotated[str, typer.Option(help='Which keys, such as "-80".')] = "-",
    since: Since = None,
    skew: Annotated[bool | None, typer.Option("--skew/--no-skew", help="Align the shards in time, or not.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Lines of changes and heartbeats until the end.")] = None,
    tables: TableNames = None,
    columns: Annotated[
        str | None, typer.Option(help='COLUMN or TABLE.COLUMN, such as "id,orders.*"; default: all.')
    ] = None,
    images: Annotated[Images, typer.Option(help="How much of a row: all of it, or the primary key alone.")] = "full",
    heartbeats: Annotated[
        bool, typer.Option("--heartbeats/--no-heartbeats", help="Also lines of invalidators' heartbeats.")
    ] = True,
    refresh: Annotated[
        str | None,
        typer.Option(help='Also the rows that tables have now, such as "orders,customers", as op refresh.'),
    ] = None,
    refresh_from: Annotated[
        Literal["primary", "replica"], typer.Option(help="The server whose rows are read.")
    ] = "primary",
    refresh_rows_per_second: Annotated[
        float | None, typer.Option(help="Rows that a refresh reads, at most; default: no bound.")
    ] = None,
    refresh_chunk_rows: Annotated[
        int, typer.Option(min=1, max=CHUNK_ROWS_MAX, help="Rows that a refresh reads at once.")
    ] = CHUNK_ROWS,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Print every row change as a line of JSON, until SIGTERM or SIGINT. SIGHUP loads the configuration again."""
    refreshed = RefreshRequest(
        read_names(refresh, "--refresh"),
        refresh_from,
        refresh_rows_per_second,
        refresh_chunk_rows,
        Selection(read_names(columns, "--columns"), images=images),
    )
    names = read_names(tables, "--tables")
    start = "now" if since is None else since
    _print_stream(config, StreamQuery(keyspace, key_range, start, names, skew, refreshed, count, heartbeats))


def _print_stream(config: Path, query: StreamQuery) -> None:
    from freshness.stream.lines import UpdateLine, encode_line
    from invalidator.stream.json_lines import LineWriter
    from invalidator.stream.open import StreamOpener

    read_config = load_on_hangup(config)
    is_stopping = note_stop()
    opened = StreamOpener(read_config).open(query)
    try:
        out = LineWriter(opened.layouts, opened.stream.resume.format(), query.heartbeats, query.selection)
        printed = 0
        while printed != query.count and not is_stopping():
            opened.follow()
            message = opened.stream.poll(STOP_SEEN_SECONDS)
            for line in out.lines(message) if message is not None else ():
                sys.stdout.buffer.write(encode_line(line))
                printed += isinstance(line, UpdateLine)
                if printed == query.count:
                    break
            sys.stdout.buffer.flush()
    except OSError as error:
        # Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # else the reader of the pipe has enough
            raise StorageUnavailable(
                f"the lines cannot be written: {error.strerror}",
                hint="make room, cut off the last line if it is not whole, and go on with the resume text before it",
            ) from error
    finally:
        opened.stream.close()
