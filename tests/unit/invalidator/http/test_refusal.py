"""Refusals of the HTTP service: one shape, documented statuses, and no server error for what was asked wrongly."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Final, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshness.errors import ConfigError
from freshness.stream.source import Heartbeat
from invalidator.http import service
from invalidator.http.consumers import StreamHub
from invalidator.http.gates import EVERYTHING
from invalidator.http.service import create_api
from invalidator.process.app import Invalidator
from tests.unit.invalidator.archive.archive_world import CONFIG, make_config, make_registry, message
from tests.unit.invalidator.http.test_consumers import (
    ACCESS,
    LOCAL,
    STREAM,
    ScriptedOpener,
    ScriptedStream,
    client_of,
    insert,
    serving,
)

HTTP: Final = '[http]\nhosts = ["Cache.example"]\n'


@pytest.fixture
def opener(tmp_path: Path) -> ScriptedOpener:
    return ScriptedOpener(make_config(tmp_path, CONFIG + HTTP))


@pytest.fixture
def api(opener: ScriptedOpener, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """Everything but the servers is the real thing."""
    monkeypatch.setattr(service, "load_object", lambda config, _: make_registry(config))
    invalidator = Invalidator(opener.config)
    return create_api(invalidator, dict, streams=StreamHub(cast(Any, opener)), reload=invalidator.change_topology)


def require_shape(answer: Any) -> dict[str, str]:
    """A refusal as docs/update-stream.md has it. Returns its detail."""
    assert answer.keys() == {"detail"}
    detail: dict[str, str] = answer["detail"]
    assert detail.keys() == {"error", "message", "hint"}
    assert all(isinstance(text, str) for text in detail.values())
    return detail


# -- the shape -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "error", "message"),
    [
        ("GET", "/nowhere", 404, "NotFound", "GET /nowhere: Not Found"),
        ("DELETE", "/v1/status", 405, "MethodNotAllowed", "DELETE /v1/status: Method Not Allowed"),
        ("GET", f"{STREAM}?count=0", 422, "FormatError", "query.count: "),
        ("GET", f"{STREAM}?count=many", 422, "FormatError", "query.count: "),
        ("GET", f"{STREAM}?minimize_skew=perhaps", 422, "FormatError", "query.minimize_skew: "),
        ("GET", "/v1/token?keyspace=none", 400, "ConfigError", "there is no keyspace 'none'"),
    ],
)
def test_a_refusal_of_the_framework_is_like_ours(
    method: str, path: str, status: int, error: str, message: str, opener: ScriptedOpener
) -> None:
    response = client_of(opener).request(method, path)
    assert response.status_code == status
    detail = require_shape(response.json())
    assert detail["error"] == error
    assert detail["message"].startswith(message)
    assert ("allow" in response.headers) == (status == 405)


def test_every_method_of_an_address_is_allowed(api: FastAPI) -> None:
    response = TestClient(api, base_url=LOCAL).delete("/v1/topology")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, PUT")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b'{"object": "customer"}',
        b'{"object": "customer", "keys": []}',
        b'{"object": "customer", "keys": [[]]}',
        b'{"object": "customer", "keys": [[1]]}',
        b'{"object": "customer", "keys": [["1"]], "kyes": []}',
        b'{"object": "customer", "keys": [["1"]], "\\ud800": 0}',
        b'{"object": "\\ud800", "keys": [["1"]]}',
        b'{"object": NaN, "keys": ' + b"[" * 100_000,
    ],
)
def test_a_document_that_is_none(body: bytes, api: FastAPI) -> None:
    client = TestClient(api, base_url=LOCAL)
    response = client.post("/v1/invalidate", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    require_shape(response.json())


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("", [[""]], "unknown object ''"),
        ("nothing", [["1"]], "unknown object 'nothing'"),
        ("customer", [["1", "2"]], "a key of customer got 2 values"),
        ("customer", [["one"]], "column id (integer) got str"),
    ],
)
def test_keys_that_are_none(name: str, keys: list[list[str]], message: str, api: FastAPI) -> None:
    client = TestClient(api, base_url=LOCAL)
    response = client.post("/v1/invalidate", json={"object": name, "keys": keys})
    assert response.status_code == 400
    assert message in require_shape(response.json())["message"]


def test_a_bug_has_the_shape_too_and_is_not_hidden(opener: ScriptedOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(service, "load_object", fail)
    api = create_api(Invalidator(opener.config), dict, streams=StreamHub(cast(Any, opener)))
    document = {"object": "customer", "keys": [["1"]]}
    quiet = TestClient(api, base_url=LOCAL, raise_server_exceptions=False)
    response = quiet.post("/v1/invalidate", json=document)
    assert response.status_code == 500
    assert require_shape(response.json())["error"] == "ZeroDivisionError"
    assert "secret" not in response.text
    with pytest.raises(ZeroDivisionError):
        TestClient(api, base_url=LOCAL).post("/v1/invalidate", json=document)


# -- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        (f"{STREAM}?sinse=2026-01-01T00:00:00Z", f"{STREAM} takes no parameter 'sinse'", "did you mean since?"),
        (f"{STREAM}?since=now&since=now", "the parameter 'since' is given twice", "give it once"),
        ("/v1/token?shrad=-", "/v1/token takes no parameter 'shrad'", "did you mean shard?"),
        ("/v1/token?zzz", "/v1/token takes no parameter 'zzz'", "it takes keyspace, shard"),
        ("/v1/topology?shard=-", "/v1/topology takes no parameter 'shard'", "it takes none"),
    ],
)
def test_a_parameter_that_is_none(path: str, message: str, hint: str, opener: ScriptedOpener) -> None:
    response = client_of(opener).get(path)
    assert response.status_code == 400
    assert require_shape(response.json()) == {"error": "ConfigError", "message": message, "hint": hint}
    assert opener.asked == []


def test_a_prober_and_a_scraper_may_have_parameters_of_their_own(opener: ScriptedOpener) -> None:
    client = client_of(opener)
    assert client.get("/healthz?t=1").status_code == 200
    assert client.get("/metrics?t=1").status_code == 200


def test_lines_of_heartbeats_can_be_left_out(opener: ScriptedOpener) -> None:
    beat = message(1, heartbeats=(Heartbeat("host.1", 7, 1, 2, 3),))
    opener.streams = [ScriptedStream([beat, insert(2)]), ScriptedStream([beat, insert(2)])]
    with serving(opener) as running:
        every = running.lines(f"{STREAM}?count=2")
        changes = running.lines(f"{STREAM}?count=1&heartbeats=false")
    assert [line["op"] for line in every] == ["heartbeat", "insert"]
    assert changes == every[1:]


# -- names of hosts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8080", "127.8.9.10", "localhost:8080", "LocalHost", "[::1]", "[::1]:8080"),
        *("cache.example", "CACHE.example:443"),
    ],
)
def test_the_service_is_called_by_a_name_of_its_own(host: str, opener: ScriptedOpener) -> None:
    client = client_of(opener)
    for path in ("/healthz", "/metrics", "/v1/topology"):
        assert client.get(path, headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "cache.example.org", "::1", "", "a b", "[::1"]
)
def test_a_page_of_another_name_reaches_nothing(host: str, opener: ScriptedOpener) -> None:
    """The browser of somebody on the machine sends the name that was made to point to 127.0.0.1 (DNS rebinding)."""
    client = client_of(opener, reload=lambda _: pytest.fail("the topology was changed"))
    for method, path in (("GET", STREAM), ("PUT", "/v1/topology"), ("GET", "/nowhere"), ("GET", "/openapi.json")):
        response = client.request(method, path, headers={"host": host})
        assert response.status_code == 421
        assert "http.hosts" in require_shape(response.json())["hint"]
    assert opener.asked == []


def test_a_prober_that_sends_no_host_is_answered(opener: ScriptedOpener) -> None:
    with serving(opener) as running, socket.create_connection(("127.0.0.1", running.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_where_a_token_is_demanded_any_name_will_do(opener: ScriptedOpener) -> None:
    headers = {"host": "any.example", "authorization": f"Bearer {ACCESS}"}
    assert client_of(opener, grants={ACCESS: EVERYTHING}).get("/v1/topology", headers=headers).status_code == 200


@pytest.mark.parametrize("name", ["", "cache.example:8080", "*", "http://cache.example"])
def test_a_host_of_the_configuration_is_a_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http\.hosts\[0\]: .*expected a host name without a port"):
        make_config(tmp_path, f'{CONFIG}[http]\nhosts = ["{name}"]\n')


# -- anything ---------------------------------------------------------------------------------------------------

JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SHARD: Final = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("name", "primary", "replicas", "serving", "continues", "lineage"), JSON)
)
KEYSPACE: Final = st.fixed_dictionaries(
    {},
    optional={"flavor": st.sampled_from(["mysql", "mariadb", 7]), "shards": st.lists(SHARD) | JSON, "sharding": JSON},
)
DOCUMENTS: Final = st.one_of(
    JSON,
    st.fixed_dictionaries({"object": st.sampled_from(["customer", "profile", ""]), "keys": JSON}),
    st.fixed_dictionaries({"object": st.text(), "keys": st.lists(st.lists(st.text(max_size=9)))}),
    st.fixed_dictionaries({"keyspaces": st.dictionaries(st.text(max_size=5), KEYSPACE | JSON) | JSON}),
)
VALUES: Final = st.text(max_size=12) | st.sampled_from(
    ["now", "-", "-80", "80-40", "0", "1", "-1", "true", "fr1.", "ft1.AA", "2026-01-01T00:00:00Z", "shop"]
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_asked_has_a_documented_answer(api: FastAPI, opener: ScriptedOpener, data: st.DataObject) -> None:
    opener.streams = [ScriptedStream([insert(1), ConfigError("the end")])]
    client = TestClient(api, base_url=LOCAL)
    paths = api.openapi()["paths"]
    path = data.draw(st.sampled_from(sorted(paths)))
    method = data.draw(st.sampled_from(sorted(paths[path])))
    described = paths[path][method]
    names = [each["name"] for each in described.get("parameters", ()) if each["in"] == "query"]
    asked = data.draw(st.dictionaries(st.sampled_from(names) if names else st.text(), VALUES, max_size=4))
    body = {"json": data.draw(DOCUMENTS)} if "requestBody" in described else {}
    if "json" in body:
        body = {"content": json.dumps(body["json"]), "headers": {"content-type": "application/json"}}
    response = client.request(method, path, params=asked, **body)
    assert str(response.status_code) in described["responses"], response.text
    assert response.status_code != 500
    if response.status_code >= 400 and path != "/readyz":
        require_shape(response.json())
    kinds = described["responses"][str(response.status_code)].get("content", {})
    assert any(response.headers["content-type"].startswith(kind) for kind in kinds), response.headers
