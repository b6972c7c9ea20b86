"""Values as instances of the application's own classes, and classes that do not fit."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from appclient import AsyncCache, Cache
from appclient.database.shard import ShardDatabase
from appclient.reading.loader import ObjectLoader
from freshness.algorithm.lookup import Loaded
from freshness.algorithm.rule import ReadOutcome
from freshness.config.config import load_config
from freshness.errors import ConfigError, FormatError
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore
from tests.unit.appclient.test_cache import CONFIG

ROW = {"id": 1, "kind": "b", "yes": 1, "price": Decimal("1.50"), "at": datetime(2026, 1, 2), "note": None}  # noqa: DTZ001


class Kind(enum.Enum):
    A = "a"
    B = "b"


@dataclass
class ByDataclass:
    id: int
    kind: Kind
    yes: bool
    price: Decimal
    at: datetime
    note: str | None


@attrs.define
class ByAttrs:
    id: int
    kind: Kind
    yes: bool
    price: Decimal
    at: datetime
    note: str | None


class ByStruct(msgspec.Struct):
    id: int
    kind: Kind
    yes: bool
    price: Decimal
    at: datetime
    note: str | None


class ByPydantic(pydantic.BaseModel):
    id: int
    kind: Kind
    yes: bool
    price: Decimal
    at: datetime
    note: str | None


class ByTypedDict(TypedDict):
    id: int
    kind: Kind
    yes: bool
    price: Decimal
    at: datetime
    note: str | None


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a database with one customer, whose key is 1."""
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: (KeyColumn("id", ColumnKind.INTEGER),))

    def load(_: Any, lookups: Any, *__: Any) -> list[Loaded]:
        found = [ROW if lookup.values == (1,) else None for lookup in lookups]
        return [Loaded(value, {}, ReadOutcome.NO_TOKEN) for value in found]

    monkeypatch.setattr(ObjectLoader, "load", load)
    (tmp_path / "freshness.toml").write_text(CONFIG)
    return tmp_path / "freshness.toml"


def open_node(_: Any, name: str) -> MemoryNode:
    return MemoryNode(MemoryStore(name, clock=lambda: 1000.0))


@pytest.mark.parametrize("model", [ByDataclass, ByAttrs, ByStruct, ByPydantic])
def test_values_are_instances(path: Path, model: type[Any]) -> None:
    customers = Cache(load_config(path, {}), open_node=open_node).of("customer", model)
    expected = model(id=1, kind=Kind.B, yes=True, price=Decimal("1.50"), at=ROW["at"], note=None)
    assert customers.get(1) == expected
    assert customers.get(2) is None
    assert customers.get_many([1, 2]) == {1: expected, 2: None}


def test_values_are_typed_dictionaries(path: Path) -> None:
    customers = Cache(load_config(path, {}), open_node=open_node).of("customer", ByTypedDict)
    assert customers.get(1) == {**ROW, "kind": Kind.B, "yes": True}


def test_values_are_instances_on_an_event_loop(path: Path) -> None:
    async def read() -> None:
        cache = await AsyncCache.create(load_config(path, {}), open_node=open_node)
        customers = cache.of("customer", ByDataclass)
        found = await customers.get(1)
        assert found is not None
        assert found.kind is Kind.B
        assert await customers.get_many([1, 2]) == {1: found, 2: None}
        await cache.close()

    asyncio.run(read())


class Other(msgspec.Struct):
    id: str
    note: str


class OtherByPydantic(pydantic.BaseModel):
    id: datetime
    note: str


@pytest.mark.parametrize("model", [Other, OtherByPydantic])
def test_a_value_that_does_not_fit_is_an_error(path: Path, model: type[Any]) -> None:
    customers = Cache(load_config(path, {}), open_node=open_node).of("customer", model)
    with pytest.raises(FormatError, match="customer does not fit Other"):
        customers.get(1)
    with pytest.raises(FormatError, match="where they are nullable"):
        customers.get_many([1])
    assert customers.get(2) is None


@pytest.mark.parametrize("model", [int, object, Path, list])
def test_a_class_that_is_no_model_is_refused(path: Path, model: type[Any]) -> None:
    cache = Cache(load_config(path, {}), open_node=open_node)
    with pytest.raises(ConfigError, match="expected a dataclass"):
        cache.of("customer", model)
    with pytest.raises(ConfigError, match="unknown object"):
        cache.of("nothing", ByStruct)
