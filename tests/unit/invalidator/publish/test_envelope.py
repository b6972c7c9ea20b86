"""Records of a publication: topics, keys, tombstones, and the fields of Debezium's envelope."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import pytest

from freshness.errors import ConfigError, SourceUnavailable
from freshness.position import MariadbPosition, MysqlGtidSet, Position
from freshness.position.token import EventToken
from freshness.stream.source import UNREADABLE, RowChange, Shape, Transaction
from invalidator.binlog.rows.layout import Layout
from invalidator.publish.envelope import (
    NEW_KEY,
    OLD_KEY,
    UNAVAILABLE,
    EnvelopeRecords,
    find_server_id,
    to_debezium,
    to_debezium_row,
)
from invalidator.publish.record import LineRecords, Record, RecordWriter, Topics
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.message import StreamMessage

GTID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562:5"
COLUMNS: Final = frozenset(("id", "v"))
LAYOUTS: Final = {"goods": Layout(("id",), COLUMNS, COLUMNS), "notes": Layout((), COLUMNS, COLUMNS)}
INSERT: Final = RowChange("goods", "insert", None, {"id": 1, "v": "a"})
UPDATE: Final = RowChange("goods", "update", {"id": 1, "v": "a"}, {"id": 1, "v": "b"})
MOVE: Final = RowChange("goods", "update", {"id": 1, "v": "b"}, {"id": 2, "v": "b"})
DELETE: Final = RowChange("goods", "delete", {"id": 2, "v": "b"}, None)
NOTE: Final = RowChange("notes", "insert", None, {"id": 1, "v": "a"})


def message_of(*changes: RowChange, shard: str = "-", **options: Any) -> StreamMessage:
    position = MysqlGtidSet.parse(GTID)
    token = EventToken(f"lineage{shard}", shard, 3, 1_763_700_000_000_000, position)
    keys = ("first_row", "is_last")
    transaction = Transaction(position, 1_763_700_000_123_456, changes, **options)
    placed = {name: options[name] for name in keys if name in options}
    return StreamMessage("shop", shard, token, transaction, {token.lineage: token}, 0, **placed)


def make_topics(template: str = "{prefix}.{schema}.{table}") -> Topics:
    return Topics("p", lambda shard: "shop" if shard == "-" else f"shop{shard}", template)


def make_writer(kind: Literal["lines", "debezium"], layouts: Mapping[str, Layout] = LAYOUTS) -> RecordWriter:
    lines = LineWriter(LayoutBook(lambda _: layouts), heartbeats=False)
    if kind == "lines":
        return LineRecords(make_topics(), lines)
    return EnvelopeRecords(make_topics(), lines, "mysql", now_ns=lambda: 1_763_700_001_000_000_001)


def loads(record: Record) -> Any:
    assert record.value is not None
    return json.loads(record.value)


def test_an_event_has_the_fields_of_debezium() -> None:
    begin, event, end = make_writer("debezium").records(message_of(UPDATE))
    assert (event.topic, event.key) == ("p.shop.goods", b'{"id":1}')
    assert loads(event) == {
        "before": {"id": 1, "v": "a"},
        "after": {"id": 1, "v": "b"},
        "source": {
            "version": "freshness-1",
            "connector": "mysql",
            "name": "p",
            "ts_ms": 1_763_700_000_123,
            "snapshot": "false",
            "db": "shop",
            "sequence": None,
            "ts_us": 1_763_700_000_123_456,
            "ts_ns": 1_763_700_000_123_456_000,
            "table": "goods",
            "server_id": 0,
            "gtid": GTID,
            "file": "",
            "pos": 0,
            "row": 0,
            "thread": None,
            "query": None,
        },
        "transaction": {"id": GTID, "total_order": 1, "data_collection_order": 1},
        "op": "u",
        "ts_ms": 1_763_700_001_000,
        "ts_us": 1_763_700_001_000_000,
        "ts_ns": 1_763_700_001_000_000_001,
    }
    assert (begin.topic, begin.key) == ("p.transaction", json.dumps({"id": GTID}, separators=(",", ":")).encode())
    boundary = {"id": GTID, "ts_ms": 1_763_700_000_123}
    assert loads(begin) == {"status": "BEGIN", "event_count": None, "data_collections": None, **boundary}
    counts = [{"data_collection": "shop.goods", "event_count": 1}]
    assert loads(end) == {"status": "END", "event_count": 1, "data_collections": counts, **boundary}


def test_a_delete_is_followed_by_a_tombstone() -> None:
    _, event, tombstone, _ = make_writer("debezium").records(message_of(DELETE))
    assert (loads(event)["op"], loads(event)["after"]) == ("d", None)
    assert tombstone == Record("p.shop.goods", b'{"id":2}', None)


def test_a_changed_key_is_a_delete_and_a_create() -> None:
    _, gone, tombstone, made, end = make_writer("debezium").records(message_of(MOVE))
    assert (gone.key, loads(gone)["op"], gone.headers) == (b'{"id":1}', "d", ((NEW_KEY, b'{"id":2}'),))
    assert tombstone == Record("p.shop.goods", b'{"id":1}', None)
    assert (made.key, loads(made)["op"], made.headers) == (b'{"id":2}', "c", ((OLD_KEY, b'{"id":1}'),))
    assert loads(end)["event_count"] == 2


def test_orders_are_counted_over_the_pieces_of_a_transaction_and_between_other_shards() -> None:
    writer = make_writer("debezium")
    records = [
        *writer.records(message_of(INSERT, NOTE, shard="-80", is_last=False)),
        *writer.records(message_of(INSERT, shard="80-")),
        *writer.records(message_of(UPDATE, shard="-80", first_row=2)),
    ]
    events = [loads(each) for each in records]
    told = [
        (
            event["transaction"]["id"],
            event["transaction"]["total_order"],
            event["transaction"]["data_collection_order"],
        )
        if "transaction" in event
        else (event["id"], event["status"], event["event_count"])
        for event in events
    ]
    assert told == [
        (f"-80/{GTID}", "BEGIN", None),
        (f"-80/{GTID}", 1, 1),
        (f"-80/{GTID}", 2, 1),
        (f"80-/{GTID}", "BEGIN", None),
        (f"80-/{GTID}", 1, 1),
        (f"80-/{GTID}", "END", 1),
        (f"-80/{GTID}", 3, 2),
        (f"-80/{GTID}", "END", 3),
    ]


def test_a_transaction_without_rows_has_no_boundaries() -> None:
    assert list(make_writer("debezium").records(message_of())) == []


@pytest.mark.parametrize("kind", ["lines", "debezium"])
def test_a_raise_has_a_topic_of_its_own(kind: Literal["lines", "debezium"]) -> None:
    message = message_of(INSERT, raised_tables=frozenset(("goods",)), reasons=("ALTER",))
    (told,) = [each for each in make_writer(kind).records(message) if each.topic == "p.raises"]
    assert told.key == b'{"schema":"shop","table":"goods"}'
    assert (loads(told)["op"], loads(told)["reason"]) == ("raise", "ALTER")


def test_a_raise_of_a_piece_with_places_of_its_own() -> None:
    message = message_of(INSERT, raised_tables=frozenset(("goods",)))
    records = list(make_writer("debezium").records(replace(message, row_numbers=(7,))))
    assert [each.topic for each in records].count("p.raises") == 1
    assert loads(records[1])["source"]["row"] == 7


def test_lines_have_the_key_of_the_row_and_a_tombstone_for_a_key_that_is_gone() -> None:
    told = list(make_writer("lines").records(message_of(INSERT, MOVE, DELETE, NOTE)))
    topic = "p.shop.goods"
    assert [(each.topic, each.key, each.value is None) for each in told] == [
        (topic, b'{"id":1}', False),
        (topic, b'{"id":2}', False),
        (topic, b'{"id":1}', True),
        (topic, b'{"id":2}', False),
        (topic, b'{"id":2}', True),
        ("p.shop.notes", None, False),
    ]
    assert b"\n" not in (told[0].value or b"")


@pytest.mark.parametrize("kind", ["lines", "debezium"])
def test_a_key_that_is_not_known_now_is_no_record_without_a_key(kind: Literal["lines", "debezium"]) -> None:
    def read(_: str) -> Mapping[str, Layout]:
        raise SourceUnavailable("away")

    lines = LineWriter(LayoutBook(read))
    writer: RecordWriter = LineRecords(make_topics(), lines)
    if kind == "debezium":
        writer = EnvelopeRecords(make_topics(), lines, "mysql")
    with pytest.raises(SourceUnavailable, match="away"):
        list(writer.records(message_of(INSERT)))


def test_a_key_is_not_taken_from_a_column_that_the_image_lacks() -> None:
    shapes = {"id": Shape("same"), "v": Shape("text")}
    change = RowChange("goods", "update", {"id": 1}, {"v": "b"}, shapes)
    _, event, _ = make_writer("debezium").records(message_of(change))
    assert (event.key, loads(event)["op"]) == (b'{"id":1}', "u")
    assert loads(event)["after"] == {"v": "b", "id": UNAVAILABLE}


def test_two_tables_never_share_a_topic() -> None:
    topics = make_topics()
    assert topics.table("-", "a$b") == "p.shop.a_b"
    with pytest.raises(ConfigError, match="share the topic"):
        topics.table("-", "a_b")
    with pytest.raises(ConfigError, match="share the topic"):
        make_topics("{prefix}.{table}").table("-", "positions")


@pytest.mark.parametrize("template", ["x", "{table", "{table}{other}", "{prefix}"])
def test_a_template_that_cannot_be_used(template: str) -> None:
    with pytest.raises(ConfigError, match="template"):
        make_topics(template)


@pytest.mark.parametrize("prefix", ["", "a b", "a/b"])
def test_a_prefix_that_cannot_be_used(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        Topics(prefix, str)


def test_a_topic_that_is_too_long() -> None:
    with pytest.raises(ConfigError, match="has 307 characters"):
        make_topics().table("-", "t" * 300)


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        (None, Shape("same"), None),
        (UNREADABLE, Shape("same"), UNAVAILABLE),
        ("1", Shape("bit"), True),
        ("0", Shape("bit"), False),
        ("1000000001", Shape("bit"), "AQI="),
        (frozenset(("c", "a")), Shape("set", ("a", "b", "c")), "a,c"),
        (datetime.fromisoformat("2026-01-31T12:00:00"), Shape("timestamp"), "2026-01-31T12:00:00Z"),
        (UNREADABLE, Shape("timestamp"), UNAVAILABLE),
        (b"a\0\0", Shape("binary"), "YQAA"),
        ("ü", Shape("ascii"), UNAVAILABLE),
        ("\ud800", Shape("text"), UNAVAILABLE),
        (Decimal("1E-10"), Shape("same"), "0.0000000001"),
        (datetime.fromisoformat("1969-12-31T23:59:59.999999"), Shape("same"), -1),
        (date.fromisoformat("1970-01-03"), Shape("same"), 2),
        (timedelta(hours=-1), Shape("same"), -3_600_000_000),
        (b"\xe6\x10\0\0wkb", Shape("same"), {"wkb": "d2ti", "srid": 4326}),
        ({"a": [1, Decimal("1.50"), None]}, Shape("untold"), '{"a":[1,1.50,null]}'),
        ({"t": time.fromisoformat("12:00")}, Shape("untold"), '{"t":"12:00:00.000000"}'),
        ({"b": b"x"}, Shape("untold"), UNAVAILABLE),
        ("text", Shape("untold"), '"text"'),
        (b"x", Shape("untold"), "eA=="),
        (float("nan"), Shape("same"), UNAVAILABLE),
    ],
)
def test_values_have_the_forms_of_debezium(value: object, shape: Shape, expected: object) -> None:
    assert to_debezium(value, shape) == expected


def test_a_column_that_the_log_does_not_hold_is_no_null() -> None:
    shapes = {"id": Shape("same"), "v": Shape("text")}
    assert to_debezium_row({"id": 1}, shapes) == {"id": 1, "v": UNAVAILABLE}


@pytest.mark.parametrize(("position", "server"), [(MariadbPosition.parse("0-7-5"), 7), (MysqlGtidSet.parse(GTID), 0)])
def test_the_server_is_told_where_the_gtid_names_it(position: Position, server: int) -> None:
    assert find_server_id(position) == server
