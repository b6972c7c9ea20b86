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


def _longs(*names: str) -> list[StructField]:
    return [StructField(name, LongType()) for name in names]


def _list(name: str, *fields: StructField) -> StructField:
    return StructField(name, ArrayType(StructType(list(fields))))


REPLAY: Final = StructType(
    [
        *_longs("h1"),
        StructField("h2", IntegerType()),
        StructField("kind", IntegerType()),
        *_longs("lineage", "ordinal"),
        StructField("row", IntegerType()),
        *_longs("node", "version", "observed", "begin_us", "end_us", "digest", "before"),
        StructField("flags", IntegerType()),
        *_longs("who", "client", "sequence"),
        StructField("stamps", BinaryType()),
    ]
)
"""A row of the audit's shuffle: `spark.audit.row.ReplayRow`."""

REFERENCE: Final = StructType([StructField("role", StringType()), *_longs("source", "sequence", "row")])
"""Which record of the history shows a finding: `spark.audit.finding.Reference`."""

FINDING: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("failure", StringType()),
        *_longs("h1"),
        StructField("h2", IntegerType()),
        *_longs("node", "version", "lineage", "who"),
        StructField("clients", ArrayType(LongType())),
        *_longs("count", "first_us", "last_us", "longest_us"),
        StructField("evidence", ArrayType(REFERENCE)),
    ]
)
"""A violation in hashes: `spark.audit.finding.Finding`."""

PENDING: Final = StructType([*_longs("h1"), StructField("h2", IntegerType()), *_longs("lineage", "ordinal")])
"""A change that cannot be judged yet: `spark.audit.finding.PendingChange`."""

TALLY: Final = StructType(
    [
        _list("hits", *_longs("who"), StructField("counts", ArrayType(LongType()))),
        _list("unknown", *_longs("who"), StructField("why", StringType()), *_longs("count")),
        _list("counts", StructField("name", StringType()), *_longs("count")),
        StructField("delays", ArrayType(LongType())),
        _list("hot", *_longs("hits", "h1"), StructField("h2", IntegerType())),
    ]
)
"""The counts of one partition: `spark.audit.finding.TallyRow`."""

REPLAYED: Final = StructType(
    [StructField("finding", FINDING), StructField("pending", PENDING), StructField("tally", TALLY)]
)
"""A result of the replay, one of the three: `spark.audit.finding.Replayed`."""

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
"""An entry of a node: `spark.live.entry.NodeEntry`. ``item`` is null in the row of a node that could not be
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
        StructField("repaired", BooleanType(), nullable=False),
    ]
)
"""The verdict on one entry: `spark.live.comparison.EntryVerdict`. ``cached`` and ``primary`` are shown values, and
only of entries that differ."""
