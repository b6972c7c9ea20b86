"""Limits the reads in a second, for each process (F40): of the database for an object, and of primaries.

They protect a database where many keys are filled again at once: after a statement that changed a whole table, after
a node has lapsed, and while replicas lag. Used by ``appclient.reading.pipeline`` and ``appclient.cache``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from freshness.errors import Overloaded

BURST_SECONDS: Final = 1.0
"""An object that was read less for a while may catch up on so much."""


class RateLimit:
    """Permits at an even pace. Safe for threads; ``sleep`` waits as the process's reads do."""

    def __init__(
        self,
        object_name: str,
        per_second: float,
        wait_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._name, self._per_second, self._wait_seconds = object_name, per_second, wait_seconds
        self._clock, self._sleep = clock, sleep
        self._taking = threading.Lock()
        self._due = clock() - BURST_SECONDS
        """When the next permit is due. It lies in the future while more are taken than the rate allows."""

    def permits(self) -> bool:
        """Whether one more read is permitted without a wait; if so, it counts."""
        with self._taking:
            due, now = self._find_due()
            if not self._per_second or due > now:
                return False
            self._due = due + 1 / self._per_second
            return True

    def _find_due(self) -> tuple[float, float]:
        """When the next read is permitted, and the time now."""
        now = self._clock()
        return max(self._due, now - BURST_SECONDS), now

    def take(self, count: int) -> None:
        """Wait until ``count`` reads are permitted. Raises `Overloaded` if that takes too long."""
        with self._taking:
            due, now = self._find_due()
            seconds = due - now
            if seconds > self._wait_seconds:
                raise Overloaded(
                    f"object {self._name} is read from the database more than {self._per_second:g} times a second by "
                    f"this process; the next read is permitted in {seconds:.2f} s",
                    hint="try again later; database_reads_per_second and overload_wait_ms set the limit",
                )
            self._due = due + count / self._per_second
        if seconds > 0:
            self._sleep(seconds)
