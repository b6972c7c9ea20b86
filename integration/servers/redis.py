"""A private Redis node that keeps everything in memory: a `restart` comes up empty."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.servers.process import ServerProcess, get_program

ANSWER_SECONDS = 2.0


class Redis(ServerProcess):
    """``options`` are appended to the command line, e.g. ``("--maxmemory", "64mb")``."""

    technology = "redis"
    product = "Redis"

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
            answer = connection.recv(65536).decode()
        self._take_info(dict(line.partition(":")[::2] for line in answer.splitlines()))
        return f"process_id:{self.pid}\r\n" in answer

    def _take_info(self, info: Mapping[str, Any]) -> None:
        """Valkey calls itself a Redis of the version that it was made from, and says its own beside it."""
        self.product = "Valkey" if "valkey_version" in info else "Redis"
        self.version = info.get("valkey_version" if self.product == "Valkey" else "redis_version", "")
