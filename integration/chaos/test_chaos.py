"""Short runs find no violation. They are judged by what clients got, and never by how much or how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chaos.judge import Verdict
from integration.chaos.run import audit, run_chaos
from integration.chaos.scene import Options
from spark.audit.model.verdict import CLEAN, STALE_DATA

SEED = 7


def check(verdict: Verdict) -> None:
    assert not verdict.violations, "\n".join(verdict.violations[:20])
    for rule in ("I1", "I7", "I9", "I10", "I11", "end"):
        assert verdict.judged[rule], f"nothing was judged by {rule}"


@pytest.mark.slow
def test_a_minute_of_faults(tmp_path: Path) -> None:
    verdict, _ = run_chaos(tmp_path, Options(seconds=60, seed=SEED))
    check(verdict)


@pytest.mark.slow
def test_the_audit_by_replay_agrees(tmp_path: Path) -> None:
    verdict, _ = run_chaos(tmp_path, Options(seconds=30, seed=SEED, flavor="mysql", is_recorded=True))
    check(verdict)
    assert audit(tmp_path) == CLEAN


@pytest.mark.slow
def test_judge_and_audit_find_a_defence_that_is_missing(tmp_path: Path) -> None:
    options = Options(seconds=30, seed=SEED, bug="entries are not deleted", is_recorded=True)
    verdict, _ = run_chaos(tmp_path, options)
    assert any(each.startswith("I1:") for each in verdict.violations)
    assert audit(tmp_path) == STALE_DATA
