"""A private Redis node that keeps everything in memory: a `restart` comes up empty."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from integration.servers.process import ServerProcess, get_program

ANSWER_SECONDS = 2.0


class Redis(ServerProcess):
    """``options`` are appended to the command line, e.g. ``("--maxmemory", "64mb")``."""

    technology = "redis"

    def __init__(self, directory: Path | None = None, *, options: Sequence[str] = ()) -> None:
        super().__init__(directory)
        self._options = tuple(options)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        command = [get_program("redis-server"), "--bind", "127.0.0.1", "--port", str(self.port)]
        return [*command, "--dir", str(self.directory), "--save", "", "--appendonly", "no", *self._options]

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS) as connection:
            connection.sendall(b"INFO server\r\n")
            answer = connection.recv(65536)
        return f"process_id:{self.pid}\r\n".encode() in answer
