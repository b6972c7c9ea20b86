"""The backends that the contract suite can run over without a server."""

from __future__ import annotations

import pytest

from freshness.backend import CacheNode
from freshness.backends.memory import MemoryNode, MemoryStore


class MemorySetup:
    """One memory node on a clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now_seconds = 1_000_000.0
        self.store = MemoryStore("memory:1", clock=lambda: self.now_seconds)

    def connect(self) -> CacheNode:
        return MemoryNode(self.store)

    def pass_time(self, seconds: float) -> None:
        self.now_seconds += seconds

    def kill(self) -> None:
        self.store.down = True

    def restart(self) -> None:
        self.store.restart()
        self.store.down = False


@pytest.fixture
def memory_setup() -> MemorySetup:
    return MemorySetup()
