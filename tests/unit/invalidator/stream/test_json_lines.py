"""JSON lines of the update stream: every value comes back, lines make up the same messages, bad lines are named."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import FormatError, SourceUnavailable
from freshness.keys.keyrange import KeyRange
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from freshness.stream.lines import ErrorLine, UpdateLine, encode_line
from freshness.stream.resume import ResumeVector
from freshness.stream.source import UNREADABLE, Heartbeat, RowChange, Transaction
from freshness.values.json import from_json, to_json
from invalidator.binlog.rows.layout import Layout
from invalidator.stream import json_lines
from invalidator.stream.json_lines import LineReader, LineWriter, read_json_lines
from invalidator.stream.layout_book import LAYOUT_RETRY_SECONDS, LayoutBook
from invalidator.stream.message import StreamMessage

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
COLUMNS = frozenset(("id", "v"))
LAYOUTS = {"customers": Layout(("id",), COLUMNS, COLUMNS)}
INSERT = RowChange("customers", "insert", None, {"id": 1, "v": "a"})
UPDATE = RowChange("customers", "update", {"id": 1, "v": "a"}, {"id": 2, "v": None})
DELETE = RowChange("customers", "delete", {"id": 2, "v": None}, None)
BEAT = Heartbeat("host.1", 7, 1_763_700_000_000_001, 1_763_700_000_000_099, 3)


def token(number: int, shard: str = "-", *, everything: bool = False) -> EventToken:
    position = MysqlGtidSet.parse(f"{SOURCE}:1-{number}" if everything else f"{SOURCE}:{number}")
    return EventToken(f"shop/{shard}", shard, 1, 1_763_700_000_123_456 + number, position)


def message(number: int, *changes: RowChange, shard: str = "-", **options: Any) -> StreamMessage:
    fields = {
        name: options.pop(name) for name in ("first_row", "is_last", "is_aligned", "row_numbers") if name in options
    }
    place = {name: fields[name] for name in ("first_row", "is_last") if name in fields}
    own = token(number, shard)
    resume_number = number if fields.get("is_last", True) else number - 1
    return StreamMessage(
        "shop",
        shard,
        own,
        Transaction(own.position, own.timestamp_us, changes, **place, **options),
        {f"shop/{shard}": token(resume_number, shard, everything=True)},
        own.timestamp_us - 1,
        **fields,
    )


def resume(number: int) -> str:
    return ResumeVector("shop", KeyRange(), {"shop/-": token(number, everything=True)}).format()


def writer() -> LineWriter:
    return LineWriter(LayoutBook(lambda _: LAYOUTS))


def update_lines(out: LineWriter, of: StreamMessage) -> list[UpdateLine]:
    return [line for line in out.lines(of) if isinstance(line, UpdateLine)]


def texts(*messages: StreamMessage) -> list[bytes]:
    out = writer()
    return [encode_line(line) for each in messages for line in out.lines(each)]


def again(lines: list[bytes]) -> list[StreamMessage]:
    reader = LineReader()
    return [each for line in lines for each in reader.feed(line)]


# -- values ---------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.sets(st.text()),
    st.just(UNREADABLE),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.one_of(st.text(), st.integers(), st.binary()), inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    read = from_json(json.loads(json.dumps(to_json(value), ensure_ascii=False)))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (1, 1),
        ("$x", "$x"),
        (b"\xff\x00", {"$bytes": "/wA="}),
        (Decimal("1.50"), {"$decimal": "1.50"}),
        (datetime.fromisoformat("2024-01-02T03:04:05.000600"), {"$datetime": "2024-01-02T03:04:05.000600"}),
        (date(2024, 2, 29), {"$date": "2024-02-29"}),
        (time(1, 2, 3), {"$time": "01:02:03"}),
        (timedelta(hours=-1), {"$timedelta_us": -3_600_000_000}),
        ({"b", "a"}, {"$set": ["a", "b"]}),
        (UNREADABLE, {"$unreadable": True}),
        (float("-inf"), {"$float": "-inf"}),
        (1 << 64, {"$int": "18446744073709551616"}),
        ({"$bytes": 1}, {"$object": [["$bytes", 1]]}),
        ("\ud800", {"$text": "7aCA"}),
    ],
)
def test_the_forms_are_as_documented(value: object, form: object) -> None:
    assert to_json(value) == form
    page = Path("docs/update-stream.md").read_text()
    if isinstance(form, dict):
        assert f'{{"{next(iter(form))}"' in page


def test_a_value_of_no_known_type_is_refused() -> None:
    with pytest.raises(FormatError, match="complex"):
        to_json(1j)


@pytest.mark.parametrize(
    "value", [{"$new": 1}, {"$bytes": "?"}, {"$bytes": "AA==", "x": 1}, {"$decimal": "x"}, {"$date": 5}]
)
def test_a_form_that_is_not_known_is_refused(value: object) -> None:
    with pytest.raises(FormatError):
        from_json([value])


# -- lines --------------------------------------------------------------------------------------------------------


def test_one_line_for_each_change_with_all_that_a_consumer_needs() -> None:
    first, second = (json.loads(line) for line in texts(message(5, INSERT, UPDATE)))
    assert first == {
        "event": "update",
        "keyspace": "shop",
        "shard": "-",
        "table": "customers",
        "op": "insert",
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "v": "a"},
        "token": str(token(5)),
        "timestamp": 1763700000.123461,
        "resume": None,
        "min_timestamp": 1763700000.12346,
        "gtid": f"{SOURCE}:5",
        "row": 0,
        "last": False,
    }
    assert (second["row"], second["last"], second["key"]) == (1, True, {"id": 2})
    assert second["resume"] == resume(5)


def test_only_the_last_line_of_a_transaction_moves_the_resume_token() -> None:
    lines = [json.loads(line) for line in texts(message(5, INSERT), message(6, UPDATE, DELETE), message(7))]
    assert [line["resume"] for line in lines] == [resume(5), resume(5), resume(6)]


def test_an_empty_transaction_has_no_line_and_moves_the_resume_token() -> None:
    out = writer()
    assert out.lines(message(5)) == []
    assert out.resume == resume(5)


def test_raised_tables_and_heartbeats_have_lines() -> None:
    lines = [
        json.loads(line)
        for line in texts(
            message(5, raised_tables=frozenset(("customers",)), reasons=("TRUNCATE", "DDL"), heartbeats=(BEAT,))
        )
    ]
    assert [(line["op"], line["table"], line["row"]) for line in lines] == [
        ("raise", "customers", -1),
        ("heartbeat", None, -1),
    ]
    assert lines[0]["reason"] == "TRUNCATE; DDL"
    assert lines[1]["heartbeat"]["sequence"] == 7


def test_lines_make_up_the_same_messages() -> None:
    messages = [
        message(5, INSERT, UPDATE),
        message(6, DELETE, raised_tables=frozenset(("customers",)), reasons=("why",)),
        message(7, heartbeats=(BEAT,), is_aligned=False),
        message(3, UPDATE, shard="80-"),
        message(9, UPDATE, DELETE, row_numbers=(3, 7)),
    ]
    assert again(texts(*messages)) == messages


def test_pieces_of_a_transaction_are_one_transaction() -> None:
    pieces = [
        message(5, INSERT, UPDATE, is_last=False),
        message(5, DELETE, first_row=2, is_last=False),
        message(5, first_row=3),
    ]
    lines = texts(*pieces)
    assert [json.loads(line)["row"] for line in lines] == [0, 1, 2]
    assert [json.loads(line)["last"] for line in lines] == [False, False, True]
    assert again(lines) == [message(5, INSERT, UPDATE, DELETE)]


def test_a_transaction_that_begins_again_counts_once() -> None:
    void = message(5, INSERT, UPDATE, is_last=False)
    whole = message(5, INSERT, UPDATE, DELETE)
    lines = texts(void, whole)
    assert [json.loads(line)["row"] for line in lines] == [0, 0, 1, 2]
    assert again(lines) == [whole]


def test_a_large_transaction_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "PIECE_ROWS_MAX", 2)
    pieces = again(texts(message(5, INSERT, UPDATE, DELETE, INSERT, UPDATE)))
    assert [(each.first_row, len(each.transaction.changes), each.is_last) for each in pieces] == [
        (0, 2, False),
        (2, 2, False),
        (4, 1, True),
    ]
    assert [each.transaction.is_last for each in pieces] == [False, False, True]


# -- layouts ------------------------------------------------------------------------------------------------------


def test_layouts_are_read_once_and_again_after_a_table_was_raised() -> None:
    asked: list[str] = []

    def read(shard: str) -> dict[str, Layout]:
        asked.append(shard)
        return LAYOUTS

    out = LineWriter(LayoutBook(read))
    out.lines(message(5, INSERT))
    out.lines(message(6, INSERT, raised_tables=frozenset(("orders",))))
    out.lines(message(7, INSERT))
    assert asked == ["-", "-"]


def test_without_layouts_there_are_no_keys_and_the_stream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    asked: list[str] = []

    def read(shard: str) -> dict[str, Layout]:
        asked.append(shard)
        if len(asked) == 1:
            raise SourceUnavailable("down")
        return LAYOUTS

    out = LineWriter(LayoutBook(read, lambda: now[0]))
    assert [line.key for line in update_lines(out, message(5, INSERT, UPDATE))] == [None, None]
    assert "down" in caplog.text
    now[0] = LAYOUT_RETRY_SECONDS
    assert [line.key for line in update_lines(out, message(6, INSERT))] == [{"id": 1}]


def test_a_key_that_the_image_does_not_hold_is_null() -> None:
    [line] = update_lines(writer(), message(5, RowChange("customers", "insert", None, {"v": 1})))
    assert line.key is None


# -- files --------------------------------------------------------------------------------------------------------


def test_a_file_is_read_and_its_other_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    messages = [message(5, INSERT), message(6, DELETE)]
    first, second = texts(*messages)
    error = encode_line(ErrorLine.of(SourceUnavailable("down", hint="wait"), None))
    path.write_bytes(first + b"\n" + error + second)
    assert list(read_json_lines(path)) == messages


def test_a_transaction_that_is_cut_off_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "stream.jsonl"
    whole = message(5, INSERT)
    path.write_bytes(b"".join([*texts(whole), *texts(message(6, UPDATE, DELETE))[:1]]))
    with caplog.at_level(logging.WARNING):
        assert list(read_json_lines(path)) == [whole]
    assert f"{SOURCE}:6" in caplog.text


def test_rows_of_a_transaction_that_was_never_committed_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A crash of the server cut it off. The vector of what follows does not have it."""
    before = {"shop/-": token(4, everything=True)}
    beyond = replace(before["shop/-"], position=MysqlGtidSet.parse(f"{SOURCE}:1-4:6"))
    void = replace(message(5, INSERT, UPDATE, is_last=False), resume=before)
    follows = replace(message(6, DELETE), resume={"shop/-": beyond})
    with caplog.at_level(logging.WARNING):
        assert again(texts(void, follows)) == [follows]
    assert f"{SOURCE}:5 was cut off" in caplog.text


GOOD = texts(message(5, INSERT, UPDATE))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"{", "not a line of the update stream"),
        (b'{"event": "unknown"}', "not a line of the update stream"),
        (b'{"event": "update"}', "missing required field"),
        (GOOD[0].replace(b'"row":0', b'"row":"0"'), r"\$.row"),
        (GOOD[0].replace(b"ft1.", b"ft2."), "is not an event token"),
        (GOOD[0] + texts(message(6, INSERT))[0], "transaction .*:6 begins, and .*:5 has no last line"),
        (GOOD[0].replace(b'"op":"insert"', b'"op":"refreshed"'), "refreshed"),
        (GOOD[0].replace(b'"op":"insert"', b'"op":"heartbeat"'), "op 'heartbeat' without a heartbeat"),
        (GOOD[0].replace(b'"row":0', b'"row":0,"heartbeat":{"epoch":1}'), "missing required field"),
        (GOOD[0].replace(b'"v":"a"', b'"v":{"$bytes":"?"}'), "bytes"),
        (b"\xff\xfe", "not a line of the update stream"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(bad: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    path.write_bytes(texts(message(4, INSERT))[0] + bad + b"\n")
    with pytest.raises(FormatError, match=rf"stream.jsonl: line [23]: .*{problem}"):
        list(read_json_lines(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nowhere: cannot be read"):
        list(read_json_lines(tmp_path / "nowhere"))
