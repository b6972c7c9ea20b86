"""The application's side on real servers: hits, fills, refusals, tokens. One running system for each flavor.

Each test has its own keys. Assertions about a value after an invalidation run after `wait_covered`: from then on no
hit and no fill may lack the change (I1).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pymysql
import pytest

from appclient import Cache, EventToken, Explanation, LoaderConnection, QueryExtras, ReadOutcome, SourceUnsuitable
from freshness.errors import ConfigError, FlavorMismatch, FormatError, QueryTimedOut
from freshness.position import empty_position, parse_position
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from integration.appclient.tasks import loop_cache
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    WAIT_SECONDS,
    System,
    running_system,
    wait_for_hits,
    wait_for_outcome,
    wait_until,
)
from integration.servers import Flavor, Pair

CODES_TABLE = "CREATE TABLE codes (code VARCHAR(100) {charset} PRIMARY KEY, note VARCHAR(50))"
CODE = '[objects.code]\ntable = "codes"\n'
CHARSET = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
SEATS_TABLE = "CREATE TABLE seats (hall INT, seat BINARY(4), guest VARCHAR(50), PRIMARY KEY (hall, seat))"
SEAT = '[objects.seat]\ntable = "seats"\n'
STAMPS_TABLE = "CREATE TABLE stamps (id INT PRIMARY KEY, seen TIMESTAMP NULL)"
STAMP = '[objects.stamp]\ntable = "stamps"\n'
TABLES = (STAMPS_TABLE, CUSTOMERS_TABLE, ORDERS_TABLE, CODES_TABLE.format(charset=CHARSET), SEATS_TABLE)


def load_profile(database: LoaderConnection, customer_id: int) -> dict[str, Any] | None:
    customer = database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))
    if customer is None:
        return None
    orders = database.query("SELECT id, total FROM orders WHERE customer_id = %s ORDER BY id", (customer_id,))
    return {"customer": customer, "orders": orders}


@pytest.fixture(scope="module")
def systems(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Flavor], System]]:
    """One system for each flavor, started when it is first asked for."""
    running: dict[Flavor, Any] = {}

    def start(flavor: Flavor) -> System:
        if flavor not in running:
            pair: Pair = request.getfixturevalue(f"{flavor}_pair")
            pair.primary.execute("DROP DATABASE IF EXISTS shop")
            pair.primary.execute("CREATE DATABASE shop")
            manager = running_system(
                pair, tmp_path_factory.mktemp(flavor), tables=TABLES, objects=CUSTOMER + PROFILE + CODE + SEAT + STAMP
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


@pytest.fixture(params=["threads", "tasks"])
def cache(system: System, request: pytest.FixtureRequest) -> Iterator[Cache]:
    """One for threads, and one whose reads are tasks of an event loop. Each begins with empty tables."""
    for table in ("orders", "customers", "codes", "seats", "stamps"):
        system.execute(f"DELETE FROM {table}")
    system.settle()
    if request.param == "tasks":
        with loop_cache(system.config_path) as on_loop:
            on_loop.loader("profile")(load_profile)
            yield cast(Cache, on_loop)
        return
    opened = system.open_cache()
    opened.loader("profile")(load_profile)
    yield opened
    opened.close()


def insert(system: System, *ids: int) -> None:
    """Customers with v = 0, seen by the replica and acknowledged by the nodes."""
    system.execute("INSERT INTO customers VALUES " + ", ".join(f"({each}, 'n', 0)" for each in ids))
    system.settle()


def read(cache: Cache, name: str, key: Any) -> Explanation:
    explanation: Explanation = cache.get(name, key, explain=True)
    return explanation


# -- facts of reading ----------------------------------------------------------------------------------


def test_a_hit_after_a_fill_and_a_refill_after_an_update(system: System, cache: Cache) -> None:
    insert(system, 1)
    first = wait_for_outcome(cache, "customer", 1, [ReadOutcome.FILLED], system.describe)
    assert first.value == {"id": 1, "name": "n", "v": 0}
    assert set(first.event_tokens) == {"shop/-"}
    hit = read(cache, "customer", 1)
    assert (hit.outcome, hit.value, hit.event_tokens) == (ReadOutcome.HIT, first.value, {})
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.settle()
    refill = read(cache, "customer", 1)
    assert (refill.outcome, refill.value["v"]) == (ReadOutcome.FILLED, 1)
    assert read(cache, "customer", 1).outcome is ReadOutcome.HIT
    assert cache.get("customer", 1) == {"id": 1, "name": "n", "v": 1}


def test_no_such_row_is_cached_until_it_is_inserted_and_again_after_its_delete(system: System, cache: Cache) -> None:
    absent = wait_for_outcome(cache, "customer", 11, [ReadOutcome.HIT], system.describe)
    assert absent.value is None
    insert(system, 11)
    assert cache.get("customer", 11) == {"id": 11, "name": "n", "v": 0}
    wait_for_hits(cache, "customer", [11], system.describe)
    system.execute("DELETE FROM customers WHERE id = 11")
    system.settle()
    gone = read(cache, "customer", 11)
    assert (gone.outcome, gone.value) == (ReadOutcome.FILLED, None)


def test_a_timestamp_is_in_utc_whatever_the_time_zone_of_a_server(system: System) -> None:
    """One value is cached for all: it must not depend on which server was asked."""
    system.pair.replica.execute("SET GLOBAL time_zone = '+05:00'")
    try:
        with closing(system.open_cache()) as cache:
            system.execute("INSERT INTO stamps VALUES (1, FROM_UNIXTIME(1704164645))")
            system.settle()
            expected = {"id": 1, "seen": datetime.fromisoformat("2024-01-02T03:04:05")}
            assert wait_for_outcome(cache, "stamp", 1, [ReadOutcome.FILLED], system.describe).value == expected
            hit = read(cache, "stamp", 1)
            assert (hit.outcome, hit.value) == (ReadOutcome.HIT, expected)
            assert cache.database().query("SELECT * FROM stamps").rows == [expected]
    finally:
        system.pair.replica.execute("SET GLOBAL time_zone = 'SYSTEM'")


def test_a_changed_primary_key_invalidates_the_old_and_the_new_one(system: System, cache: Cache) -> None:
    insert(system, 21)
    wait_for_hits(cache, "customer", [21, 22], system.describe)
    system.execute("UPDATE customers SET id = 22 WHERE id = 21")
    system.settle()
    assert cache.get("customer", 21) is None
    assert cache.get("customer", 22) == {"id": 22, "name": "n", "v": 0}


def test_a_key_of_two_columns_one_of_them_padded(system: System, cache: Cache) -> None:
    seat = (3, b"A1\0\0")
    system.execute("INSERT INTO seats VALUES (3, 'A1', 'Ada')")
    system.settle()
    wait_for_hits(cache, "seat", [seat], system.describe)
    assert cache.get("seat", seat) == {"hall": 3, "seat": b"A1\0\0", "guest": "Ada"}
    system.execute("UPDATE seats SET guest = 'Bob' WHERE hall = 3")
    system.settle()
    assert cache.get("seat", seat) == {"hall": 3, "seat": b"A1\0\0", "guest": "Bob"}


# -- composites ----------------------------------------------------------------------------------------


def test_a_member_row_that_moves_invalidates_the_previous_and_the_new_owner(system: System, cache: Cache) -> None:
    insert(system, 31, 32)
    system.execute("INSERT INTO orders VALUES (31, 31, 7)")
    system.settle()
    wait_for_hits(cache, "profile", [31, 32], system.describe)
    assert [len(cache.get("profile", key)["orders"]) for key in (31, 32)] == [1, 0]
    system.execute("UPDATE orders SET customer_id = 32 WHERE id = 31")
    system.settle()
    after = cache.get_many("profile", [31, 32], explain=True)
    assert {each.outcome for each in after.values()} == {ReadOutcome.FILLED}
    assert [len(after[key].value["orders"]) for key in (31, 32)] == [0, 1]
    # A member without owner belongs to no object, and leaves the one it had.
    wait_for_hits(cache, "profile", [31, 32], system.describe)
    system.execute("UPDATE orders SET customer_id = NULL WHERE id = 31")
    system.settle()
    assert [read(cache, "profile", key).outcome.name for key in (31, 32)] == ["HIT", "FILLED"]
    assert cache.get("profile", 32)["orders"] == []


def test_a_composite_is_never_half_of_a_transaction(system: System, cache: Cache) -> None:
    insert(system, 41)
    system.execute("INSERT INTO orders VALUES (41, 41, 0)")
    system.settle()
    stopping = threading.Event()

    def write() -> None:
        with system.pair.primary.connect("shop", autocommit=False) as connection:
            number = 0
            while not stopping.is_set():
                number += 1
                with connection.cursor() as cursor:
                    cursor.execute("UPDATE customers SET v = %s WHERE id = 41", (number,))
                    cursor.execute("UPDATE orders SET total = %s WHERE id = 41", (number,))
                connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    outcomes: set[ReadOutcome] = set()
    try:
        for _ in range(400):
            explanation = read(cache, "profile", 41)
            value = explanation.value
            assert value["customer"]["v"] == value["orders"][0]["total"], explanation
            outcomes.add(explanation.outcome)
    finally:
        stopping.set()
        writer.join()
    assert outcomes != {ReadOutcome.HIT}, "it changes all the time"
    system.settle()
    wait_for_hits(cache, "profile", [41], system.describe)
    assert cache.get("profile", 41)["customer"]["v"] == cache.get("profile", 41)["orders"][0]["total"]


def test_what_a_loader_raises_reaches_the_caller_and_leaves_no_stub(system: System, cache: Cache) -> None:
    insert(system, 51)

    @cache.loader("profile")
    def broken(database: LoaderConnection, customer_id: int) -> Any:
        raise LookupError(f"no profile of {customer_id}")

    with pytest.raises(LookupError, match="no profile of 51"):
        cache.get("profile", 51)
    assert system.find_item("profile", 51) is None
    cache.loader("profile")(load_profile)
    wait_for_hits(cache, "profile", [51], system.describe)

    with pytest.raises(ConfigError, match=r"composite object profile has no loader"):
        system.open_cache().get("profile", 52)
    with pytest.raises(ConfigError, match="needs no loader"):
        cache.loader("customer")(load_profile)


# -- whole tables --------------------------------------------------------------------------------------


def wait_until_gone(system: System, cache: Cache, name: str, key: Any, fresh: Any) -> None:
    """Hits end within node_refresh_seconds of the acknowledgement, and the refill is right."""
    system.settle()
    wait_until(lambda: cache.get(name, key) == fresh, f"{name} {key} is {fresh}", lambda: str(read(cache, name, key)))
    wait_for_hits(cache, name, [key], system.describe)
    assert cache.get(name, key) == fresh


def test_a_cached_read_inside_a_loader_is_as_fresh_as_its_token(system: System, cache: Cache) -> None:
    """The inner read takes its own token, so it must not read from the snapshot of the outer one (F18)."""
    insert(system, 240)
    changes = iter((5,))

    @cache.loader("profile")
    def load(database: LoaderConnection, customer_id: int) -> dict[str, Any]:
        outer = database.query_one("SELECT v FROM customers WHERE id = %s", (customer_id,))
        for value in changes:
            system.execute(f"UPDATE customers SET v = {value} WHERE id = {customer_id}")
            system.settle()
        return {"outer": outer, "inner": cache.get("customer", customer_id)}

    read(cache, "profile", 240)
    assert read(cache, "customer", 240).value["v"] == 5
    wait_for_hits(cache, "customer", [240])
    assert read(cache, "customer", 240).value["v"] == 5


class Interruption(Exception):
    """What a time limit of a worker raises."""


def test_a_read_that_a_signal_interrupts_never_gives_its_answer_to_another_one(
    system: System, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads are interrupted when the statement is sent and no answer was read; other rows are asked for next.

    On the same connection each of those would get the answer of two statements ago, also "no such row" (F46).
    """
    insert(system, *range(250, 258))
    kind: Any = pymysql.connections.Connection
    read_result = kind._read_query_result
    left = iter(range(2))

    def interrupt(*_: object) -> None:
        raise Interruption

    def interrupted(self: Any, unbuffered: bool = False) -> int:
        if next(left, None) is not None:
            signal.raise_signal(signal.SIGALRM)
        affected: int = read_result(self, unbuffered)
        return affected

    previous = signal.signal(signal.SIGALRM, interrupt)
    monkeypatch.setattr(kind, "_read_query_result", interrupted)
    try:
        for _ in range(2):
            with pytest.raises(Interruption):
                cache.database().query("SELECT * FROM customers WHERE id = 250")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert cache.database().query("SELECT * FROM customers WHERE id = 251").rows[0]["id"] == 251
    for key in range(252, 258):
        found = cache.get("customer", key)
        assert found is not None
        assert found["id"] == key


@pytest.mark.parametrize("cache", ["threads"], indirect=True)
def test_an_answer_to_another_question_is_noticed(system: System, cache: Cache) -> None:
    """A connection that is one answer behind, as a proxy may hand it out: nothing is stored and nobody gets it."""
    insert(system, 260, 261)
    shard = cache.database().find_shard(None)

    def skew(connection: Any, _: object) -> None:
        connection._execute_command(3, "SELECT * FROM customers WHERE id = 260")  # COM_QUERY; its answer is not read

    shard.run(skew)
    found = read(cache, "customer", 261)
    assert found.value["id"] == 261


class Split:
    """A connection whose statements a proxy sends to two servers, the token's to the primary, others to the
    replica. As such proxies do, it sets variables on both."""

    def __init__(self, primary: Any, replica: Any) -> None:
        self._primary, self._replica = primary, replica

    @property
    def open(self) -> bool:
        return bool(self._primary.open and self._replica.open)

    def close(self) -> None:
        self._primary.close()
        self._replica.close()

    def cursor(self, kind: Any = None) -> Any:
        return SplitCursor(self._primary.cursor(kind), self._replica.cursor(kind))

    def _execute_command(self, *command: Any) -> None:
        for each in (self._primary, self._replica):
            each._execute_command(*command)

    def _read_ok_packet(self) -> None:
        for each in (self._primary, self._replica):
            each._read_ok_packet()


class SplitCursor:
    def __init__(self, primary: Any, replica: Any) -> None:
        self._primary, self._replica = primary, replica
        self._last = primary

    def __enter__(self) -> SplitCursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str, params: Any = None) -> None:
        if sql.startswith("SET "):
            self._primary.execute(sql, params)
        self._last = self._primary if HEARTBEAT_TABLE in sql else self._replica
        self._last.execute(sql, params)

    def fetchall(self) -> Any:
        return self._last.fetchall()

    @property
    def description(self) -> Any:
        return self._last.description


def test_token_and_rows_of_two_servers_are_not_stored(
    system: System, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F107: the primary's position with rows of a stopped replica; if stored, they would stay stale."""
    insert(system, 270, 271)
    insert_orders(system, 270)
    wait_for_hits(cache, "customer", [270], system.describe)
    servers = system.pair.primary, system.pair.replica

    def connect_both(*_: object, **__: object) -> Split:
        return Split(*(server.connect("shop", charset="utf8mb4") for server in servers))

    system.pair.replica.stop_replication()
    try:
        system.execute("UPDATE customers SET v = 1 WHERE id = 270")
        system.execute("INSERT INTO customers VALUES (272, 'n', 1)")
        system.wait_covered()
        monkeypatch.setattr("appclient.database.servers.connect", connect_both)
        with closing(system.open_cache()) as behind_proxy:
            behind_proxy.loader("profile")(load_profile)
            for name, key in (("customer", 270), ("customer", 272), ("profile", 270)):
                answer = read(behind_proxy, name, key)
                assert answer.outcome is ReadOutcome.NO_TOKEN
                assert answer.event_tokens == {}
            assert behind_proxy.get("customer", 270)["v"] == 0, "the rows are what the replica has"
            extras = behind_proxy.database().query("SELECT 1", include_event_token=True).extras
            assert extras.event_token is None
        monkeypatch.undo()
    finally:
        system.pair.replica.start_replication()
    system.assert_none_stale(cache, "customer", [270, 271, 272])


def insert_orders(system: System, customer: int) -> None:
    system.execute("INSERT INTO orders VALUES (%s, %s, 1)", customer, customer)
    system.settle()


def test_a_session_of_the_library_does_not_write(system: System, cache: Cache) -> None:
    """F108: whatever the account may do; neither a query nor a loader."""
    insert(system, 280)

    @cache.loader("profile")
    def load(database: LoaderConnection, customer_id: int) -> Any:
        return database.query("DELETE FROM customers WHERE id = %s", (customer_id,))

    with system.pair.primary.setting("log_bin_trust_function_creators", 1):
        system.execute("DROP FUNCTION IF EXISTS touch_customer")
        system.execute(
            "CREATE FUNCTION touch_customer() RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
            "BEGIN UPDATE customers SET v = 9 WHERE id = 280; RETURN 1; END"
        )
    system.settle()
    with pytest.raises(SourceUnsuitable, match=r"READ ONLY.*connection of your own"):
        cache.database().query("SELECT touch_customer()")
    for write in ("UPDATE customers SET v = 9 WHERE id = 280", "TRUNCATE customers", "DROP TABLE seats"):
        with pytest.raises(SourceUnsuitable, match=r"a read of the cache sent.*connection of your own"):
            cache.database().query(write)
    with pytest.raises(SourceUnsuitable, match="a read of the cache sent DELETE"):
        cache.get("profile", 280)
    for server in (system.pair.primary, system.pair.replica):
        assert server.execute("SELECT v FROM customers WHERE id = 280", database="shop") == [(0,)]


def test_an_application_has_neither_the_invalidators_password_nor_more_than_select(
    system: System, tmp_path: Path
) -> None:
    """F108: reads of the primary with an account of their own, which can do nothing else."""
    insert(system, 281)
    primary = system.pair.primary
    primary.execute("DROP USER IF EXISTS webapp@'%'")
    primary.execute("CREATE USER webapp@'%' IDENTIFIED BY 'webapp'")
    primary.execute("GRANT SELECT ON shop.* TO webapp@'%'")
    text = system.config_path.read_text()
    for_reads = f'primary_for_reads = "mysql://webapp:webapp@127.0.0.1:{primary.port}/shop"'
    withheld = primary.url.replace(":app@", ":${WITHHELD}@")
    text = text.replace(f'primary = "{primary.url}"', f'primary = "{withheld}"\n{for_reads}')
    path = tmp_path / "freshness.toml"
    path.write_text(text.replace(f'replicas = ["{system.pair.replica.url}"]', ""))
    assert "WITHHELD" in path.read_text()
    with closing(Cache.open(path)) as cache:
        assert cache.database().query("SELECT CURRENT_USER() AS me").rows == [{"me": "webapp@%"}]
        wait_for_outcome(cache, "customer", 281, [ReadOutcome.FILLED, ReadOutcome.HIT], system.describe)
        wait_for_hits(cache, "customer", [281], system.describe)


def test_a_statement_that_takes_too_long_is_ended_and_not_tried_elsewhere(system: System, tmp_path: Path) -> None:
    """F109: the error comes from the server, and then nothing runs there any more."""
    insert(system, 282)
    path = tmp_path / "freshness.toml"
    line = f'flavor = "{system.pair.primary.flavor}"'
    path.write_text(system.config_path.read_text().replace(line, f"{line}\nquery_timeout_seconds = 0.3"))
    slow = "SELECT id FROM customers WHERE SLEEP(100) = 0 /* endless */"
    with closing(Cache.open(path)) as cache:

        @cache.loader("profile")
        def load(database: LoaderConnection, customer_id: int) -> Any:
            return database.query(slow)

        with pytest.raises(QueryTimedOut, match="query_timeout_seconds") as caught:
            cache.database().query(slow)
        assert f"127.0.0.1:{system.pair.replica.port}" in caught.value.message
        with pytest.raises(QueryTimedOut):
            cache.get("profile", 282)
        assert cache.get("customer", 282)["id"] == 282
    running = "SELECT info FROM information_schema.processlist WHERE info LIKE %s"
    for server in (system.pair.primary, system.pair.replica):
        found = server.execute(running, "%endless%")
        assert [info for (info,) in found if "processlist" not in info] == []


def test_truncate_raises_the_table_floor(system: System, cache: Cache) -> None:
    system.execute("INSERT INTO seats VALUES (61, 'A1', 'Ada')")
    system.settle()
    wait_for_hits(cache, "seat", [(61, b"A1\0\0")], system.describe)
    insert(system, 61)
    wait_for_hits(cache, "customer", [61], system.describe)
    system.execute("TRUNCATE TABLE seats")
    wait_until_gone(system, cache, "seat", (61, b"A1\0\0"), None)
    assert all("seats" in node["table_floors"] for node in system.status())
    # Other tables keep their hits.
    assert read(cache, "customer", 61).outcome is ReadOutcome.HIT


def test_statement_format_raises_the_table_floor(system: System, cache: Cache) -> None:
    system.execute(f"INSERT INTO codes VALUES ('stmt{system.pair.primary.port}', 'old')")
    key = f"stmt{system.pair.primary.port}"
    system.settle()
    wait_for_hits(cache, "code", [key], system.describe)
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("UPDATE codes SET note = 'new' WHERE code = %s", (key,))
    wait_until_gone(system, cache, "code", key, {"code": key, "note": "new"})
    assert all("codes" in node["table_floors"] for node in system.status())


# -- spellings -----------------------------------------------------------------------------------------


def test_spellings_that_the_collation_calls_equal_never_keep_an_old_value(system: System, cache: Cache) -> None:
    spellings = ["Straße", "STRASSE", "strasse", "straße ", "abc", "ABC", "abc  ", "äbc", "ÄBC", "a\u0308bc"]
    for stored in ("Straße", "Abc", "Äbc", "a\u0308BC"):
        system.execute("DELETE FROM codes")
        system.settle()
        for _ in range(2):
            cache.get_many("code", spellings)
        system.execute("INSERT INTO codes VALUES (%s, 'old')", stored)
        system.settle()
        check_spellings(system, cache, spellings)
        system.execute("UPDATE codes SET note = 'new'")
        system.settle()
        check_spellings(system, cache, spellings)
        wait_for_hits(cache, "code", [stored], system.describe)  # the stored spelling is cacheable


def check_spellings(system: System, cache: Cache, spellings: list[str]) -> None:
    """Twice, so that what the first reads stored is looked at, one by one and together."""
    truth = {
        spelling: system.pair.replica.execute("SELECT note FROM codes WHERE code = %s", spelling, database="shop")
        for spelling in spellings
    }
    for _ in range(2):
        for spelling, rows in truth.items():
            row = cache.get("code", spelling)
            assert ([] if row is None else [(row["note"],)]) == rows, spelling
        many = cache.get_many("code", spellings)
        for spelling, rows in truth.items():
            row = many[spelling]
            assert ([] if row is None else [(row["note"],)]) == rows, spelling


# -- several keys, nodes, threads ----------------------------------------------------------------------


def test_get_many_mixes_hits_and_misses_of_both_nodes(system: System, cache: Cache) -> None:
    first = 100 if isinstance(cache, Cache) else 5100  # that a row does not exist stays in the cache
    keys = list(range(first, first + 40))
    insert(system, *keys[:30])
    wait_for_hits(cache, "customer", keys[:20], system.describe)
    answers = cache.get_many("customer", [*keys, keys[0]], explain=True)
    assert list(answers) == keys
    assert {answers[key].node for key in keys} == {node.address for node in system.nodes}
    assert {answers[key].outcome for key in keys[:20]} == {ReadOutcome.HIT}
    assert {answers[key].outcome for key in keys[20:]} == {ReadOutcome.FILLED}
    assert [answers[key].value is None for key in keys] == [key >= first + 30 for key in keys]
    assert cache.get_many("customer", []) == {}


def test_a_node_that_is_down_costs_only_its_own_keys(system: System, cache: Cache) -> None:
    keys = list(range(200, 240))
    insert(system, *keys)
    wait_for_hits(cache, "customer", keys, system.describe)
    down = system.nodes[0]
    down.kill()
    try:
        answers = cache.get_many("customer", keys, explain=True)
        outcomes = {(each.node == down.address, each.outcome) for each in answers.values()}
        assert outcomes == {(True, ReadOutcome.NODE_DOWN), (False, ReadOutcome.HIT)}
        assert all(each.value["v"] == 0 for each in answers.values())
        system.execute("UPDATE customers SET v = 1 WHERE id BETWEEN 200 AND 219")
    finally:
        down.start()
    system.assert_none_stale(cache, "customer", keys)


def test_two_threads_share_one_cache(system: System, cache: Cache) -> None:
    keys = list(range(300, 320))
    insert(system, *keys)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(150):
                for key, row in cache.get_many("customer", keys).items():
                    assert row["id"] == key
                assert cache.get("profile", 300)["customer"]["id"] == 300
            cache.close()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(30):
        system.execute("UPDATE customers SET v = %s WHERE id BETWEEN 300 AND 309", number + 1)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    system.assert_none_stale(cache, "customer", keys)


def test_max_staleness_of_the_caller_and_the_hook(system: System) -> None:
    seen: list[Explanation] = []
    cache = Cache.open(system.config_path, on_read=seen.append)
    insert(system, 330)
    wait_for_hits(cache, "customer", [330], system.describe)
    seen.clear()
    refused: Explanation = cache.get("customer", 330, max_staleness_seconds=0, explain=True)
    assert refused.outcome is ReadOutcome.STALE
    assert cache.get("customer", 330, max_staleness_seconds=WAIT_SECONDS, explain=True).is_hit
    assert [each.outcome for each in seen] == [ReadOutcome.STALE, ReadOutcome.HIT]
    assert read(cache, "customer", 330).is_hit, "what was too stale for one caller is still there for others"
    cache.close()


# -- tokens --------------------------------------------------------------------------------------------


def token_of(system: System, cache: Cache) -> EventToken:
    extras: QueryExtras = cache.database().query("SELECT 1", include_event_token=True).extras
    assert extras.event_token is not None
    assert extras.fresher is None
    return extras.event_token


def test_a_token_tells_whether_rows_are_known_to_be_fresher(system: System, cache: Cache) -> None:
    database = cache.database()
    assert database.query("SELECT 1").extras.event_token is None
    token = token_of(system, cache)
    result = database.query("SELECT 1 AS one", compare_event_token=token)
    assert (result.rows, result.extras.fresher, result.extras.event_token) == ([{"one": 1}], True, None)
    assert database.query("SELECT 1", compare_event_token=str(token)).extras.fresher is True
    system.pair.replica.stop_replication()
    try:
        # A later token, taken when the change is already visible: nothing says that the replica has it.
        system.execute("INSERT INTO orders VALUES (900, NULL, 1)")
        system.wait_covered()
        [node, *_] = system.status()
        position = parse_position(token.position.flavor, node["progress"])
        later = EventToken(token.lineage, token.shard, token.epoch, token.timestamp_us, position)
        behind = database.query("SELECT * FROM orders WHERE id = 900", compare_event_token=later)
        assert (behind.rows, behind.extras.fresher) == ([], None)
        other_epoch = EventToken(token.lineage, token.shard, token.epoch + 1, 0, token.position)
        assert database.query("SELECT 1", compare_event_token=other_epoch).extras.fresher is None
    finally:
        system.pair.replica.start_replication()
    system.settle()
    caught_up = database.query("SELECT * FROM orders WHERE id = 900", compare_event_token=later)
    assert (len(caught_up.rows), caught_up.extras.fresher) == (1, True)


def test_tokens_that_do_not_fit_are_refused(system: System, cache: Cache) -> None:
    database = cache.database("shop")
    token = token_of(system, cache)
    other = "mysql" if token.position.flavor == "mariadb" else "mariadb"
    foreign = EventToken(token.lineage, token.shard, token.epoch, 0, empty_position(other))
    for sent in (foreign, str(foreign)):
        with pytest.raises(FlavorMismatch, match=f"token of {other} was sent to keyspace shop"):
            database.query("SELECT 1", compare_event_token=sent)
    with pytest.raises(FormatError, match="is not an event token"):
        database.query("SELECT 1", compare_event_token="yesterday")
    with pytest.raises(ConfigError, match="has no serving shard '80-'"):
        database.query("SELECT 1", shard="80-")
    with pytest.raises(ConfigError, match="unknown keyspace 'shpo'"):
        cache.database("shpo")
    with pytest.raises(SourceUnsuitable, match="nowhere"):
        database.query("SELECT * FROM nowhere")
    assert database.query("SELECT 1 AS one").rows == [{"one": 1}]


# -- a race, on a replica and on the primary alone -----------------------------------------------------


def race(system: System, cache: Cache, key: int, rounds: int) -> set[ReadOutcome]:
    """Readers fill while a row changes; after each acknowledgement every hit and every fill has the change (I1)."""
    known = [0]  # the value that is acknowledged
    stopping = threading.Event()
    outcomes: set[ReadOutcome] = set()
    failures: list[BaseException] = []

    def work() -> None:
        own = system.open_cache()
        try:
            while not stopping.is_set():
                least = known[0]
                explanation = read(own, "customer", key)
                outcomes.add(explanation.outcome)
                if explanation.outcome in (ReadOutcome.HIT, ReadOutcome.FILLED):
                    assert explanation.value["v"] >= least, f"{least} is acknowledged: {explanation}"
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, rounds + 1):
            system.execute("UPDATE customers SET v = %s WHERE id = %s", number, key)
            system.wait_covered()
            known[0] = number
            if number % 5 == 0:
                # On a MariaDB primary the watermark trails by up to two heartbeats: let it catch up.
                wait_for_hits(cache, "customer", [key], system.describe)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    system.assert_none_stale(cache, "customer", [key])
    return outcomes


def test_race_of_a_writer_and_readers_on_a_replica(system: System, cache: Cache) -> None:
    insert(system, 400)
    outcomes = race(system, cache, 400, rounds=25)
    assert {ReadOutcome.HIT, ReadOutcome.FILLED} <= outcomes


def test_race_of_a_writer_and_readers_on_the_primary_alone(pair: Pair, tmp_path: Path) -> None:
    """Without replicas. On MariaDB the token of a primary comes from the heartbeat's watermark."""
    with running_system(pair, tmp_path, has_replica=False) as system:
        cache = system.open_cache()
        system.execute("INSERT INTO customers VALUES (1, 'n', 0)")
        system.wait_covered()
        wait_for_hits(cache, "customer", [1], system.describe)
        outcomes = race(system, cache, 1, rounds=25)
        assert {ReadOutcome.HIT, ReadOutcome.FILLED} <= outcomes
        cache.close()
