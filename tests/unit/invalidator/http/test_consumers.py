"""The update stream over HTTP, on real sockets and scripted streams: lines, events, limits, slow readers, access."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import pytest
from fastapi.testclient import TestClient

from freshness.config.config import Config
from freshness.config.http import HttpScope
from freshness.errors import ConfigError, FormatError, FreshnessError, HistoryPurged, SourceUnavailable, StreamStopped
from freshness.keys.keyrange import KeyRange
from freshness.position.token import EventToken
from freshness.stream.resume import RefreshPlace, ResumeVector
from freshness.stream.schema import TableColumn, TableSchema
from freshness.stream.source import RowChange
from integration.servers.process import find_free_port
from invalidator.http.consumers import ServePolicy, StreamHub
from invalidator.http.gates import EVERYTHING, Grant, read_grants
from invalidator.http.service import HttpService, create_api
from invalidator.process.app import Invalidator
from invalidator.stream.json_lines import LineReader
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.message import StreamMessage
from invalidator.stream.query import RefreshRequest, StreamQuery
from tests.unit.invalidator.archive.archive_world import CONFIG, make_config, message, start, token

BOUND_SECONDS = 30.0
ACCESS = "s3same-opens"
LOCAL = "http://127.0.0.1"


def insert(number: int, size: int = 1) -> StreamMessage:
    return message(number, RowChange("customers", "insert", None, {"id": number, "v": "x" * size}))


@dataclass
class ScriptedStream:
    """Delivers its script, and then waits. ``endless``: the size of rows that keep coming after that."""

    messages: list[StreamMessage | FreshnessError] = field(default_factory=list)
    endless: int = 0
    delivered: int = 0
    is_closed: bool = False
    tokens: dict[str, EventToken] = field(default_factory=lambda: start(0))

    @property
    def resume(self) -> ResumeVector:
        return ResumeVector("shop", KeyRange(), self.tokens)

    def poll(self, timeout_seconds: float) -> StreamMessage | None:
        if self.delivered < len(self.messages):
            each = self.messages[self.delivered]
            if isinstance(each, FreshnessError):
                raise each
        elif self.endless:
            each = insert(self.delivered + 1, self.endless)
        else:
            threading.Event().wait(min(timeout_seconds, 0.02))
            return None
        self.delivered += 1
        self.tokens = dict(each.resume)
        return each

    def close(self) -> None:
        self.is_closed = True


@dataclass
class ScriptedOpener:
    """Opens the streams that it was given, in their order."""

    config: Config
    streams: list[ScriptedStream | FreshnessError] = field(default_factory=list)
    asked: list[StreamQuery] = field(default_factory=list)
    followed: int = 0

    @property
    def read_config(self) -> Callable[[], Config]:
        return lambda: self.config

    def open(self, query: StreamQuery) -> ScriptedOpened:
        self.asked.append(query)
        stream = self.streams.pop(0)
        if isinstance(stream, FreshnessError):
            raise stream
        return ScriptedOpened(stream, self)

    def read_token(self, keyspace_name: str | None, shard_name: str | None) -> EventToken:
        if keyspace_name == "none":
            raise ConfigError("there is no keyspace 'none'", hint="one of shop")
        return token(7, everything=True)


@dataclass
class ScriptedOpened:
    stream: ScriptedStream
    opener: ScriptedOpener
    layouts: LayoutBook = field(default_factory=lambda: LayoutBook(lambda _: {}))

    def follow(self) -> None:
        self.opener.followed += 1


@pytest.fixture
def opener(tmp_path: Path) -> ScriptedOpener:
    return ScriptedOpener(make_config(tmp_path, f"{CONFIG}[http]\nconsumers_max = 2\n"))


@dataclass
class Service:
    port: int
    hub: StreamHub

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_SECONDS)
        connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        return connection.getresponse()

    def lines(self, path: str, **headers: str) -> list[dict[str, Any]]:
        response = self.get(path, **headers)
        assert response.status == 200, response.read()
        return [json.loads(line) for line in response.read().splitlines()]

    def wait_empty(self) -> None:
        wait_until(lambda: self.hub.count == 0)


def wait_until(ask: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not ask():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.01)


@contextmanager
def serving(opener: ScriptedOpener, policy: ServePolicy | None = None, **options: Any) -> Iterator[Service]:
    hub = StreamHub(cast(Any, opener), policy)
    api = create_api(Invalidator(opener.config), dict, streams=hub, **options)
    port = find_free_port()
    service = HttpService(api, f"127.0.0.1:{port}")
    service.start()
    try:
        yield Service(port, hub)
    finally:
        service.stop()


STREAM = "/v1/update-stream"


# -- lines and events --------------------------------------------------------------------------------------------


def test_lines_are_those_of_the_stream(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1), insert(2), insert(3)])]
    with serving(opener) as service:
        response = service.get(f"{STREAM}?keyspace=shop&key_range=-80&since=now&minimize_skew=true&count=2")
        data = response.read()
        service.wait_empty()
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["cache-control"] == "no-store"
    reader = LineReader()
    found = [each for line in data.splitlines(keepends=True) for each in reader.feed(line)]
    assert found == [insert(1), insert(2)]
    assert opener.asked == [StreamQuery("shop", "-80", minimize_skew=True, refresh=RefreshRequest(), count=2)]


def test_events_have_the_resume_text_as_their_id(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1)])]
    with serving(opener) as service:
        response = service.get(f"{STREAM}?count=1&since=now", accept="text/event-stream", last_event_id="fr1.x")
        text = response.read().decode()
    assert response.headers["content-type"].startswith("text/event-stream")
    head, name, data, empty = text.split("\n")[:4]
    assert (head, name, empty) == (f"id: {insert(1).vector.format()}", "event: update", "")
    assert json.loads(data.removeprefix("data: "))["gtid"] == str(token(1).position)
    [query] = opener.asked
    assert query.since == "fr1.x", "what a browser has seen counts, not where it began"


def test_an_empty_start_is_handed_on_and_not_taken_for_now(opener: ScriptedOpener) -> None:
    """A variable of a shell that is not set would lose all changes until now."""
    opener.streams = [ScriptedStream([insert(1)]), ScriptedStream([insert(1)])]
    with serving(opener) as service:
        service.get(f"{STREAM}?count=1&since=").read()
        service.get(f"{STREAM}?count=1").read()
    assert [query.since for query in opener.asked] == ["", "now"], "the opener refuses the one"


def test_an_idle_stream_says_where_it_is(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([message(5)])]
    with serving(opener, ServePolicy(idle_seconds=0.1)) as service:
        response = service.get(STREAM)
        wanted = message(5).vector.format()
        for _ in range(100):
            line = json.loads(response.readline())
            assert line["event"] == "heartbeat"
            if line["resume"] == wanted:
                break
        response.close()
        service.wait_empty()
    assert line["resume"] == wanted
    assert line["keyspace"] == "shop"
    assert line["min_timestamp"] == pytest.approx(message(5).resume["shop/-"].timestamp_us / 1e6)


def test_an_error_is_the_last_line_and_says_where_to_go_on(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1), StreamStopped("an event", hint="look")])]
    with serving(opener) as service:
        update, error = service.lines(STREAM)
        service.wait_empty()
    assert error == {
        "event": "error",
        "error": "StreamStopped",
        "message": "an event",
        "hint": "look",
        "resume": update["resume"],
    }


def test_the_end_of_the_service_is_told(opener: ScriptedOpener) -> None:
    stream = ScriptedStream([insert(1)])
    opener.streams = [stream]
    with serving(opener) as service:
        response = service.get(STREAM)
        update = json.loads(response.readline())
    end = json.loads(response.read())
    assert end == {"event": "end", "reason": "the service stops", "resume": update["resume"]}
    assert stream.is_closed


def test_the_configuration_is_looked_at_all_the_time(opener: ScriptedOpener) -> None:
    """What a change of it does is the opened stream's: ``test_stream_access``."""
    opener.streams = [ScriptedStream()]
    with serving(opener) as service:
        response = service.get(STREAM)
        wait_until(lambda: opener.followed >= 3)
        response.close()
        service.wait_empty()


# -- limits ----------------------------------------------------------------------------------------------------------


@contextmanager
def reading_nothing(service: Service) -> Iterator[socket.socket]:
    """A client that has asked and does not read, with little room in its own buffers."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(BOUND_SECONDS)
        client.connect(("127.0.0.1", service.port))
        client.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield client


def read_lines(client: socket.socket) -> list[dict[str, Any]]:
    """All lines of a chunked response, to its end."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return [json.loads(line) for line in response.read().splitlines()]


def test_a_slow_consumer_is_disconnected_with_its_place_and_slows_nobody(opener: ScriptedOpener) -> None:
    slow, quick = ScriptedStream(endless=50_000), ScriptedStream(endless=50_000)
    opener.streams = [slow, quick]
    policy = ServePolicy(buffer_bytes_max=1 << 20, slow_seconds=1.0, drain_seconds=BOUND_SECONDS)
    with serving(opener, policy) as service, reading_nothing(service) as client:
        wait_until(lambda: slow.delivered > 0)
        response = service.get(STREAM)
        while not slow.is_closed:
            assert json.loads(response.readline())["event"] == "update"
        while quick.delivered <= 2 * slow.delivered:
            assert json.loads(response.readline())["event"] == "update"
        response.close()
        *updates, end = read_lines(client)
        service.wait_empty()
    assert [line["row"] for line in updates] == [0] * len(updates)
    assert end == {"event": "end", "reason": "too slow: the buffer stayed full", "resume": updates[-1]["resume"]}
    assert [line["gtid"] for line in updates] == [str(token(n).position) for n in range(1, len(updates) + 1)]


def test_a_consumer_that_never_reads_is_cut_off(opener: ScriptedOpener) -> None:
    stream = ScriptedStream(endless=200_000)
    opener.streams = [stream]
    policy = ServePolicy(buffer_bytes_max=1 << 20, slow_seconds=0.3, drain_seconds=0.3)
    with serving(opener, policy) as service, reading_nothing(service):
        wait_until(lambda: stream.delivered > 0)
        service.wait_empty()
    assert stream.is_closed
    assert stream.delivered < 200, "what waits for a consumer is bounded"


def test_a_line_larger_than_the_buffer_passes(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1, 300_000), insert(2)])]
    with serving(opener, ServePolicy(buffer_bytes_max=1000)) as service:
        lines = service.lines(f"{STREAM}?count=2")
    assert [len(line["after"]["v"]) for line in lines] == [300_000, 1]


def test_a_consumer_that_goes_frees_its_place(opener: ScriptedOpener) -> None:
    stream = ScriptedStream()
    opener.streams = [stream]
    with serving(opener) as service:
        response = service.get(STREAM)
        assert service.hub.count == 1
        response.close()
        service.wait_empty()
        wait_until(lambda: stream.is_closed)


def test_consumers_are_limited(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream(), ScriptedStream(), ScriptedStream([insert(1)])]
    with serving(opener) as service:
        first, second = service.get(STREAM), service.get(STREAM)
        refused = service.get(STREAM)
        assert refused.status == 503
        assert refused.headers["retry-after"] == "5"
        assert json.loads(refused.read())["detail"]["error"] == "TooManyConsumers"
        first.close()
        second.close()
        service.wait_empty()
        assert len(service.lines(f"{STREAM}?count=1")) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("no such keyspace"), 400),
        (FormatError("not a resume text"), 400),
        (HistoryPurged("gone"), 410),
        (SourceUnavailable("down"), 503),
        (StreamStopped("damaged"), 500),
    ],
)
def test_what_cannot_be_opened_is_refused(error: FreshnessError, status: int, opener: ScriptedOpener) -> None:
    opener.streams = [error]
    with serving(opener) as service:
        response = service.get(STREAM)
        assert response.status == status
        assert json.loads(response.read())["detail"]["message"] == error.message
        assert service.hub.count == 0


def test_a_wrong_parameter_is_refused(opener: ScriptedOpener) -> None:
    with serving(opener) as service:
        assert service.get(f"{STREAM}?count=-1").status == 422


# -- tokens, topology, access ----------------------------------------------------------------------------------------


def client_of(opener: ScriptedOpener, **options: Any) -> TestClient:
    return TestClient(
        create_api(Invalidator(opener.config), dict, streams=StreamHub(cast(Any, opener)), **options), base_url=LOCAL
    )


def test_the_head_of_a_shard_is_a_token(opener: ScriptedOpener) -> None:
    client = client_of(opener)
    answer = client.get("/v1/token?keyspace=shop&shard=-").json()
    assert EventToken.parse(answer["token"]) == token(7, everything=True)
    assert (answer["lineage"], answer["epoch"]) == ("shop/-", 1)
    assert client.get("/v1/token?keyspace=none").status_code == 400


def test_the_topology_has_no_password(opener: ScriptedOpener) -> None:
    response = client_of(opener).get("/v1/topology")
    [shard] = response.json()["keyspaces"]["shop"]["shards"]
    assert (shard["name"], shard["primary"]) == ("-", "app@127.0.0.1:1/shop")
    assert "s3cr3t" not in response.text


def test_the_topology_is_only_put_where_somebody_takes_it(opener: ScriptedOpener) -> None:
    assert client_of(opener).put("/v1/topology", json={}).status_code == 405
    taken: list[dict[str, Any]] = []

    def reload(document: dict[str, Any]) -> dict[str, Any]:
        if not document:
            raise ConfigError("no keyspaces", hint="send the whole topology")
        taken.append(document)
        return {"changed": ["shop/-"]}

    client = client_of(opener, reload=reload)
    assert client.put("/v1/topology", json={"keyspaces": {}}).json() == {"changed": ["shop/-"]}
    assert taken == [{"keyspaces": {}}]
    assert client.put("/v1/topology", json={}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/status", "/metrics", "/v1/topology", STREAM, "/openapi.json"])
def test_everything_but_the_probes_demands_the_token(path: str, opener: ScriptedOpener) -> None:
    client = client_of(opener, grants={ACCESS: EVERYTHING})
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {ACCESS}"},
        {"authorization": f"Bearer {ACCESS}x"},
        {"authorization": ACCESS},
    ):
        response = client.get(path, headers=headers)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert ACCESS not in response.text
    assert opener.asked == []


def test_the_token_opens_and_probes_need_none(opener: ScriptedOpener) -> None:
    client = client_of(opener, grants={ACCESS: EVERYTHING})
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503
    for scheme in ("Bearer", "bearer"):
        assert client.get("/v1/topology", headers={"authorization": f"{scheme} {ACCESS}"}).status_code == 200


def test_other_than_loopback_demands_a_token(opener: ScriptedOpener) -> None:
    api = create_api(Invalidator(opener.config), dict, streams=StreamHub(cast(Any, opener)))
    with pytest.raises(ConfigError, match="not a loopback address"):
        HttpService(api, "0.0.0.0:8080")


def test_the_access_token_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{ACCESS}\nnot this\n")
    config = make_config(tmp_path, f'{CONFIG}[http]\nlisten = "0.0.0.0:8080"\ntoken_file = "token"\n')
    assert read_grants(config) == {ACCESS: EVERYTHING}
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigError, match=r"http\.token_file: "):
        read_grants(config)
    assert read_grants(make_config(tmp_path)) == {}


# -- what a consumer asks for, and what it may see -----------------------------------------------------------------


def test_tables_columns_and_images_are_chosen(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1)]), ScriptedStream([insert(1)])]
    client = client_of(opener)
    lines = client.get(f"{STREAM}?count=1&tables=customers,%20order_*&columns=orders.id,id").text
    assert json.loads(lines)["after"] == {"id": 1}
    client.get(f"{STREAM}?count=1")
    assert [query.tables for query in opener.asked] == [("customers", "order_*"), ()]
    for wrong in ("tables=", "tables=a,,b", "columns=,", "images=none"):
        assert client.get(f"{STREAM}?{wrong}").status_code in (400, 422)
    assert len(opener.asked) == 2


def test_a_refresh_is_asked_for_and_a_browser_that_comes_back_does_not_ask_again(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1)]) for _ in range(3)]
    client = client_of(opener)
    asked = f"{STREAM}?count=1&refresh=orders,%20notes&refresh_from=replica&refresh_rows_per_second=100"
    client.get(f"{asked}&refresh_chunk_rows=10")
    client.get(asked, headers={"last-event-id": "fr1.AA"})
    client.get(f"{STREAM}?count=1")
    assert [query.refresh for query in opener.asked] == [
        RefreshRequest(("orders", "notes"), "replica", 100.0, 10),
        RefreshRequest((), "replica", 100.0),
        RefreshRequest(),
    ]
    for wrong in ("refresh=", "refresh_from=x", "refresh_rows_per_second=0", "refresh_chunk_rows=0"):
        assert client.get(f"{STREAM}?{wrong}").status_code in (400, 422)
    assert len(opener.asked) == 3


def test_rows_of_a_refresh_and_its_end_have_lines(opener: ScriptedOpener) -> None:
    place = RefreshPlace(("customers",), {})
    row = RowChange("customers", "refresh", None, {"id": 7, "v": "now"})
    first = insert(1)
    read = replace(first, transaction=first.transaction._replace(changes=(row,)), refresh=place, is_refresh=True)
    end = replace(first, transaction=first.transaction._replace(changes=()), is_refresh=True)
    opener.streams = [ScriptedStream([replace(first, refresh=place), read, end])]
    lines = [json.loads(text) for text in client_of(opener).get(f"{STREAM}?count=3").text.splitlines()]
    assert [(line["event"], line.get("op"), line.get("row")) for line in lines] == [
        ("update", "insert", 0),
        ("update", "refresh", -1),
        ("refreshed", None, None),
    ]
    assert lines[1]["after"] == {"id": 7, "v": "now"}
    assert lines[1]["last"]
    assert [line["resume"][:4] for line in lines] == ["rf1.", "rf1.", "fr1."]


OWN = {"authorization": "Bearer reports"}
STREAMS: Final[frozenset[HttpScope]] = frozenset({"stream"})
REPORTS = {ACCESS: EVERYTHING, "reports": Grant(STREAMS, ("orders", "order_*", "note?"), ("customers.v",))}


def test_the_token_of_a_consumer_opens_its_tables_alone(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1)]) for _ in range(3)]
    client = client_of(opener, grants=REPORTS)
    for wanted in ("", "&tables=orders", "&tables=order_lines,order_*"):
        assert client.get(f"{STREAM}?count=1{wanted}", headers=OWN).status_code == 200
    assert [query.tables for query in opener.asked] == [
        ("orders", "order_*", "note?"),
        ("orders",),
        ("order_lines", "order_*"),
    ]
    for wanted in ("customers", "orders,customers", "*", "o*", "order*", "note*"):
        answer = client.get(f"{STREAM}?count=1&tables={wanted}", headers=OWN)
        assert (answer.status_code, answer.json()["detail"]["error"]) == (403, "NotAllowed")
    assert len(opener.asked) == 3


def test_the_token_of_a_consumer_opens_no_other_address(opener: ScriptedOpener) -> None:
    client = client_of(opener, grants=REPORTS, reload=lambda _: pytest.fail("the topology was changed"))
    for method, path in (
        ("PUT", "/v1/topology"),
        ("POST", "/v1/invalidate"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ):
        assert client.request(method, path, headers=OWN).status_code == 403
    assert client.get("/v1/topology", headers=OWN).status_code == 200
    assert client.get("/v1/topology", headers={"authorization": "Bearer others"}).status_code == 401


def test_a_hidden_column_never_comes(opener: ScriptedOpener) -> None:
    opener.streams = [ScriptedStream([insert(1)]) for _ in range(2)]
    client = client_of(opener, grants=REPORTS)
    for wanted in ("", "&columns=v,id"):
        assert json.loads(client.get(f"{STREAM}?count=1{wanted}", headers=OWN).text)["after"] == {"id": 1}


CLIENTS = """[http]
token_file = "token"
[http.clients.reports]
token_file = "reports"
scopes = ["stream"]
tables = ["orders"]
hidden_columns = ["email"]
"""


def test_the_tokens_of_clients_are_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(ACCESS)
    (tmp_path / "reports").write_text("reports\n")
    config = make_config(tmp_path, CONFIG + CLIENTS)
    assert read_grants(config) == {ACCESS: EVERYTHING, "reports": Grant(STREAMS, ("orders",), ("email",))}
    (tmp_path / "reports").write_text(ACCESS)
    with pytest.raises(ConfigError, match=r"http\.clients\.reports\.token_file: another file has the same"):
        read_grants(config)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (CLIENTS.replace('token_file = "token"\n', ""), r"http\.token_file: found nothing"),
        (CLIENTS.replace('["orders"]', "[]"), r"reports\.tables: found nothing; expected at least one table"),
        (CLIENTS.replace('"stream"', '"read"'), r"reports\.tables: found what a stream shows"),
        (CLIENTS.replace('"stream"', '"write"'), r'reports\.scopes: .*"read" \| "stream" \| "admin"'),
        (CLIENTS.replace('"stream"', ""), r"reports\.scopes: found an empty array"),
        (CLIENTS.replace("clients", "consumers"), r"http\.consumers: found a setting of a previous release"),
        (CLIENTS.replace("tables", "table"), r"reports\.table: "),
        ("[http]\nclients = 3\n", r"clients: found "),
        ('[http]\ntls_cert = "x"\n', r"http\.tls_key: found nothing; expected a PEM file beside tls_cert"),
        ('[http]\ntls_key = "x"\n', r"http\.tls_cert: found nothing; expected a PEM file beside tls_key"),
        ("[http]\nconnections_max = 16\n", r"connections_max: found 16, and consumers_max = 16"),
    ],
)
def test_clients_that_are_configured_wrongly(wrong: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, CONFIG + wrong)


# -- schemas -----------------------------------------------------------------------------------------------------

SCHEMAS: Final = "/v1/schemas"
TABLE: Final = TableSchema(
    (TableColumn("id", "bigint", False), TableColumn("v", "varchar", True, length=80, charset="utf8mb4")),
    ("id",),
    "log",
)


def test_a_schema_that_was_told_is_given_by_its_id(opener: ScriptedOpener) -> None:
    change = RowChange("customers", "insert", None, {"id": 1, "v": "x"}, schema=TABLE)
    opener.streams = [ScriptedStream([message(1, change, change)])]
    client = client_of(opener)
    schema, first = (json.loads(line) for line in client.get(f"{STREAM}?count=1").text.splitlines())
    assert (schema["event"], first["event"], first["schema"]) == ("schema", "update", schema["id"])
    assert client.get(f"{SCHEMAS}/{schema['id']}").json() == schema
    plain = client.get(f"{SCHEMAS}/{schema['id']}?format=json-schema").json()
    assert list(plain["properties"]) == ["id", "v"]
    avro = client.get(f"{SCHEMAS}/{schema['id']}?format=avro").json()
    assert [field["name"] for field in avro["fields"]] == ["id", "v"]
    assert client.get(f"{SCHEMAS}/{schema['id']}?format=xml").status_code == 422
    unknown = client.get(f"{SCHEMAS}/0123456789abcdef")
    assert unknown.status_code == 404
    assert unknown.json()["detail"]["error"] == "SchemaUnknown"
    assert "/v1/update-stream" in unknown.json()["detail"]["hint"]


def test_a_consumer_gets_only_schemas_of_what_it_may_see(opener: ScriptedOpener) -> None:
    """The schemas that other consumers get contain its hidden columns, and other tables."""
    streams = [
        ScriptedStream([message(1, RowChange(table, "insert", None, {"id": 1, "v": "x"}, schema=TABLE))])
        for table in ("customers", "customers", "secrets")
    ]
    opener.streams = [*streams]
    grants = {ACCESS: EVERYTHING, "reports": Grant(STREAMS, ("customers",), ("v",))}
    client = client_of(opener, grants=grants)
    everything = {"authorization": f"Bearer {ACCESS}"}
    ids = []
    for headers in (OWN, everything, everything):
        line = json.loads(client.get(f"{STREAM}?count=1", headers=headers).text.splitlines()[0])
        assert line["event"] == "schema"
        ids.append(line["id"])
    assert len(set(ids)) == 3
    assert [client.get(f"{SCHEMAS}/{each}", headers=OWN).status_code for each in ids] == [200, 404, 404]
    assert [client.get(f"{SCHEMAS}/{each}", headers=everything).status_code for each in ids] == [200] * 3
    assert client.get(f"{SCHEMAS}/{ids[0]}").status_code == 401
