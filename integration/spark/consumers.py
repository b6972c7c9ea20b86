"""Consumers of the update stream that keep rows, and let none go back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import pyarrow.parquet as pq

from freshness.history.archive_file import find_files
from freshness.position import Position
from freshness.stream.lines import UpdateLine
from freshness.values.json import from_json_row
from integration.harness import wait_until
from integration.spark.script import HOME, KEY
from invalidator.publish.envelope import EnvelopeRecords
from invalidator.publish.record import LineRecords, Record, RecordWriter, Topics
from invalidator.stream.json_lines import CHANGES, LineWriter
from invalidator.stream.message import StreamMessage
from invalidator.stream.open import OpenedStream

POLL_SECONDS: Final = 0.2
PREFIX: Final = "p"

Row: TypeAlias = Mapping[str, Any]
Identity: TypeAlias = tuple[Any, ...]


class Consumer:
    """Upserts and deletes. Raises AssertionError if a row goes back, or differs from the log's before image.

    A row is known by its sharding value and its primary key. So a row that moves between shards is two rows, each
    with an order of its own, and a row of a shard that was split stays the same one.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[Identity, Row]] = {table: {} for table in KEY}
        self.raised: set[str] = set()
        self.changes = 0
        self._versions: dict[tuple[str, Identity], int] = {}

    def take(self, table: str, before: Row | None, after: Row | None, *, is_change: bool = True) -> None:
        """``is_change``: false for a row that was read again, and may be the one that is here."""
        if table not in KEY:
            return
        self.changes += is_change
        rows = self.rows[table]
        if before is not None:
            held = rows.pop(_identify(table, before), before)
            assert held == before, f"{table}: {held} was changed, and the log has {before}"
        if after is not None:
            key = _identify(table, after)
            previous, now = self._versions.get((table, key), 0), after["v"]
            assert now > previous or (now == previous and not is_change), f"{table}: {after} came after {previous}"
            self._versions[table, key] = now
            rows[key] = after

    def take_raise(self, table: str) -> None:
        """What is there now is not known."""
        self.raised.add(table)
        if table in KEY:
            self.rows[table].clear()

    def take_line(self, line: UpdateLine) -> None:
        if line.op == "raise" and line.table is not None:
            self.take_raise(line.table)
        elif line.op != "heartbeat" and line.table is not None:
            before, after = (_padded(from_json_row(image)) for image in (line.before, line.after))
            self.take(line.table, before, after, is_change=line.op != "refresh")

    def shown(self, table: str) -> list[str]:
        return sorted(str(tuple(row.values())) for row in self.rows[table].values())


def _identify(table: str, row: Row) -> Identity:
    return (row[HOME], *(row[name] for name in KEY[table]))


def _padded(row: dict[str, Any] | None) -> Row | None:
    """As a client reads it: the log has no zeros at the end of a BINARY."""
    if row is None:
        return None
    return {name: value.ljust(3, b"\0") if name == "seat" else value for name, value in row.items()}


class Topic:
    """Of one table, in Kafka: each record is taken; a tombstone comes behind a record by which its key is gone."""

    def __init__(self, table: str, consumer: Consumer) -> None:
        self.tombstones = 0
        self._table, self._consumer = table, consumer
        self._gone: bytes | None = None

    def take(self, record: Record) -> None:
        if record.value is None:
            assert record.key == self._gone, f"{self._table}: a tombstone for {record.key!r}"
            self._gone = None
            self.tombstones += 1
            return
        assert self._gone is None, f"{self._table}: no tombstone for {self._gone!r}"
        value = json.loads(record.value)
        before, after = value["before"], value["after"]
        if value["op"] in CHANGES:
            before, after = _padded(from_json_row(before)), _padded(from_json_row(after))
        self._consumer.take(self._table, before, after)
        if before is not None and (after is None or self._key(before) != self._key(after)):
            self._gone = json.dumps(self._raw_key(value["before"]), separators=(",", ":")).encode()

    def _key(self, row: Row) -> Identity:
        return tuple(row[name] for name in KEY[self._table])

    def _raw_key(self, row: Row) -> Row:
        return {name: row[name] for name in KEY[self._table]}


class Publication:
    """What a publisher would send to Kafka, and a consumer of it."""

    def __init__(self, writer: RecordWriter) -> None:
        self.consumer = Consumer()
        self.topics = {f"{PREFIX}.shop.{table}": Topic(table, self.consumer) for table in KEY}
        self._writer = writer
        self._raises = f"{PREFIX}.raises"

    def take(self, message: StreamMessage) -> None:
        for record in self._writer.records(message):
            if record.topic in self.topics:
                self.topics[record.topic].take(record)
            elif record.topic == self._raises:
                self.consumer.take_raise(json.loads(record.key or b"")["table"])


def make_publications(stream: OpenedStream, flavor: Any) -> dict[str, Publication]:
    """In both formats."""

    def make_lines() -> LineWriter:
        return LineWriter(stream.layouts, heartbeats=False)

    def make_topics() -> Topics:
        return Topics(PREFIX, lambda _: "shop")

    return {
        "lines": Publication(LineRecords(make_topics(), make_lines())),
        "debezium": Publication(EnvelopeRecords(make_topics(), make_lines(), flavor)),
    }


class Reader:
    """Follows a stream, in each topology, in a thread of its own, and hands each message to all."""

    def __init__(self, stream: OpenedStream, publications: Mapping[str, Publication] = {}) -> None:
        self.consumer = Consumer()
        self.publications = publications
        self._stream = stream
        self._lines = LineWriter(stream.layouts, stream.stream.resume.format())
        self._taken = stream.stream.resume.tokens
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._stream.stream.close()

    @property
    def resume(self) -> str:
        return str(self._lines.resume)

    def wait(self, positions: Mapping[str, Position]) -> None:
        """Return when all of this has come, of these lineages and of no others."""

        def has_come() -> bool:
            self._check()
            tokens = self._taken
            return tokens.keys() == positions.keys() and all(
                tokens[lineage].position.contains(position) for lineage, position in positions.items()
            )

        wait_until(has_come, f"the consumer has {positions}", lambda: str(self._stream.stream.status()))

    def wait_refreshed(self) -> None:
        def is_refreshed() -> bool:
            self._check()
            return not self.resume.startswith("rf1.")

        wait_until(is_refreshed, "the refresh is over", lambda: str(self._stream.stream.status()))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._stream.follow()
                message = self._stream.stream.poll(POLL_SECONDS)
                if message is not None:
                    self._take(message)
                self._taken = self._stream.stream.resume.tokens  # and not before: it was only polled then
        except Exception as error:  # noqa: BLE001 - raised by who waits
            self._error = error

    def _take(self, message: StreamMessage) -> None:
        for publication in self.publications.values():
            publication.take(message)
        for line in self._lines.lines(message):
            if isinstance(line, UpdateLine):
                self.consumer.take_line(line)


def read_archive(archive: Path, lineages: Iterable[str]) -> Consumer:
    """What the changes of an archive come to, one lineage after the other."""
    consumer = Consumer()
    rows = [row for file in find_files(archive) for row in pq.ParquetFile(file.path).read().to_pylist()]
    for lineage in lineages:
        own = [row for row in rows if row["lineage"] == lineage]
        for row in sorted(own, key=lambda each: (each["ordinal"], each["row"])):
            if row["op"] == "raise":
                consumer.take_raise(row["table"])
            elif row["op"] in CHANGES:
                images = (row[name] and from_json_row(json.loads(row[name])) for name in ("before", "after"))
                consumer.take(row["table"], *map(_padded, images))
    return consumer
