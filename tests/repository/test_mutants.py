"""The list of mutants fits the code and its tests, and a trial reports the truth. The whole list: `make mutants`."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.catalogue import PRODUCTION, Mutant, load, missing_tests
from tests.mutants.trial import Outcome, try_all

CHECKOUT: Final = Path(__file__).resolve().parent.parent.parent
MUTANTS: Final = load()
AREAS: Final = {
    "freshness/algorithm": 80,
    "freshness/nodes": 25,
    "freshness/position": 20,
    "freshness/keys": 10,
    "invalidator/binlog": 50,
    "invalidator": 100,
    "appclient": 10,
    "spark": 20,
}
"""The least number of mutants of each."""

CODE: Final = '''def is_safe(age: int, limit: int = 3) -> bool:
    return age < limit


def find(wanted: int) -> int:
    """The place of a number, which is looked for until it is found."""
    place = 0
    while place != wanted:
        place += 1
    return place
'''
TESTS: Final = """from code_under_test import find, is_safe


def test_old() -> None:
    assert not is_safe(5)


def test_find() -> None:
    assert find(2) == 2


def test_that_fails() -> None:
    assert is_safe(9)
"""
OLD: Final = ("test_code.py::test_old",)


def test_every_mutant_fits_the_code_and_names_tests_that_exist() -> None:
    problems = []
    for mutant in MUTANTS:
        try:
            mutant.check(CHECKOUT)
        except (ValueError, SyntaxError, OSError) as error:
            problems.append(f"{mutant.breaks} {error}")
        problems += [f"{mutant.breaks} There is no test {test}" for test in missing_tests(mutant, CHECKOUT)]
    assert problems == []


def test_every_mutant_is_of_the_production_code_and_says_what_it_breaks() -> None:
    for mutant in MUTANTS:
        assert mutant.path.startswith(PRODUCTION)
        assert mutant.tests
        for sentence in (mutant.breaks, mutant.equivalent):
            assert not sentence or sentence.endswith((".", "…")), sentence
            assert "\n" not in sentence
    assert [mutant for mutant, count in Counter(MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize("area", AREAS)
def test_every_area_has_mutants(area: str) -> None:
    assert sum(mutant.path.startswith(f"{area}/") for mutant in MUTANTS) >= AREAS[area]


def test_a_sample_is_noticed() -> None:
    """Of all areas; the others are tried by `make mutants`."""
    sample = [mutant for mutant in MUTANTS if mutant.is_sample]
    assert 8 <= len(sample) <= 12
    verdicts = try_all(sample, CHECKOUT, 2)
    assert [f"{each.outcome}: {each.mutant.breaks} {each.by}" for each in verdicts if not each.is_good] == []


# -- who tries them ----------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of its own, with one file of code and one of tests."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "code_under_test.py").write_text(CODE)
    (tmp_path / "test_code.py").write_text(TESTS)
    return tmp_path


def mutate(find: str, put: str, *tests: str, equivalent: str = "") -> Mutant:
    return Mutant("code_under_test.py", find, put, "It breaks.", tests or OLD, equivalent)


@pytest.mark.parametrize(
    ("mutant", "outcome", "by"),
    [
        (mutate("age < limit", "True"), "killed", "test_code.py::test_old"),
        (mutate("age < limit", "age < 2 * limit - 1"), "survived", ""),
        (mutate("limit: int = 3", "limit: int = 4", equivalent="For 5 it is all one."), "equivalent", ""),
        (mutate("age < limit", "True", equivalent="It is not."), "not equivalent", "test_code.py::test_old"),
        (mutate("place += 1", "place -= 1", "test_code.py::test_find"), "timed out", "ended after 5 s"),
        (mutate("def is_safe", "raise OSError\n\n\ndef is_safe"), "broken", "test_code.py"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_becomes_of_a_mutant(
    mutant: Mutant, outcome: Outcome, by: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if outcome == "timed out":
        monkeypatch.setattr("tests.mutants.trial.LIMIT_SECONDS_MIN", 5.0)
        monkeypatch.setattr("tests.mutants.trial.LIMIT_FACTOR", 0)
    [verdict] = try_all([mutant], tree, 1)
    assert (verdict.outcome, verdict.by) == (outcome, by)
    assert verdict.is_good is (outcome in ("killed", "timed out", "equivalent"))
    assert (tree / "code_under_test.py").read_text() == CODE, "the tree itself is never touched"


def test_tests_that_fail_without_a_mutant_prove_nothing(tree: Path) -> None:
    [verdict] = try_all([mutate("age < limit", "True", "test_code.py")], tree, 1)
    assert (verdict.outcome, verdict.is_good) == ("broken", False)
    assert verdict.by == "fails without a mutant: test_code.py::test_that_fails"


@pytest.mark.parametrize(
    ("find", "put"), [("no such code", "x"), ("place", "x"), ("age < limit", "age  < limit"), ("age < limit", "(")]
)
def test_a_mutant_that_does_not_fit_is_refused(find: str, put: str, tree: Path) -> None:
    """Its piece is not there, or twice; or nothing changes; or no Python comes of it."""
    with pytest.raises((ValueError, SyntaxError)):
        try_all([mutate(find, put)], tree, 1)


def test_tests_are_looked_for_by_file_and_name() -> None:
    tests = ("tests/contract/test_backends.py::TestMemory", "tests/unit", "tests/repository/test_mutants.py::tree")
    wrong = ("tests/nowhere.py", "tests/repository/test_mutants.py::test_nothing")
    assert missing_tests(mutate("a", "b", *tests, *wrong), CHECKOUT) == list(wrong)
