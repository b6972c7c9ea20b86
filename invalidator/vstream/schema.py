"""The schema of a table, from a FIELD event. Called by ``invalidator.vstream.row``. No I/O.

vttablet announces names, types and flags of the schema that it has for that place in the log, and current
declarations (docs/vitess.md). So a declaration counts only if the type does not say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from freshness.stream.schema import TableColumn, TableSchema
from invalidator.charset import find_charset
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.value import TYPE_NAMES, read_labels

_NOT_NULL: Final = 1
_PRIMARY_KEY: Final = 2
_UNSIGNED: Final = 32
"""Flags of a column, as in MySQL's protocol."""

_UNSIGNED_TYPES: Final = frozenset((770, 772, 774, 776, 778))

_DECLARED: Final = re.compile(r"\s*([a-z]+)\s*(?:\((\d+)(?:\s*,\s*(\d+))?\))?", re.IGNORECASE)
_STRINGS: Final = frozenset(("char", "varchar", "binary", "varbinary"))
_AMBIGUOUS: Final = frozenset((*_STRINGS, "text", "blob", "enum", "set", "geometry", "vector"))
"""Types with several declarations: a TEXT of any length, and what a binary collation makes look like bytes."""

_TEMPORAL: Final = frozenset(("time", "datetime", "timestamp"))


def describe_fields(fields: Iterable[pb.Field]) -> TableSchema:
    """The key is in the order of the columns: the event has no other. It is known if any column has its flag."""
    fields = list(fields)
    key = tuple(field.name for field in fields if field.flags & _PRIMARY_KEY)
    columns = tuple(map(_describe, fields))
    return TableSchema(columns, key, "vttablet") if key else TableSchema(columns, None, "unknown")


def _describe(field: pb.Field) -> TableColumn:
    declared = _DECLARED.match(field.column_type)
    name = TYPE_NAMES.get(field.type, "unknown")
    if declared and (name in _AMBIGUOUS or name == "unknown"):
        name = declared[1].lower()
    numbers = [int(number) for number in declared.groups()[1:] if number] if declared else []
    length = scale = labels = None
    if name in _STRINGS:
        length = field.column_length or None
    elif name == "bit":
        length = numbers[0] if numbers else 1
    elif name == "decimal":
        length, scale = (*numbers, 0)[:2] if numbers else (10, 0)
    elif name in _TEMPORAL:
        scale = numbers[0] if numbers else 0
    elif name in ("enum", "set"):
        labels = tuple(read_labels(field.column_type)) or None
    has_text = name in ("char", "varchar", "enum", "set") or name.endswith("text")
    charset = (find_charset(field.charset, "mysql") or None) if has_text else None
    is_unsigned = field.type in _UNSIGNED_TYPES or (
        name in ("decimal", "float", "double") and bool(field.flags & _UNSIGNED)
    )
    is_nullable = not field.flags & _NOT_NULL
    return TableColumn(field.name, name, is_nullable, is_unsigned, length, scale, charset, labels)
