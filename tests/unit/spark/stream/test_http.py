"""The live stream in pieces: the same rows for the same positions; the end of a stream does not end a piece."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from freshness.errors import ConfigError, HistoryPurged, SourceUnavailable, StreamStopped
from freshness.history.columns import CHANGES
from freshness.stream.lines import EndLine, ErrorLine, encode_line
from freshness.stream.schema import TableColumn, TableSchema
from freshness.stream.source import Heartbeat, RowChange
from invalidator.binlog.rows.layout import Layout
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.layout_book import LayoutBook
from spark.stream import http as live
from spark.stream.http import LivePiece, Service, read_heads, read_piece
from tests.unit.invalidator.archive.archive_world import SOURCE, message, token

NAMES: Final = [column.name for column in CHANGES]
LAYOUTS: Final = {"customers": Layout(("id",), frozenset(("id", "v")), frozenset(("id", "v")))}


def insert(key: int) -> RowChange:
    return RowChange("customers", "insert", None, {"id": key, "v": "x"})


MESSAGES: Final = (
    message(11, insert(1), insert(2)),
    message(12),
    message(13, heartbeats=(Heartbeat("me", 3, 1, 2, 1),)),
    message(14, raised_tables=frozenset(("customers",)), reasons=("TRUNCATE",)),
    message(15, insert(5)),
)


def test_schemas_are_passed_over(script: Script, service: Service) -> None:
    """Even in the middle of a transaction."""
    schemas = [TableSchema((TableColumn(name, "int", False),), ("id",), "log") for name in ("id", "v")]
    changes = [RowChange("customers", "insert", None, {"id": 1, "v": "x"}, schema=schema) for schema in schemas]
    script.lines = to_lines(message(11, *changes), message(12))
    assert sum(b'"schema"' in line[:20] for line in script.lines) == 2
    assert [(row["op"], row["row"]) for row in read(service, 11)] == [("insert", 0), ("insert", 1), ("empty", -1)]


def to_lines(*messages: Any) -> list[bytes]:
    writer = LineWriter(LayoutBook(lambda _: LAYOUTS), None)
    return [encode_line(line) for each in messages for line in writer.lines(each)]


class Script:
    """What the service answers, and what it was asked."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.status = 200
        self.body: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, list[str]], str]] = []


@contextmanager
def serving(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            script.asked.append((parts.path, parse_qs(parts.query), self.headers.get("authorization", "")))
            self.send_response(script.status)
            self.end_headers()
            if parts.path == "/v1/update-stream" and script.status == 200:
                for line in script.lines:
                    self.wfile.write(line)
            else:
                self.wfile.write(json.dumps(script.body.get(parts.path, script.body)).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def service(script: Script) -> Iterator[Service]:
    with serving(script) as url:
        yield Service(url)


def piece(service: Service, end: int) -> LivePiece:
    start = token(10, everything=True)
    return LivePiece(service, "shop", "-", str(start), start, token(end, everything=True))


def read(service: Service, end: int) -> list[dict[str, Any]]:
    return [dict(zip(NAMES, row, strict=True)) for row in read_piece(piece(service, end), now_us=lambda: 7)]


def test_a_piece_is_what_lies_between_its_positions(script: Script, service: Service) -> None:
    script.lines = to_lines(*MESSAGES)
    rows = read(service, 14)
    own = [f"{SOURCE}:{number}" for number in (11, 11, 13, 14)]
    assert [row["gtid"] for row in rows] == [*own, f"{SOURCE}:1-14"]
    assert [row["op"] for row in rows] == ["insert", "insert", "heartbeat", "raise", "empty"]
    assert [(row["ordinal"], row["row"], row["rows"]) for row in rows] == [
        (1, 0, 2),
        (1, 1, 2),
        (2, -1, 0),
        (3, -1, 0),
        (4, -1, 0),
    ]
    assert json.loads(rows[1]["after"]) == {"id": 2, "v": "x"}
    assert (json.loads(rows[2]["detail"])["sequence"], rows[3]["detail"]) == (3, "TRUNCATE")
    assert {row["lineage"] for row in rows} == {"shop/-"}
    [(_, query, _)] = script.asked
    assert query["since"] == [str(token(10, everything=True))]


def test_tables_are_asked_of_the_service(script: Script, service: Service) -> None:
    script.lines = to_lines(*MESSAGES)
    list(read_piece(replace(piece(service, 14), tables="orders,order_*")))
    [(_, query, _)] = script.asked
    assert query["tables"] == ["orders,order_*"]


def test_what_came_early_is_left_to_the_next_piece(script: Script, service: Service) -> None:
    script.lines = to_lines(MESSAGES[0], MESSAGES[4], *MESSAGES[1:4])
    assert f"{SOURCE}:15" not in [row["gtid"] for row in read(service, 14)]
    assert f"{SOURCE}:15" in [row["gtid"] for row in read(service, 15)]


def test_a_transaction_that_comes_again_from_its_first_row_counts_once(script: Script, service: Service) -> None:
    lines = to_lines(MESSAGES[0])
    script.lines = [lines[0], *lines]
    assert [row["row"] for row in read(service, 11)] == [0, 1, -1]


def test_so_does_one_of_which_a_raised_table_came_last(script: Script, service: Service) -> None:
    raised = frozenset(("customers", "orders"))
    lines = to_lines(message(11, insert(1), insert(2), raised_tables=raised, reasons=("why",)))
    script.lines = [*lines[:3], *lines]
    assert [row["row"] for row in read(service, 11)] == [0, 1, -1, -1, -1]


@pytest.mark.parametrize(
    "last",
    [
        [],
        [encode_line(EndLine(reason="the service stops", resume=None))],
        [encode_line(ErrorLine(error="HistoryPurged", message="logs are gone", hint="", resume=None))],
        [b'{"event": "upd'],
    ],
    ids=["cut", "end", "error", "half a line"],
)
def test_a_stream_that_ends_before_the_piece_is_an_error(last: list[bytes], script: Script, service: Service) -> None:
    script.lines = [*to_lines(*MESSAGES[:2]), *last]
    with pytest.raises(SourceUnavailable):
        read(service, 14)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (410, HistoryPurged),
        (400, ConfigError),
        (401, ConfigError),
        (503, SourceUnavailable),
        (500, SourceUnavailable),
    ],
)
def test_what_the_service_refuses_is_told_in_its_words(
    status: int, kind: type[Exception], script: Script, service: Service
) -> None:
    script.status = status
    script.body = {"detail": {"error": "X", "message": "said so", "hint": "do so"}}
    with pytest.raises(kind, match="said so"):
        read(service, 14)


def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"http\.listen"):
        read(Service("http://127.0.0.1:9"), 14)
    with pytest.raises(ConfigError, match="expected http"):
        read(Service("127.0.0.1:80"), 14)
    with pytest.raises(ConfigError, match="token file"):
        read(Service("http://127.0.0.1:9", str(tmp_path / "none")), 14)


def test_a_transaction_that_is_too_large_is_refused(
    script: Script, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ROWS_HELD_MAX", 1)
    script.lines = to_lines(*MESSAGES)
    with pytest.raises(StreamStopped, match="more than 1 rows"):
        read(service, 14)


def test_heads_of_serving_shards_are_asked_for_with_the_access_token(
    script: Script, service: Service, tmp_path: Path
) -> None:
    shards = [{"name": "-", "serving": True}, {"name": "-80", "serving": False}]
    script.body = {
        "/v1/topology": {"keyspaces": {"shop": {"shards": shards}}},
        "/v1/token": {"token": str(token(12, everything=True))},
    }
    secret = tmp_path / "token"
    secret.write_text("s3cret\nnot this\n")
    with_token = replace(service, token_file=str(secret))
    assert read_heads(with_token, "shop") == [token(12, everything=True)]
    assert [asked[2] for asked in script.asked] == ["Bearer s3cret"] * 2
    with pytest.raises(ConfigError, match="no keyspace 'blog'"):
        read_heads(service, "blog")
