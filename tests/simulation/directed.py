"""The directed schedules: the tests of ``tests/unit`` that lead into one danger each, and which bug breaks which.

Run by ``python -m tests.simulation``; ``tests/simulation/test_directed.py`` holds the table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEDULE_FILES: Final = tuple(
    f"tests/unit/test_{name}.py"
    for name in ("defences", "schedules", "holes", "usefulness", "upstream_defences")
)


@dataclass(frozen=True, slots=True)
class Schedules:
    """``passed``: how many schedules of a file hold; ``complaint``: what pytest says where one does not."""

    file: str
    passed: int
    complaint: str


def run_schedules(file: str) -> Schedules:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", run.stdout)
    complaint = "" if run.returncode == 0 else run.stdout + run.stderr
    return Schedules(file, int(passed[1]) if passed is not None else 0, complaint)
