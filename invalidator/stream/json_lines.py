"""The update stream as JSON lines: one line for each row change, and the way back.

`invalidator stream` prints these lines, the HTTP service serves them, and `invalidator replay` reads a file of them.
The schema of a line is ``freshness.stream.lines``. Every value of a row comes back as it was: a value that JSON lacks
is an object with one key that begins with ``$`` (docs/update-stream.md has the table). No I/O but for
`read_json_lines`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

from freshness.errors import FormatError
from freshness.position.token import EventToken
from freshness.stream.lines import (
    LINE_BYTES_MAX,
    ErrorLine,
    LineOperation,
    RefreshedLine,
    SchemaLine,
    UpdateLine,
    decode_line,
)
from freshness.stream.resume import ResumeVector
from freshness.stream.schema import KeySource, TableSchema, make_schema_id
from freshness.stream.source import Heartbeat, RowChange, Transaction
from freshness.values.json import from_json_row, to_json_row
from invalidator.stream.layout_book import LayoutBook, cut_key
from invalidator.stream.message import OpenTransaction, StreamMessage
from invalidator.stream.selection import WHOLE, Selection

PIECE_ROWS_MAX: Final = 10_000
"""Rows of one transaction that are held together while a file is read; a larger one comes in pieces."""

Made = TypeVar("Made")
MadeLine: TypeAlias = UpdateLine | SchemaLine | RefreshedLine
CHANGES: Final = frozenset(("insert", "update", "delete"))

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LineWriter:
    """Makes lines of messages. ``resume``: resume text of the last whole transaction; at first, of the stream's
    start. A line with the schema comes before the first row of a table, and before the first of another layout.
    ``heartbeats``: True if invalidators' heartbeats have lines. ``selection``: columns in the line of each row.

    The last line of a piece is held back until the next piece: only then it is known whether the transaction ends
    there.
    """

    layouts: LayoutBook
    resume: str | None = None
    heartbeats: bool = True
    selection: Selection = WHOLE
    _held: dict[str, UpdateLine] = field(default_factory=dict)
    _told: dict[tuple[str, str], _Told] = field(default_factory=dict)

    def lines(self, message: StreamMessage) -> list[MadeLine]:
        """None for a transaction that did nothing to the stream's tables; `resume` moves on all the same."""
        update_lines = self._update_lines(message)
        if not message.is_refresh or message.refresh is not None:
            return [*update_lines]
        end = RefreshedLine(
            keyspace=message.keyspace,
            timestamp=message.transaction.timestamp_us / 1e6,
            resume=self.resume,
            min_timestamp=message.min_timestamp_us / 1e6,
        )
        return [*update_lines, end]

    def _update_lines(self, message: StreamMessage) -> list[UpdateLine | SchemaLine]:
        transaction = message.transaction
        held = None if message.is_refresh else self._held.pop(message.shard, None)
        lines: list[UpdateLine | SchemaLine] = [held] if held is not None and message.first_row else []
        for row, change in zip(message.rows, transaction.changes, strict=True):
            key, key_source = self.layouts.find_key(message.shard, change)
            told = self._find_told(message, change, key, key_source)
            if told is not None and not told.is_told:
                lines.append(self._schema_line(message, change.table, told))
                told.is_told = True
            lines.append(self._change(message, change, row, key, "" if told is None else told.id))
        reason = "; ".join(transaction.reasons)
        for table in sorted(transaction.raised_tables):
            lines.append(self._line(message, table, "raise", reason=reason))
        for beat in transaction.heartbeats if self.heartbeats else ():
            lines.append(self._line(message, None, "heartbeat", heartbeat=beat))
        self.layouts.note(message)
        if message.is_last:
            self.resume = message.vector.format()
        if lines:
            last = lines.pop()
            assert isinstance(last, UpdateLine), "a schema stands before its row"
            if message.is_last:
                last.last, last.resume = True, self.resume
                lines.append(last)
            else:
                self._held[message.shard] = last
        return lines

    def _find_told(
        self, message: StreamMessage, change: RowChange, key: tuple[str, ...] | None, key_source: KeySource
    ) -> _Told | None:
        """The schema of a change; None if its source has none."""
        source = change.schema
        if source is None:
            return None
        place = (message.shard, change.table)
        previous = self._told.get(place)
        if previous is not None and previous.source is source and previous.source_key == key:
            return previous
        schema = self.selection.cut_schema(change.table, TableSchema(source.columns, key, key_source))
        schema_id = make_schema_id(message.keyspace, change.table, schema.columns, schema.key)
        # A server that opens another log file announces the same columns again
        is_told = previous is not None and previous.id == schema_id and previous.is_told
        self._told[place] = told = _Told(source, key, schema, schema_id, is_told)
        return told

    def _schema_line(self, message: StreamMessage, table: str, told: _Told) -> SchemaLine:
        return SchemaLine(
            id=told.id,
            keyspace=message.keyspace,
            shard=message.shard,
            table=table,
            columns=told.schema.columns,
            key=told.schema.key,
            key_source=told.schema.key_source,
            token=str(message.token),
            resume=self.resume,
        )

    def _change(
        self, message: StreamMessage, change: RowChange, row: int, names: tuple[str, ...] | None, schema: str
    ) -> UpdateLine:
        # As for invalidation: the row is named by its new key, with old values of columns that the image lacks.
        key = cut_key(change, names)
        line = self._line(message, change.table, change.op, row)
        line.before, line.after = (
            to_json_row(self.selection.cut_image(change.table, image, key or ()))
            for image in (change.before, change.after)
        )
        line.key = to_json_row(self.selection.cut_key(change.table, key))
        line.schema = schema
        return line

    def _line(
        self,
        message: StreamMessage,
        table: str | None,
        op: LineOperation,
        row: int = -1,
        *,
        reason: str = "",
        heartbeat: Heartbeat | None = None,
    ) -> UpdateLine:
        return UpdateLine(
            keyspace=message.keyspace,
            shard=message.shard,
            table=table,
            op=op,
            key=None,
            before=None,
            after=None,
            token=str(message.token),
            timestamp=message.transaction.timestamp_us / 1e6,
            resume=self.resume,
            min_timestamp=message.min_timestamp_us / 1e6,
            gtid=str(message.token.position),
            row=row,
            last=False,
            reason=reason,
            heartbeat=heartbeat,
            unaligned=not message.is_aligned,
            key_range=message.key_range,
        )


def cut_lines(lines: list[MadeLine], updates_max: int) -> list[MadeLine]:
    """The first lines, up to ``updates_max`` updates, which is at least 1. Schemas do not count."""
    left = updates_max
    for place, line in enumerate(lines):
        left -= isinstance(line, UpdateLine)
        if not left:
            return lines[: place + 1]
    return lines


@dataclass(slots=True)
class _Told:
    """The layout of a table's latest change. ``source`` and ``source_key``: schema and key that it was made from;
    ``is_told``: True once its line has been made."""

    source: TableSchema
    source_key: tuple[str, ...] | None
    schema: TableSchema
    id: str
    is_told: bool


def read_json_lines(path: Path) -> Iterator[StreamMessage]:
    """The messages of a file, in its order; a transaction that is cut off at the end is not among them, except for
    pieces of one that is larger than `PIECE_ROWS_MAX`. Raises `FormatError` with file and line."""
    reader = LineReader()
    yield from _read(path, reader.feed)
    reader.finish(str(path))


def read_schemas(path: Path) -> Iterator[SchemaLine]:
    """The schemas in a file, in its order. Raises `FormatError` with file and line."""

    def feed(data: bytes) -> list[SchemaLine]:
        line = decode_line(data) if data.strip() else None
        return [line] if isinstance(line, SchemaLine) else []

    return _read(path, feed)


def _read(path: Path, feed: Callable[[bytes], Iterable[Made]]) -> Iterator[Made]:
    """All that ``feed`` makes of the lines of a file."""
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                try:
                    if len(data) > LINE_BYTES_MAX:
                        raise FormatError(f"longer than {LINE_BYTES_MAX} bytes")
                    yield from feed(data)
                except FormatError as error:
                    raise FormatError(f"{path}: line {number}: {error.message}", hint=error.hint) from error.__cause__
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}", hint="is it a file?") from error


class LineReader:
    """Puts messages together from lines, for each shard separately. Lines of the other kinds are passed over."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], OpenTransaction] = {}

    def feed(self, data: bytes) -> list[StreamMessage]:
        """The messages that this line completes. Raises `FormatError`."""
        if not data.strip():
            return []
        line = decode_line(data)
        if isinstance(line, ErrorLine):
            log.warning("the recorded stream ended with %s: %s", line.error, line.message)
        # The rows of a refresh are not changes: there is nothing to play again
        return self._add(line) if isinstance(line, UpdateLine) and line.op != "refresh" else []

    def finish(self, where: str) -> None:
        """Say what was cut off."""
        for each in self._open.values():
            log.warning(
                "%s ends inside transaction %s of shard %s, which is left out",
                where,
                each.head.token.position,
                each.head.shard,
            )

    def _add(self, line: UpdateLine) -> list[StreamMessage]:
        token = EventToken.parse(line.token)
        place = (line.keyspace, line.shard)
        current = self._open.get(place)
        if current is not None and current.head.token != token:
            if _was_delivered(current.head.token, line):
                raise FormatError(
                    f"transaction {token.position} begins, and {current.head.token.position} has no last line",
                    hint="lines are missing: replay what was printed, as it was printed",
                )
            log.warning("transaction %s was cut off, and is left out", current.head.token.position)
            current = None
        is_change = line.op in CHANGES
        if current is None or (is_change and line.row <= current.last_row):
            # Or the same once more from its start: what was not complete never counted.
            current = self._open[place] = OpenTransaction(_message(line, token))
        if is_change:
            before, after = from_json_row(line.before), from_json_row(line.after)
            current.add(RowChange(_table(line), cast(Any, line.op), before, after), line.row)
        elif line.op == "raise":
            current.raised[_table(line)] = line.reason
        elif line.op == "heartbeat":
            current.heartbeats.append(_heartbeat(line))
        else:
            raise FormatError(f"op {line.op!r} is not known to this version")
        if line.last:
            del self._open[place]
            message = current.take(is_last=True)
            vector = None if line.resume is None else ResumeVector.parse(line.resume)
            return [replace(message, resume=vector.tokens if vector else {})]
        if len(current.changes) >= PIECE_ROWS_MAX:
            return [current.take(is_last=False)]
        return []


def _was_delivered(token: EventToken, later: UpdateLine) -> bool:
    """Whether the stream had brought all of a transaction before the later line. A transaction that a crash of the
    server cut off was never committed: it is in no later vector."""
    known = None if later.resume is None else ResumeVector.parse(later.resume).tokens.get(token.lineage)
    return known is None or known.position.contains(token.position)


def _table(line: UpdateLine) -> str:
    if line.table is None:
        raise FormatError(f"op {line.op!r} without a table")
    return line.table


def _heartbeat(line: UpdateLine) -> Heartbeat:
    if line.heartbeat is None:
        raise FormatError(f"op {line.op!r} without a heartbeat")
    return line.heartbeat


def _message(line: UpdateLine, token: EventToken) -> StreamMessage:
    vector = None if line.resume is None else ResumeVector.parse(line.resume)
    return StreamMessage(
        line.keyspace,
        line.shard,
        token,
        Transaction(token.position, round(line.timestamp * 1e6)),
        vector.tokens if vector else {},
        round(line.min_timestamp * 1e6),
        is_aligned=not line.unaligned,
        key_range=line.key_range,
    )
