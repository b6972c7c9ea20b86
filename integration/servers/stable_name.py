"""One address behind which the primary is replaced, as a DNS name, a virtual address or a TCP proxy does it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

CHUNK_BYTES = 1 << 16


class StableName:
    """Passes each connection on to the current server; if there is none, connections end at once.

    A connection stays with its server until either side ends it, or `cut` does.
    """

    def __init__(self, server_port: int | None) -> None:
        self.server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="stable name", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections that there are."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener has ended
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.server_port or 0))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._sockets |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one of the two has ended
            while data := one.recv(CHUNK_BYTES):
                self.send(data, one, other)
        for each in (one, other):
            _end(each)
        with self._lock:
            self._sockets -= {one, other}

    def send(self, data: bytes, one: socket.socket, other: socket.socket) -> None:
        """Pass on what came from ``one``. An OSError ends the connection."""
        other.sendall(data)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        one.shutdown(socket.SHUT_RDWR)
