"""How often Python looks for cycles of garbage in an invalidator.

Each transaction makes a handful of objects that wait for their batch. By default Python looks through them after
every 700, and finds nothing: a quarter of the reader's time. For ``invalidator.process.app``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEW_OBJECTS_MIN: Final = 50_000
"""Number of additional objects after which the young ones are scanned; some tens of megabytes at most."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Within this block; of the whole process."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS_MIN, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
