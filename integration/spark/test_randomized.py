"""Thousands of random statements of all kinds: every way out of the log ends with what the servers had.

The ways: a consumer's lines, a refresh in the middle, records as Kafka gets them in both formats, the archive, the
copy that follows it, and tables in the past. Among the statements are transactions that are rolled back in part or in
whole, XA transactions with either end, keys that change, and definitions; in the middle the log is purged.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from freshness.config.reader import load_config
from freshness.database.connection import executed_position
from freshness.errors import HistoryPurged
from freshness.keys.keyrange import KeyRange
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.lines import UpdateLine
from freshness.stream.resume import ResumeVector
from freshness.values.json import from_json_row
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_until
from integration.servers import DatabaseServer, Pair
from integration.spark.seats import SEAT, SEATS_TABLE, in_database, in_frame
from invalidator.archive.writer import find_resume
from invalidator.publish.envelope import EnvelopeRecords
from invalidator.publish.record import LineRecords, RecordWriter, Topics
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.message import StreamMessage
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.refresh_request import RefreshRequest
from spark.copy import __main__ as copy_command
from spark.copy.job import find_floor
from spark.copy.state import read_copy
from spark.stream.archive_folder import ArchiveFolder
from spark.table_at import __main__ as table_at_command

STATEMENTS: Final = 700
"""In each round."""

ROUNDS: Final = 4
KEYS: Final = 40
KEPT: Final = ("customers", "seats")
"""Tables whose definition stays."""

THINGS: Final = "CREATE TABLE things (id INT PRIMARY KEY, v INT)"
KEY_COLUMNS: Final = {"customers": 1, "seats": 2, "things": 1}
POLL_SECONDS: Final = 0.2


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    extra = '[archive]\npath = "archive"\nrotate_seconds = 1\ntables = ["*"]\n'
    tables = (CUSTOMERS_TABLE, SEATS_TABLE, THINGS)
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + SEAT, extra=extra) as started:
        yield started


# -- statements ------------------------------------------------------------------------------------------------------


class Script:
    """Random statements, in one session of the primary. ``extra`` columns of ``things`` come and go."""

    def __init__(self, system: System, seed: int) -> None:
        self._chance = Random(seed)
        self._connection = system.pair.primary.connect("shop")
        self._cursor = self._connection.cursor()
        self._columns = 0
        self._xa = 0
        self.counts = {"ddl": 0, "xa": 0, "rolled back": 0}

    def close(self) -> None:
        self._connection.close()

    def run(self, statements: int) -> None:
        for _ in range(statements):
            kind = self._chance.random()
            if kind < 0.75:
                self._change()
                self._connection.commit()
            elif kind < 0.87:
                self._transaction()
            elif kind < 0.97:
                self._prepare()
            else:
                self._define()

    def _say(self, sql: str, *values: Any) -> None:
        self._cursor.execute(sql, values or None)

    def _change(self) -> None:
        chance = self._chance
        key, other = chance.sample(range(KEYS), 2)
        statements: list[tuple[Any, ...]] = [
            ("REPLACE INTO customers VALUES (%s, %s, %s)", key, f"näme {chance.random()}", other),
            ("INSERT INTO customers VALUES (%s, 'n', 0) ON DUPLICATE KEY UPDATE v = v + 1", key),
            ("UPDATE customers SET v = v + 1 WHERE id BETWEEN %s AND %s", key, key + 5),
            ("UPDATE IGNORE customers SET id = %s WHERE id = %s", other, key),
            ("DELETE FROM customers WHERE id = %s", key),
            (
                "REPLACE INTO seats VALUES (%s, %s, %s, '2026-01-31 10:00:00.125', '2026-02-01', %s, %s, %s, "
                "'2026-03-01 00:00:00', 0.1, 'bad')",
                f"A{key % 3}",
                bytes((key, other % 2, 0)),
                chance.randrange(100) / 4,
                2**63 + key,
                None if key % 2 else "ü 'quoted'",
                b"\0\xff",
            ),
            ("UPDATE seats SET price = price + 0.25, mood = 'good' WHERE hall = %s LIMIT 3", f"A{key % 3}"),
            ("UPDATE IGNORE seats SET hall = 'B', note = NULL WHERE seat = %s", bytes((key, 0, 0))),
            ("DELETE FROM seats WHERE seat >= %s LIMIT 2", bytes((key, 0, 0))),
            ("REPLACE INTO things (id, v) VALUES (%s, %s)", key, other),
            ("UPDATE things SET v = v + 1 WHERE id < %s", key),
            ("DELETE FROM things WHERE id = %s", key),
        ]
        sql, *values = chance.choice(statements)
        self._say(sql, *values)

    def _transaction(self) -> None:
        self._say("BEGIN")
        for _ in range(self._chance.randrange(1, 4)):
            self._change()
        if self._chance.random() < 0.5:
            self._say("SAVEPOINT here")
            self._change()
            self._say("ROLLBACK TO here")
        is_kept = self._chance.random() < 0.6
        self.counts["rolled back"] += not is_kept
        self._say("COMMIT" if is_kept else "ROLLBACK")

    def _prepare(self) -> None:
        self._xa += 1
        self.counts["xa"] += 1
        name = f"'x{self._xa}'"
        self._say(f"XA START {name}")
        for _ in range(self._chance.randrange(1, 4)):
            self._change()
        self._say(f"XA END {name}")
        self._say(f"XA PREPARE {name}")
        self._say(f"XA {'COMMIT' if self._chance.random() < 0.5 else 'ROLLBACK'} {name}")

    def _define(self) -> None:
        self.counts["ddl"] += 1
        self._columns += 1
        column = f"c{self._columns}"
        statements = self._chance.choice(
            (
                (f"ALTER TABLE things ADD COLUMN {column} INT DEFAULT {self._columns}",),
                (f"ALTER TABLE things ADD COLUMN {column} INT", f"ALTER TABLE things DROP COLUMN {column}"),
                ("ALTER TABLE things MODIFY v BIGINT",),
                ("TRUNCATE TABLE things",),
                ("DROP TABLE things", THINGS),
                ("RENAME TABLE things TO others", "RENAME TABLE others TO things"),
                (
                    "CREATE TABLE others LIKE things",
                    "INSERT INTO others SELECT * FROM things",
                    "DROP TABLE others",
                ),
            )
        )
        for sql in statements:
            self._say(sql)


@dataclass(frozen=True, slots=True)
class Seen:
    """What SELECT gave when the primary had executed this and nothing else was written."""

    position: Position
    rows: dict[str, list[str]]


def look(system: System) -> Seen:
    with closing(system.pair.primary.connect("shop")) as connection:
        head = executed_position(connection, system.pair.primary.flavor)
    return Seen(head, {table: in_database(system, table) for table in KEY_COLUMNS})


# -- consumers -------------------------------------------------------------------------------------------------------


@dataclass
class Consumer:
    """Upserts and deletes by key. A table that is raised is not known from there on."""

    rows: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = field(
        default_factory=lambda: {table: {} for table in KEY_COLUMNS}
    )
    raised: set[str] = field(default_factory=set)

    def take(self, line: UpdateLine) -> None:
        if line.op == "raise" and line.table is not None:
            self.raised.add(line.table)
        if line.table not in self.rows or line.op in ("raise", "heartbeat"):
            return
        rows = self.rows[line.table]
        for image, is_after in ((line.before, False), (line.after, True)):
            row = _padded(line.table, from_json_row(image))
            if row is not None and is_after:
                rows[row[: KEY_COLUMNS[line.table]]] = row
            elif row is not None:
                rows.pop(row[: KEY_COLUMNS[line.table]], None)

    def shown(self, table: str) -> list[str]:
        return sorted(str(row) for row in self.rows[table].values())


def _padded(table: str, row: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """As a client reads it: the log has no zeros at the end of a BINARY."""
    if row is None:
        return None
    return tuple(value.ljust(3, b"\0") if name == "seat" else value for name, value in row.items())


@dataclass
class Topic:
    """A compacted topic: the last value of each key, and none behind a tombstone."""

    values: dict[bytes, Any] = field(default_factory=dict)


class Reader:
    """Follows a stream in a thread of its own, and hands each message to all."""

    def __init__(self, stream: OpenedStream, writers: dict[str, RecordWriter]) -> None:
        self.consumer, self.topics = Consumer(), {name: dict[str, Topic]() for name in writers}
        self._stream, self._writers = stream, writers
        self._lines = LineWriter(stream.layouts, stream.stream.resume.format())
        self._is_over = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._stream.stream.close()

    @property
    def resume(self) -> str:
        return str(self._lines.resume)

    def wait(self, position: Position) -> None:
        def has_come() -> bool:
            if self.error is not None:
                raise self.error
            return all(
                each.position.contains(position) for each in self._stream.stream.resume.tokens.values()
            )

        wait_until(has_come, f"the consumer has {position}")

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                message = self._stream.stream.poll(POLL_SECONDS)
                if message is not None:
                    self._take(message)
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            self.error = error

    def _take(self, message: StreamMessage) -> None:
        for name, writer in self._writers.items():
            for record in writer.records(message):
                topic = self.topics[name].setdefault(record.topic, Topic())
                if record.key is not None and record.value is None:
                    topic.values.pop(record.key, None)
                elif record.key is not None:
                    topic.values[record.key] = json.loads(record.value or b"")
        for line in self._lines.lines(message):
            if isinstance(line, UpdateLine):
                self.consumer.take(line)


def open_stream(system: System, refresh: RefreshRequest | None = None) -> OpenedStream:
    return StreamOpener(lambda: load_config(system.config_path)).open(
        since="now", tables=("*",), refresh=refresh
    )


def open_reader(system: System) -> Reader:
    stream = open_stream(system)

    def make_lines() -> LineWriter:
        return LineWriter(stream.layouts, heartbeats=False)

    writers: dict[str, RecordWriter] = {
        "lines": LineRecords(Topics("p", lambda _: "shop"), make_lines()),
        "debezium": EnvelopeRecords(Topics("p", lambda _: "shop"), make_lines(), system.pair.primary.flavor),
    }
    return Reader(stream, writers)


# -- the test --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_way_out_of_the_log_ends_with_what_the_server_had(
    system: System, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, copy = tmp_path / "archive", tmp_path / "copy"
    keyspace = system.config.keyspaces["shop"]
    shard = keyspace.shards[0]
    lineage = shard.lineage

    def wait_archived(position: Position) -> None:
        wait_until(lambda: lineage in find_resume(archive, "shop"), "the archive has begun", system.describe)
        wait_until(
            lambda: find_resume(archive, "shop")[lineage].position.contains(position),
            f"the archive has {position}",
            system.describe,
        )

    def make_copy() -> None:
        options = ["--config", str(system.config_path), "--out", str(copy), "--archive", str(archive)]
        assert copy_command.main([*options, "--tables", ",".join(KEY_COLUMNS)], session) == 0, (
            capsys.readouterr()
        )

    wait_archived(look(system).position)
    [archived] = ArchiveFolder(str(archive)).list_shards("shop")
    wait_until(
        lambda: find_floor(keyspace, shard, shard.primary).position.contains(archived.begin.position),
        "a heartbeat shows all from before the archive",
        system.describe,
    )
    script, seen = Script(system, seed=11), list[Seen]()
    with closing(script), open_reader(system) as reader:
        early = reader.resume
        refreshed: Reader | None = None
        for number in range(ROUNDS):
            script.run(STATEMENTS)
            seen.append(look(system))
            reader.wait(seen[-1].position)
            for table in KEPT:
                assert reader.consumer.shown(table) == seen[-1].rows[table], table
            if number == 0:
                # Between the statements of the second round.
                refreshed = Reader(open_stream(system, RefreshRequest(KEPT, chunk_rows=7)), {}).__enter__()
            elif number == 1:
                make_copy()
                wait_archived(seen[-1].position)
                system.wait_covered()
                purge(system)
        last = seen[-1]
        assert refreshed is not None
        try:
            refreshed.wait(last.position)
            wait_until(lambda: not refreshed.resume.startswith("rf1."), "the refresh is over")
            for table in KEPT:
                assert refreshed.consumer.shown(table) == last.rows[table], table
        finally:
            refreshed.__exit__()
        assert not reader.consumer.raised.intersection(KEPT)
        assert "things" in reader.consumer.raised
        assert all(script.counts.values()), script.counts
        for kind in ("lines", "debezium"):
            values = reader.topics[kind]["p.shop.customers"].values.values()
            assert (
                sorted(str(tuple(value["after"].values())) for value in values) == last.rows["customers"]
            ), kind
            assert len(reader.topics[kind]["p.shop.seats"].values) == len(last.rows["seats"]), kind
    with pytest.raises(HistoryPurged):
        follow_once(system, early)

    wait_archived(last.position)
    make_copy()
    for table in KEY_COLUMNS:
        assert in_frame(read_copy(session, copy, table)) == last.rows[table], table
    epoch = find_resume(archive, "shop")[lineage].epoch
    told = {0: 0, 4: 0}
    for number, each in enumerate(seen):
        token = EventToken(lineage, "-", epoch, 0, each.position)
        vector = ResumeVector("shop", KeyRange.parse("-"), {lineage: token})
        for table in KEY_COLUMNS:
            out = tmp_path / f"{table}{number}"
            options = ["--archive", str(archive), "--copy", str(copy), "--table", table]
            capsys.readouterr()
            code = table_at_command.main([*options, "--at", vector.format(), "--out", str(out)], session)
            told[code] += 1
            if code == 0:
                assert in_frame(session.read.parquet(str(out))) == each.rows[table], (table, number)
            else:
                assert table == "things"
                assert "changed things as a whole" in capsys.readouterr().err
    assert told[0] >= ROUNDS * len(KEPT)


def follow_once(system: System, since: str) -> None:
    """Begin there, and wait for what comes first."""
    with closing(
        StreamOpener(lambda: load_config(system.config_path)).open(since=since, tables=("*",)).stream
    ) as stream:
        wait_until(lambda: stream.poll(POLL_SECONDS), "a transaction, or the end")


def purge(system: System) -> None:
    """Only the last log is left, on both servers, of what was written by now."""
    system.pair.wait_caught_up()
    for server in (system.pair.primary, system.pair.replica):
        server.execute("FLUSH BINARY LOGS")
        wait_until(partial(has_purged, server), "the former logs are gone")


def has_purged(server: DatabaseServer) -> bool:
    [*_, last] = server.execute("SHOW BINARY LOGS")
    server.execute(f"PURGE BINARY LOGS TO '{last[0]}'")
    return len(server.execute("SHOW BINARY LOGS")) == 1
