"""The tables of docs/performance.md: what is a rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.scoreboard.page import format_table, write_page
from examples.scoreboard.run import Score
from examples.scoreboard.shop import SHOPS

BARE = Score(
    shop="flask",
    cache="none",
    flavor="mysql",
    seed=3,
    reads=200_000,
    orders=1_000,
    own_past=50,
    late=30_000,
    old=0,
    withdrawn=0,
    poisoned=0,
    products=300,
    selects=40_000,
    primary_selects=1_000,
    hit_rate=None,
    processor_ms=3.0,
    p50_ms=8.0,
    p99_ms=40.0,
    seconds=60,
    disconnected=0,
    failures=50,
)
CACHED = replace(
    BARE,
    cache="dogpile",
    reads=400_000,
    own_past=100,
    late=400,
    old=20,
    poisoned=7,
    selects=8_000,
    primary_selects=800,
    hit_rate=0.987,
    processor_ms=2.1,
    p50_ms=9.5,
    p99_ms=35.0,
)


def test_past_is_for_a_million_rows_and_selects_are_for_a_thousand() -> None:
    *_, cached, bare = format_table(SHOPS["flask"], [CACHED, BARE]).splitlines()
    assert cached == ("| mysql | dogpile.cache | 250 | 1,000 | 7 of 300 | 98.7 % | 20 | 2 | 9.5 / 35.0 | 2.10 |")
    assert bare == "| mysql | no cache | 250 | 150,000 | 0 of 300 | – | 200 | 5 | 8.0 / 40.0 | 3.00 |"


def test_a_page_without_a_table_of_the_application_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- measured: django -->\n<!-- end measured -->\n")
    with pytest.raises(ValueError, match="0 tables of measured figures of flask"):
        write_page(page, SHOPS["flask"], [CACHED, BARE])
    assert page.read_text() == "<!-- measured: django -->\n<!-- end measured -->\n"


def test_a_run_with_the_library_is_right_only_if_nothing_was_found() -> None:
    fresh = replace(BARE, cache="freshness", own_past=0)
    assert fresh.is_right
    for wrong in (
        replace(fresh, own_past=1),
        replace(fresh, old=1),
        replace(fresh, poisoned=1),
        replace(fresh, withdrawn=1),
    ):
        assert not wrong.is_right


def test_another_cache_is_wrong_only_where_it_shows_what_was_rolled_back() -> None:
    assert CACHED.is_right
    assert not replace(CACHED, withdrawn=1).is_right
