"""The role of metrics and traces, which observe the work of a cache.

Without telemetry nothing here runs. An observer sees keys, and none may leave the process unless the application
asks for it. An observer never decides anything. Implemented by ``appclient.telemetry.prometheus`` and
``appclient.telemetry.opentelemetry``; put in by ``appclient.reading.pipeline``.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from appclient.connection.pool import Pool
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Reply, Request
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Demand, Read, TogetherResult
from freshness.config.config import Config
from freshness.config.server import ServerAddress
from freshness.errors import FreshnessError
from freshness.position.token import EventToken

now_seconds: Final = time.perf_counter

NOT_REFUSED: Final = frozenset(
    (
        *(one for one in ReadOutcome if one.is_hit),
        ReadOutcome.FILLED,
        ReadOutcome.TOGETHER,
        ReadOutcome.OWN_TRANSACTION,
    )
)
"""Every other outcome is a fill that was refused."""

Answer = Callable[[Sequence[Lookup], Demand, Any], list[Read]]
Decode = Callable[[Lookup, Read, Demand], Read]
Load = Callable[[Sequence[Lookup], Mapping[str, EventToken]], list[Loaded]]
Answered = TypeVar("Answered")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Vitals:
    """The present state of a cache, to be looked at at any time. ``breakers``: by node, whether its breaker is open.
    ``pools``: pools of connections by name: "nodes", or the "host:port" of a server."""

    config: Config
    breakers: Mapping[str, bool] = field(default_factory=dict)
    pools: Sequence[tuple[str, Pool[Any]]] = ()


Values = dict[tuple[str, str], int]
"""A gauge's, by namespace, and node or pool."""


class Living:
    """The caches that still live, of those that share a telemetry."""

    def __init__(self) -> None:
        self._vitals: list[weakref.ref[Vitals]] = []
        self._adding = threading.Lock()
        self._seen: tuple[Values, Values, Values] = ({}, {}, {})

    def add(self, vitals: Vitals) -> None:
        """Add a cache, which is not kept alive."""
        with self._adding:
            living = [each for each in self._vitals if each() is not None]
            self._vitals = [*living, weakref.ref(vitals)]

    def look(self) -> tuple[Values, Values, Values]:
        """All together: 1 for each node whose breaker is open and 0 for others, the connections in use by pool, and
        as many as may be. A cache that is gone has 0 from then on."""
        opened, in_use, most = (dict.fromkeys(seen, 0) for seen in self._seen)
        for each in self._vitals:
            if (vitals := each()) is None:
                continue
            namespace = vitals.config.cache.namespace
            for node, is_open in vitals.breakers.items():
                opened[namespace, node] = opened.get((namespace, node), 0) | is_open
            for name, pool in vitals.pools:
                in_use[namespace, name] = in_use.get((namespace, name), 0) + pool.in_use
                most[namespace, name] = most.get((namespace, name), 0) + pool.size
        self._seen = opened, in_use, most
        return self._seen


PrimaryResult: TypeAlias = Literal["read", "bounded", "waited"]


class Observer:
    """Called by one cache for each step, in the thread of the read; methods have to return soon. Each method does
    nothing here. The answer of ``begin_…`` is handed to the ``end_…`` or ``fail_…`` that follows."""

    def begin_read(self, lookups: Sequence[Lookup]) -> Any:
        """A `Cache.get` or `Cache.get_many` of one object, or a read by a `View`, also of several."""

    def end_read(self, begun: Any, lookups: Sequence[Lookup], reads: Sequence[Read], seconds: float) -> None:
        """It has these answers, in order. ``payload`` of a hit is decoded already: ``value`` is shown."""

    def fail_read(self, begun: Any, lookups: Sequence[Lookup], error: BaseException, seconds: float) -> None:
        """It raises after this time."""

    def begin_load(self, lookups: Sequence[Lookup]) -> Any:
        """The database is to be read for these, all of one object, unless they are read together."""

    def end_load(self, begun: Any, lookups: Sequence[Lookup], seconds: float) -> None:
        """It was."""

    def fail_load(self, begun: Any, lookups: Sequence[Lookup], error: BaseException, seconds: float) -> None:
        """The loader or the database raises."""

    def share_load(self, lookup: Lookup) -> None:
        """A reader was given the value of another reader's load."""

    def need_primary(self, result: PrimaryResult) -> None:
        """The replicas lack what the rows of a miss must show, or may lack it. ``result``: the primary is read, a
        replica beyond ``primary_reads_per_second``, or a replica once it showed it, within ``miss_wait_ms``."""

    def read_together(self, result: TogetherResult) -> None:
        """Values of one state were found so."""

    def compare_shadow(self, lookup: Lookup, result: str) -> None:
        """A hit was compared with the database; see `appclient.reading.shadow.ShadowResult`."""

    def drop_history(self, count: int) -> None:
        """``count`` actions are missing in the recorded history."""

    def node_timer(self, node: str) -> Callable[[float], None]:
        """A function to call with the seconds that each answer of the node took."""
        return lambda _: None

    def fail_node(self, node: str, error: FreshnessError, seconds: float) -> None:
        """The node was asked and gave no answer."""

    def read_server(self, server: ServerAddress, flavor: str, seconds: float) -> None:
        """A read of a database server was answered, after this time, the wait for a connection included."""

    def fail_server(self, server: ServerAddress, flavor: str, error: FreshnessError, seconds: float) -> None:
        """It was not, within this time."""

    def show_heartbeat(self, server: ServerAddress, lineage: str, age_seconds: float) -> None:
        """The age of the newest heartbeat that a server shows, by the clocks of its writer and of this process."""


class Telemetry(Protocol):
    """A factory of observers. One may serve several caches."""

    def observe(self, vitals: Vitals) -> Observer:
        """The observer of one cache, which holds ``vitals`` as long as it lives."""


TelemetryOption: TypeAlias = "Telemetry | Sequence[Telemetry] | None"


def find_observer(telemetry: TelemetryOption, vitals: Vitals) -> Observer | None:
    """One observer for all of ``telemetry``, or None."""
    several = [] if telemetry is None else telemetry if isinstance(telemetry, Sequence) else [telemetry]
    observers = [each.observe(vitals) for each in several]
    if len(observers) < 2:
        return next(iter(observers), None)
    return Observers(observers)


class Observers(Observer):
    """Calls each of several, and ends in the reverse order: spans are nested."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        its = {
            name: [getattr(each, name) for each in observers] for name in vars(Observer) if not name.startswith("_")
        }
        vars(self).update({name: partial(_call_all, calls) for name, calls in its.items()})
        for name in ("end_read", "fail_read", "end_load", "fail_load"):
            vars(self)[name] = partial(_end_all, its[name])
        vars(self)["node_timer"] = lambda node: partial(_call_all, _call_all(its["node_timer"], node))


def _call_all(calls: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    return [call(*arguments) for call in calls]


def _end_all(calls: Sequence[Callable[..., Any]], begun: Sequence[Any], *arguments: Any) -> None:
    for call, its in zip(reversed(calls), reversed(begun), strict=True):
        call(its, *arguments)


def observed_reads(observer: Observer, answer: Answer, decode: Decode) -> Answer:
    """``answer``, with its reads reported to the observer. It decodes the values of hits, so that it reports their
    true outcome."""
    begin, end = observer.begin_read, observer.end_read

    def observed(lookups: Sequence[Lookup], demand: Demand, connection: Any) -> list[Read]:
        begun = begin(lookups)
        began_at = now_seconds()
        try:
            reads = answer(lookups, demand, connection)
            for place, read in enumerate(reads):
                if read.payload is not None:
                    reads[place] = decode(lookups[place], read, demand)
        except BaseException as error:
            observer.fail_read(begun, lookups, error, now_seconds() - began_at)
            raise
        end(begun, lookups, reads, now_seconds() - began_at)
        if demand.served is not None and demand.served.result is not None:
            observer.read_together(demand.served.result)
        return reads

    return observed


def observed_loads(observer: Observer, load: Load) -> Load:
    """``load``, with the observer told."""

    def observed(lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        begun = observer.begin_load(lookups)
        began_at = now_seconds()
        try:
            loaded = load(lookups, at_least)
        except BaseException as error:
            observer.fail_load(begun, lookups, error, now_seconds() - began_at)
            raise
        observer.end_load(begun, lookups, now_seconds() - began_at)
        return loaded

    return observed


class ObservedNode:
    """One reader's connection to a node, with the observer told of each answer; see `CacheNode`. A flow's time is
    from the beginning of its sending to the end of its answers."""

    def __init__(self, node: CacheNode, observer: Observer) -> None:
        self.name = node.name
        self.close, self.connect = node.close, node.connect
        self._node, self._find = node, node.find
        self._tell = observer.node_timer(node.name)
        self._fail = observer.fail_node
        self._sent_at = 0.0

    @property
    def is_connected(self) -> bool:
        return self._node.is_connected

    def send(self, requests: Sequence[Request]) -> None:
        self._sent_at = sent_at = now_seconds()
        try:
            self._node.send(requests)
        except FreshnessError as error:
            self._fail(self.name, error, now_seconds() - sent_at)
            raise

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        receive = self._node.receive
        return self._ask(self._sent_at, partial(receive, is_late=True) if is_late else receive)

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        return self._ask(now_seconds(), self._node.perform, requests)

    def find(self, key: bytes) -> bytes | None:
        return self._ask(now_seconds(), self._find, key)

    def _ask(self, sent_at: float, ask: Callable[..., Answered], *arguments: Any) -> Answered:
        try:
            answered = ask(*arguments)
        except FreshnessError as error:
            self._fail(self.name, error, now_seconds() - sent_at)
            raise
        self._tell(now_seconds() - sent_at)
        return answered
