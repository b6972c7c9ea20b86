"""`Cache`: what the application calls. It gathers what the read procedure needs and drives it.

Safe for several threads: each read has connections of its own to the nodes and servers. Hits, fills and refusals are
decided by ``freshness.algorithm.read`` alone; nothing here stores anything in the cache.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

from appclient.connection.breaker import Breakers, GuardedNode
from appclient.connection.own import OwnDatabase, is_dirty, require_one_shard
from appclient.connection.own_pool import Pools, find_pools
from appclient.connection.pool import Pool, nested_reads
from appclient.database.atleast import AtLeast, demand_commits, is_enclosed
from appclient.database.database import Database
from appclient.reading.copies import Copies
from appclient.reading.flights import Flights
from appclient.reading.limits import RateLimit
from appclient.reading.loader import LoaderFunction, ObjectLoader
from appclient.reading.refusal import Refusals
from appclient.reading.shadow import ShadowReads
from appclient.telemetry.observer import (
    Answer,
    Load,
    ObservedNode,
    TelemetryOption,
    Vitals,
    find_observer,
    observed_loads,
    observed_reads,
)
from appclient.typed import Model, TypedObject
from freshness.algorithm.driver import BlockingDriver, running_clock
from freshness.algorithm.envelope import record_key
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.node import CacheNode
from freshness.algorithm.read import NO_DEMAND, Demand, Read, ReadContext, find_hit, find_hits, read_through
from freshness.algorithm.request import Get, Item
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.view import NodeView, Sightings
from freshness.config.access import NodeAccess
from freshness.config.reader import load_config
from freshness.config.settings import Config, ObjectConfig, ServerAddress
from freshness.database.connection import Connection
from freshness.database.schema import key_columns, keyspace_id
from freshness.errors import ConfigError, FormatError, FreshnessError, Overloaded, SourceUnavailable
from freshness.history.open import open_recorder
from freshness.keys.keycolumn import KeyColumn
from freshness.keys.placement import Placement
from freshness.network import BLOCKING, Network
from freshness.nodes.open import open_node as open_configured_node
from freshness.objects.registry import ObjectDefinition, build_registry
from freshness.position.token import EventToken
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import compressing

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=LoaderFunction)

LOOKUPS_KEPT_MAX: Final = 8192
"""Keys whose node and spelling are cached: computing them is a tenth of a hit, and more of `Cache.get_many`."""

KEPT_TEXT_MAX: Final = 64
"""Longer keys are not cached."""


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Explanation:
    """The value and the outcome of one read. ``event_tokens``: by lineage, of a read from the database."""

    value: Any
    outcome: ReadOutcome
    object_name: str
    key: Any
    node: str
    item: bytes
    event_tokens: dict[str, EventToken]

    @property
    def is_hit(self) -> bool:
        return self.outcome.is_hit


@dataclass(frozen=True, slots=True)
class _Reader:
    """One read's connections to the nodes, and copies of their records."""

    nodes: Mapping[str, CacheNode]
    driver: BlockingDriver
    context: ReadContext


class Cache:
    """Cached reads of the objects in ``freshness.toml``.

    ``on_read`` is called with an `Explanation` for every key that was read, in the reading thread. ``network``: how
    reads wait; see ``appclient.async_cache`` for another one. ``pools``: the application's own pools of connections,
    for the servers that it names as "host:port"; see `OwnPool`. ``telemetry``: a `PrometheusTelemetry`, an
    `OpenTelemetry`, or a list of both.
    """

    def __init__(
        self,
        config: Config,
        *,
        on_read: Callable[[Explanation], None] | None = None,
        open_node: Callable[[NodeAccess, str], CacheNode] | None = None,
        network: Network = BLOCKING,
        pools: Pools | None = None,
        telemetry: TelemetryOption = None,
        clock: Callable[[], float] = running_clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self.on_read = on_read
        self._network, self._clock, self._jitter = network, clock, jitter
        settings = config.cache
        compressing(encode_value, settings.compress_above_bytes)  # a package that is missing shows at once
        open_configured = partial(
            open_configured_node,
            connect_timeout_seconds=settings.node_connect_timeout_ms / 1000,
            timeout_seconds=settings.node_timeout_ms / 1000,
        )
        self._open_node = open_node or partial(open_configured, network=network)
        vitals = Vitals(config)
        self._observer = find_observer(telemetry, vitals)
        own_pools = find_pools(pools, list(config.keyspaces.values()), network)
        self._databases = {
            name: Database(
                keyspace, settings.connections_max, network, own_pools, settings.zone, self._observer
            )
            for name, keyspace in config.keyspaces.items()
        }
        self._definitions: dict[str, ObjectDefinition] = {}
        self._loaders: dict[str, ObjectLoader] = {}
        self._functions: dict[str, LoaderFunction] = {}
        self._defining = threading.Lock()
        for keyspace in config.keyspaces:
            try:
                self._define(keyspace)
            except SourceUnavailable as error:
                log.warning("keyspace %s is not read until its database answers: %s", keyspace, error)
        # The lineages that objects live in. Shards that do not serve decide over no read.
        self._lineages = tuple(
            dict.fromkeys(
                shard.lineage
                for entry in config.objects.values()
                for shard in config.keyspaces[entry.keyspace].serving_shards
            )
        )
        self._placement = Placement(settings.nodes, settings.namespace)
        self._kept_lookup = lru_cache(maxsize=LOOKUPS_KEPT_MAX)(self._make_lookup)
        self._recorder = open_recorder(
            config, None if self._observer is None else self._observer.drop_history
        )
        self._breakers = Breakers(
            settings.nodes,
            partial(open_node or open_configured, settings.access),
            Get(record_key(settings.namespace, self._lineages[0] if self._lineages else "")),
        )
        self._answer: Answer = self._read
        if settings.shadow:
            observer = self._observer
            self._answer = ShadowReads(
                share=settings.shadow,
                load=self._load,
                find_heads=self._find_heads,
                look=self._look,
                ring=self._placement.ring_version,
                sleep=network.sleep,
                draw=random.random,
                tell=(lambda lookup, result: None) if observer is None else observer.compare_shadow,
            ).shadowing(self._read)
        load: Load = self._load
        tell_shared: Callable[[Lookup], None] | None = None
        if self._observer is not None:
            self._answer = observed_reads(self._observer, self._answer, self._decode)
            load, tell_shared = observed_loads(self._observer, load), self._observer.share_load
        self._flights = Flights(load, network, tell_shared)
        self._limits = {
            name: RateLimit(
                name, entry.database_reads_per_second, settings.overload_wait_ms / 1000, clock, network.sleep
            )
            for name, entry in config.objects.items()
            if entry.database_reads_per_second
        }
        self._copies = Copies(settings.local_copies_bytes, clock)
        # By object: how old a copy may be that is served at once, and how old while another reader fills. A history
        # is of what nodes were asked, so a process that records one has no copies.
        self._copied = {
            name: (entry.local_copy_seconds, entry.stale_while_revalidate_seconds)
            for name, entry in config.objects.items()
            if (entry.local_copy_seconds or entry.stale_while_revalidate_seconds) and self._recorder is None
        }
        self._readers: Pool[_Reader] = Pool(
            settings.connections_max, "to cache nodes", _close_reader, network
        )
        self._refusals = Refusals(clock)
        vitals.breakers = self._breakers.opened
        shards = [shard for database in self._databases.values() for shard in database.shards.values()]
        vitals.pools = [("nodes", self._readers), *chain.from_iterable(shard.pools for shard in shards)]

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] = "freshness.toml",
        *,
        on_read: Callable[[Explanation], None] | None = None,
        pools: Pools | None = None,
        telemetry: TelemetryOption = None,
    ) -> Cache:
        """Read the configuration and the key columns of its objects.

        Raises `ConfigError` for mistakes in the file, all in one message, and for a package that it needs, and
        `SourceUnsuitable` when a database does not let the schema be read. Neither the cache nodes nor the databases
        need be up: reads of a keyspace raise `SourceUnavailable` until its schema was read once.
        """
        config = load_config(Path(path), is_application=True)
        return cls(config, on_read=on_read, pools=pools, telemetry=telemetry)

    # -- reading -------------------------------------------------------------------------------------------

    def get(
        self,
        object_name: str,
        key: Any,
        *,
        max_staleness_seconds: float | None = None,
        at_least: AtLeast = None,
        connection: Any = None,
        explain: bool = False,
    ) -> Any:
        """The object, or None if it does not exist. A key of several columns is a tuple, in key order, or a mapping
        of the names of its columns.

        ``max_staleness_seconds``: a hit that may be older is read from the database instead. ``at_least``: the value
        has these commits, see `Database.commit_token`. ``connection``: the application's own; while it has a
        transaction open, the object is read on it, and neither looked up nor stored. ``explain``: return an
        `Explanation` with the value. A failure of the cache never raises. A failure of the database raises
        `SourceUnavailable` or `SourceUnsuitable`, and an error of a loader is passed on, as is one of ``connection``.
        Where as many reads run as may, and none ends for 5 s, it raises `ConnectionsExhausted`; where the object's
        ``database_reads_per_second`` are exceeded, and no copy may be served, `Overloaded`.
        """
        lookup = self._lookup(object_name, key)
        demand = self._demand(max_staleness_seconds, at_least)
        (read,) = self._answer((lookup,), demand, connection)
        if explain or self.on_read is not None:
            return self._tell(lookup, key, read, explain, demand)
        return self._value(lookup, read, demand)

    def get_many(
        self,
        object_name: str,
        keys: Iterable[Hashable],
        *,
        max_staleness_seconds: float | None = None,
        at_least: AtLeast = None,
        connection: Any = None,
        explain: bool = False,
    ) -> dict[Any, Any]:
        """``{key: object or None}`` for all keys, with one request per node for the hits. A key of several columns is
        a tuple, in key order. The options are those of `get`."""
        self._definition(object_name)  # raises for a wrong name even where there are no keys
        wanted = list(dict.fromkeys(keys))
        lookups = [self._lookup(object_name, key) for key in wanted]
        if not lookups:
            return {}
        demand = self._demand(max_staleness_seconds, at_least)
        reads = self._answer(lookups, demand, connection)
        answers = zip(wanted, lookups, reads, strict=True)
        if explain or self.on_read is not None:
            return {key: self._tell(lookup, key, read, explain, demand) for key, lookup, read in answers}
        return {key: self._value(lookup, read, demand) for key, lookup, read in answers}

    def loader(self, object_name: str) -> Callable[[Function], Function]:
        """Decorator: this function builds the composite object from its key.

        It is called as ``function(db, key)`` with a `LoaderConnection`, and with one more value for each further
        column of the key. It must read only those rows of the member tables of the configuration that hold the
        key: a change of another row or table invalidates nothing. It reads through that connection, or by this cache:
        a part has at least the commits that the connection shows.
        """
        entry = self._entry(object_name)
        if not entry.is_composite:
            raise ConfigError(
                f"object {object_name} is read from {entry.table} alone and needs no loader",
                hint="give it members in the place of table in freshness.toml to build it from several tables",
            )

        def register(function: Function) -> Function:
            with self._defining:
                self._functions[object_name] = function
                if object_name in self._definitions:
                    self._create_loader(self._definitions[object_name])
            return function

        return register

    def of(self, object_name: str, model: type[Model]) -> TypedObject[Model]:
        """Reads of one object whose values are instances of ``model``: a dataclass, a TypedDict, an attrs class, a
        struct of msgspec or a model of pydantic.

        Raises `ConfigError` for an unknown object and for another class.
        """
        return TypedObject(self, self._entry(object_name).name, model)

    def database(self, keyspace: str | None = None) -> Database:
        """Uncached reads of a keyspace, with event tokens. The name may be left out where there is one keyspace."""
        if keyspace is None and len(self._databases) == 1:
            return next(iter(self._databases.values()))
        if keyspace not in self._databases:
            raise ConfigError(
                f"unknown keyspace {keyspace!r}", hint=f"expected one of {', '.join(self._databases)}"
            )
        return self._databases[keyspace]

    def key_columns(self, object_name: str) -> tuple[str, ...]:
        """The names of the key's columns, in key order. Raises as `open` where no server has told them yet."""
        return tuple(column.name for column in self._definition(object_name).builder.columns)

    def close(self) -> None:
        """Close the connections that no read uses just now. The cache can still be used: they are opened again."""
        self._readers.close()
        for database in self._databases.values():
            database.close()
        if self._recorder is not None:
            self._recorder.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _find_columns(
        self,
        keyspace: str,
        table: str,
        names: tuple[str, ...],
        is_unique: bool,
        ordered_by: tuple[str, ...],
    ) -> tuple[KeyColumn, ...]:
        database = self._databases[keyspace]

        def read(connection: Connection, address: ServerAddress) -> tuple[KeyColumn, ...]:
            return key_columns(connection, address.database, table, names, is_unique, ordered_by)

        failed: SourceUnavailable | None = None
        for shard in database.keyspace.serving_shards:
            try:
                return database.shards[shard.lineage].run(read)
            except SourceUnavailable as error:
                failed = failed or error
        assert failed is not None, "a keyspace has a serving shard"
        raise failed

    def _define(self, keyspace: str) -> None:
        """Read the schema of a keyspace. Raises what the database raises, and `ConfigError`."""
        definitions = build_registry(self.config, self._find_columns, keyspace_id, [keyspace])
        with self._defining:
            for name, definition in definitions.items():
                self._create_loader(definition)
                self._definitions[name] = definition

    def _create_loader(self, definition: ObjectDefinition) -> None:
        entry = definition.config
        database, function = self._databases[entry.keyspace], self._functions.get(entry.name)
        self._loaders[entry.name] = ObjectLoader(definition, database, function)

    def _entry(self, object_name: str) -> ObjectConfig:
        try:
            return self.config.objects[object_name]
        except KeyError:
            known = ", ".join(sorted(self.config.objects)) or "none"
            raise ConfigError(
                f"unknown object {object_name!r}", hint=f"freshness.toml defines {known}"
            ) from None

    def _definition(self, object_name: str) -> ObjectDefinition:
        try:
            return self._definitions[object_name]
        except KeyError:
            self._define(
                self._entry(object_name).keyspace
            )  # its database did not answer when this was opened
            return self._definitions[object_name]

    def _lookup(self, object_name: str, key: Any) -> Lookup:
        # Neither True and 1.0, which equal 1, nor long texts are cached.
        if type(key) is int or (type(key) is str and len(key) <= KEPT_TEXT_MAX):
            return self._kept_lookup(object_name, key)
        return self._make_lookup(object_name, key)

    def _make_lookup(self, object_name: str, key: Any) -> Lookup:
        definition = self._definition(object_name)
        values = _order_key(definition, key)
        cache_key = definition.builder.build(values)
        item, _, is_exact = cache_key
        identity = definition.identity(cache_key)
        node = self._placement.node_for(item)
        asked = definition.builder.parse(cache_key.identity)
        return Lookup(definition.policy_for(values), node, item, identity, asked, is_exact)

    def _demand(self, max_staleness_seconds: float | None, at_least: AtLeast) -> Demand:
        if max_staleness_seconds is None and at_least is None and not is_enclosed():
            return NO_DEMAND
        return Demand(max_staleness_seconds, demand_commits(at_least, self.config.keyspaces.values()))

    def _read(self, lookups: Sequence[Lookup], demand: Demand, connection: Any) -> list[Read]:
        if connection is not None and is_dirty(connection):
            return self._read_own(lookups, connection)
        # The lookups of a call are of one object.
        if lookups[0].policy.name in self._copied:
            return self._read_with_copies(lookups, demand)
        return self._read_nodes(lookups, demand)

    def _read_with_copies(self, lookups: Sequence[Lookup], demand: Demand) -> list[Read]:
        """Copies that are young enough, and the others from the nodes."""
        seconds = self._copied[lookups[0].policy.name][0] if demand is NO_DEMAND else 0.0
        found = [self._copies.find(lookup, seconds, ReadOutcome.LOCAL_HIT) for lookup in lookups]
        missing = [lookup for lookup, read in zip(lookups, found, strict=True) if read is None]
        asked_at = self._copies.clock()
        reads = self._read_nodes(missing, demand) if missing else []
        for lookup, read in zip(missing, reads, strict=True):
            if read.outcome is not ReadOutcome.STALE_SERVED:
                self._copies.note(lookup, read, asked_at)
        others = iter(reads)
        return [next(others) if read is None else read for read in found]

    def _recall(self, lookup: Lookup) -> Read | None:
        """The copy that may be served while another reader fills."""
        _, seconds = self._copied.get(lookup.policy.name, (0.0, 0.0))
        return self._copies.find(lookup, seconds, ReadOutcome.STALE_SERVED)

    def _read_nodes(self, lookups: Sequence[Lookup], demand: Demand) -> list[Read]:
        reader = self._readers.take()
        try:
            if reader is None:
                reader = self._open_reader()
            if demand.max_staleness_seconds is not None:
                return self._run(reader, lookups, demand)
            if len(lookups) == 1:
                (lookup,) = lookups
                try:
                    hit = find_hit(reader.context, lookup, reader.nodes[lookup.node].find, demand.at_least)
                except FreshnessError as error:
                    log.debug("%s", error)  # the procedure says what follows from it
                else:
                    if hit is not None:
                        return [hit]
                return self._run(reader, lookups, demand)
            return self._read_many(reader, lookups, demand)
        finally:
            self._readers.give_back(reader)

    def _look(self, lookup: Lookup) -> tuple[NodeView, bytes | None]:
        """The records of a lookup's node, and behind them its item. Raises what the node raises."""
        asked = [Get(record_key(self.config.cache.namespace, name), is_bound=True) for name in self._lineages]
        reader = self._readers.take()
        try:
            if reader is None:
                reader = self._open_reader()
            fetched_at = self._clock()
            *records, item = reader.nodes[lookup.node].perform([*asked, Get(lookup.item)])
        finally:
            self._readers.give_back(reader)
        view = NodeView(lookup.node, self._lineages, records, fetched_at)
        return view, item.value if isinstance(item, Item) else None

    def _find_heads(self, lookup: Lookup) -> Mapping[str, EventToken]:
        """All that the primaries of a lookup have executed, by lineage."""
        shards = self._databases[self.config.objects[lookup.policy.name].keyspace].shards
        return {lineage: shards[lineage].read_head() for lineage in lookup.policy.lineages}

    def _run(self, reader: _Reader, lookups: Sequence[Lookup], demand: Demand) -> list[Read]:
        """The procedure; above the limit of database reads, copies where there are some that may be served."""
        try:
            reads = reader.driver.run(read_through(reader.context, lookups, demand))
        except Overloaded:
            if not demand.may_be_stale:
                raise
            recalled = [read for read in map(self._recall, lookups) if read is not None]
            if len(recalled) < len(lookups):
                raise
            return recalled
        self._refusals.note(lookups, reads)
        return reads

    def _read_many(self, reader: _Reader, lookups: Sequence[Lookup], demand: Demand) -> list[Read]:
        """Hits by the short way, and the others by the procedure."""
        hits = reader.driver.run(find_hits(reader.context, lookups, demand.at_least))
        missing = [lookup for lookup, hit in zip(lookups, hits, strict=True) if hit is None]
        others = iter(self._run(reader, missing, demand) if missing else ())
        return [next(others) if hit is None else hit for hit in hits]

    def _read_own(self, lookups: Sequence[Lookup], connection: Any) -> list[Read]:
        """Inside the application's transaction, past the cache. All lookups are of one object."""
        for lookup in lookups:
            require_one_shard(lookup.policy.name, lookup.policy.lineages)
        name = lookups[0].policy.name
        loader = ObjectLoader(self._definitions[name], OwnDatabase(connection), self._functions.get(name))
        return [Read(ReadOutcome.OWN_TRANSACTION, value=each.value) for each in loader.load(lookups)]

    def _tell(self, lookup: Lookup, key: Any, read: Read, explain: bool, demand: Demand) -> Any:
        """Call ``on_read``. Returns the value, or with ``explain`` the `Explanation`."""
        value, outcome, tokens = self._decode(lookup, read, demand)
        explanation = Explanation(
            value, outcome, lookup.policy.name, key, lookup.node, lookup.item, dict(tokens) if tokens else {}
        )
        if self.on_read is not None:
            self.on_read(explanation)
        return explanation if explain else value

    def _value(self, lookup: Lookup, read: Read, demand: Demand) -> Any:
        if read.payload is None:
            return read.value
        try:
            return decode_value(read.payload)
        except FormatError:
            return self._decode(lookup, read, demand)[0]

    def _decode(
        self, lookup: Lookup, read: Read, demand: Demand
    ) -> tuple[Any, ReadOutcome, Mapping[str, EventToken]]:
        """(value, outcome, tokens): decoded, or from the database where the cached bytes do not decode."""
        if read.payload is None:
            return read.value, read.outcome, read.tokens
        try:
            return decode_value(read.payload), read.outcome, read.tokens
        except FormatError:
            (loaded,) = self._load([lookup], demand.at_least)
            self._refusals.note([lookup], [Read(ReadOutcome.FOREIGN)])
            return loaded.value, ReadOutcome.FOREIGN, loaded.tokens

    def _load(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        """Answer a `Load` step: each object by its own loader, in the order of the lookups."""
        by_object: dict[str, list[int]] = {}
        for place, lookup in enumerate(lookups):
            by_object.setdefault(lookup.policy.name, []).append(place)
        loaded: dict[int, Loaded] = {}
        for name, places in by_object.items():
            if name in self._limits:
                self._limits[name].take(len(places))
            with nested_reads():
                values = self._loaders[name].load([lookups[place] for place in places], at_least)
            loaded.update(zip(places, values, strict=True))
        return [loaded[place] for place in range(len(lookups))]

    def _open_observed(self, access: NodeAccess, name: str) -> CacheNode:
        node = self._open_node(access, name)
        return node if self._observer is None else ObservedNode(node, self._observer)

    def _open_reader(self) -> _Reader:
        settings = self.config.cache
        nodes = {
            name: GuardedNode(self._open_observed(settings.access, name), self._breakers)
            for name in settings.nodes
        }
        context = ReadContext(
            namespace=settings.namespace,
            ring=self._placement.ring_version,
            lineages=self._lineages,
            clock=self._clock,
            jitter=self._jitter,
            encode=compressing(encode_value, settings.compress_above_bytes),
            node_refresh_seconds=settings.node_refresh_seconds,
            fill_lease_ttl_seconds=settings.fill_lease_ttl_seconds,
            fill_wait_seconds=settings.fill_wait_ms / 1000,
            on_stale=settings.on_stale,
            sightings=Sightings(
                self._clock, _now_us, settings.max_staleness_seconds, settings.clock_skew_seconds
            ),
            witness=self._recorder,
            recall=self._recall,
            part_bytes=settings.part_bytes,
            value_bytes_max=settings.value_bytes_max,
        )
        return _Reader(
            nodes,
            BlockingDriver(
                nodes, self._network.sleep, load=self._flights.load, run_all=self._network.run_all
            ),
            context,
        )


def _close_reader(reader: _Reader) -> None:
    for node in reader.nodes.values():
        node.close()


def _order_key(definition: ObjectDefinition, key: Any) -> Sequence[object]:
    """The values of a key in the order of its columns. Raises `FormatError` for a mapping with other names."""
    if type(key) is tuple:
        return key
    if not isinstance(key, Mapping):
        return (key,)
    names = [column.name for column in definition.builder.columns]
    if set(key) != set(names):
        raise FormatError(
            f"the key of {definition.config.name} got {', '.join(map(str, key)) or 'no column'}",
            hint=f"expected {', '.join(names)}, each with its value",
        )
    return [key[name] for name in names]
