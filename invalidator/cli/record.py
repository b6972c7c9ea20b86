"""``invalidator record``: the update stream, written into an archive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from invalidator.cli.options import DEFAULT_CONFIG, ConfigPath, KeyspaceName, Since
from invalidator.cli.output import show_progress
from invalidator.cli.signals import load_on_hangup, note_stop

if TYPE_CHECKING:
    from invalidator.archive.writer import ArchiveWriter
    from invalidator.stream.open import OpenedStream


def record(
    out: Annotated[str | None, typer.Option(help="Folder of the archive; default: archive.path.")] = None,
    keyspace: KeyspaceName = None,
    since: Since = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Write every row change into an archive, until SIGTERM or SIGINT. An archive goes on where it ends. SIGHUP loads
    the configuration again."""
    from invalidator.archive.record import get_archive_path
    from invalidator.archive.record import record as write_archive
    from invalidator.stream.open import StreamOpener

    read_config = load_on_hangup(config)
    folder = get_archive_path(read_config(), out)
    is_stopping = note_stop()
    with show_progress(f"recording into {folder}") as show:

        def report(archive: ArchiveWriter, opened: OpenedStream) -> None:
            lag_seconds = (time.time_ns() // 1000 - opened.stream.resume.min_timestamp_us) / 1e6
            show(
                f"{archive.transactions} transactions, {archive.rows_open} rows not on disk,"
                f" {lag_seconds:.1f} s behind"
            )

        write_archive(StreamOpener(read_config), folder, keyspace, since, is_stopping, report)
