"""The schema of a row's own time, on real servers: also for a consumer that comes after the table was altered."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from freshness.config.config import load_config
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.stream.lines import RefreshedLine, SchemaLine, UpdateLine
from freshness.stream.source import UNREADABLE
from freshness.values.json import from_json, from_json_row
from integration.configuration import write_config
from integration.harness import wait_until
from integration.servers import Pair
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery
from invalidator.stream.schema_format import format_schema

POLL_SECONDS = 0.2


@pytest.fixture
def config_path(pair: Pair, tmp_path: Path) -> Path:
    run(
        pair,
        "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(64), balance INT)",
        "CREATE TABLE ends (id INT)",
    )
    address = ServerAddress("127.0.0.1", pair.primary.port, "app", "app", "shop")
    with closing(HeartbeatWriter(address, pair.primary.flavor, "me", 0)) as writer:
        writer.prepare()
    return write_config(tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"])


def run(pair: Pair, *statements: str) -> None:
    for sql in statements:
        pair.primary.execute(sql, database="shop")


@contextmanager
def opened(path: Path, since: str = "now") -> Iterator[OpenedStream]:
    found = StreamOpener(lambda: load_config(path)).open(StreamQuery(since=since, tables=("*",)))
    try:
        yield found
    finally:
        found.stream.close()


def read(stream: OpenedStream, pair: Pair) -> list[UpdateLine | SchemaLine]:
    """The lines of a new consumer's stream, up to a row that is written now, without raised tables."""
    run(pair, "INSERT INTO ends VALUES (0)")
    writer = LineWriter(stream.layouts, heartbeats=False)
    lines: list[UpdateLine | SchemaLine] = []

    def has_end() -> bool:
        message = stream.stream.poll(POLL_SECONDS)
        told = writer.lines(message) if message is not None else ()
        lines.extend(line for line in told if not isinstance(line, RefreshedLine))
        return bool(lines) and lines[-1].table == "ends"

    wait_until(has_end, "the last row came")
    return [line for line in lines if line.table != "ends" and (isinstance(line, SchemaLine) or line.op != "raise")]


def test_rows_from_before_an_alter_come_with_the_layout_of_their_time(pair: Pair, config_path: Path) -> None:
    with opened(config_path) as stream:
        resume = stream.stream.resume.format()
    run(
        pair,
        "INSERT INTO customers VALUES (1, 'n', 5)",
        "ALTER TABLE customers DROP COLUMN balance, ADD COLUMN city VARCHAR(10) CHARACTER SET latin1 NOT NULL,"
        " MODIFY id INT UNSIGNED NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (city, id)",
        "INSERT INTO customers (id, name, city) VALUES (2, 'm', 'Ulm')",
        "UPDATE customers SET name = 'k' WHERE id = 2",
    )
    with opened(config_path, resume) as stream:
        lines = read(stream, pair)
    first, inserted, second, added, updated = lines
    assert isinstance(first, SchemaLine)
    assert isinstance(second, SchemaLine)
    assert isinstance(inserted, UpdateLine)
    assert isinstance(added, UpdateLine)
    assert isinstance(updated, UpdateLine)
    assert [(column.name, column.type, column.unsigned, column.nullable) for column in first.columns] == [
        ("id", "bigint", False, False),
        ("name", "varchar", False, True),
        ("balance", "int", False, True),
    ]
    assert [(column.name, column.type, column.unsigned, column.nullable) for column in second.columns] == [
        ("id", "int", True, False),
        ("name", "varchar", False, True),
        ("city", "varchar", False, False),
    ]
    assert (second.columns[2].length, second.columns[2].charset) == (10, "latin1")
    assert (first.key, first.key_source) == (("id",), "log")
    assert (second.key, second.key_source) == (("city", "id"), "log")
    assert (inserted.schema, inserted.key, inserted.token) == (first.id, {"id": 1}, first.token)
    assert (added.schema, added.key, added.token) == (second.id, {"city": "Ulm", "id": 2}, second.token)
    assert updated.schema == second.id != first.id


def test_the_id_of_a_layout_is_the_same_in_each_stream(pair: Pair, config_path: Path) -> None:
    """Even if the table was altered there and back, or the log file is another one."""
    with opened(config_path) as stream:
        resume = stream.stream.resume.format()
    run(
        pair,
        "INSERT INTO customers VALUES (1, 'n', 5)",
        "FLUSH BINARY LOGS",
        "INSERT INTO customers VALUES (2, 'n', 5)",
        "ALTER TABLE customers ADD COLUMN more INT",
        "INSERT INTO customers VALUES (3, 'n', 5, 6)",
        "ALTER TABLE customers DROP COLUMN more",
        "INSERT INTO customers VALUES (4, 'n', 5)",
    )
    found = []
    for _ in range(2):
        with opened(config_path, resume) as stream:
            found.append(
                [
                    ("schema", line.id) if isinstance(line, SchemaLine) else ("row", line.schema)
                    for line in read(stream, pair)
                ]
            )
    kinds = ["schema", "row", "row", "schema", "row", "schema", "row"]
    assert [kind for kind, _ in found[0]] == kinds
    plain, wide = found[0][0][1], found[0][3][1]
    assert [each for _, each in found[0]] == [plain, plain, plain, wide, wide, plain, plain]
    assert plain != wide
    assert found[1] == found[0]


# -- for libraries -------------------------------------------------------------------------------------------------

TYPES = """id BIGINT UNSIGNED PRIMARY KEY, t TINYINT, tu TINYINT UNSIGNED, s SMALLINT, m MEDIUMINT UNSIGNED, i INT,
  iu INT UNSIGNED, b BIGINT, f FLOAT, d DOUBLE, amount DECIMAL(20,10), whole DECIMAL(5,0) NOT NULL, day DATE,
  at DATETIME(6), seen TIMESTAMP(3) NULL, held TIME(2), y YEAR, flags BIT(11), c CHAR(5), v VARCHAR(20) CHARACTER SET
  utf8mb4, l VARCHAR(9) CHARACTER SET latin1, bin BINARY(4), vb VARBINARY(9), txt MEDIUMTEXT, bl BLOB,
  kind ENUM('new','it''s'), tags SET('a','b','c'), doc JSON, g POINT, `größe in cm` INT, `größe_in_cm` INT"""
ROWS = (
    "(18446744073709551615, -128, 255, -1, 16777215, -2147483648, 4294967295, -9223372036854775808, 1.5, -1e300,"
    " 0.0000000001, 99999, '2024-02-29', '2024-02-29 23:59:59.000001', '2024-02-29 12:00:00.125', '-838:59:59', 2024,"
    " b'10101010101', 'ab', 'größe 😀', 'é', 'a', X'00ff', 'text', X'fe', 'it''s', 'a,c', '{\"a\": [1, null]}',"
    " ST_GeomFromText('POINT(1 2)'), 1, 2)",
    "(0, 127, 0, 1, 0, 0, 0, 0, 0, 0, 0, -1, '1000-01-01', '1000-01-01 00:00:00', '1970-01-02 00:00:00', '00:00:00',"
    " 1901, b'0', '', '', '', '', '', '', '', 'new', '', '[]', NULL, NULL, NULL)",
    "(1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    " NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
)


@pytest.fixture
def typed_lines(pair: Pair, config_path: Path) -> tuple[SchemaLine, list[UpdateLine]]:
    """The schema of a table of all types, and the lines of its rows."""
    with opened(config_path) as stream:
        run(
            pair,
            f"CREATE TABLE goods ({TYPES})",
            *(f"INSERT INTO goods VALUES {row}" for row in ROWS),
            "UPDATE goods SET t = 5, kind = NULL WHERE id = 0",
            "INSERT IGNORE INTO goods (id, whole, day) VALUES (5, 1, '0000-00-00')",
            "DELETE FROM goods WHERE id = 1",
        )
        schema, *rows = read(stream, pair)
    assert isinstance(schema, SchemaLine)
    updates = [row for row in rows if isinstance(row, UpdateLine)]
    assert [row.op for row in updates] == ["insert"] * 3 + ["update", "insert", "delete"]
    return schema, updates


def images(lines: Sequence[UpdateLine]) -> list[dict[str, Any]]:
    return [image for line in lines for image in (line.before, line.after) if image is not None]


def test_the_json_schema_fits_the_values_of_all_types(typed_lines: tuple[SchemaLine, list[UpdateLine]]) -> None:
    # Here and not above: its import compiles dozens of grammars.
    import jsonschema

    schema, lines = typed_lines
    document = format_schema(schema, "json-schema")
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator(document)
    for row in images(lines):
        assert set(row) == set(document["properties"])
        validator.validate(row)
    for line in lines:
        validator.validate(line.key)
    whole = images(lines)[0]
    types = {column.name: column.type for column in schema.columns}  # MariaDB keeps a JSON document as text
    for name, value in whole.items():
        wrong = {**whole, name: [value, value]}
        assert validator.is_valid(wrong) == (types[name] == "json"), name
    assert not validator.is_valid({**whole, "more": 1})
    assert not validator.is_valid({**whole, "whole": None}), "it is NOT NULL"
    assert not validator.is_valid({**whole, "tu": 256})
    assert not validator.is_valid({**whole, "kind": "old"})


def test_rows_of_all_types_come_back_from_avro(typed_lines: tuple[SchemaLine, list[UpdateLine]]) -> None:
    schema, lines = typed_lines
    document = format_schema(schema, "avro")
    parsed = fastavro.parse_schema(document)
    types = {column.name: column.type + " unsigned" * column.unsigned for column in schema.columns}
    names = {field["column"]: field["name"] for field in document["fields"]}
    assert names["größe in cm"] != names["größe_in_cm"]
    for image in images(lines):
        row = from_json_row(image) or {}
        record = {names[name]: to_avro(types[name], value, image[name]) for name, value in row.items()}
        data = io.BytesIO()
        fastavro.schemaless_writer(data, parsed, record, strict=True)
        data.seek(0)
        back = fastavro.schemaless_reader(data, parsed, None, return_record_name=True)
        found = {name: from_avro(types[name], back[names[name]]) for name in row}
        assert found == row


def to_avro(kind: str, value: Any, form: Any) -> Any:
    """As docs/update-stream.md says, with the branch where Python's type does not tell it."""
    if value is UNREADABLE:
        return ("freshness.Other", {"json": json.dumps(form)})
    if kind == "json" and value is not None:
        return json.dumps(value)
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, set):
        return sorted(value)
    if kind == "timestamp" and value is not None:
        return value.replace(tzinfo=UTC)
    return Decimal(value) if kind == "bigint unsigned" else value


def from_avro(kind: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return from_json(json.loads(value[1]["json"]))
    if value is None:
        return None
    match kind:
        case "json":
            return json.loads(value)
        case "time":
            return timedelta(microseconds=value)
        case "set":
            return set(value)
        case "timestamp":
            return value.replace(tzinfo=None)
    return value
