"""The schema of a table from a TABLE_MAP event; real servers: integration/stream/test_schema.py."""

from __future__ import annotations

import pytest

from freshness.errors import FormatError
from freshness.stream.schema import TableColumn
from invalidator.binlog.rows.decoder import RowDecoder, RowTable
from invalidator.binlog.rows.schema import describe_table
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.tablemap import MappedColumn, read_columns, read_name, read_primary_key
from tests.unit.invalidator.binlog.rowevents import integer, table_map, varchar

ID = integer("id", is_nullable=False)


def key_of(more: bytes) -> tuple[str, ...]:
    body = table_map([ID, varchar("v")], more=more).body
    _, place = read_name(body, types.NAMES_START)
    _, place = read_name(body, place)
    return read_primary_key(body, place, read_columns(body, place, "mysql"))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (b"", ()),
        (b"\x08\x01\x00", ("id",)),
        (b"\x08\x02\x01\x00", ("v", "id")),
        (b"\x09\x04\x00\x00\x01\x03", ("id", "v")),
        (b"\x0c\x01\xc0", ()),
    ],
)
def test_the_primary_key_in_its_order(more: bytes, key: tuple[str, ...]) -> None:
    assert key_of(more) == key


def test_a_key_of_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(FormatError, match="primary key"):
        key_of(b"\x08\x01\x02")
    table = RowDecoder("mysql", "shop", {"goods"}).map_table(table_map([ID], more=b"\x08\x01\x02"))
    assert isinstance(table, RowTable)
    assert "cannot be read" in table.problem, "its rows raise it"


def column(kind: int, width: int = 0, **parts: object) -> MappedColumn:
    plain = MappedColumn("c", kind, width, 0, False, True, 0, ())
    return plain._replace(**parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mapped", "described"),
    [
        (column(types.LONGLONG, is_unsigned=True), TableColumn("c", "bigint", True, unsigned=True)),
        (column(types.TINY, is_nullable=False), TableColumn("c", "tinyint", False)),
        (column(types.NEWDECIMAL, 12, scale=3), TableColumn("c", "decimal", True, length=12, scale=3)),
        (column(types.BIT, 9), TableColumn("c", "bit", True, length=9)),
        (column(types.YEAR, is_unsigned=True), TableColumn("c", "year", True)),
        (column(types.DATETIME2, 6), TableColumn("c", "datetime", True, scale=6)),
        (column(types.TIMESTAMP2), TableColumn("c", "timestamp", True, scale=0)),
        (column(types.VARCHAR, 80, collation=45), TableColumn("c", "varchar", True, length=80, charset="utf8mb4")),
        (column(types.VARCHAR, 80, collation=63), TableColumn("c", "varbinary", True, length=80)),
        (column(types.STRING, 4, collation=8), TableColumn("c", "char", True, length=4, charset="latin1")),
        (column(types.STRING, 4, collation=63), TableColumn("c", "binary", True, length=4)),
        (column(types.BLOB, 3, collation=45), TableColumn("c", "mediumtext", True, charset="utf8mb4")),
        (column(types.BLOB, 1, collation=63), TableColumn("c", "tinyblob", True)),
        (
            column(types.ENUM, 1, collation=8, labels=(b"\xe9",)),
            TableColumn("c", "enum", True, charset="latin1", labels=("é",)),
        ),
        (column(types.SET, 1, collation=63, labels=(b"\xe9",)), TableColumn("c", "set", True)),
    ],
)
def test_columns(mapped: MappedColumn, described: TableColumn) -> None:
    found = describe_table([mapped], ("c",), "mysql")
    assert (found.columns, found.key, found.key_source) == ((described,), ("c",), "log")
