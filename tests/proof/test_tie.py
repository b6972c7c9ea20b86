"""Each step of the production code is some actions of the model, or none; code without a defence leaves the model."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.proof import actions
from tests.proof.state import Next
from tests.proof.tie import Tied, is_tied
from tests.proof.weakened import WEAKENED, append_last, complete_with_the_stream, publish_first
from tests.simulation.bugs import Planting
from tests.simulation.explore import WORLDS, Explorer, SmallWorld

SMALL_NAMES = (
    "a stripe is put back",
    "an append arrives twice",
    "the record is evicted, the primary shows late",
    "stripe and record are evicted while a session asks",
    "the node restarts while a session asks",
    "the lease lapses while a session asks",
)
SMALL = [world for world in WORLDS if world.name in SMALL_NAMES and is_tied(world)]


def named(name: str) -> SmallWorld:
    return next(world for world in WORLDS if world.name == name)


READING = SmallWorld("a change under a read", beats=0, polls=1)
ABSENCE = SmallWorld("a change under a read, the stripe is evicted", beats=0, polls=1, stripe_evictions=1)
PUT_BACK = named("a stripe is put back")


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """The production code logs each fault."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_each_step_is_in_the_model(world: SmallWorld) -> None:
    tied = Tied(world)
    result = tied.explore()
    assert result.violation == "", "\n".join(result.history)
    assert len(tied.model) > 100


@pytest.mark.parametrize(
    ("bug", "world", "step"),
    [
        ("stripe read before the stub", READING, "fetch stripe"),
        ("fill without compare", READING, "fill"),
        ("an absent stripe allows", ABSENCE, "fill"),
        ("delete before stripe", READING, "publish"),
        ("progress before acknowledge", READING, "publish"),
        ("a pending stripe is not appended to", PUT_BACK, "appended"),
        ("put back with an older heartbeat", PUT_BACK, "complete"),
        ("put back by set", PUT_BACK, "complete"),
    ],
)
def test_a_planted_bug_leaves_the_model_before_an_invariant_breaks(bug: str, world: SmallWorld, step: str) -> None:
    with Planting(bug):
        result, late = Tied(world).explore(), Explorer(world).explore()
    assert result.violation.startswith(f"not in the model: {step}("), result.violation
    assert not late.violation or late.states > result.states


@pytest.mark.parametrize(
    ("bug", "world", "weakened", "clause"),
    [
        ("progress before acknowledge", READING, publish_first, "acknowledged means settled"),
        ("delete before stripe", READING, append_last, "an entry has what was settled"),
        ("what was appended is dropped", PUT_BACK, complete_with_the_stream, "a whole stripe has what was struck"),
    ],
)
def test_a_model_with_the_same_bug_leaves_the_invariant(
    bug: str, world: SmallWorld, weakened: Callable[..., Next], clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (original,) = next(each.instead for each in WEAKENED if weakened in each.instead.values())
    monkeypatch.setattr(actions, original.__name__, weakened)
    with Planting(bug):
        result = Tied(world).explore()
    assert result.violation == f"not in the model: not: {clause}"
