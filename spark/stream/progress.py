"""Metrics of a streaming query, for Prometheus: rows, micro-batches and their seconds, by the query's own progress.

`QueryMetrics.note` looks at what Spark remembers of the last hundred micro-batches, so it must be called more often
than every hundred.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pyspark.sql.streaming import StreamingQuery

SECONDS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class QueryMetrics:
    """The metrics of one query, in a registry of the program's own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rows = Counter(
            "freshness_query_rows",
            "Rows of the update stream that micro-batches have taken, those that begin and end a partition included.",
            registry=registry,
        )
        self._seconds = Histogram(
            "freshness_query_batch_seconds",
            "Time of one micro-batch, from its plan to its entry in the checkpoint.",
            registry=registry,
            buckets=SECONDS,
        )
        self._batch = Gauge(
            "freshness_query_batch", "Number of the last micro-batch that was committed.", registry=registry
        )
        self._last = ""

    def note(self, query: StreamingQuery) -> None:
        """Take the progress that was not seen yet."""
        for progress in query.recentProgress:
            if progress["timestamp"] <= self._last:
                continue
            self._last = progress["timestamp"]
            if "addBatch" not in progress["durationMs"]:
                continue  # a look that found nothing
            self._rows.inc(progress["numInputRows"])
            self._seconds.observe(progress["durationMs"]["triggerExecution"] / 1000)
            self._batch.set(progress["batchId"])
