"""I5: worlds that recover slowly are within its bound, and a longer wait than is promised is not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from freshness.algorithm.request import MISSING, Add, Get
from freshness.algorithm.restore import Restorer
from tests.simulation import fault
from tests.simulation.campaign import run_seed
from tests.simulation.liveness import bound_seconds
from tests.simulation.options import Options
from tests.simulation.quick import be_silent
from tests.simulation.world import World

NODE: Final = "n0"
TTL_SECONDS: Final = 10

LATE: Final = 483780
"""A stripe is pending when its invalidator dies, for 36 s, and the replica is 60 s late."""

SLOW: Final = {
    LATE: "pending, and a late replica",
    615200: "the same, and the invalidator is a job that ends",
    609880: "a clock is set back by 2.5 minutes while a stripe is pending",
}


@pytest.fixture(scope="module", autouse=True)
def silent() -> Iterator[None]:
    be_silent()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SLOW)
def test_a_slow_world_is_within_the_bound(seed: int) -> None:
    """Each world has many actors, so a step takes a few milliseconds: they need more than 30,000 steps."""
    assert run_seed(seed) is None


def test_a_pending_stripe_that_stays_for_longer_than_is_promised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Restorer, "pending_seconds", property(lambda _: 1000))
    finding = run_seed(LATE)
    assert finding is not None
    assert finding.invariant == "I5"


def test_an_item_outlives_its_ttl_by_as_much_as_its_clock_was_set_back() -> None:
    """Even if the clock was set forward before, and is right in the end."""
    world = World(Options(seed=0))
    store, clock = world.stores[NODE], world.clocks[NODE]
    before = bound_seconds(world)
    clock.set_back(-40.0)
    store.answer(Add(b"item", b"x", TTL_SECONDS))
    clock.set_back(40.0)
    assert bound_seconds(world) == before + 40.0
    world.now += TTL_SECONDS + 39.0
    assert store.answer(Get(b"item")) is not MISSING
    world.now += 3.0
    assert store.answer(Get(b"item")) is MISSING


def test_the_bound_is_that_of_the_slowest_settings_of_a_process() -> None:
    world = World(Options(seed=0, is_mixed=True))
    drawn = [replace(world._settings_of(f"{number}"), is_mixed=False) for number in range(50)]
    assert len({each.lease_seconds for each in drawn}) > 1
    assert bound_seconds(world) >= max(bound_seconds(World(each)) for each in drawn)


def test_no_clock_is_late_when_faults_have_ended() -> None:
    world = World(Options(seed=0))
    clock = world.clocks[NODE]
    right = clock.read()
    clock.late, clock.late_until = 40.0, world.now + 40.3
    assert clock.read() == right - 40.0
    fault.calm(world)
    world.now += fault.OLD_TIME_SECONDS
    assert clock.read() == pytest.approx(right + fault.OLD_TIME_SECONDS)


def test_a_restorer_looks_at_the_nodes_of_its_process() -> None:
    """Also where other nodes are deployed before its first look, and that is taken back: nobody starts it again."""
    world = World(Options(seed=0, nodes=2, faults=frozenset({"reshape"})))
    name = world.invalidator_names[0]
    world.actor_by_name[name].run_step()
    world.rings = (1,)
    assert len(world.placements[1].nodes) == 1
    restorer = world.actor_by_name[f"{name} restorer"]
    restorer.run_step()
    asked = []
    while (coming := restorer.find_next_request()) is not None:
        asked.append(coming[0])
        restorer.run_step()
    assert sorted(set(asked)) == ["n0", "n1"]
