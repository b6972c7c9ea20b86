"""The metrics of the sink's driver, served for Prometheus. Names and meanings are documented in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark.sink.keeper import Keeper
from spark.stream.progress import QueryMetrics


class SinkMetrics(Collector):
    """One registry for one driver. The keepers are asked when somebody scrapes. ``keepers``: the job's own, once it
    is there, and that of a stand-in, while it is at work."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.query = QueryMetrics(self.registry)
        self.keeper: Keeper | None = None
        self.find_stand_in: Callable[[], Keeper | None] = lambda: None
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        keeper, stand_in = self.keeper, self.find_stand_in()
        yield GaugeMetricFamily(
            "freshness_sink_stand_in",
            "1 while the driver follows the stream by itself, since Spark is late.",
            int(stand_in is not None),
        )
        yield CounterMetricFamily(
            "freshness_sink_items",
            "Cache keys that Spark has invalidated, repeats included.",
            0 if keeper is None else keeper.items,
        )
        age = GaugeMetricFamily(
            "freshness_sink_heartbeat_age_seconds",
            "Age of the latest heartbeat of the job that came back through Spark. The job is at most so far behind.",
            labels=["lineage"],
        )
        joined = GaugeMetricFamily(
            "freshness_sink_nodes_joined", "Cache nodes that the job has joined.", labels=["lineage"]
        )
        opened = GaugeMetricFamily(
            "freshness_sink_nodes_open",
            "Cache nodes that are open, as the job or its stand-in knows.",
            labels=["lineage"],
        )
        spark = {} if keeper is None else keeper.read_status()
        for lineage, status in spark.items():
            joined.add_metric([lineage], status.joined)
            if status.heartbeat_age_seconds is not None:
                age.add_metric([lineage], status.heartbeat_age_seconds)
        own = {} if stand_in is None else stand_in.read_status()
        for lineage in sorted(spark.keys() | own.keys()):
            counts = [each[lineage].open for each in (spark, own) if lineage in each]
            opened.add_metric([lineage], max(counts))
        yield from (age, joined, opened)
