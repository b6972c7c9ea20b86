"""Placement: balanced, stable when nodes come and go, and blind to the order in which they are named."""

from __future__ import annotations

from collections import Counter

import pytest

from freshness.errors import ConfigError
from freshness.keys.placement import Placement

NODES = [f"10.0.0.{n}:11211" for n in range(1, 5)]
KEYS = [b"shop:customer:%d" % n for n in range(10_000)]


@pytest.mark.parametrize("form", [b"shop:customer:%d", b"shop:order:%08d", b"s:%x:profile"])
@pytest.mark.parametrize("names", [NODES, ["a:1", "a:2", "a:3", "a:4"]])
def test_keys_spread_evenly(form: bytes, names: list[str]) -> None:
    placement = Placement(names)
    counts = Counter(placement.node_for(form % n) for n in range(10_000))
    assert set(counts) == set(names)
    assert all(2500 * 0.85 <= count <= 2500 * 1.15 for count in counts.values())


def test_the_order_of_names_does_not_matter() -> None:
    one, two = Placement(NODES, "shop"), Placement(NODES[::-1], "shop")
    assert one.ring_version == two.ring_version
    assert all(one.node_for(key) == two.node_for(key) for key in KEYS)


def test_a_new_node_takes_its_share_and_moves_nothing_else() -> None:
    before, after = Placement(NODES), Placement([*NODES, "10.0.0.5:11211"])
    moved = [key for key in KEYS if before.node_for(key) != after.node_for(key)]
    assert {after.node_for(key) for key in moved} == {"10.0.0.5:11211"}
    assert len(KEYS) / 5 * 0.8 <= len(moved) <= len(KEYS) / 5 * 1.2
    assert before.ring_version != after.ring_version


def test_a_ring_brings_a_node_no_key_when_others_are_added() -> None:
    two, three = Placement(("a:1", "b:1")), Placement(("a:1", "b:1", "c:1"))
    assert three.is_within(two, "a:1")
    assert not two.is_within(three, "a:1")
    assert not three.is_within(two, "c:1")
    assert two.is_within(two, "a:1")


def test_other_names_of_the_same_machines_are_another_ring() -> None:
    """F10: that is how processes notice that they disagree."""
    one, two = Placement(["127.0.0.1:11211"]), Placement(["localhost:11211"])
    assert one.ring_version != two.ring_version
    assert Placement(NODES, "shop").ring_version != Placement(NODES, "blog").ring_version


def test_joined_names_do_not_look_like_others() -> None:
    assert Placement(["ab", "c"]).ring_version != Placement(["a", "bc"]).ring_version


def test_one_node_holds_everything() -> None:
    placement = Placement(["only:1"])
    assert {placement.node_for(key) for key in KEYS[:500]} == {"only:1"}


@pytest.mark.parametrize("nodes", [[], ["a:1", "b:1", "a:1"], [""], ["a:1 "], ["a:1\n"]])
def test_bad_names_are_refused_with_a_hint(nodes: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Placement(nodes)
    assert caught.value.hint
