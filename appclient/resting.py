"""A node that hangs is waited for by one thread, and left alone by the others.

Otherwise every thread of a process waits for the time-out again and again, and the hits on healthy nodes stop, too.
A node that rests is one that did not answer: its keys are read from the database and not stored (F106). Used by
``appclient.cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Reply, Request
from freshness.errors import NodeUnavailable

SLOW_SECONDS: Final = 0.5
"""A failure that took so long was a wait. One that is quick, such as a refused connection, costs nobody anything."""

REST_SECONDS: Final = 2.0
"""How long a node that hung is left alone, after each thread that waited for it."""


@dataclass(slots=True)
class NodeRest:
    """Until when a node is left alone, for all threads of a process; None: it is not."""

    until: float | None = None


class RestingNode:
    """One thread's connection to a node; see `freshness.algorithm.node.CacheNode`. ``rest`` is all threads'.

    No lock: where two threads ask at once after a rest, both wait, and nothing else.
    """

    def __init__(self, node: CacheNode, rest: NodeRest, clock: Callable[[], float]) -> None:
        self.name = node.name
        self.close = node.close
        self._node = node
        self._rest = rest
        self._clock = clock

    def send(self, requests: Sequence[Request]) -> None:
        begun = self._clock() if self._rest.until is None else self._begin()
        try:
            self._node.send(requests)
        except NodeUnavailable:
            self._fail(begun)
            raise

    def receive(self) -> list[Reply]:
        begun = self._clock()
        try:
            replies = self._node.receive()
        except NodeUnavailable:
            self._fail(begun)
            raise
        self._rest.until = None
        return replies

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        begun = self._clock() if self._rest.until is None else self._begin()
        try:
            replies = self._node.perform(requests)
        except NodeUnavailable:
            self._fail(begun)
            raise
        self._rest.until = None
        return replies

    def _begin(self) -> float:
        """The time, where the node was left alone. Raises `NodeUnavailable` while it still is; afterwards this thread
        asks for all others."""
        now = self._clock()
        until = self._rest.until
        if until is not None:
            if now < until:
                raise NodeUnavailable(
                    f"{self.name} hung a moment ago, and is left alone for {until - now:.1f} s",
                    hint="see that it runs and is reachable",
                )
            self._rest.until = now + REST_SECONDS
        return now

    def _fail(self, begun: float) -> None:
        now = self._clock()
        if now - begun >= SLOW_SECONDS:
            self._rest.until = now + REST_SECONDS
