"""The lines of the update stream: every kind comes back as it was, and no other line is taken for one."""

from __future__ import annotations

import json

import pytest

from freshness.errors import FormatError, HistoryLost
from freshness.stream.lines import (
    EndLine,
    ErrorLine,
    HeartbeatLine,
    Line,
    SchemaLine,
    UpdateLine,
    decode_line,
    encode_line,
)
from freshness.stream.schema import TableColumn
from freshness.stream.source import Heartbeat

SCHEMA = SchemaLine(
    id="0123456789abcdef",
    keyspace="shop",
    shard="-",
    table="customers",
    columns=(TableColumn("id", "bigint", False), TableColumn("kind", "enum", True, charset="latin1", labels=("ä",))),
    key=("id",),
    key_source="log",
    token="ft1.x",
    resume=None,
)


def update(heartbeat: Heartbeat | None = None, key_range: str = "-") -> UpdateLine:
    return UpdateLine(
        keyspace="shop",
        shard="-",
        table="customers",
        op="insert",
        key={"id": 1},
        before=None,
        after={"id": 1, "name": "ä"},
        token="ft1.x",
        timestamp=1.5,
        resume=None,
        min_timestamp=1.0,
        gtid="s:1",
        row=0,
        last=True,
        heartbeat=heartbeat,
        key_range=key_range,
    )


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (update(), "update"),
        (update(Heartbeat("me", 1, 2, 3, 4), "-80"), "update"),
        (HeartbeatLine(keyspace="shop", timestamp=1.0, resume="fr1.x", min_timestamp=None), "heartbeat"),
        (ErrorLine.of(HistoryLost("gone", hint="start again"), "fr1.x"), "error"),
        (EndLine(reason="the service stops", resume=None), "end"),
        (SCHEMA, "schema"),
    ],
)
def test_a_line_comes_back(line: Line, event: str) -> None:
    data = encode_line(line)
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    assert json.loads(data)["event"] == event
    assert decode_line(data) == line


def test_an_error_line_has_what_a_person_can_act_on() -> None:
    line = ErrorLine.of(HistoryLost("gone", hint="start again"), "fr1.x")
    assert (line.error, line.message, line.hint, line.resume) == ("HistoryLost", "gone", "start again", "fr1.x")


def test_only_keys_with_something_to_say_are_there() -> None:
    plain = json.loads(encode_line(update()))
    assert plain.keys().isdisjoint({"reason", "heartbeat", "unaligned", "key_range"})
    assert {"before", "resume"} <= plain.keys()
    beat = json.loads(encode_line(update(Heartbeat("me", 1, 2, 3, 4), "-80")))
    assert beat["heartbeat"] == {"instance": "me", "sequence": 1, "min_us": 2, "max_us": 3, "epoch": 4}
    assert beat["key_range"] == "-80"


def test_a_key_that_is_not_known_is_skipped() -> None:
    data = json.loads(encode_line(update())) | {"tomorrow": 1}
    assert decode_line(json.dumps(data).encode()) == update()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b'{"event": "tomorrow"}',
        b'{"event": "end", "reason": "x"}',
        b'{"event": "end", "reason": 1, "resume": null}',
        b'{"event": "upd',
        b"\xff\xfe",
    ],
)
def test_no_other_line_is_taken_for_one(data: bytes) -> None:
    with pytest.raises(FormatError, match="not a line of the update stream") as caught:
        decode_line(data)
    assert caught.value.hint
