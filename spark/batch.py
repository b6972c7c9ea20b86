"""Arrow batches, in which rows travel between Spark and Python, and the columns of the update stream for Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from freshness.history import columns as history
from freshness.history.arrow import make_schema

Batches: TypeAlias = Iterable[pyarrow.RecordBatch]
BatchFunction: TypeAlias = Callable[[Batches], Iterator[pyarrow.RecordBatch]]
"""A function for ``DataFrame.mapInArrow``."""

BATCH_ROWS: Final = 4_000

# Spark reads every column of a file as nullable, whatever its writer promised.
CHANGES: Final = StructType(
    [
        StructField(column.name, from_arrow_type(column.type))
        for column in make_schema(history.CHANGES, "changes", history.CHANGES_VERSION)
    ]
)


def to_batches(rows: Iterable[tuple[Any, ...]], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Rows as batches of a bounded size."""
    held: list[tuple[Any, ...]] = []
    for row in rows:
        held.append(row)
        if len(held) == BATCH_ROWS:
            yield _to_batch(held, schema)
            held = []
    if held:
        yield _to_batch(held, schema)


def _to_batch(rows: Sequence[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    arrays = [pyarrow.array(column, part.type) for column, part in zip(zip(*rows, strict=True), schema, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
