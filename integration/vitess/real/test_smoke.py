"""The VStream source and the tokens of reads against a real Vitess: ``compose/vitess.yaml`` says how to start one.

Not part of ``make test``, which has no Docker: name this file to pytest. It fails where no Vitess answers.
FRESHNESS_VTGATE (``vitess:``) and FRESHNESS_VTGATE_MYSQL (``mysql:``) lead to another one; its tables are dropped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from freshness.config.settings import ServerAddress, Shard
from freshness.config.vtgate_address import VtgateAddress
from freshness.database.connection import Connection, connect, executed_position, read_rows
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.schema import key_columns
from freshness.database.vitess import VitessShard, read_with_token
from freshness.errors import SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind
from freshness.position import Position
from freshness.stream.source import RowChange, Transaction
from invalidator.process.preflight import check_shard
from invalidator.vstream.source import VStream, VStreamSource

ARRIVES_SECONDS = 60.0
VTGATE = VtgateAddress.parse(
    os.environ.get("FRESHNESS_VTGATE", "vitess://127.0.0.1:33575/shop?tablet_type=primary")
)
MYSQL = ServerAddress.parse(
    os.environ.get("FRESHNESS_VTGATE_MYSQL", "mysql://root@127.0.0.1:33577/shop"), os.environ
)
SHARD = os.environ.get("FRESHNESS_VTGATE_SHARD", "0")
WIDE_SHARDS = ("-80", "80-")
TABLES: dict[str, tuple[str, ...]] = {"customers": ()}


def shard_address(keyspace: str = VTGATE.keyspace, shard: str = SHARD) -> ServerAddress:
    return replace(MYSQL, database=VitessShard(keyspace, shard, "x", "primary").target)


@contextmanager
def connected(keyspace: str = VTGATE.keyspace, shard: str = SHARD) -> Iterator[Connection]:
    """To one shard: its primary executes the statements as they are."""
    connection = connect(shard_address(keyspace, shard))
    try:
        yield connection
    finally:
        connection.close()


def execute(*statements: str, keyspace: str = VTGATE.keyspace, shard: str = SHARD) -> Position:
    """Run the statements; the shard's position after them."""
    with connected(keyspace, shard) as connection:
        for statement in statements:
            read_rows(connection, statement)
        return executed_position(connection, "mysql")


class Stream:
    """A source from now on, and what it delivered."""

    def __init__(self, start: Position | None = None, **tables: tuple[str, ...]) -> None:
        self.source = VStreamSource(VTGATE, SHARD, tables or TABLES)
        self.position = self.source.find_current() if start is None else start
        self.source.open(self.position)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()

    def read_up_to(self, end: Position) -> list[Transaction]:
        received: list[Transaction] = []
        deadline = time.monotonic() + ARRIVES_SECONDS
        while not self.position.contains(end):
            assert time.monotonic() < deadline, f"{end} did not arrive; the last is {received[-1:]}"
            for transaction in self.source.poll(1.0, 100):
                received.append(transaction)
                self.position = self.position.union(transaction.position)
        return received


def changes_of(received: list[Transaction]) -> list[RowChange]:
    return [change for transaction in received for change in transaction.changes]


@pytest.fixture(autouse=True)
def customers() -> None:
    execute(
        "DROP TABLE IF EXISTS customers",
        "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))",
    )


def test_rows_come_with_their_images_and_positions() -> None:
    with Stream() as stream:
        end = execute(
            "INSERT INTO customers VALUES (1, 'Ann'), (2, NULL)",
            "UPDATE customers SET id = 3 WHERE id = 2",
            "DELETE FROM customers WHERE id = 1",
        )
        received = stream.read_up_to(end)
    assert changes_of(received) == [
        RowChange("customers", "insert", None, {"id": 1, "name": "Ann"}),
        RowChange("customers", "insert", None, {"id": 2, "name": None}),
        RowChange("customers", "update", {"id": 2, "name": None}, {"id": 3, "name": None}),
        RowChange("customers", "delete", {"id": 1, "name": "Ann"}, None),
    ]
    assert stream.position == end


def test_only_the_key_is_sent() -> None:
    with Stream(customers=("id",)) as stream:
        received = stream.read_up_to(execute("INSERT INTO customers VALUES (1, 'Ann')"))
    assert [change.after for change in changes_of(received)] == [{"id": 1}]


@pytest.mark.parametrize("sql", ["TRUNCATE TABLE customers", "ALTER TABLE customers ADD age INT"])
def test_ddl_raises_the_table(sql: str) -> None:
    with Stream() as stream:
        received = stream.read_up_to(execute(sql, "INSERT INTO customers (id, name) VALUES (1, 'Ann')"))
    assert {table for transaction in received for table in transaction.raised_tables} == {"customers"}
    assert len(changes_of(received)) == 1


def test_a_stream_is_opened_again_where_it_ended() -> None:
    with Stream() as stream:
        stream.read_up_to(execute("INSERT INTO customers VALUES (1, 'Ann')"))
    end = execute("INSERT INTO customers VALUES (2, 'Bob')")
    with Stream(stream.position) as again:
        received = again.read_up_to(end)
    assert [change.after for change in changes_of(received)] == [{"id": 2, "name": "Bob"}]


VALUES: dict[str, tuple[str, object]] = {
    "TINYINT": ("-128", -128),
    "BIGINT UNSIGNED": ("18446744073709551615", (1 << 64) - 1),
    "DECIMAL(10,2)": ("-12.5", Decimal("-12.50")),
    "DOUBLE": ("1.1", 1.1),
    "YEAR": ("2026", 2026),
    "DATE": ("'2026-01-31'", date(2026, 1, 31)),
    "DATETIME(3)": ("'2026-01-31 23:59:58.5'", datetime(2026, 1, 31, 23, 59, 58, 500_000)),  # noqa: DTZ001
    "TIME(2)": ("'-12:00:00.25'", -timedelta(hours=12, microseconds=250_000)),
    "CHAR(5) CHARACTER SET latin1": ("'ü'", "ü"),
    "VARCHAR(5) CHARACTER SET utf8mb4": ("'ü😀'", "ü😀"),
    "TEXT": ("'long'", "long"),
    "BINARY(4)": ("'A1'", b"A1"),
    "VARBINARY(4)": ("X'41003100'", b"A\x001\x00"),
    "BLOB": ("X'FF00'", b"\xff\x00"),
    "BIT(10)": ("b'1000000001'", "1000000001"),
    "ENUM('small','it''s')": ("'it''s'", "it's"),
    "SET('a','b','c')": ("'a,c'", {"a", "c"}),
    "JSON": ("""'{"a": [1, null]}'""", {"a": [1, None]}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_read_as_from_a_binary_log(kind: str) -> None:
    literal, value = VALUES[kind]
    execute("DROP TABLE IF EXISTS typed", f"CREATE TABLE typed (id INT PRIMARY KEY, c {kind})")
    with Stream(typed=()) as stream:
        received = stream.read_up_to(execute(f"INSERT INTO typed VALUES (1, {literal}), (2, NULL)"))
    assert [change.after for change in changes_of(received)] == [{"id": 1, "c": value}, {"id": 2, "c": None}]


def test_all_shards_of_a_keyspace() -> None:
    address = replace(VTGATE, keyspace="wide")
    for shard in WIDE_SHARDS:
        execute(
            "DROP TABLE IF EXISTS customers",
            "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))",
            keyspace="wide",
            shard=shard,
        )
    stream = VStream(address, TABLES)
    start = stream.find_current()
    assert set(start) == set(WIDE_SHARDS)
    stream.open(start)
    for key, shard in enumerate(WIDE_SHARDS):
        execute(f"INSERT INTO customers VALUES ({key}, 'x')", keyspace="wide", shard=shard)
    found: dict[str, Any] = {}
    deadline = time.monotonic() + ARRIVES_SECONDS
    while len(found) < len(WIDE_SHARDS):
        assert time.monotonic() < deadline, f"only {found}"
        for shard, transaction in stream.poll(1.0, 100):
            for change in transaction.changes:
                found[shard] = change.after
    stream.close()
    assert found == {"-80": {"id": 0, "name": "x"}, "80-": {"id": 1, "name": "x"}}


def test_our_heartbeat_goes_round_and_gives_reads_their_epoch() -> None:
    writer = HeartbeatWriter(shard_address(), "mysql", "compose", 0.005)
    writer.prepare()
    with Stream() as stream:
        sequence = writer.beat()
        received = stream.read_up_to(execute("INSERT INTO customers VALUES (1, 'Ann')"))
    writer.close()
    assert [beat.sequence for transaction in received for beat in transaction.heartbeats] == [sequence]
    shard = VitessShard(VTGATE.keyspace, SHARD, "shop/0", VTGATE.tablet_type)
    with connected() as connection:
        rows, token = read_with_token(connection, shard, lambda c: read_rows(c, "SELECT name FROM customers"))
        after = executed_position(connection, "mysql")
    assert rows == [("Ann",)]
    assert token is not None
    assert token.epoch >= 1
    assert token.position.contains(stream.position)
    assert after.contains(token.position)


def test_the_schema_is_read_where_no_shard_is_named() -> None:
    connection = connect(MYSQL)
    try:
        (column,) = key_columns(connection, MYSQL.database, "customers")
    finally:
        connection.close()
    assert (column.name, column.kind) == ("id", ColumnKind.INTEGER)


def test_what_a_tablet_must_be_can_be_asked() -> None:
    shard = Shard(name=SHARD, lineage="shop/0", primary=MYSQL, vtgate=VTGATE)
    assert shard.writable == shard_address()
    with connected() as connection:
        assert check_shard(connection, shard, "mysql", ["customers"]) == []


def test_a_keyspace_that_is_not_there_is_said() -> None:
    with pytest.raises(SourceUnsuitable):
        VStream(replace(VTGATE, keyspace="nowhere"), TABLES).find_current()
