"""The simulator itself: what it finds, that it can be repeated, and that its checkers see what they are for."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from freshness.config.cache import PART_BYTES
from tests.schedules.test_parts import with_keys_of_the_place, without_digest
from tests.simulation.__main__ import main
from tests.simulation.bugs import KNOWN_SEEDS, PLANTED, SELDOM_CAUGHT, Planting
from tests.simulation.campaign import Finding, Tally, catch, run_seeds, run_world
from tests.simulation.checker import Violation
from tests.simulation.options import (
    BOUND_FAULTS,
    CANCEL_FAULTS,
    FAULTS,
    MEMORY_FAULTS,
    NAME_FAULTS,
    PROFILES,
    Options,
)
from tests.simulation.quick import be_silent
from tests.simulation.report import find_history, tell_costs, tell_finding
from tests.simulation.shrink import shrink, size
from tests.simulation.world import World

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(400)
WINDOW_SEEDS = 700
DRAWN = {*FAULTS, *BOUND_FAULTS, *NAME_FAULTS, *MEMORY_FAULTS, *CANCEL_FAULTS}
MIXING_SEED = 12
"""Its values are in parts, and a reader is overtaken between two of them."""

_DIGEST = """
import hashlib, logging
from tests.simulation.campaign import run_seed
logging.disable(logging.CRITICAL)
digest = hashlib.sha256()
for seed in range(40):
    run_seed(seed, trace=lambda line: digest.update(line.encode()))
print(digest.hexdigest())
"""


@pytest.fixture(scope="module", autouse=True)
def silent() -> Iterator[None]:
    be_silent()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return run_seeds(SEEDS)


def test_seeds_hold_all_invariants(tally: Tally) -> None:
    assert tally.findings == []
    assert tally.seeds == len(SEEDS)


def test_worlds_end_with_everything_cacheable(tally: Tally) -> None:
    assert tally.lively == len(SEEDS) / 20


def test_worlds_reach_every_profile_and_most_outcomes(tally: Tally) -> None:
    """A world in which nothing happens violates nothing."""
    assert set(tally.profiles) == {*PROFILES, "reshard", "rings", "memory", "together"}
    seldom = {"KEY", "TOO_LARGE", "FOREIGN", "IDENTITY", "STALE", "DEAD", "EPOCH"}
    wanted = {
        "HIT",
        "FILLED",
        "LOST_RACE",
        "STRIPE",
        "STRIPE_ABSENT",
        "FLOOR",
        "TABLE_FLOOR",
        "OBJECT",
        "RING",
        "CLOSED",
        "NO_RECORD",
        "LIFE",
        "NODE_DOWN",
        "NO_TOKEN",
        "STALE_SERVED",
        "BEHIND",
        "TOGETHER",
    }
    assert not wanted & seldom
    assert wanted <= set(tally.outcomes)
    assert tally.outcomes["HIT"] > 0.15 * sum(tally.outcomes.values())


def test_every_kind_of_fault_strikes(tally: Tally) -> None:
    kinds = {
        *DRAWN,
        "mixed settings",
        "reordered log",
        "own commit",
        "own bound",
        "read together",
        "read on together",
        "state changed",
    }
    assert kinds <= tally.faults.keys()
    assert all(f"{kind} {tally.faults[kind]}" in tell_costs(tally) for kind in kinds)


def test_the_costs_name_every_outcome_that_was_seen(tally: Tally) -> None:
    text = tell_costs(tally)
    for name in tally.outcomes:
        assert f"| {name.lower()} |" in text


def test_options_follow_from_the_seed_alone() -> None:
    assert [Options.of_seed(seed) for seed in range(200)] == [Options.of_seed(seed) for seed in range(200)]
    drawn = {fault for seed in range(300) for fault in Options.of_seed(seed).faults}
    assert drawn == DRAWN


def test_histories_are_equal_in_two_processes() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", _DIGEST],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(run.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_every_planted_bug_has_a_seed_or_is_known_to_need_a_schedule() -> None:
    assert KNOWN_SEEDS.keys() | SELDOM_CAUGHT.keys() == PLANTED.keys()
    assert not KNOWN_SEEDS.keys() & SELDOM_CAUGHT.keys()


@pytest.mark.parametrize("bug", sorted(KNOWN_SEEDS))
def test_planted_bug_is_caught(bug: str) -> None:
    """By its seed, or another one of a window: a change of the product moves them."""
    caught = catch(bug, range(WINDOW_SEEDS))
    assert caught.finding is not None
    assert caught.finding.invariant in ("I1", "I2", "I3", "I4", "I5", "I7", "I9", "I10")


def _planted(bug: str) -> Finding:
    finding = catch(bug).finding
    assert finding is not None
    return finding


def test_shrinking_keeps_the_invariant() -> None:
    bug = "fill without compare"
    finding = _planted(bug)
    small = shrink(finding, is_lively=False, bug=bug)
    assert small.invariant == finding.invariant
    assert size(small.options) < size(finding.options)
    with Planting(bug):
        again = run_world(small.options, is_lively=False, bug=bug)
    assert again == small


def test_a_violation_is_told_with_seed_and_history() -> None:
    bug = "fill without compare"
    finding = _planted(bug)
    text = tell_finding(finding, find_history(finding, is_lively=False, bug=bug), lines_max=40)
    assert f"VIOLATION of seed {finding.options.seed}: {finding.invariant}: " in text
    assert f"world: seed={finding.options.seed}" in text
    assert "lines before" in text
    assert " → n0 " in text.splitlines()[-1]


def test_one_seed_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    bug = "fill without compare"
    seed = str(_planted(bug).options.seed)
    assert main(["--seed", seed]) == 0
    assert capsys.readouterr().out == f"seed {seed}: no violation\n"
    assert main(["--seed", seed, "--trace"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 100
    assert main(["--seed", seed, "--bug", bug]) == 1
    assert capsys.readouterr().out.startswith(f"VIOLATION of seed {seed}")


@pytest.mark.parametrize("text", ["5", "7:7", "9:2", "a:b"])
def test_a_wrong_range_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--seeds", text])
    assert stop.value.code == 2
    assert "expected A:B with A < B" in capsys.readouterr().err


def test_json_names_what_interfaces_promise() -> None:
    """The keys alone; the run itself is `make sim`."""
    from dataclasses import asdict

    from tests.simulation.__main__ import Summary

    assert list(json.loads(json.dumps(asdict(Summary())))) == [
        "seeds",
        "schedules",
        "exhaustive_worlds",
        "states",
        "violations",
        "planted_bugs_caught",
        "planted_bugs",
    ]


@pytest.mark.parametrize(
    ("plants", "is_found"), [((without_digest,), False), ((without_digest, with_keys_of_the_place), True)]
)
def test_a_random_world_mixes_the_parts_of_two_values_where_both_defences_are_out(
    plants: Sequence[Callable[[pytest.MonkeyPatch], None]], is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plant in plants:
        plant(monkeypatch)
    world = World(Options.of_seed(MIXING_SEED))
    assert world.options.part_bytes < PART_BYTES
    if not is_found:
        world.run()
        return
    with pytest.raises(Violation, match="with parts of another value"):
        world.run()
