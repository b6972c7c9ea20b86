"""The archive: the update stream as Parquet files, written while it passes by.

A file appears under its name complete or not at all (written aside, synced, renamed), holds whole transactions of one
lineage, and holds in its metadata the position up to which it goes. So the files alone are enough to resume: after a
crash at any moment the writer continues with the next ordinal, from the position of the last complete file, without
loss or repetition. Columns are those of `freshness.history.columns.CHANGES`; docs/update-stream.md has them.
Used by one thread. Never talks to a database or a cache node. `ArchiveWriter` is called by
``invalidator.archive.record``; reading is ``invalidator.archive.reader``.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from freshness.errors import ConfigError, FreshnessError, StorageUnavailable, StreamStopped
from freshness.history.archive_file import UNFINISHED, ArchiveFile, find_files, format_name, hash_lineage
from freshness.history.arrow import make_schema
from freshness.history.columns import CHANGES, CHANGES_VERSION
from freshness.history.durable import make_folder, publish, sync
from freshness.history.folder_lock import lock_folder
from freshness.history.footer import KIND, ArchiveFooter, read_footer
from freshness.objects.keyfinder import KeyFinder
from freshness.position import empty_position
from freshness.position.token import EventToken
from freshness.stream.source import RowChange, Transaction
from freshness.values.json import to_json_row
from invalidator.binlog.rows.image import digest_image
from invalidator.stream.layout_book import LayoutBook, cut_key
from invalidator.stream.message import StreamMessage

GROUP_ROWS_MAX: Final = 10_000
GROUP_BYTES_MAX: Final = 8 << 20
"""Held in memory for each shard before it is written to the file as a row group."""

FILE_ROWS_MAX: Final = 1_000_000
_FOR_AN_OPERATOR: Final = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
)
"""Failures of a folder that time does not mend."""

ROW_BYTES: Final = 200
"""A row's size beside its texts, for the bounds above."""

log = logging.getLogger(__name__)


SCHEMA: Final = make_schema(CHANGES, KIND, CHANGES_VERSION)


@dataclass(frozen=True, slots=True)
class RotationPolicy:
    """When a file is closed: whichever bound it reaches first."""

    seconds: float = 300
    bytes_max: int = 64 << 20
    rows_max: int = FILE_ROWS_MAX


def _find_newest(folder: Path) -> list[ArchiveFile]:
    return list({file.lineage_hash: file for file in find_files(folder)}.values())  # the last one wins


def find_resume(folder: Path, keyspace: str) -> dict[str, EventToken]:
    """The token up to which a keyspace's archive goes, by lineage; empty if there is none. Raises `FormatError`."""
    newest = _find_newest(folder / f"keyspace={keyspace}")
    tokens = [read_footer(file.path).resume for file in newest]
    return {token.lineage: token for token in tokens}


@dataclass(slots=True)
class _Lineage:
    """How far a lineage is written. ``durable``: token up to which complete files go; None while there is none."""

    ordinal: int
    token: EventToken
    durable: EventToken | None


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written, under a name that nobody reads."""

    lineage: str
    folder: Path
    path: Path
    file: IO[bytes]
    writer: pq.ParquetWriter
    first: int
    before: EventToken
    opened_at: float
    hour: str
    rows: int = 0
    columns: list[list[Any]] = field(default_factory=lambda: [[] for _ in CHANGES])
    held_bytes: int = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            for column, value in zip(self.columns, row, strict=True):
                column.append(value)
            self.held_bytes += ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))
        self.rows += len(rows)
        if len(self.columns[0]) >= GROUP_ROWS_MAX or self.held_bytes >= GROUP_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        if self.columns[0]:
            self.writer.write_batch(_batch(self.columns))
        self.columns = [[] for _ in CHANGES]
        self.held_bytes = 0

    @property
    def bytes_written(self) -> int:
        return self.file.tell() + self.held_bytes


@dataclass(slots=True)
class _Spool:
    """Pieces of a transaction that is too large to be held: they wait in a file until it is known to be whole."""

    path: Path
    file: IO[bytes]
    writer: pa.RecordBatchStreamWriter
    token: EventToken
    rows: int = 0
    """Changes, without other rows."""
    last_row: int = -1


class ArchiveWriter:
    """Writes the archive of one keyspace. Only one writer may have it open: others get `ConfigError`.

    ``finder``: finder of the cache items that a change concerns. ``tables``: names and patterns of the tables that
    the stream carries. ``now_us``: wall clock for the column ``received_us`` and the names of hours, in µs.
    ``clock``: clock for rotation, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        keyspace: str,
        finder: KeyFinder,
        layouts: LayoutBook,
        policy: RotationPolicy,
        *,
        tables: tuple[str, ...],
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        """Reads back how far complete files go; removes unfinished ones. Raises `ConfigError` if the folder cannot be
        written to or another writer has it, `StorageUnavailable` if the disk is full or fails, `FormatError` if the
        newest file cannot be read."""
        self._folder = folder / f"keyspace={keyspace}"
        self._keyspace = keyspace
        self._finder = finder
        # A row is the value of these. It is a part of a composite's value, and under another unique key another row
        # may have been before it.
        self._row_finder = KeyFinder(
            {name: each for name, each in finder.definitions.items() if each.config.is_primary_row}
        )
        self._layouts = layouts
        self._policy = policy
        self._tables = tables
        self._clock = clock
        self._now_us = now_us
        self._lineages: dict[str, _Lineage] = {}
        self._files: dict[str, _OpenFile] = {}
        self._spools: dict[str, _Spool] = {}
        self.transactions = 0
        self.duplicates = 0
        try:
            make_folder(self._folder)
            self._lock = lock_folder(self._folder, ".lock", "written")
        except OSError as error:
            raise make_storage_error(folder, error) from error
        try:
            self._remove_unfinished()
            for file in _find_newest(self._folder):
                token = read_footer(file.path).resume
                self._lineages[token.lineage] = _Lineage(file.last, token, token)
        except BaseException as error:
            self._lock.close()
            if isinstance(error, OSError):
                raise make_storage_error(folder, error) from error
            raise

    @property
    def resume(self) -> dict[str, EventToken]:
        """Everything that complete files hold, by lineage: from here the stream is to be opened. A lineage that came
        with a reshard is not in it before its first complete file: its start is found as for other readers."""
        return {name: each.durable for name, each in self._lineages.items() if each.durable is not None}

    @property
    def rows_open(self) -> int:
        """Rows that are not in a complete file yet."""
        return sum(file.rows for file in self._files.values())

    def begin(self, start: Mapping[str, EventToken]) -> None:
        """Set the start of the stream. The writer stores it before anything else for a lineage that is new to the
        archive, so that a crash before the lineage's first complete file loses nothing."""
        for lineage, token in start.items():
            if lineage not in self._lineages:
                self._lineages[lineage] = _Lineage(0, token, token)
                self._files[lineage] = self._open(lineage, token)
                self._complete(lineage)

    def write(self, message: StreamMessage) -> None:
        """Take a message; skip one that the archive has. Raises `StreamStopped` for a piece that does not follow the
        one before it, `OSError` if the disk is full or fails: then `abandon` it."""
        lineage = message.token.lineage
        if message.keyspace != self._keyspace:
            raise ConfigError(f"a message of keyspace {message.keyspace!r} for the archive of {self._keyspace!r}")
        if lineage not in self._lineages:
            self._lineages[lineage] = _Lineage(0, _nothing_before(message.token), None)
        state = self._lineages[lineage]
        self.tick()
        if state.token.epoch == message.token.epoch and state.token.position.contains(message.token.position):
            self._drop_spool(lineage)
            self.duplicates += message.is_last
            return
        if not message.first_row:
            self._drop_spool(lineage)  # void: that transaction comes again from its first row, or never
        if not message.is_last or message.first_row:
            self._spool(message)
        if not message.is_last:
            return
        file = self._files.get(lineage)
        if file is None:
            file = self._files[lineage] = self._open(lineage, state.token)
        state.ordinal += 1
        if lineage in self._spools:
            self._unspool(file, message, state.ordinal)
        else:
            file.add(self._rows(message, state.ordinal, len(message.rows)))
        state.token = message.resume.get(lineage) or replace(
            message.token, position=state.token.position.union(message.token.position)
        )
        self._layouts.note(message)
        self.transactions += 1
        if file.rows >= self._policy.rows_max or file.bytes_written >= self._policy.bytes_max:
            self._complete(lineage)

    def tick(self) -> None:
        """Close the files whose time is over. To be called every second or so while nothing comes."""
        due = [
            lineage
            for lineage, file in self._files.items()
            if self._clock() - file.opened_at >= self._policy.seconds or file.hour != self._hour()
        ]
        for lineage in due:
            self._complete(lineage)

    def close(self) -> None:
        """Complete all files and let others write. Raises `OSError` as `write` does."""
        for lineage in list(self._files):
            self._complete(lineage)
        for lineage in list(self._spools):
            self._drop_spool(lineage)
        self._lock.close()

    def abandon(self) -> None:
        """Let others write, and give back the room of all that is not complete: it comes again, behind `resume`."""
        unfinished: list[_OpenFile | _Spool] = [*self._files.values(), *self._spools.values()]
        self._files.clear()
        self._spools.clear()
        for each in unfinished:
            # Closing flushes the rest, which fails as the disk does
            for close in (each.writer.close, each.file.close, each.path.unlink):
                with suppress(OSError, ValueError):  # the latter if the file is closed already
                    close()
        self._lock.close()

    def _hour(self) -> str:
        return datetime.fromtimestamp(self._now_us() / 1e6, UTC).strftime("%Y-%m-%dT%H")

    def _open(self, lineage: str, before: EventToken) -> _OpenFile:
        hour = self._hour()
        folder = self._folder / f"shard={before.shard}" / f"hour={hour}"
        folder.mkdir(parents=True, exist_ok=True)
        first = self._lineages[lineage].ordinal + 1
        path = folder / f".changes-{hash_lineage(lineage)}-{first:016d}{UNFINISHED}"
        file = path.open("wb")
        writer = pq.ParquetWriter(file, SCHEMA, compression="zstd")
        return _OpenFile(lineage, folder, path, file, writer, first, before, self._clock(), hour)

    def _complete(self, lineage: str) -> None:
        """Give the file its name, when all of it is on the disk."""
        file = self._files[lineage]
        state = self._lineages[lineage]
        file.flush()
        footer = ArchiveFooter(self._keyspace, file.before, state.token, self._tables)
        file.writer.add_key_value_metadata(footer.to_metadata())
        file.writer.close()
        file.file.close()
        publish(file.path, file.folder / format_name(hash_lineage(lineage), file.first, state.ordinal))
        for folder in (file.folder.parent, self._folder):
            sync(folder)
        state.durable = state.token
        del self._files[lineage]

    def _remove_unfinished(self) -> None:
        for path in self._folder.rglob(f".*{UNFINISHED}"):
            log.warning("%s was left behind by a writer that was killed; what it held comes again", path)
            path.unlink()

    def _spool(self, message: StreamMessage) -> None:
        lineage = message.token.lineage
        if message.first_row == 0:
            path = self._folder / f".pieces-{hash_lineage(lineage)}{UNFINISHED}"
            file = path.open("wb")
            self._spools[lineage] = _Spool(path, file, pa.ipc.new_stream(file, SCHEMA), message.token)
        spool = self._spools.get(lineage)
        if spool is None or spool.token != message.token or spool.last_row >= message.first_row > 0:
            raise StreamStopped(
                f"transaction {message.token.position} goes on with row {message.first_row}, and what came before"
                " it is not that transaction's beginning",
                hint="open the stream again from the archive's position",
            )
        columns: list[list[Any]] = [[] for _ in CHANGES]
        for row in self._rows(message, 0, 0):
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        spool.writer.write_batch(_batch(columns))
        spool.rows += len(message.rows)
        spool.last_row = max((spool.last_row, *message.rows))

    def _unspool(self, file: _OpenFile, message: StreamMessage, ordinal: int) -> None:
        """Move the pieces to the file, with what is known only now: ordinal, number of rows, and whether it was a
        commit at all."""
        spool = self._spools[file.lineage]
        spool.writer.close()
        spool.file.close()
        file.flush()
        with pa.ipc.open_stream(spool.path) as reader:
            for batch in reader:
                file.writer.write_batch(_with_totals(batch, ordinal, spool.rows))
                file.rows += batch.num_rows
        spool.path.unlink()
        del self._spools[file.lineage]

    def _drop_spool(self, lineage: str) -> None:
        spool = self._spools.get(lineage)
        if spool is not None:
            spool.writer.close()
            spool.file.close()
            spool.path.unlink()
            del self._spools[lineage]

    def _rows(self, message: StreamMessage, ordinal: int, rows: int) -> list[tuple[Any, ...]]:
        """Rows of `freshness.history.columns.CHANGES`: the changes, tables that are invalidated as a whole,
        heartbeats."""
        transaction, token = message.transaction, message.token
        head = (message.keyspace, message.shard, token.lineage, token.epoch, ordinal)
        times = (str(token.position), transaction.timestamp_us, self._now_us())
        raised = dict.fromkeys(sorted(transaction.raised_tables), "; ".join(transaction.reasons) or None)
        made = []
        for row, change in zip(message.rows, transaction.changes, strict=True):
            items, without_key = _find_items(self._finder, transaction, change)
            merged = {**(change.before or {}), **(change.after or {})}
            now = RowChange(change.table, "insert", None, merged)
            row_items, _ = _find_items(self._row_finder, transaction, now)
            raised |= {table: raised.get(table) or reason for table, reason in without_key.items()}
            told = self._describe(message, change)
            made.append((*head, row, rows, *times, change.op, change.table, items, row_items, *told, None))
        nothing = (None,) * 5
        for table, reason in raised.items():
            made.append((*head, -1, rows, *times, "raise", table, [], [], *nothing, reason))
        for beat in transaction.heartbeats:
            detail = msgspec.json.encode(beat).decode()
            made.append((*head, -1, rows, *times, "heartbeat", None, [], [], *nothing, detail))
        if not made and message.is_last and not message.first_row:
            made.append((*head, -1, 0, *times, "empty", None, [], [], *nothing, None))
        return made

    def _describe(self, message: StreamMessage, change: RowChange) -> tuple[Any, ...]:
        """Key, before and after as JSON, and the digests."""
        layout = self._layouts.find(message.shard, change.table)
        key = cut_key(change, self._layouts.find_key(message.shard, change)[0])
        digests = [digest_image(each, change.shapes, layout) for each in (change.before, change.after)]
        return (
            _to_text(to_json_row(key)),
            _to_text(to_json_row(change.before)),
            _to_text(to_json_row(change.after)),
            *digests,
        )


def _find_items(finder: KeyFinder, transaction: Transaction, change: RowChange) -> tuple[list[bytes], dict[str, str]]:
    """As in the invalidator: the items, or the table whose floor is raised because its items are not known."""
    items, raised = finder.find(Transaction(transaction.position, transaction.timestamp_us, (change,)))
    return list(items), raised


def _to_text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _batch(columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(column, part.type) for column, part in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _with_totals(batch: pa.RecordBatch, ordinal: int, rows: int) -> pa.RecordBatch:
    known = {"ordinal": ordinal, "rows": rows}
    arrays = [
        pa.array([known[part.name]] * batch.num_rows, part.type) if part.name in known else column
        for part, column in zip(SCHEMA, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _nothing_before(token: EventToken) -> EventToken:
    """For a stream without a known start: nothing is known from before its first transaction."""
    return replace(token, position=empty_position(token.position.flavor))


def make_storage_error(folder: Path, error: OSError) -> FreshnessError:
    """The error of a folder that cannot be written to."""
    message = f"the archive {folder} cannot be written: {error.strerror}"
    if error.errno in _FOR_AN_OPERATOR:
        return ConfigError(message, hint="give another folder, or the right to write there")
    return StorageUnavailable(message, hint="make room, then start it again: it goes on after the last complete file")
