"""A read as stages, each of which answers or asks the next one; put together once for a cache."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from appclient.connection.breaker import Breakers, GuardedNode
from appclient.connection.own import find_driver_connection, is_dirty
from appclient.database.database import Database
from appclient.reading.columns import ColumnTypes
from appclient.reading.copies import Copies
from appclient.reading.flights import Flights
from appclient.reading.limits import RateLimit
from appclient.reading.loader import by_object, name_of
from appclient.reading.lookup import Lookups
from appclient.reading.reader import NodeReads
from appclient.reading.refusal import Refusals
from appclient.reading.shadow import ShadowReads
from appclient.telemetry.observer import Answer, Load, ObservedNode, Observer, Vitals, observed_loads, observed_reads
from freshness.algorithm.envelope import record_key
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Get
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Demand, Pending, Read, ReadContext
from freshness.algorithm.view import NodeView, Sightings
from freshness.config.access import NodeAccess
from freshness.config.config import Config
from freshness.errors import FormatError, missing_package
from freshness.history.open import open_recorder
from freshness.network import Network
from freshness.nodes.open import import_node, open_node
from freshness.position.token import EventToken
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import compressing


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How a process waits, connects to nodes and measures time, in seconds. ``open_node``: None for those that the
    configuration names."""

    network: Network
    open_node: Callable[[NodeAccess, str], CacheNode] | None
    clock: Callable[[], float]
    jitter: Callable[[], float]


class Pipeline:
    """``answer`` is the first stage of a read, ``load`` the first one of a read of the database."""

    def __init__(
        self,
        config: Config,
        databases: Mapping[str, Database],
        lookups: Lookups,
        around: Surroundings,
        observer: Observer | None,
        vitals: Vitals,
    ) -> None:
        settings = config.cache
        self._config, self._lookups, self._around, self._observer = config, lookups, around, observer
        self.recorder = open_recorder(config, None if observer is None else observer.drop_history)
        self.refusals = Refusals(around.clock)
        every_shard = {name: shard for each in databases.values() for name, shard in each.shards.items()}
        self.columns = ColumnTypes(every_shard, around.clock, settings.max_staleness_seconds)
        wait_seconds, clock, sleep = settings.overload_wait_ms / 1000, around.clock, around.network.sleep
        self.limits = {
            name: RateLimit(name, entry.database_reads_per_second, wait_seconds, clock, sleep)
            for name, entry in config.objects.items()
            if entry.database_reads_per_second
        }
        # A history is of what nodes were asked, so a process that records one has no copies.
        self.copies = Copies(
            settings.local_copies_bytes,
            around.clock,
            {
                name: (entry.local_copy_seconds, entry.stale_while_revalidate_seconds)
                for name, entry in config.objects.items()
                if (entry.local_copy_seconds or entry.stale_while_revalidate_seconds) and self.recorder is None
            },
        )
        open_configured = partial(
            open_node,
            connect_timeout_seconds=settings.node_connect_timeout_ms / 1000,
            timeout_seconds=settings.node_timeout_ms / 1000,
        )
        if around.open_node is None:
            _import_client(settings.access.backend)
        self._open_node = around.open_node or partial(open_configured, network=around.network)
        first = lookups.lineages[0] if lookups.lineages else ""
        probe = partial(around.open_node or open_configured, settings.access)
        self._breakers = Breakers(settings.all_nodes, probe, Get(record_key(settings.namespace, first)))
        load_together: Load = partial(self.load_within_limits, is_together=True)
        self.load = self._build_load()
        self.nodes = NodeReads(
            settings=settings,
            network=around.network,
            open_node=self._open_guarded,
            make_context=self._make_context,
            load=self.load,
            load_together=load_together if observer is None else observed_loads(observer, load_together),
            recall=self.copies.recall,
            note=self.refusals.note,
        )
        self.answer = self._build_answer()
        vitals.breakers = self._breakers.opened
        pools = chain.from_iterable(shard.pools for shard in every_shard.values())
        vitals.pools = [("nodes", self.nodes.readers), *pools]

    def _build_answer(self) -> Answer:
        """The stages of a read, from its caller to the cache nodes."""
        stages: list[Callable[[Answer], Answer]] = []
        if self._observer is not None:
            stages.append(partial(observed_reads, self._observer, decode=self.decode))
        if self._config.cache.shadow:
            stages.append(self._make_shadow().shadowing)
        stages.append(self._reading_own_transactions)
        if self.copies.ages:
            stages.append(self.copies.serving)
        answer: Answer = self.nodes.read
        for stage in reversed(stages):
            answer = stage(answer)
        return answer

    def _build_load(self) -> Load:
        """The stages of a read of the database, from the procedure to the loaders."""
        observer = self._observer
        load: Load = self.load_within_limits
        if observer is not None:
            load = observed_loads(observer, load)
        return Flights(by_object(load), self._around.network, None if observer is None else observer.share_load).load

    def load_within_limits(
        self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken], *, is_together: bool = False
    ) -> list[Loaded]:
        """Each value by its object's loader; of several objects only if ``is_together``. Raises `Overloaded` above
        their limits."""
        for name, count in Counter(map(name_of, lookups)).items():
            if (limit := self.limits.get(name)) is not None:
                limit.take(count)
        load = self._lookups.load_together if is_together else self._lookups.load
        return load(lookups, at_least)

    def _reading_own_transactions(self, answer: Answer) -> Answer:
        """Past the cache inside the application's transaction, on its connection."""

        def read(lookups: Sequence[Lookup], demand: Demand, connection: Any) -> list[Read]:
            own = None if connection is None else find_driver_connection(connection)
            if own is None or not is_dirty(own):
                return answer(lookups, demand, own)
            loaded = self._lookups.load_on(own, lookups)
            return [Read(ReadOutcome.OWN_TRANSACTION, value=each.value) for each in loaded]

        return read

    def _make_shadow(self) -> ShadowReads:
        observer = self._observer
        return ShadowReads(
            share=self._config.cache.shadow,
            load=self.load_within_limits,
            find_heads=self._lookups.find_heads,
            look=self.nodes.look,
            sleep=self._around.network.sleep,
            draw=random.random,
            tell=(lambda lookup, result: None) if observer is None else observer.compare_shadow,
        )

    def decode(self, lookup: Lookup, read: Read, demand: Demand) -> Read:
        """With the value in the place of the payload; from the database if the cached bytes do not decode."""
        if read.payload is None:
            return read
        try:
            return Read(read.outcome, None, decode_value(read.payload), read.tokens)
        except FormatError:
            asked = Pending(lookup).ask(self._config.cache.on_unknown)
            (loaded,) = self.load_within_limits([asked], demand.at_least)
            self.refusals.note([lookup], [Read(ReadOutcome.FOREIGN)])
            return Read(ReadOutcome.FOREIGN, None, loaded.value, loaded.tokens, servers=loaded.servers)

    def _open_guarded(self, name: str) -> CacheNode:
        node = self._open_node(self._config.cache.access, name)
        if self._observer is not None:
            node = ObservedNode(node, self._observer)
        return GuardedNode(node, self._breakers)

    def _make_context(self) -> ReadContext:
        settings, clock = self._config.cache, self._around.clock
        return ReadContext(
            namespace=settings.namespace,
            ring=self._lookups.placement.ring_version,
            previous_ring=self._lookups.previous_ring,
            name=f"{socket.gethostname()}:{os.getpid()}".encode(),
            lineages=self._lookups.lineages,
            clock=clock,
            jitter=self._around.jitter,
            encode=compressing(encode_value, settings.compress_above_bytes),
            decode=decode_value,
            node_refresh_seconds=settings.node_refresh_seconds,
            fill_lease_ttl_seconds=settings.fill_lease_ttl_seconds,
            fill_wait_seconds=settings.fill_wait_ms / 1000,
            on_stale=settings.on_stale,
            on_unknown=settings.on_unknown,
            sightings=Sightings(
                clock, _now_us, settings.max_staleness_seconds, settings.clock_skew_seconds, self._note_view
            ),
            witness=self.recorder,
            recall=self.copies.recall,
            part_bytes=settings.part_bytes,
            value_bytes_max=settings.value_bytes_max,
        )

    def _note_view(self, view: NodeView) -> None:
        self.columns.note(view)
        self._lookups.note(view)

    def close(self) -> None:
        """Close the idle connections to the nodes, and the recorder."""
        self.nodes.readers.close()
        if self.recorder is not None:
            self.recorder.close()


def _import_client(backend: str) -> None:
    """Now, so that no request waits for it or fails by it. Raises `ConfigError` for one that is not installed."""
    try:
        import_node(backend)
    except ModuleNotFoundError as error:
        missing = missing_package(error, "appclient")
        if missing is None:
            raise
        raise missing from error


def _now_us() -> int:
    return time.time_ns() // 1000
