"""Positions as vtgate writes them, and what a transaction added to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import StreamStopped
from freshness.position import MysqlGtidSet
from invalidator.vstream.position import ShardProgress, format_gtid, parse_gtid

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def position(text: str) -> MysqlGtidSet:
    return MysqlGtidSet.parse(text)


def test_text_goes_both_ways() -> None:
    text = f"MySQL56/{A}:1-5:7,{B}:1"
    assert format_gtid(parse_gtid(text, "it")) == text
    assert parse_gtid(text.removeprefix("MySQL56/"), "it") == parse_gtid(text, "it")


@pytest.mark.parametrize("text", ["MariaDB/0-1-100", "FilePos/bin.001:4", "current", "x"])
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(StreamStopped, match="only Vitess on MySQL"):
        parse_gtid(text, "it")


def test_tagged_gtids_are_refused_before_they_are_sent() -> None:
    with pytest.raises(StreamStopped, match="tagged GTIDs"):
        format_gtid(position(f"{A}:1-5:tag:1-3"))


numbers = st.sets(st.integers(1, 30), max_size=20)


def of(a: set[int], b: set[int]) -> MysqlGtidSet:
    return position(",".join(f"{uuid}:{n}" for uuid, all_of in ((A, a), (B, b)) for n in all_of))


@given(st.lists(st.tuples(numbers, numbers), max_size=6))
def test_progress_adds_what_each_text_has_more(steps: list[tuple[set[int], set[int]]]) -> None:
    held_a, held_b = {1, 5}, {2}
    progress = ShardProgress(of(held_a, held_b))
    for a, b in steps:
        text = f"MySQL56/{of(held_a | a, held_b | b)}"
        added = progress.find_added(text, "it")
        assert added is not None
        assert added == of(a - held_a, b - held_b)
        progress.advance(added, text)
        held_a, held_b = held_a | a, held_b | b
        assert progress.position == of(held_a, held_b)


@given(numbers, numbers, numbers, numbers)
def test_progress_notices_what_is_missing(a: set[int], b: set[int], c: set[int], d: set[int]) -> None:
    added = ShardProgress(of(a, b)).find_added(f"MySQL56/{of(c, d)}", "it")
    assert (added is None) == (not (a <= c and b <= d))


def test_progress_understands_other_ways_to_write_a_position() -> None:
    progress = ShardProgress(position(f"{A}:1-5,{B}:1"))
    assert progress.find_added(f"{B.upper()}:1,{A}:1-2:3-4:5-6", "it") == position(f"{A}:6")
    assert progress.find_added(f"{A}:1-3,{A}:4-6,{B}:1", "it") == position(f"{A}:6")
    assert progress.find_added(f"{A}:1-5:tag:1,{B}:1", "it") == position(f"{A}:tag:1")
    for text in ("MariaDB/0-1-100", "x", f"{A}", f"{A}:0"):
        with pytest.raises(StreamStopped):
            progress.find_added(text, "it")
    progress.advance(position(f"{A}:7"))
    assert progress.find_added(f"{A}:1-7,{B}:1", "it") == position(f"{A}:6")
