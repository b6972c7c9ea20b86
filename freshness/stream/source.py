"""The role of an update stream's source: committed transactions in the order of one server's log.

A source must never skip an event silently (I8): the tables of changes without readable rows are in ``raised_tables``,
and an event that cannot be handled at all raises `StreamStopped`. A source's position says "invalidate up to" and
never "data is at least" (F2). Implemented by ``invalidator.binlog.source`` and ``invalidator.vstream.source``; called
by the applying loop and the merged stream. The Spark jobs make the same transactions of recorded rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from freshness.position import Position
from freshness.stream.schema import TableSchema

Operation: TypeAlias = Literal["insert", "update", "delete", "refresh"]
"""A refresh is a row that was read again, for the consumer that asked for it; no source delivers one."""


class Unreadable(Enum):
    """The one value of `UNREADABLE`."""

    UNREADABLE = "unreadable"

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = Unreadable.UNREADABLE
"""A value of a row that the log has and that cannot be decoded exactly (a zero date, a JSON null, a partial JSON
update, an ENUM label in an unknown character set). It is not NULL. A key is never built from it: the table is raised
instead."""


class Shape(NamedTuple):
    """The difference between a column's value in the log and the value that a client reads. ``rule``: the conversion
    in ``invalidator.binlog.rows.image``. ``labels``: labels of a SET, in their order."""

    rule: Literal["same", "text", "ascii", "binary", "float", "bit", "set", "timestamp", "untold"]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowChange:
    """One changed row. Columns that the log does not hold (row image MINIMAL, NOBLOB) are absent.

    ``before`` is None for an insert and a refresh, ``after`` for a delete. TIMESTAMP values are naive and in UTC.
    ``shapes``: shapes of all columns of the table, present or not; None if the source does not know them.
    ``schema``: schema of the table when the row was changed; None if the source does not report it.
    """

    table: str
    op: Operation
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    shapes: Mapping[str, Shape] | None = field(default=None, compare=False, repr=False)
    schema: TableSchema | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A row that an invalidator wrote to the primary: its clock lay between ``min_us`` and ``max_us`` then."""

    instance: str
    sequence: int
    min_us: int
    max_us: int
    epoch: int


class Transaction(NamedTuple):
    """One transaction's changes of the tables asked for. A transaction without any is delivered for its position.

    It has one of two bodies: ``changes`` from a source that was asked for rows, ``items`` from a source that was
    asked for keys. Items are the cache items that the changed rows concern: a row may concern several, and an item
    may be named twice. Both bodies are one type: they share the eight other fields, and few users read the body.

    ``position`` is the transaction's own GTID alone. ``timestamp_us`` is for display and lag, never for order
    (F3, F4). ``raised_tables``: their rows may have changed in a way that cannot be mapped to keys, so the
    table floor moves; ``reasons`` says why, for the log.

    A source that was asked for pieces delivers a large transaction in several, one after the other, all with its
    position. ``first_row`` is the place of the piece's first change (or item) in the whole. Only the piece with
    ``is_last`` says that the transaction was committed and may enter a position. Pieces without a last one are void:
    the transaction comes again from its first row, or was never committed. The rows of an XA transaction come with
    the GTID of its commit, if there is one; an XA PREPARE has none. ``size_bytes``: size of its row events in bytes.
    """

    position: Position
    timestamp_us: int
    changes: tuple[RowChange, ...] = ()
    raised_tables: frozenset[str] = frozenset()
    heartbeats: tuple[Heartbeat, ...] = ()
    reasons: tuple[str, ...] = ()
    first_row: int = 0
    is_last: bool = True
    size_bytes: int = 0
    items: tuple[bytes, ...] = ()


def keyed_transaction(
    position: Position, timestamp_us: int, items: tuple[bytes, ...], size_bytes: int
) -> Transaction:
    """A whole transaction with items; equal to the constructor's, in a third of its time."""
    return _make(Transaction, (position, timestamp_us, (), _NONE, (), (), 0, True, size_bytes, items))


_make: Final = tuple.__new__
_NONE: Final[frozenset[str]] = frozenset()


class Source(Protocol):
    """A stream of transactions. Used by one thread; opened again from the caller's own position after an error."""

    def open(self, start: Position) -> None:
        """Stream every transaction that is not in ``start``. Closes what was open before. Raises `SourceUnavailable`,
        `SourceUnsuitable`, and `HistoryLost` if the server cannot serve it."""

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """The next transactions, at most that many; waits for the first one only. Empty when nothing came. Raises
        `SourceUnavailable`, `StreamStopped` or `HistoryLost`, after all transactions before the error were handed
        out, and again on each further call until `open`."""

    def close(self) -> None:
        """End the stream. Harmless when it is not open."""
