"""FIELD and ROW events of a VStream to row changes.

Rows that cannot be decoded are never skipped: `read_changes` raises the reason, and the table is raised. Holds no
connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from freshness.stream.schema import TableColumn, TableSchema
from freshness.stream.source import UNREADABLE, Operation, RowChange, Shape
from invalidator.charset import find_charset
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.value import JSON, TYPE_NAMES, Decoder, find_decoder, find_shape, read_labels

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


_UNMATCHED_COLUMN = re.compile(r"@\d+")


class UnreadableRows(ValueError):
    """The rows of this event are not known. The text says why."""


@dataclass(frozen=True, slots=True)
class TableFields:
    """The columns that a FIELD event announced. With a ``problem`` no row of the table can be read until the next
    one."""

    names: tuple[str, ...]
    decoders: tuple[Decoder, ...]
    json_names: frozenset[str]
    shapes: Mapping[str, Shape]
    schema: TableSchema
    problem: str = ""


def read_fields(event: pb.FieldEvent) -> TableFields:
    """Never raises: what is wrong with a table shows when its rows come."""
    names = tuple(field.name for field in event.fields)
    problem = ""
    if not names or "" in names or len(set(names)) != len(names):
        problem = f"its columns are announced as {list(names)[:10]}"
    elif any(map(_UNMATCHED_COLUMN.fullmatch, names)):
        problem = f"vttablet could not match the log to the schema: columns {list(names)[:10]}"
    return TableFields(
        names,
        tuple(find_decoder(field, has_labels=event.enum_set_string_values) for field in event.fields),
        frozenset(field.name for field in event.fields if field.type == JSON),
        {field.name: find_shape(field) for field in event.fields},
        describe_fields(event.fields),
        problem,
    )


def read_changes(table: str, fields: TableFields, event: pb.RowEvent) -> list[RowChange]:
    """All row changes of one ROW event. Raises `UnreadableRows`."""
    if fields.problem:
        raise UnreadableRows(fields.problem)
    if not event.row_changes:
        raise UnreadableRows("a row event without rows")
    return [_read_change(table, fields, change) for change in event.row_changes]


def _read_change(table: str, fields: TableFields, change: pb.RowChange) -> RowChange:
    has_before, has_after = change.HasField("before"), change.HasField("after")
    if not (has_before or has_after):
        raise UnreadableRows("a row change without any image")
    op: Operation = "update" if has_before and has_after else "insert" if has_after else "delete"
    before = _read_row(fields, change.before) if has_before else None
    after = _read_row(fields, change.after) if has_after else None
    if after is not None:
        for name in _find_absent(fields.names, change.data_columns):
            del after[name]  # its length of -1 is no NULL
            if before is not None and before[name] is None:
                del before[name]  # NULL, or missing there, too: which one is unknown
        if any(change.json_partial_values.cols):
            # Instructions for the previous document, not a document.
            after.update(dict.fromkeys(fields.json_names & after.keys(), UNREADABLE))
    return RowChange(table, op, before, after, fields.shapes, fields.schema)


def _read_row(fields: TableFields, row: pb.Row) -> dict[str, object]:
    if len(row.lengths) != len(fields.names):
        raise UnreadableRows(f"a row of {len(row.lengths)} columns where {len(fields.names)} were announced")
    values: dict[str, object] = {}
    data, start = row.values, 0
    for name, decode, length in zip(fields.names, fields.decoders, row.lengths, strict=True):
        if length < 0:
            values[name] = None
        else:
            values[name] = decode(data[start : start + length])
            start += length
    if start != len(data):
        raise UnreadableRows(f"a row of {len(data)} bytes whose columns have {start}")
    return values


def _find_absent(names: Sequence[str], present: pb.Bitmap) -> list[str]:
    """The columns that a partial image leaves out. A full image has no bitmap, or one with a bit for each column of
    the table: also those that the stream was not asked for."""
    bits = int.from_bytes(present.cols, "little")
    if present.count <= len(present.cols) * 8 and bits | ~0 << present.count == ~0:
        return []
    if present.count != len(names) or len(present.cols) * 8 < len(names):
        raise UnreadableRows(f"a partial row image of {present.count} columns where {len(names)} were announced")
    return [name for place, name in enumerate(names) if not present.cols[place >> 3] >> (place & 7) & 1]
