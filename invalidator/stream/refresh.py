"""Refreshes: the rows that tables have now, in the stream of a consumer that asked for them, between the changes.

A chunk is read by primary key (``invalidator.stream.chunk``), and comes out when the stream has delivered all that
the SELECT may have shown. A row of it that the stream changed after what the SELECT certainly showed is left out: the
consumer has it as new, or newer. So each row is as of its place in the stream, and no row ever goes back. Nothing is
locked, and nothing is written: the two positions are the server's own. On MariaDB the lower one is behind (F2), so
the keys of changes are remembered back to there.

A table that is raised during its refresh begins again. Wraps an update stream of one consumer; called by
``invalidator.stream.open``.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from freshness.config.keyspace import Shard
from freshness.errors import SourceUnavailable, SourceUnsuitable
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.resume import RefreshPlace, ResumeVector
from freshness.stream.source import RowChange, Transaction
from invalidator.stream.chunk import Chunk
from invalidator.stream.feed import ShardStatus
from invalidator.stream.message import StreamMessage
from invalidator.stream.query import RefreshRequest, require_key_shown
from invalidator.stream.update_stream import UpdateStream

KEYS_MAX: Final = 500_000
"""Keys of changes that are remembered for a shard. Beyond that the server must show more before it is read."""

LAG_SECONDS_MAX: Final = 10.0
"""No chunk is read from a server whose newest heartbeat is older: it is behind, and reading would keep it so."""

STEP_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.2
WARN_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


ReadChunk: TypeAlias = "Callable[[Shard, str, list[object] | None, Callable[[EventToken], bool]], Chunk | EventToken]"
"""Shard, table, key after which to begin, and whether a server shows enough → as ``read_chunk``."""

ChangedRow: TypeAlias = tuple[str, tuple[object, ...] | None]
"""Table and key; without a key, any row of the table."""

Image: TypeAlias = frozenset[str] | None
"""The columns that the consumer was sent of a row; None for a row that is gone."""


@dataclass(slots=True)
class RecentChanges:
    """The rows of one shard that the consumer was sent changes of, by transaction, in the stream's order. ``floor``:
    transactions in it may be forgotten. A transaction in pieces counts with its last one, and not at all if it begins
    again."""

    floor: Position
    _entries: deque[tuple[Position, dict[ChangedRow, Image]]] = field(default_factory=deque)
    _pieces: dict[ChangedRow, Image] = field(default_factory=dict)
    _count: int = 0
    is_inside: bool = False

    def note(self, message: StreamMessage, keys: Mapping[str, tuple[str, ...]]) -> None:
        """``keys``: names of the columns of the primary key, by table; others do not matter."""
        if not message.transaction.first_row:
            self._pieces = {}
        for change in message.transaction.changes:
            if change.table in keys:
                _note_change(self._pieces, change, keys[change.table])
        for table in message.transaction.raised_tables:
            self._pieces[table, None] = None
        self.is_inside = not message.is_last
        if message.is_last and self._pieces:
            self._entries.append((message.token.position, self._pieces))
            self._count += len(self._pieces)
            self._pieces = {}
            while self._count > KEYS_MAX:
                self._forget()

    def forget(self, low: Position) -> None:
        """Drop the changes that the server shows: no later chunk asks for them."""
        while self._entries and low.contains(self._entries[0][0]):
            self._forget()

    def forget_all(self, delivered: Position) -> None:
        self._entries.clear()
        self._count = 0
        self.floor = self.floor.union(delivered)

    def find(self, low: Position) -> dict[ChangedRow, Image]:
        """The rows that were changed after a position, as the consumer has them."""
        found: dict[ChangedRow, Image] = {}
        for position, rows in self._entries:
            if not low.contains(position):
                found |= rows
        return found

    def _forget(self) -> None:
        position, rows = self._entries.popleft()
        self._count -= len(rows)
        self.floor = self.floor.union(position)


def _note_change(rows: dict[ChangedRow, Image], change: RowChange, key: tuple[str, ...]) -> None:
    if change.before is not None:
        rows[change.table, _find_key(change.before, key)] = None
    if change.after is not None:
        now = {**(change.before or {}), **change.after}
        rows[change.table, _find_key(now, key)] = frozenset(now)


def _find_key(image: Mapping[str, object], key: tuple[str, ...]) -> tuple[object, ...] | None:
    return tuple(image[name] for name in key) if all(name in image for name in key) else None


class _Reading(NamedTuple):
    """A chunk that is being read. ``after``: the key that it begins after."""

    shard: Shard
    table: str
    after: list[object] | None
    future: Future[Chunk | EventToken]


class RefreshedStream:
    """The stream, with the rows of some tables between its messages. For one thread, but for `set_shards`. ``keys``:
    names of the columns of the primary key, by table."""

    def __init__(
        self,
        stream: UpdateStream,
        place: RefreshPlace,
        keys: Mapping[str, tuple[str, ...]],
        read: ReadChunk,
        request: RefreshRequest,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        executor: Executor | None = None,
    ) -> None:
        self._stream = stream
        self._place: RefreshPlace | None = place
        self._keys = dict(keys)
        self._read = read
        self._request = request
        self._clock = clock
        self._now_us = now_us
        self._executor = executor or ThreadPoolExecutor(1, "refresh")
        self._recent: dict[str, RecentChanges] = {}
        self._reading: _Reading | None = None
        self._next_at = clock()
        self._warn_at = clock() + WARN_SECONDS
        self._note_lineages()

    def poll(self, timeout_seconds: float) -> StreamMessage | None:
        """The next message of the stream, or a chunk, as soon as it may come. Raises as `UpdateStream.poll`, and the
        errors of a table that cannot be refreshed."""
        deadline = self._clock() + timeout_seconds
        while True:
            found = self._advance()
            if found is not None:
                return found
            left = max(0.0, deadline - self._clock())
            message = self._stream.poll(min(left, STEP_SECONDS) if self._place else left)
            if message is not None:
                return self._note(message)
            if left <= 0:
                return None

    @property
    def resume(self) -> ResumeVector:
        return replace(self._stream.resume, refresh=self._place)

    def set_shards(self, shards: Sequence[Shard]) -> None:
        """See `UpdateStream.set_shards`. A lineage that is new begins at the first key of each table."""
        self._stream.set_shards(shards)

    def status(self) -> list[ShardStatus]:
        return self._stream.status()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._stream.close()

    def _note_lineages(self) -> None:
        """Nothing is remembered from before the begin of a lineage: its servers must show that."""
        for lineage, token in self._stream.resume.tokens.items():
            if lineage not in self._recent:
                self._recent[lineage] = RecentChanges(token.position)

    def _note(self, message: StreamMessage) -> StreamMessage:
        if self._place is None:
            return message
        self._note_lineages()
        lineage = message.token.lineage
        self._recent[lineage].note(message, self._keys)
        for table in message.transaction.raised_tables.intersection(self._place.tables):
            self._place = self._place.restart(lineage, table)
        return replace(message, refresh=self._place)

    def _advance(self) -> StreamMessage | None:
        """A chunk, if one may come now. Begins to read the next one."""
        place, reading = self._place, self._reading
        if place is None:
            return None
        if reading is None:
            return self._begin(place) if self._clock() >= self._next_at else None
        if not reading.future.done():
            return None
        try:
            found = reading.future.result()
        except SourceUnavailable as error:
            self._wait(reading, str(error))
            return None
        if isinstance(found, EventToken):
            self._wait(reading, f"its server shows no more than {found.position}")
            return None
        lineage = reading.shard.lineage
        is_due = not place.is_done(lineage, reading.table) and reading.after == place.find_key(lineage, reading.table)
        if reading.shard != self._stream.shards.get(lineage) or not is_due:
            self._wait(reading, "the shard or the table has changed", len(found.rows))
            return None
        recent, delivered = self._recent[lineage], self._stream.resume.tokens.get(lineage)
        if delivered is None or recent.is_inside or not delivered.position.contains(found.high):
            return None  # not yet
        return self._judge(place, reading, found, recent, delivered)

    def _judge(
        self, place: RefreshPlace, reading: _Reading, chunk: Chunk, recent: RecentChanges, delivered: EventToken
    ) -> StreamMessage | None:
        """The chunk without rows of which the consumer has a change that the server need not have shown."""
        table = reading.table
        if chunk.key and chunk.key != self._keys[table]:
            require_key_shown(self._request.selection, table, chunk.key)
            self._keys[table] = chunk.key
            recent.forget_all(delivered.position)
        low = chunk.low.position
        changed = {key: image for (name, key), image in recent.find(low).items() if name == table}
        if None in changed or not low.contains(recent.floor):
            reason = "the table was changed as a whole, or more than is remembered was"
            self._wait(reading, reason, len(chunk.rows))
            return None
        recent.forget(low)
        if any(image is not None and not image >= chunk.columns for image in changed.values()):
            raise SourceUnsuitable(
                f"table {table} cannot be refreshed: its log leaves columns of changed rows out",
                hint="set binlog_row_image = FULL on the primary",
            )
        self._finish_reading(len(chunk.rows))
        self._warn_at = self._clock() + WARN_SECONDS
        self._place = place.reach(reading.shard.lineage, table, chunk.last)
        changes = [RowChange(table, "refresh", None, row) for key, row in chunk.rows if key not in changed]
        return self._make_message(reading.shard, delivered, changes)

    def _begin(self, place: RefreshPlace) -> StreamMessage | None:
        vector, shards = self._stream.resume.tokens, self._stream.shards
        self._note_lineages()
        for lineage, shard in shards.items():
            for table in place.tables:
                if lineage in vector and not place.is_done(lineage, table):
                    after = place.find_key(lineage, table)
                    recent, epoch = self._recent[lineage], vector[lineage].epoch
                    is_enough = partial(self._is_shown_enough, recent.floor, epoch)
                    future = self._executor.submit(self._read, shard, table, after, is_enough)
                    self._reading = _Reading(shard, table, after, future)
                    return None
        if shards.keys() - vector.keys() or any(each.is_inside for each in self._recent.values()):
            return None
        self._place = None
        self._recent.clear()
        lineage = next(iter(shards))
        return self._make_message(shards[lineage], vector[lineage], ())

    def _is_shown_enough(self, floor: Position, epoch: int, low: EventToken) -> bool:
        """In the reading thread: before the rows are read in vain."""
        age_seconds = (self._now_us() - low.timestamp_us) / 1e6
        return low.epoch == epoch and low.position.contains(floor) and age_seconds <= LAG_SECONDS_MAX

    def _wait(self, reading: _Reading, reason: str, rows: int = 0) -> None:
        """Read the chunk again. ``rows``: the number of its rows that were read in vain."""
        self._finish_reading(rows)
        self._next_at = max(self._next_at, self._clock() + RETRY_SECONDS)
        if self._clock() >= self._warn_at:
            self._warn_at = self._clock() + WARN_SECONDS
            log.warning(
                "shard %s: the refresh of %s waits: %s (are heartbeats written, and does the server follow?)",
                *(reading.shard.name, reading.table, reason),
            )

    def _finish_reading(self, rows: int) -> None:
        self._reading = None
        if self._request.rows_per_second is not None:
            self._next_at = max(self._clock(), self._next_at) + rows / self._request.rows_per_second

    def _make_message(self, shard: Shard, token: EventToken, changes: Sequence[RowChange]) -> StreamMessage:
        """``token``: everything of the shard that was delivered; the rows are as of there."""
        transaction = Transaction(token.position, token.timestamp_us, tuple(changes))
        row_filter = self._stream.find_filter(shard)
        if row_filter is not None:
            transaction, _ = row_filter.apply(transaction)
        vector = self._stream.resume
        return StreamMessage(
            vector.keyspace,
            shard.name,
            token,
            transaction,
            vector.tokens,
            vector.min_timestamp_us,
            key_range=vector.key_range.format(),
            refresh=self._place,
            is_refresh=True,
        )
