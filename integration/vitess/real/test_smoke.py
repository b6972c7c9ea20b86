"""A whole Vitess in one process (vtcombo): what a keyspace of it is asked and answers, in a few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position, read_rows
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.schema import key_columns
from freshness.database.vitess import VitessShard, read_with_token
from freshness.errors import SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind
from freshness.position import Position
from integration.servers.vitess import Vtcombo
from integration.vitess.real.following import ARRIVES_SECONDS, Follower
from invalidator.rules.primary import check_shard
from invalidator.vstream.source import VStream

CUSTOMERS = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))"
WHOLE: dict[str, tuple[str, ...]] = {"customers": ()}
SHOP = "shop:0@primary"


@pytest.fixture(scope="module")
def combo() -> Iterator[Vtcombo]:
    with Vtcombo() as made:
        yield made


@pytest.fixture(autouse=True)
def customers(combo: Vtcombo) -> None:
    execute(combo, "DROP TABLE IF EXISTS customers", CUSTOMERS)


def execute(combo: Vtcombo, *statements: str, target: str = SHOP) -> Position:
    """Through vtgate, on one shard; its position after them."""
    with closing(connect(combo.mysql_address(target))) as connection:
        for statement in statements:
            read_rows(connection, statement)
        return executed_position(connection, "mysql")


def test_rows_come(combo: Vtcombo) -> None:
    with Follower(combo, WHOLE, parts={"tablet_type": "primary"}) as stream:
        stream.read_up_to(execute(combo, "INSERT INTO customers VALUES (1, 'Ann')"))
    assert [change.after for change in stream.changes] == [{"id": 1, "name": "Ann"}]


def test_all_shards_of_a_keyspace(combo: Vtcombo) -> None:
    shards = ("-80", "80-")
    for shard in shards:
        execute(combo, "DROP TABLE IF EXISTS customers", CUSTOMERS, target=f"wide:{shard}@primary")
    stream = VStream(combo.address("wide", tablet_type="primary"), WHOLE)
    start = stream.find_current()
    assert set(start) == set(shards)
    stream.open(start)
    for key, shard in enumerate(shards):
        execute(combo, f"INSERT INTO customers VALUES ({key}, 'x')", target=f"wide:{shard}@primary")
    found: dict[str, Any] = {}
    deadline = time.monotonic() + ARRIVES_SECONDS
    while len(found) < len(shards):
        assert time.monotonic() < deadline, f"only {found}"
        for shard, transaction in stream.poll(1.0, 100):
            for change in transaction.changes:
                found[shard] = change.after
    stream.close()
    assert found == {"-80": {"id": 0, "name": "x"}, "80-": {"id": 1, "name": "x"}}


def test_a_heartbeat_goes_round_and_gives_reads_their_epoch(combo: Vtcombo) -> None:
    writer = HeartbeatWriter(combo.mysql_address(SHOP), "mysql", "smoke", 0.005)
    writer.prepare()
    with Follower(combo, WHOLE, parts={"tablet_type": "primary"}) as stream:
        sequence = writer.beat()
        stream.read_up_to(execute(combo, "INSERT INTO customers VALUES (1, 'Ann')"))
    writer.close()
    assert [beat.sequence for each in stream.received for beat in each.heartbeats] == [sequence]
    shard = VitessShard("shop", "0", "shop/0", "primary")
    with closing(connect(combo.mysql_address(SHOP))) as connection:
        rows, token = read_with_token(connection, shard, lambda c: read_rows(c, "SELECT name FROM customers"))
        after = executed_position(connection, "mysql")
    assert rows == [("Ann",)]
    assert token is not None
    assert token.epoch >= 1
    assert token.position.contains(stream.position)
    assert after.contains(token.position)


@pytest.mark.parametrize("target", ["shop", SHOP, "shop:0@replica"])
def test_the_schema_is_read_in_every_session(combo: Vtcombo, target: str) -> None:
    with closing(connect(combo.mysql_address(target))) as connection:
        (column,) = key_columns(connection, target, "customers")
    assert (column.name, column.kind) == ("id", ColumnKind.INTEGER)


def test_the_checks_of_a_shard_can_be_asked(combo: Vtcombo) -> None:
    shop: ServerAddress = combo.mysql_address("shop")
    shard = Shard(name="0", lineage="shop/0", primary=shop, vtgate=combo.address(tablet_type="primary"))
    assert shard.writable == combo.mysql_address(SHOP)
    with closing(connect(shard.writable)) as connection:
        assert check_shard(connection, shard, "mysql", ["customers"]) == []


def test_a_keyspace_that_is_not_there_is_said(combo: Vtcombo) -> None:
    with pytest.raises(SourceUnsuitable, match="no such keyspace"):
        VStream(combo.address("nowhere"), WHOLE).find_current()
