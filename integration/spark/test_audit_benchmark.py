"""The benchmark of the audit runs, and its contestants agree. Nothing is said about time."""

from __future__ import annotations

from pathlib import Path

from benchmarks.audit import COUNTS_ONLY, list_contestants, measure


def test_every_contestant_finds_what_is_planted(tmp_path: Path) -> None:
    contestants = list_contestants("local[2]")
    run = measure(tmp_path, 30_000, contestants)
    assert [each.name for each in run.measured] == [*contestants]
    assert run.events >= 30_000
    assert run.violations > 2_000
    assert all(each.cpu_seconds > 0 and each.python_mb > 0 for each in run.measured)
    assert all((each.java_mb > 0) == ("Spark" in each.name) for each in run.measured)
    assert COUNTS_ONLY in contestants
