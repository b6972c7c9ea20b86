"""The applications of docs/read-your-writes.md on real servers: a client sees what it has just written, though the
replica stands still."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import flask
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from appclient.flask import Freshness
from appclient.starlette import request_reads
from appclient.web import find_etag
from integration.appclient.test_read_your_writes import stopped_replica
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_for_hits
from integration.servers import Pair

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/read-your-writes.md"
HTTPS: Final = "https://shop.example"


@pytest.fixture
def system(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """``freshness.toml`` is in the folder that the process works in."""
    with running_system(pair, tmp_path, tables=(CUSTOMERS_TABLE,), objects=CUSTOMER) as running:
        monkeypatch.chdir(running.config_path.parent)
        running.execute("INSERT INTO customers VALUES (1, 'old', 0), (2, 'old', 0)")
        running.settle()
        cache = running.open_cache()
        wait_for_hits(cache, "customer", [1, 2], running.describe)
        cache.close()
        yield running


def read_example(heading: str, replaced: Mapping[str, str]) -> dict[str, Any]:
    """Run the page's code below that heading, and return its names."""
    found = re.search(rf"^## {heading}\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    names: dict[str, Any] = {"__name__": "shop"}
    code = found[1]
    for documented, here in {"webapp": "app", "change-me-2": "app", **replaced}.items():
        assert documented in code
        code = code.replace(documented, here)
    exec(compile(code, f"{PAGE.name}, {heading}", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
def test_fastapi(system: System, driver: str) -> None:
    replaced = {"3306": str(system.pair.primary.port), "asyncmy": driver}
    app = read_example("FastAPI and Starlette", replaced)["app"]

    async def show_tagged(request: Request) -> Response:
        customer = await (await request_reads(request)).get("customer", int(request.path_params["number"]))
        tag = {"etag": find_etag(customer)}
        if request.headers.get("if-none-match") == tag["etag"]:
            return Response(status_code=304, headers=tag)
        return JSONResponse(customer, headers=tag)

    app.router.add_route("/tagged/{number}", show_tagged)
    with TestClient(app, base_url=HTTPS) as client:
        check(system, client, Stranger(client))
        assert client.get("/customers/404").status_code == 404


class Stranger:
    """Another client of the same running application: it has none of the cookies."""

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def get(self, path: str, **options: Any) -> Any:
        cookies = dict(self._client.cookies)
        self._client.cookies.clear()
        try:
            return self._client.get(path, **options)
        finally:
            self._client.cookies.update(cookies)


def test_flask(system: System) -> None:
    names = read_example("Flask", {"3306": str(system.pair.primary.port)})
    app: flask.Flask = names["app"]
    fresh: Freshness = names["fresh"]

    @app.get("/tagged/<int:number>")
    def show_tagged(number: int) -> Any:
        customer = fresh.reads.get("customer", number)
        response = flask.jsonify(customer)
        response.headers["etag"] = find_etag(customer)
        return response.make_conditional(flask.request)

    check(system, app.test_client(), app.test_client())
    assert app.test_client().get("/customers/404").status_code == 404
    fresh.cache.close()


def test_sessions_of_sqlalchemy(system: System) -> None:
    names = read_example("Sessions of SQLAlchemy", {"3306": str(system.pair.primary.port)})
    app: flask.Flask = names["app"]
    with stopped_replica(system):
        writer, stranger = app.test_client(), app.test_client()
        assert name_of(stranger.get("/customers/1")) == "old"
        for name in ("new", "newer"):
            assert name_of(writer.put(f"/customers/1/{name}")) == name, "in the same request"
            assert name_of(writer.get("/customers/1")) == name, "in the next one"
    system.settle()
    assert name_of(stranger.get("/customers/1")) == "newer"
    names["fresh"].cache.close()


def check(system: System, writer: Any, stranger: Any) -> None:
    """``writer`` changes a row, ``stranger`` only reads. Both are clients of the same application."""
    before = writer.get("/tagged/1")
    assert name_of(before) == "old"
    tag = {"If-None-Match": before.headers["etag"]}
    assert writer.get("/tagged/1", headers=tag).status_code == 304
    with stopped_replica(system):
        for name in ("new", "newer"):
            assert name_of(writer.put(f"/customers/1/{name}")) == name, "in the same request"
            assert name_of(writer.get("/customers/1")) == name, "in the next one"
            seen = writer.get("/tagged/1", headers=tag)
            assert (seen.status_code, name_of(seen)) == (200, name)
        assert name_of(stranger.get("/customers/2")) == "old"
    system.settle()
    seen = stranger.get("/tagged/1")
    assert name_of(seen) == "newer"
    assert stranger.get("/tagged/1", headers={"If-None-Match": seen.headers["etag"]}).status_code == 304


def name_of(response: Any) -> Any:
    found = response.json
    return (found() if callable(found) else found)["name"]
