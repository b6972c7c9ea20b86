"""The judgement of `make foreign`: what is a difference, and which are meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from integration.foreign.outcome import Outcome, Suite, judge, read_suite

FEWER: Final = re.compile(r"AssertionError: (?P<counted>\d+) != (?P<expected>\d+) : ")
PLAIN: Final = Outcome({"app.A.test_one": "passed", "app.A.test_two": "passed", "app.A.test_red": "TypeError"})


def cached(**ends: str) -> Outcome:
    return Outcome(PLAIN.tests | {f"app.A.{test}": end for test, end in ends.items()}, compared=1)


def test_equal_runs_have_no_difference() -> None:
    assert judge(PLAIN, cached(), {}) == []


@pytest.mark.parametrize("end", ["AssertionError: 1 != 2", "skipped"])
def test_a_test_that_passes_without_the_adapter_alone_is_a_difference(end: str) -> None:
    assert judge(PLAIN, cached(test_one=end), {}) == [f"app.A.test_one: {end}"]


def test_a_test_that_was_not_run_is_a_difference() -> None:
    assert judge(PLAIN, Outcome({"app.A.test_one": "passed"}, compared=1), {}) == ["app.A.test_two: was not run"]


def test_a_run_without_an_answer_of_the_cache_shows_nothing() -> None:
    assert judge(PLAIN, Outcome(dict(PLAIN.tests)), {}) == ["no answer of the cache was compared"]


def test_one_that_fails_on_both_sides_is_none() -> None:
    assert judge(PLAIN, cached(test_red="KeyError"), {}) == []


def test_another_row_is_a_difference_though_all_tests_pass() -> None:
    found = Outcome(dict(PLAIN.tests), compared=2, different=["app.A 1: the cache has [], the database [(1,)]"])
    assert judge(PLAIN, found, {}) == ["another row: app.A 1: the cache has [], the database [(1,)]"]


@pytest.mark.parametrize(
    ("end", "is_meant"),
    [
        ("AssertionError: 1 != 2 : 1 queries executed", True),
        ("AssertionError: 3 != 2 : 3 queries executed", False),
        ("AssertionError: 10 != 9 : 10 queries executed", False),
        ("DoesNotExist: none", False),
        ("skipped", False),
    ],
)
def test_a_meant_difference_is_one_that_fails_as_the_list_says(end: str, is_meant: bool) -> None:
    found = judge(PLAIN, cached(test_one=end), {"app.A.test_one": FEWER})
    assert found == ([] if is_meant else [f"app.A.test_one: {end}"])


@pytest.mark.parametrize("test", ["test_one", "test_red", "test_gone"])
def test_an_entry_that_does_not_differ_is_reported(test: str) -> None:
    [found] = judge(PLAIN, cached(), {f"app.A.{test}": FEWER})
    assert found == f"app.A.{test}: does not differ, so take it out of suites.toml"


@pytest.mark.parametrize(
    "meant",
    [
        [{"reason": " ", "failure": "", "tests": ["app.one"]}],
        [{"reason": "why", "failure": "", "tests": ["app.one", "app.one"]}],
        [{"reason": "why", "failure": "", "tests": ["apple.one"]}],
    ],
    ids=["no reason", "twice", "of no part"],
)
def test_a_list_with_a_mistake_is_refused(tmp_path: Path, meant: list[dict[str, object]]) -> None:
    path = tmp_path / "suites.toml"
    entries = [
        "[[django.meant]]\n" + "".join(f"{key} = {value!r}\n" for key, value in each.items()) for each in meant
    ]
    path.write_text('[django]\nparts = ["app"]\n' + "".join(entries))
    with pytest.raises(ValueError, match=r"suites.toml: app"):
        read_suite("django", path)


def test_a_failure_of_several_lines_is_noted_in_one() -> None:
    outcome = Outcome()
    outcome.note("app.A.test_one", "AssertionError: 1 != 2 :\n  1 queries\n")
    assert outcome.tests == {"app.A.test_one": "AssertionError: 1 != 2 : 1 queries"}


def test_a_part_has_the_tests_of_its_name_alone() -> None:
    suite = Suite(["defer"], {"defer.tests.One": FEWER, "defer_regress.tests.One": FEWER})
    assert list(suite.find_meant("defer")) == ["defer.tests.One"]
    assert list(suite.find_meant("basic defer_regress defer")) == ["defer.tests.One", "defer_regress.tests.One"]


@pytest.mark.parametrize("package", ["django", "sqlalchemy"])
def test_the_list_of_the_repository_is_right(package: str) -> None:
    assert read_suite(package).parts
