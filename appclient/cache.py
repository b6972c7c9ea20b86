"""`Cache`: what the application calls. It gathers what the read procedure needs and drives it.

Safe for several threads: each read has connections of its own to the nodes and servers. Hits, fills and refusals are
decided by ``freshness.algorithm.read`` alone; nothing here stores anything in the cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

from appclient.connection.own_pool import Pools, find_pools
from appclient.database.atleast import AtLeast, demand_commits, is_enclosed
from appclient.database.database import Database
from appclient.database.servers import ServerAccess
from appclient.reading.limits import RateLimit
from appclient.reading.loader import LoaderFunction
from appclient.reading.lookup import Lookups
from appclient.reading.pipeline import Pipeline, Surroundings
from appclient.telemetry.observer import Observer, TelemetryOption, Vitals, find_observer
from appclient.together import View, distinct_keys
from appclient.typed import Model, TypedObject
from freshness.algorithm.driver import running_clock
from freshness.algorithm.lookup import Lookup, ReadServer
from freshness.algorithm.node import CacheNode
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import NO_DEMAND, Demand, Read, ServedState
from freshness.config.access import NodeAccess
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, FormatError
from freshness.network import BLOCKING, Network
from freshness.position.token import EventToken
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import compressing

Function = TypeVar("Function", bound=LoaderFunction)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The value and the outcome of one read. ``event_tokens`` and ``servers``: by lineage, of a read from the
    database. A `ReadServer` has a ``name``, which is "host:port", and says whether it ``is_primary``."""

    value: Any
    outcome: ReadOutcome
    object_name: str
    key: Any
    node: str
    item: bytes
    event_tokens: dict[str, EventToken]
    servers: dict[str, ReadServer]

    @property
    def is_hit(self) -> bool:
        """Whether the value came from the cache."""
        return self.outcome.is_hit


class Cache:
    """Cached reads of the objects in ``freshness.toml``. A context manager, which closes it.

    ``on_read`` is called with an `Explanation` for every key that was read, in the reading thread. ``network``: how
    reads wait; see ``appclient.async_cache`` for another one. ``pools``: the application's own pools of connections,
    for the servers that it names as "host:port"; see `OwnPool`. ``telemetry``: a `PrometheusTelemetry`, an
    `OpenTelemetry`, or a list of both.
    """

    _make_lookups: Callable[[Config, Mapping[str, Database]], Lookups] = Lookups

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
        self.config, self.on_read = config, on_read
        # A package that is missing shows at once.
        compressing(encode_value, config.cache.compress_above_bytes)
        vitals = Vitals(config)
        observer = find_observer(telemetry, vitals)
        limit = RateLimit("the primaries", config.cache.primary_reads_per_second, 0, clock, network.sleep)
        access = ServerAccess(
            connections_max=config.cache.connections_max,
            network=network,
            own_pools=find_pools(pools, list(config.keyspaces.values()), network),
            zone=config.cache.zone,
            observer=observer,
            permit_primary=partial(_permit_primary, limit, observer),
        )
        self._databases = {name: Database(keyspace, access) for name, keyspace in config.keyspaces.items()}
        self.lookups = self._make_lookups(config, self._databases)
        around = Surroundings(network, open_node, clock, jitter)
        self._pipeline = Pipeline(config, self._databases, self.lookups, around, observer, vitals)
        self._find_lookup, self._answer = self.lookups.find, self._pipeline.answer

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] = "freshness.toml",
        *,
        on_read: Callable[[Explanation], None] | None = None,
        pools: Pools | None = None,
        telemetry: TelemetryOption = None,
    ) -> Cache:
        """Read the configuration at ``path`` and the key columns of its objects. The options are those of the class.

        Raises `ConfigError` for mistakes in the file, all in one message, and for a package that it needs, and
        `SourceUnsuitable` when a database does not let the schema be read. Neither the cache nodes nor the databases
        need be up: reads of a keyspace raise `SourceUnavailable` until its schema was read once.
        """
        config = load_config(Path(path), is_application=True)
        return cls(config, on_read=on_read, pools=pools, telemetry=telemetry)

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
        """The object, or None if it does not exist. ``object_name``: its name in the file. ``key``: a value, or
        for several columns a tuple in key order, or a mapping of the names of its columns.

        ``max_staleness_seconds``: a hit that may be older is read from the database instead. ``at_least``: the value
        has these commits, see `Database.commit_token`. ``connection``: the application's own; while it has a
        transaction open, the object is read on it, and neither looked up nor stored. ``explain``: return an
        `Explanation` with the value. A failure of the cache never raises. A failure of the database raises
        `SourceUnavailable` or `SourceUnsuitable`, and an error of a loader is passed on, as is one of ``connection``.
        It raises `ConnectionsExhausted` if all connections stay in use for 5 s, and `Overloaded` if the object's
        ``database_reads_per_second`` are exceeded and no copy may be served.
        """
        lookup = self._find_lookup(object_name, key)
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
        together: bool = False,
    ) -> dict[Any, Any]:
        """``{key: object or None}`` for all ``keys``, with one request per node for the hits. A key of several
        columns is a tuple, in key order. The options are those of `get`.

        ``together``: the values are of one moment of each shard, as one snapshot of the database shows them: from the
        entries if they prove it, else from such a snapshot. Raises `ConfigError` for an object of which a key is read
        from several shards, or whose loader reads by the cache."""
        self.lookups.definition(object_name)  # raises for a wrong name even without keys
        wanted = distinct_keys(keys)
        if not wanted:
            return {}
        demand = self._demand(max_staleness_seconds, at_least, ServedState() if together else None)
        lookups = [self._find_lookup(object_name, key) for key in wanted]
        return dict(zip(wanted, self._get_all(lookups, wanted, demand, connection, explain=explain), strict=True))

    @contextmanager
    def together(self, *, max_staleness_seconds: float | None = None, at_least: AtLeast = None) -> Iterator[View]:
        """Reads of several objects, one after the other, that are all of one moment of each shard, as with
        ``together`` of `get_many`: ``with cache.together() as view: view.get("order", 7)``. The options are those of
        `get`, and each value meets them when it is read."""
        served = ServedState()

        def read(wanted: Sequence[tuple[str, Any]], explain: bool) -> list[Any]:
            lookups = [self._find_lookup(name, key) for name, key in wanted]
            demand = self._demand(max_staleness_seconds, at_least, served)
            return self._get_all(lookups, [key for _, key in wanted], demand, None, explain=explain)

        yield View(read)

    def loader(self, object_name: str) -> Callable[[Function], Function]:
        """Decorator: this function builds the composite object from its key.

        It is called as ``function(db, key)`` with a `LoaderConnection`, and with one more value for each further
        column of the key. It must read only those rows of the member tables of the configuration that hold the
        key: a change of another row or table invalidates nothing. It reads through that connection, or by this cache:
        a part has at least the commits that the connection shows. Raises `ConfigError` for an ``object_name`` that is
        unknown or no composite.
        """
        entry = self.lookups.entry(object_name)
        if not entry.is_composite:
            raise ConfigError(
                f"object {object_name} is read from {entry.table} alone and needs no loader",
                hint="give it members in the place of table in freshness.toml to build it from several tables",
            )

        def register(function: Function) -> Function:
            self.lookups.set_function(object_name, function)
            return function

        return register

    def of(self, object_name: str, model: type[Model]) -> TypedObject[Model]:
        """Reads of one object whose values are instances of ``model``: a dataclass, a TypedDict, an attrs class, a
        struct of msgspec or a model of pydantic. Raises `ConfigError` for an unknown ``object_name`` and for another
        class."""
        return TypedObject(self, self.lookups.entry(object_name).name, model)

    def database(self, keyspace: str | None = None) -> Database:
        """Uncached reads of a keyspace, with event tokens. ``keyspace``: its name, which may be left out if there is
        one. Raises `ConfigError` for another name."""
        if keyspace is None and len(self._databases) == 1:
            return next(iter(self._databases.values()))
        if keyspace not in self._databases:
            raise ConfigError(f"unknown keyspace {keyspace!r}", hint=f"expected one of {', '.join(self._databases)}")
        return self._databases[keyspace]

    def key_columns(self, object_name: str) -> tuple[str, ...]:
        """The names of the columns in the key of ``object_name``, in key order. Raises as `open` if no server has
        answered yet."""
        return tuple(column.name for column in self.lookups.definition(object_name).builder.columns)

    def column_types(self, lineage: str, table: str) -> Mapping[str, str]:
        """The type of each column of a table of a shard, asked again after each statement that changes the table.
        Raises as a read of the database, and `SourceUnavailable` while no server is known to show the change."""
        return self._pipeline.columns.find(lineage, table)

    def close(self) -> None:
        """Close the idle connections. The cache can still be used: it opens them again."""
        self._pipeline.close()
        for database in self._databases.values():
            database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _demand(
        self, max_staleness_seconds: float | None, at_least: AtLeast, served: ServedState | None = None
    ) -> Demand:
        if max_staleness_seconds is None and at_least is None and served is None and not is_enclosed():
            return NO_DEMAND
        if max_staleness_seconds is not None:
            is_number = isinstance(max_staleness_seconds, Real | Decimal)
            if not is_number or not float(max_staleness_seconds) >= 0:
                raise ConfigError(
                    f"a read has the max_staleness_seconds {max_staleness_seconds!r}",
                    hint="expected a number of seconds, at least 0",
                )
            max_staleness_seconds = float(max_staleness_seconds)
        return Demand(max_staleness_seconds, demand_commits(at_least, self.config.keyspaces.values()), served)

    def _get_all(
        self, lookups: Sequence[Lookup], keys: Sequence[Any], demand: Demand, connection: Any, *, explain: bool
    ) -> list[Any]:
        reads = self._answer(lookups, demand, connection)
        answers = zip(lookups, keys, reads, strict=True)
        if explain or self.on_read is not None:
            return [self._tell(lookup, key, read, explain, demand) for lookup, key, read in answers]
        return [self._value(lookup, read, demand) for lookup, _, read in answers]

    def _tell(self, lookup: Lookup, key: Any, read: Read, explain: bool, demand: Demand) -> Any:
        """Call ``on_read``. Returns the value, or with ``explain`` the `Explanation`."""
        read = self._pipeline.decode(lookup, read, demand)
        explanation = Explanation(
            read.value,
            read.outcome,
            lookup.policy.name,
            key,
            lookup.node,
            lookup.item,
            dict(read.tokens) if read.tokens else {},
            dict(read.servers) if read.servers else {},
        )
        if self.on_read is not None:
            self.on_read(explanation)
        return explanation if explain else read.value

    def _value(self, lookup: Lookup, read: Read, demand: Demand) -> Any:
        if read.payload is None:
            return read.value
        try:
            return decode_value(read.payload)
        except FormatError:
            return self._pipeline.decode(lookup, read, demand).value


def _permit_primary(limit: RateLimit, observer: Observer | None) -> bool:
    is_permitted = limit.permits()
    if observer is not None:
        observer.need_primary("read" if is_permitted else "bounded")
    return is_permitted
