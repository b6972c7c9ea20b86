"""The columns of every DataFrame that the jobs hand on: the one place that names their types.

The field names and types are those of the classes whose objects travel as rows; each schema names its class, and a
unit test holds them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from freshness.history import columns as history
from freshness.history.columns import Column

_TYPES: Final[Mapping[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int64": LongType(),
    "int32": IntegerType(),
    "bool": BooleanType(),
    "list<binary>": ArrayType(BinaryType()),
    "list<string>": ArrayType(StringType()),
}


def _of_history(columns: Iterable[Column]) -> StructType:
    """Spark reads every column of a file as nullable, whatever its writer promised."""
    return StructType([StructField(column.name, _TYPES[column.type]) for column in columns])


CHANGES: Final = _of_history(history.CHANGES)
ACTIONS: Final = _of_history(history.ACTIONS)


ENTRY: Final = StructType(
    [
        StructField("node", StringType(), nullable=False),
        StructField("item", BinaryType(), nullable=True),
        StructField("object", StringType(), nullable=False),
        StructField("identity", BinaryType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("positions", StringType(), nullable=False),
        StructField("lineages", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("entry_digest", StringType(), nullable=False),
        StructField("value_digest", StringType(), nullable=False),
        StructField("value", BinaryType(), nullable=True),
        StructField("error", StringType(), nullable=False),
    ]
)
"""An entry of a node: `freshness.comparison.entry.NodeEntry`. ``item`` is null in the row of a node that could not be
read to its end."""

VERDICT: Final = StructType(
    [
        StructField("node", StringType(), nullable=False),
        StructField("item", BinaryType(), nullable=True),
        StructField("object", StringType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("verdict", StringType(), nullable=False),
        StructField("positions", StringType(), nullable=False),
        StructField("cached", StringType(), nullable=False),
        StructField("primary", StringType(), nullable=False),
        StructField("error", StringType(), nullable=False),
        StructField("lineages", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("entry_digest", StringType(), nullable=False),
        StructField("count", LongType(), nullable=False),
    ]
)
"""The verdict on entries: `freshness.comparison.comparison.EntryVerdict`. ``cached`` and ``primary`` are shown
values, and only of entries that differ. ``item`` is null also in a row that stands for several entries."""

CONDEMNED: Final = StructType(
    [
        StructField("node", StringType(), nullable=False),
        StructField("item", BinaryType(), nullable=False),
        StructField("entry_digest", StringType(), nullable=False),
        StructField("lineages", ArrayType(StringType(), containsNull=False), nullable=False),
    ]
)
"""A poisoned entry to remove: `freshness.comparison.repair.Condemned`."""

REPAIR: Final = StructType(
    [
        StructField("node", StringType(), nullable=False),
        StructField("is_gone", BooleanType(), nullable=False),
        StructField("error", StringType(), nullable=False),
    ]
)
"""The result for one condemned entry: `freshness.comparison.repair.Repair`."""
