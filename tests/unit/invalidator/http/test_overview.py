"""The overview over HTTP: once, as events, and the page. A viewer that reads nothing delays no other."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Route

from freshness.config.config import load_config
from integration.servers.process import find_free_port
from invalidator.http.gates import EVERYTHING, PAGE_FILES, Grant
from invalidator.http.overview import LARGE_BYTES, PAGE_HEADERS, OverviewEvents, OverviewFeed, ViewPolicy
from invalidator.http.service import HttpService, create_api
from invalidator.process.app import Invalidator
from tests.unit.invalidator.http.test_consumers import BOUND_SECONDS, wait_until

LOCAL = "http://127.0.0.1"
EVENTS = {"accept": "text/event-stream"}
OVERVIEW = "/v1/overview"
QUICK = ViewPolicy(period_seconds=0.05)


@pytest.fixture
def invalidator(tmp_path: Path) -> Invalidator:
    path = tmp_path / "freshness.toml"
    path.write_text(
        """[cache]
nodes = ["127.0.0.1:21"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app:s3cr3t@127.0.0.1:1/shop"
"""
    )
    return Invalidator(load_config(path, {}))


class Numbered:
    """An overview that counts how often it was made."""

    def __init__(self, rest: str = "") -> None:
        self.number = 0
        self.rest = rest

    def read(self) -> dict[str, Any]:
        self.number += 1
        return {"number": self.number, "rest": self.rest}


@contextmanager
def serving(invalidator: Invalidator, feed: OverviewFeed, **options: Any) -> Iterator[int]:
    """The port."""
    port = find_free_port()
    service = HttpService(create_api(invalidator, dict, overview=feed, **options), f"127.0.0.1:{port}")
    service.start()
    try:
        yield port
    finally:
        service.stop()


def get(port: int, path: str = OVERVIEW, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND_SECONDS)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def read_event(response: http.client.HTTPResponse) -> dict[str, Any]:
    name, data, empty = (response.readline().decode() for _ in range(3))
    assert (name, empty) == ("event: overview\n", "\n")
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return found


# -- the overview ------------------------------------------------------------------------------------------------


def test_it_is_asked_once(invalidator: Invalidator) -> None:
    client = TestClient(create_api(invalidator, dict), base_url=LOCAL)
    response = client.get(OVERVIEW)
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["namespace"] == "shop"
    assert "s3cr3t" not in response.text
    assert client.get(f"{OVERVIEW}?since=now").status_code == 400


def test_events_come_until_the_viewer_goes(invalidator: Invalidator) -> None:
    feed = OverviewFeed(Numbered("a\nline <b>").read, QUICK)
    with serving(invalidator, feed) as port:
        response = get(port, **EVENTS)
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")
        found = [read_event(response) for _ in range(3)]
        assert [each["number"] for each in found] == [1, 2, 3]
        assert found[0]["rest"] == "a\nline <b>"
        assert feed.count == 1
        response.close()
        wait_until(lambda: feed.count == 0)


def test_the_end_of_the_service_ends_the_events(invalidator: Invalidator) -> None:
    feed = OverviewFeed(Numbered().read, ViewPolicy(period_seconds=3600))
    with serving(invalidator, feed) as port:
        response = get(port, **EVENTS)
        assert read_event(response)["number"] == 1
    assert response.read() == b"", "it does not wait for the next event"
    assert feed.count == 0


def test_all_viewers_share_what_is_made(invalidator: Invalidator) -> None:
    made = Numbered()
    feed = OverviewFeed(made.read, ViewPolicy(period_seconds=3600))
    with serving(invalidator, feed) as port:
        first, second = get(port, **EVENTS), get(port, **EVENTS)
        assert [read_event(each)["number"] for each in (first, second)] == [1, 1]
    assert made.number == 1


def test_their_number_is_bounded_and_not_that_of_consumers(invalidator: Invalidator) -> None:
    feed = OverviewFeed(Numbered().read, ViewPolicy(period_seconds=0.05, viewers_max=2))
    with serving(invalidator, feed) as port:
        first, second = get(port, **EVENTS), get(port, **EVENTS)
        assert [read_event(each)["rest"] for each in (first, second)] == ["", ""]
        refused = get(port, **EVENTS)
        assert refused.status == 503
        detail = json.loads(refused.read())["detail"]
        assert (detail["error"], detail["message"]) == ("TooManyConsumers", "2 viewers are connected")
        assert detail["hint"]
        assert get(port).status == 200, "once is no stream"
        first.close()
        wait_until(lambda: feed.count == 1)
        again = get(port, **EVENTS)
        assert read_event(again)["number"] > 0


def test_a_viewer_that_reads_nothing_delays_no_other_and_is_cut_off(
    invalidator: Invalidator, caplog: pytest.LogCaptureFixture
) -> None:
    large = Numbered("x" * (1 << 20))
    feed = OverviewFeed(large.read, ViewPolicy(period_seconds=0.002, slow_seconds=1.0))
    with serving(invalidator, feed) as port:
        with closing(socket.create_connection(("127.0.0.1", port))) as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.sendall(
                f"GET {OVERVIEW} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            wait_until(lambda: feed.count == 1)
            reading = get(port, **EVENTS)
            numbers = [read_event(reading)["number"] for _ in range(5)]
            assert numbers == sorted({*numbers}), "they go on"
            reading.close()
            wait_until(lambda: feed.count == 0)
        assert "reads nothing and is cut off" in caplog.text


def test_a_large_overview_comes_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer gets no more bytes in a period than of a smaller one, so that a phone can follow."""
    sent: list[bytes] = []
    waited: list[float] = []
    ending = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message["body"])

    async def wait_for(waiting: Coroutine[Any, Any, Any], seconds: float) -> None:
        waited.append(seconds)
        ending.set()
        await waiting

    monkeypatch.setattr(asyncio, "wait_for", wait_for)
    for length in (0, 1 << 20):
        ending.clear()
        feed = OverviewFeed(Numbered("x" * length).read, ViewPolicy(period_seconds=2.0))
        asyncio.run(OverviewEvents(feed)._send_events(send, ending))
    small, end, large, _ = sent
    assert (len(small) < LARGE_BYTES < len(large), end) == (True, b"")
    assert waited == [2.0, 2.0 * len(large) / LARGE_BYTES]


# -- access ------------------------------------------------------------------------------------------------------

GRANTS = {"all": EVERYTHING, "some": Grant(frozenset({"stream"}), ("orders",))}


def test_the_page_is_open_and_the_overview_is_not(invalidator: Invalidator) -> None:
    client = TestClient(create_api(invalidator, dict, grants=GRANTS), base_url=LOCAL)
    assert {client.get(path).status_code for path in PAGE_FILES} == {200}
    assert client.get(OVERVIEW).status_code == 401
    assert client.get(OVERVIEW, headers=EVENTS).status_code == 401
    assert client.get(OVERVIEW, headers={"authorization": "Bearer some"}).status_code == 403
    assert client.get(OVERVIEW, headers={"authorization": "Bearer all"}).status_code == 200


@pytest.mark.parametrize("path", [*PAGE_FILES, OVERVIEW])
def test_a_page_of_another_name_gets_nothing(invalidator: Invalidator, path: str) -> None:
    client = TestClient(create_api(invalidator, dict), base_url="http://evil.example")
    assert client.get(path).status_code == 421


# -- the page ----------------------------------------------------------------------------------------------------


class Names(HTMLParser):
    """Everything that a page asks for, and the pieces that its policy would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refused: list[str] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.asked.append(value)
            if name == "style" or name.startswith("on"):
                self.refused.append(f"{tag} {name}")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style") and data.strip():
            self.refused.append(self._tag)


def test_the_page_asks_for_its_own_files_alone(invalidator: Invalidator) -> None:
    client = TestClient(create_api(invalidator, dict), base_url=LOCAL)
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    names = Names()
    names.feed(response.text)
    assert {f"/{name}" for name in names.asked} == PAGE_FILES.keys() - {"/"}
    assert names.refused == []


def test_it_is_the_only_page(invalidator: Invalidator) -> None:
    """Those of the web framework load scripts from other hosts."""
    api = create_api(invalidator, dict)
    own = {route.path for route in api.routes if isinstance(route, APIRoute)}
    beside = {route.path for route in api.routes if isinstance(route, Route)} - own
    assert beside == {api.openapi_url}
    client = TestClient(api, base_url=LOCAL)
    assert [client.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]


@pytest.mark.parametrize("path", PAGE_FILES)
def test_every_file_has_the_policy(invalidator: Invalidator, path: str) -> None:
    client = TestClient(create_api(invalidator, dict), base_url=LOCAL)
    response = client.get(path)
    assert response.headers["content-type"].split(";")[0] == PAGE_FILES[path][1]
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert not re.search(r"unsafe|https?:|\*", policy)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert {*PAGE_HEADERS} <= {*response.headers}
    assert [verb(path).status_code for verb in (client.post, client.put, client.delete)] == [405] * 3


def test_every_file_of_the_folder_is_served() -> None:
    folder = resources.files("invalidator.http").joinpath("dashboard")
    assert {each.name for each in folder.iterdir()} == {name for name, _ in PAGE_FILES.values()}


def test_the_script_makes_no_markup_of_data() -> None:
    """Names and errors hold the data of users. The browser tests show it; this says where to look."""
    script = resources.files("invalidator.http").joinpath("dashboard", "script.js").read_text()
    assert "textContent" in script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


def test_reading_waits_for_the_one_who_makes_it() -> None:
    """Two threads at once: it is made once."""
    entered, release = threading.Event(), threading.Event()
    made: list[int] = []

    def read() -> dict[str, Any]:
        made.append(1)
        entered.set()
        assert release.wait(BOUND_SECONDS)
        return {}

    feed = OverviewFeed(read, ViewPolicy(period_seconds=3600))
    found: list[bytes] = []
    ask: Callable[[], None] = lambda: found.append(feed.read_event())  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(BOUND_SECONDS)
    release.set()
    for thread in threads:
        thread.join()
    assert (len(made), len({*found})) == (1, 1)
