"""Changes of a table's rows, merged into the rows: the newest change of each key wins, and none is applied twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from freshness.errors import ConfigError, HistoryPurged
from freshness.position import Position, parse_position
from spark.batch import to_batches
from spark.copy.table import IS_GONE, KEY, PLACE, CopyTable

ROW_OPERATIONS: Final = ("insert", "update", "delete")
"""The operations of the update stream that hold a row."""
GTIDS_KEPT_MAX: Final = 100_000
ANEW: Final = "begin anew in another folder or database"


def advance(applied: Mapping[str, Position], marks: Iterable[tuple[str, str, str]]) -> Mapping[str, Position]:
    """The position by lineage once a micro-batch is applied. ``marks``: (lineage, op, gtid) of its ``begin`` and
    ``empty`` rows, the bounds of its pieces.

    Positions decide what was applied, never the number of a micro-batch. Each piece must begin in what was applied,
    or at the end of another piece of the batch. Raises `HistoryPurged` for a gap, `ConfigError` for another lineage.
    """
    told = list(marks)
    position = dict(applied)
    ends = {(lineage, gtid) for lineage, op, gtid in told if op != "begin"}
    for lineage, op, gtid in told:
        if lineage not in applied:
            raise ConfigError(f"{lineage} came to the stream", hint=ANEW)
        own = parse_position(applied[lineage].flavor, gtid)
        if op == "begin" and (lineage, gtid) not in ends and not applied[lineage].contains(own):
            raise HistoryPurged(
                f"the stream of {lineage} goes on after {gtid}, the copy is at {applied[lineage]}: the changes"
                " between the two are missing",
                hint=f"follow an archive or a service that has them, or {ANEW}",
            )
        position[lineage] = position[lineage].union(own)
    return position


def drop_applied(rows: DataFrame, flavor: str, applied: Mapping[str, str]) -> DataFrame:
    """The rows of the update stream whose transactions are not in ``applied``, the copy's position by lineage."""

    def drop(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        positions = {lineage: parse_position(flavor, text) for lineage, text in applied.items()}

        @lru_cache(GTIDS_KEPT_MAX)
        def is_new(lineage: str, gtid: str) -> bool:
            return not positions[lineage].contains(parse_position(flavor, gtid))

        for each in batches:
            lineages, gtids = (each.column(name).to_pylist() for name in ("lineage", "gtid"))
            is_kept = [is_new(lineage, gtid) for lineage, gtid in zip(lineages, gtids, strict=True)]
            yield each.filter(pyarrow.array(is_kept, pyarrow.bool_()))

    return rows.mapInArrow(drop, rows.schema)


def tell_changes(rows: DataFrame, layout: CopyTable) -> DataFrame:
    """Rows of the update stream, of `ROW_OPERATIONS` and one table, as `CopyTable.to_changes` decodes them: columns
    of `CopyTable.change_schema`."""
    arrow = to_arrow_schema(layout.change_schema())

    def tell(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for each in batches:
            changes = (change for row in each.to_pylist() for change in layout.to_changes(row))
            yield from to_batches(changes, arrow)

    chosen = rows.select("lineage", "ordinal", "row", "before", "after")
    return chosen.mapInArrow(tell, layout.change_schema())


def find_newest(changes: DataFrame, layout: CopyTable) -> DataFrame:
    """The newest of the changes of each key, all of them whole: the columns of `CopyTable.schema` and `IS_GONE`."""
    names = layout.schema().names
    newest = changes.groupBy(KEY).agg(
        F.max_by(F.struct(IS_GONE, *(F.col(name) for name in names[1:])), F.struct(*PLACE)).alias("_newest")
    )
    return newest.select(KEY, *(F.col("_newest").getField(name).alias(name) for name in (*names[1:], IS_GONE)))


def merge_changes(previous: DataFrame, changes: DataFrame, layout: CopyTable) -> DataFrame:
    """The rows of ``previous`` with the newest of the changes of each key, all of them whole. ``previous`` and the
    result have the columns of `CopyTable.schema`."""
    names = layout.schema().names
    newest = find_newest(changes, layout)
    now = newest.where(~F.col(IS_GONE)).select(*names)
    return previous.join(newest.select(KEY), KEY, "left_anti").select(*names).unionAll(now)
