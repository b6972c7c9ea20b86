"""Gates before the HTTP service: the access token, which is read from its file and demanded of every request, and the
host name, which is checked where no token is."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from freshness.config.hostport import parse_host_port, read_password
from freshness.config.settings import Config
from freshness.errors import ConfigError
from invalidator.http.refusal import refuse

HTTP_PORT: Final = 80
OPEN_PATHS: Final = frozenset(("/healthz", "/readyz"))
"""Answered without a token: they are for probes, and say nothing of the data."""


def read_access_token(config: Config) -> str | None:
    """The first line of `http.token_file`; None where none is configured. Raises `ConfigError`."""
    if config.http.token_file is None:
        return None
    try:
        return read_password(config.path.parent / config.http.token_file)
    except ConfigError as error:
        raise ConfigError(f"http.token_file: {error.message}", hint="put a long random text there") from error


class TokenGate:
    """Lets requests pass that bring the token. In front of everything, the description of the service too."""

    def __init__(self, app: ASGIApp, access_token: str) -> None:
        self._app = app
        self._expected = b"bearer " + access_token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        response = refuse(
            401,
            "Unauthorized",
            "this service demands its access token",
            "send the header Authorization: Bearer TOKEN, with the token of http.token_file",
            {"www-authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) != 1:
            return False
        scheme, _, token = bytes(found[0]).partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected)


class HostGate:
    """Lets requests pass that call the service by a loopback address, ``localhost`` or one of ``names``.

    A web page on a name that its owner lets point to 127.0.0.1 reaches a service that listens there, with the browser
    of anybody on the machine (DNS rebinding). A browser always sends the name; a prober may send none.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope.get("headers", ()) if name == b"host"]
        wrong = [text for each in found if not self._is_own(text := bytes(each).decode("latin-1"))]
        if scope["type"] != "http" or not wrong:
            await self._app(scope, receive, send)
            return
        response = refuse(
            421,
            "MisdirectedRequest",
            f"this service is not {wrong[0]!r}",
            "call it by a loopback address, or put the name into http.hosts",
        )
        await response(scope, receive, send)

    def _is_own(self, text: str) -> bool:
        try:
            host, _ = parse_host_port(text, port_default=HTTP_PORT)
        except ConfigError:
            return False
        return is_loopback(host) or host.lower() in self._names


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
