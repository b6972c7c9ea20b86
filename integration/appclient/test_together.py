"""Keys that are read together are of one moment (I11): rows and lists on two nodes that one transaction changes.

And what the bound of an entry stands on: the server computes it when it sends the row.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, ReadOutcome, StateChanged
from appclient.database.required import KeyedRows
from appclient.database.shard import ShardDatabase
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.position import empty_position, parse_position
from freshness.stream.heartbeat import parse_until
from integration.appclient.tasks import loop_cache
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    PATIENT,
    System,
    repeating,
    running_system,
    wait_for_hits,
    wait_until,
)
from integration.servers import Pair

PAIRS: Final = 20
KEYS: Final = range(1, 2 * PAIRS + 1)
PAUSE_SECONDS: Final = 0.005
"""Between two commits."""

READS: Final = 200
HITS_MIN: Final = 100
"""Reads that entries must have answered."""

OBJECTS: Final = """[objects.customer]
table = "customers"
[objects.logged]
table = "customers"
fill_from_log = true
[objects.orders]
table = "orders"
key = "customer_id"
order_by = "id desc"
limit = 5
"""


@contextmanager
def running(pair: Pair, folder: Path, cache: Mapping[str, Any] = {}) -> Iterator[System]:
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE.replace("total INT)", "total INT, KEY (customer_id))"))
    with running_system(pair, folder, tables=tables, objects=OBJECTS, cache=cache) as system:
        system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        system.execute("INSERT INTO orders VALUES " + ", ".join(f"({key}, {key}, 0)" for key in KEYS))
        system.settle()
        system.wait_open()
        yield system


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    with running(pair, tmp_path) as system:
        yield system


@pytest.fixture
def patient(pair: Pair, tmp_path: Path) -> Iterator[System]:
    """Leases last longer than the test."""
    with running(pair, tmp_path, PATIENT) as system:
        yield system


def partner(key: int) -> int:
    """The row that each transaction changes together with this one."""
    return key + PAIRS if key <= PAIRS else key - PAIRS


def change(cursor: Any, key: int) -> None:
    both = key, partner(key)
    cursor.execute("BEGIN")
    cursor.execute("UPDATE customers SET v = v + 1 WHERE id IN (%s, %s)", both)
    cursor.execute("UPDATE orders SET total = total + 1 WHERE customer_id IN (%s, %s)", both)
    cursor.execute("COMMIT")


@contextmanager
def writing(system: System) -> Iterator[None]:
    """Transactions that raise ``v`` of two rows, and the totals of their orders, by one."""
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        keys = itertools.cycle(range(1, PAIRS + 1))

        def commit() -> None:
            change(cursor, next(keys))
            time.sleep(PAUSE_SECONDS)

        with repeating(commit):
            yield


def version(value: Any) -> int:
    """How often a row, or the only row of a list, was changed."""
    if isinstance(value, list):
        (row,) = value
        return int(row["total"])
    return int(value["v"])


@pytest.mark.parametrize("name", ["customer", "logged", "orders"])
def test_two_rows_of_one_transaction_are_of_one_moment(system: System, name: str) -> None:
    outcomes: Counter[ReadOutcome] = Counter()
    with closing(Cache.open(system.config_path)) as cache, writing(system):

        def read() -> bool:
            for number in range(READS):
                key = number % PAIRS + 1
                found = cache.get_many(name, [key, partner(key)], together=True, explain=True)
                one, two = found.values()
                assert version(one.value) == version(two.value), (one, two)
                outcomes[one.outcome] += 1
                cache.get_many(name, [key % PAIRS + 1, partner(key)])  # as others read, who fill
            return outcomes[ReadOutcome.HIT] >= HITS_MIN

        wait_until(read, "reads of entries", lambda: f"{outcomes}; {system.describe()}")
    assert set(outcomes) <= {ReadOutcome.HIT, ReadOutcome.TOGETHER}


@contextmanager
def open_either(path: Path, kind: str) -> Iterator[Any]:
    with closing(Cache.open(path)) if kind == "threads" else loop_cache(path) as cache:
        yield cache


def find_basket(system: System) -> list[tuple[str, int]]:
    """A row and a list on two nodes, which each transaction changes together."""
    baskets = ([("customer", key), ("orders", key)] for key in KEYS)
    return next(basket for basket in baskets if len({system.subject(*each).node for each in basket}) == 2)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_row_and_its_list_are_of_one_moment(system: System, kind: str) -> None:
    """At once and one after the other."""
    (row, key), (rows, _) = find_basket(system)
    ends: Counter[str] = Counter()
    with open_either(system.config_path, kind) as cache, writing(system):

        def read() -> bool:
            for number in range(READS):
                try:
                    with cache.together() as view:
                        if number % 2:
                            one, two = view.get_all([(row, key), (rows, key)], explain=True)
                        else:
                            one, two = view.get(row, key, explain=True), view.get(rows, key, explain=True)
                except StateChanged:
                    assert number % 2 == 0, "nothing was shown before"
                    ends["changed"] += 1
                    continue
                assert version(one.value) == version(two.value), (one, two)
                ends[two.outcome.name] += 1
            return ends["HIT"] >= HITS_MIN

        wait_until(read, "reads of entries", lambda: f"{ends}; {system.describe()}")
    assert set(ends) <= {"HIT", "TOGETHER", "changed"}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_without_the_option_a_row_and_its_list_are_of_two_moments(patient: System, kind: str) -> None:
    """The invalidator stands still: the row's entry is from before a commit, and the list is filled after it."""
    (row, key), (rows, _) = basket = find_basket(patient)
    with open_either(patient.config_path, kind) as cache:
        wait_for_hits(cache, row, [key], patient.describe)
        patient.settle()
        patient.invalidator.pause()
        try:
            with cache.together() as view:
                assert version(view.get(row, key)) == 0
                with patient.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
                    change(cursor, key)
                patient.pair.wait_caught_up()
                assert version(cache.get(rows, key)) == 1
                assert version(cache.get(row, key)) == 0, "beside it the row of before"
                with pytest.raises(StateChanged):
                    view.get(rows, key)
            with cache.together() as view:
                found = view.get_all(basket, explain=True)
            assert [version(each.value) for each in found] == [1, 1]
            assert [each.outcome for each in found] == [ReadOutcome.TOGETHER] * 2
        finally:
            patient.invalidator.resume()

        def are_hits() -> bool:
            with cache.together() as view:
                return all(each.is_hit for each in view.get_all(basket, explain=True))

        wait_until(are_hits, "entries of one moment", patient.describe)


def test_a_snapshot_is_read_where_the_nodes_are_down(system: System) -> None:
    for node in system.nodes:
        node.stop()
    with closing(Cache.open(system.config_path)) as cache:
        found = cache.get_many("customer", [1, partner(1)], together=True, explain=True)
        assert [each.outcome for each in found.values()] == [ReadOutcome.TOGETHER] * 2
        assert [each.value["v"] for each in found.values()] == [0, 0]


@pytest.mark.parametrize("order", ["", " ORDER BY `id` DESC LIMIT 5"], ids=["row", "list"])
def test_the_server_computes_the_bound_after_the_row(system: System, order: str) -> None:
    """The library's own statement waits for a lock while the server looks at the row. The row does not show a commit
    of that time, and the bound has it. The other way round the bound would prove nothing."""
    server = system.pair.primary
    shard = ShardDatabase(server.flavor, Shard(primary=ServerAddress("-"), lineage="shop/-"))
    nothing = shard.make_token(1, empty_position(server.flavor))
    condition = "`id` = 1 AND GET_LOCK(IF(v < 0, '', 'bound'), 600) = 1"  # so the row is read before
    with ExitStack() as stack:
        holder, connection = (stack.enter_context(server.connect("shop", user="root")) for _ in range(2))
        with holder.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute("SELECT GET_LOCK('bound', 600)")
            read = pool.submit(shard._select, connection, KeyedRows("`customers`", condition, ()), nothing, order)
            waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'User%lock%'"
            wait_until(lambda: server.execute(waiting)[0][0], "the read to wait")
            server.execute("UPDATE customers SET v = v + 1 WHERE id = 1", database="shop")
            committed = parse_position(server.flavor, server.executed())
            cursor.execute("SELECT RELEASE_LOCK('bound')")
            names, [row] = read.result()
    assert row[names.index("v")] == 0, "the row is of before the commit"
    until = parse_until(server.flavor, nothing, row[1])
    assert until is not None
    assert until.contains(committed)


def test_a_bound_is_stored_beside_the_position(system: System) -> None:
    with closing(Cache.open(system.config_path)) as cache:
        token = cache.get("customer", 1, explain=True).event_tokens["shop/-"]
    assert token.until is not None
    assert token.until.contains(token.position)
