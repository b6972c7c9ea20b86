"""Where a shard's VStream must begin to bring every transaction that was committed at or after a point in time.

vtgate tells no log files, and the times that it tells are of statements. Heartbeats are exact: a process writes one
after the one before was committed. So everything up to a heartbeat was committed before the same process wrote its
next one, and that one bears its time. `find_position` reads the shard's log through vtgate from its oldest position
on, for heartbeats alone. It errs to the early side, as ``invalidator.binlog.seek`` does. Called by the merged stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from freshness.config.settings import Shard
from freshness.database.connection import connect, read_rows, translated
from freshness.database.vitess import readable
from freshness.errors import HistoryPurged, SourceUnavailable
from freshness.position import MysqlGtidSet, Position
from freshness.stream.source import Transaction
from invalidator.vstream.open import make_source

MARGIN_SECONDS: Final = 60.0
"""For clocks that differ, and for a heartbeat whose answer was lost: it may be committed later than the next one is
written, by as long as a lock is waited for (50 s by default)."""

POLL_SECONDS: Final = 1.0
TRANSACTIONS_PER_POLL: Final = 1_000


def find_position(shard: Shard, timestamp_us: int, *, margin_seconds: float = MARGIN_SECONDS) -> Position:
    """A position from which every transaction committed at or after ``timestamp_us`` (µs since 1970, by the clocks of
    the invalidators) is streamed.

    Where nothing was purged and no heartbeat is from before the time, it is the begin of the log: a shard that was
    just made by a reshard has no heartbeats yet.

    It takes as long as vtgate takes to stream the tablet's log up to the time. Raises `HistoryPurged` where no
    heartbeat in the log shows that it begins before the time, and what a source raises.
    """
    purged, head = _read_ends(shard)
    # Never an empty position: vtgate would copy the tables. The first transaction of a tablet is Vitess's own.
    oldest = first_of(head) if purged.is_empty else purged
    search = Search(timestamp_us - round(margin_seconds * 1_000_000), oldest)
    with closing(make_source(shard, {})) as source:
        while not search.is_over and not search.reached.contains(head):
            opened_at = search.reached
            try:
                source.open(opened_at)
                while not search.is_over and not search.reached.contains(head):
                    search.look(source.poll(POLL_SECONDS, TRANSACTIONS_PER_POLL))
            except SourceUnavailable:
                if search.reached == opened_at:
                    raise
    if search.found is None and purged.is_empty:
        return oldest
    if search.found is None:
        raise HistoryPurged(
            f"shard {shard.name}: no heartbeat shows that the log of its tablets begins before the start time",
            hint="purged (F15), or no invalidator ran then: start at a later time, or now",
        )
    return search.found


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
    address = readable(shard)
    connection = connect(address)
    try:
        [(purged, executed)] = read_rows(connection, "SELECT @@global.gtid_purged, @@global.gtid_executed")
    except Exception as error:
        raise translated(error, address, "reading where the log begins") from error
    finally:
        connection.close()
    head = MysqlGtidSet.parse(str(executed))
    if head.is_empty:
        raise HistoryPurged(
            f"shard {shard.name}: its tablets have executed no transaction", hint="start it now"
        )
    return MysqlGtidSet.parse(str(purged)), head
