"""The invalidator's metrics, as `/metrics` shows them. Names and meanings are documented in docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BY_SHARD: Final = ("lineage",)


def _shown(kind: type[Counter | Gauge | Histogram], text: str, **options: Any) -> Any:
    return field(metadata={"make": partial(kind, documentation=text, labelnames=_BY_SHARD, **options)})


@dataclass(frozen=True, slots=True)
class ShardMetrics:
    """Each has the name of its attribute behind ``freshness_``."""

    transactions: Counter = _shown(Counter, "Transactions taken from the stream.")
    transactions_skipped: Counter = _shown(
        Counter, "Transactions passed over because the configuration names them (skip), repeats included."
    )
    invalidations: Counter = _shown(Counter, "Cache keys invalidated, repeats included.")
    batch_seconds: Histogram = _shown(
        Histogram,
        "Time to acknowledge one batch on all nodes.",
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
    )
    lag_seconds: Histogram = _shown(
        Histogram,
        "From writing the heartbeat on the primary to its acknowledgement by the nodes.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
    )
    commit_lag_seconds: Histogram = _shown(
        Histogram,
        "MySQL: from a commit on the primary, by its own clock, to its acknowledgement by the nodes, for the "
        "first transaction of each batch, which has waited longest.",
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
    )
    nodes_joined: Gauge = _shown(Gauge, "Cache nodes joined.")
    nodes_complete: Gauge = _shown(Gauge, "Cache nodes that have all their stripes, as far as is known.")
    stripes_restored: Counter = _shown(Counter, "Stripes put back on cache nodes; those of a new life among them.")
    stream_open: Gauge = _shown(Gauge, "1 while the stream is open.")
    stream_reopened: Counter = _shown(Counter, "How often the stream was opened.")
    heartbeat_failures: Counter = _shown(Counter, "Heartbeats that could not be written.")
    heartbeat_missing: Gauge = _shown(
        Gauge, "1 while own heartbeats are written and none comes back through the stream."
    )
    heartbeat_age_seconds: Gauge = _shown(
        Gauge,
        "Age of the latest own heartbeat that all joined nodes have acknowledged; before the first one, of "
        "the shard's worker. NaN for a shard that does not serve.",
    )
    nodes_closed: Gauge = _shown(
        Gauge,
        "Cache nodes that are not joined, are closed, or have no lease: their keys are read from the "
        "database. 0 for a shard that does not serve.",
    )
    shard_waiting: Gauge = _shown(
        Gauge, "1 for a shard whose database was not there at the start; it is tried again."
    )


class Metrics:
    """One registry for one process; nothing here is global. The metrics of a shard have its lineage as label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of_shards = ShardMetrics(
            **{
                each.name: each.metadata["make"](f"freshness_{each.name}", registry=self.registry)
                for each in fields(ShardMetrics)
            }
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
        self.nodes_configured = Gauge("freshness_nodes_configured", "Cache nodes configured.", registry=self.registry)
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
            **{each.name: getattr(self._of_shards, each.name).labels(lineage) for each in fields(ShardMetrics)}
        )

    def forget_shard(self, lineage: str) -> None:
        """Show a shard no more: it is another process's now, or gone."""
        for metric in (
            self.shard_failed,
            self.promotions_adopted,
            *(getattr(self._of_shards, each.name) for each in fields(ShardMetrics)),
        ):
            metric.remove(lineage)
