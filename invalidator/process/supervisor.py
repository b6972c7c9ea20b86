"""The messages of this process to a supervisor such as systemd: sd_notify(3), a datagram to ``NOTIFY_SOCKET``."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

from freshness.algorithm.driver import running_clock

log = logging.getLogger(__name__)


class Supervisor:
    """Nothing is sent if the environment names no socket. All methods are for the main thread."""

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = running_clock) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        is_watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._feed_seconds = int(environ.get("WATCHDOG_USEC", "0")) / 2e6 if is_watched else 0.0
        self._clock, self._fed_at = clock, clock()
        self._steps: Mapping[str, int] = {}
        self._status = ""
        self._is_ready = False

    def reload(self) -> None:
        """The process begins to load its configuration again. Safe in a signal handler."""
        self._is_ready = False
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def look(self, status: str, steps: Mapping[str, int]) -> None:
        """The process works with its configuration. ``steps``: how many each loop has taken. The watchdog is fed
        every half of its time, if each loop has taken one since it was fed before."""
        if not self._is_ready:
            self._is_ready = True
            self._send("READY=1")
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")
        is_due = 0 < self._feed_seconds <= self._clock() - self._fed_at
        if is_due and all(taken != self._steps.get(name) for name, taken in steps.items()):
            self._feed()
            self._steps = dict(steps)

    def work(self) -> None:
        """The process works at its configuration, which may take longer than the watchdog waits."""
        if self._feed_seconds:
            self._feed()

    def stop(self) -> None:
        """The process begins to end."""
        self._send("STOPPING=1")

    def _feed(self) -> None:
        self._send("WATCHDOG=1")
        self._fed_at = self._clock()

    def _send(self, *states: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            log.warning("%s did not reach the supervisor: %s", states[0], error)
