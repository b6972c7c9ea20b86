"""Keys that are read together are of one state of the shard (I11).

As in test_defences.py, each defence is taken out once, and then the invariant breaks.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from freshness.algorithm import together
from freshness.algorithm.request import Load
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read
from tests.schedules.test_defences import prove, start
from tests.schedules.world import LINEAGE, Invalidator, Reader, ReadRows, Replica, Run, World, lookup
from tests.unit.freshness.algorithm.test_witness import Seen

NODES: Final[dict[str, Any]] = {"nodes": ("n1", "n2")}
FIRST: Final = lookup(1, node="n1")
SECOND: Final = lookup(2, node="n2")
FILLED: Final = [ReadOutcome.FILLED, ReadOutcome.FILLED]
HITS: Final = [ReadOutcome.HIT, ReadOutcome.HIT]
SNAPSHOT: Final = [ReadOutcome.TOGETHER, ReadOutcome.TOGETHER]


class Shop:
    """A node for each of two keys, which are hits, and a reader of a replica."""

    def __init__(self, world: World) -> None:
        world.places[SECOND.item] = "n2"
        self.world = world
        self.one: Invalidator = start(world, node="n1")
        self.two: Invalidator = start(world, node="n2")
        self.replica: Replica = world.replica()
        self.reader = Reader(world, self.replica)
        assert outcomes(self.reader.reading(FIRST, SECOND)) == FILLED

    def commit_both(self) -> None:
        """One transaction changes both rows, and the replica has it."""
        self.replica.apply(self.world.commit(FIRST.item, SECOND.item))

    def read_together(self) -> Run[list[Read]]:
        return self.reader.reading(FIRST, SECOND, is_together=True)


def outcomes(run: Run[list[Read]]) -> list[ReadOutcome]:
    return [read.outcome for read in run.finish()]


def count_loads(run: Run[list[Read]]) -> int:
    return sum(isinstance(step, Load) for step in run.steps)


def test_hits_of_one_state_are_read_in_one_round() -> None:
    shop = Shop(World(**NODES))
    shop.commit_both()
    shop.one.apply()
    shop.two.apply()
    assert outcomes(shop.reader.reading(FIRST, SECOND)) == FILLED
    run = shop.read_together()
    assert outcomes(run) == HITS
    assert len(run.steps) == 1
    assert shop.world.broken == []


def test_what_was_just_filled_is_looked_at_again() -> None:
    """Its bound is in the log, and not acknowledged yet: at the second look it is."""
    shop = Shop(World(**NODES))
    shop.replica.apply(shop.world.commit(lookup(3, node="n1").item))
    assert shop.world.stores["n1"].evict(FIRST.item)
    assert shop.reader.read(FIRST) is ReadOutcome.FILLED
    run = shop.read_together()
    run.until(lambda _: len(run.steps) == 2)
    shop.one.apply()
    shop.two.apply()
    assert outcomes(run) == HITS
    assert count_loads(run) == 0
    assert shop.world.broken == []


def test_a_witness_is_told_which_hits_were_served_together() -> None:
    """And of no look in vain: as above, the first one finds the same hits."""
    shop = Shop(World(**NODES))
    shop.replica.apply(shop.world.commit(lookup(3, node="n1").item))
    assert shop.world.stores["n1"].evict(FIRST.item)
    assert shop.reader.read(FIRST) is ReadOutcome.FILLED
    seen = shop.reader.context.witness = Seen()
    run = shop.read_together()
    run.until(lambda _: len(run.steps) == 2)
    shop.one.apply()
    shop.two.apply()
    assert outcomes(run) == HITS
    assert outcomes(shop.read_together()) == HITS
    assert outcomes(shop.reader.reading(FIRST)) == [ReadOutcome.HIT]
    items, views = zip(*((action.item, action.observed) for action in seen.actions), strict=True)
    assert items == (FIRST.item, SECOND.item, FIRST.item, SECOND.item, FIRST.item)
    assert views[0] == views[1] != views[2] == views[3] != views[4] == 0


def read_acknowledged_on_one_node(world: World) -> list[ReadOutcome]:
    """The second node has acknowledged a transaction and its key is filled again, the first one has not."""
    shop = Shop(world)
    shop.commit_both()
    shop.two.apply()
    assert shop.reader.read(SECOND) is ReadOutcome.FILLED
    return outcomes(shop.read_together())


def test_the_progress_of_each_node_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(together, "are_of_one_state", lambda spans: all(s.since.contains(s.until) for s in spans))

    prove(read_acknowledged_on_one_node, SNAPSHOT, plant, "I11", monkeypatch, **NODES)


def test_a_read_without_this_option_can_be_of_two_states() -> None:
    """So the schedule above has the danger."""
    shop = Shop(World(**NODES))
    shop.commit_both()
    shop.two.apply()
    assert shop.reader.read(SECOND) is ReadOutcome.FILLED
    shop.world.check_together((FIRST, SECOND), shop.reader.reading(FIRST, SECOND).finish())
    assert shop.world.breaks("I11")


def read_committed_between_token_and_rows(world: World) -> list[ReadOutcome]:
    """A fill stores what its token lacks, and no node has acknowledged."""
    shop = Shop(world)
    assert world.stores["n2"].evict(SECOND.item)
    filling = shop.reader.reading(SECOND).until_kind(ReadRows)
    shop.commit_both()
    assert outcomes(filling) == [ReadOutcome.FILLED]
    return outcomes(shop.read_together())


def test_the_bound_is_read_after_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(world, "find_until", lambda token, _: token.position)

    prove(read_committed_between_token_and_rows, SNAPSHOT, plant, "I11", monkeypatch, **NODES)


def test_an_entry_without_a_bound_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(**NODES)
    monkeypatch.setattr(world, "find_until", lambda *_: None)
    shop = Shop(world)
    run = shop.read_together()
    assert outcomes(run) == SNAPSHOT
    assert count_loads(run) == 1
    assert world.broken == []


def test_the_snapshot_shows_what_was_acknowledged() -> None:
    """I10: all that the records vouch for is asked of the server."""
    shop = Shop(World(**NODES))
    made = shop.world.commit(FIRST.item, SECOND.item)
    shop.two.apply()
    run = Reader(shop.world, shop.world.replica()).reading(FIRST, SECOND, is_together=True)
    run.until(lambda action: isinstance(action, Load) and action.is_together)
    asked = run.pending
    assert isinstance(asked, Load)
    required = {lookup.item: lookup.required[LINEAGE].position for lookup in asked.lookups}
    assert required[SECOND.item].contains(made.position)
    assert not required[FIRST.item].contains(made.position)
    assert [read.shows_required for read in run.finish()] == [True, False]


def test_a_node_that_is_closed_is_not_looked_at_again() -> None:
    world = World(**NODES)
    world.places[SECOND.item] = "n2"
    start(world, node="n1")
    run = Reader(world, world.replica()).reading(FIRST, SECOND, is_together=True)
    assert outcomes(run) == SNAPSHOT
    assert count_loads(run) == 2
