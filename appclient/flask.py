"""Flask: a cache for the application, and each client reads its own commits (docs/read-your-writes.md).

Needs the extra ``flask``.
"""

from __future__ import annotations

from typing import Final

from freshness.errors import ConfigError, required_extra

with required_extra("flask"):
    from flask import Flask, Response, request

from appclient.cache import Cache
from appclient.web import RequestReads, TokenCookie

_NAME: Final = "freshness"


class Freshness:
    """The extension. ``app``: may be given later, to `init_app`. Its settings are in ``app.config``:

    ``FRESHNESS_CONFIG``: the path of the file, ``freshness.toml`` by default.
    ``FRESHNESS_OPTIONS``: further arguments of `Cache.open`.
    ``FRESHNESS_TOKEN_SECONDS``: the ``seconds`` of `TokenCookie`, 60 by default.

    The cookie is signed with the application's secret key, and has its ``SESSION_COOKIE_SECURE``.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Open the cache of ``app``. Raises as `Cache.open`, and `ConfigError` if it has no secret key."""
        if not app.secret_key:
            raise ConfigError("the application has no secret key", hint="set SECRET_KEY: commit tokens are signed")
        self.cache = Cache.open(
            app.config.get("FRESHNESS_CONFIG", "freshness.toml"), **app.config.get("FRESHNESS_OPTIONS", {})
        )
        self.cookie = TokenCookie(
            [app.secret_key, *(app.config.get("SECRET_KEY_FALLBACKS") or ())],
            seconds=app.config.get("FRESHNESS_TOKEN_SECONDS", 60),
            secure=bool(app.config.get("SESSION_COOKIE_SECURE")),
        )
        app.extensions[_NAME] = self
        app.after_request(self._write)

    @property
    def reads(self) -> RequestReads:
        """The reads of the request that is served now. Raises RuntimeError outside of any."""
        found: RequestReads | None = request.environ.get(self._place)
        if found is None:
            token = self.cookie.parse(request.cookies.get(self.cookie.name), request.headers.get(self.cookie.header))
            found = request.environ[self._place] = RequestReads(self.cache, token)
        return found

    @property
    def _place(self) -> str:
        """In the request's environment: ``g`` is another one in an application context inside the request."""
        return f"{_NAME}.{id(self)}"

    def _write(self, response: Response) -> Response:
        reads: RequestReads | None = request.environ.get(self._place)
        if reads is None:
            return response
        response.vary.update(self.cookie.vary)
        text = self.cookie.format(reads.token) if reads.is_new and reads.token is not None else None
        if text is not None:
            response.set_cookie(self.cookie.name, text, **self.cookie.attributes())
            response.headers[self.cookie.header] = text
        return response
