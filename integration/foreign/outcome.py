"""What a run of a foreign suite gave, and how a run with an adapter may differ from one without it.

``suites.toml`` has the parts that are run, and the differences that are meant: tests, the reason, and how they fail.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

SUITES: Final = Path(__file__).with_name("suites.toml")
PASSED: Final = "passed"


@dataclass(slots=True)
class Outcome:
    """One part of a suite, run once. ``tests``: by id, "passed", "skipped", or the beginning of the failure.
    ``compared``: answers of the cache that were compared with the database's; ``hits``: hits among the reads;
    ``different``: a line for each answer that was not equal."""

    tests: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    hits: int = 0
    different: list[str] = field(default_factory=list)

    def note(self, test: str, failure: str) -> None:
        """A test has failed."""
        self.tests[test] = " ".join(failure.split())[:300]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Raises FileNotFoundError if the run has ended before it wrote one."""
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class Suite:
    """``parts``: parts of a suite that are run; each is one name or several, in one process. ``meant``: beginning of
    the failure, by test that is meant to fail with the adapter."""

    parts: Sequence[str]
    meant: Mapping[str, re.Pattern[str]]

    def find_meant(self, part: str) -> dict[str, re.Pattern[str]]:
        """Those of one part: the ids of its tests begin with one of its names."""
        names = tuple(re.escape(name) for name in part.split())
        return {test: how for test, how in self.meant.items() if re.match(rf"({'|'.join(names)})(?!\w)", test)}


def read_suite(package: str, path: Path = SUITES) -> Suite:
    """Raises ValueError for a test that is named twice, is of no part, or has no reason."""
    section, meant = tomllib.loads(path.read_text())[package], dict[str, re.Pattern[str]]()
    for entry in section.get("meant", []):
        for test in entry["tests"]:
            if test in meant or not entry["reason"].strip():
                raise ValueError(f"{path}: {test} is named twice, or has no reason")
            meant[test] = re.compile(entry["failure"])
    suite = Suite(section["parts"], meant)
    lost = set(meant).difference(*(suite.find_meant(part) for part in suite.parts))
    if lost:
        raise ValueError(f"{path}: {min(lost)} is in no part that is run")
    return suite


def find_changes(plain: Mapping[str, str], cached: Mapping[str, str]) -> dict[str, str]:
    """By id, how each test that passes without the adapter ends with it, if it does not pass."""
    return {
        test: cached.get(test, "was not run")
        for test, end in plain.items()
        if end == PASSED and cached.get(test) != PASSED
    }


def judge(plain: Outcome, cached: Outcome, meant: Mapping[str, re.Pattern[str]]) -> list[str]:
    """A line for everything that is not as it is meant: no row or another one from the cache, tests that fail with
    the adapter alone, and tests of ``meant`` that do not, or fail otherwise."""
    changes = find_changes(plain.tests, cached.tests)
    return [
        *(["no answer of the cache was compared"] if not cached.compared else []),
        *(f"another row: {line}" for line in cached.different),
        *(f"{test}: {end}" for test, end in changes.items() if test not in meant or not _is_as(meant[test], end)),
        *(f"{test}: does not differ, so take it out of {SUITES.name}" for test in meant if test not in changes),
    ]


def _is_as(failure: re.Pattern[str], end: str) -> bool:
    """A pattern may take out how many queries were counted, and how many expected. More are never meant."""
    found = failure.match(end)
    if found is None:
        return False
    count = found.groupdict()
    return not count or int(count["counted"]) < int(count["expected"])
