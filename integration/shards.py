"""A sharded keyspace on private servers, and resharding of it while somebody writes.

`start_shards` starts shards, each a primary with its replicas; `ShardRouter` sends a write to the shard of its
keyspace id. A reshard goes in steps, so that a test can look on, or kill somebody, between any two:

    reshard = prepare_replicated(cluster, sources, names)   # or prepare_copied
    stop_writes(reshard)                # the sources are read-only, writers wait in the router
    catch_up(reshard)                   # the destinations have everything
    promote(reshard)                    # they follow nobody any more
    switch(reshard, router)             # writers go on there

`prepare_replicated` keeps GTIDs: a destination follows every source that overlaps it from the start of its log, so
its own log has all of their transactions under the same GTIDs. `prepare_copied` copies rows: all GTIDs are new.

For tests. `Writer` never changes a row's sharding column. Waits are polls with a bound.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql

from freshness.database.sharding import keyspace_id
from freshness.keys.keyrange import KeyRange
from integration.harness import ORDERS_TABLE, wait_until
from integration.servers import DatabaseServer, Flavor, ServerFailed
from integration.servers.database import SCHEMA, Connection, make_database

FUNCTION: Final = "hash"
BATCH_ROWS: Final = 500
SERVERS_PER_SHARD_MAX: Final = 10
WRITES_MAX: Final = 200_000
BREATH_SECONDS: Final = 0.005
"""Between two writes: room for who wants to pause the writer, and for everybody else on a small machine."""

READ_ONLY_ERRORS: Final = frozenset((1290, 1792, 1836))
"""ER_OPTION_PREVENTS_STATEMENT, ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE: nothing was written."""

WRITER: Final = "writer"
"""A user who may only read and write the tables."""


@dataclass(frozen=True, slots=True)
class ShardedTable:
    """A table, whose first column is its primary key, and the column that says on which shard a row lives."""

    name: str
    create: str
    column: str


CUSTOMERS_TABLE: Final = "CREATE TABLE customers (customer_id BIGINT PRIMARY KEY, name VARCHAR(50), v INT)"
"""Every table of a sharded keyspace has the sharding column."""

TABLES: Final = (
    ShardedTable("customers", CUSTOMERS_TABLE, "customer_id"),
    ShardedTable("orders", ORDERS_TABLE, "customer_id"),
)


@dataclass(frozen=True, slots=True)
class Shard:
    """A primary and its replicas. ``number`` is the shard's own in its cluster, and its GTID domain on MariaDB."""

    name: str
    number: int
    primary: DatabaseServer
    replicas: tuple[DatabaseServer, ...]

    @property
    def key_range(self) -> KeyRange:
        return KeyRange.parse(self.name)

    @property
    def servers(self) -> tuple[DatabaseServer, ...]:
        return (self.primary, *self.replicas)

    def contains(self, value: object) -> bool:
        """Whether a row with this value in its sharding column lives here."""
        return self.key_range.contains(keyspace_id(FUNCTION, value))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All rows on the primary, by their first column."""
        return self.primary.execute(f"SELECT * FROM {table} ORDER BY 1", database=SCHEMA)

    def wait_caught_up(self) -> None:
        """Return when the replicas have what the primary has by now."""
        for replica in self.replicas:
            replica.wait_caught_up(self.primary)


# -- servers ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cluster:
    """The shards of one test. ``shards`` are all that run, also those that serve no longer or not yet."""

    flavor: Flavor
    replicas: int = 1
    tables: Sequence[ShardedTable] = TABLES
    shards: list[Shard] = field(default_factory=list)
    _started: int = 0

    def start(self, names: Sequence[str], *, has_tables: bool = True) -> list[Shard]:
        """Start shards side by side; without tables they wait for those of the shards that they will follow."""
        assert self.replicas < SERVERS_PER_SHARD_MAX
        started = [self._make(name) for name in names]
        self.shards.extend(started)
        servers = [server for shard in started for server in shard.servers]
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
            _make_writer(server)
        for shard in started:
            if has_tables:
                self._make_tables(shard.primary)
            for replica in shard.replicas:
                replica.replicate_from(shard.primary)
            shard.wait_caught_up()
        return started

    def stop(self, shards: Iterable[Shard]) -> None:
        """End the servers of shards that nobody needs any more."""
        for shard in tuple(shards):
            for server in reversed(shard.servers):
                server.stop()
            self.shards.remove(shard)

    def _make(self, name: str) -> Shard:
        self._started += 1
        number = self._started
        # A source drops transactions that carry its own server id, and MariaDB orders GTIDs inside a domain only:
        # both are unique in the cluster. Shards with a common past send the same transactions to the one that they
        # are merged into.
        options = (f"--gtid-domain-id={number}", "--gtid-ignore-duplicates=1") if self.flavor == "mariadb" else ()
        servers = [
            make_database(self.flavor, server_id=number * SERVERS_PER_SHARD_MAX + index, options=options)
            for index in range(1 + self.replicas)
        ]
        return Shard(name, number, servers[0], tuple(servers[1:]))

    def _make_tables(self, primary: DatabaseServer) -> None:
        # "if not exists", because the logs of two shards may meet in one that follows both.
        primary.execute(f"CREATE DATABASE IF NOT EXISTS {SCHEMA}")
        for table in self.tables:
            statement = table.create.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
            primary.execute(statement, database=SCHEMA)


def _make_writer(server: DatabaseServer) -> None:
    with server.connect(user="root") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"CREATE USER {WRITER}@'%%' IDENTIFIED BY %s", (WRITER,))
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {SCHEMA}.* TO {WRITER}@'%'")
        if server.flavor == "mariadb":
            # It has no super_read_only: with this privilege app, as whom heartbeats are written, would go on.
            cursor.execute("REVOKE READ_ONLY ADMIN ON *.* FROM app@'%'")


@contextmanager
def start_shards(
    flavor: Flavor, names: Sequence[str], *, replicas: int = 1, tables: Sequence[ShardedTable] = TABLES
) -> Iterator[Cluster]:
    """A cluster with these shards, its ``shards`` in this order, with empty tables; all is stopped at the end."""
    cluster = Cluster(flavor, replicas, tables)
    try:
        cluster.start(names)
        yield cluster
    finally:
        cluster.stop(cluster.shards)


# -- writing ------------------------------------------------------------------------------------------------------


class ShardRouter:
    """Sends each write to the shard of its keyspace id, and holds it back while that one is read-only.

    For several threads. Raises `ServerFailed` unless the shards hold every keyspace id exactly once.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards: tuple[Shard, ...] = ()
        self.switch(shards)

    def switch(self, shards: Sequence[Shard]) -> None:
        """From now on these serve."""
        ordered = sorted(shards, key=lambda shard: shard.key_range.start)
        starts = [shard.key_range.start for shard in ordered]
        ends = [shard.key_range.end for shard in ordered]
        if not ordered or [b"", *ends] != [*starts, b""] or b"" in ends[:-1]:
            raise ServerFailed(
                f"shards {[shard.name for shard in shards]} do not hold every key exactly once",
                hint='expected ranges that follow each other, as in "-80" and "80-"',
            )
        self.shards = tuple(ordered)

    def find(self, value: object) -> Shard:
        """The shard that serves rows with this value in their sharding column."""
        place = keyspace_id(FUNCTION, value)
        return next(shard for shard in self.shards if shard.key_range.contains(place))

    def execute(self, value: object, sql: str, *arguments: Any) -> int:
        """One statement, committed, where rows with this value live; the number of rows that it changed."""

        def attempt() -> tuple[int] | None:
            with self.find(value).primary.connect(SCHEMA, user=WRITER) as connection, connection.cursor() as cursor:
                try:
                    return (cursor.execute(sql, arguments),)
                except pymysql.MySQLError as error:
                    if error.args[0] not in READ_ONLY_ERRORS:
                        raise
                    return None

        [changed] = wait_until(attempt, f"the shard of {value} may be written")
        return changed


class Writer(threading.Thread):
    """Inserts, updates and deletes customers and their orders through a router until it is stopped.

    ``expected`` is what the tables must then hold, by table and primary key. One thread, so it is exact. ``changed``:
    the numbers of the writes that change a customer, from before they are committed; ``v`` is that of the last one.
    """

    def __init__(self, router: ShardRouter, *, customers: int = 60, seed: int = 1) -> None:
        super().__init__(name="writer", daemon=True)
        self.expected: dict[str, dict[int, tuple[Any, ...]]] = {"customers": {}, "orders": {}}
        self.changed: dict[int, list[int]] = {}
        self.writes = 0
        self.error: BaseException | None = None
        self._router = router
        self._customers = customers
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._pause = threading.Lock()

    def run(self) -> None:
        try:
            for _ in range(WRITES_MAX):
                if self._ending.is_set():
                    return
                with self._pause:
                    self._write()
                    self.writes += 1
                time.sleep(BREATH_SECONDS)
            raise ServerFailed(f"nobody stopped the writer within {WRITES_MAX} writes")
        except BaseException as error:  # noqa: BLE001 - raised again in stop() and wait_for()
            self.error = error

    def wait_for(self, writes: int) -> None:
        """Return when that many more were written."""
        target = self.writes + writes

        def is_there() -> bool:
            self._raise()
            return self.writes >= target

        wait_until(is_there, f"{writes} more writes", lambda: f"{self.writes} of {target}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written until the block ends; earlier writes are committed."""
        with self._pause:
            yield

    def stop(self) -> None:
        """Stop after the write that is under way. Raises what ended the thread before."""
        self._ending.set()
        wait_until(lambda: not self.is_alive(), "the writer has stopped")
        self._raise()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def _write(self) -> None:
        customer = self._random.randrange(1, self._customers + 1)
        customers, orders = self.expected["customers"], self.expected["orders"]
        choice = self._random.random()
        if customer not in customers or choice < 0.6:
            self.changed.setdefault(customer, []).append(self.writes)
        if customer not in customers:
            row = (customer, f"customer {customer}", self.writes)
            self._execute(customer, "INSERT INTO customers VALUES (%s, %s, %s)", *row)
            customers[customer] = row
        elif choice < 0.5:
            row = (customer, customers[customer][1], self.writes)
            self._execute(customer, "UPDATE customers SET v = %s WHERE customer_id = %s", self.writes, customer)
            customers[customer] = row
        elif choice < 0.6:
            self._execute(customer, "DELETE FROM customers WHERE customer_id = %s", customer)
            del customers[customer]
        elif choice < 0.9:
            order = (self.writes + 1, customer, self._random.randrange(1000))
            self._execute(customer, "INSERT INTO orders VALUES (%s, %s, %s)", *order)
            orders[order[0]] = order
        elif owned := [each for each in orders.values() if each[1] == customer]:
            self._change_orders(customer, owned, is_deleting=choice >= 0.95)

    def _change_orders(self, customer: int, owned: Sequence[tuple[Any, ...]], *, is_deleting: bool) -> None:
        """Delete one, or change all of them in one statement."""
        orders = self.expected["orders"]
        if is_deleting:
            self._execute(customer, "DELETE FROM orders WHERE id = %s", owned[0][0])
            del orders[owned[0][0]]
            return
        sql = "UPDATE orders SET total = total + 1000 WHERE customer_id = %s"
        self._execute(customer, sql, customer, rows=len(owned))
        orders.update({key: (key, owner, total + 1000) for key, owner, total in owned})

    def _execute(self, customer: int, sql: str, *arguments: Any, rows: int = 1) -> None:
        changed = self._router.execute(customer, sql, *arguments)
        if changed != rows:
            raise ServerFailed(f"{changed} rows instead of {rows} for customer {customer}: {sql} {arguments}")


@contextmanager
def writing(router: ShardRouter) -> Iterator[Writer]:
    """A writer at work, stopped at the end if it was not before."""
    writer = Writer(router)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


# -- resharding ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reshard:
    """``sources`` serve until the switch, ``destinations`` from then on; together they cover the same range."""

    cluster: Cluster
    sources: tuple[Shard, ...]
    destinations: tuple[Shard, ...]
    keeps_gtids: bool

    def sources_of(self, destination: Shard) -> tuple[Shard, ...]:
        """Those that hold some of its rows."""
        return tuple(each for each in self.sources if each.key_range.overlaps(destination.key_range))


def prepare_replicated(cluster: Cluster, sources: Sequence[Shard], names: Sequence[str]) -> Reshard:
    """Start destinations that follow the sources; return when they have what was executed there by now.

    They hold rows of others until they are promoted. A source's log must reach back to its start.
    """
    destinations = cluster.start(names, has_tables=False)
    reshard = Reshard(cluster, tuple(sources), tuple(destinations), keeps_gtids=True)
    mode = "replica_exec_mode" if cluster.flavor == "mysql" else "slave_exec_mode"
    for destination in destinations:
        followed = reshard.sources_of(destination)
        if len(followed) > 1:
            # Sources without a common past have a heartbeat table with an epoch row each: the second replaces the
            # first. Filtering the table instead would leave gaps in MariaDB's log, at which no consumer can resume.
            destination.primary.execute(f"SET GLOBAL {mode} = 'IDEMPOTENT'")
        for source in followed:
            destination.primary.add_source(f"shard_{source.number}", source.primary)
    _wait_replicated(reshard)
    return reshard


def prepare_copied(cluster: Cluster, sources: Sequence[Shard], names: Sequence[str]) -> Reshard:
    """Start destinations with tables of their own and copy the rows that the sources have by now."""
    destinations = cluster.start(names)
    reshard = Reshard(cluster, tuple(sources), tuple(destinations), keeps_gtids=False)
    _copy_changes(reshard)
    return reshard


def stop_writes(reshard: Reshard) -> None:
    """Make the sources read-only, for ``app`` too; return when no write is under way. They never serve again."""
    option = "super_read_only" if reshard.cluster.flavor == "mysql" else "read_only"
    for source in reshard.sources:
        with source.primary.connect(user="root") as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL {option} = 1")


def catch_up(reshard: Reshard) -> None:
    """Return when the destinations, replicas too, have all that the sources have. Call it after `stop_writes`."""
    if reshard.keeps_gtids:
        _wait_replicated(reshard)
    else:
        _copy_changes(reshard)
        for destination in reshard.destinations:
            destination.wait_caught_up()


def promote(reshard: Reshard, *, is_logged: bool = False) -> None:
    """The destinations follow nobody any more and lose the rows of others.

    ``is_logged``: see `drop_foreign_rows`.
    """
    for destination in reshard.destinations:
        if reshard.keeps_gtids:
            destination.primary.remove_sources()
            drop_foreign_rows(destination, reshard.cluster.tables, is_logged=is_logged)


def switch(reshard: Reshard, router: ShardRouter) -> None:
    """Writes go to the destinations from now on."""
    router.switch([*(each for each in router.shards if each not in reshard.sources), *reshard.destinations])


def cut_over(reshard: Reshard, router: ShardRouter, *, is_logged: bool = False) -> None:
    """All steps after the preparation."""
    stop_writes(reshard)
    catch_up(reshard)
    promote(reshard, is_logged=is_logged)
    switch(reshard, router)


def drop_foreign_rows(shard: Shard, tables: Sequence[ShardedTable], *, is_logged: bool) -> None:
    """Delete the rows outside the shard's range. The replicas must have caught up.

    Not logged, it is done on each server. Logged, the deletions stand in the log like anybody's: a shard that later
    follows this one and its sister from the start would then delete on behalf of each the rows of the other.
    """
    for server in (shard.primary,) if is_logged else shard.servers:
        with server.connect(SCHEMA) as connection, connection.cursor() as cursor:
            if not is_logged:
                cursor.execute("SET SESSION sql_log_bin = 0")
            for table in tables:
                cursor.execute(f"SELECT DISTINCT {table.column} FROM {table.name}")
                foreign = [value for (value,) in cursor.fetchall() if not shard.contains(value)]
                _delete(connection, table.name, table.column, foreign)
    shard.wait_caught_up()


def _wait_replicated(reshard: Reshard) -> None:
    for destination in reshard.destinations:
        for source in reshard.sources_of(destination):
            destination.primary.wait_caught_up(source.primary)
        destination.wait_caught_up()


def _copy_changes(reshard: Reshard) -> None:
    """Make every destination's tables what the sources' are in its range, with as few writes as it takes."""
    for destination in reshard.destinations:
        for table in reshard.cluster.tables:
            place = _find_column(destination, table)
            wanted = {
                row[0]: row
                for source in reshard.sources_of(destination)
                for row in source.rows(table.name)
                if destination.contains(row[place])
            }
            present = {row[0]: row for row in destination.rows(table.name)}
            changed = [row for key, row in wanted.items() if present.get(key) != row]
            with destination.primary.connect(SCHEMA) as connection:
                key = _columns(destination, table)[0]
                _delete(connection, table.name, key, [each for each in present if each not in wanted])
                _replace(connection, table.name, changed)


def _columns(shard: Shard, table: ShardedTable) -> list[str]:
    return [str(name) for name, *_ in shard.primary.execute(f"SHOW COLUMNS FROM {SCHEMA}.{table.name}")]


def _find_column(shard: Shard, table: ShardedTable) -> int:
    return _columns(shard, table).index(table.column)


def _delete(connection: Connection, table: str, column: str, values: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        for start in range(0, len(values), BATCH_ROWS):
            batch = values[start : start + BATCH_ROWS]
            cursor.execute(f"DELETE FROM {table} WHERE {column} IN ({', '.join(['%s'] * len(batch))})", batch)


def _replace(connection: Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    with connection.cursor() as cursor:
        for start in range(0, len(rows), BATCH_ROWS):
            batch = rows[start : start + BATCH_ROWS]
            cursor.executemany(f"REPLACE INTO {table} VALUES ({', '.join(['%s'] * len(batch[0]))})", batch)
