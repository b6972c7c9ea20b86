"""Counts the outcomes of cached reads, in all processes of an application: its hook ``on_read``. It is None in a
process without a place for the counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.multiprocess import MultiProcessCollector

from appclient import Explanation

_READS: Final = Counter("shop_reads", "cached reads", ("is_hit",))
_OF: Final = {is_hit: _READS.labels(str(is_hit)) for is_hit in (False, True)}


def _count(explanation: Explanation) -> None:
    _OF[explanation.is_hit].inc()


count: Final[Callable[[Explanation], None] | None] = _count if "PROMETHEUS_MULTIPROC_DIR" in os.environ else None


def read_tally(folder: Path) -> tuple[int, int]:
    """Hits, and reads, of all processes whose ``PROMETHEUS_MULTIPROC_DIR`` is the folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    hits, misses = (
        int(registry.get_sample_value("shop_reads_total", {"is_hit": str(is_hit)}) or 0) for is_hit in (True, False)
    )
    return hits, hits + misses
