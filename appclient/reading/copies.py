"""Copies of hits in one process: served again for a moment, and while another reader fills their key again.

A copy is as fresh as the hit that was copied, and older by its age. So its age is bounded by a clock of this process
alone, counted from before that hit; the life and the progress of the node need not be looked at again. Reads with a
demand of their own, and parts of composites, are served none. Used by ``appclient.reading.pipeline``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from appclient.telemetry.observer import Answer
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import NO_DEMAND, Demand, Read
from freshness.value import value

COPY_BYTES: Final = 400
"""The size of a copy beside its payload, about: its key, its place in the dictionary, and its objects."""


@value
class _Copy:
    payload: bytes | None
    asked_at: float
    size: int


class Copies:
    """At most ``bytes_max`` of them; the one that was made first goes first. Safe for threads. ``ages``: by object,
    the age in seconds below which a copy is served at once, and that during another's fill."""

    def __init__(
        self, bytes_max: int, clock: Callable[[], float], ages: Mapping[str, tuple[float, float]] = {}
    ) -> None:
        self._bytes_max, self.clock, self.ages = bytes_max, clock, ages
        self._forget()

    def _forget(self) -> None:
        """A forked process waits for no thread of its parent's."""
        self._copies: dict[tuple[bytes, bytes], _Copy] = {}
        self._bytes = 0
        self._changing = threading.Lock()
        self._process = os.getpid()

    def find(self, lookup: Lookup, age_max_seconds: float, outcome: ReadOutcome) -> Read | None:
        """The copy of this key, if it is younger than that, as a read with this outcome."""
        copy = self._copies.get((lookup.item, lookup.identity))
        if copy is None or self.clock() - copy.asked_at >= age_max_seconds:
            return None
        return Read(outcome, copy.payload)

    def recall(self, lookup: Lookup) -> Read | None:
        """The copy that may be served during another reader's fill."""
        _, seconds = self.ages.get(lookup.policy.name, (0.0, 0.0))
        return self.find(lookup, seconds, ReadOutcome.STALE_SERVED)

    def serving(self, answer: Answer) -> Answer:
        """Copies that are young enough, and ``answer`` for the others. The lookups of a read are of one object."""

        def read(lookups: Sequence[Lookup], demand: Demand, connection: Any) -> list[Read]:
            if lookups[0].policy.name not in self.ages:
                return answer(lookups, demand, connection)
            seconds = self.ages[lookups[0].policy.name][0] if demand is NO_DEMAND else 0.0
            found = [self.find(lookup, seconds, ReadOutcome.LOCAL_HIT) for lookup in lookups]
            missing = [lookup for lookup, copy in zip(lookups, found, strict=True) if copy is None]
            asked_at = self.clock()
            reads = answer(missing, demand, connection) if missing else []
            for lookup, each in zip(missing, reads, strict=True):
                if each.outcome is not ReadOutcome.STALE_SERVED:
                    self.note(lookup, each, asked_at)
            others = iter(reads)
            return [next(others) if copy is None else copy for copy in found]

        return read

    def note(self, lookup: Lookup, read: Read, asked_at: float) -> None:
        """Copy a hit; forget the copy of a key that is no longer a hit. ``asked_at``: a moment before the node was
        asked."""
        if self._process != os.getpid():
            self._forget()
        key = (lookup.item, lookup.identity)
        with self._changing:
            previous = self._copies.get(key)
            if previous is not None:
                if previous.asked_at > asked_at:
                    return  # a later read was faster
                del self._copies[key]
                self._bytes -= previous.size
            if read.outcome is ReadOutcome.HIT:
                size = COPY_BYTES + len(read.payload or b"")
                self._copies[key] = _Copy(read.payload, asked_at, size)
                self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= self._copies.pop(next(iter(self._copies))).size
