"""The access token of the HTTP service: read from its file, demanded of every request."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from freshness.config.hostport import read_password
from freshness.config.settings import Config
from freshness.errors import ConfigError

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
        problem = {
            "error": "Unauthorized",
            "message": "this service demands its access token",
            "hint": "send the header Authorization: Bearer TOKEN, with the token of http.token_file",
        }
        response = JSONResponse({"detail": problem}, 401, {"www-authenticate": "Bearer"})
        await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) != 1:
            return False
        scheme, _, token = bytes(found[0]).partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected)
