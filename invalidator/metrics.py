"""The invalidator's metrics, as `/metrics` shows them. Names and meanings are documented in docs/metrics.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """One registry for one process; nothing here is global."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.transactions = Counter(
            "freshness_transactions", "Transactions taken from the stream.", registry=self.registry
        )
        self.invalidations = Counter(
            "freshness_invalidations", "Cache keys invalidated, repeats included.", registry=self.registry
        )
        self.batch_seconds = Histogram(
            "freshness_batch_seconds",
            "Time to acknowledge one batch on all nodes.",
            registry=self.registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
        )
        self.lag_seconds = Histogram(
            "freshness_lag_seconds",
            "From writing the heartbeat on the primary to its acknowledgement by the nodes.",
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
        )
        self.nodes_joined = Gauge("freshness_nodes_joined", "Cache nodes joined.", registry=self.registry)
        self.nodes_configured = Gauge(
            "freshness_nodes_configured", "Cache nodes configured.", registry=self.registry
        )
        self.stream_open = Gauge(
            "freshness_stream_open", "1 while the stream is open.", registry=self.registry
        )
        self.reopened = Counter(
            "freshness_stream_reopened", "How often the stream was opened.", registry=self.registry
        )
        self.heartbeat_failures = Counter(
            "freshness_heartbeat_failures", "Heartbeats that could not be written.", registry=self.registry
        )
