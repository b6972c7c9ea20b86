"""A row comes from a session that nobody else has changed: loaders, own pools and servers that try, on real servers.

Each value is compared with what a second process hits, which did nothing odd.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pymysql
import pytest
import sqlalchemy
from pymysql.constants import CLIENT

from appclient import AsyncCache, Cache, ReadOutcome, SourceUnsuitable
from appclient.connection.query import LoaderConnection
from appclient.database.shard import ShardDatabase
from freshness.errors import ConfigError, ConnectionsExhausted
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from integration.appclient.sessions import fill_tables, opened, own_pool
from integration.harness import System, wait_for_outcome
from integration.servers import Flavor, Pair

NOON = datetime(2026, 6, 1, 12)  # noqa: DTZ001 - TIMESTAMP in UTC


@pytest.fixture
def system(tenants: Callable[[Pair], System], flavor: Flavor, request: pytest.FixtureRequest) -> System:
    system = tenants(request.getfixturevalue(f"{flavor}_pair"))
    fill_tables(system)
    return system


def hit(system: System, name: str, key: int) -> Any:
    """What a process that does nothing odd gets."""
    with opened(system) as innocent:
        return innocent.get(name, key)


@pytest.mark.parametrize("statement", ["SET time_zone = '-05:00'", "USE tenant_b", "SET sql_select_limit = 2"])
def test_a_loader_that_changes_the_session_is_refused(system: System, statement: str) -> None:
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            database.query(statement)

        with pytest.raises(SourceUnsuitable, match="a read of the cache sent"):
            cache.get("report", 1)
        with pytest.raises(SourceUnsuitable, match="a read of the cache sent"):
            cache.database().query(statement)
        assert cache.get("stamp", 1)["at"] == NOON
        assert None not in cache.get_many("customer", range(1, 9)).values()
    assert hit(system, "stamp", 1)["at"] == NOON


def test_a_loader_that_sends_two_statements_in_one_text_is_refused(system: System) -> None:
    """Some drivers let it by default."""
    several = partial(pymysql.Connection, client_flag=CLIENT.MULTI_STATEMENTS)
    pools, connection = own_pool(system, kind=several)
    with opened(system, pools=pools) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            database.query("SELECT 1; USE tenant_b")
            return database.query_one("SELECT name FROM customers WHERE id = %s", (key,))

        with pytest.raises(SourceUnsuitable, match="several statements"):
            cache.get("report", 1)
    assert connection.query("SELECT 1; SELECT 2") == 1, "the driver sends both"
    connection.close()


@pytest.mark.parametrize("is_pooled", [False, True], ids=["own connection", "pool"])
@pytest.mark.parametrize(
    "statement", ["USE tenant_b", "SET time_zone = '-05:00'", "read only", "SET character_set_results = latin1"]
)
def test_a_session_that_a_loader_changes_past_its_view_poisons_nothing(
    system: System, flavor: Flavor, statement: str, is_pooled: bool
) -> None:
    """On the driver's own connection, of which nobody else knows."""
    variable = {"mysql": "transaction_read_only", "mariadb": "tx_read_only"}[flavor]
    pools, pooled = own_pool(system)
    with opened(system, pools=pools if is_pooled else None) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            own: Any = pooled if is_pooled else database._connections[0]
            with own.cursor() as cursor:
                cursor.execute(statement if statement != "read only" else f"SET {variable} = 0")
            return database.query_one("SELECT name FROM customers WHERE id = %s", (key,))

        read = cache.get("report", 1, explain=True)
        assert read.outcome is ReadOutcome.NO_TOKEN
        if not is_pooled:  # the pool has only that connection
            assert cache.get("customer", 1)["name"] == "shop"
            assert cache.get("stamp", 1)["at"] == NOON
    pooled.close()


def test_a_function_that_changes_the_session_poisons_nothing(system: System) -> None:
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            database.query("SELECT shift_zone()")
            return database.query_one("SELECT at FROM stamps WHERE id = %s", (key,))

        read = cache.get("report", 1, explain=True)
        assert read.outcome is ReadOutcome.NO_TOKEN, "its own value is of that session, and is not stored"
        for number in range(2, 6):
            cache.database().query("SELECT shift_zone()")
            assert cache.get("stamp", number)["at"] == NOON
            wait_for_outcome(cache, "stamp", number, [ReadOutcome.FILLED, ReadOutcome.HIT], system.describe)
            assert hit(system, "stamp", number)["at"] == NOON


def test_a_database_that_a_loader_chose_is_not_the_next_ones(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the first read has no token, so that nobody looks at its session; the other database is cached, too."""
    system.execute(f"CREATE TABLE tenant_b.{HEARTBEAT_TABLE} AS SELECT * FROM {HEARTBEAT_TABLE}")
    system.settle()
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            if key == 1:
                with database._connections[0].cursor() as cursor:
                    cursor.execute("USE tenant_b")
            return database.query_one("SELECT name FROM customers WHERE id = %s", (key,))

        with monkeypatch.context() as patch:
            patch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))
            assert cache.get("report", 1)["name"] == "tenant b"
        assert cache.get("customer", 1)["name"] == "shop"
        assert cache.get("report", 2)["name"] == "shop"
    assert hit(system, "customer", 1)["name"] == "shop"
    system.execute(f"DROP TABLE tenant_b.{HEARTBEAT_TABLE}")


@pytest.mark.parametrize(
    ("sql", "is_uncached"),
    [
        ("SELECT leave_all()", False),
        ("SELECT * FROM leaving", False),
        ("SELECT leave_all()", True),
        ("SELECT @left := 1, GET_LOCK('left by a loader', 0)", True),
    ],
)
def test_a_loader_leaves_nothing_in_the_session_of_the_next_one(system: System, sql: str, is_uncached: bool) -> None:
    """Neither by its own text, nor by a function or a view that it reads."""
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            if key == 1:
                return database.query(sql) and None
            return database.query_one(
                "SELECT what_is_left() AS remembered, @left AS variable, GROUP_CONCAT(name) AS names, "
                "1 / 3 AS third, IS_FREE_LOCK('left by a loader') AS is_free FROM stamps WHERE id < 4 AND %s",
                (key,),
            )

        if is_uncached:
            cache.database().query(sql)
        else:
            cache.get("report", 1)
        found = cache.get("report", 2)
        assert (found["remembered"], found["variable"], found["is_free"]) == (None, None, 1)
        assert (found["names"], str(found["third"])) == ("n,n,n", "0.3333")
        globe = "\N{EARTH GLOBE EUROPE-AFRICA}"
        assert cache.database().query("SELECT %s AS text", (globe,)).rows == [{"text": globe}]


def test_a_server_that_cuts_answers_makes_no_row_absent(system: System) -> None:
    with system.pair.replica.setting("sql_select_limit", 2), opened(system) as cache:
        found = cache.get_many("customer", range(1, 9))
    assert [number for number, row in found.items() if row is None] == []


def test_a_server_with_odd_modes_pads_and_drops_nothing(system: System, flavor: Flavor) -> None:
    odd = "PAD_CHAR_TO_FULL_LENGTH" + (",EMPTY_STRING_IS_NULL" if flavor == "mariadb" else "")
    with system.pair.replica.setting("sql_mode", f"'{odd}'"), opened(system) as cache:
        assert cache.get("stamp", 7)["fixed"] == "x"


class Unaware(pymysql.Connection):
    """A driver that escapes by backslash whatever the session says."""

    def _escape_string(self, s: str) -> str:
        return pymysql.converters.escape_string(s)


def test_a_pool_in_another_database_reads_the_configured_one(system: System) -> None:
    pools, connection = own_pool(system, "USE tenant_b")
    with opened(system, pools=pools) as cache:
        assert cache.get("customer", 1)["name"] == "shop"
        with connection.cursor() as cursor:
            cursor.execute("SELECT DATABASE()")
            assert cursor.fetchall() == (("tenant_b",),), "it is put back"
    assert hit(system, "customer", 1)["name"] == "shop"
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SET sql_select_limit = 2",
        "SET character_set_connection = latin1",
        "SET sql_auto_is_null = 1",
        "SET time_zone = '+05:00'",
        "SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",
        "CALL be_odd()",
    ],
)
def test_a_pool_with_an_odd_session_fills_right_and_gets_it_back(system: System, statement: str) -> None:
    globe = "\N{EARTH GLOBE EUROPE-AFRICA}"
    system.execute(f"UPDATE stamps SET name = '{globe}'")
    system.settle()
    pools, connection = own_pool(system, statement)
    variables = "SELECT @@sql_select_limit, @@collation_connection, @@sql_auto_is_null, @@time_zone, @@sql_mode"
    with connection.cursor() as cursor:
        cursor.execute(variables)
        before = cursor.fetchall()
    with opened(system, pools=pools) as cache:
        assert set(cache.get_many("stamp", range(1, 9))) == set(range(1, 9))
        rows = cache.database().query("SELECT id, at, fixed FROM stamps WHERE name = %s", (globe,)).rows
        assert rows == [{"id": number, "at": NOON, "fixed": "x"} for number in range(1, 9)]
        with connection.cursor() as cursor:
            cursor.execute(variables)
            assert cursor.fetchall() == before
    for number in range(1, 9):
        assert hit(system, "stamp", number) == {"id": number, "at": NOON, "fixed": "x", "name": globe}
    connection.close()


def test_a_driver_that_escapes_by_another_rule_than_the_session_is_refused(system: System) -> None:
    """Its parameters would be texts with other ends: rows of other keys, or an injection."""
    pools, connection = own_pool(system, "SET sql_mode = 'NO_BACKSLASH_ESCAPES'", kind=Unaware)
    with pytest.raises(SourceUnsuitable, match="NO_BACKSLASH_ESCAPES"):
        Cache.open(system.config_path, pools=pools)
    connection.close()


def test_the_session_of_a_pool_keeps_the_rule_by_which_its_driver_escapes(system: System) -> None:
    """The server's own mode would change it behind the driver's back."""
    with system.pair.replica.setting("sql_mode", "'NO_BACKSLASH_ESCAPES'"):
        pools, connection = own_pool(system, "SET sql_mode = ''", kind=Unaware)
        with opened(system, pools=pools) as cache:
            asked = "\\' OR 1 = 1 #"
            assert cache.database().query("SELECT %s AS text", (asked,)).rows == [{"text": asked}]
    connection.close()


def test_a_table_as_of_the_past_is_refused(system: System, flavor: Flavor) -> None:
    if flavor == "mysql":
        return  # it has no such variable
    pools, connection = own_pool(system, "SET system_versioning_asof = '2020-01-01 00:00:00'")
    with opened(system, pools=pools) as cache:
        read = cache.get("customer", 1, explain=True)
    assert read.value["name"] == "shop", "the next server has it"
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TEMPORARY TABLE customers (id INT, name VARCHAR(20), v INT)", "COMMIT"],
        ["CREATE TEMPORARY TABLE other LIKE customers", "ALTER TABLE other RENAME customers", "COMMIT"],
    ],
    ids=["created", "renamed"],
)
def test_a_temporary_table_in_a_pool_fills_nothing(system: System, statements: list[str]) -> None:
    pools, connection = own_pool(system, *statements)
    with opened(system, pools=pools) as cache:
        read = cache.get("customer", 1, explain=True)
    assert (read.value or {}).get("name") == "shop", "the next server has it"
    assert hit(system, "customer", 1)["name"] == "shop"
    connection.close()


def test_queries_of_one_loader_in_threads_get_their_own_answers(system: System) -> None:
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            found: dict[int, Any] = {}

            def ask(number: int) -> None:
                [row] = database.query("SELECT %s AS n, SLEEP(0.001)", (number,))
                found[number] = row["n"]

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            return [found[number] for number in range(20)]

        for key in range(1, 9):
            assert cache.get("report", key) == list(range(20))
            assert hit(system, "customer", key)["name"] == "shop"


def test_work_that_outlives_its_loader_ends_with_it(system: System) -> None:
    """The loader's own error comes out, and what it left under way spoils no connection of the process."""

    async def run() -> None:
        cache = await AsyncCache.open(system.config_path)

        @cache.loader("report")
        async def load(database: Any, key: int) -> Any:
            async def prices() -> Any:
                await asyncio.sleep(0.05)
                raise ValueError("no prices")

            return await asyncio.gather(database.query("SELECT SLEEP(4)"), prices())

        for _ in range(3):
            with pytest.raises(ValueError, match="no prices"):
                await cache.get("report", 1)
            assert (await cache.get("customer", 2))["name"] == "shop"
        await cache.close()

    asyncio.run(run())


def test_a_query_after_the_end_of_its_loader_raises(system: System) -> None:
    kept: list[LoaderConnection] = []
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            kept.append(database)
            return database.query("SELECT 1 AS one")

        assert cache.get("report", 1) == [{"one": 1}]
        with pytest.raises(ConfigError, match="after the loader's end"):
            kept[0].query("SELECT 1")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("prices"),
        TimeoutError("of prices"),
        StopIteration("of prices"),
        pymysql.err.OperationalError(2013, "of another database"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_loaders_own_error_comes_out_once(system: System, error: Exception) -> None:
    calls: list[int] = []
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            calls.append(key)
            raise error

        with pytest.raises(type(error)) as caught:
            cache.get("report", 1)
        assert caught.value is error
        assert calls == [1]


@pytest.mark.parametrize(
    "sql", ["SELECT nope FROM customers", "SELECT nope()", "SELECT (SELECT id FROM customers)", "SELECT ABS()"]
)
def test_a_wrong_statement_is_no_failure_of_the_servers(system: System, sql: str) -> None:
    """Else the loader is called for each server, and all of them are avoided for a while."""
    calls: list[int] = []
    with opened(system) as cache:

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            calls.append(key)
            return database.query(sql)

        with pytest.raises(SourceUnsuitable, match="sent a wrong statement"):
            cache.get("report", 1)
        assert calls == [1]
        with pytest.raises(SourceUnsuitable, match="sent a wrong statement"):
            cache.database().query(sql)


def test_an_exhausted_pool_is_waited_for_once(system: System) -> None:
    port = system.pair.replica.port
    engine = sqlalchemy.create_engine(
        f"mysql+pymysql://app:app@127.0.0.1:{port}/shop?charset=utf8mb4",
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.05,
    )
    waits: list[int] = []
    take = engine.raw_connection

    def raw_connection() -> Any:
        waits.append(1)
        return take()

    engine.raw_connection = raw_connection  # type: ignore[method-assign]
    with opened(system, pools={f"127.0.0.1:{port}": engine}) as cache:
        with engine.connect():
            waits.clear()
            with pytest.raises(ConnectionsExhausted, match="no connection left"):
                cache.database().query("SELECT 1")
        assert len(waits) == 1

        @cache.loader("report")
        def load(database: LoaderConnection, key: int) -> Any:
            return [database.query_one("SELECT 1 AS one"), cache.get("customer", key)["name"]]

        assert cache.get("report", 1) == [{"one": 1}, "shop"], "a read inside another one waits for nobody"
    engine.dispose()
