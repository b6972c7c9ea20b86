"""Keys that are invalidated by hand, on nodes in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.envelope import (
    NodeRecord,
    Stripe,
    decode_wanted,
    record_key,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.request import Add, Get
from freshness.config.config import load_config
from freshness.errors import FormatError, NodeUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.registry import build_registry
from freshness.position import MysqlGtidSet
from invalidator.process.by_hand import invalidate_keys

NODES = ("n1:1", "n2:1")
STRIPES = 64
LINEAGE = "shop/-"
LIFE = b"lifelife"
POSITION = MysqlGtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-10")
CONFIG = f"""
[cache]
nodes = {list(NODES)}
namespace = "shop"
stripes = {STRIPES}
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
[objects.seat]
table = "seats"
"""
COLUMNS = {
    "customers": (KeyColumn("id", ColumnKind.INTEGER),),
    "seats": (KeyColumn("hall", ColumnKind.INTEGER), KeyColumn("seat", ColumnKind.INTEGER)),
}


@dataclass
class Shop:
    """Nodes that hold customers and all their stripes. ``stripes``: the number in their records."""

    folder: Path
    stripes: int = STRIPES
    stores: dict[str, MemoryStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.folder / "freshness.toml"
        path.write_text(CONFIG)
        self.config = load_config(path, {})
        self.registry = build_registry(self.config, lambda _, table, *__: COLUMNS[table], lambda *_: b"")
        self.stores = {name: MemoryStore(name, clock=lambda: 1000.0) for name in NODES}
        stripe = Stripe(LIFE, POSITION).encode()
        for store in self.stores.values():
            adds = [
                Add(stripe_key("shop", LINEAGE, number), stripe, 0) for number in range(max(self.stripes, STRIPES))
            ]
            MemoryNode(store).perform([*adds, Get(wanted_key("shop", LINEAGE), 60)])

    def add_records(self) -> None:
        record = NodeRecord(
            LINEAGE, LIFE, LIFE, True, 1, 1, 0, 0, "", self.stripes, progress=POSITION, floor=POSITION
        )
        for name, store in self.stores.items():
            data = replace(record, node=name).encode()
            MemoryNode(store).perform([Add(record_key("shop", LINEAGE), data, 0, is_bound=True)])

    def add(self, item: bytes) -> None:
        MemoryNode(self.store_of(item)).perform([Add(item, b"old", 0)])

    def invalidate(self, name: str, *texts: str) -> list[bytes]:
        found = invalidate_keys(
            self.config, self.registry, name, texts, lambda _, node: MemoryNode(self.stores[node])
        )
        return [each.item for each in found]

    def store_of(self, item: bytes) -> MemoryStore:
        return self.stores[Placement(NODES, "shop").node_for(item)]

    def missing(self, store: MemoryStore) -> list[int]:
        numbers = range(max(self.stripes, STRIPES))
        return [number for number in numbers if store.peek(stripe_key("shop", LINEAGE, number)) is None]

    def wanted(self, store: MemoryStore) -> list[int]:
        item = store.peek(wanted_key("shop", LINEAGE))
        assert item is not None
        return sorted(decode_wanted(item.value))


@pytest.mark.parametrize("stripes", [STRIPES, 3 * STRIPES], ids=["as configured", "of another configuration"])
def test_keys_and_their_stripes_are_gone_and_no_others(tmp_path: Path, stripes: int) -> None:
    shop = Shop(tmp_path, stripes)
    shop.add_records()
    asked = [b"shop:customer:%d" % key for key in range(10)]
    for item in [*asked, b"shop:customer:10"]:
        shop.add(item)
    assert shop.invalidate("customer", *map(str, range(10))) == asked
    assert [shop.store_of(item).peek(item) for item in asked] == [None] * 10
    assert shop.store_of(b"shop:customer:10").peek(b"shop:customer:10") is not None
    for store in shop.stores.values():
        mine = {stripe_number(item, stripes) for item in asked if shop.store_of(item) is store}
        assert mine
        assert shop.missing(store) == shop.wanted(store) == sorted(mine)


def test_a_life_without_record_loses_the_stripes_too_since_it_may_be_revived(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    (item,) = shop.invalidate("customer", "7")
    assert shop.missing(shop.store_of(item)) == [stripe_number(item, STRIPES)]


def test_a_key_goes_from_its_previous_node_first(tmp_path: Path) -> None:
    """A reader that misses on the present node would find it there, and move it."""
    shop = Shop(tmp_path)
    cache = replace(shop.config.cache, nodes=NODES, previous_nodes=NODES[:1])
    shop.config = replace(shop.config, cache=cache)
    moving = next(n for n in range(99) if shop.store_of(b"shop:customer:%d" % n).name == NODES[1])
    for store in shop.stores.values():
        MemoryNode(store).perform([Add(b"shop:customer:%d" % moving, b"old", 0)])
    asked: list[str] = []

    def open_connection(_: object, name: str) -> MemoryNode:
        asked.append(name)
        return MemoryNode(shop.stores[name])

    (found,) = invalidate_keys(shop.config, shop.registry, "customer", [str(moving)], open_connection)
    assert asked == [found.previous_node, found.node] == [*NODES]
    for store in shop.stores.values():
        assert store.peek(found.item) is None
        assert shop.missing(store) == [stripe_number(found.item, STRIPES)]


def test_the_stripe_goes_before_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other order, a reader could fill in between from a replica that lags."""
    shop = Shop(tmp_path)
    deleted: list[bytes] = []
    delete = MemoryStore._delete

    def noting(self: MemoryStore, request: Any) -> Any:
        deleted.append(request.key)
        return delete(self, request)

    monkeypatch.setattr(MemoryStore, "_delete", noting)
    (item,) = shop.invalidate("customer", "7")
    assert deleted == [stripe_key("shop", LINEAGE, stripe_number(item, STRIPES)), item]


def test_a_key_that_does_not_name_its_shard_loses_a_stripe_of_each(tmp_path: Path) -> None:
    """Its value depends on all of them, and each alone would let it be stored again."""
    shop, lineages = Shop(tmp_path), ("shop/-80", "shop/80-")
    shards = "".join(
        f'[[keyspaces.shop.shards]]\nname = "{lineage[5:]}"\nprimary = "mysql://app@127.0.0.1:{port}/shop"\n'
        for port, lineage in enumerate(lineages, 1)
    )
    head, _, objects = CONFIG.partition("[[keyspaces.shop.shards]]")
    sharding = 'sharding = { column = "region", function = "hash" }\n'
    path = tmp_path / "sharded.toml"
    path.write_text(head + sharding + shards + objects[objects.index("[objects.") :])
    shop.config = load_config(path, {})
    shop.registry = build_registry(shop.config, lambda _, table, *__: COLUMNS[table], lambda *_: b"")
    item = b"shop:customer:7"
    names = [stripe_key("shop", lineage, stripe_number(item, STRIPES)) for lineage in lineages]
    store = shop.store_of(item)
    MemoryNode(store).perform([Add(name, b"a stripe", 0) for name in names])
    shop.add(item)
    assert shop.invalidate("customer", "7") == [item]
    assert [store.peek(name) for name in (*names, item)] == [None] * 3


def test_keys_of_several_columns(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.invalidate("seat", "1", "2", "3", "4") == [b"shop:seat:1:2", b"shop:seat:3:4"]
    with pytest.raises(FormatError, match="got 3 values") as error:
        shop.invalidate("seat", "1", "2", "3")
    assert "a key has 2: hall, seat" in str(error.value.hint)


def test_a_node_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.store_of(b"shop:customer:1").down = True
    with pytest.raises(NodeUnavailable):
        shop.invalidate("customer", "1")
