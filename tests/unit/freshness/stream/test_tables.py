"""Tables that patterns stand for: a set that reads the schema only where somebody goes through it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.stream.heartbeat import HEARTBEAT_TABLE
from freshness.stream.tables import MatchedTables, is_pattern, to_expression


def never() -> list[str]:
    raise AssertionError("the schema was read")


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "old_orders", False),
        ("order_*", "order_", True),
        ("order_*", "order_lines", True),
        ("order_*", "orders", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("*", "anything at all", True),
        ("Orders", "orders", False),
    ],
)
def test_a_pattern_stands_for_whole_names(pattern: str, name: str, fits: bool) -> None:
    assert (name in MatchedTables([pattern], never)) is fits
    assert is_pattern(pattern) is ("*" in pattern or "?" in pattern)


@given(st.text("ab.[]{}()|^$+\\-_/", max_size=8))
def test_a_name_without_wildcards_is_taken_as_it_is(name: str) -> None:
    assert re.fullmatch(to_expression(name), name)
    assert not re.fullmatch(to_expression(name), f"{name}a")


def test_the_heartbeats_are_no_table_of_a_pattern() -> None:
    tables = MatchedTables(["*"], lambda: ["a", HEARTBEAT_TABLE])
    assert HEARTBEAT_TABLE not in tables
    assert list(tables) == ["a"]


def test_going_through_it_names_tables_of_now_and_those_that_were_met() -> None:
    now = ["a", "b", "other"]
    tables = MatchedTables(["?"], lambda: now)
    assert "dropped" not in tables
    assert "z" in tables, "met, though the schema has it no longer"
    assert (list(tables), len(tables)) == (["a", "b", "z"], 3)
    now = ["c"]
    assert frozenset(tables) == {"a", "b", "c", "z"}


def test_what_remains_of_it_is_a_frozenset() -> None:
    tables = MatchedTables(["a*"], never)
    assert tables & {"ab", "b"} == frozenset(("ab",))
    assert isinstance(frozenset(("ab",)) & tables, frozenset)
