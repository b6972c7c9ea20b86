"""A thread that writes heartbeats in their rhythm, and the time at which each was begun.

A lease is renewed only for an own heartbeat that has come back through the stream (F71), and its age counts from the
moment before it was written. Used by the invalidator and by the Spark sink's driver.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import FreshnessError

log = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 10_000
"""Heartbeats on their way through the stream. Older ones would renew nothing (I6)."""

_NEVER: Final = (None, "")


class Pulse:
    """Writes heartbeats every ``period_seconds`` until stopped. A failed one is logged and the next one tried."""

    def __init__(
        self,
        writer: HeartbeatWriter,
        period_seconds: float,
        clock: Callable[[], float],
        on_failure: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._period_seconds = period_seconds
        self._clock = clock
        self._on_failure = on_failure
        self._begun: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()
        self._begun_last = float("-inf")
        self.written_at = float("-inf")
        """When the last heartbeat that was written was begun, by ``clock``."""
        self._waking = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._waking.set()
        if self._thread.ident is not None:  # else it was never started
            self._thread.join(timeout=10)
        self._writer.close()

    def find_begun(self, sequence: int) -> float | None:
        """When this process began to write that heartbeat; None if it did not, or long ago. The stream often brings a
        heartbeat before its commit has returned here, and one whose answer was lost."""
        with self._lock:
            return self._begun.get(sequence, _NEVER)[0]

    def find_primary(self, sequence: int) -> str:
        """The identity of the server that the heartbeat was written to; "" where `find_begun` is None."""
        with self._lock:
            return self._begun.get(sequence, _NEVER)[1]

    def hurry(self, since: float) -> None:
        """Write the next heartbeat at once, unless one was begun ``since`` then."""
        if self._begun_last < since:
            self._waking.set()

    def _run(self) -> None:
        while True:
            try:
                self._beat()
            except FreshnessError as error:
                self._on_failure()
                log.warning("heartbeat not written: %s. Leases run out unless the next ones are.", error)
            self._waking.wait(self._period_seconds)
            self._waking.clear()
            if self._is_stopping:
                return

    def _beat(self) -> None:
        self._begun_last = begun = self._clock()
        sequence, primary = self._writer.take_sequence(), self._writer.find_primary()
        with self._lock:
            self._begun[sequence] = begun, primary
            while len(self._begun) > REMEMBERED_MAX:
                self._begun.popitem(last=False)
        self._writer.beat(sequence)
        self.written_at = begun
