"""`make demo ARGS=--vitess`: the demo's table on a real Vitess."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[3]


def test_the_demo_poisons_the_others_and_not_event_tokens() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--vitess", "--seconds", "8", "--json"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["flavor"] == "vitess"
    strategies = result["strategies"]
    assert all(each["invalidations"] == result["writes"] > 0 for each in strategies.values())
    ours = strategies["event_tokens"]
    assert (ours["poisoned"], ours["stale_reads"]) == (0, 0)
    assert ours["hit_rate"] > 0
    assert strategies["delete_after_write"]["poisoned"] > 0
    assert strategies["delete_from_stream"]["poisoned"] > 0
