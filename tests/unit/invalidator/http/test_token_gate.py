"""The gates: the access token, once, and nothing that only looks like it; what it opens; the size of a document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from freshness.config.config import Config
from freshness.config.http import HttpScope
from invalidator.http import gates
from invalidator.http.gates import EVERYTHING, Grant, TokenGate
from invalidator.http.service import create_api
from invalidator.process.app import Invalidator
from tests.unit.invalidator.archive.archive_world import make_config

OPERATOR: Mapping[str, Grant] = {"s3cret-text": EVERYTHING}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path)


def ask(
    *authorizations: bytes, path: str = "/v1/status", method: str = "GET", grants: Mapping[str, Grant] = OPERATOR
) -> int:
    """The status of the answer to a request with these headers."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", value) for value in authorizations]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(TokenGate(PlainTextResponse("in"), grants)(scope, receive, send))
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


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that stops at the first token, or the first wrong byte, reveals by its time how much was right."""
    compared: list[bytes] = []

    def compare(brought: bytes, known: bytes) -> bool:
        compared.append(known)
        return compare_digest(brought, known)

    monkeypatch.setattr("invalidator.http.gates.hmac.compare_digest", compare)
    grants = {"first": EVERYTHING, "second": EVERYTHING, "third": EVERYTHING}
    for brought in ("first", "third", "none"):
        compared.clear()
        ask(b"Bearer " + brought.encode(), grants=grants)
        assert compared == [b"bearer first", b"bearer second", b"bearer third"]


# -- scopes --------------------------------------------------------------------------------------------------------

READ = ("/metrics", "/openapi.json", "/v1/status", "/v1/overview", "/v1/token", "/v1/topology")
STREAM = ("/v1/update-stream", "/v1/schemas/0123", "/v1/token", "/v1/topology")
ADMIN = ("/v1/invalidate", "/v1/topology")
ASKED = [
    *(("GET", path) for path in dict.fromkeys((*READ, *STREAM))),
    ("POST", "/v1/invalidate"),
    ("PUT", "/v1/topology"),
    *(
        ("GET", path)
        for path in ("/v1/invalidate", "/v1/schemas", "/v1/status/", "//v1/status", "/docs", "/redoc", "/v1")
    ),
    *((method, "/v1/status") for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "get")),
]


@pytest.mark.parametrize(
    ("scopes", "opened"),
    [
        ({"read"}, [("GET", path) for path in READ]),
        ({"stream"}, [("GET", path) for path in STREAM]),
        ({"admin"}, [("POST", "/v1/invalidate"), ("PUT", "/v1/topology")]),
        ({"read", "admin"}, [*(("GET", path) for path in READ), *(("POST", "/v1/invalidate"), ("PUT", ADMIN[1]))]),
        (set(), []),
    ],
)
def test_a_scope_opens_its_addresses_and_nothing_else(scopes: set[HttpScope], opened: list[tuple[str, str]]) -> None:
    grants = {"s3cret-text": Grant(frozenset(scopes), ("customers",))}
    for method, path in ASKED:
        status = ask(b"Bearer s3cret-text", path=path, method=method, grants=grants)
        assert status == (200 if (method, path) in opened else 403), (method, path)
        assert ask(b"Bearer s3cret-text", path=path, method=method) == 200, "the operator's token opens everything"


def test_every_address_of_the_service_has_a_scope(config: Config) -> None:
    """An address that is forgotten is opened by the operator's token alone."""
    invalidator = Invalidator(config)
    routes = create_api(invalidator, dict, reload=invalidator.change_topology).openapi()["paths"]
    served = {
        (method.upper(), path.replace("{schema_id}", ""))
        for path, methods in routes.items()
        for method in methods
        if path not in gates.OPEN_PATHS
    }
    described = {("GET", "/openapi.json")}
    assert served | described == set(gates.SCOPES)


# -- documents -----------------------------------------------------------------------------------------------------


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the document, and then waits for the client to go."""
    request = Request(scope, receive)
    await PlainTextResponse(await request.body())(scope, receive, send)
    assert (await receive())["type"] == "http.disconnect"


def send_pieces(*pieces: bytes | None, headers: dict[str, str] | None = None) -> tuple[int, bytes, int]:
    """The status and the body of the answer, and how many pieces were read. None: the client goes."""
    waiting: list[Message] = [
        {"type": "http.disconnect"}
        if piece is None
        else {"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]}
        for piece in pieces
    ]
    sent: list[Message] = []
    read = 0

    async def receive() -> Message:
        nonlocal read
        if read >= len(waiting):
            return {"type": "http.disconnect"}
        read += 1
        return waiting[read - 1]

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(name.encode(), text.encode()) for name, text in (headers or {}).items()],
    }
    asyncio.run(gates.BodyGate(echo)(scope, receive, send))
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]), read


LARGEST = gates.BODY_BYTES_MAX


@pytest.mark.parametrize(
    "pieces", [(b"",), (b"ab",), (b"a", b"", b"b"), (b"x" * LARGEST,), (b"x" * (LARGEST - 1), b"y")]
)
def test_a_document_comes_through_as_it_is(pieces: tuple[bytes, ...]) -> None:
    assert send_pieces(*pieces) == (200, b"".join(pieces), len(pieces))


def test_a_document_that_is_too_large_is_not_read_to_its_end() -> None:
    status, answer, read = send_pieces(b"x" * LARGEST, b"y", b"z")
    assert (status, read) == (413, 2)
    assert json.loads(answer)["detail"]["error"] == "DocumentTooLarge"
    status, _, read = send_pieces(b"x", headers={"content-length": str(LARGEST + 1)})
    assert (status, read) == (413, 0), "it says so before it is sent"
    for length in ("-1", "many", str(LARGEST)):
        assert send_pieces(b"x", headers={"content-length": length})[0] == 200


def test_a_client_that_goes_in_the_middle_is_seen_to_go() -> None:
    with pytest.raises(ClientDisconnect):
        send_pieces(b"x", None)


def test_a_document_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "BODY_SECONDS", 0.01)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(gates.BodyGate(echo)(scope, receive, send))
    assert sent[0]["status"] == 408
