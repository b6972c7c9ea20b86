"""Positions as vtgate writes them, and what a transaction added to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import StreamStopped
from freshness.position import MysqlGtidSet
from invalidator.vstream_position import format_gtid, parse_gtid, subtract

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


@pytest.mark.parametrize(
    ("whole", "part", "left"),
    [
        (f"{A}:1-10", f"{A}:1-9", f"{A}:10"),
        (f"{A}:1-10", f"{A}:3-4:7", f"{A}:1-2:5-6:8-10"),
        (f"{A}:1-10,{B}:1", f"{A}:1-10", f"{B}:1"),
        (f"{A}:1-10", f"{A}:1-10", ""),
        (f"{A}:1-10", f"{A}:5-20", f"{A}:1-4"),
        (f"{A}:1-10:tag:1-3", f"{A}:1-10:tag:2", f"{A}:tag:1:3"),
        ("", f"{A}:1", ""),
    ],
)
def test_differences(whole: str, part: str, left: str) -> None:
    assert subtract(position(whole), position(part)) == position(left)


numbers = st.sets(st.integers(1, 30), max_size=20)


def of(a: set[int], b: set[int]) -> MysqlGtidSet:
    return position(",".join(f"{uuid}:{n}" for uuid, all_of in ((A, a), (B, b)) for n in all_of))


@given(numbers, numbers, numbers, numbers)
def test_a_difference_is_that_of_the_sets(a: set[int], b: set[int], c: set[int], d: set[int]) -> None:
    assert subtract(of(a, b), of(c, d)) == of(a - c, b - d)
