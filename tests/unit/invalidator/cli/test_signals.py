"""What verbs do on a signal, which comes in the middle of whatever the main thread does."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

STOPPED_TWICE: Final = """
import signal, sys
from invalidator.cli.signals import note_stop

def trace(frame, event, _):
    global left
    if frame.f_globals["__name__"] not in ("threading", "invalidator.cli.signals"):
        return None
    frame.f_trace_opcodes = True
    if event == "opcode":
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
    return trace

left = places = 0
while left == 0:
    places += 1
    left = places
    is_stopping = note_stop()
    assert not is_stopping()
    sys.settrace(trace)
    signal.raise_signal(signal.SIGTERM)
    sys.settrace(None)
    assert is_stopping()
print(places)
"""
"""The second signal comes before each instruction of the handler of the first, one after the other."""


def test_a_second_signal_may_come_in_the_middle_of_the_first() -> None:
    run = subprocess.run(
        [sys.executable, "-c", STOPPED_TWICE], capture_output=True, text=True, timeout=500, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert int(run.stdout) > 5
