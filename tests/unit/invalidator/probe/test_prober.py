"""The prober on a node and a primary in memory: when it compares, what it calls lag and what a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Delete, Get, Item
from freshness.comparison.comparison import Comparison
from invalidator.probe import prober as probing
from invalidator.probe.prober import ProbePlan, Prober
from invalidator.probe.report import NO_ANSWER, ProbeSummary
from invalidator.probe.tally import SWEEP, ProbeTally, Verdict
from tests.unit.freshness.comparison.world import LINEAGE, OLD, SCOPE, MeddledNode, World, at

KEY: Final = b"shop:customer:1"
NEW: Final = {"id": 1, "v": "new"}


class Bench:
    """A prober of all keys, at 1 s and at 10 s, on a clock that only the test moves."""

    def __init__(self, *, probes_max: int = 100, rate: float = 1000.0, repairs: bool = False) -> None:
        self.world = World()
        self.node: CacheNode = self.world.node
        self.now = 0.0
        self.tally = ProbeTally()
        comparison = Comparison(SCOPE, lambda _: self.node, cast(Any, lambda _: self.world))
        plan = ProbePlan(share=1.0, scales_seconds=(1.0, 10.0), rate=rate, repairs=repairs)
        self.prober = Prober(
            SCOPE, comparison, lambda _: self.node, plan, lambda: self.now, self.tally, probes_max=probes_max
        )

    def change(self, sequence: int, *items: bytes) -> None:
        self.prober.note_change(items or (KEY,), LINEAGE, at(sequence))

    def wait_until(self, seconds: float) -> None:
        """Time passes, and the prober does what is due every half second."""
        while self.now < seconds:
            self.now += 0.5
            self.prober.run_due()

    def found(self) -> dict[tuple[str, Verdict], int]:
        """Comparisons by scale and verdict."""
        return {(scale, verdict): count for (_, scale, verdict), count in self.tally.verdicts.items()}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_change_is_compared_at_each_scale(bench: Bench) -> None:
    bench.world.fill(NEW)
    bench.change(5)
    bench.wait_until(0.5)
    assert bench.found() == {}
    bench.wait_until(9.5)
    assert bench.found() == {("1", "right"): 1}
    bench.wait_until(60)
    assert bench.found() == {("1", "right"): 1, ("10", "right"): 1}
    assert (bench.tally.changes, bench.tally.waiting, bench.tally.dropped) == (1, 0, {})


def _close(world: World) -> None:
    world.fill(OLD)
    world.record(10, is_open=False)


@pytest.mark.parametrize("leave", [lambda _: None, _close, lambda world: world.fill(OLD, life=b"PREVIOUS..")])
def test_an_old_value_that_nobody_is_served_is_no_lag(bench: Bench, leave: Callable[[World], None]) -> None:
    leave(bench.world)
    bench.change(11)
    bench.wait_until(60)
    assert bench.found() == {("1", "absent"): 1, ("10", "absent"): 1}


def test_a_change_that_the_node_has_not_acknowledged_is_lag(bench: Bench) -> None:
    """However long it takes, and however often it is looked at (F52)."""
    bench.world.fill(OLD)
    bench.world.head = at(11)
    bench.change(11)
    bench.wait_until(500)
    assert bench.found() == {("1", "lag"): 1, ("10", "lag"): 1}
    assert (bench.tally.suspects, bench.tally.lags) == (1, {})
    bench.world.record(11)
    bench.world.node.perform([Delete(KEY)])
    bench.wait_until(540)
    assert bench.found() == {("1", "lag"): 1, ("10", "lag"): 1}
    assert bench.prober.is_settled
    assert (bench.tally.lags, bench.tally.losses.total()) == ({600: 2}, 0)
    assert bench.tally.lag_seconds > 2 * 500


def test_a_change_that_the_node_has_acknowledged_and_still_serves_the_old_value_is_a_loss(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.change(10)
    bench.wait_until(1.5)
    assert bench.found() == {}, "it is looked at again first"
    bench.wait_until(60)
    assert bench.found() == {("1", "loss"): 1, ("10", "loss"): 1}
    assert bench.tally.losses == {"customer": 1}, "one entry, told once"
    [finding] = bench.tally.findings.values()
    assert ("'old'" in finding.cached, "'new'" in finding.primary) == (True, True)


def test_a_late_acknowledgement_without_the_invalidation_is_a_loss(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.world.head = at(11)
    bench.change(11)
    bench.wait_until(5)
    bench.world.record(11)
    bench.wait_until(60)
    assert bench.found() == {("1", "lag"): 1, ("10", "loss"): 1}
    assert (bench.tally.losses, bench.tally.lags) == ({"customer": 1}, {})


def test_a_later_change_that_is_on_its_way_speaks_not_against_the_previous(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.world.head = at(11)
    bench.change(10)
    bench.wait_until(1.5)
    bench.world.record(11)
    bench.world.fill(NEW, position=at(11))
    bench.wait_until(9)
    assert bench.found() == {("1", "right"): 1}
    assert bench.tally.losses.total() == 0


def test_a_change_outside_the_log_is_found_by_a_sweep(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.prober.compare_now([KEY])
    bench.wait_until(10)
    assert bench.found() == {(SWEEP, "loss"): 1}
    bench.prober.compare_now([KEY])
    bench.wait_until(20)
    assert bench.found() == {(SWEEP, "loss"): 2}
    assert bench.tally.losses == {"customer": 1}


def test_a_sweep_takes_lag_for_no_loss(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.world.head = at(11)
    bench.prober.compare_now([KEY])
    bench.wait_until(100)
    assert bench.found() == {}
    bench.prober.give_up()
    assert bench.found() == {(SWEEP, "unknown"): 1}
    [error] = bench.tally.errors
    assert "0-1-11" in error


def test_an_entry_that_goes_while_a_sweep_looks_at_it_proves_nothing(bench: Bench) -> None:
    """It differed, and its invalidation came: it was not seen to be right (F120)."""
    bench.world.fill(OLD)
    bench.prober.compare_now([KEY])
    bench.world.node.perform([Delete(KEY)])
    bench.wait_until(10)
    assert bench.found() == {(SWEEP, "absent"): 1}
    assert ProbeSummary.of(bench.tally).exit_code == NO_ANSWER


def test_a_suspect_is_not_followed_for_ever(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.world.head = at(11)
    bench.prober.compare_now([KEY])
    bench.wait_until(probing.FOLLOW_SECONDS + 2 * probing.LOOK_WAIT_SECONDS_MAX)
    assert bench.found() == {(SWEEP, "unknown"): 1}
    assert bench.prober.is_settled


def test_silence_is_unknown(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.change(10)
    bench.world.is_down = True
    bench.wait_until(5)
    assert bench.found() == {("1", "unknown"): 1}
    bench.world.is_down = False
    bench.world.store.down = True
    bench.wait_until(20)
    assert bench.found() == {("1", "unknown"): 1, ("10", "unknown"): 1}
    assert len(bench.tally.errors) == 2


def test_silence_while_a_suspect_is_followed_is_unknown(bench: Bench) -> None:
    bench.world.fill(OLD)
    bench.change(10)
    bench.wait_until(1.5)
    bench.world.is_down = True
    bench.wait_until(5)
    assert bench.found() == {("1", "unknown"): 1}
    assert bench.prober.is_settled


def test_a_poisoned_entry_is_removed_and_what_took_its_place_stays() -> None:
    bench = Bench(repairs=True)
    bench.world.fill(OLD)
    bench.prober.compare_now([KEY])
    bench.wait_until(10)
    assert bench.world.node.find(KEY) is None
    assert (bench.tally.repaired, bench.tally.not_repaired) == ({"customer": 1}, {})


def test_without_being_asked_nothing_is_removed(bench: Bench) -> None:
    bench.world.fill(OLD)
    [before] = bench.world.node.perform([Get(KEY)])
    bench.prober.compare_now([KEY])
    bench.wait_until(10)
    [after] = bench.world.node.perform([Get(KEY)])
    assert isinstance(before, Item)
    assert after == before


def test_a_removal_that_fails_is_told() -> None:
    bench = Bench(repairs=True)
    bench.world.fill(OLD)
    bench.node = MeddledNode(bench.world, OLD)
    bench.prober.compare_now([KEY])
    bench.wait_until(10)
    assert (bench.tally.repaired, bench.tally.not_repaired) == ({}, {"customer": 1})
    [error] = bench.tally.errors
    assert error.startswith("not repaired")


# -- bounds ----------------------------------------------------------------------------------------------


def test_changes_of_a_key_that_waits_for_its_first_comparison_are_merged(bench: Bench) -> None:
    bench.world.fill(NEW)
    for sequence in (3, 4, 5):
        bench.change(sequence)
    bench.wait_until(60)
    assert bench.found() == {("1", "right"): 1, ("10", "right"): 1}
    assert (bench.tally.changes, bench.tally.dropped) == (3, {"merged": 2})
    bench.change(6)
    bench.wait_until(120)
    assert bench.found() == {("1", "right"): 2, ("10", "right"): 2}


def test_what_finds_no_room_is_counted() -> None:
    bench = Bench(probes_max=2)
    bench.change(5, *(b"shop:customer:%d" % number for number in range(5)))
    assert bench.tally.dropped == {"full": 3}
    bench.wait_until(60)
    assert sum(bench.tally.verdicts.values()) == 4


def test_what_waits_too_long_for_the_rate_is_counted_and_says_nothing() -> None:
    bench = Bench(rate=1.0)
    items = [b"shop:customer:%d" % number for number in range(6)]
    bench.change(5, *items)
    bench.wait_until(600)
    made = sum(bench.tally.verdicts.values())
    assert bench.tally.dropped["overdue"] > 0
    assert made + bench.tally.dropped["overdue"] == 2 * len(items)


def test_composites_are_left_out_and_counted(bench: Bench) -> None:
    bench.world.fill(OLD, name="profile")
    bench.change(5, b"shop:profile:1")
    bench.prober.compare_now([b"shop:profile:1"])
    bench.wait_until(60)
    assert (bench.found(), bench.tally.uncomparable) == ({}, 2)


def test_an_item_is_always_sampled_or_never() -> None:
    items = [b"shop:customer:%d" % number for number in range(20_000)]
    plan = ProbePlan(share=0.01)
    sampled = set(filter(plan.samples, items))
    assert set(filter(ProbePlan(share=0.01).samples, items)) == sampled
    assert 100 < len(sampled) < 300
    assert sampled < set(filter(ProbePlan(share=0.5).samples, items))
    assert all(map(ProbePlan(share=1.0).samples, items))
