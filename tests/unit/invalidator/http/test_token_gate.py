"""Who is let in: the access token, once, and nothing that only looks like it."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from invalidator.http.gates import EVERYTHING, TokenGate


def ask(*authorizations: bytes, path: str = "/v1/status") -> int:
    """The status of the answer to a request with these headers."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", value) for value in authorizations]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    asyncio.run(TokenGate(PlainTextResponse("in"), {"s3cret-text": EVERYTHING})(scope, receive, send))
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize("header", [b"Bearer s3cret-text", b"bearer s3cret-text", b"BEARER  s3cret-text "])
def test_the_token_opens(header: bytes) -> None:
    assert ask(header) == 200


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer s3cret", b"Bearer s3cret-text2", b"Basic s3cret-text", b"s3cret-text"]
)
def test_all_else_does_not(header: bytes) -> None:
    assert ask(header) == 401


def test_two_headers_are_none() -> None:
    """A proxy may have looked at the other one."""
    right, wrong = b"Bearer s3cret-text", b"Bearer x"
    assert [ask(), ask(right, wrong), ask(wrong, right), ask(right, right)] == [401] * 4


def test_probes_and_the_page_need_no_token_and_paths_like_theirs_do() -> None:
    assert [ask(path=path) for path in ("/healthz", "/readyz", "/", "/dashboard/script.js")] == [200] * 4
    alike = ("/healthz/", "/readyz2", "/metrics", "//", "/dashboard", "/dashboard/", "/dashboard/x", "")
    assert [ask(path=path) for path in alike] == [401] * len(alike)
