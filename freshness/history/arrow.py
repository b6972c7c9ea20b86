"""Arrow's form of the columns of recorded history, for all writers.

Used by ``freshness.history.recorder`` and ``invalidator.archive.writer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from freshness.history.columns import KIND_KEY, VERSION_KEY, Column

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "bool": pa.bool_(),
    "list<binary>": pa.list_(pa.binary()),
    "list<string>": pa.list_(pa.string()),
}


def make_schema(columns: Sequence[Column], kind: str, version: int) -> pa.Schema:
    """The schema of these columns, with kind and version in the metadata."""
    fields = [pa.field(column.name, _ARROW[column.type], column.nullable) for column in columns]
    return pa.schema(fields, {KIND_KEY: kind, VERSION_KEY: str(version)})
