"""Database connections that no read uses just now, by thread. A read takes one and owns it until the read ends."""

from __future__ import annotations

import os
import threading
from typing import Final

from freshness.config.settings import ServerAddress
from freshness.database.connection import Connection
from freshness.errors import ConfigError

IDLE_MAX: Final = 4
"""Connections to one server that a thread keeps: as many as reads of it that stand inside one another."""


class ThreadConnections(threading.local):
    """One thread's idle connections, and until when it avoids each server that failed.

    Threads do not share the latter: one slow statement should not send the other threads to another server.
    """

    def __init__(self) -> None:
        self.left_until: dict[ServerAddress, float] = {}
        self._process = os.getpid()
        self._idle: dict[ServerAddress, list[Connection]] = {}

    def take(self, address: ServerAddress) -> Connection | None:
        """An idle connection, which is the caller's from now on. A read inside another one gets another connection:
        on the same one it would see the outer one's snapshot (F18)."""
        idle = self._idle_of_this_process().get(address)
        return idle.pop() if idle else None

    def give_back(self, address: ServerAddress, connection: Connection) -> None:
        """Keep a connection on which every statement has had its answer, and no transaction is open."""
        idle = self._idle_of_this_process().setdefault(address, [])
        if len(idle) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle_of_this_process(), {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _idle_of_this_process(self) -> dict[ServerAddress, list[Connection]]:
        """A forked process must neither speak on its parent's connections nor close them."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._idle = {}
        return self._idle


def require_patched_threads() -> None:
    """Raise `ConfigError` where gevent or another library has replaced `threading.local` after this module was
    imported: all its greenlets would share one thread's connections, and read each other's rows."""
    if not issubclass(ThreadConnections, threading.local):
        raise ConfigError(
            f"{threading.local.__module__} has patched threading after freshness was imported",
            hint="patch first, e.g. gevent.monkey.patch_all() before every import (under gunicorn: no --preload, "
            "or patch in its configuration file)",
        )
