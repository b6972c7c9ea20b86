"""Which server of a shard a miss reads: the replicas in turn, one that is late seldom, and the primary last.

All by this process's own reads: each has a token, so nothing is asked for it. Used by ``appclient.database.servers``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from freshness.config.server import ServerAddress
from freshness.position import Position

RETRY_SECONDS: Final = 30.0
"""How long a process avoids a server that failed, while another one answers."""

LATE_SECONDS: Final = 1.0
"""A replica is late when it lacks what another server of the shard showed this long ago. Twice as long may pass."""

REST_SECONDS: Final = 2.0
"""How long a late replica is avoided while another one answers, and not waited for. Then one read finds out
whether it still is late."""


class ServerChoice:
    """The servers of a shard, and what this process knows of them. ``zone``: this process's own, "" for none.
    ``below`` gives a random number below its argument. Safe for threads: a lost update only costs a read."""

    def __init__(
        self,
        replicas: Sequence[ServerAddress],
        primary: ServerAddress,
        zone: str,
        clock: Callable[[], float],
        below: Callable[[int], int] = random.randrange,
    ) -> None:
        self.servers = tuple(dict.fromkeys((*replicas, primary)))
        self._replicas = tuple(server for server in self.servers if server != primary)
        self._primary, self._zone, self._clock, self._below = primary, zone, clock, below
        self._is_plain = len(self._replicas) < 2
        self._failed_until: dict[ServerAddress, float] = {}
        self._late_until: dict[ServerAddress, float] = {}
        self._vain_until: dict[ServerAddress, float] = {}
        # The positions that servers had shown by then, and those since.
        self._expected: Position | None = None
        self._shown: Position | None = None
        self._shown_at = 0.0

    def find_order(self) -> Sequence[ServerAddress]:
        """All servers, in the order in which a read asks them until one answers."""
        if self._is_plain and not self._failed_until:
            return self.servers
        now = self._clock()
        start = self._below(len(self._replicas)) if self._replicas else 0
        turned = (*self._replicas[start:], *self._replicas[:start], self._primary)
        return sorted(turned, key=lambda server: self._rank(server, now))

    def _rank(self, server: ServerAddress, now: float) -> tuple[bool, bool, bool, bool]:
        return (
            self._failed_until.get(server, now) > now,
            server == self._primary,
            self._late_until.get(server, now) > now,
            bool(self._zone) and server.zone != self._zone,
        )

    def note_failure(self, server: ServerAddress) -> None:
        """A read of ``server`` has failed: it comes last for `RETRY_SECONDS`."""
        self._failed_until[server] = self._clock() + RETRY_SECONDS

    def is_avoided(self, server: ServerAddress) -> bool:
        """Whether ``server`` has failed within `RETRY_SECONDS`."""
        return self._failed_until.get(server, 0.0) > self._clock() if self._failed_until else False

    def note_answer(self, server: ServerAddress) -> None:
        """A read of ``server`` has succeeded."""
        if self._failed_until:
            self._failed_until.pop(server, None)

    def note_vain_wait(self, server: ServerAddress) -> None:
        """A read has waited for ``server``, which did not show in time what it wanted."""
        self._vain_until[server] = self._clock() + REST_SECONDS

    def is_wait_vain(self, server: ServerAddress) -> bool:
        """Whether a read has waited for ``server`` in vain within `REST_SECONDS`, and the primary can be read."""
        is_vain = bool(self._vain_until) and self._vain_until.get(server, 0.0) > self._clock()
        return is_vain and not self.is_avoided(self._primary)

    def note_position(self, server: ServerAddress, position: Position) -> None:
        """A read of ``server`` has shown this."""
        if self._is_plain:
            return
        now = self._clock()
        expected = self._expected
        if server != self._primary:
            if expected is not None and not position.contains(expected):
                self._late_until[server] = now + REST_SECONDS
            else:
                self._late_until.pop(server, None)
        if now - self._shown_at >= LATE_SECONDS:
            self._expected, self._shown, self._shown_at = self._shown, None, now
        self._shown = position if self._shown is None else self._shown.union(position)
