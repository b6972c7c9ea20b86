"""`ReadYourWritesMiddleware`: the commits of a session, from one request to the next, in a signed cookie."""

from __future__ import annotations

import hashlib
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
from appclient.signed import parse_signed_commit_token, sign_commit_token
from freshness.errors import FormatError, FreshnessError

log = logging.getLogger(__name__)


class ReadYourWritesMiddleware:
    """Near the top of MIDDLEWARE: what the others and the view have committed is in the cookie of the response.

    A response that is streamed has the commits from before its first byte.
    """

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
    options, session = get_app().options, Session()
    text = request.COOKIES.get(options.cookie_name)
    if not text:
        return session
    failed: FormatError | None = None
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            token = parse_signed_commit_token(text, _derive(secret), age_seconds_max=options.token_seconds)
        except FormatError as error:
            failed = failed or error
            continue
        session.add(token, options.token_seconds)
        session.is_new = False
        return session
    log.info("the cookie %s is ignored: %s", options.cookie_name, failed)
    return session


def take_all(session: Session) -> None:
    """At the end of a request. A commit that cannot be learned is logged, and the response goes out all the same."""
    app = get_app()
    try:
        take_tokens(session, app.cache, app.places, app.options.token_seconds)
    except (Error, FreshnessError) as error:
        log.error("the commits of a request are not in its cookie: %s", error)


def write_session(response: HttpResponse, session: Session) -> HttpResponse:
    """Set the cookie where the request has committed."""
    options, token = get_app().options, session.find_token()
    if token is None or not session.is_new:
        return response
    try:
        text = sign_commit_token(token, _derive(settings.SECRET_KEY))
    except FormatError as error:
        log.error("the commits of a request are not in its cookie: %s", error)
        return response
    response.set_cookie(
        options.cookie_name,
        text,
        max_age=int(options.token_seconds),
        httponly=True,
        path=settings.SESSION_COOKIE_PATH,
        domain=settings.SESSION_COOKIE_DOMAIN,
        secure=settings.SESSION_COOKIE_SECURE,
        samesite="Lax",
    )
    patch_vary_headers(response, ("Cookie",))
    return response


def _derive(secret: Any) -> bytes:
    """A key of this purpose alone, from Django's secret."""
    text = secret if isinstance(secret, bytes) else str(secret).encode()
    return hashlib.sha256(b"freshness read-your-writes\0" + text).digest()
