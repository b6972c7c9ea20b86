"""Schemas in the stream: told before the first row of a layout, by an id that only the layout decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.errors import FormatError
from freshness.stream.lines import RefreshedLine, SchemaLine, UpdateLine, encode_line
from freshness.stream.schema import TableColumn, TableSchema, make_schema_id
from freshness.stream.source import RowChange
from invalidator.binlog.rows.layout import Layout
from invalidator.stream.json_lines import LineReader, LineWriter, MadeLine, cut_lines, read_schemas
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.schema_book import SchemaBook
from invalidator.stream.schema_format import format_schema
from invalidator.stream.selection import WHOLE, Selection
from tests.unit.invalidator.stream.test_json_lines import LAYOUTS, message, resume, token

ID = TableColumn("id", "bigint", False)
V = TableColumn("v", "varchar", True, length=80, charset="utf8mb4")
NARROW = TableSchema((ID,), ("id",), "log")
WIDE = TableSchema((ID, V), ("id",), "log")


def insert(schema: TableSchema | None, number: int = 1) -> RowChange:
    row = {"id": number, "v": "a"} if schema is None else {each.name: number for each in schema.columns}
    return RowChange("customers", "insert", None, row, schema=schema)


def write(*messages: Any, selection: Selection = WHOLE) -> list[MadeLine]:
    writer = LineWriter(LayoutBook(lambda _: LAYOUTS), selection=selection)
    return [line for each in messages for line in writer.lines(each)]


def kinds(lines: list[MadeLine]) -> list[tuple[str, str]]:
    return [
        ("schema", line.id) if isinstance(line, SchemaLine) else ("row", line.schema)
        for line in lines
        if not isinstance(line, RefreshedLine)
    ]


def id_of(schema: TableSchema) -> str:
    return make_schema_id("shop", "customers", schema.columns, schema.key)


def test_a_schema_stands_before_the_first_row_of_each_layout() -> None:
    again = TableSchema((replace(ID), replace(V)), ("id",), "log")
    lines = write(
        message(5, insert(NARROW), insert(NARROW)),
        message(6, insert(WIDE)),
        message(7, insert(again)),
        message(8, insert(NARROW)),
    )
    narrow, wide = id_of(NARROW), id_of(WIDE)
    assert kinds(lines) == [
        ("schema", narrow),
        ("row", narrow),
        ("row", narrow),
        ("schema", wide),
        ("row", wide),
        ("row", wide),
        ("schema", narrow),
        ("row", narrow),
    ]
    first, later = lines[0], lines[3]
    assert isinstance(first, SchemaLine)
    assert (first.columns, first.key, first.key_source) == ((ID,), ("id",), "log")
    assert (first.token, first.resume, later.resume) == (str(token(5)), None, resume(5))


def test_each_shard_and_each_connection_is_told() -> None:
    lines = write(message(5, insert(NARROW)), message(6, insert(NARROW), shard="-80"))
    assert [kind for kind, _ in kinds(lines)] == ["schema", "row"] * 2
    assert kinds(write(message(6, insert(NARROW))))[0] == ("schema", id_of(NARROW))


def test_a_schema_comes_before_a_row_that_is_held_back() -> None:
    whole = [message(5, insert(NARROW), is_last=False), message(5, insert(WIDE), first_row=1)]
    lines = write(*whole)
    assert [kind for kind, _ in kinds(lines)] == ["schema", "row", "schema", "row"]
    ends = [line.last for line in lines if isinstance(line, UpdateLine)]
    assert ends == [False, True]


def test_the_key_is_that_of_the_rows_time_and_not_of_now() -> None:
    """The current layouts have the key (id)."""
    previous = TableSchema((ID, V), ("v",), "log")
    schema, line = write(message(5, insert(previous, 3)))
    assert isinstance(line, UpdateLine)
    assert isinstance(schema, SchemaLine)
    assert (line.key, schema.key) == ({"v": 3}, ("v",))
    keyless = TableSchema((ID, V), (), "log")
    schema, line = write(message(5, insert(keyless)))
    assert isinstance(line, UpdateLine)
    assert isinstance(schema, SchemaLine)
    assert (line.key, schema.key, schema.key_source) == (None, (), "log")


def test_a_key_that_the_source_does_not_tell_is_that_of_now_and_says_so() -> None:
    untold = TableSchema((ID, V), None, "unknown")
    schema, line = write(message(5, insert(untold, 3)))
    assert isinstance(line, UpdateLine)
    assert isinstance(schema, SchemaLine)
    assert (line.key, schema.key, schema.key_source) == ({"id": 3}, ("id",), "server")
    writer = LineWriter(LayoutBook(lambda _: {}))
    schema, line = writer.lines(message(5, insert(untold)))
    assert isinstance(schema, SchemaLine)
    assert (schema.key, schema.key_source) == (None, "unknown")


def test_another_key_of_now_is_another_schema() -> None:
    found = [{"customers": Layout((name,), frozenset("iv"), frozenset("iv"))} for name in ("id", "v")]
    writer = LineWriter(LayoutBook(lambda _: found.pop(0)))
    untold = TableSchema((ID, V), None, "unknown")
    first = writer.lines(message(5, insert(untold), raised_tables=frozenset(("customers",))))
    second = writer.lines(message(6, insert(untold)))
    assert isinstance(second[0], SchemaLine)
    assert (second[0].key, second[0].id != first[0].id) == (("v",), True)  # type: ignore[union-attr]


def test_a_source_without_schemas_has_no_lines_of_them() -> None:
    assert kinds(write(message(5, insert(None)))) == [("row", "")]
    assert "schema" not in json.loads(encode_line(write(message(5, insert(None)))[0]))


@pytest.mark.parametrize(
    "other",
    [
        replace(V, name="w"),
        replace(V, type="char"),
        replace(V, nullable=False),
        replace(V, unsigned=True),
        replace(V, length=81),
        replace(V, scale=1),
        replace(V, charset="latin1"),
        replace(V, labels=("a",)),
    ],
)
def test_every_part_of_a_layout_decides_its_id(other: TableColumn) -> None:
    plain = make_schema_id("shop", "customers", (ID, V), ("id",))
    assert plain == "3688a8c9f3727a83", "consumers keep ids"
    assert make_schema_id("shop", "customers", (ID, other), ("id",)) != plain
    assert make_schema_id("shop", "customers", (V, ID), ("id",)) != plain
    for keyspace, table, key in (
        ("shops", "customers", ("id",)),
        ("shop", "customer", ("id",)),
        ("shop", "customers", ()),
        ("shop", "customers", None),
    ):
        assert make_schema_id(keyspace, table, (ID, V), key) != plain


def test_a_hidden_column_is_in_no_schema() -> None:
    """Not even its id reveals the hidden column."""
    hidden = Selection(hidden=("v",))
    schema, line = write(message(5, insert(WIDE)), selection=hidden)
    assert isinstance(schema, SchemaLine)
    assert (schema.columns, schema.key, schema.id) == ((ID,), ("id",), id_of(NARROW))
    assert kinds([line]) == [("row", schema.id)]
    schema, _ = write(message(5, insert(WIDE)), selection=Selection(hidden=("id",)))
    assert isinstance(schema, SchemaLine)
    assert (schema.columns, schema.key) == ((V,), None)


def test_chosen_columns_leave_the_schema_whole() -> None:
    schema, line = write(message(5, insert(WIDE)), selection=Selection(("id",)))
    assert isinstance(schema, SchemaLine)
    assert isinstance(line, UpdateLine)
    assert (schema.id, line.after) == (id_of(WIDE), {"id": 1})


def test_schemas_do_not_count() -> None:
    lines = write(message(5, insert(NARROW), insert(WIDE), insert(WIDE)))
    assert [kind for kind, _ in kinds(cut_lines(lines, 1))] == ["schema", "row"]
    assert [kind for kind, _ in kinds(cut_lines(lines, 2))] == ["schema", "row"] * 2
    assert cut_lines(lines, 4) == lines


def test_a_recording_is_read_past_its_schemas_and_they_are_found(tmp_path: Path) -> None:
    lines = write(message(5, insert(NARROW)), message(6, insert(WIDE)))
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"\n".join(map(encode_line, lines)))
    reader = LineReader()
    messages = [each for line in lines for each in reader.feed(encode_line(line))]
    assert messages == [message(5, insert(NARROW)), message(6, insert(WIDE))]
    assert [line.id for line in read_schemas(path)] == [id_of(NARROW), id_of(WIDE)]
    path.write_bytes(encode_line(lines[0]) + b'{"event": "schema"}\n')
    with pytest.raises(FormatError, match="line 2"):
        list(read_schemas(path))


def test_the_book_forgets_what_was_told_the_longest_ago() -> None:
    [one, _], [two, _], [three, _] = (
        write(message(5, insert(replace(NARROW, key=key)))) for key in ((), ("id",), ("v",))
    )
    book = SchemaBook(2)
    for line in (one, two, one, three):
        assert isinstance(line, SchemaLine)
        book.note(line)
    assert isinstance(one, SchemaLine)
    assert isinstance(two, SchemaLine)
    assert (book.find(one.id), book.find(two.id)) == (one, None)


# -- for libraries -------------------------------------------------------------------------------------------------


def documents(*columns: TableColumn) -> tuple[dict[str, Any], dict[str, Any]]:
    schema, _ = write(message(5, insert(TableSchema(columns, (), "log"))))
    assert isinstance(schema, SchemaLine)
    return format_schema(schema, "json-schema"), format_schema(schema, "avro")


@pytest.mark.parametrize(
    ("column", "avro"),
    [
        (TableColumn("c", "int", False), "int"),
        (TableColumn("c", "int", False, unsigned=True), "long"),
        (TableColumn("c", "mediumint", False, unsigned=True), "int"),
        (TableColumn("c", "bigint", False), "long"),
        (
            TableColumn("c", "bigint", False, unsigned=True),
            {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0},
        ),
        (
            TableColumn("c", "decimal", False, length=9, scale=2),
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        ),
        (TableColumn("c", "date", False), {"type": "int", "logicalType": "date"}),
        (TableColumn("c", "datetime", False), {"type": "long", "logicalType": "local-timestamp-micros"}),
        (TableColumn("c", "timestamp", False), {"type": "long", "logicalType": "timestamp-micros"}),
        (TableColumn("c", "time", False), "long"),
        (TableColumn("c", "text", False, charset="utf8mb4"), "string"),
        (TableColumn("c", "text", False, charset=""), "bytes"),
        (TableColumn("c", "point", False), "bytes"),
        (TableColumn("c", "set", False, labels=("a",)), {"type": "array", "items": "string"}),
    ],
)
def test_the_types_of_avro(column: TableColumn, avro: Any) -> None:
    _, document = documents(column)
    [only] = document["fields"]
    assert only["type"][0] == avro
    assert only["type"][1]["name"] == "freshness.Other"


def test_names_that_avro_does_not_allow() -> None:
    _, document = documents(*(TableColumn(name, "int", True) for name in ("1 a", "_1_a", "ä", "ö", "_")))
    assert [(each["column"], each["name"]) for each in document["fields"]] == [
        ("1 a", "_1_a"),
        ("_1_a", "_1_a_2"),
        ("ä", "_"),
        ("ö", "__2"),
        ("_", "__3"),
    ]
    assert [each["type"][0] for each in document["fields"]] == ["null"] * 5
    assert [each["type"][2] for each in document["fields"]][1:] == ["freshness.Other"] * 4


def test_a_schema_for_libraries_names_its_table_and_its_key() -> None:
    plain, avro = documents(ID, V)
    assert plain["$id"].endswith(avro["schema_id"])
    assert (plain["title"], plain["x-primary-key"]) == ("shop.customers", [])
    assert (avro["name"], avro["namespace"], avro["primary_key"]) == ("customers", "freshness.shop", [])
