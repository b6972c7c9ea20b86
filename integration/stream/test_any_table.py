"""The stream of tables that nobody caches, on real servers: any key, tables that come and go, chosen columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from freshness.config.config import load_config
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import ConfigError
from freshness.history.archive_file import find_files
from freshness.history.footer import read_footer
from freshness.stream.lines import UpdateLine
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, call_cli, wait_until
from integration.servers import Pair
from invalidator.archive.reader import open_archive
from invalidator.archive.record import record
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery
from invalidator.stream.selection import WHOLE, Selection

POLL_SECONDS = 0.2
TABLES = (
    CUSTOMERS_TABLE,
    "CREATE TABLE seen_at (at TIMESTAMP(3) PRIMARY KEY, v INT)",
    "CREATE TABLE weights (w DOUBLE PRIMARY KEY, v INT)",
    "CREATE TABLE notes (text VARCHAR(20), v INT)",
    "CREATE TABLE ends (id INT)",
    "CREATE VIEW all_notes AS SELECT * FROM notes",
)


@pytest.fixture
def config_path(pair: Pair, tmp_path: Path) -> Path:
    for sql in TABLES:
        pair.primary.execute(sql, database="shop")
    address = ServerAddress("127.0.0.1", pair.primary.port, "app", "app", "shop")
    with closing(HeartbeatWriter(address, pair.primary.flavor, "me", 0)) as writer:
        writer.prepare()
    return write_config(tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"])


@contextmanager
def opened(path: Path, *tables: str, since: str = "now") -> Iterator[OpenedStream]:
    found = StreamOpener(lambda: load_config(path)).open(StreamQuery(since=since, tables=(*tables, "ends")))
    try:
        yield found
    finally:
        found.stream.close()


def read(stream: OpenedStream, pair: Pair, selection: Selection = WHOLE) -> list[UpdateLine]:
    """All lines up to a row that is written now."""
    pair.primary.execute("INSERT INTO ends VALUES (0)", database="shop")
    writer = LineWriter(stream.layouts, heartbeats=False, selection=selection)
    lines: list[UpdateLine] = []

    def has_end() -> bool:
        message = stream.stream.poll(POLL_SECONDS)
        told = writer.lines(message) if message is not None else ()
        lines.extend(line for line in told if isinstance(line, UpdateLine))
        return bool(lines) and lines[-1].table == "ends"

    wait_until(has_end, "the last row came")
    return lines[:-1]


def run(pair: Pair, *statements: str) -> None:
    for sql in statements:
        pair.primary.execute(sql, database="shop")


def told(lines: Sequence[UpdateLine]) -> list[tuple[str | None, str]]:
    return [(line.table, line.op) for line in lines]


def test_tables_that_nobody_caches_come_with_keys_of_any_type(pair: Pair, config_path: Path) -> None:
    with opened(config_path, "*") as stream:
        run(
            pair,
            "INSERT INTO customers VALUES (1, 'n', 0)",
            "INSERT INTO seen_at VALUES ('2026-01-31 12:00:00.125', 1)",
            "UPDATE seen_at SET v = 2",
            "INSERT INTO weights VALUES (0.1, 1)",
            "DELETE FROM weights",
            "INSERT INTO notes VALUES ('n', 1)",
        )
        lines = read(stream, pair)
    assert told(lines) == [
        ("customers", "insert"),
        ("seen_at", "insert"),
        ("seen_at", "update"),
        ("weights", "insert"),
        ("weights", "delete"),
        ("notes", "insert"),
    ]
    assert [line.key is None for line in lines] == [False] * 5 + [True], "notes has no primary key"
    assert lines[3].key == lines[4].key == {"w": 0.1}
    assert lines[5].after == {"text": "n", "v": 1}


def test_tables_that_are_created_renamed_and_dropped_are_told(pair: Pair, config_path: Path) -> None:
    """A table that is new to the consumer and has rows already is raised: its rows were another table's."""
    with opened(config_path, "*") as stream:
        run(
            pair,
            "CREATE TABLE fresh (id INT PRIMARY KEY)",
            "INSERT INTO fresh VALUES (1)",
            "RENAME TABLE fresh TO renamed",
            "INSERT INTO renamed VALUES (2)",
            "DROP TABLE renamed",
        )
        lines = read(stream, pair)
    rows = [(line.table, line.op, line.after) for line in lines if line.op != "raise"]
    assert rows == [("fresh", "insert", {"id": 1}), ("renamed", "insert", {"id": 2})]
    raised = [line.table for line in lines if line.op == "raise"]
    assert {"fresh", "renamed"} <= set(raised)
    assert raised[-1] == "renamed", "it was dropped"
    assert {"create", "table", "int"}.isdisjoint(raised)


def test_a_table_that_another_one_was_renamed_to_is_raised(pair: Pair, config_path: Path) -> None:
    with opened(config_path, "*") as stream:
        run(pair, "RENAME TABLE weights TO masses")
        lines = read(stream, pair)
    assert told(lines) == [("masses", "raise"), ("weights", "raise")]


def test_a_table_that_is_gone_when_the_stream_goes_on_is_raised(pair: Pair, config_path: Path) -> None:
    with opened(config_path, "*") as stream:
        read(stream, pair)
        resume = stream.stream.resume.format()
    run(pair, "DROP TABLE weights", "ALTER TABLE seen_at RENAME TO noticed")
    with opened(config_path, "*", since=resume) as stream:
        lines = read(stream, pair)
    assert told(lines) == [("weights", "raise"), ("noticed", "raise"), ("seen_at", "raise")]


def test_other_tables_do_not_come(pair: Pair, config_path: Path) -> None:
    with opened(config_path, "w*", "notes") as stream:
        run(
            pair,
            "INSERT INTO customers VALUES (1, 'n', 0)",
            "INSERT INTO weights VALUES (1, 1)",
            "ALTER TABLE customers ADD COLUMN more INT",
            "CREATE TABLE wide (id INT PRIMARY KEY)",
            "INSERT INTO wide VALUES (1)",
        )
        lines = read(stream, pair)
    assert {line.table for line in lines} == {"weights", "wide"}
    assert [line.table for line in lines if line.op == "insert"] == ["weights", "wide"]


def test_keys_alone_tell_a_row_that_got_another_key(pair: Pair, config_path: Path) -> None:
    with opened(config_path, "weights", "notes") as stream:
        run(
            pair, "INSERT INTO weights VALUES (1, 1)", "UPDATE weights SET w = 2", "INSERT INTO notes VALUES ('n', 1)"
        )
        lines = read(stream, pair, Selection(images="keys"))
    images = [(line.key, line.before, line.after) for line in lines]
    assert images == [
        ({"w": 1.0}, None, {"w": 1.0}),
        ({"w": 2.0}, {"w": 1.0}, {"w": 2.0}),
        (None, None, {"text": "n", "v": 1}),
    ]


def test_a_consumer_goes_on_with_other_columns(pair: Pair, config_path: Path) -> None:
    with opened(config_path, "customers", "notes") as stream:
        run(pair, "INSERT INTO customers VALUES (1, 'n', 0)")
        [line] = read(stream, pair, Selection(("*.name", "customers.id"), hidden=("id",)))
    assert (line.key, line.after) == (None, {"name": "n"})


def test_a_table_that_is_not_there_is_refused(pair: Pair, config_path: Path) -> None:
    for wrong, hint in (("custmers", "did you mean customers"), ("z*", "a pattern has"), ("all_notes", "notes")):
        with pytest.raises(ConfigError, match="there is no table") as caught, opened(config_path, wrong):
            pass
        assert hint in caught.value.hint


def test_the_verb_prints_chosen_tables(pair: Pair, config_path: Path) -> None:
    run(pair, "INSERT INTO weights VALUES (1, 7)")
    result = call_cli(
        *("stream", "-c", config_path, "--since", "2026-01-01T00:00:00Z", "--tables", "weights"),
        *("--columns", "v", "--count", "1", "--no-heartbeats"),
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0]["table"] == "weights"
    for wrong in ("--tables=a,,b", "--columns=,", "--images=none", "--tables=nowhere"):
        assert call_cli("stream", "-c", config_path, wrong).returncode == 2


def test_the_archive_has_the_tables_that_are_named(pair: Pair, config_path: Path, tmp_path: Path) -> None:
    with opened(config_path, "*") as stream:
        resume = stream.stream.resume.format()
    run(pair, "INSERT INTO weights VALUES (1, 1)", "INSERT INTO customers VALUES (1, 'n', 0)", "DELETE FROM weights")
    config_path.write_text(f'{config_path.read_text()}[archive]\ntables = ["w*"]\n')
    recorded: list[int] = []
    record(
        StreamOpener(lambda: load_config(config_path)),
        tmp_path / "archive",
        None,
        resume,
        lambda: bool(recorded) and recorded[-1] == 3,
        lambda archive, _: recorded.append(archive.transactions),
    )
    [lineage] = open_archive(tmp_path / "archive")
    changes = [change for message in lineage.messages() for change in message.transaction.changes]
    assert [(change.table, change.op) for change in changes] == [("weights", "insert"), ("weights", "delete")]
    assert read_footer(find_files(tmp_path / "archive")[-1].path).tables == ("w*",)
