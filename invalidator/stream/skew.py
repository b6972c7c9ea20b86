"""Alignment in time of the shards of one update stream: which shard's next message has to wait, and how long.

A message waits while its time is more than the limit after the earliest time of any live shard. The time of a shard
is that of its next message if one is there, else its watermark, which its heartbeats move while nothing else happens.
So the earliest shard never waits, a verdict holds only for the moment (nothing remembers who was slow), and a shard
that left counts no more. Waiting is bounded twice: a shard that says nothing for ``silence_seconds`` holds nobody,
and nobody is held for longer than ``hold_seconds``; what goes on then is marked as unaligned.

Times are the log's (start of a statement on MariaDB; F3): good for aligning streams to seconds, never for order or
freshness. Pure: clocks are given, and nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

LIMIT_US: Final = 2_000_000
SILENCE_SECONDS: Final = 10.0
HOLD_SECONDS: Final = 600.0


class AlignmentVerdict(Enum):
    """Whether a shard's next message goes now: aligned, unaligned, or not yet."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    HOLD = "hold"


@dataclass(slots=True)
class _Shard:
    watermark_us: int
    heard_at: float
    next_us: int | None = None
    held_since: float | None = None
    is_given_up: bool = False

    @property
    def time_us(self) -> int:
        return self.watermark_us if self.next_us is None else self.next_us


@dataclass(slots=True)
class Alignment:
    """``clock``: seconds that only rise, and stand still while nobody can be heard. ``now_us``: the wall clock. The
    two bounds are explained above."""

    clock: Callable[[], float]
    now_us: Callable[[], int]
    silence_seconds: float = SILENCE_SECONDS
    hold_seconds: float = HOLD_SECONDS
    _shards: dict[str, _Shard] = field(default_factory=dict, init=False)

    def join(self, name: str, watermark_us: int) -> None:
        """A shard begins, from ``watermark_us`` on: it holds others until it is heard, or silent for too long."""
        self._shards[name] = _Shard(watermark_us, self.clock())

    def leave(self, name: str) -> None:
        """The shard has ended, and counts no more."""
        self._shards.pop(name, None)

    def offer(self, name: str, timestamp_us: int) -> None:
        """The shard's next message is there; 0: of unknown time, never held. It is from now at the latest: a clock
        that is ahead, or a session that sets its own time, delays nothing. That is settled here, once: a message must
        not grow newer by waiting."""
        shard = self._shards[name]
        shard.heard_at = self.clock()
        shard.next_us = min(timestamp_us, self.now_us()) or None

    def delivered(self, name: str) -> None:
        """The message offered last has been delivered."""
        shard = self._shards[name]
        if shard.next_us is not None:
            # A long statement's time lies back; what was delivered before it stays delivered.
            shard.watermark_us = max(shard.watermark_us, shard.next_us)
        shard.next_us = None
        shard.held_since = None
        shard.heard_at = self.clock()

    def judge(self, name: str) -> AlignmentVerdict:
        """Whether the shard's next message may go now. Ask again after any change, and after a while."""
        shard, now = self._shards[name], self.clock()
        if shard.next_us is None:
            return AlignmentVerdict.ALIGNED
        latest_us = shard.next_us - LIMIT_US
        if latest_us <= min(other.time_us for other in self._shards.values()):
            shard.held_since, shard.is_given_up = None, False
            return AlignmentVerdict.ALIGNED
        if latest_us <= min(other.time_us for other in self._shards.values() if self._is_live(other, now)):
            shard.held_since = None
            return AlignmentVerdict.UNALIGNED
        if shard.held_since is None:
            shard.held_since = now
        if now - shard.held_since > self.hold_seconds:
            shard.is_given_up = True
        return AlignmentVerdict.UNALIGNED if shard.is_given_up else AlignmentVerdict.HOLD

    def watermark_of(self, name: str) -> int:
        """The time up to which this shard has delivered."""
        return self._shards[name].watermark_us

    def find_silent(self) -> list[str]:
        """The shards for which nobody waits any more."""
        now = self.clock()
        return [name for name, shard in self._shards.items() if not self._is_live(shard, now)]

    def _is_live(self, shard: _Shard, now: float) -> bool:
        return shard.next_us is not None or now - shard.heard_at <= self.silence_seconds
