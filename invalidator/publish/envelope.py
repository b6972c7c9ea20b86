"""Row changes in the envelope of Debezium's connectors for MySQL and MariaDB, without the schema block.

Field names and their meaning are those of Debezium's documentation (docs/kafka.md has the differences). A delete is
followed by a tombstone; an update that changes the primary key is a delete of the old key and a create of the new
one. The topic of transactions gets a BEGIN before the first row of a transaction and an END after its last. Debezium
has nothing like a raise: it goes to a topic of its own. No I/O.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from freshness.position import MariadbPosition, Position
from freshness.stream.lines import UpdateLine
from freshness.stream.source import RowChange
from invalidator.publish.debezium_value import to_debezium_row
from invalidator.publish.record import Record, Topics, encode_json, raise_record, require_layouts
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.layout_book import cut_key
from invalidator.stream.message import StreamMessage

VERSION: Final = "freshness-1"
"""The version of this envelope: it stands where Debezium writes the version of its connector."""

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"

Operation = Literal["c", "u", "d"]
Image = Mapping[str, Any] | None


@dataclass(slots=True)
class _Open:
    """A transaction of which rows were written. ``counts``: events by data collection."""

    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class EnvelopeRecords:
    """``connector``: Debezium's name of it. ``raises``: makes the lines of raises, and holds the layouts."""

    topics: Topics
    raises: LineWriter
    connector: Literal["mysql", "mariadb"]
    now_ns: Callable[[], int] = time.time_ns
    _open: dict[str, _Open] = field(default_factory=dict)

    def records(self, message: StreamMessage) -> Iterable[Record]:
        require_layouts(self.raises, message)
        if not message.first_row:
            self._open.pop(message.shard, None)
        transaction = message.transaction
        for row, change in zip(message.rows, transaction.changes, strict=True):
            if message.shard not in self._open:
                self._open[message.shard] = _Open()
                yield self._boundary(message, "BEGIN", None)
            yield from self._change(message, row, change)
        # After the rows: the layouts are read again for what follows.
        bare = replace(message, transaction=transaction._replace(changes=()), row_numbers=None)
        for line in self.raises.lines(bare):
            assert isinstance(line, UpdateLine), "a message without rows"
            yield raise_record(self.topics, line)
        if message.is_last and message.shard in self._open:
            yield self._boundary(message, "END", self._open.pop(message.shard).counts)

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
        counts = self._open[message.shard].counts
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
