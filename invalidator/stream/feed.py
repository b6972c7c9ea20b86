"""One shard of the merged stream: the thread that reads its log, and the bounded buffer before the consumer.

The thread opens the source, reads it, and opens it again after a failure, from where it was and never from further
back. The lock of `invalidator.stream.update_stream` guards what both threads use.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from freshness.algorithm.request import Head
from freshness.config.keyspace import Shard
from freshness.errors import FreshnessError, HistoryLost, HistoryPurged, SourceUnavailable, StreamStopped
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat, Source, Transaction
from invalidator.stream.row_filter import KeyspaceIdFinder, RowFilter
from invalidator.stream.start import ShardStart

TRANSACTIONS_BUFFERED_MAX: Final = 200
ROWS_BUFFERED_MAX: Final = 5_000
BYTES_BUFFERED_MAX: Final = 8 << 20
"""Bounds of the buffer of each shard; a transaction (or piece) that alone exceeds it waits alone. The
shard's source has a buffer of its own before this one."""

TRANSACTIONS_PER_POLL: Final = 16
POLL_SECONDS: Final = 0.5
RETRY_MIN_SECONDS: Final = 0.2
RETRY_MAX_SECONDS: Final = 5.0
"""A source that is not there is opened again after a pause that doubles between these two."""

PURGED_HINT: Final = (
    "purged on every server: what changed since then cannot be had here. Take /v1/token, then a snapshot of the"
    " tables, and start at the token; or replay an archive; or begin a new one. Keep binary logs longer than the"
    " longest absence (F15)"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The ways to the shards; all are called in the threads that read.

    ``open_source``: a source, not opened, that hands huge transactions out in pieces. ``find_head``: the primary's.
    ``seek``: a position after which everything since the time (µs) comes; without it no stream starts at a time.
    ``find_keyspace_id``: needed if rows must be assigned to key ranges.
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


class BufferedTransaction(NamedTuple):
    transaction: Transaction
    epoch: int
    row_numbers: tuple[int, ...] | None


@dataclass(eq=False)
class Feed:
    """One shard: the thread that reads it, and the buffer. The lock of ``changed`` guards the fields that both
    threads use."""

    shard: Shard
    plan: ShardStart
    access: Access
    row_filter: RowFilter | None
    rewind_us: int
    changed: threading.Condition

    # guarded
    waiting: deque[BufferedTransaction] = field(default_factory=deque)
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

    def take(self) -> BufferedTransaction:
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
                # The logs of the shards that follow it have the rest, or those shards report that they do not.
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
            now_us = time.time_ns() // 1000
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
        """The head of a shard that leaves; the position that was read, if the shard cannot be asked any more."""
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
        """Wait for room. False if the stream was closed."""
        row_numbers = None
        if self.row_filter is not None:
            transaction, row_numbers = self.row_filter.apply(transaction)
        with self.changed:
            self.changed.wait_for(lambda: self._is_stopped or self._has_room(transaction))
            if self._is_stopped:
                return False
            self.waiting.append(BufferedTransaction(transaction, self._epoch, row_numbers))
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
        """Until it succeeds; None if the shard is to end before."""
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
