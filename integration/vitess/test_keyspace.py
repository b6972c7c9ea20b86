"""A keyspace of flavor "vitess" from configuration to cache: invalidator, `Cache` and verbs, against stand-ins.

No part of Vitess runs here. Two real MySQL servers are the primaries of two shards: a database named as vtgate
names its targets (``shop:-80@primary``) holds the tables, and is read. ``shop`` has empty tables of which only the
schema is read. The stand-in for vtgate's gRPC side (``integration/servers/vtgate.py``) sends what is in the
servers' binary logs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from appclient import Cache
from freshness.config.config import Config, load_config
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.schema import keyspace_id
from freshness.errors import SourceUnsuitable
from freshness.keys.keyrange import KeyRange
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from freshness.stream.source import Transaction
from integration.configuration import write_sharded_config
from integration.harness import CACHE, ORDERS_TABLE, STREAM, call_cli, wait_covered, wait_for_hits, wait_until
from integration.servers import DatabaseServer, Memcached
from integration.servers.program import InvalidatorProcess
from integration.servers.vtgate import (
    KEYSPACE,
    Fail,
    Step,
    Vtgate,
    begin,
    change,
    column,
    commit,
    ddl,
    event,
    fields,
    heartbeat,
    image,
    journal,
    response,
    rows,
)
from integration.shards import CUSTOMERS_TABLE, Shard, start_shards
from invalidator.archive.reader import open_archive
from invalidator.archive.record import record
from invalidator.binlog.source import BinlogSource
from invalidator.process.app import Invalidator
from invalidator.process.status import read_nodes
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery
from invalidator.stream.refresh import RefreshedStream
from invalidator.stream.update_stream import UpdateStream
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.reader import ShardsMoved

NAMES: Final = ("-80", "80-")
TABLES: Final = frozenset(("customers", "orders", "freshness_heartbeat"))
CUSTOMERS: Final = range(1, 41)
CUT_AFTER: Final = 40
"""Responses after which the stand-in ends a stream, as one that is too old."""

OBJECTS: Final = """[objects.customer]
table = "customers"
[objects.order]
table = "orders"
[objects.profile]
key = "customer_id"
members = { customers = "customer_id", orders = "customer_id" }
[objects.customer_named]
table = "customers"
key = ["name", "customer_id"]
[objects.orders_of]
table = "orders"
key = "customer_id"
order_by = "total desc"
limit = 3
[objects.basket]
key = ["customer_id", "total"]
members = { orders = ["customer_id", "total"] }
"""
OPERATOR: Final = 4


def target(shard: Shard, kind: str = "primary") -> str:
    return f"{KEYSPACE}:{shard.name}@{kind}"


class WholeLog(BinlogSource):
    """Rows of the heartbeats' table are rows like all others."""

    heartbeat_table = "none"


@dataclass
class Relay:
    """Plays the log of each shard's server as vtgate would, with the columns that are asked for. ``journals``, by
    shard: comes behind what was in the log when it was set, and then nothing more."""

    servers: dict[str, DatabaseServer]
    journals: dict[str, tuple[Position, pb.VEvent]] = field(default_factory=dict)

    def __call__(self, request: pb.VStreamRequest) -> Iterator[Step]:
        (entry,) = request.vgtid.shard_gtids
        server = self.servers[entry.shard]
        columns = {rule.match: _chosen(rule.filter) for rule in request.filter.rules}
        address = ServerAddress("127.0.0.1", server.port, "app", "app", f"{KEYSPACE}:{entry.shard}@primary")
        source = WholeLog(address, "mysql", TABLES)
        position = parse_position("mysql", entry.gtid.removeprefix("MySQL56/"))
        source.open(position)
        try:
            for _ in range(CUT_AFTER):
                end = self.journals.get(entry.shard)
                if end is not None and position.contains(end[0]):
                    yield response(begin(entry.shard), end[1], _reached(entry.shard, position), commit(entry.shard))
                    return
                for transaction in source.poll(0.2, 1):
                    position = position.union(transaction.position)
                    yield from _play(entry.shard, transaction, position, columns)
                yield heartbeat()
            yield Fail(grpc.StatusCode.UNAVAILABLE, "transport is closing: max_age")
        finally:
            source.close()


def _chosen(sql: str) -> list[str] | None:
    head = sql.partition(" from ")[0]
    return None if head == "select *" else re.findall(r"`([^`]+)`", head)


def _reached(shard: str, position: Position) -> pb.VEvent:
    entry = pb.ShardGtid(keyspace=KEYSPACE, shard=shard, gtid=f"MySQL56/{position}")
    return event(pb.VGTID, shard, vgtid=pb.VGtid(shard_gtids=[entry]))


def _play(
    shard: str, transaction: Transaction, position: Position, wanted: dict[str, list[str] | None]
) -> Iterator[Step]:
    if transaction.raised_tables:
        tables = ", ".join(sorted(transaction.raised_tables & wanted.keys()))
        statement = ddl(0, f"DROP TABLE {tables}", shard).events[1]
        yield response(_reached(shard, position), *([statement] if tables else []))
        return
    events = [begin(shard)]
    for each in transaction.changes:
        if each.table not in wanted:
            continue
        names = wanted[each.table] or list(each.after or each.before or {})
        kinds = [265 if _is_number(each, name) else 6165 for name in names]
        described = [column(name, kind, charset=255) for name, kind in zip(names, kinds, strict=True)]
        images = [
            None if row is None else image(*(_text(row[name]) for name in names)) for row in (each.before, each.after)
        ]
        events += [fields(each.table, described, shard), rows(each.table, change(*images), shard=shard)]
    yield response(*events, _reached(shard, position), commit(shard))


def _is_number(change: Any, name: str) -> bool:
    return isinstance((change.after or change.before)[name], int)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# -- the deployment --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards() -> Iterator[list[Shard]]:
    with start_shards("mysql", NAMES, replicas=0) as cluster:
        for shard in cluster.shards:
            prepare(shard)
        yield cluster.shards


def prepare(shard: Shard) -> None:
    primary = target(shard)
    server = shard.primary
    server.execute(f"CREATE DATABASE `{primary}`")
    for create in (CUSTOMERS_TABLE, ORDERS_TABLE):
        server.execute(create, database=primary)
    heartbeats = HeartbeatWriter(ServerAddress("127.0.0.1", server.port, "app", "app", primary), "mysql", "test", 0)
    heartbeats.prepare()
    heartbeats.close()


@dataclass
class Deployment:
    shards: list[Shard]
    vtgate: Vtgate
    relay: Relay
    node: Memcached
    path: Path

    @property
    def config(self) -> Config:
        return load_config(self.path)

    def execute(self, customer: int, sql: str, *arguments: Any) -> None:
        (shard,) = [each for each in self.shards if each.contains(customer)]
        shard.primary.execute(sql, *arguments, database=target(shard))

    def read_all(self, table: str, key: str) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for shard in self.shards:
            names = [name for name, *_ in shard.primary.execute(f"SHOW COLUMNS FROM {table}", database="shop")]
            for row in shard.primary.execute(f"SELECT * FROM {table}", database=target(shard)):
                named = dict(zip(names, row, strict=True))
                found[named[key]] = named
        return found

    def heads(self) -> dict[str, Position]:
        return {f"shop/{shard.name}": parse_position("mysql", shard.primary.executed()) for shard in self.shards}


@contextmanager
def deployed(shards: list[Shard], folder: Path, *, login: str = "app:secret@") -> Iterator[Deployment]:
    for shard in shards:
        for table in ("customers", "orders"):
            shard.primary.execute(f"DELETE FROM {table}", database=target(shard))
    relay = Relay({shard.name: shard.primary for shard in shards})
    with Vtgate(then=relay, users={"app": "secret"}) as vtgate, Memcached() as node:
        path = write_sharded_config(
            folder,
            "vitess",
            [
                {
                    "name": shard.name,
                    "primary": shard.primary.url,
                    "vtgate": f"vitess://{login}127.0.0.1:{vtgate.port}/{KEYSPACE}?tablet_type=primary",
                }
                for shard in shards
            ],
            [node.address],
            column="customer_id",
            objects=OBJECTS,
            cache=CACHE,
            stream=STREAM,
        )
        yield Deployment(shards, vtgate, relay, node, path)


def open_cache(path: Path) -> Cache:
    cache = Cache.open(path)

    @cache.loader("profile")
    def load_profile(db: Any, customer_id: int) -> dict[str, Any]:
        orders = db.query("SELECT id, total FROM orders WHERE customer_id = %s ORDER BY id", (customer_id,))
        customer = db.query_one("SELECT name, v FROM customers WHERE customer_id = %s", (customer_id,))
        return {"customer": customer, "orders": orders}

    @cache.loader("basket")
    def load_basket(db: Any, customer_id: int, total: int) -> list[int]:
        found = db.query("SELECT id FROM orders WHERE customer_id = %s AND total = %s", (customer_id, total))
        return [row["id"] for row in found]

    return cache


def test_from_vitess_to_the_cache(shards: list[Shard], tmp_path: Path) -> None:
    """Rows of one shard, rows that can be on any, and composites; through breaks of the stream."""
    with ExitStack() as stack:
        made = stack.enter_context(deployed(shards, tmp_path))
        for key in CUSTOMERS:
            made.execute(key, "INSERT INTO customers VALUES (%s, %s, 0)", key, f"customer {key}")
            made.execute(key, "INSERT INTO orders VALUES (%s, %s, %s)", 100 + key, key, key)
        invalidator = stack.enter_context(InvalidatorProcess(made.path))
        cache = open_cache(made.path)
        stack.callback(cache.close)
        orders = [100 + key for key in CUSTOMERS]
        baskets = [(key, key + more) for key in CUSTOMERS[:10] for more in range(6)]
        asked: list[tuple[str, Sequence[Any]]] = [("customer", CUSTOMERS), ("profile", CUSTOMERS)]
        asked += [("order", orders), ("basket", baskets), ("orders_of", CUSTOMERS)]
        named = [(f"customer {key}", key) for key in CUSTOMERS]
        asked.append(("customer_named", named))
        for turn in range(1, 6):
            for name, keys in asked:
                wait_for_hits(cache, name, keys, invalidator.log)
            for key in CUSTOMERS[turn::3]:
                made.execute(key, "UPDATE customers SET v = %s WHERE customer_id = %s", turn, key)
                made.execute(key, "UPDATE orders SET total = total + 1 WHERE id = %s", 100 + key)
            wait_covered(made.config, made.heads(), invalidator.log)
            wanted = made.read_all("customers", "customer_id")
            assert cache.get_many("customer", CUSTOMERS) == wanted
            assert cache.get_many("order", orders) == made.read_all("orders", "id")
            assert cache.get_many("customer_named", named) == {each: wanted[each[1]] for each in named}
            lists = cache.get_many("orders_of", CUSTOMERS)
            found = {(key, row["id"]): row for key, rows in lists.items() for row in rows}
            assert found == {(row["customer_id"], id): row for id, row in made.read_all("orders", "id").items()}
            profiles = cache.get_many("profile", CUSTOMERS)
            assert {key: each["customer"]["v"] for key, each in profiles.items()} == {
                key: row["v"] for key, row in wanted.items()
            }
            # An order moves from one basket to the next by the second column of their key.
            stored = made.read_all("orders", "id").values()
            placed = {(row["customer_id"], row["total"]): [row["id"]] for row in stored}
            assert cache.get_many("basket", baskets) == {key: placed.get(key, []) for key in baskets}
        assert all(len(cache.lookups.find("basket", key).policy.lineages) == 1 for key in baskets), "of one shard"
        assert len(made.vtgate.requests) > len(NAMES), "streams were opened again"
        shard = made.shards[0]
        answer = cache.database().query(
            "SELECT COUNT(*) AS n FROM customers", shard=shard.name, include_event_token=True
        )
        assert answer.rows == [{"n": len([key for key in CUSTOMERS if shard.contains(key)])}]
        token = answer.extras.event_token
        assert isinstance(token, EventToken)
        assert (token.lineage, token.epoch, token.position.flavor) == ("shop/-80", 1, "mysql")
        assert call_cli("check", "-c", made.path).stdout == "findings: 0\n"
        shown = call_cli("inspect", "customer", "1", "-c", made.path).stdout
        assert "equals_primary: True" in shown
        assert '"verdict": "stored"' in shown
        assert call_cli("invalidate", "customer", "1", "-c", made.path).returncode == 0


class Running:
    """The invalidator in this process, and what ended it."""

    def __init__(self, config: Config) -> None:
        self.invalidator = Invalidator(config)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.invalidator.stop()
        self.join()

    def join(self) -> None:
        wait_until(lambda: not self._thread.is_alive(), "the invalidator has ended")

    def find_error(self, lineage: str) -> str:
        (worker,) = [each for each in self.invalidator.workers if each.assignment.shard.lineage == lineage]
        return worker.last_error

    def is_streaming(self) -> bool:
        workers = self.invalidator.workers
        return bool(workers) and all(each.is_streaming for each in workers)

    def _run(self) -> None:
        try:
            self.invalidator.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error


def move(made: Deployment, shard: Shard, *news: str) -> Position:
    """vtgate says that the shard was replaced, behind all that was written by now."""
    end = parse_position("mysql", shard.primary.executed())
    made.relay.journals[shard.name] = end, journal([shard.name], dict.fromkeys(news, 3), shard.name)
    return end


def test_a_shard_that_moved_ends_its_worker_alone(shards: list[Shard], tmp_path: Path) -> None:
    """Everything before was applied; the error says what to do; the invalidator ends with the last worker."""
    with deployed(shards, tmp_path) as made, Running(made.config) as running:
        wait_until(running.is_streaming, "both shards are followed")
        one, two = made.shards
        made.execute(_customer_of(one), "INSERT INTO customers VALUES (%s, 'x', 0)", _customer_of(one))
        end = move(made, one, "-40", "40-80")
        wait_until(lambda: "were replaced by -40, 40-80" in running.find_error("shop/-80"), "the worker ended")
        assert "freshness.toml" in running.find_error("shop/-80")
        states = {node["lineage"]: node for node in read_nodes(made.config)}
        assert parse_position("mysql", states["shop/-80"]["progress"]).contains(end)
        made.execute(_customer_of(two), "INSERT INTO customers VALUES (%s, 'x', 0)", _customer_of(two))
        head = made.heads()["shop/80-"]

        def is_applied() -> bool:
            states = {node["lineage"]: node for node in read_nodes(made.config)}
            return parse_position("mysql", states["shop/80-"]["progress"]).contains(head)

        wait_until(is_applied, "the other shard goes on")
        assert running.error is None
        move(made, two, "80-c0", "c0-")
        running.join()
        assert isinstance(running.error, ShardsMoved)
        assert running.error.exit_code == OPERATOR


def _customer_of(shard: Shard) -> int:
    return next(key for key in CUSTOMERS if shard.contains(key))


def test_what_vtgate_refuses_ends_the_invalidator(shards: list[Shard], tmp_path: Path) -> None:
    with deployed(shards, tmp_path, login="app:wrong@") as made, Running(made.config) as running:
        running.join()
        assert isinstance(running.error, SourceUnsuitable)
        assert "check user and password" in running.error.hint


def test_the_merged_stream_of_a_keyspace(shards: list[Shard], tmp_path: Path) -> None:
    """From a time on, for a key range, and on from where it was."""
    with deployed(shards, tmp_path) as made:
        opener = StreamOpener(lambda: made.config)
        begun = datetime.now(UTC).isoformat()
        for key in CUSTOMERS:
            made.execute(key, "INSERT INTO customers VALUES (%s, %s, 100)", key, f"customer {key}")
        with closing(opener.open(StreamQuery("shop", since=begun)).stream) as stream:
            # The shards are younger than the margin of the search: it begins where their logs do
            _read_customers(stream, {(key, 100) for key in CUSTOMERS})
            resume = stream.resume
        for key in CUSTOMERS:
            made.execute(key, "UPDATE customers SET v = 101 WHERE customer_id = %s", key)
        wanted = {(key, 101) for key in CUSTOMERS}
        with closing(opener.open(StreamQuery("shop", since=resume.format())).stream) as stream:
            assert _read_customers(stream, wanted) == wanted
        half = KeyRange.parse("-40")
        inside = {(key, v) for key, v in wanted if half.contains(keyspace_id("hash", key))}
        assert 0 < len(inside) < len(CUSTOMERS)
        with closing(opener.open(StreamQuery("shop", "-40", resume)).stream) as stream:
            assert _read_customers(stream, inside) == inside
        token = opener.read_token("shop", "-80")
        assert token.position.contains(parse_position("mysql", shards[0].primary.executed()))


def _read_customers(stream: UpdateStream | RefreshedStream, wanted: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """(customer_id, v) of the rows that come, until all these have."""
    found: set[tuple[int, int]] = set()

    def has_come() -> bool:
        message = stream.poll(0.2)
        changes = message.transaction.changes if message is not None else ()
        rows: list[Any] = [each.after for each in changes if each.table == "customers"]
        found.update((row["customer_id"], row["v"]) for row in rows if row is not None)
        return wanted <= found

    wait_until(has_come, "all rows have come", lambda: f"{wanted - found} {stream.status()}")
    return found


def test_the_archive_of_a_keyspace_is_replayed(shards: list[Shard], tmp_path: Path) -> None:
    with deployed(shards, tmp_path) as made:
        folder, begun = tmp_path / "archive", datetime.now(UTC).isoformat()
        for key in CUSTOMERS:
            made.execute(key, "INSERT INTO customers VALUES (%s, %s, 0)", key, f"customer {key}")
        heads, reached = made.heads(), dict[str, Position]()

        def report(_: object, opened: OpenedStream) -> None:
            tokens = opened.stream.resume.tokens
            reached.update((lineage, token.position) for lineage, token in tokens.items())

        def is_recorded() -> bool:
            return all(lineage in reached and reached[lineage].contains(heads[lineage]) for lineage in heads)

        record(StreamOpener(lambda: made.config), folder, "shop", begun, is_recorded, report)
        archived: list[Any] = [
            change.after
            for lineage in open_archive(folder)
            for message in lineage.messages()
            for change in message.transaction.changes
            if change.table == "customers" and change.after is not None
        ]
        assert set(CUSTOMERS) <= {row["customer_id"] for row in archived}
        replayed = call_cli("replay", folder, "-c", made.path, "--json")
        assert replayed.returncode == 0, replayed.stderr


def test_a_tablet_that_would_lose_invalidations_is_refused(shards: list[Shard], tmp_path: Path) -> None:
    with deployed(shards, tmp_path) as made:
        server, database = shards[0].primary, target(shards[0])
        server.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
        server.execute("CREATE TABLE parents (id BIGINT PRIMARY KEY)", database=database)
        server.execute(
            "ALTER TABLE orders ADD CONSTRAINT lost FOREIGN KEY (customer_id) REFERENCES parents (id)"
            " ON DELETE CASCADE",
            database=database,
        )
        try:
            checked = call_cli("check", "-c", made.path)
        finally:
            server.execute("ALTER TABLE orders DROP FOREIGN KEY lost", database=database)
            server.execute("DROP TABLE parents", database=database)
            server.execute("SET GLOBAL binlog_row_image = 'FULL'")
        assert checked.returncode == OPERATOR
        assert "F35" in checked.stdout
        assert "F23" in checked.stdout
