"""The explorer visits small worlds to their end, and finds what is wrong in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest

from freshness.algorithm import read, refill
from freshness.objects import keyfinder
from invalidator.loop.loop import Poll
from tests.schedules.test_parts import with_keys_of_the_place, without_digest
from tests.schedules.world import look_up_with_the_record_behind
from tests.simulation.bugs import PLANTED
from tests.simulation.explore import WORLDS, Done, Explorer, SmallWorld, State


def named(name: str) -> SmallWorld:
    return next(world for world in WORLDS if world.name == name)


PUT_BACK = next(world for world in WORLDS if world.name == "a stripe is put back")
PAUSED = next(world for world in WORLDS if world.name.startswith("two invalidators, paused"))
SMALL_NAMES = (
    *("the node", "a reply", "a write", "an append", "entries", "misses", "values", "an earlier"),
    *("a second", "a key", "a definition", "an invalidator of", "another ring", "keys are altered"),
    *(
        "a row moves between two unique",
        "a unique key comes",
        "two keys on two",
        "two keys are read one",
        "keys are read together, and entries",
    ),
)
SMALL = tuple(world for world in WORLDS if world.name.startswith(SMALL_NAMES))


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_every_state_of_a_small_world_is_sound(world: SmallWorld) -> None:
    result = Explorer(world).explore()
    assert result.violation == "", "\n".join(result.history)
    assert result.states > 500


def test_a_refill_that_ignores_the_stripe_is_found() -> None:
    world = next(world for world in WORLDS if world.name.startswith("two invalidators fill"))
    with patch.object(refill, "is_within", return_value=True):
        result = Explorer(world).explore()
    assert result.violation.startswith("I1: version 3 was filled after commit 4")


@pytest.mark.parametrize("name", ["a row moves between two unique keys", "rows move between two lists"])
def test_a_change_that_does_not_name_the_key_of_its_row_behind_it_is_found(name: str) -> None:
    items_of = keyfinder._items_of

    def of_the_first_image(definition: Any, table: str, before: Any, after: Any) -> Iterable[bytes]:
        return items_of(definition, table, before, after if before is None else None)

    with patch.object(keyfinder, "_items_of", of_the_first_image):
        result = Explorer(named(name)).explore()
    assert result.violation == "I4: progress names commit 3, which was not carried out"


def test_the_parts_of_two_values_are_found_where_both_defences_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest in the keys of the parts, and the comparison of what they give."""
    without_digest(monkeypatch)
    with_keys_of_the_place(monkeypatch)
    world = next(world for world in WORLDS if world.name == "values in parts, two readers")
    result = Explorer(world).explore()
    assert result.violation.startswith("I1: version 1 was hit with parts of another one")


@pytest.mark.parametrize(
    ("bug", "world"),
    [
        ("fill without compare", SmallWorld("compare", beats=0, polls=1)),
        ("an absent stripe allows", SmallWorld("absence", beats=0, polls=1, stripe_evictions=1)),
        ("stripe read before the stub", SmallWorld("reading", beats=0, polls=1)),
        ("delete before stripe", SmallWorld("order", beats=0, polls=1)),
        ("progress before acknowledge", SmallWorld("acknowledge", beats=0, polls=1)),
        ("a refused append counts as done", SmallWorld("refusal", beats=0, polls=1, refusals=1)),
        ("keys are not deleted after a refusal", SmallWorld("refusal", beats=0, polls=1, refusals=1)),
        ("shortened to the first chunk", SmallWorld("length", readers=0, beats=0, commits=3, shorten_share=1)),
        ("shortened by set", next(world for world in WORLDS if world.shorten_share == 1)),
        ("put back by add", PUT_BACK),
        ("put back by set", PUT_BACK),
        ("put back with the floor alone", PUT_BACK),
        ("what was appended is dropped", PUT_BACK),
        ("a pending stripe is not appended to", PUT_BACK),
        pytest.param("put back with an older heartbeat", PAUSED, marks=pytest.mark.long),
        ("stripe not required of a miss", SmallWorld("compare", beats=0, polls=1)),
        ("a miss is fresh without its token", SmallWorld("compare", beats=0, polls=1)),
        ("the clock of a node is trusted", next(world for world in WORLDS if world.stops)),
        ("a view outlives its connection", named("an earlier memory comes back")),
        ("a view outlives its connection", named("an earlier memory comes back, and reads are of many keys")),
        ("a view outlives its connection", named("an earlier memory comes under living connections")),
        ("a view outlives an interruption", named("an earlier memory comes back, and a reader is cancelled")),
        ("a bound of one call is ignored", named("calls accept little staleness")),
        ("start of a ring ignored by hits", named("a key comes back to its first node")),
        ("start of a ring not required of a miss", named("a key comes back to its first node")),
        ("a previous ring is not sent", named("a second ring is served")),
        ("a ring leaves at once", named("a ring leaves")),
        ("a ring leaves at once", named("a definition leaves")),
        ("start of an object ignored by hits", named("a definition comes back")),
        ("start of an object ignored by hits", named("keys are altered, and altered back")),
        ("published before the record is covered", named("a definition leaves")),
        ("a ring that is not known is published", named("an invalidator of the previous file goes on")),
        ("an entry moves at another progress", named("an entry moves to another node")),
        ("a second ring leaves at once", named("another ring leaves while readers are waited for")),
        ("start of a ring ignored by hits", named("a ring comes back while readers are waited for")),
        ("before-image ignored", named("a row moves between two unique keys")),
        ("fill without compare", named("a row moves between two unique keys")),
        ("before-image ignored", named("a unique key moves between two rows")),
        ("own commits ignored by hits", named("a unique key moves between two rows")),
        ("before-image ignored", named("rows move between two lists")),
        ("stripe not required of a miss", named("rows move between two lists")),
        ("every key is taken for exact", named("a unique key comes back in another spelling")),
        ("the bound of an entry is its position", named("two keys on two nodes are read together")),
        ("each node has its own progress", named("two keys on two nodes are read together")),
        pytest.param(
            "put back with another primary's heartbeat", named("two primaries take writes"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_planted_bug_is_found_with_its_shortest_history(bug: str, world: SmallWorld) -> None:
    with PLANTED[bug]():
        result = Explorer(world).explore()
    assert result.violation
    assert result.history[-1] == result.violation
    assert len(result.history) < 60


def test_a_node_that_does_not_say_whose_data_it_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Explorer, "_is_unnoticed", staticmethod(lambda _: True))
    result = Explorer(named("an earlier memory comes under living connections")).explore()
    assert result.violation.startswith("I1: version 1 was hit after commit 3")


class AfterAFill(Explorer):
    """The node is open and the first reader has filled before anything is explored."""

    def initial(self) -> State:
        state = self._committed(super().initial())._replace(applied=3)
        state = self._moved(state, 0)
        while not isinstance(self._step(state, 0), Poll):
            state = self._moved(state, 0)
        while not isinstance(self._step(state, 2), Done):
            state = self._moved(state, 2)
        return state


def test_a_live_entry_has_what_the_record_before_it_names() -> None:
    """The lemma on which read-your-writes will stand, in every state; and the order of reading that it needs."""
    world = SmallWorld("a fill, then a change", beats=0, readers=2, polls=2, commits=3)
    assert AfterAFill(world).explore().violation == ""
    with patch.object(read, "look_up", look_up_with_the_record_behind):
        result = AfterAFill(world).explore()
    assert result.violation.startswith("lemma: version 3 was hit"), "\n".join(result.history)


def test_a_world_that_is_too_large_says_so() -> None:
    with pytest.raises(AssertionError, match="more than 500 states"):
        Explorer(SmallWorld("large", reads=2, commits=3, states_max=500)).explore()
