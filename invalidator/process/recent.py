"""A shard's work of the last minutes: throughput, lag, and the difference of clocks, for the page of the invalidator.

Written by the thread of ``invalidator.process.worker``, once for each batch and each own heartbeat; read from any
thread. Metrics are for Prometheus, which keeps them; this is what the process itself can show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

BUCKET_SECONDS: Final = 5.0
BUCKETS_MAX: Final = 60
"""Together five minutes."""

LAGS_MAX: Final = 500
"""Maximum number of lags kept of one bucket (I6); heartbeats come once a second by default."""

CLOCK_SAMPLES_MAX: Final = 30
SECOND_US: Final = 1_000_000


@dataclass(slots=True)
class WorkBucket:
    """``number``: time since the clock began, in `BUCKET_SECONDS`. ``lags``: lags of own heartbeats, in seconds."""

    number: int
    transactions: int = 0
    keys: int = 0
    lags: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """The primary's clock less this machine's is between these two, in seconds."""

    at_least: float
    at_most: float


class RecentWork:
    """``begun_at``: when the latest own heartbeat that came back was begun, by the clock of the notes; None before
    the first."""

    def __init__(self) -> None:
        self.begun_at: float | None = None
        self._buckets: deque[WorkBucket] = deque(maxlen=BUCKETS_MAX)
        self._clocks: deque[ClockDifference] = deque(maxlen=CLOCK_SAMPLES_MAX)

    # the worker's side

    def note_batch(self, now: float, transactions: int, keys: int) -> None:
        bucket = self._bucket_of(now)
        bucket.transactions += transactions
        bucket.keys += keys

    def note_heartbeat(self, now: float, begun_at: float) -> None:
        """It was begun then, and all nodes have acknowledged it now."""
        self.begun_at = begun_at
        lags = self._bucket_of(now).lags
        if len(lags) < LAGS_MAX:
            lags.append(now - begun_at)

    def note_clocks(self, written_us: int, committed_us: int, seen_us: int) -> None:
        """A row was written at ``written_us`` and seen at ``seen_us`` by this machine's clock, and committed in
        between at ``committed_us`` by the primary's, which may be a whole second."""
        rest_us = 0 if committed_us % SECOND_US else SECOND_US
        self._clocks.append(
            ClockDifference((committed_us - seen_us) / 1e6, (committed_us + rest_us - written_us) / 1e6)
        )

    def _bucket_of(self, now: float) -> WorkBucket:
        number = int(now // BUCKET_SECONDS)
        if not self._buckets or self._buckets[-1].number < number:
            self._buckets.append(WorkBucket(number))
        return self._buckets[-1]

    # everybody's

    def list_buckets(self, now: float) -> list[WorkBucket]:
        """The last `BUCKETS_MAX` that are over, the oldest first; idle ones are empty."""
        end = int(now // BUCKET_SECONDS)
        held = {bucket.number: bucket for bucket in list(self._buckets)}
        return [held.get(number) or WorkBucket(number) for number in range(end - BUCKETS_MAX, end)]

    def list_lags(self, now: float) -> list[float]:
        """The lags of the last minutes, the smallest first."""
        first = int(now // BUCKET_SECONDS) - BUCKETS_MAX
        return sorted(lag for bucket in list(self._buckets) if bucket.number >= first for lag in list(bucket.lags))

    def find_clock_difference(self) -> ClockDifference | None:
        """By all samples together; by the last one if they contradict each other: a clock was set, or drifts."""
        samples = list(self._clocks)
        if not samples:
            return None
        at_least = max(each.at_least for each in samples)
        at_most = min(each.at_most for each in samples)
        return ClockDifference(at_least, at_most) if at_least <= at_most else samples[-1]


def find_quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them does not exceed; None without any."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None
