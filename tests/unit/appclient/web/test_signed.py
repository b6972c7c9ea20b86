"""Commit tokens for cookies and headers: only the own, young and whole ones are taken."""

from __future__ import annotations

import re

import pytest

from appclient import CommitToken, EventToken, parse_signed_commit_token, sign_commit_token
from freshness.errors import ConfigError, FormatError
from freshness.position import parse_position

SECRET = b"0123456789abcdef"
TOKEN = CommitToken.of([EventToken("shop/-", "-", 1, 0, parse_position("mariadb", "0-1-5"))])
NOW = 1_700_000_000.0


def sign(token: CommitToken = TOKEN) -> str:
    return sign_commit_token(token, SECRET, clock=lambda: NOW)


def parse(text: str, secret: bytes = SECRET, *, after: float = 0.0) -> CommitToken:
    return parse_signed_commit_token(text, secret, age_seconds_max=60, clock=lambda: NOW + after)


def test_what_was_signed_comes_back() -> None:
    assert parse(sign()) == TOKEN
    assert parse(sign(), after=60) == TOKEN
    assert parse(sign(), after=-5) == TOKEN, "signed on a machine whose clock is ahead"
    assert re.fullmatch(r"[\w.-]+", sign()), "safe in a cookie, a header and a URL"


def test_an_expired_one_is_refused() -> None:
    with pytest.raises(FormatError, match=r"signed 61 s ago.*good for 60 s"):
        parse(sign(), after=61)


def forged() -> list[str]:
    token, signed_at, mac = sign().rsplit(".", 2)
    other = CommitToken.of([EventToken("shop/-", "-", 1, 0, parse_position("mariadb", "0-1-6"))])
    return [
        "",
        "..",
        token,
        f"{token}.{signed_at}",
        f"{token}.{signed_at}.",
        f"{token}.{int(signed_at) + 1}.{mac}",
        f"{other}.{signed_at}.{mac}",
        f"{token}.{signed_at}.{mac[:-1]}",
        f"{token}.{signed_at}.{mac}é",
        f"{token}.{signed_at}.\ud800",  # a text of JSON may have a lone surrogate
        f"\ud800.{signed_at}.{mac}",
    ]


@pytest.mark.parametrize("text", forged())
def test_a_forged_one_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="was not signed with this secret"):
        parse(text)


def test_another_secret_is_refused() -> None:
    with pytest.raises(FormatError, match="was not signed with this secret"):
        parse(sign(), b"fedcba9876543210")


def test_a_short_secret_is_refused() -> None:
    for use in (lambda: sign_commit_token(TOKEN, b"short"), lambda: parse("x", b"short")):
        with pytest.raises(ConfigError, match="secret of 5 bytes"):
            use()


def test_a_token_that_a_browser_would_drop_is_refused() -> None:
    gaps = ":".join(str(number) for number in range(1, 6000, 2))
    position = parse_position("mysql", f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{gaps}")
    with pytest.raises(FormatError, match="fit a cookie"):
        sign(CommitToken.of([EventToken("shop/-", "-", 1, 0, position)]))
