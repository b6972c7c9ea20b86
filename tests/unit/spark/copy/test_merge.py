"""Which changes of a micro-batch a copy applies: positions decide, without a Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from freshness.errors import ConfigError, HistoryPurged
from freshness.position import Position, parse_position
from spark.copy.merge import advance

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
BEGIN, EMPTY = "begin", "empty"


def up_to(number: int) -> str:
    return f"{SOURCE}:1-{number}"


def at(**numbers: int) -> Mapping[str, Position]:
    return {lineage: parse_position("mysql", up_to(number)) for lineage, number in numbers.items()}


@pytest.mark.parametrize("begin", [1, 7, 10])
def test_a_micro_batch_may_begin_anywhere_in_what_was_applied(begin: int) -> None:
    """The checkpoint of a stream may be older than the copy, or be lost."""
    marks = [("a", BEGIN, up_to(begin)), ("a", EMPTY, up_to(20))]
    assert advance(at(a=10, b=5), marks) == at(a=20, b=5)


def test_a_micro_batch_of_the_past_does_not_move_the_copy_back() -> None:
    assert advance(at(a=10), [("a", BEGIN, up_to(1)), ("a", EMPTY, up_to(4))]) == at(a=10)


def test_a_gap_is_refused() -> None:
    marks = [("b", BEGIN, up_to(5)), ("b", EMPTY, up_to(9)), ("a", BEGIN, up_to(11)), ("a", EMPTY, up_to(20))]
    with pytest.raises(HistoryPurged, match=r"the stream of a goes on after .*:1-11, the copy is at .*:1-10"):
        advance(at(a=10, b=5), marks)


def test_the_pieces_of_a_micro_batch_follow_one_another() -> None:
    marks = [("a", BEGIN, up_to(12)), ("a", EMPTY, up_to(15)), ("a", BEGIN, up_to(10)), ("a", EMPTY, up_to(12))]
    assert advance(at(a=10), marks) == at(a=15)
    with pytest.raises(HistoryPurged):  # the piece before it is of the other shard
        advance(at(a=10, b=10), [*marks[:2], ("b", BEGIN, up_to(10)), ("b", EMPTY, up_to(12))])


def test_another_lineage_is_refused() -> None:
    with pytest.raises(ConfigError, match="shop/new came to the stream"):
        advance(at(a=10), [("shop/new", BEGIN, up_to(1))])
