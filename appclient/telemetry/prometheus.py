"""`PrometheusTelemetry`: the library's metrics for Prometheus. Names and meanings: docs/metrics.md.

A hit must cost little, and to observe a histogram costs more than to note a number. So the times of hits and of nodes
are noted in lists, and put into their histograms by the hundred, and when the registry is scraped. In the
multiprocess mode of prometheus_client another process is scraped: there a thread does it once a second.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read, TogetherResult
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError, FreshnessError, required_extra

with required_extra("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import Metric

    from appclient.telemetry.observer import NOT_REFUSED, Living, Observer, PrimaryResult, Vitals

NOTED_MAX: Final = 512
"""Times that are noted before they go into their histogram."""

FLUSH_SECONDS: Final = 1.0
"""How often a process of several brings its files up to date."""

NODE_BUCKETS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5
)  # fmt: skip
DATABASE_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
)  # fmt: skip


class _Histogram(Histogram):
    def observe_all(self, seconds: list[float]) -> None:
        """As `observe` of each, at a tenth of the cost. Sorts the list."""
        seconds.sort()
        self._sum.inc(sum(seconds))
        before = 0
        for bucket, bound in zip(self._buckets, self._upper_bounds, strict=True):
            up_to = bisect_right(seconds, bound, before)
            if up_to > before:
                bucket.inc(up_to - before)
                before = up_to
            if before == len(seconds):
                return


class _Noted:
    """Times that are not in their histogram yet. ``counter``: counts them, too."""

    __slots__ = ("_counter", "_histogram", "_lock", "_seconds")

    def __init__(self, histogram: Histogram, counter: Counter | None = None) -> None:
        assert isinstance(histogram, _Histogram)
        self._histogram, self._counter = histogram, counter
        self._lock = threading.Lock()
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        noted = self._seconds
        noted.append(seconds)
        if len(noted) >= NOTED_MAX:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            count = len(self._seconds)  # others may append during this
            seconds = self._seconds[:count]
            del self._seconds[:count]
        if seconds:
            self._histogram.observe_all(seconds)
            if self._counter is not None:
                self._counter.inc(count)

    def forget(self) -> None:
        """In a forked process: its parent counts these. Its locks may be held by threads that are not there."""
        self._lock = threading.Lock()
        self._seconds.clear()


def _counter(meaning: str, *labels: str) -> Any:
    return partial(Counter, documentation=meaning, labelnames=("namespace", *labels))


def _histogram(meaning: str, buckets: Sequence[float], *labels: str) -> Any:
    return partial(_Histogram, documentation=meaning, labelnames=("namespace", *labels), buckets=buckets)


def _gauge(meaning: str, mode: Any, *labels: str) -> Any:
    names = ("namespace", *labels)
    return partial(Gauge, documentation=meaning, labelnames=names, multiprocess_mode=mode)


class _Metrics:
    """One set for each registry, in which each has the name of its attribute behind ``freshness_client_``.
    ``namespace``: ``cache.namespace`` of the configuration."""

    reads: Counter = _counter("Keys that were read, by outcome.", "object", "outcome")
    read_errors: Counter = _counter("Calls of get and get_many that raised, by class.", "object", "error")
    read_seconds: Histogram = _histogram(
        "Time of a call of get or get_many. keys: one, many. result: hit where each key was a hit, else miss.",
        NODE_BUCKETS,
        *("object", "keys", "result"),
    )
    node_seconds: Histogram = _histogram(
        "Time until a cache node has answered a flow of requests.", NODE_BUCKETS, "node"
    )
    node_failures: Counter = _counter(
        "Flows that a cache node did not answer, those that an open breaker spared not among them.", "node"
    )
    load_seconds: Histogram = _histogram(
        "Time to build values from the database, of one or several keys, the loader's own included.",
        DATABASE_BUCKETS,
        "object",
    )
    load_errors: Counter = _counter("Loads that raised, by class.", "object", "error")
    loads_shared: Counter = _counter("Keys whose reader was given the value of another reader's load.", "object")
    primary_reads: Counter = _counter(
        "Misses that the replicas could not answer at once, or may not (on_unknown). result: read from the primary, "
        "bounded and read from a replica, or waited for a replica that showed the change in time.",
        "result",
    )
    together_reads: Counter = _counter(
        "Calls that read several keys as of one moment. result: one_look at the nodes, more_looks, or a snapshot of "
        "the database.",
        "result",
    )
    shadow_reads: Counter = _counter(
        "Hits that were compared with the database. result: equal, lag, differs, undecided, failed.",
        *("object", "result"),
    )
    history_dropped: Counter = _counter(
        "Actions that are missing in the recorded history: too many waited, or a file could not be written."
    )
    fills: Counter = _counter("Values that were stored.", "object")
    fills_refused: Counter = _counter(
        "Values that were read from the database and not stored, by cause.", "object", "cause"
    )
    database_seconds: Histogram = _histogram(
        "Time of a read of a database server, the wait for a connection included.", DATABASE_BUCKETS, "server"
    )
    database_failures: Counter = _counter("Reads that a database server did not answer, or refused.", "server")
    server_heartbeat_age_seconds: Gauge = _gauge(
        "Age of the newest heartbeat that a server showed to the last miss that asked it.",
        "livemostrecent",
        *("server", "lineage"),
    )
    breaker_open: Gauge = _gauge("1 while a cache node is left alone since it did not answer.", "livemax", "node")
    connections_in_use: Gauge = _gauge(
        "Connections that reads use just now: to cache nodes (one set of them for each read), to a server.",
        "livesum",
        "pool",
    )
    connections_max: Gauge = _gauge("As many as may be used at the same time.", "livesum", "pool")

    def __init__(self, registry: CollectorRegistry) -> None:
        self.noted: dict[tuple[str, str, str], _Noted] = {}
        for name, make in vars(_Metrics).items():
            if isinstance(make, partial):
                setattr(self, name, make(f"freshness_client_{name}", registry=registry))

    def note_hits(self, namespace: str, name: str, outcome: ReadOutcome) -> _Noted:
        """The list for the times of the hits of `Cache.get`, from a node or from the process's own copies."""
        return self.noted.setdefault(
            (outcome.name, namespace, name),
            _Noted(
                self.read_seconds.labels(namespace, name, "one", "hit"),
                self.reads.labels(namespace, name, outcome.name),
            ),
        )

    def note_node(self, namespace: str, node: str) -> _Noted:
        """The list for the times of a node's answers."""
        return self.noted.setdefault(("node", namespace, node), _Noted(self.node_seconds.labels(namespace, node)))


class PrometheusTelemetry:
    """Metrics of one cache or several, for ``telemetry=`` of `Cache.open`. ``registry``: by default the global one.
    One for each registry: caches share it. Raises `ConfigError` if the registry has the metrics of another one. In
    prometheus_client's multiprocess mode, values are up to a second old."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._living = Living()
        refresh = _Refresh(self.refresh)
        registry.register(refresh)  # in front of the metrics, so that it is asked before them
        try:
            self._metrics = _Metrics(registry)
        except ValueError as error:
            registry.unregister(refresh)
            raise ConfigError(
                f"the registry has these metrics already: {error}",
                hint="give all caches of a process the same PrometheusTelemetry",
            ) from error
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            self._begin()
            myself = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _call(myself, PrometheusTelemetry._begin_again))
            atexit.register(lambda: _call(myself, PrometheusTelemetry.refresh))

    def observe(self, vitals: Vitals) -> Observer:
        """See `Telemetry`."""
        self._living.add(vitals)
        return _PrometheusObserver(self._metrics, vitals)

    def refresh(self) -> None:
        """Put what was noted into the metrics, and the present state of all caches that still live."""
        metrics = self._metrics
        for noted in list(metrics.noted.values()):
            noted.flush()
        gauges = metrics.breaker_open, metrics.connections_in_use, metrics.connections_max
        for gauge, values in zip(gauges, self._living.look(), strict=True):
            for labels, value in values.items():
                gauge.labels(*labels).set(value)

    def _begin(self) -> None:
        threading.Thread(
            target=_refresh_again_and_again, args=(weakref.ref(self),), name="freshness metrics", daemon=True
        ).start()

    def _begin_again(self) -> None:
        for noted in self._metrics.noted.values():
            noted.forget()
        self._begin()


def _call(telemetry: weakref.ref[PrometheusTelemetry], method: Callable[[PrometheusTelemetry], None]) -> None:
    if (alive := telemetry()) is not None:
        method(alive)


def _refresh_again_and_again(telemetry: weakref.ref[PrometheusTelemetry]) -> None:
    while telemetry() is not None:
        _call(telemetry, PrometheusTelemetry.refresh)
        time.sleep(FLUSH_SECONDS)


class _Refresh:
    """A collector without metrics of its own: it is asked before those that were registered after it."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._refresh = refresh

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        self._refresh()
        return ()


class _PrometheusObserver(Observer):
    def __init__(self, metrics: _Metrics, vitals: Vitals) -> None:
        self._metrics, self._vitals = metrics, vitals  # they live as long as the cache
        self.namespace = vitals.config.cache.namespace
        self._hits, self._local_hits = (
            {name: metrics.note_hits(self.namespace, name, outcome) for name in vitals.config.objects}
            for outcome in (ReadOutcome.HIT, ReadOutcome.LOCAL_HIT)
        )

    def end_read(self, begun: Any, lookups: Sequence[Lookup], reads: Sequence[Read], seconds: float) -> None:
        name = lookups[0].policy.name
        if len(reads) == 1:
            (read,) = reads
            if read.outcome is ReadOutcome.HIT:
                self._hits[name].add(seconds)
                return
            if read.outcome is ReadOutcome.LOCAL_HIT:
                self._local_hits[name].add(seconds)
                return
        metrics, namespace = self._metrics, self.namespace
        outcomes = Tally((lookup.policy.name, read.outcome) for lookup, read in zip(lookups, reads, strict=True))
        for (of, outcome), count in outcomes.items():
            metrics.reads.labels(namespace, of, outcome.name).inc(count)
            if outcome is ReadOutcome.FILLED:
                metrics.fills.labels(namespace, of).inc(count)
            elif outcome not in NOT_REFUSED:
                metrics.fills_refused.labels(namespace, of, outcome.name).inc(count)
        keys = "one" if len(reads) == 1 else "many"
        result = "hit" if all(read.is_hit for read in reads) else "miss"
        metrics.read_seconds.labels(namespace, name, keys, result).observe(seconds)

    def fail_read(self, begun: Any, lookups: Sequence[Lookup], error: BaseException, seconds: float) -> None:
        name = lookups[0].policy.name
        self._metrics.read_errors.labels(self.namespace, name, type(error).__name__).inc()

    def end_load(self, begun: Any, lookups: Sequence[Lookup], seconds: float) -> None:
        self._metrics.load_seconds.labels(self.namespace, lookups[0].policy.name).observe(seconds)

    def fail_load(self, begun: Any, lookups: Sequence[Lookup], error: BaseException, seconds: float) -> None:
        name = lookups[0].policy.name
        self._metrics.load_errors.labels(self.namespace, name, type(error).__name__).inc()

    def share_load(self, lookup: Lookup) -> None:
        self._metrics.loads_shared.labels(self.namespace, lookup.policy.name).inc()

    def need_primary(self, result: PrimaryResult) -> None:
        self._metrics.primary_reads.labels(self.namespace, result).inc()

    def read_together(self, result: TogetherResult) -> None:
        self._metrics.together_reads.labels(self.namespace, result).inc()

    def compare_shadow(self, lookup: Lookup, result: str) -> None:
        self._metrics.shadow_reads.labels(self.namespace, lookup.policy.name, result).inc()

    def drop_history(self, count: int) -> None:
        self._metrics.history_dropped.labels(self.namespace).inc(count)

    def node_timer(self, node: str) -> Callable[[float], None]:
        return self._metrics.note_node(self.namespace, node).add

    def fail_node(self, node: str, error: FreshnessError, seconds: float) -> None:
        self._metrics.node_failures.labels(self.namespace, node).inc()

    def read_server(self, server: ServerAddress, flavor: str, seconds: float) -> None:
        self._metrics.database_seconds.labels(self.namespace, _name(server)).observe(seconds)

    def fail_server(self, server: ServerAddress, flavor: str, error: FreshnessError, seconds: float) -> None:
        self._metrics.database_failures.labels(self.namespace, _name(server)).inc()

    def show_heartbeat(self, server: ServerAddress, lineage: str, age_seconds: float) -> None:
        self._metrics.server_heartbeat_age_seconds.labels(self.namespace, _name(server), lineage).set(age_seconds)


def _name(server: ServerAddress) -> str:
    return f"{server.host}:{server.port}"
