"""The stream of one shard of a real Vitess with two tablets: rows, DDL of every kind, and its resume positions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final

import pytest

from freshness.position import Position
from freshness.stream.source import RowChange, Transaction
from freshness.stream.tables import MatchedTables
from integration.harness import wait_until
from integration.servers.vitess import Vitess
from integration.vitess.real.following import Follower, execute, executed
from invalidator.vstream import error
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.transaction import ShardAssembler

CUSTOMERS = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))"
KEYS = {"customers": ("id",)}
WHOLE: dict[str, tuple[str, ...]] = {"customers": ()}
SILENCE_SECONDS: Final = 2.0


@pytest.fixture(autouse=True)
def customers(vitess: Vitess) -> Iterator[None]:
    names = ("customers", "orders", "gone", "other")
    drops = [f"DROP TABLE IF EXISTS {name}" for name in names]
    execute(vitess, *drops, CUSTOMERS)
    vitess.wait_caught_up("0")
    yield
    execute(vitess, *drops)


def test_rows_come_from_a_replica(vitess: Vitess) -> None:
    with Follower(vitess, WHOLE) as stream:
        end = execute(
            vitess,
            "INSERT INTO customers VALUES (1, 'Ann'), (2, NULL)",
            "UPDATE customers SET id = 3 WHERE id = 2",
            "DELETE FROM customers WHERE id = 1",
        )
        stream.read_up_to(end)
    assert stream.changes == [
        RowChange("customers", "insert", None, {"id": 1, "name": "Ann"}),
        RowChange("customers", "insert", None, {"id": 2, "name": None}),
        RowChange("customers", "update", {"id": 2, "name": None}, {"id": 3, "name": None}),
        RowChange("customers", "delete", {"id": 1, "name": "Ann"}, None),
    ]
    assert stream.position == end
    assert not stream.ends


def test_only_the_key_is_sent(vitess: Vitess) -> None:
    with Follower(vitess, KEYS) as stream:
        stream.read_up_to(execute(vitess, "INSERT INTO customers VALUES (1, 'Ann')"))
    assert [change.after for change in stream.changes] == [{"id": 1}]


def test_tables_that_a_pattern_stands_for(vitess: Vitess) -> None:
    """Also one that is created while the stream is open; no table of Vitess's own."""
    with Follower(vitess, MatchedTables(["customers", "o*"], lambda: ["customers"])) as stream:
        end = execute(
            vitess,
            "INSERT INTO customers VALUES (1, 'Ann')",
            "CREATE TABLE orders (id BIGINT PRIMARY KEY)",
            "CREATE TABLE gone (id BIGINT PRIMARY KEY)",
            "INSERT INTO orders VALUES (7)",
            "INSERT INTO gone VALUES (8)",
            "RENAME TABLE gone TO other",
            "INSERT INTO other VALUES (9)",
        )
        stream.read_up_to(end)
    assert [(change.table, change.after) for change in stream.changes] == [
        ("customers", {"id": 1, "name": "Ann"}),
        ("orders", {"id": 7}),
        ("other", {"id": 9}),
    ]
    assert {"other"} <= stream.raised <= {"customers", "orders", "other"}


def test_a_stream_is_opened_again_where_it_ended(vitess: Vitess) -> None:
    with Follower(vitess, WHOLE) as stream:
        stream.read_up_to(execute(vitess, "INSERT INTO customers VALUES (1, 'Ann')"))
    end = execute(vitess, "INSERT INTO customers VALUES (2, 'Bob')")
    with Follower(vitess, WHOLE, start=stream.position) as again:
        again.read_up_to(end)
    assert [change.after for change in again.changes] == [{"id": 2, "name": "Bob"}]


def test_groups_without_rows_of_ours_come_as_positions(vitess: Vitess) -> None:
    with Follower(vitess, WHOLE) as stream:
        stream.read_up_to(
            execute(
                vitess,
                "CREATE TABLE other (id INT PRIMARY KEY)",
                "INSERT INTO other VALUES (1)",
                "INSERT INTO customers VALUES (1, 'Ann')",
            )
        )
    assert [change.table for change in stream.changes] == ["customers"]


def test_a_savepoint_takes_back_what_came_after_it(vitess: Vitess) -> None:
    primary = vitess.primary("0")
    with Follower(vitess, WHOLE) as stream:
        with primary.mysql.connect(primary.database) as connection, connection.cursor() as cursor:
            for statement in (
                "BEGIN",
                "INSERT INTO customers VALUES (1, 'Ann')",
                "SAVEPOINT here",
                "INSERT INTO customers VALUES (2, 'Bob')",
                "ROLLBACK TO here",
                "INSERT INTO customers VALUES (3, 'Cem')",
                "COMMIT",
            ):
                cursor.execute(statement)
        stream.read_up_to(execute(vitess))
    assert [change.after for change in stream.changes] == [{"id": 1, "name": "Ann"}, {"id": 3, "name": "Cem"}]


# -- rows from before a DDL ------------------------------------------------------------------------------

CHANGES_OF_SCHEMA = {
    "a column is added": "ALTER TABLE customers ADD age INT",
    "a column is added in front": "ALTER TABLE customers ADD age INT FIRST",
    "a column is dropped": "ALTER TABLE customers DROP name",
    "the key has another name": "ALTER TABLE customers CHANGE id number BIGINT",
    "the table is gone": "DROP TABLE customers",
    "the table has another name": "RENAME TABLE customers TO gone",
    "another table has its name": "RENAME TABLE customers TO gone, other TO customers",
}


def change_schema(vitess: Vitess, sql: str) -> Position:
    """A row, and the table changes behind it; the tablets know only its new form. The position behind the change."""
    changed = execute(vitess, "INSERT INTO customers VALUES (1, 'Ann')", sql)
    vitess.wait_caught_up("0")
    vitess.control("ReloadSchemaShard", f"{vitess.keyspace}/0")
    return changed


@pytest.mark.parametrize("tables", [KEYS, WHOLE], ids=["keys", "whole rows"])
@pytest.mark.parametrize("name", CHANGES_OF_SCHEMA)
def test_a_stream_gets_past_rows_from_before_a_ddl(
    vitess: Vitess, name: str, tables: dict[str, tuple[str, ...]]
) -> None:
    execute(vitess, "CREATE TABLE other (a VARCHAR(9) PRIMARY KEY, b INT, id INT)")
    start = execute(vitess)
    changed = change_schema(vitess, CHANGES_OF_SCHEMA[name])
    with Follower(vitess, tables, start=start) as stream:
        stream.read_up_to(changed)
        assert stream.raised == {"customers"}
        made_anew = ("DROP TABLE IF EXISTS customers", CUSTOMERS, "INSERT INTO customers VALUES (2, 'Bob')")
        stream.read_up_to(execute(vitess, *made_anew))
    assert stream.changes[-1].after is not None
    assert stream.changes[-1].after["id"] == 2


NEVER = re.compile(r"(?!)")
ATTEMPTS = 2


@pytest.mark.parametrize("removed", ["the mode of fields", "whole rows after a refusal"])
def test_without_its_remedy_a_stream_stays_before_a_table_that_is_gone(
    vitess: Vitess, removed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if removed == "the mode of fields":
        monkeypatch.setattr(pb, "BEST_EFFORT", 0)
    else:
        monkeypatch.setattr(error, "_UNFIT_COLUMNS", NEVER)
    start = execute(vitess)
    end = change_schema(vitess, "DROP TABLE customers")
    with Follower(vitess, KEYS, start=start) as stream:
        stream.read_until(lambda: len(stream.ends) >= ATTEMPTS, "the stream ends")
    assert not stream.position.contains(end)


# -- statements that change no rows ----------------------------------------------------------------------

CONCERNING = [
    "TRUNCATE TABLE customers",
    "ALTER TABLE customers ADD age INT",
    "ALTER TABLE customers RENAME TO gone",
    "ALTER TABLE other RENAME TO orders",
    "RENAME TABLE customers TO gone",
    "RENAME TABLE other TO orders",
    "RENAME TABLE other TO gone, customers TO other, gone TO customers",
    "DROP TABLE other, customers",
    "CREATE TABLE orders LIKE customers",
    "CREATE TABLE orders AS SELECT * FROM customers",
    "CREATE OR REPLACE VIEW orders AS SELECT * FROM customers",
    "ALTER TABLE parted EXCHANGE PARTITION p0 WITH TABLE customers",
    "ALTER TABLE other ENGINE = InnoDB, RENAME TO orders",
    "TRUNCATE {database}.customers",
    "DROP TABLE {database}.customers",
    "RENAME TABLE {database}.customers TO {database}.gone",
    "ALTER TABLE `{database}`.`customers` ADD age INT",
    "USE mysql; TRUNCATE {database}.customers",
    "USE mysql; DROP TABLE {database}.customers",
]
"""Each may change the rows of ``customers`` or ``orders``; vttablet keeps back the text of some."""


@pytest.mark.parametrize("sql", CONCERNING)
def test_a_statement_that_may_change_rows_raises_their_table(vitess: Vitess, sql: str) -> None:
    primary = vitess.primary("0")
    execute(
        vitess,
        "DROP TABLE IF EXISTS parted",
        "CREATE TABLE other (id BIGINT PRIMARY KEY, name VARCHAR(50))",
        "CREATE TABLE parted (id BIGINT PRIMARY KEY, name VARCHAR(50)) PARTITION BY HASH(id) PARTITIONS 2",
    )
    vitess.wait_caught_up("0")
    with Follower(vitess, {"customers": ("id",), "orders": ("id",)}) as stream:
        with primary.mysql.connect(primary.database) as connection, connection.cursor() as cursor:
            for statement in sql.format(database=primary.database).split("; "):
                cursor.execute(statement)
        stream.read_up_to(execute(vitess))
        wanted = "orders" if "orders" in sql else "customers"
        assert wanted in stream.raised
        with primary.mysql.connect(primary.database) as connection, connection.cursor() as cursor:
            cursor.execute("DROP VIEW IF EXISTS orders")
        execute(vitess, "DROP TABLE IF EXISTS parted")


@pytest.mark.parametrize("sql", ["ALTER TABLE other RENAME TO orders", "USE mysql; TRUNCATE {database}.customers"])
def test_a_statement_without_its_text_would_change_rows_unseen(
    vitess: Vitess, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = ShardAssembler._finish

    def forget(self: ShardAssembler, group: Any) -> list[Transaction]:
        group.is_untold = False
        return finish(self, group)

    monkeypatch.setattr(ShardAssembler, "_finish", forget)
    with pytest.raises(AssertionError, match=r"in set\(\)"):
        test_a_statement_that_may_change_rows_raises_their_table(vitess, sql)


# -- heartbeats, and changes that Vitess makes ---------------------------------------------------------


def test_a_stream_without_transactions_lives_by_the_heartbeats_of_vtgate(vitess: Vitess) -> None:
    with Follower(vitess, KEYS, silence_seconds=SILENCE_SECONDS) as stream:
        deadline = time.monotonic() + 3 * SILENCE_SECONDS
        while time.monotonic() < deadline:
            stream.read()
        assert stream.ends == []
        assert stream.changes == []
        stream.read_up_to(execute(vitess, "INSERT INTO customers VALUES (1, 'Ann')"))


def test_without_heartbeats_of_vtgate_a_stream_counts_as_dead(
    vitess: Vitess, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = partial(pb.VStreamFlags, heartbeat_interval=0)
    monkeypatch.setattr(pb, "VStreamFlags", lambda **flags: without(**{**flags, "heartbeat_interval": 0}))
    with Follower(vitess, KEYS, silence_seconds=SILENCE_SECONDS) as stream:
        stream.read_until(lambda: bool(stream.ends), "the silence is noticed")
    assert "not even a heartbeat" in stream.ends[0].message


def test_a_cascade_that_vitess_manages_comes_as_rows(vitess: Vitess) -> None:
    """vtgate deletes the children by a statement of its own. MySQL's cascades are in no log before 9.6."""
    tables: dict[str, Any] = {"customers": {}, "orders": {}, "freshness_heartbeat": {}}
    vitess.control("ApplyVSchema", "--vschema", json.dumps({"foreignKeyMode": "managed", "tables": tables}), "shop")
    try:
        execute(
            vitess,
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT, KEY (customer_id),"
            " FOREIGN KEY (customer_id) REFERENCES customers (id) ON DELETE CASCADE)",
            "INSERT INTO customers VALUES (1, 'Ann')",
            "INSERT INTO orders VALUES (7, 1)",
        )
        vitess.wait_caught_up("0")
        with (
            Follower(vitess, {"customers": ("id",), "orders": ("id",)}) as stream,
            closing(vitess.connect()) as connection,
        ):

            def is_managed() -> bool:
                with connection.cursor() as cursor:
                    cursor.execute("VEXPLAIN PLAN DELETE FROM customers WHERE id = 1")
                    return "fkcascade" in str(cursor.fetchall()).casefold()

            wait_until(is_managed, "vtgate knows the foreign key")
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM customers WHERE id = 1")
            connection.commit()
            stream.read_up_to(executed(vitess.primary("0")))
        gone = {(each.table, each.op, str(each.before)) for each in stream.changes}
        assert gone == {("orders", "delete", "{'id': 7}"), ("customers", "delete", "{'id': 1}")}
    finally:
        execute(vitess, "DROP TABLE orders")
        vitess.control("ApplyVSchema", "--vschema", json.dumps({"tables": tables}), "shop")
