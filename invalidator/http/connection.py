"""The connections of the HTTP service: their number is bounded, and their certificate is read before the first.

Each connection takes a file descriptor of the invalidator's process, which needs its own for nodes and databases.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

from freshness.config.config import Config
from freshness.errors import ConfigError

CONNECTIONS_MAX: Final = 256

log = logging.getLogger(__name__)


class Certificate(NamedTuple):
    """PEM files that `read_certificate` has tried."""

    cert: Path
    key: Path

    def load(self) -> ssl.SSLContext:
        """Raises `OSError` and `ssl.SSLError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without the last argument a key with a passphrase would ask for it on a terminal
        context.load_cert_chain(self.cert, self.key, lambda: "")
        return context

    def follow(self, context: ssl.SSLContext) -> None:
        """Let each connection of the context have the certificate that the files hold when it begins. Files that do
        not serve are logged, and the previous certificate stays."""
        present, seen = context, self._find_state()

        def on_hello(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal present, seen
            found = self._find_state()
            if found != seen:
                seen = found
                try:
                    present = self.load()
                except OSError as error:  # also those of TLS
                    log.warning("the certificate of the HTTP service stays as it was: %s: %s", self.cert, error)
            connection.context = present

        context.sni_callback = on_hello

    def _find_state(self) -> list[tuple[int, int, int]]:
        """A state that differs once a file is replaced; empty while one is missing."""
        try:
            return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in map(Path.stat, self)]
        except OSError:
            return []


def bound_connections(connections_max: int) -> type[asyncio.Protocol]:
    """The protocol of uvicorn's connections, at most ``connections_max``: one more takes the place of the one that is
    idle longest, and is closed if a request is under way on each."""

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.idle_since = self.loop.time()
            if len(self.connections) <= connections_max:
                return
            present: list[Any] = [each for each in self.connections if not each.transport.is_closing()]
            if len(present) > connections_max:
                idle = [each for each in present if each.cycle is None or each.cycle.response_complete]
                # Not empty: no request has begun on the new one
                min(idle, key=lambda each: each.idle_since).transport.abort()

        def on_response_complete(self) -> None:
            self.idle_since = self.loop.time()
            super().on_response_complete()

    return BoundedProtocol


def read_certificate(config: Config) -> Certificate | None:
    """The files of `http.tls_cert`; None if the service has none. Raises `ConfigError` for unusable files."""
    cert, key = config.http.tls_cert, config.http.tls_key
    if cert is None or key is None:
        return None
    folder = config.path.parent
    found = Certificate(_readable("tls_cert", folder / cert), _readable("tls_key", folder / key))
    try:
        found.load()
    except ssl.SSLError as error:
        raise ConfigError(
            f"http.tls_cert = {cert}, http.tls_key = {key}: {error.reason or 'no PEM, or a passphrase is missing'}",
            hint="PEM files: the certificate and those above it, and its key without a passphrase",
        ) from error
    return found


def _readable(name: str, path: Path) -> Path:
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ConfigError(
            f"http.{name} = {path}: {error.strerror}", hint="name a PEM file that this user may read"
        ) from error
