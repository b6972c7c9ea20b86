"""Starlette and FastAPI: the cache opens with the application, and each client reads its own commits.

Needs the extra ``starlette``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike
from typing import Any, Final, TypeVar

from freshness.errors import ConfigError, required_extra

with required_extra("starlette"):
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import HTTPConnection, cookie_parser
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from appclient.async_cache import AsyncCache

from appclient.cache import Cache
from appclient.web import AsyncRequestReads, RequestReads, TokenCookie

_CACHE: Final = "freshness_cache"
_READS: Final = "freshness_reads"
_IS_ASKED: Final = "freshness_is_asked"
"""Whether the endpoint has asked for its reads: its response depends on the client's commits."""

Reads = TypeVar("Reads", AsyncRequestReads, RequestReads)


def cache_lifespan(
    path: str | PathLike[str] = "freshness.toml", *, in_threads: bool = False, **options: Any
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """For ``lifespan=`` of an application: opens an `AsyncCache`, and closes it at the end. ``path``: name of the
    file. ``in_threads``: a `Cache`, for endpoints that are ordinary functions. ``options``: arguments of
    `Cache.open`. An application with a lifespan of its own enters this one inside, and adds what it yields to its own
    state."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[Mapping[str, Any]]:
        if in_threads:
            cache = Cache.open(path, **options)
            try:
                yield {_CACHE: cache}
            finally:
                cache.close()
        else:
            async with await AsyncCache.open(path, **options) as on_loop:
                yield {_CACHE: on_loop}

    return lifespan


class ReadYourWrites:
    """Middleware: the reads of a request have the commits of its client's earlier ones. The commits of an endpoint
    are in the cookie and in the header of its response. A response that is streamed has the commits from before its
    first byte. ``app``: the next one inside. ``cookie``: how the commits are sent."""

    def __init__(self, app: ASGIApp, *, cookie: TokenCookie) -> None:
        self.app, self.cookie = app, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cookies = cookie_parser("; ".join(headers.getlist("cookie")))
        token = self.cookie.parse(cookies.get(self.cookie.name), headers.get(self.cookie.header))
        state = scope.setdefault("state", {})
        cache = state.get(_CACHE)
        if cache is None:
            raise ConfigError(
                "the application has no cache", hint="expected lifespan=cache_lifespan(...), or its state in your own"
            )
        reads = RequestReads(cache, token) if isinstance(cache, Cache) else AsyncRequestReads(cache, token)
        state[_READS] = reads

        async def send_with_token(message: Message) -> None:
            if message["type"] == "http.response.start" and state.get(_IS_ASKED):
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                known = {name.strip().lower() for name in headers.get("vary", "").split(",")}
                for name in self.cookie.vary:
                    if known.isdisjoint((name.lower(), "*")):
                        headers.add_vary_header(name)
                if reads.is_new and reads.token is not None:
                    self._write(headers, self.cookie.format(reads.token))
            await send(message)

        await self.app(scope, receive, send_with_token)

    def _write(self, headers: MutableHeaders, text: str | None) -> None:
        if text is None:
            return
        response = Response()
        response.set_cookie(self.cookie.name, text, **self.cookie.attributes())
        headers.append("set-cookie", response.headers["set-cookie"])
        headers[self.cookie.header] = text


async def request_reads(connection: HTTPConnection) -> AsyncRequestReads:
    """The reads of a request: a dependency of FastAPI, ``Depends(request_reads)``, or a function of the request or
    websocket ``connection``. A coroutine, because FastAPI sends a plain function to a thread for each request. Raises
    `ConfigError` without the middleware, and for a cache that was opened ``in_threads``."""
    return _find(connection, AsyncRequestReads)


def thread_reads(connection: HTTPConnection) -> RequestReads:
    """As `request_reads`, for a cache that was opened ``in_threads``: a plain function."""
    return _find(connection, RequestReads)


def _find(connection: HTTPConnection, kind: type[Reads]) -> Reads:
    state = connection.scope.get("state", {})
    reads = state.get(_READS)
    if not isinstance(reads, kind):
        raise ConfigError(
            f"the request has no {kind.__name__}",
            hint="expected the middleware ReadYourWrites; thread_reads goes with cache_lifespan(in_threads=True)",
        )
    state[_IS_ASKED] = True
    return reads
