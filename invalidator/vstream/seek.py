"""The start of a shard's VStream that brings every transaction committed at or after a point in time.

vtgate names no log files, and its times are those of statements. Heartbeats are exact: a process writes one after the
one before was committed. So everything up to a heartbeat was committed before the same process wrote its next one,
and that one bears its time. `find_position` reads the shard's log through vtgate for heartbeats alone. It errs to the
early side, as ``invalidator.binlog.seek`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from freshness.config.keyspace import Shard
from freshness.database.connection import connected, read_rows
from freshness.database.vitess import readable
from freshness.errors import HistoryPurged, SourceUnavailable
from freshness.position import MysqlGtidSet, Position
from freshness.stream.source import Source, Transaction
from invalidator.vstream.open import make_source

MARGIN_SECONDS: Final = 60.0
"""For clocks that differ, and for a heartbeat whose answer was lost: it may be committed later than the next one is
written, by as long as a lock is waited for (50 s by default)."""

READ_THROUGH: Final = 20_000
"""Number of transactions that are read one after the other."""

POLL_SECONDS: Final = 1.0
TRANSACTIONS_PER_POLL: Final = 1_000


def find_position(shard: Shard, timestamp_us: int, *, margin_seconds: float = MARGIN_SECONDS) -> Position:
    """A position from which every transaction committed at or after ``timestamp_us`` (µs since 1970, by the clocks of
    the invalidators) is streamed.

    It is the begin of the log if nothing was purged and no heartbeat is from before the time: a shard that a reshard
    has just made has no heartbeats yet. Raises `HistoryPurged` if no heartbeat in the log shows that it begins before
    the time, and what a source raises.
    """
    purged, head = _read_ends(shard)
    cut_us = timestamp_us - round(margin_seconds * 1_000_000)
    # Never an empty position: vtgate would copy the tables. The first transaction of a tablet is Vitess's own.
    oldest = first_of(head) if purged.is_empty else purged
    with closing(make_source(shard, {})) as source:
        found = search_log(source, oldest, head, cut_us)
    if found is None and purged.is_empty:
        return oldest
    if found is None:
        raise HistoryPurged(
            f"shard {shard.name}: no heartbeat shows that the log of its tablets begins before the start time",
            hint="purged (F15), or no invalidator ran then: start at a later time, or now",
        )
    return found


def search_log(source: Source, oldest: Position, head: Position, cut_us: int) -> Position | None:
    """The latest position between these two that is known to be from before the cut. None if none is known to be. As
    long as one server wrote the log, its numbers are halved, with a look at a few transactions each time; the last
    `READ_THROUGH` of them are read, or all if several servers wrote."""
    found, start, end = None, oldest, head
    while (middle := find_middle(start, end)) is not None:
        probe = _read(source, Search(cut_us, middle), head, ends_when_found=True)
        if probe.found is None:
            end = middle
        else:
            found = start = probe.found
    return _read(source, Search(cut_us, start), head).found or found


def find_middle(start: Position, end: Position) -> Position | None:
    """Half way between two positions of one log. None if that is unknown, or few transactions lie between."""
    intervals = end.subtract(start).intervals()
    spans = [(source, *span) for source, parts in intervals.items() for span in parts]
    if len(spans) != 1:
        return None
    [(source, first, last)] = spans
    if last - first < READ_THROUGH:
        return None
    return start.union(MysqlGtidSet.parse(f"{source}:{first}-{(first + last) // 2}"))


def _read(source: Source, search: Search, head: Position, *, ends_when_found: bool = False) -> Search:
    """Read on until the cut, or the head, has passed; through ends of the stream, as long as it brings something."""

    def is_done() -> bool:
        return search.is_over or search.reached.contains(head) or (ends_when_found and search.found is not None)

    while not is_done():
        opened_at = search.reached
        try:
            source.open(opened_at)
            while not is_done():
                search.look(source.poll(POLL_SECONDS, TRANSACTIONS_PER_POLL))
        except SourceUnavailable:
            if search.reached == opened_at:
                raise
    return search


class Search:
    """Looks at the transactions of a log, from ``start`` on. ``found``: the latest position known to be from before
    the cut. ``is_over``: the cut has passed."""

    def __init__(self, cut_us: int, start: Position) -> None:
        self.found: Position | None = None
        self.reached = start
        self.is_over = False
        self._cut_us = cut_us
        self._last: dict[str, tuple[int, Position]] = {}

    def look(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            self.reached = self.reached.union(transaction.position)
            for beat in transaction.heartbeats:
                if beat.min_us > self._cut_us:
                    self.is_over = True
                    return
                sequence, until = self._last.get(beat.instance, (beat.sequence, None))
                if until is not None and sequence < beat.sequence and beat.max_us <= self._cut_us:
                    self.found = until if self.found is None else self.found.union(until)
                self._last[beat.instance] = beat.sequence, self.reached


def first_of(position: Position) -> Position:
    """A transaction that no other one of its source comes before."""
    source, [(first, _), *_] = next(iter(position.intervals().items()))
    return MysqlGtidSet.of(source, first)


def _read_ends(shard: Shard) -> tuple[Position, Position]:
    """The transactions that a tablet has purged, and those that it has executed. Raises `SourceUnavailable`,
    `SourceUnsuitable`, `HistoryPurged`."""
    with connected(readable(shard), "reading where the log begins") as connection:
        [(purged, executed)] = read_rows(connection, "SELECT @@global.gtid_purged, @@global.gtid_executed")
    head = MysqlGtidSet.parse(str(executed))
    if head.is_empty:
        raise HistoryPurged(f"shard {shard.name}: its tablets have executed no transaction", hint="start it now")
    return MysqlGtidSet.parse(str(purged)), head
