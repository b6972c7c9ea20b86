"""Cache nodes that speak TLS alone, and want to know who asks."""

from __future__ import annotations

import signal
import socket
import ssl
from typing import Any, Final

from redis import Redis as RedisClient
from redis.exceptions import ConnectionError as RedisConnectionError

from integration.servers.certificates import Certificates
from integration.servers.memcached import Memcached
from integration.servers.redis import Redis

USER: Final = "cache"


class GuardedMemcached(Memcached):
    """memcached with TLS (``-Z``) and an auth file (``-Y``) of one user."""

    def __init__(self, certificates: Certificates, password: str) -> None:
        super().__init__()
        self._certificates = certificates
        self._accounts = self.directory / "accounts"
        self._write(password)
        files = f"ssl_chain_cert={certificates.cert},ssl_key={certificates.key}"
        self._options = ("-Y", str(self._accounts), "-Z", "-o", files)

    def change_password(self, password: str) -> None:
        """The server refuses the previous password from the next connection on."""
        self._write(password)
        self._signal(signal.SIGHUP)

    def connect(self) -> socket.socket:
        context = ssl.create_default_context(cafile=self._certificates.ca)
        plain = super().connect()
        try:
            connection = context.wrap_socket(plain, server_hostname="127.0.0.1")
            login = f"{USER} {self._password}".encode()
            connection.sendall(b"set auth 0 0 %d\r\n%b\r\n" % (len(login), login))
            answer = connection.recv(100)
        except BaseException:
            plain.close()
            raise
        if answer != b"STORED\r\n":
            connection.close()
            raise ConnectionError(f"memcached {self.address} answered {answer!r}")
        return connection

    def _write(self, password: str) -> None:
        self._password = password
        self._accounts.write_text(f"{USER}:{password}\n")


class GuardedRedis(Redis):
    """Redis with a TLS port alone, and one user."""

    def __init__(self, certificates: Certificates, password: str) -> None:
        super().__init__()
        self._certificates = certificates
        self._password = password

    def command(self) -> list[str]:
        files = self._certificates
        return [
            *super().command(),
            *("--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(files.cert), "--tls-key-file", str(files.key)),
            *("--tls-ca-cert-file", str(files.ca)),
            *("--user", USER, "on", f">{self._password}", "~*", "+@all"),
            *("--user", "default", "off"),
        ]

    def is_ready(self) -> bool:
        try:
            info = self.call("INFO", "server")
        except RedisConnectionError as error:
            raise ConnectionError(str(error)) from error
        self._take_info(info)
        return bool(info["process_id"] == self.pid)

    def change_password(self, password: str) -> None:
        """The server refuses the previous password immediately and closes the connections that it opened."""
        self.call("ACL", "SETUSER", USER, "resetpass", f">{password}")
        self._password = password
        self.call("CLIENT", "KILL", "USER", USER, "SKIPME", "yes")

    def call(self, *command: str) -> Any:
        with RedisClient(
            host="127.0.0.1",
            port=self.port,
            username=USER,
            password=self._password,
            ssl=True,
            ssl_ca_certs=str(self._certificates.ca),
        ) as client:
            return client.execute_command(*command)
