"""`FakeSystem`: the application's cache with everything behind it in one process, for the application's own tests.

The cache, the algorithm of readers and invalidators, and the nodes are those of production. The databases are SQLite
(``server``), the network is calls, and time goes on only when a test says so. So a schedule of delays and failures is
a few lines, and comes out the same each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pymysql

from appclient.cache import Cache, Explanation
from appclient.connection.own_pool import OwnPool
from appclient.reading.lookup import Lookups
from appclient.testing.server import Change, FakeConnection, FakeServer, Rows, compare, read_rows
from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, apply_batch
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.envelope import stripe_key, stripe_number
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.request import Head, Streamed
from freshness.algorithm.restore import Restorer
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, FreshnessError
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.network import Network
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.nodepolicy import node_policy
from freshness.position import Position, empty_position, parse_position
from freshness.stream.source import RowChange, Transaction

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache
    from appclient.testing.loop import FakeLoop

SOURCE: Final = "00000000-0000-0000-0000-000000000001"
STEP_SECONDS: Final = 1.0
"""While time goes on, the invalidator works so often."""

STRIPES: Final = 1024
"""A node has few of them, since each system puts them all in their place."""

_KINDS: Final = {
    "INT": ColumnKind.INTEGER,
    "CHAR": ColumnKind.STRING,
    "TEXT": ColumnKind.STRING,
    "BLOB": ColumnKind.BINARY,
}


@dataclass(frozen=True, slots=True)
class _Commit:
    position: Position
    changes: list[Change]


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

    def __init__(self, columns: Callable[..., tuple[KeyColumn, ...]], config: Config, **options: Any) -> None:
        self._make_lookups = partial(_FakeLookups, columns)
        super().__init__(config, **options)


class _FakeLookups(Lookups):
    def __init__(self, columns: Callable[..., tuple[KeyColumn, ...]], *arguments: Any) -> None:
        self._columns = columns
        super().__init__(*arguments)

    def _find_columns(
        self, keyspace: str, table: str, names: tuple[str, ...], *_: Any
    ) -> tuple[KeyColumn, ...]:
        return self._columns(table, names)


@dataclass(slots=True, eq=False)
class _Follower:
    """One node's invalidator."""

    member: Membership
    restorer: Restorer
    driver: BlockingDriver
    streamed: Position
    passed: list[Streamed] = field(default_factory=list)


class FakeSystem:
    """``path``: the application's ``freshness.toml``, of one keyspace with one shard. ``schema``: its tables, as
    statements of SQLite.

    ``cache`` is what the application uses in the place of `Cache.open`, and `open_async` in the place of
    `AsyncCache.open`; `connect` and `connect_async` give its own connections to the primary. At first each commit is
    on the replicas and invalidated at once. Raises `ConfigError` for a configuration that does not fit.
    """

    def __init__(self, path: str | PathLike[str], schema: str) -> None:
        config = load_config(Path(path), is_application=True)
        self.config = replace(config, cache=replace(config.cache, stripes=STRIPES))
        keyspaces = list(self.config.keyspaces.values())
        if len(keyspaces) != 1 or len(keyspaces[0].serving_shards) != 1 or keyspaces[0].flavor == "vitess":
            raise ConfigError(
                f"{path} has not one keyspace of MySQL or MariaDB with one shard",
                hint="give the tests a freshness.toml of their own",
            )
        self._keyspace = keyspaces[0]
        (self._shard,) = self._keyspace.serving_shards
        self.on_read: Callable[[Explanation], None] | None = None
        """As of `Cache.open`."""
        self.now = 1000.0
        self._nonces = 0
        self._moments = 0
        self._folder = TemporaryDirectory()
        self._log: list[_Commit] = []
        self._applied = 0
        self._is_replicating = True
        self._between: list[Callable[[], None]] = []
        self._followers: dict[str, _Follower] | None = None
        self._opened: list[AsyncCache] = []
        self._asked: dict[tuple[Cache, str, Any], None] = {}
        flavor = self._keyspace.flavor
        self.primary = FakeServer(
            "primary",
            self._file("primary"),
            flavor,
            self._shard.primary.database,
            lambda: str(self._position(len(self._log))),
        )
        self.replicas = [
            FakeServer(
                f"replica {place}",
                self._file(f"replica{place}"),
                flavor,
                address.database,
                lambda: str(self._position(self._applied)),
            )
            for place, address in enumerate(self._shard.replicas)
        ]
        self.servers = dict(
            zip((self._shard.primary, *self._shard.replicas), (self.primary, *self.replicas), strict=True)
        )
        for server in self.servers.values():
            server.create(schema)
        with self.primary.open() as rows:
            self._rows = read_rows(rows)
        self.primary.on_commit = self._note
        self.stores = {node: MemoryStore(node, clock=self._clock) for node in self.config.cache.nodes}
        self._placement = Placement(self.config.cache.nodes, self.config.cache.namespace)
        self.cache = self._make_cache(_Clock(self.sleep))
        self.start_invalidator()

    # -- the application's side ------------------------------------------------------------------------------

    def connect(self) -> Any:
        """A connection to the primary, as pymysql gives one: for an application's own code and its libraries."""
        return self.primary.connect()

    async def open_async(self) -> AsyncCache:
        """An `AsyncCache` of this loop, in the place of `AsyncCache.open`, with the nodes and databases of `cache`.

        Other tasks run where a read of the database begins and ends, and where a reader waits. Needs the extra
        ``async``.
        """
        from appclient.testing.loop import open_on_loop

        opened = open_on_loop(self._make_cache, self.sleep)
        self._opened.append(opened)
        return opened

    async def connect_async(self) -> Any:
        """A connection to the primary, as aiomysql and asyncmy give one. Needs the extra ``async``."""
        from appclient.testing.loop import FakeAsyncConnection

        return FakeAsyncConnection(self.primary.connect())

    def execute(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        """One statement on the primary, committed. The rows of a SELECT."""
        with self.connect() as connection:
            cursor = connection.cursor(pymysql.cursors.DictCursor)
            cursor.execute(sql, parameters)
            rows: list[dict[str, Any]] = cursor.fetchall()
            connection.commit()
        return rows

    # -- what can happen ---------------------------------------------------------------------------------------

    def stop_replication(self) -> None:
        """The replicas stay where they are: they lag."""
        self._is_replicating = False

    def start_replication(self) -> None:
        """The replicas catch up."""
        self._is_replicating = True
        self._go_on()

    def crash_invalidator(self) -> None:
        """It forgets all, and nothing is invalidated until it is started again."""
        self._followers = None

    def start_invalidator(self) -> None:
        """It goes on where the nodes say that it was, and readers notice within two seconds, which pass."""
        if self._followers is None:
            definitions = self.cache.lookups.definitions
            policy = node_policy(
                self.config.cache, self._shard.lineage, definitions, topology=self.config.topology
            )
            self._followers = {node: self._follow(node, policy) for node in self.stores}
            self.sleep(2 * STEP_SECONDS)

    def evict(self, object_name: str, key: Any) -> None:
        """A node drops an entry."""
        lookup = self.cache.lookups.find(object_name, key)
        self.stores[lookup.node].evict(lookup.item)

    def evict_stripe(self, object_name: str, key: Any) -> None:
        """A node drops the stripe of a key, the memory of its changes."""
        lookup = self.cache.lookups.find(object_name, key)
        number = stripe_number(lookup.item, self.config.cache.stripes)
        self.stores[lookup.node].evict(stripe_key(self.config.cache.namespace, self._shard.lineage, number))

    def restart_node(self, node: str | None = None) -> None:
        """A node, or all, restart empty."""
        for store in self._stores(node):
            store.restart()

    def cut_node(self, node: str | None = None) -> None:
        """A node, or all, answer nobody until `mend_node`."""
        for store in self._stores(node):
            store.down = True

    def mend_node(self, node: str | None = None) -> None:
        """A node, or all, answer again, with the items that they had."""
        for store in self._stores(node):
            store.down = False
        self._go_on()

    def sleep(self, seconds: float) -> None:
        """Time goes on: for leases, time-outs and ages."""
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

    # -- what is asked -----------------------------------------------------------------------------------------

    def find_stale(self) -> list[str]:
        """Hits that are not what the primary has, of all keys that were read, after everything has come to rest.

        An application gets such a hit where its loader reads what is not in the object's members.
        """
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
        for cache in (self.cache, *(opened.blocking for opened in self._opened)):
            cache.close()
        self._folder.cleanup()

    # -- inside ------------------------------------------------------------------------------------------------

    def _make_cache(self, network: _Clock | FakeLoop) -> Cache:
        made = _FakeCache(
            self._columns,
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

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.sqlite"

    def _clock(self) -> float:
        return self.now

    def _moment(self) -> float:
        """No two are at one time: put-backs of stripes wait for a later heartbeat."""
        self._moments += 1
        return self.now + self._moments * 1e-9

    def _nonce(self) -> bytes:
        self._nonces += 1
        return self._nonces.to_bytes(8, "big")

    def _stores(self, node: str | None) -> Sequence[MemoryStore]:
        return list(self.stores.values()) if node is None else [self.stores[node]]

    def _position(self, count: int) -> Position:
        """With so many commits; one was before all."""
        flavor = self._keyspace.flavor
        return parse_position(
            flavor, f"0-1-{count + 1}" if flavor == "mariadb" else f"{SOURCE}:1-{count + 1}"
        )

    def _single(self, number: int) -> Position:
        flavor = self._keyspace.flavor
        return parse_position(
            flavor, f"0-1-{number + 1}" if flavor == "mariadb" else f"{SOURCE}:{number + 1}"
        )

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

    def _columns(self, table: str, names: tuple[str, ...]) -> tuple[KeyColumn, ...]:
        with self.primary.open() as rows:
            found = rows.execute(f'PRAGMA table_info("{table}")').fetchall()
        types = {str(row[1]): str(row[2]).upper() for row in found}
        keys = names or tuple(str(row[1]) for row in sorted(found, key=lambda row: row[5]) if row[5])
        if not keys:
            raise ConfigError(
                f"table {table} has no primary key", hint="is it in the schema of the FakeSystem?"
            )
        return tuple(self._column(table, name, types) for name in keys)

    @staticmethod
    def _column(table: str, name: str, types: dict[str, str]) -> KeyColumn:
        for part, kind in _KINDS.items():
            if part in types.get(name, ""):
                return KeyColumn(name, kind, "utf8mb4_bin" if kind is ColumnKind.STRING else "")
        raise ConfigError(
            f"key column {table}.{name} is {types.get(name, 'not there')}",
            hint="a FakeSystem knows keys of integers, texts and BLOBs",
        )

    def _note_read(self, cache: Cache, read: Explanation) -> None:
        self._asked[cache, read.object_name, read.key] = None
        if self.on_read is not None:
            self.on_read(read)

    def _note(self, rows: Rows) -> None:
        changes = compare(self._rows, rows)
        self._rows = rows
        if changes:
            self._log.append(_Commit(self._single(len(self._log) + 1), changes))
            self._go_on()

    def _go_on(self) -> None:
        """Replicas and the invalidator do what they have to do now."""
        if self._is_replicating:
            for commit in self._log[self._applied :]:
                for replica in self.replicas:
                    replica.apply(commit.changes)
            self._applied = len(self._log)
        for follower in (self._followers or {}).values():
            try:
                self._work(follower)
            except FreshnessError:
                follower.member.leave()  # the node does not answer: it is joined again when time goes on

    def _follow(self, node: str, policy: NodePolicy) -> _Follower:
        nothing = empty_position(self._keyspace.gtid_flavor)
        passed: list[Streamed] = []
        driver = BlockingDriver(
            {node: MemoryNode(self.stores[node])},
            self._pass,
            read_head=lambda: Head(self._position(len(self._log)), 1),
            read_stream=lambda _: passed[-1] if passed else None,
        )
        member = Membership(node, policy, self._clock, self._nonce, nothing)
        return _Follower(member, Restorer(node, policy, self._moment, self._nonce), driver, nothing, passed)

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def _work(self, follower: _Follower) -> None:
        member = follower.member
        if not member.is_joined:
            follower.driver.run(join(member, follower.streamed))
            follower.streamed = member.applied
        follower.driver.run(follower.restorer.look())
        follower.driver.run(apply_batch(member, self._batch(follower)))
        follower.driver.run(follower.restorer.look())

    def _batch(self, follower: _Follower) -> Batch:
        finder = KeyFinder(self.cache.lookups.definitions)
        before = follower.streamed
        keys: dict[bytes, Position] = {}
        for commit in self._log:
            if before.contains(commit.position):
                continue
            follower.streamed = follower.streamed.union(commit.position)
            changes = tuple(
                RowChange(table, _operation(old, new), old, new) for table, _, old, new in commit.changes
            )
            items, _ = finder.find(Transaction(commit.position, 0, changes))
            for item in items:
                if self._placement.node_for(item) == follower.member.node:
                    keys[item] = keys[item].union(commit.position) if item in keys else commit.position
        now = self.now
        follower.passed.append(Streamed(follower.streamed, 1, self._moment()))
        return Batch(keys, {}, before, follower.streamed, HeartbeatSeen(now, time.time_ns() // 1000))


def _operation(before: Any, after: Any) -> Any:
    return "insert" if before is None else "delete" if after is None else "update"
