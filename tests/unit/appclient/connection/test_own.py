"""Reads inside the application's own transaction: on its connection, and nothing is looked up or stored (F19)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.cursors import DictCursor

from appclient import Cache, Explanation, LoaderConnection, ReadOutcome
from appclient.connection.own_pool import BorrowedConnection, OwnPool
from appclient.database.shard import ShardDatabase
from appclient.reading.lookup import Lookups
from appclient.reading.reader import NodeReads
from freshness.config.config import load_config
from freshness.errors import ConfigError, SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore

CONFIG = """[cache]
nodes = ["127.0.0.1:21"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
{shards}
[objects.customer]
table = "customers"
[objects.profile]
key = "customer_id"
members = {{ customers = "id", orders = "customer_id" }}
"""
ONE = '[[keyspaces.shop.shards]]\nprimary = "mysql://app@127.0.0.1:1/shop"'
TWO = """sharding = { column = "region", function = "hash" }
[[keyspaces.shop.shards]]
name = "-80"
primary = "mysql://app@127.0.0.1:1/shop"
[[keyspaces.shop.shards]]
name = "80-"
primary = "mysql://app@127.0.0.1:2/shop"
"""


class Own:
    """The application's connection with uncommitted rows. Its cursors give tuples or dictionaries."""

    def __init__(self, *, has_dicts: bool = False, **attributes: Any) -> None:
        self.has_dicts = has_dicts
        self.asked: list[tuple[str, list[Any]]] = []
        self.closed = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def cursor(self) -> Own:
        return self

    @property
    def description(self) -> list[tuple[str]]:
        return [("id",), ("name",)]

    def execute(self, sql: str, params: Sequence[Any] | None = None) -> None:
        self.asked.append((sql, list(params or ())))
        if "broken" in sql:
            raise ZeroDivisionError("the driver's own error")

    def fetchall(self) -> list[Any]:
        _, keys = self.asked[-1]
        return [{"id": key, "name": "mine"} if self.has_dicts else (key, "mine") for key in keys]

    def close(self) -> None:
        self.closed += 1


def open_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: str = ONE, **options: Any) -> Cache:
    columns = (KeyColumn("id", ColumnKind.INTEGER),)
    monkeypatch.setattr(Lookups, "_find_columns", lambda *_: columns)
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.format(shards=shards))
    store = MemoryStore("127.0.0.1:21", clock=lambda: 0.0)
    return Cache(load_config(path, {}), open_node=lambda *_: MemoryNode(store), **options)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The servers have no rows."""
    monkeypatch.setattr(ShardDatabase, "rows_with_token", lambda *_: ([], None))
    return open_cache(tmp_path, monkeypatch)


@pytest.mark.parametrize("has_dicts", [False, True])
def test_a_row_in_an_open_transaction(cache: Cache, has_dicts: bool) -> None:
    own = Own(has_dicts=has_dicts, in_transaction=True)
    read = cache.get("customer", 1, connection=own, explain=True)
    assert (read.value, read.outcome) == ({"id": 1, "name": "mine"}, ReadOutcome.OWN_TRANSACTION)
    assert not read.is_hit
    assert own.asked == [("SELECT * FROM `customers` WHERE (`id` = %s)", [1])]
    assert own.closed == 1
    assert cache.get("customer", 1) is None, "nothing was stored"


def test_many_rows_in_an_open_transaction(cache: Cache) -> None:
    own = Own(in_transaction=True)
    rows = cache.get_many("customer", [1, 2], connection=own)
    assert rows == {key: {"id": key, "name": "mine"} for key in (1, 2)}
    assert len(own.asked) == 1


def test_without_the_own_connection_the_own_row_is_not_seen(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """F19: a hit, or another connection, does not have what is not committed."""

    def sees_its_own() -> bool:
        return cache.get("customer", 1, connection=Own(in_transaction=True)) is not None

    assert sees_its_own()
    monkeypatch.setattr("appclient.reading.pipeline.is_dirty", lambda _: False)
    assert not sees_its_own()


def test_no_node_is_asked(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeReads, "open_reader", lambda _: pytest.fail("the cache was asked"))
    cache.get("customer", 1, connection=Own(in_transaction=True))


def test_without_an_open_transaction_the_cache_is_read(cache: Cache) -> None:
    own = Own(in_transaction=False)
    assert cache.get("customer", 1, connection=own) is None
    assert own.asked == []


def test_a_driver_that_does_not_say_is_in_doubt(cache: Cache) -> None:
    own = Own()
    assert cache.get("customer", 1, connection=own)["name"] == "mine"


def test_a_composite_in_an_open_transaction(cache: Cache) -> None:
    @cache.loader("profile")
    def load_profile(db: LoaderConnection, customer_id: int) -> Any:
        return db.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,)), (1, 2)

    own = Own(in_transaction=True)
    value = cache.get("profile", 7, connection=own)
    assert value == [{"id": 7, "name": "mine"}, [1, 2]], "as a hit would give it"


def test_the_drivers_own_errors_come_out(cache: Cache) -> None:
    @cache.loader("profile")
    def load_profile(db: LoaderConnection, customer_id: int) -> Any:
        return db.query("SELECT broken")

    own = Own(in_transaction=True)
    with pytest.raises(ZeroDivisionError, match="the driver's own error"):
        cache.get("profile", 7, connection=own)
    assert own.closed == 1


def test_an_object_of_several_shards_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(tmp_path, monkeypatch, TWO)
    with pytest.raises(ConfigError, match="customer is read from 2 shards"):
        cache.get("customer", 1, connection=Own(in_transaction=True))


def test_on_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Explanation] = []
    cache = open_cache(tmp_path, monkeypatch, on_read=told.append)
    cache.get("customer", 1, connection=Own(in_transaction=True))
    assert [each.outcome for each in told] == [ReadOutcome.OWN_TRANSACTION]


def test_a_connection_of_sqlalchemy_is_its_drivers(cache: Cache) -> None:
    own = Own(in_transaction=True)
    bound = SimpleNamespace(connection=SimpleNamespace(dbapi_connection=own))
    assert cache.get("customer", 1, connection=bound) == {"id": 1, "name": "mine"}
    with pytest.raises(ConfigError, match="connection= got a object"):
        cache.get("customer", 1, connection=object())


def test_two_columns_of_one_name_are_refused_of_an_own_pool() -> None:
    """A row as a dictionary would lack one of them."""
    pool = OwnPool(lambda: None, lambda _: None, lambda _: None, sqlite3.Error)
    cursor = BorrowedConnection(pool, sqlite3.connect(":memory:")).cursor(DictCursor)
    cursor.execute("SELECT 1 AS a, 2 AS b")
    assert cursor.fetchall() == [{"a": 1, "b": 2}]
    cursor.execute("SELECT 1 AS a, 2 AS a")
    with pytest.raises(SourceUnsuitable, match="two columns of one answer have the same name: a, a"):
        cursor.fetchall()
