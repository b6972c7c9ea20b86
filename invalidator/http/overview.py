"""The overview of the invalidator over HTTP: once, as server-sent events, and as a page for people.

An event a second goes to each viewer, made once for all of them. A viewer that does not read delays no other: it gets
the newest overview when it is back, and is cut off after some seconds. The page and its files hold no data; its
script asks for the overview as any client does, with the access token if one is required (docs/update-stream.md).
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Header
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from invalidator.http.consumers import EVENTS, TooManyConsumers, call_at_disconnect, encode_event, wants_events
from invalidator.http.gates import PAGE_FILES
from invalidator.http.refusal import describe_refusals

VIEWERS_MAX: Final = 16
"""Maximum number of viewers that read events at once. They do not count for ``http.consumers_max``: an operator gets
in when all consumers are connected."""

EVENT_NAME: Final = "overview"
LARGE_BYTES: Final = 64 << 10
"""A larger overview comes less often, so that a viewer gets no more than this in a period."""

PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ViewPolicy:
    """``period_seconds``: between two events; ``slow_seconds``: how long one write to a connection may take."""

    period_seconds: float = 1.0
    slow_seconds: float = 20.0
    viewers_max: int = VIEWERS_MAX


class OverviewFeed:
    """Makes the overview, at most once in a period, and knows its viewers."""

    def __init__(self, read: Callable[[], dict[str, Any]], policy: ViewPolicy | None = None) -> None:
        self.policy = policy or ViewPolicy()
        self.read = read
        self._making = threading.Lock()
        self._made_at = float("-inf")
        self._event = b""
        self._lock = threading.Lock()
        self._viewers: dict[int, Callable[[], object]] = {}
        self._is_closed = False

    @property
    def count(self) -> int:
        return len(self._viewers)

    def read_event(self) -> bytes:
        """The overview as an event, at most a period old. For any thread."""
        with self._making:
            if time.monotonic() - self._made_at >= self.policy.period_seconds / 2:
                text = json.dumps(self.read(), ensure_ascii=False, allow_nan=False)
                self._event = encode_event(EVENT_NAME, text.encode(errors="backslashreplace"))
                self._made_at = time.monotonic()
            return self._event

    @contextmanager
    def viewing(self, end: Callable[[], object]) -> Iterator[None]:
        """Count a viewer; ``end`` is called when the service stops. Raises `TooManyConsumers`."""
        number = id(end)
        with self._lock:
            if len(self._viewers) >= self.policy.viewers_max or self._is_closed:
                raise TooManyConsumers(
                    f"{len(self._viewers)} viewers are connected", hint="close one, or try again later"
                )
            self._viewers[number] = end
        try:
            yield
        finally:
            with self._lock:
                del self._viewers[number]

    def close(self) -> None:
        """End all streams of events: the service stops."""
        with self._lock:
            self._is_closed = True
            ends = list(self._viewers.values())
        for end in ends:
            with suppress(RuntimeError):  # the loop is closed: the viewer has gone
                end()


class OverviewEvents(Response):
    """An event at once, and one in each period, until the viewer goes or the service stops."""

    media_type = EVENTS

    def __init__(self, feed: OverviewFeed) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        with self._feed.viewing(lambda: loop.call_soon_threadsafe(ending.set)):
            watcher = asyncio.create_task(call_at_disconnect(receive, ending.set))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send_events(send, ending)
            except TimeoutError:
                log.warning("a viewer of the overview reads nothing and is cut off")
            finally:
                watcher.cancel()

    async def _send_events(self, send: Send, ending: asyncio.Event) -> None:
        policy = self._feed.policy
        while not ending.is_set():
            event = await asyncio.to_thread(self._feed.read_event)
            async with asyncio.timeout(policy.slow_seconds):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), policy.period_seconds * max(1.0, len(event) / LARGE_BYTES))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def add_overview(api: FastAPI, v1: APIRouter, feed: OverviewFeed) -> None:
    """The overview under "/v1", and the page."""

    @v1.get(
        "/overview",
        response_class=JSONResponse,
        responses={
            200: {"description": "The state, once or without an end", "content": {EVENTS: {}}},
            **describe_refusals(400, 503),
        },
    )
    def overview(accept: Annotated[str, Header()] = "") -> Response:
        """The state of shards and nodes as this process knows it; with Accept of server-sent events, one a second."""
        if wants_events(accept):
            return OverviewEvents(feed)
        return JSONResponse(feed.read(), headers={"cache-control": "no-store"})

    for path, (name, media_type) in PAGE_FILES.items():
        _add_file(api, path, name, media_type)


def _add_file(api: FastAPI, path: str, name: str, media_type: str) -> None:
    data = resources.files("invalidator.http").joinpath("dashboard", name).read_bytes()

    def page() -> Response:
        """A page that shows the overview, and keeps up with it."""
        return Response(data, media_type=media_type, headers=PAGE_HEADERS)

    described: dict[int | str, dict[str, Any]] = {200: {"content": {media_type: {}}}}
    api.get(path, response_class=Response, responses=described, include_in_schema=path == "/")(page)
