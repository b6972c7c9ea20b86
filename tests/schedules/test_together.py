"""Keys that are read together are of one state of the shard (I11).

As in test_defences.py, each defence is taken out once, and then the invariant breaks.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from freshness.algorithm import together
from freshness.algorithm.request import Flows, Load
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read, ServedState
from freshness.errors import FormatError, StateChanged
from tests.schedules.test_defences import go_on, prove, start
from tests.schedules.world import CUSTOMER, LINEAGE, Invalidator, Reader, ReadRows, Replica, Run, World, lookup
from tests.unit.freshness.algorithm.test_witness import Seen

OTHER: Final = "other/-"
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
        return self.reader.reading(FIRST, SECOND, served=ServedState())


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
    served = ServedState()
    run = shop.reader.reading(FIRST, SECOND, served=served)
    assert outcomes(run) == HITS
    assert (len(run.steps), served.result) == (1, "one_look")
    assert shop.world.broken == []


def test_what_was_just_filled_is_looked_at_again() -> None:
    """Its bound is in the log, and not acknowledged yet: at the second look it is."""
    shop = Shop(World(**NODES))
    shop.replica.apply(shop.world.commit(lookup(3, node="n1").item))
    assert shop.world.stores["n1"].evict(FIRST.item)
    assert shop.reader.read(FIRST) is ReadOutcome.FILLED
    served = ServedState()
    run = shop.reader.reading(FIRST, SECOND, served=served)
    run.until(lambda _: len(run.steps) == 2)
    shop.one.apply()
    shop.two.apply()
    assert outcomes(run) == HITS
    assert (count_loads(run), served.result) == (0, "more_looks")
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
    run = Reader(shop.world, shop.world.replica()).reading(FIRST, SECOND, served=ServedState())
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
    run = Reader(world, world.replica()).reading(FIRST, SECOND, served=ServedState())
    assert outcomes(run) == SNAPSHOT
    assert count_loads(run) == 2


@pytest.mark.parametrize(("accepted_seconds", "outcomes_of_both"), [(0.5, SNAPSHOT), (10.0, HITS)])
def test_entries_of_one_state_may_be_older_than_the_caller_accepts(
    accepted_seconds: float, outcomes_of_both: list[ReadOutcome]
) -> None:
    shop = Shop(World(**NODES))
    shop.world.sleep(1.0)
    run = shop.reader.reading(FIRST, SECOND, max_staleness_seconds=accepted_seconds, served=ServedState())
    assert outcomes(run) == outcomes_of_both
    assert shop.world.broken == []


# -- a caller that reads on -----------------------------------------------------------------------------


def test_what_fits_is_read_without_what_was_served_before() -> None:
    shop, served = Shop(World(**NODES)), ServedState()
    assert outcomes(shop.reader.reading(FIRST, served=served)) == HITS[:1]
    shop.commit_both()
    shop.one.apply()  # the first row is another one by now, and the second one is not known to be
    run = shop.reader.reading(SECOND, served=served)
    assert outcomes(run) == HITS[:1]
    assert [[flow.node for flow in step.flows] for step in run.steps if isinstance(step, Flows)] == [["n2"]]
    assert shop.world.broken == []


def test_a_witness_knows_what_a_caller_was_served_on() -> None:
    """What is read again has another number: a row may have come back to its value in between."""
    shop, served = Shop(World(**NODES)), ServedState()
    seen = shop.reader.context.witness = Seen()
    assert outcomes(shop.reader.reading(FIRST, served=served)) == HITS[:1]
    assert outcomes(shop.reader.reading(SECOND, served=served)) == HITS[:1]
    shop.replica.apply(shop.world.commit(SECOND.item))
    shop.one.apply()
    shop.two.apply()
    served = ServedState()
    assert outcomes(shop.reader.reading(FIRST, served=served)) == HITS[:1]
    assert shop.reader.read(SECOND) is ReadOutcome.FILLED
    shop.replica.apply(shop.world.commit(SECOND.item))
    shop.one.apply()
    shop.two.apply()
    assert shop.reader.read(SECOND) is ReadOutcome.FILLED
    assert outcomes(shop.reader.reading(SECOND, served=served)) == HITS[:1]
    views = [(action.item, action.observed) for action in seen.actions if action.kind == "hit"]
    (first, one), (second, same), (third, two), *again = views
    assert (first, second, third) == (FIRST.item, SECOND.item, FIRST.item)
    assert one == same != two
    assert [item for item, _ in again] == [FIRST.item, SECOND.item]
    assert len({two, *(view for _, view in again)}) == 2


def read_on_after_a_commit(world: World) -> list[ReadOutcome] | None:
    """One transaction changes a row that the caller has, and the one that it reads next."""
    shop, served = Shop(world), ServedState()
    assert outcomes(shop.reader.reading(FIRST, served=served)) == HITS[:1]
    shop.commit_both()
    shop.one.apply()
    shop.two.apply()
    assert outcomes(shop.reader.reading(FIRST, SECOND)) == FILLED
    run = shop.reader.reading(SECOND, served=served)
    if go_on(run):
        return outcomes(run)
    assert isinstance(run.error, StateChanged)
    assert "customer of key (1,) has changed since it was read, so customer of key (2,)" in str(run.error)
    return None


def test_later_entries_are_compared_with_those_that_were_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        judge = together._are_together
        patch.setattr(together, "_are_together", lambda spans: judge(spans[-1:]))

    prove(read_on_after_a_commit, None, plant, "I11", monkeypatch, **NODES)


def test_what_was_served_is_compared_with_what_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(together, "_spell", lambda *_: b"")

    prove(read_on_after_a_commit, None, plant, "I11", monkeypatch, **NODES)


def test_a_snapshot_is_no_entry_to_compare_with() -> None:
    """All is read again, and the value that was served from it has changed."""
    shop, served = Shop(World(**NODES)), ServedState()
    shop.world.stores["n1"].down = True
    assert outcomes(shop.reader.reading(FIRST, served=served)) == SNAPSHOT[:1]
    shop.commit_both()
    shop.two.apply()
    assert shop.reader.read(SECOND) is ReadOutcome.FILLED
    run = shop.reader.reading(SECOND, served=served)
    assert not go_on(run)
    assert isinstance(run.error, StateChanged)
    assert shop.world.broken == []


def test_what_was_served_is_still_that_in_a_snapshot() -> None:
    """The entry that is read next is of a later moment, at which the earlier value is the same."""
    shop, served = Shop(World(**NODES)), ServedState()
    assert outcomes(shop.reader.reading(FIRST, served=served)) == HITS[:1]
    shop.replica.apply(shop.world.commit(SECOND.item))
    shop.two.apply()
    assert shop.reader.read(SECOND) is ReadOutcome.FILLED
    run = shop.reader.reading(SECOND, served=served)
    assert outcomes(run) == SNAPSHOT[:1]
    assert count_loads(run) == 1
    assert outcomes(shop.reader.reading(FIRST, served=served)) == SNAPSHOT[:1]
    shop.one.apply()
    assert served.result == "snapshot"
    assert outcomes(shop.reader.reading(FIRST, SECOND, served=served)) == HITS
    assert shop.world.broken == []


def test_equal_values_may_be_encoded_in_another_way() -> None:
    shop, served = Shop(World(**NODES)), ServedState()
    shop.reader.context.encode = lambda value: json.dumps(value, indent=1).encode()
    shop.replica.apply(shop.world.commit(FIRST.item))
    shop.one.apply()
    shop.two.apply()
    assert shop.reader.read(FIRST) is ReadOutcome.FILLED
    shop.reader.context.encode = lambda value: json.dumps(value).encode()
    assert outcomes(shop.reader.reading(FIRST, served=served)) == HITS[:1]
    shop.world.stores["n2"].down = True
    assert outcomes(shop.reader.reading(SECOND, served=served)) == SNAPSHOT[:1]
    assert shop.world.broken == []


def test_another_shard_is_of_a_moment_of_its_own() -> None:
    """What was served of the first one is not read again."""
    world = World(lineages=(LINEAGE, OTHER))
    start(world)
    start(world, lineage=OTHER)
    reader = Reader(world, [Replica(database) for database in world.databases.values()])
    served, elsewhere = ServedState(), lookup(2, replace(CUSTOMER, lineages=(OTHER,)))
    world.stores["n1"].down = True
    for one in (FIRST, elsewhere):
        run = reader.reading(one, served=served)
        assert outcomes(run) == SNAPSHOT[:1]
        assert {its.item for step in run.steps if isinstance(step, Load) for its in step.lookups} == {one.item}


def test_an_entry_that_cannot_be_decoded_proves_nothing() -> None:
    shop = Shop(World(**NODES))

    def refuse(data: bytes) -> Any:
        raise FormatError(f"{data!r} is compressed")

    shop.reader.context.decode = refuse
    assert outcomes(shop.read_together()) == SNAPSHOT
