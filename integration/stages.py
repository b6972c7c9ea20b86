"""`make full`: everything that a change is checked by, in stages of which the cheap ones come first.

``python3 integration/stages.py [VERB ...]`` runs these verbs of the Makefile, or `STAGES`, and stops at the first
that fails. At the end it prints each stage's seconds and its slowest tests. Standard library only: the first verb
makes the environment. Exit code: that of the verb that failed, else 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent
REPORTS: Final = CHECKOUT / "build" / "stages"
STAGES: Final = ("setup", "style", "unit", "core", "rest", "slow", "kafka", "vitess")
"""The first four are `make test`."""
SLOWEST: Final = 5


@dataclass(frozen=True, slots=True)
class Stage:
    """One verb that has run. ``tests``: (seconds, name) of each test, empty for a verb without tests."""

    verb: str
    code: int
    seconds: float
    failed: int = 0
    skipped: int = 0
    tests: list[tuple[float, str]] = field(default_factory=list)


def run_stage(verb: str) -> Stage:
    """Run one verb; its output goes through."""
    report = REPORTS / f"{verb}.xml"
    report.unlink(missing_ok=True)
    # pytest reads this variable, so a verb need not know of reports.
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} --junitxml={report} -o junit_duration_report=total"
    print(f"== make {verb}", flush=True)
    began = time.monotonic()
    ended = subprocess.run(["make", verb], cwd=CHECKOUT, env={**os.environ, "PYTEST_ADDOPTS": options}, check=False)
    seconds = time.monotonic() - began
    if not report.exists():
        return Stage(verb, ended.returncode, seconds)
    cases = [*ElementTree.parse(report).iter("testcase")]
    return Stage(
        verb,
        ended.returncode,
        seconds,
        sum(case.find("failure") is not None or case.find("error") is not None for case in cases),
        sum(case.find("skipped") is not None for case in cases),
        [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases],
    )


def describe(stages: Sequence[Stage]) -> str:
    """Each stage with its time, its tests and the slowest of them; last the sum, as test runners close."""
    lines = [""]
    for stage in stages:
        end = "" if stage.code == 0 else f", FAILED with exit code {stage.code}"
        count = f", {len(stage.tests)} tests" if stage.tests else ""
        lines.append(f"{stage.seconds:7.0f} s  make {stage.verb}{count}{end}")
        lines += [f"{seconds:17.1f} s  {name}" for seconds, name in sorted(stage.tests)[: -SLOWEST - 1 : -1]]
    failed = sum(stage.failed or stage.code != 0 for stage in stages)
    skipped = sum(stage.skipped for stage in stages)
    passed = sum(len(stage.tests) for stage in stages) - sum(stage.failed for stage in stages) - skipped
    lines.append(f"{sum(stage.seconds for stage in stages):7.0f} s  in all")
    return "\n".join([*lines, f"{passed} passed, {failed} failed, {skipped} skipped"])


def main(verbs: Sequence[str]) -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    stages: list[Stage] = []
    for verb in verbs or STAGES:
        stages.append(run_stage(verb))
        if stages[-1].code:
            break
    print(describe(stages), flush=True)
    return stages[-1].code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
