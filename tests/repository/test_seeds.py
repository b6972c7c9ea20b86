"""The page of the seeds holds: each requirement has its row, tests and decisions that it cites exist, and the counts
are those of the rows."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = CHECKOUT / "tests" / "repository" / "seeds.md"
REQUIREMENTS: Final = 198
VERDICTS: Final = "DBCPMO"
SHOWN: Final = "DBP"
"""A test shows it. For D and B a decision record may stand instead."""

_ROW: Final = re.compile(r"^\| (\d+) \| (.*?) \| (\w) \| (.*)\|$", re.MULTILINE)
_COUNTS: Final = re.compile(r"^\| (?:\[([^\]]+)\]\([^)]*\)|(all)) \| ([\d| ]+) \|$", re.MULTILINE)
_TEST: Final = re.compile(r"\[(test_\w+)\]\(\.\./\.\./([\w/]+\.py)\)")
_RECORD: Final = re.compile(r"\[ADR (\d{4})\]\(\.\./\.\./docs/adr/([\w-]+\.md)\)")


class Row(NamedTuple):
    """One requirement. ``tests``: name and path; ``records``: number and file of a decision record."""

    seed: str
    number: int
    says: str
    verdict: str
    tests: tuple[tuple[str, str], ...]
    records: tuple[tuple[str, str], ...]


def read_rows(text: str) -> Iterator[Row]:
    """The rows of all seeds, in the order of the page."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    for seed, body in zip(parts[1::2], parts[2::2], strict=True):
        for number, says, verdict, cell in _ROW.findall(body):
            tests, records = tuple(_TEST.findall(cell)), tuple(_RECORD.findall(cell))
            yield Row(seed, int(number), says, verdict, tests, records)


@functools.cache
def _names_in(path: Path) -> frozenset[str]:
    found = ast.walk(ast.parse(path.read_text())) if path.is_file() else ()
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef))


def _find_problems_of(row: Row) -> Iterator[str]:
    if row.verdict not in VERDICTS:
        yield f"{row.verdict} is no verdict"
    if not row.says:
        yield "it says nothing"
    for name, path in row.tests:
        if not path.startswith(("tests/", "integration/")) or name not in _names_in(CHECKOUT / path):
            yield f"there is no {path}::{name}"
    for number, name in row.records:
        if not name.startswith(number) or not (CHECKOUT / "docs" / "adr" / name).is_file():
            yield f"there is no ADR {number}"
    if row.verdict in SHOWN and not row.tests and (row.verdict == "P" or not row.records):
        yield "nothing shows it"
    if row.verdict == "C" and not row.records:
        yield "no ADR says why"


def count(rows: list[Row]) -> dict[str, list[int]]:
    """By seed, and of all: how many rows have each verdict, and how many there are."""
    by_seed: dict[str, Counter[str]] = {}
    for row in rows:
        for name in (row.seed, "all"):
            by_seed.setdefault(name, Counter())[row.verdict] += 1
    return {name: [*(verdicts[each] for each in VERDICTS), verdicts.total()] for name, verdicts in by_seed.items()}


def find_problems(text: str, requirements: int) -> list[str]:
    """All that is wrong with the page."""
    rows = list(read_rows(text))
    problems = [f"{row.number}: {problem}" for row in rows for problem in _find_problems_of(row)]
    if [row.number for row in rows] != list(range(1, requirements + 1)):
        problems.append(f"the numbers are not 1 to {requirements}")
    written = {
        seed or everything: [int(number) for number in numbers.split("|")]
        for seed, everything, numbers in _COUNTS.findall(text.partition("\n## ")[0])
    }
    if written != count(rows):
        problems.append(f"the counts are {count(rows)}")
    return problems


def test_the_page_holds() -> None:
    assert find_problems(PAGE.read_text(), REQUIREMENTS) == []


_OF_THIS_FILE: Final = "[test_the_page_holds](../../tests/repository/test_seeds.py)"
_WHOLE: Final = f"""# Seeds

| seed | D | B | C | P | M | O | all |
|---|---|---|---|---|---|---|---|
| [One](#one) | 1 | 0 | 1 | 0 | 0 | 0 | 2 |
| [Two](#two) | 0 | 0 | 0 | 1 | 1 | 0 | 2 |
| all | 1 | 0 | 1 | 1 | 1 | 0 | 4 |

## One

| 1 | a | D | it is: {_OF_THIS_FILE} |
| 2 | b | C | [ADR 0001](../../docs/adr/0001-containment-decides.md) |

## Two

| 3 | c | P | {_OF_THIS_FILE} |
| 4 | d | M | |
"""


def test_a_page_that_holds_has_no_problem() -> None:
    assert find_problems(_WHOLE, 4) == []


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("[test_the_page_", "[test_no_page_", "1: there is no tests/repository/test_seeds.py::test_no_page"),
        ("test_seeds.py", "test_nowhere.py", "1: there is no tests/repository/test_nowhere.py"),
        ("../../tests/repository", "../../freshness", "1: there is no freshness/test_seeds.py"),
        ("0001-", "0002-", "2: there is no ADR 0001"),
        ("containment", "nothing", "2: there is no ADR 0001"),
        ("| 3 |", "| 5 |", "the numbers are not 1 to 4"),
        ("| 3 |", "| 2 |", "the numbers are not 1 to 4"),
        ("| 4 | d | M | |\n", "", "the numbers are not 1 to 4"),
        (f"it is: {_OF_THIS_FILE}", "it is", "1: nothing shows it"),
        (f"P | {_OF_THIS_FILE}", "P | [ADR 0001](../../docs/adr/0001-containment-decides.md)", "3: nothing shows it"),
        ("[ADR 0001](../../docs/adr/0001-containment-decides.md)", "it is so", "2: no ADR says why"),
        ("| d | M |", "| d | X |", "4: X is no verdict"),
        ("| d | M |", "| d | O |", "the counts are"),
        ("| 1 | 0 | 1 | 1 | 1 | 0 | 4 |", "| 1 | 0 | 1 | 1 | 0 | 0 | 4 |", "the counts are"),
        ("| [Two](#two) | 0 | 0 | 0 | 1 | 1 | 0 | 2 |\n", "", "the counts are"),
    ],
)  # fmt: skip
def test_a_page_that_does_not_hold_is_found(right: str, wrong: str, problem: str) -> None:
    assert right in _WHOLE
    found = find_problems(_WHOLE.replace(right, wrong, 1), 4)
    assert [each for each in found if each.startswith(problem)]
