"""Nodes and definitions come and go: a record serves several rings, each from a position on, and entries move (ADR
0065).

As in test_defences.py, each defence is taken out once, and then the invariant breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pytest

from freshness.algorithm.envelope import previous_reader_key
from freshness.algorithm.request import Cas, Item, Wait
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import PREVIOUS_READER_SECONDS
from freshness.errors import MembershipLost
from freshness.keys.placement import Placement
from tests.schedules.test_upstream_defences import POLICY, Scene
from tests.schedules.world import (
    CUSTOMER,
    L_SECONDS,
    LINEAGE,
    NAMESPACE,
    NODE,
    NODE_REFRESH_SECONDS,
    START_SECONDS,
    Invalidator,
    Reader,
    World,
    lookup,
)
from tests.simulation.bugs import PLANTED

ONE: Final = 1
TWO: Final = 2
"""The ring of one node, and that of two."""
PLACEMENTS: Final = {ONE: Placement(["n1"], NAMESPACE), TWO: Placement(["n1", "n2"], NAMESPACE)}
NUMBER: Final = next(n for n in range(1, 99) if PLACEMENTS[TWO].node_for(lookup(n).item) == "n2")
KEY: Final = lookup(NUMBER).item
"""The second ring places it on the second node."""
ON_N1: Final = lookup(NUMBER)
MOVED: Final = lookup(NUMBER, node="n2", previous_node="n1")


COVERED: Final = {CUSTOMER.name: CUSTOMER.fingerprint}


def prove(schedule: Callable[[World], object], danger: object, bug: str, invariant: str) -> None:
    """Once as the code stands, once with the planted bug."""
    sound, flawed = World(nodes=("n1", "n2")), World(nodes=("n1", "n2"))
    sound.placements = flawed.placements = PLACEMENTS
    assert schedule(sound) == danger
    assert sound.broken == []
    with PLANTED[bug]():
        schedule(flawed)
    assert flawed.breaks(invariant), f"the plant broke only {flawed.broken}"


def serve(
    world: World,
    ring: int,
    previous_ring: int | None = None,
    *,
    topology: int = 1,
    node: str = NODE,
    objects: Mapping[str, int] = COVERED,
) -> Invalidator:
    """A process with this file, whose node is open."""
    one = Invalidator(
        world, node=node, ring=ring, previous_ring=previous_ring, topology=topology, objects=objects
    ).join()
    one.apply()
    one.apply()
    assert world.record(node).is_open
    return one


def read(world: World, ring: int) -> ReadOutcome:
    """On the first node, by a new reader and a replica that has everything."""
    return Reader(world, world.replica().catch_up(), ring).read(ON_N1)


def come_back(world: World) -> None:
    """The key leaves the first node and comes back. Its entry stays there, and is not sent the changes between."""
    serve(world, ONE)
    assert read(world, ONE) is ReadOutcome.FILLED
    serve(world, TWO, ONE, topology=2)
    away = serve(world, TWO, topology=3)
    world.commit(KEY)
    away.apply()
    serve(world, ONE, TWO, topology=4)


def test_an_entry_from_before_the_start_of_its_ring_is_no_hit() -> None:
    def schedule(world: World) -> ReadOutcome:
        come_back(world)
        return read(world, ONE)

    prove(schedule, ReadOutcome.FILLED, "start of a ring ignored by hits", "I1")


def test_a_row_from_before_the_start_of_a_ring_is_not_fresh() -> None:
    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        come_back(world)
        (found,) = Reader(world, world.replica(), ONE).reading(ON_N1).finish()
        return found.outcome, found.shows_required

    prove(schedule, (ReadOutcome.FLOOR, False), "start of a ring not required of a miss", "I10")


def test_keys_are_sent_by_each_ring_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_check_protection", lambda *_: None)  # the hit is to show it

    def schedule(world: World) -> ReadOutcome:
        scene = Scene(world)
        scene.shard.previous = (PLACEMENTS[ONE],)
        scene.run(3)
        reader = Reader(world, world.replica().catch_up())
        on_n1 = lookup(NUMBER, POLICY)
        assert reader.read(on_n1) is ReadOutcome.FILLED
        scene.change(NUMBER)
        scene.run(1)
        return reader.read(on_n1)

    prove(schedule, ReadOutcome.STRIPE, "a previous ring is not sent", "I1")


def test_a_ring_leaves_behind_the_copies_of_readers() -> None:
    """A reader of the previous file has a copy of the record, which names its ring."""

    def schedule(world: World) -> ReadOutcome:
        serve(world, ONE)
        assert read(world, ONE) is ReadOutcome.FILLED
        serve(world, TWO, ONE, topology=2)
        reader = Reader(world, world.replica(), ONE)
        assert reader.read(ON_N1) is ReadOutcome.HIT
        away = Invalidator(world, ring=TWO, topology=3).join()
        world.commit(KEY)
        away.apply()
        return reader.read(ON_N1)

    prove(schedule, ReadOutcome.RING, "a ring leaves at once", "I1")


def test_a_renewal_of_the_lease_does_not_end_the_wait_for_readers() -> None:
    world = World(nodes=("n1", "n2"))
    world.placements = PLACEMENTS
    serve(world, TWO, ONE)
    away = Invalidator(world, ring=TWO, topology=2).join()
    world.sleep(3)
    away.renewing().finish()
    assert world.record().is_settling
    away.apply()
    assert not world.record().is_settling


def test_a_ring_that_leaves_during_a_wait_for_readers_is_waited_for_from_then_on() -> None:
    """The record settles from an earlier change, and a renewal covers it in the middle of the wait."""
    world = World(nodes=("n1", "n2"))
    world.placements = PLACEMENTS
    serve(world, ONE, TWO)
    assert read(world, ONE) is ReadOutcome.FILLED
    Invalidator(world, ring=ONE, topology=2).join().applying().until_kind(Wait)
    assert (world.record().rings, world.record().is_settling) == ({ONE}, True)
    away = Invalidator(world, ring=TWO, topology=3).join()
    world.sleep(1)
    world.commit(KEY)
    run = away.applying().until(lambda request: isinstance(request, Cas))
    reader = Reader(world, world.replica(), ONE)
    assert reader.read(ON_N1) is ReadOutcome.HIT, "its copy of the record names the ring"
    run.finish()
    assert reader.read(ON_N1) is ReadOutcome.RING
    assert world.broken == []


def move_silently(world: World) -> ReadOutcome:
    """No heartbeat comes back, and the lease is nearly over: the record is written although that closes it."""
    serve(world, ONE)
    read(world, ONE)
    serve(world, TWO, ONE, topology=2)
    away = Invalidator(world, ring=TWO, topology=3).join()
    world.commit(KEY)
    away.apply(away.batch(heartbeat=False))
    world.sleep(L_SECONDS - 2)
    reader = Reader(world, world.replica(), ONE)
    assert reader.read(ON_N1) is ReadOutcome.HIT
    away.renewing().finish()
    assert not world.record().is_open
    return reader.read(ON_N1)


def test_what_was_sent_by_the_next_file_alone_is_published_behind_the_readers() -> None:
    prove(move_silently, ReadOutcome.HIT, "published while readers are waited for", "I1")


def test_a_record_names_what_is_sent_before_that_is_published() -> None:
    prove(move_silently, ReadOutcome.HIT, "published before the record is covered", "I1")


def test_an_entry_of_a_definition_that_has_left_is_no_hit_when_it_comes_back() -> None:
    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome]:
        serve(world, ONE)
        assert read(world, ONE) is ReadOutcome.FILLED
        away = serve(world, ONE, objects={}, topology=2)
        without = read(world, ONE)
        world.commit(KEY)
        away.apply()
        serve(world, ONE, topology=3)
        return without, read(world, ONE)

    prove(schedule, (ReadOutcome.OBJECT, ReadOutcome.FILLED), "start of an object ignored by hits", "I1")


def test_an_invalidator_publishes_no_record_with_a_ring_that_it_does_not_know() -> None:
    def schedule(world: World) -> bool:
        previous = serve(world, TWO)
        serve(world, ONE, TWO)
        read(world, ONE)
        world.commit(KEY)
        try:
            previous.apply()
        except MembershipLost:
            return False
        read(world, ONE)
        return True

    prove(schedule, False, "a ring that is not known is published", "I1")


def test_an_entry_moves_as_old_as_the_record_of_its_node() -> None:
    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome]:
        serve(world, TWO, ONE)
        there = serve(world, TWO, ONE, node="n2")
        assert read(world, ONE) is ReadOutcome.FILLED
        reader = Reader(world, world.replica().catch_up(), TWO, previous_ring=ONE)
        world.commit(KEY)
        there.apply()
        return reader.read(MOVED), reader.read(MOVED)

    prove(schedule, (ReadOutcome.STRIPE, ReadOutcome.STRIPE), "an entry moves at another progress", "I1")


def test_an_entry_moves_without_a_read_of_the_database() -> None:
    world = World(nodes=("n1", "n2"))
    world.placements = PLACEMENTS
    serve(world, TWO, ONE)
    serve(world, TWO, ONE, node="n2")
    assert read(world, ONE) is ReadOutcome.FILLED
    reader = Reader(world, world.replica(), TWO, previous_ring=ONE)
    assert [reader.read(MOVED), reader.read(MOVED)] == [ReadOutcome.MOVED, ReadOutcome.HIT]
    assert world.broken == []


def test_a_reader_of_a_previous_ring_leaves_its_name() -> None:
    """Once a minute, and long enough for the next time. One of the present ring leaves none."""
    world = World(nodes=("n1", "n2"))
    world.placements = PLACEMENTS
    one = serve(world, ONE)
    readers = [Reader(world, world.replica().catch_up(), ring) for ring in (ONE, TWO)]

    def find_name(reader: Reader) -> Item | None:
        for _ in range(2):
            one.apply()
            assert reader.read(ON_N1).is_hit or reader.context.ring == TWO
            world.sleep(NODE_REFRESH_SECONDS)
        return world.stores[NODE].peek(previous_reader_key(NAMESPACE, LINEAGE, ONE))

    readers[0].read(ON_N1)
    readers[0].context.name = b"app:7"
    assert find_name(readers[0]) is None, "one ring is served"
    one = serve(world, TWO, ONE, topology=2)
    assert find_name(readers[1]) is None, "by the present ring"
    found = find_name(readers[0])
    assert found is not None
    assert (found.value, found.ttl_seconds >= PREVIOUS_READER_SECONDS - 2) == (b"app:7", True)
    again = find_name(readers[0])
    assert again is not None
    assert again.version == found.version, "not each time"
    one.live(world.now - START_SECONDS + PREVIOUS_READER_SECONDS * 2 / 3)
    found = find_name(readers[0])
    assert found is not None
    assert found.ttl_seconds > PREVIOUS_READER_SECONDS / 3
