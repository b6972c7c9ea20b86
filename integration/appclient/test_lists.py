"""Lists of rows on real servers: the latest orders of a customer, which rows enter, leave and pass each other in, and
a race with a lagging replica. The lines of a customer's orders are lists of orders, each with a list of lines."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, Explanation, ReadOutcome
from appclient.database.shard import ShardDatabase
from freshness.errors import ConfigError
from integration.appclient.test_unique_keys import change, outcomes
from integration.configuration import write_config
from integration.harness import System, call_cli, running_system, wait_for_hits
from integration.servers import Pair

TABLES: Final = (
    """CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT, placed TIMESTAMP(3) NULL, total FLOAT, v INT,
  KEY (customer_id, placed)) CHARACTER SET utf8mb4""",
    """CREATE TABLE order_lines (order_id BIGINT, line INT, article VARCHAR(9), PRIMARY KEY (order_id, line))""",
)
LATEST: Final = """[objects.latest_orders]
table = "orders"
key = "customer_id"
order_by = "placed desc"
limit = 3
"""
LINES: Final = """[objects.order_lines]
table = "order_lines"
key = "order_id"
order_by = "line"
limit = 100
"""


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    with running_system(pair, tmp_path, tables=TABLES, objects=LATEST + LINES) as started:
        yield started


@pytest.fixture
def cache(system: System) -> Iterator[Cache]:
    with closing(system.open_cache()) as opened:
        yield opened


def place(id: int, customer: int | str, minute: int | str, v: int = 0) -> str:
    placed = f"'2026-01-01 10:{minute:02}:00'" if isinstance(minute, int) else minute
    return f"REPLACE INTO orders VALUES ({id}, {customer}, {placed}, 1.5, {v})"


def numbers(cache: Cache, *customers: int) -> list[list[int]]:
    """The ids of the orders of each customer, when all of them are hits."""
    found = wait_for_hits(cache, "latest_orders", customers)
    return [[row["id"] for row in each.value] for each in found.values()]


def test_rows_enter_leave_and_pass_each_other(system: System, cache: Cache) -> None:
    """A change of any row of the customer counts, also of one that is behind the limit."""
    change(system, *(place(number, 1, number) for number in (1, 2, 3, 4)), place(20, 2, 5))
    steps: list[tuple[str, list[int], list[int]]] = [
        ("DO 0", [4, 3, 2], [20]),
        ("DELETE FROM orders WHERE id = 3", [4, 2, 1], [20]),  # one from behind the limit comes in
        (place(1, 1, 30), [1, 4, 2], [20]),
        ("UPDATE orders SET customer_id = 2 WHERE id = 4", [1, 2], [20, 4]),
        ("UPDATE orders SET customer_id = NULL WHERE id = 20", [1, 2], [4]),
        ("UPDATE orders SET placed = NULL WHERE id = 1", [2, 1], [4]),
        ("UPDATE orders SET placed = NULL WHERE id = 2", [2, 1], [4]),  # equal rows: by the primary key
        ("DELETE FROM orders WHERE customer_id = 2", [2, 1], []),
    ]
    for statement, first, second in steps:
        change(system, statement)
        assert numbers(cache, 1, 2, 3) == [first, second, []], statement
    change(system, place(5, 1, 1))
    assert outcomes(cache, "latest_orders", [1, 2, 3]) == ["FILLED", "HIT", "HIT"]
    answer = call_cli("inspect", "latest_orders", "1", "-c", system.config_path, "--json").stdout
    assert '"equals_primary": true' in answer


@dataclass
class Order:
    id: int
    customer_id: int
    v: int


def test_a_list_of_instances(system: System, cache: Cache) -> None:
    change(system, place(1, 1, 1, 7), place(2, 1, 2, 8))
    latest = cache.of("latest_orders", list[Order])
    assert latest.get(1) == [Order(2, 1, 8), Order(1, 1, 7)]
    assert latest.get_many([1, 2]) == {1: [Order(2, 1, 8), Order(1, 1, 7)], 2: []}


def test_a_list_in_the_own_transaction(system: System, cache: Cache) -> None:
    with system.pair.primary.connect("shop", autocommit=False) as own, own.cursor() as cursor:
        cursor.execute(place(1, 1, 1))
        cursor.execute(place(2, 1, 2))
        each: Explanation = cache.get("latest_orders", 1, connection=own, explain=True)
        assert (each.outcome, [row["id"] for row in each.value]) == (ReadOutcome.OWN_TRANSACTION, [2, 1])
        own.rollback()


def test_race_of_a_writer_and_readers(system: System, cache: Cache) -> None:
    """Each change puts an order on top and takes one away. After each acknowledgement every hit and every fill has it
    (I1)."""
    acknowledged, writing = [0], [0]
    stopping = threading.Event()
    seen: set[ReadOutcome] = set()
    failures: list[BaseException] = []
    change(system, *(place(number, 7, number) for number in (0, 1, 2)))
    acknowledged[0] = writing[0] = 2

    def work() -> None:
        own = system.open_cache()
        try:
            while not stopping.is_set():
                least = acknowledged[0]
                each: Explanation = own.get("latest_orders", 7, explain=True)
                seen.add(each.outcome)
                if each.outcome in (ReadOutcome.HIT, ReadOutcome.FILLED):
                    top = each.value[0]["id"]
                    assert least <= top <= writing[0], f"{least} is acknowledged: {each}"
                    assert [row["id"] for row in each.value] == [top, top - 1, top - 2], each
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(3, 33):
            writing[0] = number
            with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(place(number, 7, number))
                cursor.execute("DELETE FROM orders WHERE id = %s", (number - 3,))
                cursor.execute("COMMIT")
            system.wait_covered()
            acknowledged[0] = number
            if number % 5 == 0:
                wait_for_hits(cache, "latest_orders", [7], system.describe)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    assert {ReadOutcome.HIT, ReadOutcome.FILLED} <= seen
    system.settle()
    assert numbers(cache, 7) == [[32, 31, 30]]


# -- two joins away -----------------------------------------------------------------------------------------


def orders_with_lines(cache: Cache, customer: int) -> list[dict[str, Any]]:
    """As the documentation has it."""
    orders = cache.get("latest_orders", customer)
    lines = cache.get_many("order_lines", [order["id"] for order in orders])
    return [{**order, "lines": lines[order["id"]]} for order in orders]


def articles(cache: Cache, customer: int) -> dict[int, list[str]]:
    return {order["id"]: [line["article"] for line in order["lines"]] for order in orders_with_lines(cache, customer)}


def test_lines_belong_to_a_customer_by_way_of_their_order(system: System, cache: Cache) -> None:
    """A line that moves to another order, and an order that moves to another customer, are found there and no longer
    here, and the lists that they do not touch stay hits."""
    change(
        system,
        *(place(number, 1 + number // 3, number) for number in (1, 2, 3)),
        "INSERT INTO order_lines VALUES (1, 1, 'a'), (1, 2, 'b'), (2, 1, 'c'), (3, 1, 'd')",
    )
    steps: list[tuple[str, dict[int, list[str]], dict[int, list[str]]]] = [
        ("DO 0", {2: ["c"], 1: ["a", "b"]}, {3: ["d"]}),
        ("UPDATE order_lines SET article = 'e' WHERE order_id = 3", {2: ["c"], 1: ["a", "b"]}, {3: ["e"]}),
        ("UPDATE order_lines SET order_id = 3, line = 9 WHERE article = 'b'", {2: ["c"], 1: ["a"]}, {3: ["e", "b"]}),
        ("UPDATE orders SET customer_id = 2 WHERE id = 2", {1: ["a"]}, {3: ["e", "b"], 2: ["c"]}),
        ("DELETE FROM order_lines WHERE order_id = 2", {1: ["a"]}, {3: ["e", "b"], 2: []}),
        ("DELETE FROM orders WHERE id = 3", {1: ["a"]}, {2: []}),
    ]
    for statement, first, second in steps:
        change(system, statement)
        wait_for_hits(cache, "latest_orders", [1, 2], system.describe)
        wait_for_hits(cache, "order_lines", [1, 2, 3], system.describe)
        assert [articles(cache, 1), articles(cache, 2)] == [first, second], statement
    change(system, "INSERT INTO order_lines VALUES (1, 7, 'z')")
    assert outcomes(cache, "order_lines", [1, 2, 3]) == ["FILLED", "HIT", "HIT"]
    assert outcomes(cache, "latest_orders", [1, 2]) == ["HIT", "HIT"]


def test_lines_that_go_round_between_orders_are_never_old(system: System, cache: Cache) -> None:
    """Random changes of both tables. After each acknowledgement the parts are what the database has."""
    chance = random.Random(f"{system.pair.primary.flavor} 1")
    for number in range(30):
        statements = [
            f"REPLACE INTO order_lines VALUES ({chance.randrange(4)}, {chance.randrange(3)}, 'n{number}')",
            place(chance.randrange(4), chance.randrange(2), chance.randrange(60)),
            f"UPDATE IGNORE order_lines SET order_id = {chance.randrange(4)} WHERE order_id = {chance.randrange(4)}",
        ]
        change(system, *chance.sample(statements, 2))
        for customer in (0, 1):
            orders = system.execute(
                "SELECT id FROM orders WHERE customer_id = %s ORDER BY placed DESC, id DESC LIMIT 3", customer
            )
            truth = {
                order: [
                    article
                    for (article,) in system.execute(
                        "SELECT article FROM order_lines WHERE order_id = %s ORDER BY line", order
                    )
                ]
                for (order,) in orders
            }
            for _ in range(2):
                found = articles(cache, customer)
                assert (found, list(found)) == (truth, list(truth)), (number, statements)


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("previous", "new", "says"),
    [
        ('"placed desc"', '"paid desc"', r"table shop\.orders has no column paid"),
        ('"customer_id"', '"total"', r"column shop\.orders\.total of type float cannot be a key"),
        ('"orders"\nkey = "customer_id"', '"loose"\nkey = "v"', r"table shop\.loose has no primary key"),
    ],
)
def test_a_list_that_cannot_be_exact_is_refused(
    pair: Pair, tmp_path: Path, previous: str, new: str, says: str
) -> None:
    pair.primary.execute(TABLES[0], database="shop")
    pair.primary.execute("CREATE TABLE loose (v INT, placed INT)", database="shop")
    assert previous in LATEST
    path = write_config(
        tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"], objects=LATEST.replace(previous, new)
    )
    with pytest.raises(ConfigError, match=says) as refused:
        Cache.open(path)
    assert refused.value.hint


def test_a_list_reads_no_more_rows_than_it_has(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an index over its key and its order, though the statement has the server's name in front of the rows."""
    pair.primary.execute(TABLES[0], database="shop")
    pair.primary.execute(
        "INSERT INTO orders SELECT a.id * 30 + b.id, b.id % 3, FROM_UNIXTIME(1000000000 + a.id * 30 + b.id), 1, 1"
        f" FROM ({numbers_sql(30)}) a, ({numbers_sql(30)}) b",
        database="shop",
    )
    path = write_config(tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"], objects=LATEST)
    asked: list[tuple[str, Any]] = []
    ask = ShardDatabase._ask

    def recorded(shard: ShardDatabase, connection: Any, question: str, sql: str, params: Any = ()) -> Any:
        asked.append((sql, params))
        return ask(shard, connection, question, sql, params)

    monkeypatch.setattr(ShardDatabase, "_ask", recorded)
    with closing(Cache.open(path)) as cache:
        assert [row["id"] for row in cache.get("latest_orders", 2)] == [899, 896, 893]
    [(sql, params)] = [each for each in asked if "LIMIT" in each[0]]
    with pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE orders")
        cursor.fetchall()
        cursor.execute("FLUSH STATUS")
        cursor.execute(sql, params)
        assert len(cursor.fetchall()) == 3
        cursor.execute("SHOW STATUS LIKE 'Handler_read%'")
        assert sum(int(count) for _, count in cursor.fetchall()) < 30, sql


def numbers_sql(count: int) -> str:
    return " UNION ALL ".join(f"SELECT {number} AS id" for number in range(count))
