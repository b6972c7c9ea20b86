"""A run of a minute finds no violation. It is judged by what clients got, and never by how much or how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chaos.run import run_chaos
from integration.chaos.scene import Options

SEED = 7


@pytest.mark.slow
def test_a_minute_of_faults(tmp_path: Path) -> None:
    verdict, _ = run_chaos(tmp_path, Options(seconds=60, seed=SEED))
    assert not verdict.violations, "\n".join(verdict.violations[:20])
    for rule in ("I1", "I7", "I9", "I10", "I11", "end"):
        assert verdict.judged[rule], f"nothing was judged by {rule}"
