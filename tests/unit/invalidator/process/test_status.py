"""What is said of nodes and their stripes, on nodes in memory."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.envelope import (
    Filled,
    NodeRecord,
    PendingStripe,
    Stamp,
    Stripe,
    record_key,
    resume_key,
    stripe_key,
)
from freshness.algorithm.request import Add
from freshness.algorithm.rule import ObjectPolicy
from freshness.config.config import Config, load_config
from freshness.config.object import ObjectConfig
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.nodepolicy import placements_of
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet
from invalidator.process import status

NODE = "n1:1"
LIFE, PREVIOUS = b"lifelife", b"previous"
POSITION = MysqlGtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-10")
CONFIG = f"""
[cache]
nodes = ["{NODE}"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    return load_config(path, {})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    store = MemoryStore(NODE, clock=lambda: 1000.0)
    monkeypatch.setattr(status, "open_node", lambda _, __: MemoryNode(store))
    return store


def add(store: MemoryStore, key: bytes, value: bytes) -> None:
    MemoryNode(store).perform([Add(key, value, 0)])


def add_record(store: MemoryStore, stripes: int, key: bytes = record_key("shop", "shop/-")) -> None:
    record = NodeRecord("shop/-", LIFE, LIFE, True, 1, 1, 0, 0, NODE, stripes, POSITION, POSITION)
    add(store, key, record.encode())


def look(config: Config) -> dict[str, Any]:
    (entry,) = status.read_nodes(config)
    return entry


def test_stripes_of_this_life_are_there_and_all_else_is_not(config: Config, store: MemoryStore) -> None:
    add_record(store, 8)
    assert look(config)["stripes_there_percent"] == 0
    for number in range(4):
        add(store, stripe_key("shop", "shop/-", number), Stripe(LIFE, POSITION).encode())
    others = (Stripe(PREVIOUS, POSITION).encode(), PendingStripe(LIFE).encode(), b"", b"not ours")
    for number, value in enumerate(others, 4):
        add(store, stripe_key("shop", "shop/-", number), value)
    assert (look(config)["stripes"], look(config)["stripes_there_percent"]) == (8, 50)


@pytest.mark.parametrize(("until", "shown"), [(None, "unknown"), (POSITION, str(POSITION))])
def test_the_bound_of_an_entry_is_shown(
    config: Config, store: MemoryStore, until: MysqlGtidSet | None, shown: str
) -> None:
    add_record(store, 8)
    policy = ObjectPolicy("profile", 5, ("customers",), ("shop/-",), 60)
    filled = Filled((Stamp("shop/-", LIFE, 1, MysqlGtidSet(), until),), b"1", None)
    add(store, b"shop:profile:1", filled.encode())
    settings = ObjectConfig(name="profile", keyspace="shop", key=("id",))
    definition = ObjectDefinition(
        settings, policy, KeyBuilder("shop", "profile", (KeyColumn("id", ColumnKind.INTEGER),)), {}
    )
    located = status.LocatedKey(definition, policy, (1,), NODE, b"shop:profile:1", b"1", 1, "")
    (stamp,) = status.inspect(config, located, config)["stamps"]
    assert (stamp["position"], stamp["until"]) == ("", shown)


@pytest.mark.parametrize("stripes", [1, status.SAMPLE_MAX, status.SAMPLE_MAX + 1, 65_536])
def test_a_sample_of_many_stripes_is_looked_at(config: Config, store: MemoryStore, stripes: int) -> None:
    add_record(store, stripes)
    for number in range(stripes):
        add(store, stripe_key("shop", "shop/-", number), Stripe(LIFE, POSITION).encode())
    ((entry, sample),) = status._look_at_nodes(config)
    assert entry["stripes_there_percent"] == 100
    assert min(stripes, status.SAMPLE_MAX / 2) <= len(sample) <= status.SAMPLE_MAX


def test_a_file_of_a_previous_topology_is_told(config: Config, store: MemoryStore) -> None:
    record = NodeRecord("shop/-", LIFE, LIFE, False, 1, 1, 0, 0, NODE, 1, POSITION, POSITION, topology=2)
    add(store, record_key("shop", "shop/-"), record.encode())
    state = look(config)
    assert state["topology"] == 2
    assert state["problem"] == "of topology 2: an invalidator with this file, of 1, is not let in"
    assert look(replace(config, topology=2))["problem"] == ""


def test_the_rings_of_a_record_are_told_with_their_starts(config: Config, store: MemoryStore) -> None:
    """A node that only the previous nodes have is open for them."""
    config = replace(config, cache=replace(config.cache, nodes=("n2:1",), previous_nodes=(NODE,)))
    present, previous = (each.ring_version for each in placements_of(config.cache))
    record = NodeRecord("shop/-", LIFE, LIFE, True, 1, previous, 0, 0, NODE, 1, POSITION, POSITION)
    add(store, record_key("shop", "shop/-"), replace(record, starts={present: POSITION}).encode())
    answer = status.read_status(replace(config, keyspaces={}))
    assert (answer["ring"], answer["previous_ring"]) == (f"{present:08x}", f"{previous:08x}")
    [_, state] = status.read_nodes(config)
    assert state["rings"] == {f"{previous:08x}": "", f"{present:08x}": str(POSITION)}
    assert state["state"] == "clock", "its heartbeat is of 1970"
    record = replace(record, ring=present)
    add(store, resume_key("shop", "shop/-"), b"")
    store.evict(record_key("shop", "shop/-"))
    add(store, record_key("shop", "shop/-"), record.encode())
    assert status.read_nodes(config)[1]["state"] == "ring"


def test_a_node_without_record_has_no_stripes(config: Config, store: MemoryStore) -> None:
    assert look(config) == {"node": NODE, "lineage": "shop/-", "state": "unknown", "progress": ""}
    add_record(store, 8, resume_key("shop", "shop/-"))
    assert (look(config)["state"], look(config)["progress"]) == ("lapsed", str(POSITION))
    store.down = True
    assert look(config)["state"] == "unavailable"


def test_a_server_that_gives_no_token_is_named_and_hides_nothing(config: Config, store: MemoryStore) -> None:
    add_record(store, 1)
    add(store, stripe_key("shop", "shop/-", 0), Stripe(LIFE, POSITION).encode())
    answer = status.read_status(config)
    assert [node["stripes_there_percent"] for node in answer["nodes"]] == [100]
    (server,) = answer["servers"]
    assert (server["server"], server["lineage"]) == ("127.0.0.1:1", "shop/-")
    assert "connecting" in server["error"]


@pytest.mark.parametrize("changed", [0.06, 0.5, 2.0])
def test_the_advised_stripes_are_fifty_for_each_key_that_changes_within_the_lag(changed: float) -> None:
    """``changed``: keys for each stripe."""
    advice = status.advise_stripes(1 - math.exp(-changed), 1000)
    assert advice.startswith("set cache.stripes to ")
    advised = int(advice.rsplit(" ", 1)[1])
    assert 50 * 1000 * changed <= advised < 2 * 50 * 1000 * changed + 2
    assert status.advise_stripes(1 - math.exp(-changed * 1000 / advised), advised) == ""


def test_nothing_is_advised_where_little_is_refused_or_the_server_is_far_behind() -> None:
    assert status.advise_stripes(0.0, 65_536) == status.advise_stripes(0.05, 65_536) == ""
    for share in (0.96, 1.0):
        assert "so far behind that more stripes would not help" in status.advise_stripes(share, 65_536)
