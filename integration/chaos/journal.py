"""What the processes of a run write down, one JSON object a line, in a file of each: all that the judge knows.

Times are microseconds of CLOCK_MONOTONIC, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Journal:
    """A file of one life of a process. For several threads."""

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}-{os.getpid()}.journal"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **fields}).encode() + b"\n")


def read_journals(folder: Path) -> Iterator[dict[str, Any]]:
    """All lines of all files, one file after the other. A line that a kill cut off counts as not written."""
    for path in sorted(folder.glob("*.journal")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)
