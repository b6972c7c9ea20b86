"""A wrong clock is the wall clock alone."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("ahead", [3600.0, -0.5])
def test_the_wall_clock_is_wrong_and_the_monotonic_clock_right(ahead: float) -> None:
    shown = "import time; print(time.time() * 1e9, time.time_ns(), time.monotonic_ns())"
    began = time.time_ns(), time.monotonic_ns()
    module = ["-m", "integration.chaos.misdated", str(ahead), "timeit", "-n", "1", "-r", "1", shown]
    ran = subprocess.run([sys.executable, *module], check=True, capture_output=True, text=True)
    ended = time.time_ns(), time.monotonic_ns()
    *walls, monotonic = map(float, ran.stdout.splitlines()[0].split())
    for wall in walls:
        assert began[0] <= wall - ahead * 1e9 <= ended[0]
    assert began[1] <= monotonic <= ended[1]
