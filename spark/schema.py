"""The columns of the update stream as Spark reads them from the files of an archive."""

from __future__ import annotations

from typing import Final

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from freshness.history import columns as history
from freshness.history.arrow import make_schema

# Spark reads every column of a file as nullable, whatever its writer promised.
CHANGES: Final = StructType(
    [
        StructField(column.name, from_arrow_type(column.type))
        for column in make_schema(history.CHANGES, "changes", history.CHANGES_VERSION)
    ]
)
