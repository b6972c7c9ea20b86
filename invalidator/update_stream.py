"""The merged update stream: all changes of a key range, from however many shards, as one stream that can be resumed.

A thread for each shard opens its source, reads it into a bounded buffer and opens it again after a failure, from
where it was and never from further back; the consumer's thread takes messages from the buffers. The order within a
shard is that of its log; between shards there is none, and ``minimize_skew`` (``invalidator.skew``) only keeps them
within seconds of each other. Nothing is skipped: what cannot be delivered ends the stream with an error, and a row of
which it cannot be told whether it lies in the key range is delivered.

Called by the HTTP service, the archive and the command line. The invalidator itself does not use it: it applies each
shard on its own. Never chooses servers and knows no database: sources, heads and seeking are given (`Access`).
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from freshness.config import Keyspace, Shard
from freshness.errors import (
    ConfigError,
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    StreamStopped,
)
from freshness.keyrange import KeyRange
from freshness.position import Position
from freshness.request import Head
from freshness.source import Heartbeat, RowChange, Source, Transaction
from freshness.token import EventToken
from invalidator.message import StreamMessage
from invalidator.resume import ResumeVector, ShardStart, Start, plan_start
from invalidator.skew import Alignment, Verdict

TRANSACTIONS_BUFFERED_MAX: Final = 200
ROWS_BUFFERED_MAX: Final = 5_000
BYTES_BUFFERED_MAX: Final = 8 << 20
"""What waits for the consumer, for each shard; a transaction (or piece) that alone exceeds it waits alone. The
shard's source has a buffer of its own before this one."""

TRANSACTIONS_PER_POLL: Final = 16
POLL_SECONDS: Final = 0.5
RETRY_MIN_SECONDS: Final = 0.2
RETRY_MAX_SECONDS: Final = 5.0
"""A source that is not there is opened again after a pause that doubles between these two."""

RECHECK_SECONDS: Final = 0.2
"""How soon a waiting `UpdateStream.poll` sees that a bound of the alignment has passed."""

DRAIN_SECONDS: Final = 30.0
"""How long a shard that left the topology may take to deliver what it still has."""

REWIND_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 20.0

PURGED_HINT: Final = (
    "purged on every server: what changed since then cannot be had here. Take /v1/token, then a snapshot of the"
    " tables, and start at the token; or replay an archive; or begin a new one. Keep binary logs longer than the"
    " longest absence (F15)"
)

log = logging.getLogger(__name__)

KeyspaceIdFinder: TypeAlias = Callable[[str, Mapping[str, object]], bytes]
"""Table and row → keyspace id. Raises `FreshnessError`, KeyError, TypeError or ValueError where it cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The ways to the shards; all are called in the threads that read.

    ``open_source``: a source, not opened, that hands huge transactions out in pieces. ``find_head``: the primary's.
    ``seek``: a position after which everything since the time (µs) comes; without it no stream starts at a time.
    ``find_keyspace_id``: needed where rows must be told apart.
    """

    open_source: Callable[[Shard], Source]
    find_head: Callable[[Shard], Head]
    seek: Callable[[Shard, int], Position] | None = None
    find_keyspace_id: KeyspaceIdFinder | None = None


class ShardStatus(NamedTuple):
    """One shard of the stream, for display. ``error``: why it is not being read now."""

    shard: str
    lineage: str
    is_streaming: bool
    is_leaving: bool
    waiting: int
    watermark_us: int
    error: str


class UpdateStream:
    """See the module. `poll`, iteration and `close` belong to one thread; `set_shards` may come from any."""

    def __init__(
        self,
        keyspace: Keyspace,
        access: Access,
        *,
        key_range: KeyRange | None = None,
        start: Start = "now",
        minimize_skew: bool = False,
        rewind_seconds: float = REWIND_SECONDS,
        drain_seconds: float = DRAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        alignment: Callable[[Callable[[], float], Callable[[], int]], Alignment] = Alignment,
    ) -> None:
        """Begin to read. ``start``: see `invalidator.resume.Start`; ``rewind_seconds``: how much earlier a shard
        begins for which only a time is known.

        Raises `ConfigError` where no shard serves the key range, the start does not fit, or rows could not be told
        apart.
        """
        self._keyspace = keyspace
        self._access = access
        self._key_range = key_range or KeyRange()
        self._minimize_skew = minimize_skew
        self._rewind_us = round(rewind_seconds * 1_000_000)
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._now_us = now_us
        self._changed = threading.Condition()
        self._feeds: dict[str, _Feed] = {}
        self._vector: dict[str, EventToken] = {}
        self._unaligned: set[str] = set()
        self._is_started = False
        self._is_closed = False
        self._left_at = clock()
        self._away_seconds = 0.0
        # While the consumer is away nobody is heard: that must not look like silence.
        self._alignment = alignment(lambda: clock() - self._away_seconds, now_us)
        self._start = start
        self._shards = self._select(keyspace.shards)
        self._add_feeds()

    # -- for the consumer ------------------------------------------------------------------------------------

    def poll(self, timeout_seconds: float) -> StreamMessage | None:
        """The next message; None where none may be delivered within the time.

        Raises what ended a shard's stream (`HistoryPurged`, `HistoryLost`, `StreamStopped`, `SourceUnsuitable`) after
        all messages of that shard, and again on each further call; `SourceUnavailable` after `close`. That a server
        is away is no error: its shard comes back, and the others go on.
        """
        self._away_seconds += self._clock() - self._left_at
        try:
            deadline = time.monotonic() + timeout_seconds
            with self._changed:
                while True:
                    self._settle()
                    taken = self._take_next()
                    left = deadline - time.monotonic()
                    if taken is not None or left <= 0:
                        break
                    self._changed.wait(min(left, RECHECK_SECONDS))
                return None if taken is None else self._deliver(*taken)
        finally:
            self._left_at = self._clock()

    def wait_started(self, timeout_seconds: float) -> bool:
        """Whether all shards know where they begin, and `resume` is the whole vector of the start. To be called
        before the first `poll`; raises as that does."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                self._settle()
                left = deadline - time.monotonic()
                if self._is_started or left <= 0:
                    return self._is_started
                self._changed.wait(min(left, RECHECK_SECONDS))

    def __iter__(self) -> Iterator[StreamMessage]:
        """All messages, until `close`."""
        while not self._is_closed:
            message = self.poll(POLL_SECONDS)
            if message is not None:
                yield message

    def set_shards(self, shards: Sequence[Shard]) -> None:
        """Another topology. Shards that are no longer there deliver what they have, then the new ones begin: at the
        positions of the lineages they continue, or else at the least time of the stream, less the rewind. A shard
        whose servers changed goes on there from where it is.

        Raises `ConfigError` as the constructor does, and then changes nothing.
        """
        selected = self._select(shards)
        with self._changed:
            for lineage, shard in selected.items():
                if lineage not in self._feeds:
                    self._plan(shard)
            for feed in self._feeds.values():
                known = selected.get(feed.shard.lineage)
                if known is not None and known.name != feed.shard.name:
                    raise ConfigError(
                        f"lineage {known.lineage} was shard {feed.shard.name} and is to be {known.name}",
                        hint="give a shard of another key range a lineage of its own, which continues this one",
                    )
            self._shards = selected
            for lineage, feed in self._feeds.items():
                if selected.get(lineage) != feed.shard:
                    log.info("shard %s (%s) leaves the stream, or is opened anew", feed.shard.name, lineage)
                    feed.finish(0 if lineage in selected else self._drain_seconds)
            self._changed.notify_all()

    @property
    def resume(self) -> ResumeVector:
        """Where to go on after the last message."""
        return ResumeVector(self._keyspace.name, self._key_range, self._vector)

    def status(self) -> list[ShardStatus]:
        with self._changed:
            return [feed.status(self._vector.get(lineage)) for lineage, feed in self._feeds.items()]

    def close(self) -> None:
        """End all threads, within `CLOSE_SECONDS`. Harmless when closed."""
        with self._changed:
            self._is_closed = True
            for feed in self._feeds.values():
                feed.stop()
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for feed in self._feeds.values():
            feed.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- topology --------------------------------------------------------------------------------------------

    def _select(self, shards: Sequence[Shard]) -> dict[str, Shard]:
        """The serving shards that overlap the key range, by lineage."""
        selected = {
            shard.lineage: shard
            for shard in shards
            if shard.serving and KeyRange.parse(shard.name).overlaps(self._key_range)
        }
        if not selected:
            raise ConfigError(
                f"no shard of keyspace {self._keyspace.name} serves key range {self._key_range}",
                hint="see the shards in the configuration",
            )
        for shard in selected.values():
            if self._access.find_keyspace_id is None and self._must_filter(shard):
                raise ConfigError(
                    f"the log of shard {shard.name} has rows beside those of key range {self._key_range}",
                    hint="tell how rows are sharded: [keyspaces.NAME.sharding]",
                )
        return selected

    def _must_filter(self, shard: Shard) -> bool:
        own = KeyRange.parse(shard.name)
        # A shard that was made from another by replication has the other's rows in its log.
        has_others = bool(shard.continues) and not own.is_full
        return has_others or not self._key_range.contains_range(own)

    def _plan(self, shard: Shard) -> ShardStart:
        """Where a shard begins that is not being read."""
        start = self.resume if self._is_started else self._start
        plan = plan_start(start, shard, self._keyspace.flavor, self._keyspace.name, self._key_range)
        if plan.position is None and plan.timestamp_us is not None and self._access.seek is None:
            raise ConfigError(
                f"where shard {shard.name} ({shard.lineage}) begins is known by time only, which this stream cannot"
                " look up",
                hint="give a position for each lineage",
            )
        return plan

    def _add_feeds(self) -> None:
        feeds = [
            _Feed(
                shard,
                self._plan(shard),
                self._access,
                self._make_filter(shard),
                self._rewind_us,
                self._now_us,
                self._changed,
            )
            for lineage, shard in self._shards.items()
            if lineage not in self._feeds
        ]
        for feed in feeds:
            self._feeds[feed.shard.lineage] = feed
            feed.start()

    def _make_filter(self, shard: Shard) -> RowFilter | None:
        if not self._must_filter(shard) or self._access.find_keyspace_id is None:
            return None
        return RowFilter((self._key_range, KeyRange.parse(shard.name)), self._access.find_keyspace_id)

    def _settle(self) -> None:
        """Take note of what the threads have found, and carry a change of the topology on."""
        if self._is_closed:
            raise SourceUnavailable("the update stream is closed")
        for lineage, feed in list(self._feeds.items()):
            if feed.begun is not None and not feed.is_joined:
                feed.is_joined = True
                self._vector = {**self._vector, lineage: feed.begun}
                self._alignment.join(lineage, feed.begun.timestamp_us)
            if feed.is_drained:
                feed.raise_error()
                if feed.is_over:
                    self._alignment.leave(lineage)
                    del self._feeds[lineage]
        if all(feed.is_joined for feed in self._feeds.values()):
            if not any(feed.is_leaving for feed in self._feeds.values()):
                self._complete_topology()
            self._is_started = True

    def _complete_topology(self) -> None:
        if self._shards.keys() - self._feeds.keys():
            self._add_feeds()
        elif self._vector.keys() - self._feeds.keys():
            # Only now: a consumer that resumes in between needs the old lineages for the new shards' starts.
            self._vector = {lineage: self._vector[lineage] for lineage in self._feeds}

    # -- merging ---------------------------------------------------------------------------------------------

    def _take_next(self) -> tuple[_Feed, _Item, bool] | None:
        """The next item, of which feed, and whether it is aligned. Nothing before all shards know where they begin:
        a vector without one of them would lose its events."""
        if not self._is_started:
            return None
        ready = [feed for feed in self._feeds.values() if feed.is_joined and feed.waiting]
        for feed in ready:
            if not feed.is_offered:
                feed.is_offered = True
                self._alignment.offer(feed.shard.lineage, _time_of(feed.waiting[0].transaction))
        if self._minimize_skew:
            ready.sort(key=lambda feed: _time_of(feed.waiting[0].transaction))
        for feed in ready:
            verdict = Verdict.ALIGNED
            if self._minimize_skew:
                verdict = self._alignment.judge(feed.shard.lineage)
            if verdict is not Verdict.HOLD:
                self._tell_alignment(feed, verdict is Verdict.ALIGNED)
                return feed, feed.take(), verdict is Verdict.ALIGNED
        return None

    def _tell_alignment(self, feed: _Feed, is_aligned: bool) -> None:
        lineage = feed.shard.lineage
        if not is_aligned and lineage not in self._unaligned:
            self._unaligned.add(lineage)
            log.warning(
                "shard %s goes on unaligned: waiting for slower shards was given up; silent are %s",
                feed.shard.name,
                self._alignment.find_silent() or "none",
            )
        elif is_aligned and lineage in self._unaligned:
            self._unaligned.discard(lineage)
            log.info("shard %s is aligned again", feed.shard.name)

    def _deliver(self, feed: _Feed, item: _Item, is_aligned: bool) -> StreamMessage:
        shard, transaction = feed.shard, item.transaction
        self._alignment.delivered(shard.lineage)
        if not self._minimize_skew:  # whoever was served goes to the end of the queue
            self._feeds[shard.lineage] = self._feeds.pop(shard.lineage)
        if transaction.is_last:
            before = self._vector[shard.lineage]
            after = EventToken(
                shard.lineage,
                shard.name,
                item.epoch,
                self._alignment.watermark_of(shard.lineage),
                before.position.union(transaction.position),
            )
            self._vector = {**self._vector, shard.lineage: after}
        return StreamMessage(
            self._keyspace.name,
            shard.name,
            EventToken(shard.lineage, shard.name, item.epoch, transaction.timestamp_us, transaction.position),
            transaction,
            self._vector,
            min(token.timestamp_us for token in self._vector.values()),
            transaction.first_row,
            transaction.is_last,
            is_aligned,
            item.row_numbers,
            self._key_range.format(),
        )


def _time_of(transaction: Transaction) -> int:
    """What a transaction says of its shard's time: a heartbeat's own, which was written before it was committed."""
    if transaction.heartbeats:
        return max(0, min(beat.min_us for beat in transaction.heartbeats))
    return transaction.timestamp_us


REASONS_ADDED_MAX: Final = 10
"""Reasons that `RowFilter` adds to one transaction, or piece."""


class RowFilter:
    """Leaves out the rows that lie outside one of the key ranges; for logs that also have others.

    An UPDATE that moves a row out is a delete, one that moves a row in is an insert. What cannot be told stays.
    """

    def __init__(self, key_ranges: Sequence[KeyRange], find_keyspace_id: KeyspaceIdFinder) -> None:
        self._key_ranges = tuple(key_ranges)
        self._find_keyspace_id = find_keyspace_id

    def apply(self, transaction: Transaction) -> tuple[Transaction, tuple[int, ...] | None]:
        """The transaction with what is left, and the place of each change in the whole."""
        if not transaction.changes:
            return transaction, None
        changes: list[RowChange] = []
        numbers: list[int] = []
        reasons: dict[str, None] = {}
        for number, change in enumerate(transaction.changes, transaction.first_row):
            try:
                kept = self._cut(change)
            except (FreshnessError, KeyError, TypeError, ValueError) as error:
                reasons[f"keyspace id of a row of {change.table} unknown: {error}"[:200]] = None
                kept = change
            if kept is not None:
                changes.append(kept)
                numbers.append(number)
        added = tuple(reasons)[:REASONS_ADDED_MAX]
        return (
            transaction._replace(changes=tuple(changes), reasons=(*transaction.reasons, *added)),
            tuple(numbers),
        )

    def _cut(self, change: RowChange) -> RowChange | None:
        before, after = change.before, change.after
        if after is not None and before is not None:
            after = {**before, **after}  # an image may leave out what did not change
        was_in = before is not None and self._is_inside(change.table, before)
        is_in = after is not None and self._is_inside(change.table, after)
        if change.op != "update" or was_in == is_in:
            return change if was_in or is_in else None
        if was_in:
            return replace(change, op="delete", after=None)
        return replace(change, op="insert", before=None, after=after)

    def _is_inside(self, table: str, row: Mapping[str, object]) -> bool:
        keyspace_id = self._find_keyspace_id(table, row)
        return all(key_range.contains(keyspace_id) for key_range in self._key_ranges)


class _Item(NamedTuple):
    """A transaction in the buffer."""

    transaction: Transaction
    epoch: int
    row_numbers: tuple[int, ...] | None


@dataclass(eq=False)
class _Feed:
    """One shard: the thread that reads it, and the buffer. What both threads use is guarded by ``changed``."""

    shard: Shard
    plan: ShardStart
    access: Access
    row_filter: RowFilter | None
    rewind_us: int
    now_us: Callable[[], int]
    changed: threading.Condition

    # guarded
    waiting: deque[_Item] = field(default_factory=deque)
    begun: EventToken | None = None
    is_leaving: bool = False
    is_over: bool = False
    is_streaming: bool = False
    last_error: str = ""
    _rows: int = 0
    _bytes: int = 0
    _error: FreshnessError | None = None
    _is_stopped: bool = False
    _finish_by: float = float("inf")

    # the consumer's
    is_joined: bool = False
    is_offered: bool = False

    # the reading thread's
    _epoch: int = 0
    _epoch_basis: Literal["guessed", "claimed", "seen"] = "guessed"
    _end: Position | None = None
    _pause_seconds: float = RETRY_MIN_SECONDS

    def __post_init__(self) -> None:
        name = f"update stream {self.shard.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- the consumer's side, with the lock held ---------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped = True

    def finish(self, drain_seconds: float) -> None:
        """Deliver what the shard has by now, and end."""
        if not self.is_leaving:
            self.is_leaving = True
            self._finish_by = time.monotonic() + drain_seconds

    def join(self, timeout_seconds: float) -> None:
        """Without the lock."""
        self._thread.join(timeout_seconds)

    @property
    def is_drained(self) -> bool:
        return not self.waiting and (self.is_over or self._error is not None)

    def raise_error(self) -> None:
        if self._error is not None:
            # A new exception each time: one that is raised again keeps growing its traceback.
            raise copy.copy(self._error) from self._error

    def take(self) -> _Item:
        item = self.waiting.popleft()
        self._rows -= len(item.transaction.changes)
        self._bytes -= item.transaction.size_bytes
        self.is_offered = False
        self.changed.notify_all()
        return item

    def status(self, token: EventToken | None) -> ShardStatus:
        watermark_us = 0 if token is None else token.timestamp_us
        return ShardStatus(
            self.shard.name,
            self.shard.lineage,
            self.is_streaming,
            self.is_leaving,
            len(self.waiting),
            watermark_us,
            self.last_error,
        )

    # -- the reading thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        source: Source | None = None
        try:
            begun = self._retry(self._find_start)
            if begun is not None:
                with self.changed:
                    self.begun = begun
                    self.changed.notify_all()
                source = self.access.open_source(self.shard)
                self._read(source, begun.position)
        except Exception as error:  # noqa: BLE001 - it must reach the consumer, whatever it is
            self._fail(error)
        finally:
            with self.changed:
                self.is_over, self.is_streaming = True, False
                self.changed.notify_all()
            if source is not None:
                source.close()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, FreshnessError):
            described = StreamStopped(
                f"shard {self.shard.name}: {error!r}", hint="this is a fault of the program; report it"
            )
            described.__cause__ = error
            error = described
        elif isinstance(error, HistoryPurged):
            purged = HistoryPurged(f"shard {self.shard.name}: {error.message}", hint=PURGED_HINT)
            purged.__cause__ = error
            error = purged
        with self.changed:
            if self.is_leaving:
                # What it did not deliver is in the logs of the shards that follow it, or they say so themselves.
                log.warning("shard %s left before its end: %s", self.shard.name, error)
            else:
                self._error = error
            self.last_error = str(error)

    def _find_start(self) -> EventToken:
        """Resolve the plan. Raises `FreshnessError`."""
        plan, shard = self.plan, self.shard
        position, epoch, timestamp_us = plan.position, plan.epoch, plan.timestamp_us
        if epoch is not None:
            self._epoch_basis = "claimed"
        if position is None or epoch is None:
            # The time first: what is committed after it is after the head, too.
            now_us = self.now_us()
            head = self.access.find_head(shard)
            epoch = head.epoch
            if position is None and timestamp_us is None:
                position, timestamp_us = head.position, now_us
        if position is None:
            assert self.access.seek is not None
            assert timestamp_us is not None
            timestamp_us = max(0, timestamp_us - self.rewind_us)
            position = self.access.seek(shard, timestamp_us)
        self._epoch = epoch
        return EventToken(shard.lineage, shard.name, epoch, timestamp_us or 0, position)

    def _read(self, source: Source, position: Position) -> None:
        """Read until the end; after each failure go on from what was read, never from further back."""
        while not self._is_at_end(position):
            try:
                source.open(position)
                self._note(is_streaming=True)
                while not self._is_at_end(position):
                    for transaction in source.poll(POLL_SECONDS, TRANSACTIONS_PER_POLL):
                        self._note_heartbeats(transaction.heartbeats)
                        if not self._put(transaction):
                            return
                        if transaction.is_last:
                            position = position.union(transaction.position)
                        self._pause_seconds = RETRY_MIN_SECONDS
            except SourceUnavailable as error:
                self._pause(error)
                if self._epoch_basis == "seen":
                    self._epoch_basis = "claimed"

    def _is_at_end(self, position: Position) -> bool:
        if self._is_stopped:
            return True
        if not self.is_leaving:
            return False
        if time.monotonic() >= self._finish_by:
            return True
        if self._end is None:
            self._end = self._find_end(position)
        return position.contains(self._end)

    def _find_end(self, position: Position) -> Position:
        """What the shard that leaves has; where it cannot be asked any more, that is what was read."""
        try:
            return self.access.find_head(self.shard).position
        except FreshnessError as error:
            log.warning("shard %s leaves, its head is unknown: %s", self.shard.name, error)
            return position

    def _note_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        """Heartbeats tell the epoch. One that is higher than claimed, before that one was seen, may be of a history
        that was replaced and has grown past our position, which the server cannot tell (F28, F29)."""
        for beat in heartbeats:
            if self._epoch_basis == "claimed" and beat.epoch > self._epoch:
                raise HistoryLost(
                    f"shard {self.shard.name}: the epoch was raised from {self._epoch} to {beat.epoch} while nobody"
                    " looked: what was delivered last may not be in this history",
                    hint="start at a time, and compare what was recorded since then",
                )
            if self._epoch_basis == "guessed" or beat.epoch > self._epoch:
                self._epoch = beat.epoch
            if beat.epoch == self._epoch:
                self._epoch_basis = "seen"

    def _put(self, transaction: Transaction) -> bool:
        """Wait for room. False where the stream was closed."""
        row_numbers = None
        if self.row_filter is not None:
            transaction, row_numbers = self.row_filter.apply(transaction)
        with self.changed:
            self.changed.wait_for(lambda: self._is_stopped or self._has_room(transaction))
            if self._is_stopped:
                return False
            self.waiting.append(_Item(transaction, self._epoch, row_numbers))
            self._rows += len(transaction.changes)
            self._bytes += transaction.size_bytes
            self.changed.notify_all()
        return True

    def _has_room(self, transaction: Transaction) -> bool:
        return not self.waiting or (
            len(self.waiting) < TRANSACTIONS_BUFFERED_MAX
            and self._rows + len(transaction.changes) <= ROWS_BUFFERED_MAX
            and self._bytes + transaction.size_bytes <= BYTES_BUFFERED_MAX
        )

    def _retry(self, attempt: Callable[[], EventToken]) -> EventToken | None:
        """Until it succeeds; None where the shard is to end before."""
        while not (self._is_stopped or self.is_leaving):
            try:
                return attempt()
            except SourceUnavailable as error:
                self._pause(error)
        return None

    def _pause(self, error: SourceUnavailable) -> None:
        pause = self._pause_seconds
        log.warning("shard %s: %s; next try in %.1f s", self.shard.name, error, pause)
        self._pause_seconds = min(2 * pause, RETRY_MAX_SECONDS)
        self._note(error=str(error))
        with self.changed:
            self.changed.wait_for(lambda: self._is_stopped, pause)

    def _note(self, *, is_streaming: bool = False, error: str = "") -> None:
        with self.changed:
            self.is_streaming, self.last_error = is_streaming, error
