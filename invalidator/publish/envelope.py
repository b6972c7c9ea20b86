"""Row changes in the envelope of Debezium's connectors for MySQL and MariaDB, without the schema block.

Field names and their meaning are those of Debezium's documentation (docs/update-stream.md has the differences). A
delete is followed by a tombstone; an update that changes the primary key is a delete of the old key and a create of
the new one. The topic of transactions gets a BEGIN before the first row of a transaction and an END after its last.
Debezium has nothing like a raise: it goes to a topic of its own. No I/O.

Values of rows have the forms of Debezium's connectors, as JSON without a schema. The modes, by Debezium's names:
``decimal.handling.mode=string``, ``time.precision.mode=microseconds``, ``binary.handling.mode=base64``,
``bigint.unsigned.handling.mode=long``. They render our values exactly.
"""

from __future__ import annotations

import base64
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from freshness.position import MariadbPosition, Position
from freshness.stream.lines import UpdateLine
from freshness.stream.source import UNREADABLE, RowChange, Shape
from invalidator.publish.record import Record, Topics, encode_json, raise_record, require_layouts
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.layout_book import cut_key
from invalidator.stream.message import StreamMessage

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's own word for a value that the log does not tell. It is not null: a null would be a wrong value."""

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00")
_MICROSECOND: Final = timedelta(microseconds=1)
_SRID_BYTES: Final = 4
_UNKNOWN: Final = Shape("same")
_encode_document: Final = msgspec.json.Encoder(decimal_format="number").encode


def to_debezium_row(image: Mapping[str, object] | None, shapes: Mapping[str, Shape] | None) -> dict[str, Any] | None:
    """A column that the table has and the log does not hold is `UNAVAILABLE`, as is a value that cannot be read."""
    if image is None:
        return None
    shapes = shapes or {}
    row = {name: to_debezium(value, shapes.get(name, _UNKNOWN)) for name, value in image.items()}
    return row | {name: UNAVAILABLE for name in shapes if name not in image}


def to_debezium(value: Any, shape: Shape) -> Any:
    """One value, which `freshness.stream.source.Shape` describes."""
    if value is None or value is UNREADABLE:
        return None if value is None else UNAVAILABLE
    match shape.rule:
        case "bit":
            # Debezium: one bit is a boolean, several are bytes from the lowest to the highest.
            if len(value) == 1:
                return value == "1"
            return _base64(int(value, 2).to_bytes((len(value) + 7) // 8, "little"))
        case "set":
            return ",".join(label for label in shape.labels if label in value)
        case "timestamp":
            return f"{value.isoformat()}Z"
        case "ascii":
            return value if isinstance(value, str) and value.isascii() else UNAVAILABLE
        case "binary":
            return _base64(value)
        case "untold":
            return _base64(value) if isinstance(value, bytes) else _to_document(value)
    return _by_type(value)


def _by_type(value: Any) -> Any:
    match value:
        case str():
            return value if _is_unicode(value) else UNAVAILABLE
        case int():
            return value
        case float():
            return value if math.isfinite(value) else UNAVAILABLE
        case Decimal():
            return format(value, "f")
        case datetime():
            return (value - _EPOCH) // _MICROSECOND
        case date():
            return (value - _EPOCH.date()).days
        case timedelta():
            return value // _MICROSECOND
        case bytes():
            # The one type without a text that comes as bytes and reads the same: a geometry, behind its SRID.
            srid = int.from_bytes(value[:_SRID_BYTES], "little")
            return {"wkb": _base64(value[_SRID_BYTES:]), "srid": srid or None}
    return UNAVAILABLE


def _to_document(value: Any) -> str:
    try:
        return _encode_document(_plain(value)).decode("utf-8")
    except (TypeError, ValueError):
        return UNAVAILABLE


def _plain(value: Any) -> Any:
    """A part of a document, with times as MySQL prints them. Raises `TypeError` for one that has no text."""
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case datetime():
            return value.isoformat(" ", "microseconds")
        case date():
            return value.isoformat()
        case time_of_day():
            return value.isoformat("microseconds")
        case None | bool() | int() | float() | str() | Decimal():
            return value
    raise TypeError(type(value))


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


VERSION: Final = "freshness-1"
"""The version of this envelope: it stands where Debezium writes the version of its connector."""

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"

Operation = Literal["c", "u", "d"]
Image = Mapping[str, Any] | None


@dataclass(slots=True)
class EnvelopeRecords:
    """``connector``: Debezium's name of it. ``raises``: makes the lines of raises, and holds the layouts."""

    topics: Topics
    raises: LineWriter
    connector: Literal["mysql", "mariadb"]
    now_ns: Callable[[], int] = time.time_ns
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    """By shard, of a transaction of which rows were written, its events by data collection."""

    def records(self, message: StreamMessage) -> Iterable[Record]:
        require_layouts(self.raises, message)
        if not message.first_row:
            self._counts.pop(message.shard, None)
        transaction = message.transaction
        for row, change in zip(message.rows, transaction.changes, strict=True):
            if message.shard not in self._counts:
                self._counts[message.shard] = Counter()
                yield self._boundary(message, "BEGIN", None)
            yield from self._change(message, row, change)
        # After the rows: the layouts are read again for what follows.
        bare = replace(message, transaction=transaction._replace(changes=()), row_numbers=None)
        for line in self.raises.lines(bare):
            assert isinstance(line, UpdateLine), "a message without rows"
            yield raise_record(self.topics, line)
        if message.is_last and message.shard in self._counts:
            yield self._boundary(message, "END", self._counts.pop(message.shard))

    def _change(self, message: StreamMessage, row: int, change: RowChange) -> Iterator[Record]:
        topic = self.topics.table(message.shard, change.table)
        names, _ = self.raises.layouts.find_key(message.shard, change)
        before, after = (to_debezium_row(image, change.shapes) for image in (change.before, change.after))
        key = _encode_key(cut_key(change, names), change)
        old = _encode_key(cut_key(replace(change, after=None), names), change)
        if after is None:
            yield self._envelope(message, row, change, topic, key, "d", before, None)
            if key is not None:
                yield Record(topic, key, None)
        elif before is None:
            yield self._envelope(message, row, change, topic, key, "c", None, after)
        elif key is None or old is None or old == key:
            yield self._envelope(message, row, change, topic, key, "u", before, after)
        else:
            gone = self._envelope(message, row, change, topic, old, "d", before, None)
            yield gone._replace(headers=((NEW_KEY, key),))
            yield Record(topic, old, None)
            made = self._envelope(message, row, change, topic, key, "c", None, after)
            yield made._replace(headers=((OLD_KEY, old),))

    def _envelope(
        self,
        message: StreamMessage,
        row: int,
        change: RowChange,
        topic: str,
        key: bytes | None,
        op: Operation,
        before: Image,
        after: Image,
    ) -> Record:
        schema = self.topics.find_schema(message.shard)
        counts = self._counts[message.shard]
        collection = f"{schema}.{change.table}"
        counts[collection] += 1
        committed_us, position = message.transaction.timestamp_us, message.token.position
        now_ns = self.now_ns()
        value = {
            "before": before,
            "after": after,
            "source": {
                "version": VERSION,
                "connector": self.connector,
                "name": self.topics.prefix,
                "ts_ms": committed_us // 1000,
                "snapshot": "false",
                "db": schema,
                "sequence": None,
                "ts_us": committed_us,
                "ts_ns": committed_us * 1000,
                "table": change.table,
                "server_id": find_server_id(position),
                "gtid": str(position),
                # Debezium demands both. They are of one server's files, and the stream changes servers: the GTID with
                # the row is the place of the change.
                "file": "",
                "pos": 0,
                "row": row,
                "thread": None,
                "query": None,
            },
            "transaction": {
                "id": find_transaction_id(message),
                "total_order": counts.total(),
                "data_collection_order": counts[collection],
            },
            "op": op,
            "ts_ms": now_ns // 1_000_000,
            "ts_us": now_ns // 1000,
            "ts_ns": now_ns,
        }
        return Record(topic, key, encode_json(value))

    def _boundary(
        self, message: StreamMessage, status: Literal["BEGIN", "END"], counts: Counter[str] | None
    ) -> Record:
        name = find_transaction_id(message)
        value = {
            "status": status,
            "id": name,
            "event_count": None if counts is None else counts.total(),
            "data_collections": None
            if counts is None
            else [{"data_collection": each, "event_count": count} for each, count in counts.items()],
            "ts_ms": message.transaction.timestamp_us // 1000,
        }
        return Record(self.topics.transactions, encode_json({"id": name}), encode_json(value))


def find_transaction_id(message: StreamMessage) -> str:
    """The GTID, after the shard's name if the shard is a part: two primaries of MariaDB may give the same GTID."""
    gtid = str(message.token.position)
    return gtid if message.shard == "-" else f"{message.shard}/{gtid}"


def find_server_id(position: Position) -> int:
    """The server that committed, which MariaDB's GTID names; 0 if the GTID does not."""
    if isinstance(position, MariadbPosition):
        servers = {gtid.server for gtid in position.gtids()}
        if len(servers) == 1:
            return servers.pop()
    return 0


def _encode_key(key: Mapping[str, object] | None, change: RowChange) -> bytes | None:
    shapes = change.shapes
    cut = None if shapes is None or key is None else {name: shapes[name] for name in key if name in shapes}
    return None if key is None else encode_json(to_debezium_row(key, cut))
