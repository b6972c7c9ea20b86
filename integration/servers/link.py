"""A network that fails: a TCP link to a server, whose packets a fault holds, loses, slows down, or cuts off."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

from integration.servers.stable_name import StableName

POLL_SECONDS: Final = 0.02
DELAY_SECONDS: Final = 0.1
TRICKLE_BYTES: Final = 64
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close sends RST."""

FAULTS: Final = ("delay", "trickle", "hold requests", "hold answers", "lose requests", "lose answers", "reset")


class Link(StableName):
    """``fault``: one of `FAULTS`, "" for none; on every second connection, or on all if ``is_whole``.

    Packets that are held come when the fault ends, as TCP sends again what a network swallowed. Packets that are lost
    never come, and their connection ends with the fault: it was half open.
    """

    fault = ""
    is_whole = True

    @contextlib.contextmanager
    def failing(self, fault: str, *, is_whole: bool) -> Iterator[None]:
        assert fault in FAULTS, fault
        self.fault, self.is_whole = fault, is_whole
        if fault == "reset":
            self._reset()
        try:
            yield
        finally:
            self.fault = ""

    def _reset(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):  # it has ended
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                each.shutdown(socket.SHUT_RD)  # wakes the thread that reads it, and then the last reference goes

    def send(self, data: bytes, one: socket.socket, other: socket.socket) -> None:
        is_request = one.getsockname()[1] == self.port
        client = one.getpeername() if is_request else other.getpeername()
        fault, direction = self.fault, "requests" if is_request else "answers"
        if not fault or not (self.is_whole or client[1] // 2 % 2):
            other.sendall(data)
        elif fault == "delay":
            time.sleep(DELAY_SECONDS)
            other.sendall(data)
        elif fault == "trickle":
            for start in range(0, len(data), TRICKLE_BYTES):
                other.sendall(data[start : start + TRICKLE_BYTES])
                time.sleep(POLL_SECONDS if self.fault else 0)
        elif fault == "reset":
            raise ConnectionResetError
        else:
            if fault.endswith(direction):
                while self.fault == fault:
                    time.sleep(POLL_SECONDS)
                if fault.startswith("lose"):
                    raise ConnectionAbortedError
            other.sendall(data)
