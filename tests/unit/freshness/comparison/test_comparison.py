"""Which entries are hits, what a difference proves, and what a repair removes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pytest

from freshness.algorithm.envelope import (
    STUB,
    Filled,
    Stamp,
    decode_wanted,
    record_key,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.request import Delete, Get, Item
from freshness.comparison import comparison, entry
from freshness.comparison.comparison import repair
from freshness.comparison.entry import find_key_values
from freshness.errors import FormatError, NodeUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode
from freshness.values.codec import encode_value
from tests.unit.freshness.comparison.world import (
    CUSTOMER,
    HIGH,
    ID,
    LIFE,
    LINEAGE,
    LOOKS_MAX,
    LOW,
    NODE,
    OLD,
    RING,
    SCOPE,
    MeddledNode,
    ShardedWorld,
    ShardPrimary,
    World,
    at,
    define,
)


@pytest.fixture
def world() -> World:
    return World()


# -- which entries are hits ------------------------------------------------------------------------------


def test_an_entry_of_this_life_is_live(world: World) -> None:
    world.fill(OLD)
    [found] = world.read()
    assert (found.state, found.object, found.node) == ("live", "customer", NODE)
    assert found.value == encode_value(OLD)


def test_why_an_entry_is_no_hit(world: World) -> None:
    world.fill(OLD, life=b"PREVIOUS")
    assert world.read()[0].state == "dead"
    world.fill(OLD)
    world.record(10, table_floors={"customers": at(6)})
    assert world.read()[0].state == "table_floor"
    for change in ({"is_open": False}, {"ring": RING + 1}, {"node": "another:11211"}):
        world.record(10, **change)
        assert world.read()[0].state == entry.UNTRUSTED
    world.node.perform([Delete(record_key("shop", LINEAGE))])
    assert world.read()[0].state == entry.UNTRUSTED


def test_an_entry_under_the_key_of_another_is_no_hit(world: World) -> None:
    filled = Filled((Stamp(LINEAGE, LIFE, 1, at(5)),), b"\0\0\0\x052", encode_value(OLD))
    world.put(b"shop:customer:1", filled.encode())
    assert world.read()[0].state == "identity"


def test_what_is_not_ours_is_no_hit(world: World) -> None:
    world.put(b"shop:customer:1", b"text")
    world.put(b"shop:customer:2", STUB)
    world.put(b"shop:gone:1", b"text")
    states = [one.state for one in world.read("shop:customer:1", "shop:customer:2", "shop:gone:1", "shop:customer:3")]
    assert states == [entry.FOREIGN, entry.STUBBED, entry.UNCONFIGURED]


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [
        (ID, -7, -7),
        (KeyColumn("k", ColumnKind.STRING, "utf8mb4_bin"), "a:ü~! %41", "a:ü~! %41"),
        (KeyColumn("k", ColumnKind.STRING, "utf8mb4_general_ci"), "AbC  ", "abc"),
        (KeyColumn("k", ColumnKind.BINARY, length=3), b"a\0b", b"a\0b"),
        (KeyColumn("k", ColumnKind.DECIMAL), Decimal("1.50"), Decimal("1.5")),
        (KeyColumn("k", ColumnKind.DATE), "2026-01-31", date(2026, 1, 31)),
        (KeyColumn("k", ColumnKind.DATE), "2026-00-31", "2026-00-31"),
        (
            KeyColumn("k", ColumnKind.DATETIME),
            "2026-01-31 10:00:00.50",
            datetime(2026, 1, 31, 10, 0, 0, 500_000),  # noqa: DTZ001
        ),
    ],
)
def test_an_identity_is_read_back_as_the_key(column: KeyColumn, value: Any, found: Any) -> None:
    definition = define("thing", ID, column)
    key = definition.builder.build((3, value))
    values = find_key_values(definition, definition.identity(key))
    assert values == (3, found)
    assert definition.builder.build((3, found)) == key


@pytest.mark.parametrize(
    "identity", [b"", b"\0\0\0\x05", b"\0\0\0\x05x", b"\0\0\0\x051:2", b"\0\0\0\x061", b"\0\0\0\x05\xff"]
)
def test_an_identity_that_is_no_key_is_none(identity: bytes) -> None:
    assert find_key_values(CUSTOMER, identity) is None


# -- what a difference proves ----------------------------------------------------------------------------


def test_the_row_of_the_primary_is_equal(world: World) -> None:
    world.fill(world.rows[1])
    assert world.compare().verdict == comparison.EQUAL
    assert world.waits == 0


def test_no_row_equals_no_row(world: World) -> None:
    world.rows.clear()
    world.fill(None)
    assert world.compare().verdict == comparison.EQUAL


@pytest.mark.parametrize(("value", "shown"), [(OLD, "'old'"), (None, "no such row")])
def test_a_difference_that_outlives_the_acknowledged_head_is_poisoned(world: World, value: Any, shown: str) -> None:
    world.fill(value)
    verdict = world.compare()
    assert verdict.verdict == comparison.POISONED
    assert world.waits == comparison.RECHECKS_TO_CONDEMN
    assert shown in verdict.cached
    assert "'new'" in verdict.primary


KEY: Final = b"shop:customer:1"
GONE: Final = ""


def test_what_is_poisoned_is_removed_by_cas(world: World) -> None:
    world.fill(OLD)
    condemned = world.condemn()
    assert world.store.peek(KEY) is not None
    assert world.repair(condemned) == GONE
    assert world.store.peek(KEY) is None


def test_a_repair_that_is_done_again_says_what_the_first_one_said(world: World) -> None:
    """Even if somebody has stored the row in between."""
    world.fill(OLD)
    condemned = world.condemn()
    assert world.repair(condemned) == world.repair(condemned) == GONE
    world.fill(world.rows[1])
    assert world.repair(condemned) == GONE
    assert world.store.peek(KEY) is not None


def test_what_took_the_place_of_poison_is_not_removed(world: World) -> None:
    world.fill(OLD)
    condemned = world.condemn()
    world.fill({"id": 1, "v": "new"})
    assert world.repair(condemned) == GONE
    assert world.store.peek(KEY) is not None


def test_what_takes_the_place_of_poison_just_before_it_is_removed_stays(world: World) -> None:
    world.fill(OLD)
    node = MeddledNode(world, {"id": 1, "v": "new"})
    assert repair(SCOPE, lambda _: node, world.condemn()) == GONE
    [now] = world.read()
    assert (now.state, now.value) == (entry.LIVE, encode_value({"id": 1, "v": "new"}))


@pytest.mark.parametrize("is_before", [True, False])
def test_poison_that_is_written_again_while_it_is_removed_is_told(world: World, is_before: bool) -> None:
    world.fill(OLD)
    node = MeddledNode(world, OLD, is_before=is_before)
    outcome = repair(SCOPE, lambda _: node, world.condemn())
    assert "written again" in outcome


def test_a_node_that_does_not_answer_is_not_repaired(world: World) -> None:
    world.fill(OLD)
    condemned = world.condemn()

    def refuse(_: str) -> MemoryNode:
        raise NodeUnavailable("the node is down", hint="start it")

    outcome = repair(SCOPE, refuse, condemned)
    assert "the node is down" in outcome


NUMBER: Final = stripe_number(b"shop:customer:1", 64)


def test_a_repair_takes_the_stripe_with_it_so_that_no_late_replica_fills_again(world: World) -> None:
    """A value of a replica that is late lacks what the stripe will hold when it is back."""
    stripe, other = (stripe_key("shop", LINEAGE, number) for number in (NUMBER, NUMBER + 1))
    world.put(stripe, b"held")
    world.put(other, b"held")
    world.node.perform([Get(wanted_key("shop", LINEAGE), 60)])  # a restorer looks, and leaves the list
    world.fill(OLD)
    assert world.repair(world.condemn()) == GONE
    assert world.store.peek(stripe) is None
    assert world.store.peek(other) is not None
    [wanted] = world.node.perform([Get(wanted_key("shop", LINEAGE))])
    assert isinstance(wanted, Item)
    assert decode_wanted(wanted.value) == [NUMBER]


def test_without_a_record_nothing_is_repaired(world: World) -> None:
    """Nobody knows then which stripe it is, and an entry alone would come back."""
    world.fill(OLD)
    condemned = world.condemn()
    world.node.perform([Delete(record_key("shop", LINEAGE))])
    assert "invalidator status" in world.repair(condemned)
    assert world.store.peek(KEY) is not None


def test_a_replica_that_has_the_old_row_is_named(world: World) -> None:
    world.replicas = {"app@r1:1/shop": ShardPrimary(world.rows[1]), "app@r2:1/shop": ShardPrimary(OLD)}
    world.fill(OLD)
    assert world.compare().error == (
        "a replica has the old row too: app@r2:1/shop; one that stays so must be built again"
    )
    world.replicas["app@r1:1/shop"].is_down = True
    assert "perhaps app@r1:1/shop (this shard is down), app@r2:1/shop" in world.compare().error
    world.replicas = {"app@r1:1/shop": ShardPrimary(world.rows[1])}
    assert world.compare().error == ""


def test_a_replica_without_the_row_is_named_where_no_row_is_cached(world: World) -> None:
    world.replicas = {"app@r1:1/shop": ShardPrimary()}
    world.fill(None)
    assert "app@r1:1/shop" in world.compare().error


def test_a_value_of_a_row_that_is_gone_is_poisoned(world: World) -> None:
    world.fill(OLD)
    world.rows.clear()
    assert world.compare().verdict == comparison.POISONED


def test_a_primary_that_is_gone_at_the_second_look_leaves_its_entries_unknown(world: World) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: setattr(world, "is_down", True)]
    verdict = world.compare()
    assert (verdict.verdict, verdict.cached) == (comparison.UNKNOWN, "")
    assert "the primary is down" in verdict.error


def test_one_look_does_not_condemn(world: World) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: None, lambda: world.put(b"shop:customer:1", STUB)]
    assert world.compare().verdict == comparison.IN_FLIGHT


def _forget(world: World) -> None:
    world.node.perform([Delete(b"shop:customer:1")])


@pytest.mark.parametrize(
    "change",
    [
        _forget,
        lambda world: world.fill(OLD, position=at(6)),
        lambda world: world.fill({"id": 1, "v": "new"}),
        lambda world: world.rows.update({1: OLD}),
        lambda world: world.record(11, life=b"ANOTHER."),
        lambda world: world.record(11, table_floors={"customers": at(11)}),
    ],
)
def test_what_goes_or_changes_was_in_flight(world: World, change: Callable[[World], None]) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: change(world)]
    assert world.compare().verdict == comparison.IN_FLIGHT


def test_without_the_head_acknowledged_it_is_unknown(world: World) -> None:
    world.fill(OLD)
    world.head = at(11)
    verdict = world.compare()
    assert verdict.verdict == comparison.UNKNOWN
    assert "0-1-11" in verdict.error
    assert world.waits == LOOKS_MAX


def test_without_the_primary_that_its_node_follows_it_is_unknown(world: World) -> None:
    """After a promotion the file may still name the previous one, which lags as a replica."""
    world.fill({"id": 1, "v": "newer"})
    world.record(12, primary="another")
    found = world.compare()
    assert found.verdict == comparison.UNKNOWN
    assert "follows another primary" in found.error


def test_an_acknowledgement_that_comes_late_condemns_only_after_it(world: World) -> None:
    world.fill(OLD)
    world.head = at(11)
    world.while_waiting = [lambda: None, lambda: None, lambda: world.record(11)]
    assert world.compare().verdict == comparison.POISONED
    assert world.waits == 4


def test_a_node_that_closes_meanwhile_proves_nothing(world: World) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: world.record(11, is_open=False)]
    assert world.compare().verdict == comparison.UNKNOWN


def test_silence_is_unknown(world: World) -> None:
    world.fill(OLD)
    entries = world.read()
    world.is_down = True
    [verdict] = world.compare_all(entries)
    assert (verdict.verdict, verdict.error) == (comparison.UNKNOWN, "the primary is down (start it)")
    world.is_down = False
    world.store.down = True
    [verdict] = world.compare_all(entries)
    assert verdict.verdict == comparison.UNKNOWN
    assert NODE in verdict.error


def test_what_is_not_served_is_not_compared(world: World) -> None:
    world.fill(OLD, life=b"PREVIOUS")
    entries = world.read()
    world.fill(OLD)
    world.record(10, is_open=False)
    entries += world.read()
    verdicts = {one.entry.state: one.verdict for one in world.compare_all(entries)}
    assert verdicts == {"dead": comparison.NOT_SERVED, entry.UNTRUSTED: comparison.NOT_SERVED}


# -- several shards --------------------------------------------------------------------------------------


def test_each_key_is_compared_with_the_shard_that_holds_it() -> None:
    world = ShardedWorld()
    world.primaries[LOW].rows[200] = {"id": 200, "v": "left over from a reshard"}
    world.keep({"id": 200, "v": "new"}, HIGH)
    world.keep({"id": 1, "v": "new"}, LOW, key=1)
    verdicts = world.judge("shop:customer:200", "shop:customer:1")
    assert [each.verdict for each in verdicts] == [comparison.EQUAL] * 2
    assert (world.primaries[LOW].asked, world.primaries[HIGH].asked) == ({1}, {200})


def test_poison_of_the_second_shard_is_found_by_its_own_head() -> None:
    world = ShardedWorld()
    world.primaries[LOW].head = at(99)  # which nobody has acknowledged, and which is not asked for
    world.keep({"id": 200, "v": "old"}, HIGH)
    [verdict] = world.judge()
    assert verdict.verdict == comparison.POISONED
    assert verdict.entry.lineages == (HIGH,)
    world.primaries[HIGH].head = at(11)
    [verdict] = world.judge()
    assert verdict.verdict == comparison.UNKNOWN
    assert f"{HIGH}: 0-1-11" in verdict.error


def test_an_entry_that_was_read_from_another_shard_is_served_to_nobody() -> None:
    world = ShardedWorld()
    world.keep({"id": 200, "v": "old"}, LOW)
    [verdict] = world.judge()
    assert (verdict.entry.state, verdict.verdict) == ("dead", comparison.NOT_SERVED)


def test_a_key_without_a_shard_is_served_to_nobody() -> None:
    world = ShardedWorld()
    finder = world.scope.definitions["customer"].shards
    assert finder is not None

    def refuse(function: str, value: object) -> bytes:
        raise FormatError("no keyspace id", hint="none")

    refusing = replace(world.scope.definitions["customer"], shards=replace(finder, keyspace_id=refuse))
    world.scope = replace(world.scope, definitions={"customer": refusing})
    world.keep({"id": 200, "v": "old"}, HIGH)
    [verdict] = world.judge()
    assert (verdict.entry.state, verdict.verdict) == ("identity", comparison.NOT_SERVED)


def test_a_text_is_compared_with_the_shard_that_it_was_read_from() -> None:
    """The identity says "a", and the row may be that of "A", which has another keyspace id."""
    world = ShardedWorld(KeyColumn("id", ColumnKind.STRING, "utf8mb4_general_ci"))
    world.primaries[HIGH].rows["a"] = {"id": "A", "v": "new"}
    world.keep({"id": "A", "v": "new"}, HIGH, key="a")
    [verdict] = world.judge("shop:customer:a")
    assert (verdict.entry.state, verdict.verdict) == ("live", comparison.EQUAL)
    assert world.primaries[LOW].asked == set()


def test_a_key_that_does_not_tell_its_shard_is_looked_for_in_all() -> None:
    world = ShardedWorld()
    for value, verdict in (({"id": 200, "v": "new"}, comparison.EQUAL), (None, comparison.POISONED)):
        world.keep(value, LOW, HIGH, name="thing")
        [found] = world.judge("shop:thing:200")
        assert found.verdict == verdict
    world.primaries[LOW].head = at(11)
    [found] = world.judge("shop:thing:200")
    assert found.verdict == comparison.UNKNOWN
    assert f"{LOW}: 0-1-11" in found.error


def test_a_row_that_is_in_two_shards_proves_nothing() -> None:
    world = ShardedWorld()
    world.primaries[LOW].rows[200] = {"id": 200, "v": "old"}
    world.keep({"id": 200, "v": "old"}, LOW, HIGH, name="thing")
    [verdict] = world.judge("shop:thing:200")
    assert verdict.verdict == comparison.UNKNOWN
    assert "several of the shards" in verdict.error


def test_one_silent_shard_makes_its_own_entries_unknown() -> None:
    world = ShardedWorld()
    world.keep({"id": 200, "v": "new"}, HIGH)
    world.keep({"id": 1, "v": "new"}, LOW, key=1)
    world.primaries[LOW].is_down = True
    verdicts = {each.entry.item: each.verdict for each in world.judge("shop:customer:200", "shop:customer:1")}
    assert verdicts == {b"shop:customer:200": comparison.EQUAL, b"shop:customer:1": comparison.UNKNOWN}
