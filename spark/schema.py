"""The columns of every DataFrame that the jobs hand on: the one place that names their types.

The field names are those of the dataclasses that travel as rows (`spark.entry.Entry`, `spark.comparison.Verdict`);
a unit test holds them together.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

ENTRY: Final = StructType(
    [
        StructField("node", StringType(), nullable=False),
        StructField("item", BinaryType(), nullable=True),
        StructField("object", StringType(), nullable=False),
        StructField("identity", BinaryType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("positions", StringType(), nullable=False),
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
    ]
)
"""What became of one entry; ``cached`` and ``primary`` are shown values, and only of those that differ."""
