"""A refresh between the changes, on real servers: the consumer has the table in the end, and no row goes back."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from pymysql.cursors import DictCursor

from freshness.config.config import load_config
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position, read_rows
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.pulse import Pulse
from freshness.database.walk import read_floor
from freshness.errors import ConfigError, FormatError
from freshness.stream.lines import RefreshedLine, SchemaLine, UpdateLine, encode_line
from freshness.stream.resume import REFRESH_PREFIX, TEXT_PREFIX
from freshness.stream.source import UNREADABLE
from freshness.values.json import from_json_row
from integration.configuration import write_config
from integration.harness import run_cli, wait_until
from integration.invalidator.test_row_digest import (
    TOLD,
    TOLD_MARIADB,
    TOLD_MYSQL,
    UNTOLD,
    UNTOLD_MARIADB,
    UNTOLD_MYSQL,
)
from integration.servers import DatabaseServer, Flavor, Pair
from invalidator.stream.json_lines import LineReader, LineWriter
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import RefreshRequest, StreamQuery
from invalidator.stream.selection import Selection

ROWS: Final = 5_000
CHUNK_ROWS: Final = 250
POLL_SECONDS: Final = 0.2
BEAT_SECONDS: Final = 0.3
BOUND_SECONDS: Final = 120.0
GOODS: Final = "CREATE TABLE goods (kind INT, name VARCHAR(20), v BIGINT, PRIMARY KEY (kind, name))"


RAW: Final = (
    ("VARCHAR(20) CHARACTER SET dec8", "'abc'"),
    ("CHAR(20) CHARACTER SET dec8", "'größe'"),
    ("TEXT CHARACTER SET utf16le", "'€'"),
    ("VARCHAR(20) CHARACTER SET dec8", "NULL"),
)
"""Text in character sets that Python lacks."""


def address_of(server: DatabaseServer) -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, "app", "app", "shop")


@pytest.fixture
def config_path(pair: Pair, tmp_path: Path) -> Iterator[Path]:
    """A configuration of both servers, whose heartbeats are written."""
    pair.primary.execute(GOODS, database="shop")
    pair.primary.execute("CREATE TABLE empties (id INT PRIMARY KEY)", database="shop")
    writer = HeartbeatWriter(address_of(pair.primary), pair.primary.flavor, "me", 0)
    writer.prepare()
    pulse = Pulse(writer, BEAT_SECONDS, time.monotonic, lambda: None)
    pulse.start()
    yield write_config(
        tmp_path,
        pair.primary.flavor,
        pair.primary.url,
        ["127.0.0.1:1"],
        replicas=[pair.replica.url],
        objects="[objects.goods]\ntable = 'goods'\n",
    )
    pulse.stop()


@contextmanager
def opened(path: Path, request: RefreshRequest | None, since: str = "now") -> Iterator[OpenedStream]:
    query = StreamQuery(since=since, tables=("*",), refresh=request)
    found = StreamOpener(lambda: load_config(path)).open(query)
    try:
        yield found
    finally:
        found.stream.close()


@dataclass
class Goods:
    """Writers of the table. Each row has a number that only rises, also when it is deleted and comes again.
    ``replace``: the statement that makes a row, whether it is there or not."""

    address: ServerAddress
    replace: str = "REPLACE INTO goods VALUES (%s, %s, %s)"
    stopping: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list)
    versions: Iterator[int] = field(default_factory=lambda: count(1))

    def fill(self) -> None:
        with connect(self.address) as connection, connection.cursor() as cursor:
            rows = [(number % 7, f"n{number}", 0) for number in range(ROWS)]
            cursor.executemany("INSERT INTO goods (kind, name, v) VALUES (%s, %s, %s)", rows)

    @contextmanager
    def being_written(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._write, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()
        assert self.errors == []

    def _write(self, place: int) -> None:
        chance = random.Random(place)
        try:
            with connect(self.address) as connection, connection.cursor() as cursor:
                while not self.stopping.is_set():
                    number, version = 2 * chance.randrange(ROWS // 2) + place, next(self.versions)
                    key = number % 7, f"n{number}"
                    sql = chance.choice(("UPDATE", "UPDATE", "REPLACE", "DELETE"))
                    if sql == "UPDATE":
                        cursor.execute("UPDATE goods SET v = %s WHERE kind = %s AND name = %s", (version, *key))
                    elif sql == "REPLACE":
                        cursor.execute(self.replace, (*key, version))
                    else:
                        cursor.execute("DELETE FROM goods WHERE kind = %s AND name = %s", key)
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.errors.append(error)

    def read(self) -> dict[tuple[Any, ...], Any]:
        with connect(self.address) as connection:
            rows = read_rows(connection, "SELECT kind, name, v FROM goods")
        return {(kind, name): v for kind, name, v in rows}


@dataclass
class Consumer:
    """Upserts and deletes by key. ``newest``: the highest number that it was sent of each row."""

    rows: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    newest: dict[tuple[Any, ...], int] = field(default_factory=dict)
    resume: str = "now"
    refreshed: int = 0
    is_over: bool = False

    def take(self, line: UpdateLine | RefreshedLine) -> None:
        if isinstance(line, RefreshedLine):
            self.is_over = True
        elif line.table == "goods":
            self._take_row(line)
        self.resume = line.resume or self.resume

    def _take_row(self, line: UpdateLine) -> None:
        before, after = from_json_row(line.before), from_json_row(line.after)
        assert line.op in ("insert", "update", "delete", "refresh"), line
        if line.op == "refresh":
            assert (line.row, before) == (-1, None)
            self.refreshed += 1
        if before is not None:
            key = before["kind"], before["name"]
            self.newest[key] = max(self.newest.get(key, 0), before["v"])
            self.rows.pop(key, None)
        if after is not None:
            key = after["kind"], after["name"]
            assert after["v"] >= self.newest.get(key, 0), f"{line} after {self.newest[key]}"
            self.newest[key] = after["v"]
            self.rows[key] = after["v"]


def follow(stream: OpenedStream, consumer: Consumer, is_enough: Callable[[], bool]) -> None:
    """Until it is enough, and the last transaction or chunk is whole."""
    writer = LineWriter(stream.layouts, stream.stream.resume.format())
    deadline = time.monotonic() + BOUND_SECONDS
    while not is_enough():
        assert time.monotonic() < deadline, stream.stream.status()
        message = stream.stream.poll(POLL_SECONDS)
        for line in writer.lines(message) if message is not None else ():
            if not isinstance(line, SchemaLine):
                consumer.take(line)
    consumer.resume = writer.resume or consumer.resume


def wait_shown(server: DatabaseServer) -> None:
    """Until the heartbeats certify that a SELECT shows what is committed by now."""
    shard = Shard(name="-", primary=address_of(server), lineage="shop/-")
    with connect(address_of(server)) as connection:
        head = executed_position(connection, server.flavor)
        wait_until(lambda: read_floor(connection, server.flavor, shard).position.contains(head), "a heartbeat came")


def follow_rows(stream: OpenedStream, consumer: Consumer, rows: int) -> None:
    """Follow until ``rows`` more rows of the refresh came, or it is over."""
    wanted = consumer.refreshed + rows
    follow(stream, consumer, lambda: consumer.is_over or consumer.refreshed >= wanted)


def follow_to_head(stream: OpenedStream, consumer: Consumer) -> None:
    opener = StreamOpener(lambda: stream.config)
    heads = {shard.lineage: opener.read_token(None, shard.name) for shard in stream.keyspace.shards}

    def is_there() -> bool:
        tokens = stream.stream.resume.tokens
        return all(tokens[lineage].position.contains(head.position) for lineage, head in heads.items())

    follow(stream, consumer, is_there)


@pytest.mark.parametrize("read_from", ["primary", "replica"])
def test_a_consumer_has_the_table_and_no_row_goes_back(
    pair: Pair, config_path: Path, read_from: Literal["primary", "replica"]
) -> None:
    goods, consumer = Goods(address_of(pair.primary)), Consumer()
    goods.fill()
    request = RefreshRequest(("goods", "empties"), read_from, chunk_rows=CHUNK_ROWS)
    with opened(config_path, request) as stream:
        assert stream.stream.resume.format().startswith(REFRESH_PREFIX)
        with goods.being_written():
            follow(stream, consumer, lambda: consumer.is_over)
        assert consumer.resume.startswith(TEXT_PREFIX), "the refresh is over"
        follow_to_head(stream, consumer)
    assert 0 < consumer.refreshed <= 2 * ROWS
    assert consumer.rows == goods.read()


def test_a_refresh_that_is_cut_goes_on_where_it_was(pair: Pair, config_path: Path) -> None:
    goods, consumer = Goods(address_of(pair.primary)), Consumer()
    goods.fill()
    request = RefreshRequest(("goods",), chunk_rows=CHUNK_ROWS, rows_per_second=5_000)
    cuts = 0
    with goods.being_written():
        while not consumer.is_over:
            with opened(config_path, request, consumer.resume) as stream:
                follow_rows(stream, consumer, CHUNK_ROWS)
            cuts += 1
            request = RefreshRequest(chunk_rows=CHUNK_ROWS)
    assert cuts > 1, "it was cut at least once; rows that the writers change come as changes, not as the refresh's"
    assert consumer.refreshed <= ROWS + cuts * CHUNK_ROWS, "it did not begin again"
    with opened(config_path, None, consumer.resume) as stream:
        follow_to_head(stream, consumer)
    assert consumer.rows == goods.read()


def test_a_table_that_is_altered_meanwhile_begins_again(pair: Pair, config_path: Path) -> None:
    goods = Goods(address_of(pair.primary))
    goods.fill()
    rows: dict[tuple[Any, ...], Any] = {}
    is_altered = False
    with opened(config_path, RefreshRequest(("goods",), chunk_rows=CHUNK_ROWS)) as stream:
        writer = LineWriter(stream.layouts)
        deadline = time.monotonic() + BOUND_SECONDS
        is_over = False
        while not is_over:
            assert time.monotonic() < deadline
            message = stream.stream.poll(POLL_SECONDS)
            for line in writer.lines(message) if message is not None else ():
                is_over = isinstance(line, RefreshedLine)
                if isinstance(line, UpdateLine) and line.op == "refresh":
                    rows[tuple((line.key or {}).values())] = line.after
                elif isinstance(line, UpdateLine) and line.op == "raise" and line.table == "goods":
                    rows.clear()
            if not is_altered and len(rows) >= ROWS // 2:
                pair.primary.execute("ALTER TABLE goods ADD extra INT NOT NULL DEFAULT 3", database="shop")
                is_altered = True
    assert len(rows) == ROWS
    assert {row["extra"] for row in rows.values()} == {3}


def test_a_row_reads_the_same_as_in_the_log(pair: Pair, config_path: Path, flavor: Flavor) -> None:
    empty_label = ("SET('x','','z')", "2")
    unsure = [empty_label, *(case for case in UNTOLD if "cp1251" in case[0])]
    cases = [*TOLD, *RAW, *UNTOLD, empty_label]
    cases += [*TOLD_MYSQL, *UNTOLD_MYSQL] if flavor == "mysql" else [*TOLD_MARIADB, *UNTOLD_MARIADB]
    names = [f"t{number}" for number in range(len(cases))]
    for name, (kind, _) in zip(names, cases, strict=True):
        pair.primary.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v {kind})", database="shop")
    logged: dict[str, Any] = {}
    read: dict[str, Any] = {}
    with opened(config_path, None) as stream:
        begun = stream.stream.resume.format()
    with connect(address_of(pair.primary)) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        for name, (_, value) in zip(names, cases, strict=True):
            cursor.execute(f"INSERT INTO {name} (id, v) VALUES (1, {value})")
    wait_shown(pair.primary)  # else the rows that the stream has just brought are left out
    with opened(config_path, RefreshRequest(tuple(names)), begun) as stream:
        deadline = time.monotonic() + BOUND_SECONDS
        while not (stream.stream.resume.refresh is None and len(logged) == len(names)):
            assert time.monotonic() < deadline, (len(read), len(logged))
            message = stream.stream.poll(POLL_SECONDS)
            for change in message.transaction.changes if message is not None else ():
                found = read if change.op == "refresh" else logged
                found[change.table] = change.after
    differing: list[tuple[str, str]] = []
    for name, case in zip(names, cases, strict=True):
        if repr(logged[name]["v"]) != repr(read[name]["v"]):
            assert read[name]["v"] is UNREADABLE, (case, logged[name], read[name])
            differing.append(case)
    kinds = ("UUID", "INET6") if flavor == "mariadb" else ("JSON",)
    unsure += [case for case in cases if case[0] in kinds]
    assert set(differing) <= set(unsure), "only those are not told"


NAMED_PERIOD: Final = (
    ", a TIMESTAMP(6) GENERATED ALWAYS AS ROW START{0}, b TIMESTAMP(6) GENERATED ALWAYS AS ROW END{0},"
    " PERIOD FOR SYSTEM_TIME(a, b)"
)
HIDING: Final[dict[Flavor, tuple[str, ...]]] = {
    "mariadb": (
        "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        "(id INT PRIMARY KEY, v INT, x INT WITHOUT SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
        f"(id INT PRIMARY KEY, v INT{NAMED_PERIOD.format('')}) WITH SYSTEM VERSIONING",
        f"(id INT PRIMARY KEY, v INT{NAMED_PERIOD.format(' INVISIBLE')}) WITH SYSTEM VERSIONING",
        "(id INT PRIMARY KEY, v INT, x INT INVISIBLE DEFAULT 7)",
        "(id INT, v INT, PRIMARY KEY (id, t), t TIMESTAMP(6) NOT NULL DEFAULT '2038-01-19 03:14:07.999999')",
    ),
    "mysql": ("(id INT PRIMARY KEY, v INT, x INT INVISIBLE DEFAULT 7)", "(id INT, v INT)"),
}
"""Tables whose log or key has columns that no SELECT * shows; the last of MariaDB only looks so, the last of MySQL
gets an invisible primary key."""


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_hidden_columns_make_no_rows_that_no_select_shows(
    pair: Pair, config_path: Path, flavor: Flavor, image: str
) -> None:
    # An INSERT without a column of the key logs no key in a MINIMAL image
    chosen = [each for each in HIDING[flavor] if image == "FULL" or "(id, t)" not in each]
    names = [f"t{number}" for number in range(len(chosen))]
    rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in names}
    with connect(address_of(pair.primary)) as connection, connection.cursor(DictCursor) as cursor:
        if flavor == "mysql":
            cursor.execute("SET sql_generate_invisible_primary_key = ON")
        for name, columns in zip(names, chosen, strict=True):
            cursor.execute(f"CREATE TABLE {name} {columns}")
            cursor.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1), (2, 2), (3, 3)")
        cursor.execute(f"SET binlog_row_image = {image}")
        with opened(config_path, RefreshRequest(tuple(names))) as stream:
            writer = LineWriter(stream.layouts)
            for name in names:
                cursor.execute(f"UPDATE {name} SET v = 10 WHERE id = 1")
                cursor.execute(f"UPDATE {name} SET id = 4 WHERE id = 2")
                cursor.execute(f"DELETE FROM {name} WHERE id = 3")
                cursor.execute(f"REPLACE INTO {name} (id, v) VALUES (4, 5), (5, 6)")
            pair.wait_caught_up()  # behind the stream a server cannot be refreshed from images without columns
            [head] = [StreamOpener(lambda: stream.config).read_token(None, None)]
            deadline = time.monotonic() + BOUND_SECONDS
            while not (
                stream.stream.resume.refresh is None
                and stream.stream.resume.tokens[head.lineage].position.contains(head.position)
            ):
                assert time.monotonic() < deadline
                message = stream.stream.poll(POLL_SECONDS)
                for line in writer.lines(message) if message is not None else ():
                    if isinstance(line, UpdateLine) and line.table in rows:
                        take_by_key(line, rows[line.table])
        for name, columns in zip(names, chosen, strict=True):
            cursor.execute(f"SELECT * FROM {name}")
            wanted = [*cursor.fetchall()]
            found = [{column: row[column] for column in wanted[0]} for row in rows[name].values()]
            assert sorted(found, key=repr) == sorted(wanted, key=repr), columns
            shown = {column for row in rows[name].values() for column in row} - set(wanted[0])
            assert shown <= {"x", "a", "b", "my_row_id"}, "invisible columns, which a SELECT can name"


def take_by_key(line: UpdateLine, rows: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    """As a consumer that upserts and deletes by key. An image has what the log has."""
    assert line.op != "raise", line
    assert line.key is not None, line
    before, after = from_json_row(line.before), from_json_row(line.after)
    old = None if before is None else tuple(before[name] for name in line.key)
    known = {} if old is None else rows.pop(old, {})
    if after is not None:
        row = {**known, **(before or {}), **after}
        rows[tuple(row[name] for name in line.key)] = row


def test_a_replay_passes_over_rows_that_were_only_read_again(pair: Pair, config_path: Path) -> None:
    pair.primary.execute("INSERT INTO goods VALUES (1, 'a', 1), (2, 'b', 2)", database="shop")
    lines: list[bytes] = []
    with opened(config_path, RefreshRequest(("goods",))) as stream:
        writer = LineWriter(stream.layouts)
        while stream.stream.resume.refresh is not None or b'"insert"' not in lines[-1]:
            message = stream.stream.poll(POLL_SECONDS)
            made = writer.lines(message) if message is not None else []
            lines += [encode_line(line) for line in made if getattr(line, "op", "") != "heartbeat"]
            if any(isinstance(line, RefreshedLine) for line in made):
                pair.primary.execute("INSERT INTO goods VALUES (3, 'c', 3)", database="shop")
    reader = LineReader()
    changes = [change for line in lines for each in reader.feed(line) for change in each.transaction.changes]
    assert [(change.op, change.after) for change in changes] == [("insert", {"kind": 3, "name": "c", "v": 3})]
    assert sum(b'"refresh"' in line for line in lines) == 2


def test_the_command_prints_the_rows(pair: Pair, config_path: Path) -> None:
    pair.primary.execute("INSERT INTO goods VALUES (1, 'a', 1), (2, 'b', 2)", database="shop")
    options = ("--tables", "*", "--refresh", "goods", "--refresh-chunk-rows", "1", "--no-heartbeats")
    done = run_cli("stream", "--config", config_path, *options, "--refresh-from", "replica", "--count", "2")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["key"] for line in lines] == [{"kind": 1, "name": "a"}, {"kind": 2, "name": "b"}]
    assert [(line["event"], line["op"]) for line in lines] == [("update", "refresh")] * 2
    done = run_cli("stream", "--config", config_path, *options, "--refresh-rows-per-second", "nan")
    assert done.returncode == 2
    assert "rows per second" in done.stderr


BAD: Final = (
    (RefreshRequest(("nothing",)), "there is no table 'nothing'"),
    (RefreshRequest(("goo*",)), "the stream does not carry it"),
    (RefreshRequest(("keyless",)), "has no primary key"),
    (RefreshRequest(("shares",)), "rows cannot be read in its order"),
    (RefreshRequest(("raws",)), "name of its primary key is varchar\\(9\\), and rows cannot be read in its order"),
    (RefreshRequest(("goods",), selection=Selection(hidden=("name",))), "a column of its primary key is hidden"),
)


def test_a_refresh_that_cannot_be_is_refused(pair: Pair, config_path: Path) -> None:
    pair.primary.execute("CREATE TABLE keyless (id INT)", database="shop")
    pair.primary.execute("CREATE TABLE shares (id FLOAT PRIMARY KEY)", database="shop")
    raws = "CREATE TABLE raws (name VARCHAR(9) CHARACTER SET dec8 PRIMARY KEY)"
    pair.primary.execute(raws, database="shop")
    for request, problem in BAD:
        with pytest.raises(ConfigError, match=problem), opened(config_path, request):
            pass
    with opened(config_path, RefreshRequest(("goods",))) as stream:
        resume = stream.stream.resume.format()
    with pytest.raises(ConfigError, match="goes on with a refresh"), opened(config_path, request, resume):
        pass
    with pytest.raises(FormatError, match="would be lost here"), opened(config_path, None, resume):
        pass
