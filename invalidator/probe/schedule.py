"""When the prober does what: a bounded heap of work by its time, and a bounded rate. No I/O, no clock."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Schedule(Generic[Work]):
    """Work by the time at which it is due. Work that finds no room is refused, and never silently dropped."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._heap: list[tuple[float, int, Work]] = []
        self._numbers = count()

    def add(self, due: float, work: Work) -> bool:
        """False if it is full."""
        if len(self._heap) >= self._size_max:
            return False
        heapq.heappush(self._heap, (due, next(self._numbers), work))
        return True

    def take(self, now: float, count_max: int) -> list[tuple[float, Work]]:
        """Take the work that is due, the oldest first, each with its time."""
        taken: list[tuple[float, Work]] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < count_max:
            due, _, work = heapq.heappop(self._heap)
            taken.append((due, work))
        return taken

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class Budget:
    """``per_second`` units a second, and as many at once as a second gives. ``now``: time of the first call, in
    seconds."""

    per_second: float
    now: float
    _left: float = field(default=0.0)

    def available(self, now: float) -> int:
        """How many may be spent now."""
        self._left = min(max(1.0, self.per_second), self._left + (now - self.now) * self.per_second)
        self.now = now
        return int(self._left)

    def spend(self, count: int) -> None:
        """No more than are available."""
        self._left -= count
