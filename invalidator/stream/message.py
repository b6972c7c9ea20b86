"""The unit of the merged update stream: messages of whole transactions, each with where to resume.

Made by ``invalidator.stream.update_stream``; printed, archived and served by others. Plain data, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from freshness.keys.keyrange import KeyRange
from freshness.position.token import EventToken
from freshness.stream.resume import RefreshPlace, ResumeVector
from freshness.stream.source import Heartbeat, RowChange, Transaction


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One transaction of one shard, or a piece of one that is too large to be held whole.

    ``token``: the transaction's own position. ``resume``: everything delivered up to and with this message, for every
    lineage of the stream; a piece that is not the last carries the vector from before its transaction. ``first_row``:
    place in the whole transaction, as the shard's log has it, at which this piece begins. ``row_numbers``: the place
    of each change in ``transaction`` if rows of other key ranges were left out; else None, and they follow one
    another from ``first_row`` (`rows`). ``min_timestamp_us``: time up to which every shard has delivered, as far as
    its watermark shows. ``is_aligned``: False if waiting for a slower shard was given up. ``key_range``: key range
    that the stream was asked for. ``refresh``: the place of a refresh that is under way, after this message.
    ``is_refresh``: the message holds rows that a refresh has read, not a transaction; without ``refresh``, its end.

    Pieces of one shard's transaction follow one another, with messages of other shards between them. Pieces without
    a last one are void when the shard's next message begins at row 0.
    """

    keyspace: str
    shard: str
    token: EventToken
    transaction: Transaction
    resume: Mapping[str, EventToken]
    min_timestamp_us: int
    first_row: int = 0
    is_last: bool = True
    is_aligned: bool = True
    row_numbers: tuple[int, ...] | None = None
    key_range: str = "-"
    refresh: RefreshPlace | None = None
    is_refresh: bool = False

    @property
    def vector(self) -> ResumeVector:
        """Where to go on after this message."""
        return ResumeVector(self.keyspace, KeyRange.parse(self.key_range), self.resume, self.refresh)

    @property
    def rows(self) -> Sequence[int]:
        """The place of each change in the whole transaction: with the GTID, its identity, also on other shards whose
        log has the same GTID. -1 for rows of a refresh, which have none."""
        if self.is_refresh:
            return (-1,) * len(self.transaction.changes)
        if self.row_numbers is not None:
            return self.row_numbers
        return range(self.first_row, self.first_row + len(self.transaction.changes))


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that is read back piece by piece. ``head``: a message of it, without its contents. ``rows``: the
    places of ``changes``; ``raised``: the reason by table. ``last_row``: the latest place; ``taken``: the end of
    those that were handed out."""

    head: StreamMessage
    changes: list[RowChange] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    raised: dict[str, str] = field(default_factory=dict)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    last_row: int = -1
    taken: int = 0

    def add(self, change: RowChange, row: int) -> None:
        self.changes.append(change)
        self.rows.append(row)
        self.last_row = row

    def take(self, *, is_last: bool) -> StreamMessage:
        """Everything that was added since the last call."""
        first_row = self.taken
        transaction = self.head.transaction._replace(
            changes=tuple(self.changes),
            raised_tables=frozenset(self.raised),
            heartbeats=tuple(self.heartbeats),
            reasons=tuple(dict.fromkeys(filter(None, self.raised.values()))),
            first_row=first_row,
            is_last=is_last,
        )
        is_gapless = self.rows == list(range(first_row, first_row + len(self.rows)))
        numbers = None if is_gapless else tuple(self.rows)
        self.taken = self.last_row + 1
        self.changes, self.rows, self.raised, self.heartbeats = [], [], {}, []
        return replace(self.head, transaction=transaction, first_row=first_row, is_last=is_last, row_numbers=numbers)
