"""The merged update stream: all changes of a key range, from however many shards, as one stream that can be resumed.

Each shard has a `Feed` (``invalidator.stream.feed``), whose thread reads its log into a bounded buffer; the
consumer's thread takes messages from the buffers. The order within a shard is that of its log; between shards there
is none, and ``minimize_skew`` (``invalidator.stream.skew``) only keeps them within seconds of each other. Nothing is
skipped: a change that cannot be delivered ends the stream with an error, and a row that may lie in the key range is
delivered.

The invalidator itself does not use it: it applies each shard on its own. Never chooses servers and knows no database:
sources, heads and seeking are given (`Access`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from freshness.config.keyspace import Keyspace, Shard
from freshness.errors import ConfigError, SourceUnavailable
from freshness.keys.keyrange import KeyRange
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from freshness.stream.source import Transaction
from invalidator.stream.feed import Access, BufferedTransaction, Feed, ShardStatus
from invalidator.stream.message import StreamMessage
from invalidator.stream.row_filter import RowFilter
from invalidator.stream.skew import Alignment, AlignmentVerdict
from invalidator.stream.start import ShardStart, Start, plan_start

RECHECK_SECONDS: Final = 0.2
"""How soon a waiting `UpdateStream.poll` sees that a bound of the alignment has passed."""

DRAIN_SECONDS: Final = 30.0
"""How long a shard that left the topology may take to deliver what it still has."""

CLOSE_SECONDS: Final = 20.0

log = logging.getLogger(__name__)


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
        rewind_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        alignment: Callable[[Callable[[], float], Callable[[], int]], Alignment] = Alignment,
    ) -> None:
        """Begin to read. ``start``: see `invalidator.stream.start.Start`; ``rewind_seconds``: how much earlier a
        shard begins for which only a time is known. Raises `ConfigError` if no shard serves the key range, the start
        does not fit, or rows cannot be assigned."""
        self._keyspace = keyspace
        self._access = access
        self._key_range = key_range or KeyRange()
        self._minimize_skew = minimize_skew
        self._rewind_us = round(rewind_seconds * 1_000_000)
        self._clock = clock
        self._changed = threading.Condition()
        self._feeds: dict[str, Feed] = {}
        self._vector: dict[str, EventToken] = {}
        self._unaligned: set[str] = set()
        self._is_started = False
        self._is_closed = False
        self._left_at = clock()
        self._away_seconds = 0.0
        # While the consumer is away nobody is heard: that must not look like silence.
        self._alignment = alignment(lambda: clock() - self._away_seconds, lambda: time.time_ns() // 1000)
        self._start = start
        self._shards = self._select(keyspace.shards)
        self._add_feeds()

    def poll(self, timeout_seconds: float) -> StreamMessage | None:
        """The next message; None if none may be delivered within the time.

        Raises what ended a shard's stream (`HistoryPurged`, `HistoryLost`, `StreamStopped`, `SourceUnsuitable`) after
        all messages of that shard, and again on each further call; `SourceUnavailable` after `close`. A server
        that is away does not raise: its shard comes back, and the others go on.
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
        """Whether all shards know their begin, and `resume` is the whole vector of the start. To be called
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
            message = self.poll(RECHECK_SECONDS)
            if message is not None:
                yield message

    def set_shards(self, shards: Sequence[Shard]) -> None:
        """Another topology. Shards that are no longer there deliver what they have, then the new ones begin: at the
        positions of the lineages they continue, or else at the least time of the stream, less the rewind. A shard
        whose servers changed goes on there from its position.

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
                    log.info("shard %s (%s) leaves the stream, or is opened again", feed.shard.name, lineage)
                    feed.finish(0 if lineage in selected else DRAIN_SECONDS)
            self._changed.notify_all()

    @property
    def resume(self) -> ResumeVector:
        """Where to go on after the last message."""
        return ResumeVector(self._keyspace.name, self._key_range, self._vector)

    @property
    def shards(self) -> Mapping[str, Shard]:
        """The shards that serve the key range, by lineage."""
        return self._shards

    def find_filter(self, shard: Shard) -> RowFilter | None:
        """The filter of rows of a shard that also has others; None if all are in the key range."""
        if not self._must_filter(shard) or self._access.find_keyspace_id is None:
            return None
        return RowFilter((self._key_range, KeyRange.parse(shard.name)), self._access.find_keyspace_id)

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
        """The start of a shard that is not being read."""
        start = self.resume if self._is_started else self._start
        plan = plan_start(start, shard, self._keyspace.gtid_flavor, self._keyspace.name, self._key_range)
        if plan.position is None and plan.timestamp_us is not None and self._access.seek is None:
            raise ConfigError(
                f"where shard {shard.name} ({shard.lineage}) begins is known by time only, which this stream cannot"
                " look up",
                hint="give a position for each lineage",
            )
        return plan

    def _add_feeds(self) -> None:
        feeds = [
            Feed(shard, self._plan(shard), self._access, self.find_filter(shard), self._rewind_us, self._changed)
            for lineage, shard in self._shards.items()
            if lineage not in self._feeds
        ]
        for feed in feeds:
            self._feeds[feed.shard.lineage] = feed
            feed.start()

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

    def _take_next(self) -> tuple[Feed, BufferedTransaction, bool] | None:
        """The next item, of which feed, and whether it is aligned. Nothing before all shards know their begin:
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
            verdict = AlignmentVerdict.ALIGNED
            if self._minimize_skew:
                verdict = self._alignment.judge(feed.shard.lineage)
            if verdict is not AlignmentVerdict.HOLD:
                self._tell_alignment(feed, verdict is AlignmentVerdict.ALIGNED)
                return feed, feed.take(), verdict is AlignmentVerdict.ALIGNED
        return None

    def _tell_alignment(self, feed: Feed, is_aligned: bool) -> None:
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

    def _deliver(self, feed: Feed, item: BufferedTransaction, is_aligned: bool) -> StreamMessage:
        shard, transaction = feed.shard, item.transaction
        self._alignment.delivered(shard.lineage)
        if not self._minimize_skew:  # a shard that was served goes to the end of the queue
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
    """The time of its shard by a transaction: a heartbeat's own, which was written before it was committed."""
    if transaction.heartbeats:
        return max(0, min(beat.min_us for beat in transaction.heartbeats))
    return transaction.timestamp_us
