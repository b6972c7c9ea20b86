"""Keys that are read together are of one moment (I11): rows on two nodes that one transaction changes.

And what the bound of an entry stands on: the server computes it when it sends the row.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, ReadOutcome
from appclient.database.required import KeyedRows
from appclient.database.shard import ShardDatabase
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.position import empty_position, parse_position
from freshness.stream.heartbeat import parse_until
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, repeating, running_system, wait_until
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


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE.replace("total INT)", "total INT, KEY (customer_id))"))
    with running_system(pair, tmp_path, tables=tables, objects=OBJECTS) as running:
        running.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        running.execute("INSERT INTO orders VALUES " + ", ".join(f"({key}, {key}, 0)" for key in KEYS))
        running.settle()
        running.wait_open()
        yield running


def partner(key: int) -> int:
    """The row that each transaction changes together with this one."""
    return key + PAIRS if key <= PAIRS else key - PAIRS


@contextmanager
def writing(system: System) -> Iterator[None]:
    """Transactions that raise ``v`` of two rows, and the totals of their orders, by one."""
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        keys = itertools.cycle(range(1, PAIRS + 1))

        def commit() -> None:
            key = next(keys)
            both = key, partner(key)
            cursor.execute("BEGIN")
            cursor.execute("UPDATE customers SET v = v + 1 WHERE id IN (%s, %s)", both)
            cursor.execute("UPDATE orders SET total = total + 1 WHERE customer_id IN (%s, %s)", both)
            cursor.execute("COMMIT")
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
