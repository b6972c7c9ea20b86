"""Each step of the production code is some actions of the model, or none; code without a defence leaves the model."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.proof import actions, reading
from tests.proof.state import Next
from tests.proof.tie import Tied, is_tied
from tests.proof.weakened import WEAKENED, fetch_record_without_stripe, fill_without_compare, publish_first
from tests.simulation.bugs import Planting
from tests.simulation.explore import WORLDS, Explorer, SmallWorld

SMALL_NAMES = (
    "a stripe is put back",
    "an append arrives twice",
    "an append is refused for memory",
    "two keys in two stripes",
    "entries are filled from the log",
    "entries are filled from the log, and a stripe is evicted",
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
LAPSE = SmallWorld("the lease lapses", readers=0, beats=0, polls=1, ticks=(4.0,))
ASKING = SmallWorld("a session asks", is_filled=True, beats=0, polls=1, asks=True)


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
        ("stripe not required of a miss", READING, "answer"),
        ("delete before stripe", READING, "publish"),
        ("progress before acknowledge", READING, "publish"),
        ("a pending stripe is not appended to", PUT_BACK, "appended"),
        ("put back with an older heartbeat", PUT_BACK, "complete"),
        ("record put back from memory", LAPSE, "open record"),
        ("own commits ignored by hits", ASKING, "take hit"),
    ],
)
def test_a_planted_bug_leaves_the_model_no_later_than_an_invariant_breaks(
    bug: str, world: SmallWorld, step: str
) -> None:
    with Planting(bug):
        result, late = Tied(world).explore(), Explorer(world).explore()
    assert result.violation.startswith(f"not in the model: {step}("), result.violation
    assert not late.violation or late.states >= result.states


@pytest.mark.parametrize(
    ("bug", "world", "weakened", "clause"),
    [
        ("progress before acknowledge", READING, publish_first, "acknowledged means settled"),
        ("fill without compare", READING, fill_without_compare, "an entry has what was settled"),
        ("stripe not required of a miss", READING, fetch_record_without_stripe, "the stripe is behind the stub"),
    ],
)
def test_a_model_with_the_same_bug_leaves_the_invariant(
    bug: str, world: SmallWorld, weakened: Callable[..., Next], clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (original,) = next(each.instead for each in WEAKENED if each.name == bug)
    for module in (actions, reading):
        if hasattr(module, original.__name__):
            monkeypatch.setattr(module, original.__name__, weakened)
    with Planting(bug):
        result = Tied(world).explore()
    assert result.violation == f"not in the model: not: {clause}"
