"""Rows from the database as values for the cache: which of them may be stored, by the loader's own judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from appclient.database.database import Database
from appclient.reading.loader import ObjectLoader
from freshness.algorithm.lookup import Loaded, Lookup, ReadServer
from freshness.algorithm.request import LATEST
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet, parse_position
from freshness.position.token import EventToken

NAMES: Final = ("-80", "80-")
LINEAGES: Final = tuple(f"shop/{name}" for name in NAMES)
NUMBER: Final = KeyColumn("id", ColumnKind.INTEGER)
TEXT: Final = KeyColumn("id", ColumnKind.STRING, "utf8mb4_general_ci")
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def load(
    monkeypatch: pytest.MonkeyPatch, rows: Rows, keys: Sequence[object], column: KeyColumn = NUMBER
) -> list[Loaded]:
    """``rows``: the rows of each shard. The server of a shard without rows gives no token."""
    policy = ObjectPolicy("customer", 5, ("customers",), LINEAGES, 60)
    config = ObjectConfig(name="customer", keyspace="shop", table="customers")
    builder = KeyBuilder("shop", "customer", (column,))
    definition = ObjectDefinition(config, policy, builder, {"customers": (column,)})
    shards = [
        Shard(name=name, primary=ServerAddress(f"server{name}"), lineage=lineage)
        for name, lineage in zip(NAMES, LINEAGES, strict=True)
    ]
    database = Database(Keyspace(name="shop", flavor="mysql", shards=tuple(shards)))
    for name, lineage in zip(NAMES, LINEAGES, strict=True):
        token = EventToken(lineage, name, 1, 0, MysqlGtidSet()) if lineage in rows else None
        answer = list(rows.get(lineage, ())), token
        monkeypatch.setattr(database.shards[lineage], "rows_with_token", lambda *_, answer=answer: answer)
    lookups = []
    for value in keys:
        key = builder.build((value,))
        identity = definition.identity(key)
        lookups.append(Lookup(policy, "n1", key.item, identity, (value,), key.is_exact))
    return ObjectLoader(definition, database, None).load(lookups)


@pytest.mark.parametrize("others", [[], [2]])
def test_a_row_that_two_shards_have_is_not_stored(monkeypatch: pytest.MonkeyPatch, others: list[int]) -> None:
    """It moves between them, and nobody knows which of the two is the old one."""
    rows: Rows = {
        "shop/-80": [{"id": 1, "v": "old"}],
        "shop/80-": [{"id": 1, "v": "new"}, *({"id": number, "v": "x"} for number in others)],
    }
    first, *rest = load(monkeypatch, rows, [1, *others])
    assert first.refusal is ReadOutcome.KEY
    assert [each.refusal for each in rest] == [None] * len(others)


@pytest.mark.parametrize("row", [{"id": "a", "v": 1}, {"renamed": 1, "v": 1}])
@pytest.mark.parametrize("keys", [[1], [1, 2]])
def test_a_row_whose_key_is_of_another_type_is_not_stored(
    monkeypatch: pytest.MonkeyPatch, row: Mapping[str, Any], keys: list[int]
) -> None:
    """The column was altered, and nobody knows yet which key the row has."""
    loaded, *_ = load(monkeypatch, {"shop/-80": [row], "shop/80-": []}, keys)
    assert (loaded.value, loaded.refusal) == (row, ReadOutcome.KEY)


def test_a_row_of_one_shard_is_stored_with_the_tokens_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found, missing = load(monkeypatch, {"shop/-80": [{"id": 1}], "shop/80-": []}, [1, 2])
    assert (found.value, found.refusal, set(found.tokens)) == ({"id": 1}, None, set(LINEAGES))
    assert (missing.value, missing.refusal) == (None, None)


@pytest.mark.parametrize("unknown", [0, 2])
def test_of_many_rows_those_that_are_too_old_are_read_once_more(
    unknown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of which the node says nothing is read only once, of the primary."""
    policy = ObjectPolicy("customer", 5, ("customers",), LINEAGES[:1], 60)
    config = ObjectConfig(name="customer", keyspace="shop", table="customers")
    builder = KeyBuilder("shop", "customer", (NUMBER,))
    definition = ObjectDefinition(config, policy, builder, {"customers": (NUMBER,)})
    shard = Shard(name="-80", primary=ServerAddress("server"), lineage=LINEAGES[0])
    database = Database(Keyspace(name="shop", flavor="mysql", shards=(shard,)))
    asked: list[tuple[Any, str]] = []

    def token(numbers: str) -> EventToken:
        position = parse_position("mysql", f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{numbers}")
        return EventToken(LINEAGES[0], "-80", 1, 0, position)

    def rows_with_token(
        _: str, __: str, params: Any, ___: Any, ____: str, required: EventToken | None, servers: Any
    ) -> Any:
        servers[LINEAGES[0]] = ReadServer("server:3306", is_primary=required is not None)
        numbers = "" if required is None else str(required.position).rpartition(":")[2]
        asked.append((list(params), "latest" if required is LATEST else numbers))
        shown = token("1-3") if required else token("1")
        return [{"id": number, "is_new": required is not None} for number in params], shown

    monkeypatch.setattr(database.shards[LINEAGES[0]], "rows_with_token", rows_with_token)
    lookups = []
    for number in (1, 2, 3, 4):
        key = builder.build((number,))
        required = {LINEAGES[0]: LATEST if number == unknown else token(str(number))} if number < 4 else {}
        identity = definition.identity(key)
        lookups.append(Lookup(policy, "n1", key.item, identity, (number,), key.is_exact, required))
    loaded = ObjectLoader(definition, database, None).load(lookups)
    assert [each.value["is_new"] for each in loaded] == [False, True, True, False]
    assert [each.servers[LINEAGES[0]].is_primary for each in loaded] == [False, True, True, False]
    first, wanted = ([1, 3, 4], "latest") if unknown else ([1, 2, 3, 4], "2-3")
    assert asked == [(first, ""), ([2, 3], wanted)]


def test_without_the_token_of_each_shard_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in load(monkeypatch, {"shop/-80": [{"id": 1}]}, [1, 2]):
        assert loaded.refusal is ReadOutcome.NO_TOKEN


def test_a_row_that_is_spelled_otherwise_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """F24: the log names the row by its stored value, and would invalidate another entry."""
    rows: Rows = {"shop/-80": [{"id": "Müller"}], "shop/80-": []}
    (loaded,) = load(monkeypatch, rows, ["müller"], TEXT)
    assert (loaded.value, loaded.refusal) == ({"id": "Müller"}, ReadOutcome.KEY)
    (loaded,) = load(monkeypatch, rows, ["Müller"], TEXT)
    assert loaded.refusal is None


def test_a_composite_looks_alike_from_a_miss_and_from_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit decodes what was stored, and stores keep no tuples."""
    policy = ObjectPolicy("report", 5, ("customers",), LINEAGES[:1], 60)
    config = ObjectConfig(name="report", keyspace="shop", key=("id",), members={"customers": ("id",)})
    definition = ObjectDefinition(config, policy, KeyBuilder("shop", "report", (NUMBER,)), {"customers": (NUMBER,)})
    shard = Shard(name="-", primary=ServerAddress("server"), lineage=LINEAGES[0])
    database = Database(Keyspace(name="shop", flavor="mysql", shards=(shard,)))
    monkeypatch.setattr(database, "snapshot", lambda _, build, *__: (build(None), []))
    loader = ObjectLoader(definition, database, lambda _, key: {"facts": (key, 2)})
    key = definition.builder.build((1,))
    (loaded,) = loader.load([Lookup(policy, "n1", key.item, b"1", (1,), key.is_exact)])
    assert loaded.value == {"facts": [1, 2]}


def load_list(
    monkeypatch: pytest.MonkeyPatch, rows: Sequence[Mapping[str, Any]], *, has_token: bool = True
) -> tuple[Loaded, list[Any]]:
    """(what is loaded, what the shard was asked)."""
    policy = ObjectPolicy("latest", 5, ("orders",), LINEAGES[:1], 60)
    config = ObjectConfig(name="latest", keyspace="shop", table="orders", key=("id",), order_by=("v desc",), limit=2)
    order = (("v", True), ("number", False))
    builder = KeyBuilder("shop", "latest", (NUMBER,))
    definition = ObjectDefinition(config, policy, builder, {"orders": (NUMBER,)}, None, order)
    shard = Shard(name="-80", primary=ServerAddress("server"), lineage=LINEAGES[0])
    database = Database(Keyspace(name="shop", flavor="mysql", shards=(shard,)))
    asked: list[Any] = []
    token = EventToken(LINEAGES[0], "-80", 1, 0, MysqlGtidSet()) if has_token else None

    def rows_with_token(*parts: Any) -> tuple[list[Any], EventToken | None]:
        asked.append(parts)
        return list(rows), token

    monkeypatch.setattr(database.shards[LINEAGES[0]], "rows_with_token", rows_with_token)
    key = builder.build((1,))
    lookup = Lookup(policy, "n1", key.item, definition.identity(key), (1,), key.is_exact)
    (loaded,) = ObjectLoader(definition, database, None).load([lookup])
    return loaded, asked


def test_a_list_is_read_by_one_statement_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": 1, "v": 9}, {"id": 1, "v": 8}]
    loaded, asked = load_list(monkeypatch, rows)
    assert (loaded.value, loaded.refusal, set(loaded.tokens)) == (rows, None, {LINEAGES[0]})
    order = " ORDER BY `v` DESC, `number` LIMIT 2"
    assert asked == [("`orders`", "(`id` = %s)", [1], None, order, None, {})]


def test_a_list_without_rows_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _ = load_list(monkeypatch, [])
    assert (loaded.value, loaded.refusal) == ([], None)


def test_a_list_without_a_token_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_list(monkeypatch, [], has_token=False)[0].refusal is ReadOutcome.NO_TOKEN


def test_a_list_with_a_row_of_another_key_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """F46: a change of that row would name another entry."""
    loaded, _ = load_list(monkeypatch, [{"id": 1, "v": 9}, {"id": 2, "v": 8}])
    assert loaded.refusal is ReadOutcome.KEY
