"""The explorer visits small worlds to their end, and finds what is wrong in them."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import PLANTED
from tests.simulation.explore import WORLDS, Explorer, SmallWorld

SMALL = tuple(world for world in WORLDS if world.name.startswith(("the ", "a reply", "head mode")))


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_every_state_of_a_small_world_is_sound(world: SmallWorld) -> None:
    result = Explorer(world).explore()
    assert result.violation == "", "\n".join(result.history)
    assert result.states > 1000


@pytest.mark.parametrize(
    ("bug", "world"),
    [
        ("fill without compare", SmallWorld("compare", polls=1)),
        ("delete before tombstone", SmallWorld("order", polls=1)),
        ("progress before acknowledge", SmallWorld("acknowledge", polls=1)),
        ("floor of a new life is empty", SmallWorld("birth", polls=1)),
        ("foreign progress is never old", next(world for world in WORLDS if world.is_first_gone)),
        ("record put back from memory", SmallWorld("lapse", polls=2, ticks=(25.0,))),
    ],
)
def test_a_planted_bug_is_found_with_its_shortest_history(bug: str, world: SmallWorld) -> None:
    with PLANTED[bug]():
        result = Explorer(world).explore()
    assert result.violation
    assert result.history[-1] == result.violation
    assert len(result.history) < 60


def test_a_world_that_is_too_large_says_so() -> None:
    with pytest.raises(AssertionError, match="more than 500 states"):
        Explorer(SmallWorld("large", reads=2, commits=3, states_max=500)).explore()
