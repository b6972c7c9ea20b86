"""`Network.run_all`, also under exceptions that come at any place, as those of a signal handler do."""

from __future__ import annotations

import subprocess
import sys
from types import FrameType
from typing import Any, Final

import pytest

from freshness.errors import FreshnessError
from freshness.network import BLOCKING

TRACED: Final = "freshness.network", "threading", "concurrent.futures.thread", "concurrent.futures._base"


class Interruption(Exception):
    """What a signal handler raises."""


class Interrupter:
    """A trace function that raises before the instruction with that number, in this thread."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupter | None:
        if frame.f_globals["__name__"] not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                raise Interruption
        return self


def test_results_and_errors_are_in_order() -> None:
    refused = FreshnessError("refused")

    def refuse() -> int:
        raise refused

    assert BLOCKING.run_all([lambda: 1, refuse, lambda: 3]) == [1, refused, 3]


def test_another_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        BLOCKING.run_all([lambda: 1, lambda: 1 // 0])


def test_an_interruption_is_raised_and_leaves_nothing_that_runs() -> None:
    """A thread that waits forever for a lock of ``threading`` would also keep the process from its end."""
    statement = f"from {__name__} import interrupt_everywhere; interrupt_everywhere()"
    run = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, timeout=500, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert int(run.stdout) > 100


def interrupt_everywhere() -> None:
    """Interrupt it before each of its instructions. Prints their number."""
    for number in range(1, sys.maxsize):
        running: list[None] = []

        def work(running: list[None] = running) -> None:
            running.append(None)
            running.pop()

        sys.settrace(Interrupter(number))
        try:
            BLOCKING.run_all([work, work])
        except Interruption:
            assert running == []
        else:
            sys.stdout.write(str(number))
            return
        finally:
            sys.settrace(None)
