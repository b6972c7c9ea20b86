"""A private memcached node, with the options that memcached itself has by default."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from integration.servers.process import ServerProcess, get_program

ANSWER_SECONDS = 30.0


class Memcached(ServerProcess):
    """A `restart` comes up empty, on the same port. ``options`` are appended to the command line, e.g.
    ``("-o", "no_modern")``; the last one of a kind counts."""

    technology = "memcached"
    product = "memcached"

    def __init__(self, directory: Path | None = None, *, memory_mb: int = 64, options: Sequence[str] = ()) -> None:
        super().__init__(directory)
        self._memory_mb = memory_mb
        self._options = tuple(options)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        command = [get_program("memcached"), "-l", "127.0.0.1", "-p", str(self.port), "-U", "0"]
        command += ["-m", str(self._memory_mb), "-t", "2"]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        return [*command, *self._options]

    def is_ready(self) -> bool:
        found = self.stats()
        self.version = found.get("version", "")
        return found.get("pid") == str(self.pid)

    def stats(self, argument: str = "") -> dict[str, str]:
        """What ``stats`` or ``stats settings|items|slabs`` answers."""
        lines = self.ask(f"stats {argument}".strip(), ends_with=b"END\r\n").splitlines()
        return {parts[1]: parts[2] for parts in (line.split(" ", 2) for line in lines) if parts[0] == "STAT"}

    def connect(self) -> socket.socket:
        """A connection of its own. Raises OSError."""
        return socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS)

    def ask(self, command: str, *, ends_with: bytes = b"\r\n") -> str:
        """Send one text command on a connection of its own and return the answer. Raises OSError."""
        with self.connect() as connection:
            connection.sendall(command.encode() + b"\r\n")
            answer = b""
            while not answer.endswith(ends_with):
                received = connection.recv(65536)
                if not received:
                    raise ConnectionError(f"memcached {self.address} closed the connection after {answer!r}")
                answer += received
        return answer.decode()
