"""Counts the outcomes of cached reads, in all processes of an application: its hook ``on_read``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.multiprocess import MultiProcessCollector

from appclient import Explanation

_READS: Final = Counter("shop_reads", "cached reads", ("is_hit",))
_OF: Final = {is_hit: _READS.labels(str(is_hit)) for is_hit in (False, True)}


def count(explanation: Explanation) -> None:
    _OF[explanation.is_hit].inc()


def read_tally(folder: Path) -> tuple[int, int]:
    """Hits, and reads, of all processes whose ``PROMETHEUS_MULTIPROC_DIR`` is the folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    hits, misses = (
        int(registry.get_sample_value("shop_reads_total", {"is_hit": str(is_hit)}) or 0)
        for is_hit in (True, False)
    )
    return hits, hits + misses
