"""Runs a module with a wrong wall clock: ``python -m integration.chaos.misdated SECONDS MODULE …``.

It is ahead by these seconds, or behind if they are negative. The monotonic clock, by which the judge goes, is right.
"""

from __future__ import annotations

import runpy
import sys
import time
from unittest.mock import patch


def main(seconds: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    ahead, right, right_ns = float(seconds), time.time, time.time_ns
    with (
        patch.object(time, "time", lambda: right() + ahead),
        patch.object(time, "time_ns", lambda: right_ns() + int(ahead * 1e9)),
    ):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
