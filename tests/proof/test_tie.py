"""The states of the production code satisfy the invariant of the model, as far as they are read off."""

from __future__ import annotations

import logging

import pytest

from tests.proof.invariant import (
    a_whole_stripe_has_what_was_struck,
    acknowledged_means_settled,
    an_entry_has_what_was_settled,
    i2,
)
from tests.proof.tie import CHECKS, Tied, is_tied
from tests.simulation.bugs import Planting
from tests.simulation.explore import WORLDS, SmallWorld

SMALL_NAMES = (
    "a stripe is put back",
    "an append arrives twice",
    "the record is evicted, the primary shows late",
    "stripe and record are evicted while a session asks",
    "the node restarts while a session asks",
    "the lease lapses while a session asks",
)
SMALL = [world for world in WORLDS if world.name in SMALL_NAMES and is_tied(world)]


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """The production code logs each fault."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_each_state_satisfies_the_invariant(world: SmallWorld) -> None:
    tied = Tied(world)
    result = tied.explore()
    assert result.violation == "", "\n".join(result.history)
    assert len(tied.evaluated) > 20


@pytest.mark.parametrize(
    ("bug", "name", "clause"),
    [
        ("fill without compare", "entry and stripe are evicted", "an entry has what was settled"),
        ("a pending stripe is not appended to", "a stripe is put back", "a whole stripe has what was struck"),
        ("put back by add", "a stripe is put back", "a whole stripe has what was struck"),
    ],
)
def test_a_planted_bug_leaves_the_invariant(bug: str, name: str, clause: str) -> None:
    with Planting(bug):
        result = Tied(next(world for world in WORLDS if world.name == name)).explore()
    assert result.violation.startswith(f"not: {clause}"), result.violation


def test_the_chain_from_the_log_to_an_entry_is_evaluated() -> None:
    assert len(CHECKS) == 16
    assert CHECKS.keys() >= {
        acknowledged_means_settled,
        a_whole_stripe_has_what_was_struck,
        an_entry_has_what_was_settled,
        i2,
    }
