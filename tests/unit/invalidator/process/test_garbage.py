"""The garbage collector of the invalidator's process: seldom while it runs, as before when it has ended."""

from __future__ import annotations

import gc

import pytest

from freshness.errors import StreamStopped
from invalidator.process.app import NEW_OBJECTS_MIN, seldom_collected


def test_garbage_is_looked_for_as_before_when_the_invalidator_has_ended() -> None:
    before = gc.get_threshold()
    with pytest.raises(StreamStopped), seldom_collected():
        fail_where_it_is_seldom(before)
    assert gc.get_threshold() == before


def fail_where_it_is_seldom(before: tuple[int, int, int]) -> None:
    assert gc.get_threshold() == (NEW_OBJECTS_MIN, *before[1:])
    raise StreamStopped("over")
