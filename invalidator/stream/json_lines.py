"""The update stream as JSON lines: one line for each row change, and the way back.

What `invalidator stream` prints, what the HTTP service serves, and one of the forms that `invalidator replay` reads.
Every value of a row comes back as it was: what JSON lacks is an object with one key that begins with ``$``
(docs/archive.md has the table). No I/O but for `read_json_lines`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from freshness.errors import FormatError, FreshnessError
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from freshness.stream.source import Heartbeat, RowChange, Transaction
from freshness.values.json import from_json_row, to_json_row
from invalidator.binlog.rows.layout import Layout, Layouts, find_key
from invalidator.stream.message import StreamMessage

LINE_BYTES_MAX: Final = 1 << 30
"""The longest line that is read: no row is larger (max_allowed_packet)."""

PIECE_ROWS_MAX: Final = 10_000
"""Rows of one transaction that are held together while a file is read; a larger one comes in pieces."""

LAYOUT_RETRY_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


# -- the lines -------------------------------------------------------------------------------------------------

Operation = Literal["insert", "update", "delete", "refresh", "raise", "heartbeat"]


class UpdateLine(msgspec.Struct, tag_field="event", tag="update", kw_only=True, omit_defaults=True):
    """One change of a transaction. ``row`` is its place among the transaction's row changes, -1 for others; with
    ``gtid`` it tells every row change apart. ``resume``: everything before the transaction was delivered, on its
    ``last`` line the transaction too; null where nothing is known before it. ``prepared``, on the last line: the
    transaction was only prepared (XA), and its changes come again when it is committed."""

    keyspace: str
    shard: str
    table: str | None
    op: Operation
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    token: str
    timestamp: float
    resume: str | None
    min_timestamp: float
    gtid: str
    row: int
    last: bool
    reason: str = ""
    heartbeat: dict[str, Any] | None = None
    prepared: bool = False
    unaligned: bool = False
    key_range: str = "-"


class HeartbeatLine(msgspec.Struct, tag_field="event", tag="heartbeat", kw_only=True):
    """The stream is idle: nothing came, and ``resume`` has moved on with what concerned no table of it."""

    keyspace: str
    timestamp: float
    resume: str | None
    min_timestamp: float | None


class ErrorLine(msgspec.Struct, tag_field="event", tag="error", kw_only=True):
    """The stream ended with an error; ``resume`` is where to go on once it is dealt with."""

    error: str
    message: str
    hint: str
    resume: str | None


class EndLine(msgspec.Struct, tag_field="event", tag="end", kw_only=True):
    """The service ends the stream: ``reason``; ``resume`` is where to go on."""

    reason: str
    resume: str | None


Line = UpdateLine | HeartbeatLine | ErrorLine | EndLine
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """With the newline at its end."""
    return _ENCODER.encode(line) + b"\n"


def error_line(error: FreshnessError, resume: str | None) -> ErrorLine:
    return ErrorLine(error=type(error).__name__, message=error.message, hint=error.hint, resume=resume)


# -- from messages to lines ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class LayoutBook:
    """The layouts of all shards' tables, read when needed, and again for a shard whose tables were raised: their
    columns may have changed. While they cannot be read there are none, and so no keys and no digests."""

    read: Callable[[str], Layouts]
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Layouts] = field(default_factory=dict)
    _retry_at: dict[str, float] = field(default_factory=dict)

    def find(self, shard: str, table: str) -> Layout | None:
        if shard not in self._known and self._retry_at.get(shard, float("-inf")) <= self.clock():
            try:
                self._known[shard] = self.read(shard)
            except FreshnessError as error:
                self._retry_at[shard] = self.clock() + LAYOUT_RETRY_SECONDS
                log.warning("shard %s: no keys and digests of rows for now: %s", shard, error)
        return self._known.get(shard, {}).get(table)

    def note(self, message: StreamMessage) -> None:
        """To be called after the message's own changes were looked up."""
        if message.transaction.raised_tables:
            self._known.pop(message.shard, None)


@dataclass(slots=True)
class LineWriter:
    """Makes lines of messages. ``resume``: of the last whole transaction; at first, where the stream began.

    Of a piece the last line is held back until the next one: only then it is known whether it is the transaction's.
    """

    layouts: LayoutBook
    resume: str | None = None
    _held: dict[str, UpdateLine] = field(default_factory=dict)

    def lines(self, message: StreamMessage) -> list[UpdateLine]:
        """None for a transaction that did nothing to the stream's tables; `resume` moves on all the same."""
        transaction = message.transaction
        held = self._held.pop(message.shard, None)
        lines = [held] if held is not None and message.first_row else []
        lines += [
            self._line(message, change.table, change.op, change, row)
            for row, change in zip(message.rows, transaction.changes, strict=True)
        ]
        reason = "; ".join(transaction.reasons)
        for table in sorted(transaction.raised_tables):
            lines.append(self._line(message, table, "raise", reason=reason))
        for beat in transaction.heartbeats:
            lines.append(self._line(message, None, "heartbeat", heartbeat=heartbeat_to_json(beat)))
        self.layouts.note(message)
        if message.is_last:
            self.resume = ResumeVector.of(message).format()
            if lines:
                lines[-1].last, lines[-1].resume = True, self.resume
                lines[-1].prepared = transaction.is_prepared
        elif lines:
            self._held[message.shard] = lines.pop()
        return lines

    def _line(
        self,
        message: StreamMessage,
        table: str | None,
        op: Operation,
        change: RowChange | None = None,
        row: int = -1,
        *,
        reason: str = "",
        heartbeat: dict[str, Any] | None = None,
    ) -> UpdateLine:
        before = change.before if change else None
        after = change.after if change else None
        key = None
        if table is not None and change is not None:
            # As for invalidation: the row is called by its new key, and by the old one where the image lacks it.
            layout = self.layouts.find(message.shard, table)
            key = find_key(layout, {**(before or {}), **(after or {})})
        return UpdateLine(
            keyspace=message.keyspace,
            shard=message.shard,
            table=table,
            op=op,
            key=to_json_row(key),
            before=to_json_row(before),
            after=to_json_row(after),
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


def heartbeat_to_json(beat: Heartbeat) -> dict[str, Any]:
    return {
        "instance": beat.instance,
        "sequence": beat.sequence,
        "min_us": beat.min_us,
        "max_us": beat.max_us,
        "epoch": beat.epoch,
    }


def heartbeat_from_json(value: Mapping[str, Any]) -> Heartbeat:
    """Raises `FormatError`."""
    try:
        return msgspec.convert(value, Heartbeat)
    except msgspec.ValidationError as error:
        raise FormatError(f"a heartbeat: {error}") from error


# -- from lines to messages ----------------------------------------------------------------------------------------


def read_json_lines(path: Path) -> Iterator[StreamMessage]:
    """The messages of a file, in its order; a transaction that is cut off at the end is not among them, except for
    pieces of one that is larger than `PIECE_ROWS_MAX`. Raises `FormatError` with file and line."""
    reader = LineReader()
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                try:
                    if len(data) > LINE_BYTES_MAX:
                        raise FormatError(f"longer than {LINE_BYTES_MAX} bytes")
                    yield from reader.feed(data)
                except FormatError as error:
                    raise FormatError(
                        f"{path}: line {number}: {error.message}", hint=error.hint
                    ) from error.__cause__
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}", hint="is it a file?") from error
    reader.finish(str(path))


@dataclass(slots=True)
class _Open:
    """A transaction of which not all lines have come. ``taken``: rows up to which it was handed out."""

    message: StreamMessage
    changes: list[RowChange] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    raised: dict[str, str] = field(default_factory=dict)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    last_row: int = -1
    taken: int = 0

    def take(self, *, is_last: bool) -> StreamMessage:
        message = make_message(
            self.message, self.changes, self.rows, self.raised, self.heartbeats, self.taken, is_last=is_last
        )
        self.taken = self.last_row + 1
        self.changes, self.rows, self.raised, self.heartbeats = [], [], {}, []
        return message


def make_message(
    head: StreamMessage,
    changes: Sequence[RowChange],
    rows: Sequence[int],
    raised: Mapping[str, str],
    heartbeats: Sequence[Heartbeat],
    first_row: int,
    *,
    is_last: bool,
) -> StreamMessage:
    """A message read back: ``head`` with its transaction, or with the piece of it that begins at ``first_row``.

    ``raised``: reason by table.
    """
    transaction = head.transaction._replace(
        changes=tuple(changes),
        raised_tables=frozenset(raised),
        heartbeats=tuple(heartbeats),
        reasons=tuple(dict.fromkeys(filter(None, raised.values()))),
        first_row=first_row,
        is_last=is_last,
    )
    is_gapless = list(rows) == list(range(first_row, first_row + len(rows)))
    return replace(
        head,
        transaction=transaction,
        first_row=first_row,
        is_last=is_last,
        row_numbers=None if is_gapless else tuple(rows),
    )


class LineReader:
    """Puts messages together from lines, for each shard by itself. Lines of the other kinds are passed over."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Open] = {}

    def feed(self, data: bytes) -> list[StreamMessage]:
        """The messages that this line completes. Raises `FormatError`."""
        if not data.strip():
            return []
        try:
            line = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(
                f"not a line of the update stream: {error}",
                hint="expected one JSON object in each line, as `invalidator stream` prints them",
            ) from error
        if isinstance(line, ErrorLine):
            log.warning("the recorded stream ended with %s: %s", line.error, line.message)
        return self._add(line) if isinstance(line, UpdateLine) else []

    def finish(self, where: str) -> None:
        """Say what was cut off."""
        for each in self._open.values():
            log.warning(
                "%s ends inside transaction %s of shard %s, which is left out",
                where,
                each.message.token.position,
                each.message.shard,
            )

    def _add(self, line: UpdateLine) -> list[StreamMessage]:
        token = EventToken.parse(line.token)
        place = (line.keyspace, line.shard)
        current = self._open.get(place)
        if current is not None and current.message.token != token:
            raise FormatError(
                f"transaction {token.position} begins, and {current.message.token.position} has no last line",
                hint="lines are missing: replay what was printed, as it was printed",
            )
        is_change = line.op in ("insert", "update", "delete")
        if current is None or (is_change and line.row <= current.last_row):
            # Or the same once more from its start: what was not complete never counted.
            current = self._open[place] = _Open(_message(line, token))
        if is_change:
            before, after = from_json_row(line.before), from_json_row(line.after)
            current.changes.append(RowChange(_table(line), cast(Any, line.op), before, after))
            current.rows.append(line.row)
            current.last_row = line.row
        elif line.op == "raise":
            current.raised[_table(line)] = line.reason
        elif line.op == "heartbeat":
            current.heartbeats.append(heartbeat_from_json(line.heartbeat or {}))
        else:
            raise FormatError(f"op {line.op!r} is not known to this version")
        if line.last:
            del self._open[place]
            message = current.take(is_last=True)
            vector = None if line.resume is None else ResumeVector.parse(line.resume)
            transaction = message.transaction._replace(is_prepared=line.prepared)
            return [replace(message, transaction=transaction, resume=vector.tokens if vector else {})]
        if len(current.changes) >= PIECE_ROWS_MAX:
            return [current.take(is_last=False)]
        return []


def _table(line: UpdateLine) -> str:
    if line.table is None:
        raise FormatError(f"op {line.op!r} without a table")
    return line.table


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
