"""A private HAProxy in TCP mode before a primary and its replicas, which is moved by its runtime API as an operator's
tool moves it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from integration.servers.database import DatabaseServer
from integration.servers.process import ServerProcess, find_free_port, get_program, run_directory

ANSWER_SECONDS = 30.0


class Haproxy(ServerProcess):
    """``port`` leads to the primary, the first of ``servers`` until `lead_to`; ``replicas_port`` to all of them in
    turn."""

    technology = "haproxy"
    product = "HAProxy"

    def __init__(self, servers: Sequence[DatabaseServer]) -> None:
        super().__init__()
        self._servers = list(servers)
        self.replicas_port = find_free_port()

    def command(self) -> list[str]:
        primary, replicas = (
            "".join(
                f"  server s{server.port} 127.0.0.1:{server.port} check inter 200ms fall 2 rise 1"
                f" on-marked-down shutdown-sessions{' disabled' if is_primary and place else ''}\n"
                for place, server in enumerate(self._servers)
            )
            for is_primary in (True, False)
        )
        path = self.directory / "haproxy.cfg"
        path.write_text(
            f"global\n  stats socket {self._socket_path} level admin\n"
            "defaults\n  mode tcp\n  timeout connect 30s\n  timeout check 30s\n"
            "  timeout client 1h\n  timeout server 1h\n"
            f"listen primary\n  bind 127.0.0.1:{self.port}\n{primary}"
            f"listen replicas\n  bind 127.0.0.1:{self.replicas_port}\n  balance roundrobin\n{replicas}"
        )
        return [get_program("haproxy"), "-db", "-f", str(path)]

    @property
    def _socket_path(self) -> Path:
        return run_directory() / f"haproxy-{self.port}.sock"

    def is_ready(self) -> bool:
        described = dict(line.partition(": ")[::2] for line in self.ask("show info").splitlines())
        self.version = described.get("Version", "").partition("-")[0]
        return described.get("Pid") == str(self.pid)

    def lead_to(self, primary: DatabaseServer) -> None:
        """From now on ``port`` leads to this server, and connections to others are ended."""
        for each in self._servers:
            if each is not primary:
                self.ask(f"disable server primary/s{each.port}; shutdown sessions server primary/s{each.port}")
        self.ask(f"enable server primary/s{primary.port}")

    def ask(self, command: str) -> str:
        """Send commands of the runtime API. Raises OSError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(str(self._socket_path))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while received := connection.recv(65536):
                answer += received
        return answer.decode()
