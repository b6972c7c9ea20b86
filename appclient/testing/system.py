"""`FakeSystem`: the application's cache with everything behind it in one process, for the application's own tests.

The cache, the algorithm of readers and invalidators, and the nodes are those of production. The databases are SQLite
(``server``), the network is calls, and time goes on only when a test says so. So a schedule of delays and failures is
a few lines, and comes out the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pymysql

from appclient.cache import Cache, Explanation
from appclient.connection.own_pool import OwnPool
from appclient.reading.lookup import Lookups
from appclient.testing.databases import FakeDatabases
from appclient.testing.invalidator import FakeInvalidator
from appclient.testing.server import FakeConnection, FakeServer
from freshness.algorithm.envelope import stripe_key, stripe_number
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError
from freshness.network import Network
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.registry import KeyColumns

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache
    from appclient.testing.loop import FakeLoop

STEP_SECONDS: Final = 1.0
"""While time goes on, the invalidator works so often."""

STRIPES: Final = 1024
"""A node has few of them, since each system puts them all in their place."""


class _Clock(Network):
    """Waits are time that goes on."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep

    def sleep(self, seconds: float) -> None:
        self._sleep(seconds)

    def give_way(self) -> None:
        """Nobody waits for a turn."""

    def settle(self, answer: Any) -> Any:
        return answer


class _FakeCache(Cache):
    """Its tables are those of SQLite."""

    def __init__(self, columns: KeyColumns, config: Config, **options: Any) -> None:
        self._make_lookups = partial(Lookups, find_columns=columns)
        super().__init__(config, **options)


class FakeSystem:
    """``path``: the application's ``freshness.toml``, of one keyspace with one shard. ``schema``: its tables, as
    statements of SQLite.

    ``cache`` is what the application uses in the place of `Cache.open`, and `open_async` in the place of
    `AsyncCache.open`; `connect` and `connect_async` give its own connections to the primary. At first each commit is
    on the replicas and invalidated at once. Raises `ConfigError` for a configuration that does not fit.
    """

    def __init__(self, path: str | PathLike[str], schema: str) -> None:
        config = load_config(Path(path), is_application=True)
        # The worst that a page may meet: no read goes to the primary since a replica lags
        self.config = replace(config, cache=replace(config.cache, stripes=STRIPES, primary_reads_per_second=0.0))
        keyspaces = list(self.config.keyspaces.values())
        if len(keyspaces) != 1 or len(keyspaces[0].serving_shards) != 1 or keyspaces[0].flavor == "vitess":
            raise ConfigError(
                f"{path} has not one keyspace of MySQL or MariaDB with one shard",
                hint="give the tests a freshness.toml of their own",
            )
        (keyspace,) = keyspaces
        (self._shard,) = keyspace.serving_shards
        self.on_read: Callable[[Explanation], None] | None = None
        """As of `Cache.open`."""
        self.now = 1000.0
        self._clock = lambda: self.now
        self._folder = TemporaryDirectory()
        self._between: list[Callable[[], None]] = []
        self._opened: list[AsyncCache] = []
        self._asked: dict[tuple[Cache, str, Any], None] = {}
        folder = Path(self._folder.name)
        self._databases = FakeDatabases(folder, keyspace.flavor, self._shard, schema, self._go_on)
        self.primary, self.replicas = self._databases.primary, self._databases.replicas
        self.servers = self._databases.servers
        self.stores = {node: MemoryStore(node, clock=self._clock) for node in self.config.cache.all_nodes}
        self.cache = self._make_cache(_Clock(self.sleep))
        definitions = self.cache.lookups.definitions
        self._invalidator = FakeInvalidator(
            self.config, self._databases, definitions, self.stores, self._clock, self._pass
        )
        self.start_invalidator()

    def connect(self) -> Any:
        """A connection to the primary, as pymysql gives one: for an application's own code and its libraries."""
        return self.primary.connect()

    async def open_async(self) -> AsyncCache:
        """An `AsyncCache` of this loop, in the place of `AsyncCache.open`, with the nodes and databases of `cache`.
        Other tasks run when a read of the database begins and ends, and when a reader waits. Needs the extra
        ``async``."""
        from appclient.async_cache import AsyncCache
        from appclient.testing.loop import FakeLoop

        opened = AsyncCache(self._make_cache(FakeLoop(self.sleep)))
        self._opened.append(opened)
        return opened

    async def connect_async(self) -> Any:
        """A connection to the primary, as aiomysql and asyncmy give one. Needs the extra ``async``."""
        from appclient.testing.loop import FakeAsyncConnection

        return FakeAsyncConnection(self.primary.connect())

    def execute(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        """The rows of ``sql``, one statement on the primary, committed. ``parameters``: values for it."""
        with self.connect() as connection:
            cursor = connection.cursor(pymysql.cursors.DictCursor)
            cursor.execute(sql, parameters)
            rows: list[dict[str, Any]] = cursor.fetchall()
            connection.commit()
        return rows

    def stop_replication(self) -> None:
        """Stop the replicas: they lag."""
        self._databases.is_replicating = False

    def start_replication(self) -> None:
        """The replicas catch up."""
        self._databases.is_replicating = True
        self._go_on()

    def crash_invalidator(self) -> None:
        """It forgets all, and nothing is invalidated until it is started again."""
        self._invalidator.crash()

    def start_invalidator(self) -> None:
        """Start it at the position that the nodes have, and let two seconds pass, within which readers notice."""
        if not self._invalidator.is_running:
            self._invalidator.start()
            self.sleep(2 * STEP_SECONDS)

    def evict(self, object_name: str, key: Any) -> None:
        """A node drops the entry of ``key`` of ``object_name``."""
        lookup = self.cache.lookups.find(object_name, key)
        self.stores[lookup.node].evict(lookup.item)

    def evict_stripe(self, object_name: str, key: Any) -> None:
        """A node drops the stripe of ``key`` of ``object_name``, the memory of its changes."""
        lookup = self.cache.lookups.find(object_name, key)
        number = stripe_number(lookup.item, self.config.cache.stripes)
        self.stores[lookup.node].evict(stripe_key(self.config.cache.namespace, self._shard.lineage, number))

    def restart_node(self, node: str | None = None) -> None:
        """The ``node`` at this address, or all, restart empty."""
        for store in self._stores(node):
            store.restart()

    def cut_node(self, node: str | None = None) -> None:
        """The ``node`` at this address, or all, answer nobody until `mend_node`."""
        for store in self._stores(node):
            store.down = True

    def mend_node(self, node: str | None = None) -> None:
        """The ``node`` at this address, or all, answer again, with the items that they had."""
        for store in self._stores(node):
            store.down = False
        self._go_on()

    def sleep(self, seconds: float) -> None:
        """Time goes on by ``seconds``, for leases, time-outs and ages."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + STEP_SECONDS)
            self._go_on()

    @contextmanager
    def before_the_fill(self, happens: Callable[[], Any]) -> Iterator[None]:
        """The next read of a database is held up between its rows and its fill, while ``happens`` runs. For a read of
        an `AsyncCache` it may be a coroutine function."""
        self._between.append(happens)
        try:
            yield
        finally:
            if happens in self._between:
                self._between.remove(happens)

    def find_stale(self) -> list[str]:
        """Hits that are not what the primary has, of all keys that were read, after everything has come to rest. An
        application gets such a hit if its loader reads data that is not in the object's members."""
        self.mend_node()
        self.start_replication()
        self.start_invalidator()
        self.sleep(2 * STEP_SECONDS)
        stale = self._compare(self.cache)
        for opened in self._opened:
            from appclient.testing.loop import run_apart

            stale += run_apart(opened, partial(self._compare, opened.blocking))
        return stale

    def close(self) -> None:
        """Close the caches, and delete the databases."""
        for cache in (self.cache, *(opened.blocking for opened in self._opened)):
            cache.close()
        self._folder.cleanup()

    def _make_cache(self, network: _Clock | FakeLoop) -> Cache:
        made = _FakeCache(
            self._databases.find_columns,
            self.config,
            open_node=lambda _, name: MemoryNode(self.stores[name]),
            network=network,
            pools={
                f"{address.host}:{address.port}": self._pool(server, network)
                for address, server in self.servers.items()
            },
            clock=self._clock,
            jitter=lambda: 0.5,
        )
        made.on_read = partial(self._note_read, made)
        return made

    def _compare(self, cache: Cache) -> list[str]:
        """The hits of one cache that are not what the primary has."""
        stale = []
        for name, key in [(name, key) for asked, name, key in self._asked if asked is cache]:
            hit = cache.get(name, key, explain=True)
            if not hit.is_hit:
                continue
            with self.connect() as connection:
                connection.begin()
                fresh = cache.get(name, key, connection=connection)
            if hit.value != fresh:
                stale.append(f"{name} {key!r}: the cache has {hit.value!r}, the primary {fresh!r}")
        return stale

    def _stores(self, node: str | None) -> Sequence[MemoryStore]:
        return list(self.stores.values()) if node is None else [self.stores[node]]

    def _pool(self, server: FakeServer, network: _Clock | FakeLoop) -> OwnPool:
        def take() -> FakeConnection:
            network.give_way()
            return server.connect()

        def give_back(connection: FakeConnection) -> None:
            connection.close()
            happening, self._between = self._between, []
            for happens in happening:
                network.settle(happens())
            network.give_way()

        return OwnPool(take, give_back, lambda connection: connection.close(), pymysql.Error)

    def _note_read(self, cache: Cache, read: Explanation) -> None:
        self._asked[cache, read.object_name, read.key] = None
        if self.on_read is not None:
            self.on_read(read)

    def _go_on(self) -> None:
        """Replicas and the invalidator do what they have to do now."""
        self._databases.replicate()
        self._invalidator.work()

    def _pass(self, seconds: float) -> None:
        self.now += seconds
