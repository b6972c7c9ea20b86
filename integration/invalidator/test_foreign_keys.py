"""Rows that foreign keys change (F23), on servers that log them and on servers that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from freshness.stream.source import Transaction
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, running_system, wait_for_hits
from integration.invalidator.test_binlog import head_of, run, stream_of, streaming
from integration.servers import DatabaseServer, Flavor, Pair, database_pair

NATIVE: Final = "--innodb-native-foreign-keys=ON"
"""Cascades as in all MySQL before 9.6: within InnoDB, and in no log."""

KINDS: Final[dict[str, tuple[Flavor, tuple[str, ...]]]] = {
    "mariadb": ("mariadb", ()),
    "mysql": ("mysql", ()),
    "mysql, not logged": ("mysql", (NATIVE,)),
}
FAMILY: Final = (
    "CREATE TABLE parent (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parent (id)"
    " ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE grandchild (id INT PRIMARY KEY, child INT, FOREIGN KEY (child) REFERENCES child (id)"
    " ON DELETE SET NULL)",
    "INSERT INTO parent VALUES (1, 1), (2, 2)",
    "INSERT INTO child VALUES (10, 1), (20, 2)",
    "INSERT INTO grandchild VALUES (100, 10), (200, 20)",
)
ORDERS: Final = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT, total INT,"
    " FOREIGN KEY (customer_id) REFERENCES customers (id) ON DELETE CASCADE ON UPDATE SET NULL)"
)
LINES: Final = (
    "CREATE TABLE order_lines (id BIGINT PRIMARY KEY, order_id BIGINT,"
    " FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE)"
)
LINE: Final = '[objects.line]\ntable = "order_lines"\n'
ORDER: Final = '[objects.order]\ntable = "orders"\n'


@pytest.fixture(scope="module", params=KINDS)
def own_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    flavor, options = KINDS[request.param]
    with database_pair(flavor, primary_options=options, replica_options=options) as pair:
        yield pair


@pytest.fixture
def pair(own_pair: Pair) -> Pair:
    """With an empty schema ``shop``."""
    own_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    own_pair.primary.execute("CREATE DATABASE shop")
    own_pair.wait_caught_up()
    return own_pair


@pytest.fixture
def server(pair: Pair) -> DatabaseServer:
    return pair.primary


def touched_by(transaction: Transaction) -> frozenset[str]:
    return transaction.raised_tables | {change.table for change in transaction.changes}


def is_native(server: DatabaseServer) -> bool:
    return server.execute("SHOW VARIABLES LIKE 'innodb_native_foreign_keys'") == [
        ("innodb_native_foreign_keys", "ON")
    ]


def test_rows_that_a_foreign_key_changes_are_not_lost(server: DatabaseServer) -> None:
    run(server, *FAMILY)
    received = stream_of(
        server,
        "DELETE FROM parent WHERE id = 1",
        "UPDATE parent SET id = 3 WHERE id = 2",
        "DELETE FROM child WHERE id = 20",
    )
    assert [touched_by(each) for each in received] == [{"child", "grandchild"}, {"child"}, {"child", "grandchild"}]


def test_a_change_that_reaches_no_key_raises_nothing(server: DatabaseServer) -> None:
    run(server, *FAMILY)
    received = stream_of(
        server,
        "UPDATE parent SET v = 9",
        "INSERT INTO parent VALUES (5, 5)",
        "SET foreign_key_checks = 0",
        "DELETE FROM parent WHERE id = 1",
    )
    # MariaDB announces children whatever column changes, and whether foreign keys are checked or not.
    expected = [{"child"}, set(), {"child", "grandchild"}] if server.flavor == "mariadb" else [set()] * 3
    assert [touched_by(each) for each in received] == expected
    assert server.execute("SELECT COUNT(*) FROM shop.child") == [(2,)]


def test_a_foreign_key_to_its_own_table(server: DatabaseServer) -> None:
    run(
        server,
        "CREATE TABLE child (id INT PRIMARY KEY, boss INT, FOREIGN KEY (boss) REFERENCES child (id)"
        " ON DELETE CASCADE)",
        "INSERT INTO child VALUES (1, NULL), (2, 1), (3, 2)",
    )
    [transaction] = stream_of(server, "DELETE FROM child WHERE id = 1")
    deleted = {(change.before or {})["id"] for change in transaction.changes}
    assert transaction.raised_tables == {"child"} or deleted == {1, 2, 3}


def test_a_foreign_key_of_two_columns_of_which_one_changes(server: DatabaseServer) -> None:
    """The child is the member of a composite by both columns: it moves from one key to another."""
    run(
        server,
        "CREATE TABLE parent (tenant INT, slug INT, v INT, PRIMARY KEY (tenant, slug))",
        "CREATE TABLE child (id INT PRIMARY KEY, tenant INT, page INT, FOREIGN KEY (tenant, page)"
        " REFERENCES parent (tenant, slug) ON DELETE SET NULL ON UPDATE CASCADE)",
        "INSERT INTO parent VALUES (1, 1, 0), (1, 2, 0)",
        "INSERT INTO child VALUES (10, 1, 1), (20, 1, 2)",
    )
    received = stream_of(
        server,
        "UPDATE parent SET slug = 3 WHERE slug = 1",
        "UPDATE parent SET tenant = 2 WHERE slug = 3",
        "DELETE FROM parent WHERE slug = 2",
        "UPDATE parent SET v = 1",
    )
    by_value = {"child"} if server.flavor == "mariadb" else set()  # it announces the child of every update
    assert [touched_by(each) for each in received] == [{"child"}] * 3 + [by_value]


def test_a_parent_in_another_database(server: DatabaseServer) -> None:
    server.execute("DROP DATABASE IF EXISTS elsewhere")
    server.execute("CREATE DATABASE elsewhere")
    run(
        server,
        "CREATE TABLE elsewhere.parent (id VARCHAR(10) PRIMARY KEY, v INT)",
        "CREATE TABLE child (id INT PRIMARY KEY, parent VARCHAR(10),"
        " FOREIGN KEY (parent) REFERENCES elsewhere.parent (id) ON DELETE SET NULL ON UPDATE CASCADE)",
        "INSERT INTO elsewhere.parent VALUES ('a', 1), ('b', 2)",
        "INSERT INTO child VALUES (1, 'a'), (2, 'b')",
    )
    received = stream_of(
        server,
        "INSERT INTO elsewhere.parent VALUES ('d', 1)",
        "UPDATE elsewhere.parent SET id = 'c' WHERE id = 'a'",
        "DELETE FROM elsewhere.parent WHERE id = 'b'",
    )
    assert [touched_by(each) for each in received[1:]] == [{"child"}, {"child"}]
    run(server, "DROP TABLE child", "DROP DATABASE elsewhere")


def test_foreign_keys_that_were_gone_when_the_log_was_read(server: DatabaseServer) -> None:
    """The chain to the grandchild is cut in a table that nobody caches, before the stream is opened."""
    run(server, *FAMILY)
    start = head_of(server)
    run(server, "DELETE FROM parent WHERE id = 1")
    [(name,)] = server.execute(
        "SELECT constraint_name FROM information_schema.referential_constraints"
        " WHERE constraint_schema = 'shop' AND table_name = 'child'"
    )
    run(server, f"ALTER TABLE child DROP FOREIGN KEY {name}")
    with streaming(server, start) as stream:
        received = stream.read_up_to(head_of(server))
    assert {"child", "grandchild"} <= set().union(*map(touched_by, received))


def test_a_foreign_key_that_is_new(server: DatabaseServer) -> None:
    run(server, *FAMILY[:1], FAMILY[3], "CREATE TABLE child (id INT PRIMARY KEY, parent INT)")
    run(server, "INSERT INTO child VALUES (10, 1), (20, 2)")
    received = stream_of(
        server,
        "ALTER TABLE child ADD FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE",
        "DELETE FROM parent WHERE id = 1",
    )
    assert [touched_by(each) for each in received] == [{"child"}, {"child"}]


def test_a_child_whose_parent_was_deleted_is_not_served(pair: Pair, tmp_path: Path) -> None:
    """The parent's rows are read for keys alone; the fast track reads them if the log is whole."""
    with running_system(
        pair, tmp_path, tables=(CUSTOMERS_TABLE, ORDERS, LINES), objects=CUSTOMER + ORDER + LINE
    ) as system:
        system.execute("INSERT INTO customers VALUES (1, 'n', 0), (2, 'n', 0), (3, 'n', 0)")
        system.execute("INSERT INTO orders VALUES (10, 1, 5), (20, 2, 5), (30, 3, 5)")
        system.execute("INSERT INTO order_lines VALUES (100, 10), (200, 20), (300, 30)")
        system.settle()
        cache = system.open_cache()
        for name, keys in (("customer", [1, 2, 3]), ("order", [10, 20, 30]), ("line", [100, 200, 300])):
            wait_for_hits(cache, name, keys, system.describe)
        system.execute("UPDATE customers SET v = 1 WHERE id = 3")
        system.wait_covered()
        if pair.primary.flavor == "mysql":
            assert cache.get("order", 30, explain=True).is_hit
        system.execute("DELETE FROM customers WHERE id = 1")
        system.settle()
        assert (cache.get("order", 10), cache.get("line", 100)) == (None, None)
        system.execute("UPDATE customers SET id = 4 WHERE id = 2")
        system.settle()
        assert cache.get("order", 20) == {"id": 20, "customer_id": None, "total": 5}
        for name, keys in (("order", [10, 20, 30]), ("line", [100, 200, 300])):
            system.assert_none_stale(cache, name, keys)
        assert ("raises the table floor" in system.invalidator.log()) is not (
            pair.primary.flavor == "mysql" and not is_native(pair.primary)
        )
        cache.close()
