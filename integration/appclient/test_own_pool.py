"""Misses by the application's own pool: the same values and tokens as by this library's connections, and the session
as it was before."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pymysql
import pytest
import sqlalchemy
from pymysql.constants import FIELD_TYPE
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from appclient import Cache, OwnPool, ReadOutcome, SourceUnsuitable
from freshness.errors import ConfigError
from integration.appclient.tasks import loop_cache
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_for_outcome
from integration.servers import Flavor, Pair

THINGS = """CREATE TABLE things (
    id INT PRIMARY KEY, tiny TINYINT, big BIGINT UNSIGNED, price DECIMAL(9, 2), note VARCHAR(50), body TEXT,
    data VARBINARY(20), picture BLOB, day DATE, at_time DATETIME(3), since TIMESTAMP NULL, span TIME(2),
    kind ENUM('a', 'b'), yes BOOLEAN, f FLOAT, d DOUBLE, y YEAR, doc JSON, fixed CHAR(10)
) CHARACTER SET utf8mb4"""
ROW = """INSERT INTO things VALUES (
    {id}, -5, 18446744073709551615, '12.30', 'é \U0001f30d', 'text', x'00ff', x'80', '2026-01-02',
    '2026-01-02 03:04:05.678', '2026-06-01 12:00:00', '-26:00:01.5', 'b', 1, 1.5, 0.1, 2026, '{{"a": [1]}}', 'x')"""
BITS = "CREATE TABLE flags (id INT PRIMARY KEY, b BIT(3))"
TOKENS = "CREATE TABLE tokens (id VARBINARY(8) PRIMARY KEY, v INT)"
OBJECTS = CUSTOMER + "".join(
    f'[objects.{table[:-1]}]\ntable = "{table}"\n' for table in ("things", "flags", "tokens")
)
SESSION = "SELECT @@autocommit, @@time_zone, @@sql_mode"
ODD = "SET SESSION autocommit = 0, time_zone = '+05:00', sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES'"


@pytest.fixture(scope="module")
def systems(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Flavor], System]]:
    running: dict[Flavor, Any] = {}

    def start(flavor: Flavor) -> System:
        if flavor not in running:
            pair: Pair = request.getfixturevalue(f"{flavor}_pair")
            pair.primary.execute("DROP DATABASE IF EXISTS shop")
            pair.primary.execute("CREATE DATABASE shop")
            manager = running_system(
                pair, tmp_path_factory.mktemp(flavor), tables=(CUSTOMERS_TABLE, THINGS, BITS, TOKENS), objects=OBJECTS
            )
            running[flavor] = (manager, manager.__enter__())
        started: System = running[flavor][1]
        return started

    yield start
    for manager, _ in running.values():
        manager.__exit__(None, None, None)


@pytest.fixture
def system(systems: Callable[[Flavor], System], flavor: Flavor) -> System:
    return systems(flavor)


class Taken:
    """How many connections were taken, and the session of each as it was given back."""

    def __init__(self) -> None:
        self.count = 0
        self.given_back: list[Any] = []


def session_of(connection: Any) -> tuple[Any, ...]:
    cursor = connection.cursor()
    cursor.execute(SESSION)
    [row] = cursor.fetchall()
    cursor.close()
    return tuple(row)


def open_odd(port: int) -> Any:
    connection = pymysql.connect(
        host="127.0.0.1", port=port, user="app", password="app", database="shop", charset="utf8mb4"
    )
    with connection.cursor() as cursor:
        cursor.execute(ODD)
    return connection


def odd_pool(port: int, taken: Taken) -> OwnPool:
    """An application that has one connection, with a session that would spoil values and tokens."""
    idle: deque[Any] = deque([open_odd(port)])
    discarded: list[Any] = []

    def take() -> Any:
        taken.count += 1
        return idle.pop() if idle else open_odd(port)

    def give_back(connection: Any) -> None:
        taken.given_back.append(session_of(connection))
        connection.rollback()
        idle.append(connection)

    return OwnPool(take, give_back, discarded.append, pymysql.Error)


@contextmanager
def open_with(kind: str, system: System) -> Iterator[tuple[Cache, Taken]]:
    """A cache whose misses go through a pool of that kind."""
    port, taken = system.pair.replica.port, Taken()
    server = f"127.0.0.1:{port}"

    def note(*_: Any) -> None:
        taken.count += 1

    if kind == "odd session":
        cache = Cache.open(system.config_path, pools={server: odd_pool(port, taken)})
        yield cache, taken
        cache.close()
    elif kind in ("pymysql", "mysqldb", "mysqlconnector"):
        engine = sqlalchemy.create_engine(
            f"mysql+{kind}://app:app@{server}/shop?charset=utf8mb4", pool_size=2, max_overflow=0
        )
        event.listen(engine, "checkout", note)
        cache = Cache.open(system.config_path, pools={server: engine})
        yield cache, taken
        cache.close()
        engine.dispose()
    else:
        async_engine = create_async_engine(f"mysql+{kind}://app:app@{server}/shop?charset=utf8mb4")
        event.listen(async_engine.sync_engine, "checkout", note)
        with loop_cache(system.config_path, pools={server: async_engine}) as on_loop:
            yield cast(Cache, on_loop), taken
            on_loop.run(async_engine.dispose())


KINDS = ["pymysql", "mysqldb", "mysqlconnector", "aiomysql", "asyncmy", "odd session"]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_this_librarys_connections(system: System, kind: str) -> None:
    key = KINDS.index(kind) + 1
    system.execute(ROW.format(id=key))
    system.settle()
    with open_with(kind, system) as (cache, taken):
        filled = wait_for_outcome(cache, "thing", key, [ReadOutcome.FILLED], system.describe)
        assert taken.count > 0, "the pool is used"
        assert set(filled.event_tokens) == {"shop/-"}
        plain = system.open_cache()
        [row] = plain.database().query("SELECT * FROM things WHERE id = %s", (key,)).rows
        assert filled.value == row
        assert {name: type(value) for name, value in filled.value.items()} == {
            name: type(value) for name, value in row.items()
        }
        assert row["since"] == datetime(2026, 6, 1, 12), "TIMESTAMP is in UTC"  # noqa: DTZ001
        hit = plain.get("thing", key, explain=True)
        assert (hit.outcome, hit.value) == (ReadOutcome.HIT, row)
        plain.close()


@pytest.mark.parametrize("kind", KINDS)
def test_binary_keys_and_parameters_find_their_rows(system: System, kind: str) -> None:
    keys = [bytes([KINDS.index(kind)]) + rest for rest in (b"\xff\x00", b"a'\\", b"%s%%", b"")]
    for number, key in enumerate(keys):
        system.execute(f"REPLACE INTO tokens VALUES (x'{key.hex()}', {number})")
    system.settle()
    with open_with(kind, system) as (cache, _):
        for number, key in enumerate(keys[:2]):
            assert cache.get("token", key) == {"id": key, "v": number}
        assert [row["v"] for row in cache.get_many("token", keys).values()] == [*range(len(keys))]
        database = cache.database()
        for params in ([b"%", "a"], [b"%", b"a"]):
            rows = database.query("SELECT HEX(%s) AS h, %s LIKE '%%a' AS fits", params).rows
            assert rows == [{"h": "25", "fits": 1}]
        assert database.query("SELECT HEX(%(b)s) AS h, %(a)s AS a", {"a": 1, "b": b"%"}).rows == [{"h": "25", "a": 1}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_miss_after_an_update_has_it(system: System, kind: str) -> None:
    key = 100 + KINDS.index(kind)
    system.execute(f"INSERT INTO customers VALUES ({key}, 'n', 0)")
    system.settle()
    with open_with(kind, system) as (cache, _):
        for version in range(1, 4):
            system.execute(f"UPDATE customers SET v = {version} WHERE id = {key}")
            system.settle()
            read = wait_for_outcome(cache, "customer", key, [ReadOutcome.FILLED], system.describe)
            assert read.value["v"] == version
            assert cache.get("customer", key, explain=True).outcome is ReadOutcome.HIT
        rows = cache.database().query("SELECT v FROM customers WHERE id = %s", (key,), include_event_token=True)
        assert rows.rows == [{"v": 3}]
        assert rows.extras.event_token is not None


def test_the_session_of_a_read_is_that_of_this_librarys_connections(system: System, flavor: Flavor) -> None:
    """Without autocommit the token is read in a snapshot that begins before it, and may have more than the rows."""
    isolation, reads = (
        ("transaction_isolation", "transaction_read_only, @@max_execution_time")
        if flavor == "mysql"
        else ("tx_isolation", "tx_read_only, @@max_statement_time")
    )
    asked = f"SELECT @@autocommit, @@time_zone, @@sql_mode, @@{isolation} AS i, @@{reads} AS m"
    plain = system.open_cache()
    [expected] = plain.database().query(asked).rows
    plain.close()
    with open_with("odd session", system) as (cache, taken):
        assert cache.database().query(asked).rows == [expected]
        assert taken.count == len(taken.given_back)
        [(autocommit, zone, mode)] = set(taken.given_back)
        assert (autocommit, zone) == (0, "+05:00")
        assert "PAD_CHAR_TO_FULL_LENGTH" in mode, "the session is as the application left it"


@pytest.mark.parametrize("kind", ["pymysql", "mysqldb", "mysqlconnector"])
def test_connections_that_were_closed_while_idle_are_replaced(system: System, kind: str) -> None:
    replica = system.pair.replica
    with open_with(kind, system) as (cache, _):
        assert cache.database().query("SELECT 1 AS one").rows == [{"one": 1}]
        for (number,) in replica.execute(
            "SELECT id FROM information_schema.processlist WHERE user = 'app' AND db = 'shop' AND command = 'Sleep'"
        ):
            replica.execute(f"KILL {number}")
        read = cache.database().query("SELECT 1 AS one", include_event_token=True)
        assert read.extras.server == f"127.0.0.1:{replica.port}", "no server was left for another one"


def test_a_driver_that_reads_other_types_is_refused(system: System) -> None:
    """A cached value is for all processes, so ``?`` in the place of a character must not be stored."""
    port = system.pair.replica.port
    for url in ("?charset=latin1", "?charset=utf8"):
        engine = sqlalchemy.create_engine(f"mysql+pymysql://app:app@127.0.0.1:{port}/shop{url}")
        with pytest.raises(SourceUnsuitable, match="charset=utf8mb4"):
            Cache.open(system.config_path, pools={f"127.0.0.1:{port}": engine}).database().query("SELECT 1")
        engine.dispose()


CONVERTERS: dict[str, dict[Any, Any]] = {
    "timestamp": {FIELD_TYPE.TIMESTAMP: str},
    "boolean": {FIELD_TYPE.TINY: bool},
    "double": {FIELD_TYPE.DOUBLE: Decimal},
    "json": {FIELD_TYPE.JSON: json.loads},
    "text": {FIELD_TYPE.BLOB: str},
    "key": {datetime: lambda value, _: f"'{value + timedelta(hours=5)}'"},
    "no text": {"use_unicode": False},
}


@pytest.mark.parametrize("kind", CONVERTERS)
def test_a_connection_with_types_of_the_applications_own_is_refused(system: System, kind: str) -> None:
    """One value is cached for all processes."""
    given, conversions = CONVERTERS[kind], dict(pymysql.converters.conversions)
    is_option = "use_unicode" in given
    connection = pymysql.connect(
        host="127.0.0.1",
        port=system.pair.replica.port,
        user="app",
        password="app",
        database="shop",
        charset="utf8mb4",
        **(given if is_option else {"conv": conversions | given}),
    )
    closed: list[Any] = []
    pool = OwnPool(lambda: connection, closed.append, closed.append, pymysql.Error)
    pools = {f"127.0.0.1:{system.pair.replica.port}": pool}
    with ExitStack() as stack:
        if kind != "json" or system.pair.primary.flavor == "mysql":  # MariaDB has no such type
            stack.enter_context(pytest.raises(SourceUnsuitable, match="where PyMySQL reads"))
        Cache.open(system.config_path, pools=pools).close()
    connection.close()


def test_a_bit_column_is_refused_of_other_drivers(system: System) -> None:
    system.execute("REPLACE INTO flags VALUES (1, 5)")
    system.settle()
    with open_with("pymysql", system) as (cache, _):
        assert cache.get("flag", 1) == {"id": 1, "b": b"\x05"}
    with open_with("mysqlconnector", system) as (other, _), pytest.raises(SourceUnsuitable, match="BIT column"):
        other.database().query("SELECT * FROM flags")


def test_a_connection_with_an_open_transaction_is_refused(system: System) -> None:
    port = system.pair.replica.port
    connection = open_odd(port)
    connection.begin()
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM customers")
    discarded: list[Any] = []
    pool = OwnPool(lambda: connection, lambda _: None, discarded.append, pymysql.Error)
    with pytest.raises(SourceUnsuitable, match="open transaction"):
        Cache.open(system.config_path, pools={f"127.0.0.1:{port}": pool}).database().query("SELECT 1")
    assert discarded
    connection.close()


def test_a_pool_for_a_server_that_is_not_there_is_refused(system: System) -> None:
    with pytest.raises(ConfigError, match="no server of the configuration"):
        Cache.open(system.config_path, pools={"127.0.0.1:1": object()})
    with pytest.raises(ConfigError, match="of type object"):
        Cache.open(system.config_path, pools={f"127.0.0.1:{system.pair.replica.port}": object()})
