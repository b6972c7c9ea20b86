"""`OpenTelemetry`: the library's metrics and spans by the API of OpenTelemetry. Their names: docs/metrics.md.

Without an SDK in the process the API does nothing. A span names no key unless the application asks for it, and no
message of an error, which may hold one.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read, TogetherResult
from freshness.config.hostport import parse_host_port
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError, FreshnessError, required_extra

with required_extra("opentelemetry"):
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

    from appclient.telemetry.observer import NOT_REFUSED, Living, Observer, PrimaryResult, Vitals

SCOPE: Final = "appclient"

KEYS_SHOWN_MAX: Final = 100
"""Keys of one call, where spans show keys."""

Attributes = dict[str, Any]


@dataclass(slots=True)
class _Begun:
    """A span that is the current one, until it ends. ``parent``: span of the read that a load belongs to."""

    span: Span
    parent: _Begun | None
    context: Token[otel_context.Context] | None = None
    current: Token[_Begun | None] | None = None


_CURRENT: Final[ContextVar[_Begun | None]] = ContextVar("freshness_span", default=None)


class OpenTelemetry:
    """Metrics and spans of one cache or several, for ``telemetry=`` of `Cache.open`. ``meter_provider`` and
    ``tracer_provider``: the global ones by default; a no-op provider leaves out its half. ``shows_keys``: spans have
    the keys that were read, and the messages of errors."""

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        shows_keys: bool = False,
    ) -> None:
        self._living = Living()
        self._metrics = _Metrics(meter_provider, self._living)
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._shows_keys = shows_keys

    def observe(self, vitals: Vitals) -> Observer:
        """See `Telemetry`."""
        self._living.add(vitals)
        return _OpenTelemetryObserver(self._metrics, self._tracer, vitals, self._shows_keys)


class _Counts:
    """Counts by namespace and, of most, object, outcome or another ``attribute``. Much cheaper than a counter of the
    SDK."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute
        self._counts: Tally[tuple[str, str, str]] = Tally()
        self._lock = threading.Lock()

    def add(self, count: int, namespace: str, name: str = "", outcome: str = "") -> None:
        with self._lock:
            self._counts[namespace, name, outcome] += count

    def look(self, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            counts = dict(self._counts)
        for (namespace, name, outcome), count in counts.items():
            attributes = {"freshness.namespace": namespace, "freshness.object": name, self._attribute: outcome}
            yield Observation(count, {key: value for key, value in attributes.items() if value})


class _Metrics:
    def __init__(self, provider: MeterProvider | None, living: Living) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=provider)

        def counts(name: str, unit: str, meaning: str, attribute: str = "freshness.outcome") -> _Counts:
            made = _Counts(attribute)
            meter.create_observable_counter(f"freshness.client.{name}", [made.look], unit, meaning)
            return made

        self.reads = counts("reads", "{key}", "Keys that were read, by outcome.")
        self.loads_shared = counts("loads.shared", "{key}", "Keys answered by another reader's load.")
        self.primary_reads = counts(
            "primary.reads",
            "{read}",
            "Misses that the replicas could not answer at once, or may not (on_unknown), by result.",
            "freshness.primary.result",
        )
        self.together_reads = counts(
            "together.reads", "{call}", "Calls that read several keys as of one moment.", "freshness.together.result"
        )
        self.shadow_reads = counts(
            "shadow.reads", "{key}", "Hits compared with the database, by result.", "freshness.shadow.result"
        )
        self.history_dropped = counts(
            "history.dropped", "{action}", "Actions that are missing in the recorded history."
        )
        self.fills = counts("fills", "{value}", "Values that were stored.")
        self.fills_refused = counts("fills.refused", "{value}", "Values of the database not stored, by outcome.")
        self.read_seconds = meter.create_histogram(
            "freshness.client.read.duration", "s", "Time of a call of get or get_many."
        )
        self.load_seconds = meter.create_histogram(
            "freshness.client.load.duration", "s", "Time to build values from the database."
        )
        self.heartbeat_age = meter.create_gauge(
            "freshness.client.server.heartbeat.age", "s", "Age of the newest heartbeat that a server last showed."
        )
        # The next three are those of the semantic conventions.
        self.operation_seconds = meter.create_histogram(
            "db.client.operation.duration", "s", "Time of a request of a cache node or a database server."
        )
        meter.create_observable_up_down_counter(
            "db.client.connection.count",
            [_looking(living, 1, "db.client.connection.pool.name", {"db.client.connection.state": "used"})],
            "{connection}",
            "Connections that reads use just now.",
        )
        meter.create_observable_up_down_counter(
            "db.client.connection.max",
            [_looking(living, 2, "db.client.connection.pool.name", {})],
            "{connection}",
            "As many as may be used at the same time.",
        )
        meter.create_observable_gauge(
            "freshness.client.breaker.open",
            [_looking(living, 0, "freshness.node", {})],
            "1",
            "1 while a cache node is left alone since it did not answer.",
        )


def _looking(
    living: Living, place: int, label: str, more: Attributes
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def look(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, {"freshness.namespace": namespace, label: name, **more})
            for (namespace, name), value in living.look()[place].items()
        ]

    return look


class _OpenTelemetryObserver(Observer):
    def __init__(self, instruments: _Metrics, tracer: trace.Tracer, vitals: Vitals, shows_keys: bool) -> None:
        self._metrics, self._tracer, self._shows_keys = instruments, tracer, shows_keys
        self._vitals = vitals  # it lives as long as the cache
        self._node_system = vitals.config.cache.backend
        self._namespace = vitals.config.cache.namespace

    def begin_read(self, lookups: Sequence[Lookup]) -> _Begun:
        operation = "get" if len(lookups) == 1 else "get_many"
        return self._begin(f"cache.{operation}", lookups, SpanKind.INTERNAL, None)

    def end_read(self, begun: _Begun, lookups: Sequence[Lookup], reads: Sequence[Read], seconds: float) -> None:
        namespace = self._namespace
        outcomes = Tally((lookup.policy.name, read.outcome) for lookup, read in zip(lookups, reads, strict=True))
        is_hit = all(read.is_hit for read in reads)
        span = begun.span
        if span.is_recording():
            span.set_attribute("freshness.hit", is_hit)
            span.set_attribute("freshness.outcome", ",".join(sorted({outcome.name for _, outcome in outcomes})))
            span.set_attribute("freshness.node", ",".join(sorted({lookup.node for lookup in lookups})))
            roles = {server.role for read in reads for server in read.servers.values()}
            if roles:
                span.set_attribute("freshness.server.role", ",".join(sorted(roles)))
        self._end(begun)
        for (of, outcome), count in outcomes.items():
            self._metrics.reads.add(count, namespace, of, outcome.name)
            if outcome is ReadOutcome.FILLED:
                self._metrics.fills.add(count, namespace, of)
            elif outcome not in NOT_REFUSED:
                self._metrics.fills_refused.add(count, namespace, of, outcome.name)
        attributes = {**self._of(lookups), "freshness.many": len(reads) > 1, "freshness.hit": is_hit}
        self._metrics.read_seconds.record(seconds, attributes)

    def fail_read(self, begun: _Begun, lookups: Sequence[Lookup], error: BaseException, seconds: float) -> None:
        self._fail(begun, lookups, error, seconds, self._metrics.read_seconds)

    def begin_load(self, lookups: Sequence[Lookup]) -> _Begun:
        return self._begin("cache.load", lookups, SpanKind.CLIENT, _CURRENT.get())

    def end_load(self, begun: _Begun, lookups: Sequence[Lookup], seconds: float) -> None:
        self._end(begun)
        self._metrics.load_seconds.record(seconds, self._of(lookups))

    def fail_load(self, begun: _Begun, lookups: Sequence[Lookup], error: BaseException, seconds: float) -> None:
        self._fail(begun, lookups, error, seconds, self._metrics.load_seconds)

    def share_load(self, lookup: Lookup) -> None:
        self._metrics.loads_shared.add(1, self._namespace, lookup.policy.name)

    def need_primary(self, result: PrimaryResult) -> None:
        self._metrics.primary_reads.add(1, self._namespace, "", result)

    def read_together(self, result: TogetherResult) -> None:
        self._metrics.together_reads.add(1, self._namespace, "", result)

    def compare_shadow(self, lookup: Lookup, result: str) -> None:
        self._metrics.shadow_reads.add(1, self._namespace, lookup.policy.name, result)

    def drop_history(self, count: int) -> None:
        self._metrics.history_dropped.add(count, self._namespace)

    def node_timer(self, node: str) -> Callable[[float], None]:
        return partial(self._metrics.operation_seconds.record, attributes=self._of_node(node))

    def fail_node(self, node: str, error: FreshnessError, seconds: float) -> None:
        attributes = {**self._of_node(node), "error.type": type(error).__name__}
        self._metrics.operation_seconds.record(seconds, attributes)

    def read_server(self, server: ServerAddress, flavor: str, seconds: float) -> None:
        self._metrics.operation_seconds.record(seconds, _of_server(server, flavor))
        begun = _CURRENT.get()
        if begun is not None and begun.span.is_recording():
            begun.span.set_attributes(_of_server(server, flavor))
            if begun.parent is not None:
                begun.parent.span.set_attribute("freshness.server", f"{server.host}:{server.port}")

    def fail_server(self, server: ServerAddress, flavor: str, error: FreshnessError, seconds: float) -> None:
        attributes = {**_of_server(server, flavor), "error.type": type(error).__name__}
        self._metrics.operation_seconds.record(seconds, attributes)

    def show_heartbeat(self, server: ServerAddress, lineage: str, age_seconds: float) -> None:
        attributes: Attributes = {
            "freshness.namespace": self._namespace,
            "freshness.lineage": lineage,
            "server.address": server.host,
            "server.port": server.port,
        }
        self._metrics.heartbeat_age.set(age_seconds, attributes)

    def _of(self, lookups: Sequence[Lookup]) -> Attributes:
        return {"freshness.namespace": self._namespace, "freshness.object": lookups[0].policy.name}

    def _of_node(self, node: str) -> Attributes:
        attributes: Attributes = {"db.system.name": self._node_system}
        try:
            host, port = parse_host_port(node)
        except ConfigError:  # the path of a socket
            return {**attributes, "server.address": node}
        return {**attributes, "server.address": host, "server.port": port}

    def _begin(self, operation: str, lookups: Sequence[Lookup], kind: SpanKind, parent: _Begun | None) -> _Begun:
        span = self._tracer.start_span(f"{operation} {lookups[0].policy.name}", kind=kind)
        if span.is_recording():
            span.set_attributes({**self._of(lookups), "freshness.keys": len(lookups)})
            if self._shows_keys:
                keys = [",".join(map(str, lookup.values)) for lookup in lookups[:KEYS_SHOWN_MAX]]
                span.set_attribute("freshness.key", keys)
        begun = _Begun(span, parent)
        if span.get_span_context().is_valid:
            begun.context = otel_context.attach(trace.set_span_in_context(span))
        begun.current = _CURRENT.set(begun)
        return begun

    def _end(self, begun: _Begun) -> None:
        assert begun.current is not None
        _CURRENT.reset(begun.current)
        if begun.context is not None:
            otel_context.detach(begun.context)
        begun.span.end()

    def _fail(
        self, begun: _Begun, lookups: Sequence[Lookup], error: BaseException, seconds: float, histogram: Histogram
    ) -> None:
        span, kind = begun.span, type(error).__name__
        if span.is_recording():
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, str(error) if self._shows_keys else None))
        self._end(begun)
        histogram.record(seconds, {**self._of(lookups), "error.type": kind})


def _of_server(server: ServerAddress, flavor: str) -> Attributes:
    return {"db.system.name": flavor, "server.address": server.host, "server.port": server.port}
