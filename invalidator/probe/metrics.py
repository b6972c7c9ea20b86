"""The metrics of the prober, served for Prometheus. Names and meanings are documented in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from invalidator.probe.tally import LAG_BUCKETS_SECONDS, ProbeTally


class ProbeMetrics(Collector):
    """One registry for one prober, whose counts are read when somebody scrapes."""

    def __init__(self, tally: ProbeTally) -> None:
        self.registry = CollectorRegistry()
        self._tally = tally
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        tally = self._tally
        comparisons = CounterMetricFamily(
            "freshness_probe_comparisons",
            "Comparisons with the primary, by object, scale (seconds after a change, or sweep) and verdict: right, "
            "absent, lag, loss, unknown.",
            labels=["object", "scale", "verdict"],
        )
        for labels, count in list(tally.verdicts.items()):
            comparisons.add_metric(list(labels), count)
        yield comparisons
        yield _by_label(
            "freshness_probe_losses",
            "Poisoned entries that were found: something else than the row is served, and the node has acknowledged "
            "all changes.",
            "object",
            tally.losses,
        )
        repairs = CounterMetricFamily(
            "freshness_probe_repairs",
            "Poisoned entries that were to be removed, by result: removed, failed.",
            labels=["object", "result"],
        )
        for result, counts in (("removed", tally.repaired), ("failed", tally.not_repaired)):
            for name, count in list(counts.items()):
                repairs.add_metric([name, result], count)
        yield repairs
        yield _by_label(
            "freshness_probe_dropped",
            "Comparisons that were not made, by reason: merged, full, overdue, suspects.",
            "reason",
            tally.dropped,
        )
        lags = HistogramMetricFamily(
            "freshness_probe_lag_seconds",
            "From a change in the prober's stream until its invalidation was seen, of those that were late.",
        )
        total, buckets = 0, []
        for bound in LAG_BUCKETS_SECONDS:
            total += tally.lags[bound]
            buckets.append((str(float(bound)) if bound < math.inf else "+Inf", total))
        lags.add_metric([], buckets, tally.lag_seconds)
        yield lags
        yield CounterMetricFamily("freshness_probe_changes", "Changes of sampled keys in the stream.", tally.changes)
        yield CounterMetricFamily("freshness_probe_sweeps", "Sweeps that came to their end.", tally.sweeps)
        yield GaugeMetricFamily("freshness_probe_waiting", "Comparisons that are to come.", tally.waiting)
        yield GaugeMetricFamily(
            "freshness_probe_suspects", "Entries that differ and are not decided.", tally.suspects
        )


def _by_label(name: str, meaning: str, label: str, counts: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, meaning, labels=[label])
    for value, count in list(counts.items()):
        family.add_metric([value], count)
    return family
