"""The columns of every DataFrame that the jobs hand on: the one place that names their types.

The field names are those of the dataclasses that travel as rows (`spark.live.entry.NodeEntry`,
`spark.live.comparison.EntryVerdict`); a unit test holds them together.
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


def _longs(*names: str) -> list[StructField]:
    return [StructField(name, LongType()) for name in names]


REPLAY: Final = StructType(
    [
        *_longs("h1"),
        StructField("h2", IntegerType()),
        StructField("kind", IntegerType()),
        *_longs("node", "version", "observed", "begin_us", "end_us", "digest", "other"),
        StructField("flags", IntegerType()),
        *_longs("who", "client", "sequence"),
        StructField("stamps", BinaryType()),
        StructField("packed", BinaryType()),
    ]
)
"""What goes through the audit's shuffle: an item (two hashes), what happened to it, and when; names as hashes.

Of a change: ``node`` is its lineage, ``version`` its ordinal, ``begin_us`` its commit, ``digest`` and ``other`` the
row after and before, ``sequence`` its place in the transaction. See `spark.audit.itemlog` and `spark.audit.replay`.
"""

REPLAYED: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("failure", StringType()),
        *_longs("h1"),
        StructField("h2", IntegerType()),
        *_longs("node", "version", "lineage", "who"),
        StructField("clients", ArrayType(LongType())),
        *_longs("count", "first_us", "last_us", "longest_us"),
        StructField("evidence", StringType()),
    ]
)
"""What comes out of the replay: findings, changes that are pending, and the tally of a partition (as JSON)."""

VIOLATION: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("failure", StringType()),
        StructField("item", BinaryType()),
        StructField("object", StringType()),
        StructField("node", StringType()),
        StructField("lineage", StringType()),
        StructField("clients", ArrayType(StringType())),
        *_longs("version", "count", "first_us", "last_us", "longest_us"),
        StructField("evidence", StringType()),
    ]
)
"""A row of ``violations``. ``evidence``: JSON, a list of the records that show it, in their order."""

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
"""What a node held of one key. ``item`` is null in the one row of a node that could not be read to its end."""

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
        StructField("repaired", BooleanType(), nullable=False),
    ]
)
"""What became of one entry; ``cached`` and ``primary`` are shown values, and only of those that differ."""
