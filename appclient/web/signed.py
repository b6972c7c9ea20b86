"""Commit tokens that leave the application, in a cookie or a header: signed, and good for a bounded time.

Without a signature a client could send any position: each of its reads would go to the primary. The cache itself
cannot be harmed by it, since no fill believes a commit token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Final

from freshness.errors import ConfigError, FormatError
from freshness.position.commit import CommitToken

SECRET_BYTES_MIN: Final = 16
SIGNED_BYTES_MAX: Final = 3800
"""Browsers drop a cookie of 4096 bytes with its name and attributes, and say nothing."""

_PURPOSE: Final = b"freshness commit token 1\0"


def sign_commit_token(token: CommitToken, secret: bytes, *, clock: Callable[[], float] = time.time) -> str:
    """The ``token`` as a text for a cookie or a header: itself, the time, and a signature (HMAC-SHA256). ``secret``:
    at least 16 bytes. ``clock``: seconds since 1970. Raises `ConfigError` for a short secret, `FormatError` above
    3,800 bytes."""
    body = f"{token.format()}.{int(clock())}"
    text = f"{body}.{_signature(body, secret)}"
    if len(text) > SIGNED_BYTES_MAX:
        raise FormatError(
            f"a signed commit token of {len(text)} bytes",
            hint=f"at most {SIGNED_BYTES_MAX} fit a cookie; a GtidConnection names the own commits alone",
        )
    return text


def parse_signed_commit_token(
    text: str, secret: bytes, *, age_seconds_max: float, clock: Callable[[], float] = time.time
) -> CommitToken:
    """The token in a ``text`` of `sign_commit_token`. ``secret``, ``clock``: the same. ``age_seconds_max``: the age
    of the oldest signature that is believed, in seconds. Raises `ConfigError` for a short secret, and `FormatError`
    for anything else: forged, cut, or expired."""
    body, _, signature = text.strip().rpartition(".")
    if not hmac.compare_digest(_bytes(signature), _bytes(_signature(body, secret))):
        raise FormatError(
            f"{text.strip()[:60]!r} was not signed with this secret", hint="ignore it, or look who sent it"
        )
    token, _, signed_at = body.rpartition(".")
    age_seconds = clock() - int(signed_at)
    if age_seconds > age_seconds_max:
        raise FormatError(
            f"a commit token that was signed {age_seconds:.0f} s ago",
            hint=f"it is good for {age_seconds_max:.0f} s; give the cookie the same max-age",
        )
    return CommitToken.parse(token)


def _signature(body: str, secret: bytes) -> str:
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"a secret of {len(secret)} bytes signs no commit token",
            hint=f"expected at least {SECRET_BYTES_MIN}, e.g. secrets.token_bytes(32), the same in all processes",
        )
    mac = hmac.new(secret, _PURPOSE + _bytes(body), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    """A text from JSON can have lone surrogates."""
    return text.encode(errors="surrogatepass")
