"""Arrow batches, in which rows travel between Spark and the Python code of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow

Batches: TypeAlias = Iterable[pyarrow.RecordBatch]
BatchFunction: TypeAlias = Callable[[Batches], Iterator[pyarrow.RecordBatch]]
"""A function for ``DataFrame.mapInArrow``."""

BATCH_ROWS: Final = 4_000


def to_batches(
    rows: Iterable[tuple[Any, ...]], schema: pyarrow.Schema, rows_max: int = BATCH_ROWS
) -> Iterator[pyarrow.RecordBatch]:
    """Rows as batches of a bounded size."""
    held: list[tuple[Any, ...]] = []
    for row in rows:
        held.append(row)
        if len(held) == rows_max:
            yield _to_batch(held, schema)
            held = []
    if held:
        yield _to_batch(held, schema)


def _to_batch(rows: Sequence[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    arrays = [
        pyarrow.array(column, part.type) for column, part in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
