"""Changes of a table's rows, merged into the rows: the newest change of each key wins.

Called by ``spark.copy``, which brings its tables up to date, and by ``spark.table_at``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from spark.batch import to_batches
from spark.copy.table import IS_GONE, KEY, PLACE, CopyTable

ROW_OPERATIONS: Final = ("insert", "update", "delete")
"""The operations of the update stream that hold a row."""


def tell_changes(rows: DataFrame, layout: CopyTable) -> DataFrame:
    """Rows of the update stream, of `ROW_OPERATIONS` and one table, as `CopyTable.to_changes` tells them: columns of
    `CopyTable.change_schema`."""
    arrow = to_arrow_schema(layout.change_schema())

    def tell(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for each in batches:
            changes = (change for row in each.to_pylist() for change in layout.to_changes(row))
            yield from to_batches(changes, arrow)

    chosen = rows.select("lineage", "ordinal", "row", "before", "after")
    return chosen.mapInArrow(tell, layout.change_schema())


def merge_changes(former: DataFrame, changes: DataFrame, layout: CopyTable) -> DataFrame:
    """The rows of ``former`` with the newest of the changes of each key, all of them whole. ``former`` and the result
    have the columns of `CopyTable.schema`."""
    names = layout.schema().names
    newest = changes.groupBy(KEY).agg(
        F.max_by(F.struct(IS_GONE, *(F.col(name) for name in names[1:])), F.struct(*PLACE)).alias("_newest")
    )
    now = newest.where(~F.col(f"_newest.{IS_GONE}")).select(
        KEY, *(F.col("_newest").getField(name).alias(name) for name in names[1:])
    )
    return former.join(newest.select(KEY), KEY, "left_anti").select(*names).unionAll(now)
