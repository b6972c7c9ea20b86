"""Idle connections, for all threads, greenlets or tasks of a process.

A read takes one and owns it until the read ends. Used by ``appclient.reading.reader`` for connections to the nodes
and by ``appclient.database.servers`` for those to the servers.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

from freshness.errors import ConnectionsExhausted
from freshness.network import BLOCKING, Network

Kept = TypeVar("Kept")

WAIT_SECONDS: Final = 5.0
"""Time that a read waits for a connection if all are in use, in seconds."""

_IS_NESTED: Final = ContextVar("is_nested", default=False)


@contextmanager
def nested_reads() -> Iterator[None]:
    """Reads in here stand inside another one, which ends only after them: they never wait for a connection."""
    before = _IS_NESTED.set(True)
    try:
        yield
    finally:
        _IS_NESTED.reset(before)


def is_nested() -> bool:
    """Whether this read stands inside another one."""
    return _IS_NESTED.get()


class Pool(Generic[Kept]):
    """At most ``size`` are in use at a time, but for reads inside others. The one that was used last is taken first.
    ``name``: text for a connection in messages. A forked process neither uses nor closes its parent's connections
    (F46)."""

    lends_idle = True
    """Whether one may have been closed while nobody used it."""

    def __init__(self, size: int, name: str, close: Callable[[Kept], None], network: Network = BLOCKING) -> None:
        self.size = size
        self._name = name
        self._close = close
        self._network = network
        self._forget()

    def _forget(self) -> None:
        # None: one that may be opened. Each operation on a deque is atomic, so no lock is needed.
        self._idle: deque[Kept | None] = deque([None] * self.size)
        self._extra: deque[None] = deque()
        self._gate = self._network.open_gate()
        self._process = os.getpid()

    @property
    def in_use(self) -> int:
        """Number of connections in use."""
        if self._process != os.getpid():
            return 0
        return self.size - len(self._idle) + len(self._extra)

    def take(self) -> Kept | None:
        """One that is kept, or None: then the caller opens one. `give_back` must follow in either case. Raises
        `ConnectionsExhausted` if all are in use for `WAIT_SECONDS`."""
        if self._process != os.getpid():
            self._forget()
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait()

    def _wait(self) -> Kept | None:
        if is_nested():
            self._extra.append(None)
            return None
        taken: list[Kept | None] = []

        def is_ready() -> bool:
            if self._idle:
                try:
                    taken.append(self._idle.pop())
                except IndexError:
                    return False
            return bool(taken)

        if self._gate.wait_for(is_ready, WAIT_SECONDS):
            return taken[0]
        raise ConnectionsExhausted(
            f"all {self.size} connections {self._name} of this process were in use for {WAIT_SECONDS:g} s",
            hint="raise cache.connections_max, or find out which reads take so long",
        )

    def give_back(self, kept: Kept | None) -> None:
        """Let others use it. None: it was closed, or could not be opened."""
        if self._process != os.getpid():
            return
        if self._extra:
            try:
                self._extra.pop()
            except IndexError:
                pass
            else:
                if kept is not None:
                    self._close(kept)
                return
        if kept is None:
            self._idle.appendleft(None)
        else:
            self._idle.append(kept)
        if self._gate.waiting:
            self._gate.wake()

    def close(self) -> None:
        """Close all that nobody uses. They are opened again when needed."""
        if self._process != os.getpid():
            return
        for _ in range(len(self._idle)):
            try:
                kept = self._idle.pop()
            except IndexError:
                return
            if kept is not None:
                self._close(kept)
            self._idle.appendleft(None)
