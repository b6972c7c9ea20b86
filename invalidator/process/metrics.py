"""The invalidator's metrics, as `/metrics` shows them, and how they follow from what the loop does.

Names and meanings are documented in docs/metrics.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from freshness.algorithm.driver import running_clock
from freshness.errors import FreshnessError
from freshness.position import Position
from freshness.stream.source import Heartbeat, Transaction
from invalidator.loop.loop import LoopObserver

if TYPE_CHECKING:
    from invalidator.loop.shard import ShardInvalidator
    from invalidator.process.worker import ShardWorker

log = logging.getLogger(__name__)

HEARTBEAT_MISSING_SECONDS: Final = 15.0
"""How long heartbeats are written without one that comes back, before it is said."""

_BY_SHARD: Final = ("lineage",)


def _shown(kind: type[Counter | Gauge | Histogram], name: str, text: str, **options: Any) -> Any:
    return field(metadata={"make": partial(kind, name, text, _BY_SHARD, **options)})


@dataclass(frozen=True, slots=True)
class ShardMetrics:
    """The metrics of one shard."""

    transactions: Counter = _shown(Counter, "freshness_transactions", "Transactions taken from the stream.")
    transactions_skipped: Counter = _shown(
        Counter,
        "freshness_transactions_skipped",
        "Transactions passed over because the configuration names them (skip), repeats included.",
    )
    invalidations: Counter = _shown(
        Counter, "freshness_invalidations", "Cache keys invalidated, repeats included."
    )
    batch_seconds: Histogram = _shown(
        Histogram,
        "freshness_batch_seconds",
        "Time to acknowledge one batch on all nodes.",
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
    )
    lag_seconds: Histogram = _shown(
        Histogram,
        "freshness_lag_seconds",
        "From writing the heartbeat on the primary to its acknowledgement by the nodes.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
    )
    commit_lag_seconds: Histogram = _shown(
        Histogram,
        "freshness_commit_lag_seconds",
        "MySQL: from a commit on the primary, by its own clock, to its acknowledgement by the nodes, for the "
        "first transaction of each batch, which has waited longest.",
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
    )
    nodes_joined: Gauge = _shown(Gauge, "freshness_nodes_joined", "Cache nodes joined.")
    nodes_complete: Gauge = _shown(
        Gauge, "freshness_nodes_complete", "Cache nodes that have all their stripes, as far as is known."
    )
    stripes_restored: Counter = _shown(
        Counter,
        "freshness_stripes_restored",
        "Stripes put back on cache nodes; those of a new life among them.",
    )
    stream_open: Gauge = _shown(Gauge, "freshness_stream_open", "1 while the stream is open.")
    reopened: Counter = _shown(Counter, "freshness_stream_reopened", "How often the stream was opened.")
    heartbeat_failures: Counter = _shown(
        Counter, "freshness_heartbeat_failures", "Heartbeats that could not be written."
    )
    heartbeat_missing: Gauge = _shown(
        Gauge,
        "freshness_heartbeat_missing",
        "1 while own heartbeats are written and none comes back through the stream.",
    )
    heartbeat_age_seconds: Gauge = _shown(
        Gauge,
        "freshness_heartbeat_age_seconds",
        "Age of the latest own heartbeat that all joined nodes have acknowledged; before the first one, of "
        "the shard's worker. NaN for a shard that does not serve.",
    )
    nodes_closed: Gauge = _shown(
        Gauge,
        "freshness_nodes_closed",
        "Cache nodes that are not joined, are closed, or have no lease: their keys are read from the "
        "database. 0 for a shard that does not serve.",
    )
    waiting: Gauge = _shown(
        Gauge,
        "freshness_shard_waiting",
        "1 for a shard whose database was not there at the start; it is tried again.",
    )


class Metrics:
    """One registry for one process; nothing here is global. The metrics of a shard have its lineage as label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of_shards = ShardMetrics(
            **{each.name: each.metadata["make"](registry=self.registry) for each in fields(ShardMetrics)}
        )
        self.shard_failed = Gauge(
            "freshness_shard_failed",
            "1 for a shard that has stopped and needs an operator.",
            _BY_SHARD,
            registry=self.registry,
        )
        self.promotions_adopted = Counter(
            "freshness_promotions_adopted",
            "Promoted servers that were adopted as the primary without an edit of the file.",
            _BY_SHARD,
            registry=self.registry,
        )
        self.history_dropped = Counter(
            "freshness_history_dropped",
            "Actions that are missing in the recorded history: too many waited, or a file could not be written.",
            registry=self.registry,
        )
        self.nodes_configured = Gauge(
            "freshness_nodes_configured", "Cache nodes configured.", registry=self.registry
        )
        self.stripes_configured = Gauge(
            "freshness_stripes_configured",
            "Stripes of each shard on each cache node, as configured.",
            registry=self.registry,
        )

    def of_shard(self, lineage: str) -> ShardMetrics:
        """The metrics of one shard, from now on shown."""
        self.shard_failed.labels(lineage).set(0)
        self.promotions_adopted.labels(lineage)  # a sample from the start
        return ShardMetrics(
            **{
                each.name: getattr(self._of_shards, each.name).labels(lineage)
                for each in fields(ShardMetrics)
            }
        )

    def forget_shard(self, lineage: str) -> None:
        """Show a shard no more: it is another process's now, or gone."""
        for metric in (
            self.shard_failed,
            self.promotions_adopted,
            *(getattr(self._of_shards, each.name) for each in fields(ShardMetrics)),
        ):
            metric.remove(lineage)


class MetricsObserver(LoopObserver):
    """Turns what the loop tells into metrics. ``read_written_at``: when the last heartbeat was written."""

    def __init__(
        self, worker: ShardWorker, invalidator: ShardInvalidator, read_written_at: Callable[[], float]
    ) -> None:
        self._worker = worker
        self._invalidator = invalidator
        self._metrics = worker.metrics
        self._read_written_at = read_written_at
        self._own_at = self._applied_at = invalidator.clock()
        self._missing = ""
        self._restored = 0
        # MariaDB logs whole seconds.
        self._has_commit_times = worker.assignment.flavor == "mysql"

    def stream_opened(self, start: Position) -> None:
        self._worker.failure = self._missing
        if not self._missing:
            self._own_at = self._invalidator.clock()
        self._worker.is_streaming = self._worker.has_streamed = True
        self._metrics.stream_open.set(1)
        self._metrics.waiting.set(0)
        self._metrics.reopened.inc()
        log.info("streaming from %s of %s", start, self._worker.assignment.shard.lineage)

    def stream_closed(self) -> None:
        self._worker.is_streaming = False
        self._metrics.stream_open.set(0)

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None:
        now = running_clock()
        self._applied_at = self._invalidator.clock()
        self._worker.times.note(time.time_ns() // 1000, self._invalidator.streamed)
        self._metrics.batch_seconds.observe(now - begun)
        if self._has_commit_times and transactions[0].timestamp_us:
            # The first transaction alone: one sample for each would cost as much as invalidating it.
            lag_us = time.time_ns() // 1000 - transactions[0].timestamp_us
            self._metrics.commit_lag_seconds.observe(max(0, lag_us) / 1e6)
        self._metrics.transactions.inc(len(transactions))
        self._metrics.invalidations.inc(keys)
        self._worker.recent.note_batch(now, len(transactions), keys)
        for transaction in transactions:
            for beat in transaction.heartbeats:
                if beat.instance == self._invalidator.instance:
                    written_at = self._invalidator.find_heartbeat(beat.sequence)
                    if written_at is not None:
                        self._metrics.lag_seconds.observe(now - written_at)
                        self._note_recent(now, written_at, beat, transaction.timestamp_us)
                        self._note_own_heartbeat()

    def _note_recent(self, now: float, written_at: float, beat: Heartbeat, committed_us: int) -> None:
        recent = self._worker.recent
        recent.note_heartbeat(now, written_at)
        if committed_us:
            recent.note_clocks((beat.min_us + beat.max_us) // 2, committed_us, time.time_ns() // 1000)

    def nodes_joined(self, count: int) -> None:
        self._look_for_heartbeats()
        self._metrics.nodes_joined.set(count)
        if self._worker.restoration is not None:
            restorers = self._worker.restoration.restorers
            self._metrics.nodes_complete.set(sum(each.is_complete for each in restorers))
            restored = sum(each.restored for each in restorers)
            self._metrics.stripes_restored.inc(restored - self._restored)
            self._restored = restored

    def failed(self, error: FreshnessError) -> None:
        self._worker.failure = error

    def _note_own_heartbeat(self) -> None:
        self._own_at = self._invalidator.clock()
        if self._missing:
            log.info("heartbeats of %s come back again", self._worker.assignment.shard.lineage)
            self._missing = self._worker.failure = ""
            self._metrics.heartbeat_missing.set(0)

    def _look_for_heartbeats(self) -> None:
        """Say why the nodes stay closed where heartbeats are written and none comes back."""
        silent_seconds = self._read_written_at() - self._own_at
        if self._missing or silent_seconds < HEARTBEAT_MISSING_SECONDS:
            return
        is_behind = self._invalidator.clock() - self._applied_at < HEARTBEAT_MISSING_SECONDS
        cause = (
            "the stream is behind and catching up, or it is of another server"
            if is_behind
            else "is the stream of the server that heartbeats are written to (an address that moved)? Does its log"
            " leave out this database (binlog_do_db, binlog_ignore_db), or does the replica whose log is read?"
        )
        self._missing = (
            f"no own heartbeat has come back through the stream of {self._worker.assignment.shard.lineage} for"
            f" {silent_seconds:.0f} s, though they are written, so nodes stay closed: {cause}"
        )
        self._worker.failure = self._missing
        self._metrics.heartbeat_missing.set(1)
        log.error("%s", self._missing)
