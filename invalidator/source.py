"""The role of an update stream's source: committed transactions in the order of one server's log.

A source must never skip silently (I8): what cannot be mapped to rows is named in ``raised_tables``, what cannot
be handled at all raises `StreamStopped`. A source's position says "invalidate up to" and never "data is at
least" (F2). Implemented by ``invalidator.binlog``; called by the applying loop and the merged stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, Protocol, TypeAlias

from freshness.position import Position

Operation: TypeAlias = Literal["insert", "update", "delete"]


class Unreadable(Enum):
    """The one value of `UNREADABLE`."""

    UNREADABLE = "unreadable"

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = Unreadable.UNREADABLE
"""Stands in a row for a value that is in the log and that cannot be told (a zero date, a partial JSON update, an
ENUM label in an unknown character set). It is not NULL. A key must never be built from it: raise the table."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One changed row. Columns that the log does not hold (row image MINIMAL, NOBLOB) are absent.

    ``before`` is None for an insert, ``after`` for a delete. TIMESTAMP values are naive and in UTC. A value of
    BINARY(n) has lost its trailing zero bytes (the server strips them): pad it to n before comparing.
    """

    table: str
    op: Operation
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A row that an invalidator wrote to the primary: its clock lay between ``min_us`` and ``max_us`` then."""

    instance: str
    sequence: int
    min_us: int
    max_us: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one transaction did to the tables asked for; also one that did nothing to them, for its position.

    ``position`` is the transaction's own GTID alone. ``timestamp_us`` is for display and lag, never for order
    (F3, F4). ``raised_tables``: their rows may have changed in a way that cannot be mapped to keys, so the
    table floor moves; ``reasons`` says why, for the log.
    """

    position: Position
    timestamp_us: int
    changes: tuple[RowChange, ...] = ()
    raised_tables: frozenset[str] = frozenset()
    heartbeats: tuple[Heartbeat, ...] = ()
    reasons: tuple[str, ...] = ()


class Source(Protocol):
    """A stream of transactions. Used by one thread; opened again from the caller's own position after an error."""

    def open(self, start: Position) -> None:
        """Stream every transaction that is not in ``start``. Closes what was open before.

        Raises `SourceUnavailable`, `SourceUnsuitable`, and `HistoryLost` where the server cannot serve it.
        """

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """The next transactions, at most that many; waits for the first one only. Empty when nothing came.

        Raises `SourceUnavailable`, `StreamStopped` or `HistoryLost`, after all transactions before the error
        were handed out, and again on each further call until `open`.
        """

    def close(self) -> None:
        """End the stream. Harmless when it is not open."""
