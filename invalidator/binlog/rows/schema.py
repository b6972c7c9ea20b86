"""The schema of a table at a place in the log, as its TABLE_MAP event describes it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from freshness.stream.schema import TableColumn, TableSchema
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.fieldvalue import decode_labels
from invalidator.binlog.wire.tablemap import BINARY_COLLATION, MappedColumn
from invalidator.charset import find_charset

_NAMES: Final = {
    types.TINY: "tinyint",
    types.SHORT: "smallint",
    types.INT24: "mediumint",
    types.LONG: "int",
    types.LONGLONG: "bigint",
    types.FLOAT: "float",
    types.DOUBLE: "double",
    types.NEWDECIMAL: "decimal",
    types.BIT: "bit",
    types.YEAR: "year",
    **dict.fromkeys((types.DATE, types.NEWDATE), "date"),
    **dict.fromkeys((types.TIME, types.TIME2), "time"),
    **dict.fromkeys((types.DATETIME, types.DATETIME2), "datetime"),
    **dict.fromkeys((types.TIMESTAMP, types.TIMESTAMP2), "timestamp"),
    types.ENUM: "enum",
    types.SET: "set",
    types.JSON: "json",
    types.GEOMETRY: "geometry",
    types.VECTOR: "vector",
}
_STRINGS: Final = {
    types.STRING: ("char", "binary"),
    **dict.fromkeys((types.VARCHAR, types.VARCHAR_COMPRESSED, types.VAR_STRING), ("varchar", "varbinary")),
}
"""As text, and as bytes."""

_LONG_STRINGS: Final = {
    1: ("tinytext", "tinyblob"),
    2: ("text", "blob"),
    3: ("mediumtext", "mediumblob"),
    4: ("longtext", "longblob"),
}
"""By the bytes of the length."""

_WITH_FRACTION: Final = frozenset((types.TIME2, types.DATETIME2, types.TIMESTAMP2))


def describe_table(columns: Sequence[MappedColumn], key: tuple[str, ...], flavor: str) -> TableSchema:
    return TableSchema(tuple(_describe(column, flavor) for column in columns), key, "log")


def _describe(column: MappedColumn, flavor: str) -> TableColumn:
    kind, is_binary = column.kind, column.collation == BINARY_COLLATION
    length = scale = labels = None
    if kind in _STRINGS:
        name, length = _STRINGS[kind][is_binary], column.width
    elif kind in _NAMES:
        name = _NAMES[kind]
    else:
        name = _LONG_STRINGS.get(column.width, ("text", "blob"))[is_binary]
    if kind == types.NEWDECIMAL:
        length, scale = column.width, column.scale
    elif kind == types.BIT:
        length = column.width
    elif kind in _WITH_FRACTION:
        scale = column.width
    elif kind in (types.ENUM, types.SET):
        decoded = decode_labels(column, flavor)
        texts = tuple(label for label in decoded if isinstance(label, str))
        labels = texts if len(texts) == len(decoded) else None
    charset = find_charset(column.collation, flavor) if column.collation and not is_binary else None
    return TableColumn(
        column.name,
        name,
        column.is_nullable,
        column.is_unsigned and kind != types.YEAR,
        length,
        scale,
        charset,
        labels,
    )
