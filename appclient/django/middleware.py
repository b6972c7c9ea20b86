"""`ReadYourWritesMiddleware`: the commits of a session, from one request to the next, in a signed cookie."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

from appclient.django.installed import get_app
from appclient.django.session import Session, serving, take_tokens
from appclient.web import TokenCookie
from freshness.errors import FreshnessError

log = logging.getLogger(__name__)


class ReadYourWritesMiddleware:
    """Near the top of MIDDLEWARE: what the others and the view have committed is in the cookie of the response. A
    response that is streamed has the commits from before its first byte."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        session = read_session(request)
        if self.is_async:
            return self._serve(request, session)
        with serving(session):
            response = self.get_response(request)
            if session.written:
                take_all(session)
        return write_session(response, session)

    async def _serve(self, request: HttpRequest, session: Session) -> HttpResponse:
        with serving(session):
            response = await self.get_response(request)
            if session.written:
                await sync_to_async(take_all)(session)  # in the thread of the view's connections
        return write_session(response, session)


def read_session(request: HttpRequest) -> Session:
    """The commits of the cookie. One that was forged, cut or signed too long ago counts as none."""
    cookie, session = make_cookie(), Session()
    token = cookie.parse(request.COOKIES.get(cookie.name))
    if token is not None:
        session.add(token, cookie.seconds)
        session.is_new = False
    return session


def make_cookie() -> TokenCookie:
    """By Django's settings of secrets and of the session's cookie."""
    options = get_app().options
    return TokenCookie(
        [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS],
        name=options.cookie_name,
        seconds=options.token_seconds,
        secure=settings.SESSION_COOKIE_SECURE,
    )


def take_all(session: Session) -> None:
    """At the end of a request. A commit that cannot be learned is logged, and the response goes out all the same."""
    app = get_app()
    try:
        take_tokens(session, app.cache, app.places, app.options.token_seconds)
    except (Error, FreshnessError) as error:
        log.error("the commits of a request are not in its cookie: %s", error)


def write_session(response: HttpResponse, session: Session) -> HttpResponse:
    """Set the cookie if the request has committed, and ``Vary`` if it has read by it."""
    if session.is_asked:
        patch_vary_headers(response, ("Cookie",))
    token = session.find_token()
    if token is None or not session.is_new:
        return response
    cookie = make_cookie()
    text = cookie.format(token)
    if text is None:
        return response
    response.set_cookie(
        cookie.name,
        text,
        path=settings.SESSION_COOKIE_PATH,
        domain=settings.SESSION_COOKIE_DOMAIN,
        **cookie.attributes(),
    )
    patch_vary_headers(response, ("Cookie",))
    return response
