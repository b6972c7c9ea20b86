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
from tests.proof.tie import CHECKS, Tied
from tests.simulation.bugs import Planting
from tests.simulation.explore import WORLDS

BY_NAME = {world.name: world for world in WORLDS}


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """The production code logs each fault."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize(
    "name",
    [
        "entry and stripe are evicted",
        "a stripe is put back",
        "the record is evicted, the primary shows late",
        "entries are filled from the log",
    ],
)
def test_each_state_satisfies_the_invariant(name: str) -> None:
    world = Tied(BY_NAME[name])
    result = world.explore()
    assert result.violation == "", "\n".join(result.history)
    assert len(world.evaluated) > 100


@pytest.mark.parametrize(
    ("bug", "name", "clause"),
    [
        ("put back with an older heartbeat", "a stripe is put back", "a whole stripe has what was struck"),
        ("fill without compare", "entry and stripe are evicted", "an entry has what was settled"),
        ("progress before acknowledge", "entry and stripe are evicted", "acknowledged means settled"),
    ],
)
def test_a_planted_bug_leaves_the_invariant(bug: str, name: str, clause: str) -> None:
    with Planting(bug):
        result = Tied(BY_NAME[name]).explore()
    assert result.violation.startswith(f"not: {clause}"), result.violation


def test_the_chain_from_the_log_to_an_entry_is_evaluated() -> None:
    assert len(CHECKS) == 16
    assert CHECKS.keys() >= {
        acknowledged_means_settled,
        a_whole_stripe_has_what_was_struck,
        an_entry_has_what_was_settled,
        i2,
    }
