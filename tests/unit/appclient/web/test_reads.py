"""The commits of a client from one request to the next: the cookie, the header, Starlette and Flask. No server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import flask
import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from appclient import CommitToken, EventToken
from appclient.cache import Cache
from appclient.flask import Freshness
from appclient.starlette import ReadYourWrites, cache_lifespan, request_reads, thread_reads
from appclient.testing import FakeSystem
from appclient.web import AsyncRequestReads, RequestReads, TokenCookie, find_etag
from appclient.web.reads import _derive
from appclient.web.signed import sign_commit_token
from freshness.errors import ConfigError, FormatError
from freshness.position import parse_position
from tests.unit.appclient.test_cache import CONFIG

ThreadReads = Annotated[RequestReads, Depends(thread_reads)]
LoopReads = Annotated[AsyncRequestReads, Depends(request_reads)]
SECRET = "a secret of the application"
COOKIE = TokenCookie([SECRET], secure=False)


def token(number: int, lineage: str = "shop/-") -> CommitToken:
    return CommitToken.of([EventToken(lineage, "-", 1, 0, parse_position("mariadb", f"0-1-{number}"))])


# -- the text ---------------------------------------------------------------------------------------------


def test_a_token_comes_back() -> None:
    assert COOKIE.parse(COOKIE.format(token(5))) == token(5)
    assert COOKIE.parse(None, "") is None
    assert COOKIE.parse(COOKIE.format(token(5)), COOKIE.format(token(7))) == token(7), (
        "of the cookie and of the header"
    )


def test_a_text_that_was_forged_or_signed_by_another_counts_as_none() -> None:
    text = COOKIE.format(token(5))
    assert text is not None
    assert COOKIE.parse(text[:-1]) is None
    assert TokenCookie(["another secret of another application"]).parse(text) is None
    assert COOKIE.parse("rubbish", text) == token(5), "the others are read all the same"


def test_a_text_that_is_too_old_counts_as_none() -> None:
    signed = sign_commit_token(token(5), _derive(SECRET), clock=lambda: time.time() - 62)
    assert COOKIE.parse(signed) is None
    assert TokenCookie([SECRET], seconds=3600).parse(signed) == token(5)


@pytest.mark.parametrize("seconds", [0, -1, 0.5, float("nan"), float("inf"), "60", None])
def test_seconds_that_are_no_number_from_1_on_are_refused(seconds: Any) -> None:
    """Else each request with a cookie fails, or none has its commits."""
    with pytest.raises(ConfigError, match="at least 1"):
        TokenCookie([SECRET], seconds=seconds)


def test_a_secret_can_be_replaced() -> None:
    renewed = TokenCookie(["a new secret", SECRET])
    assert renewed.parse(COOKIE.format(token(5))) == token(5)
    assert COOKIE.parse(renewed.format(token(5))) is None


@pytest.mark.parametrize("secrets", [[], "a text", b"bytes", [""]])
def test_no_secret_is_refused(secrets: Any) -> None:
    with pytest.raises(ConfigError, match="no secret"):
        TokenCookie(secrets)


def test_a_token_that_fits_no_cookie_is_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    text = ",".join(f"{domain}-1-{domain}" for domain in range(1, 3000))
    large = CommitToken.of([EventToken("shop/-", "-", 1, 0, parse_position("mariadb", text))])
    assert COOKIE.format(large) is None
    assert "are not sent to its client" in caplog.text


def test_the_commits_of_several_shards_are_kept_together() -> None:
    reads = RequestReads(Reader(), token(5))
    assert not reads.is_new
    reads.add(token(3, "shop/80-"))
    assert reads.is_new
    assert reads.token == token(5).union(token(3, "shop/80-"))


def test_a_read_can_ask_for_more_commits_than_the_clients() -> None:
    reader = Reader()
    reads = RequestReads(reader, token(5))
    reads.get("customer", 1, at_least=token(3, "shop/80-"))
    reads.get_many("customer", [1], at_least=token(7).format())
    RequestReads(reader).get("customer", 1, at_least=token(3))
    assert reader.asked == [token(5).union(token(3, "shop/80-")), token(7), token(3)]
    with pytest.raises(FormatError):
        reads.get("customer", 1, at_least="no token")


@dataclass
class Customer:
    id: int


def test_instances_have_the_commits_of_the_client(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    replica = 'replicas = ["mysql://app@127.0.0.1:2/shop"]\n[objects.customer]'
    path.write_text(CONFIG.replace("[objects.customer]", replica))
    system = FakeSystem(path, "CREATE TABLE customers (id INTEGER PRIMARY KEY);")
    system.stop_replication()
    with system.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO customers VALUES (1)")
        connection.commit()
        reads = RequestReads(system.cache)
        reads.committed(connection)

    async def on_a_loop(token: CommitToken | None) -> list[Any]:
        on_loop = AsyncRequestReads(await system.open_async(), token).of("customer", Customer)
        return [await on_loop.get(1), await on_loop.get_many([1, 2])]

    assert asyncio.run(on_a_loop(None)) == [None, {1: None, 2: None}], "the replica is late"
    assert asyncio.run(on_a_loop(reads.token)) == [Customer(1), {1: Customer(1), 2: None}]
    assert reads.of("customer", Customer).get(1) == Customer(1)
    assert reads.of("customer", Customer).get_many([1, 2]) == {1: Customer(1), 2: None}
    with pytest.raises(ConfigError, match="unknown object"):
        reads.of("nothing", Customer)
    system.close()


# -- the entity tag ----------------------------------------------------------------------------------------


def test_equal_values_have_one_tag_and_others_have_others() -> None:
    one = find_etag({"id": 1, "day": date(2026, 1, 1)})
    assert one == find_etag({"id": 1, "day": date(2026, 1, 1)})
    assert len({one, find_etag({"id": 1, "day": "2026-01-01"}), find_etag({"id": 1}), find_etag(None)}) == 4
    assert (one[0], one[-1], len(one)) == ('"', '"', 34)
    with pytest.raises(FormatError):
        find_etag(object())


# -- Starlette and FastAPI ---------------------------------------------------------------------------------


class Reader(Cache):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[CommitToken | None] = []
        self.is_closed = False

    def get(self, object_name: str, key: Any, **options: Any) -> Any:
        self.asked.append(options["at_least"])
        return {"id": key}

    def get_many(self, object_name: str, keys: Any, **options: Any) -> Any:
        self.asked.append(options["at_least"])
        return {key: {"id": key} for key in keys}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader()
    monkeypatch.setattr(Cache, "open", lambda *_, **__: reader)
    return reader


def make_app(lifespan: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan)
    app.add_middleware(ReadYourWrites, cookie=COOKIE)

    @app.get("/customers/{number}")
    def show(number: int, reads: ThreadReads) -> Any:
        reads.get_many("customer", [number])
        return reads.get("customer", number)

    @app.post("/customers/{number}")
    def rename(number: int, reads: ThreadReads) -> Any:
        reads.add(token(number))
        reads.add(None)
        return reads.get("customer", number)

    @app.get("/on_loop")
    async def on_loop(reads: LoopReads) -> None:
        """Not there: the cache is one of threads."""

    return app


def test_a_client_reads_its_own_commits_until_they_are_old(reader: Reader) -> None:
    with TestClient(make_app(cache_lifespan(in_threads=True))) as client:
        first = client.get("/customers/1")
        assert (first.json(), reader.asked) == ({"id": 1}, [None, None])
        assert "set-cookie" not in first.headers, "nothing was committed"
        assert first.headers["vary"] == "Cookie, Freshness-Token", "a client with a token is not to have it"
        assert "vary" not in client.get("/openapi.json").headers, "it reads nothing"
        written = client.post("/customers/5")
        assert reader.asked[2:] == [token(5)], "the rest of the request reads it, too"
        assert written.headers["vary"] == "Cookie, Freshness-Token"
        cookie = written.headers["set-cookie"].lower()
        assert all(part in cookie for part in ("httponly", "max-age=60", "samesite=lax"))
        assert "secure" not in cookie
        again = client.get("/customers/1")
        assert reader.asked[3:] == [token(5), token(5)]
        assert "set-cookie" not in again.headers, "the client has it already"
        client.post("/customers/7")
        client.get("/customers/1")
        assert reader.asked[-1] == token(7), "0-1-7 has 0-1-5, too"
    assert reader.is_closed


def test_a_client_without_cookies_sends_the_header(reader: Reader) -> None:
    with TestClient(make_app(cache_lifespan(in_threads=True))) as client:
        text = client.post("/customers/5").headers["freshness-token"]
        client.cookies.clear()
        client.get("/customers/1", headers={"Freshness-Token": text})
        assert reader.asked[-1] == token(5)
        client.get("/customers/1", headers={"Freshness-Token": text + "x"})
        assert reader.asked[-1] is None, "forged"


def test_what_is_missing_is_said(reader: Reader) -> None:
    with TestClient(make_app(None)) as client, pytest.raises(ConfigError, match="has no cache"):
        client.get("/customers/1")
    app = make_app(cache_lifespan(in_threads=True))
    with TestClient(app) as client, pytest.raises(ConfigError, match="no AsyncRequestReads"):
        client.get("/on_loop")


# -- Flask -------------------------------------------------------------------------------------------------


def make_flask(**config: Any) -> tuple[flask.Flask, Freshness]:
    app = flask.Flask("shop")
    app.config.update({"SECRET_KEY": SECRET, **config})
    fresh = Freshness(app)

    @app.get("/customers/<int:number>")
    def show(number: int) -> Any:
        return fresh.reads.get("customer", number)

    @app.post("/customers/<int:number>")
    def rename(number: int) -> Any:
        fresh.reads.add(token(number))
        return fresh.reads.get("customer", number)

    @app.get("/nothing")
    def nothing() -> str:
        return ""

    return app, fresh


def test_a_client_of_flask_reads_its_own_commits(reader: Reader) -> None:
    app, _ = make_flask()
    client = app.test_client()
    first = client.get("/customers/1")
    assert (first.json, first.headers["Vary"]) == ({"id": 1}, "Cookie, Freshness-Token")
    written = client.post("/customers/5")
    assert written.headers["Vary"] == "Cookie, Freshness-Token"
    assert "Secure" not in written.headers["Set-Cookie"]
    again = client.get("/customers/1")
    assert "Set-Cookie" not in again.headers
    assert reader.asked == [None, token(5), token(5)]
    assert "Vary" not in client.get("/nothing").headers
    without = app.test_client()
    without.get("/customers/1", headers={"Freshness-Token": written.headers["Freshness-Token"]})
    assert reader.asked[-1] == token(5)


def test_a_commit_in_an_inner_context_of_flask_reaches_the_client(reader: Reader) -> None:
    app, fresh = make_flask()

    @app.post("/inner/<int:number>")
    def inner(number: int) -> Any:
        with app.app_context():
            fresh.reads.add(token(number))
        return fresh.reads.get("customer", number)

    client = app.test_client()
    assert "Set-Cookie" in client.post("/inner/5").headers
    client.get("/customers/1")
    assert reader.asked == [token(5), token(5)]


def test_a_view_of_flask_that_raises_after_its_commit_tells_it(reader: Reader) -> None:
    app, fresh = make_flask(PROPAGATE_EXCEPTIONS=False)

    @app.post("/raises/<int:number>")
    def raises(number: int) -> Any:
        fresh.reads.add(token(number))
        raise ValueError

    client = app.test_client()
    failed = client.post("/raises/5")
    assert (failed.status_code, "Set-Cookie" in failed.headers) == (500, True)


def test_the_options_of_flask(reader: Reader) -> None:
    app, fresh = make_flask(
        SESSION_COOKIE_SECURE=True, FRESHNESS_TOKEN_SECONDS=90, SECRET_KEY_FALLBACKS=["the secret before"]
    )
    assert (fresh.cookie.seconds, fresh.cookie.secrets) == (90, [SECRET, "the secret before"])
    assert app.extensions["freshness"] is fresh
    client = app.test_client()
    assert "Secure" in client.post("/customers/5").headers["Set-Cookie"]


def test_flask_without_a_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no secret key"):
        Freshness(flask.Flask("shop"))
