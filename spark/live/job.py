"""The live audit: compares what every memcached node holds now with the primary.

Reads only, but for ``repairs``, which removes poisoned entries by CAS. Entries are read and compared by one action,
whose result is kept in the driver: a second look would find another cache. Repairs are a step of their own behind it.
Tasks of either may run several times. ``freshness.comparison`` decides about one
row and knows nothing of Spark. Called by ``spark.live``'s main.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from operator import attrgetter
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from freshness.comparison.comparison import Comparison, EntryVerdict
from freshness.comparison.connections import Connections
from freshness.comparison.entry import ENTRIES_PER_BATCH_MAX, NodeEntry, read_node
from freshness.comparison.repair import Condemned, Repair, repair
from freshness.comparison.scope import ComparisonScope
from freshness.nodes.open import open_node
from spark.batch import Batches, BatchFunction, to_batches
from spark.live.report import AuditSummary, condense, find_condemned

REPAIRS_PER_TASK_MAX: Final = 10_000
"""Poisoned entries that one task of the comparison names to the driver."""
_TYPES: Final[Mapping[Any, DataType]] = {
    str: StringType(),
    bytes: BinaryType(),
    int: LongType(),
    bool: BooleanType(),
    Sequence[str]: ArrayType(StringType(), containsNull=False),
}


def _of_class(row: type) -> StructType:
    """The columns of a class whose objects travel as rows. Only fields that may be None are nullable."""
    fields = []
    for name, hint in get_type_hints(row).items():
        is_nullable = isinstance(hint, UnionType)
        kind = _TYPES[get_args(hint)[0] if is_nullable else hint]
        fields.append(StructField(name, kind, nullable=is_nullable))
    return StructType(fields)


ENTRY: Final = _of_class(NodeEntry)
VERDICT: Final = _of_class(EntryVerdict)
CONDEMNED: Final = _of_class(Condemned)
REPAIR: Final = _of_class(Repair)


# -- on the executors ------------------------------------------------------------------------------------


def entry_reader(scope: ComparisonScope) -> BatchFunction:
    """Batches with the column ``id``, a node's place in the list, become batches of `ENTRY`."""

    def read(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for place in batch.column("id").to_pylist():
                yield from _batched(read_node(scope, open_node(scope.access, scope.nodes[place])), ENTRY)

    return read


def entry_comparer(scope: ComparisonScope, *, repairs_max: int = 0) -> BatchFunction:
    """Batches of `ENTRY` become condensed batches of `VERDICT`. Connections are kept for a partition."""

    def compare(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        with closing(Connections(scope)) as servers:
            comparison = Comparison(
                scope, servers.find_node, servers.find_primary, find_replicas=servers.find_replicas
            )
            entries = ([NodeEntry(**row) for row in rows] for rows in _rows_of(batches))
            yield from _batched(condense(comparison.compare(entries), repairs_max), VERDICT)

    return compare


def entry_repairer(scope: ComparisonScope) -> BatchFunction:
    """Batches of `CONDEMNED` become batches of `REPAIR`."""

    def remove(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        with closing(Connections(scope)) as servers:
            repairs = (
                repair(scope, servers.find_node, Condemned(**row))
                for rows in _rows_of(batches)
                for row in rows
            )
            yield from _batched(repairs, REPAIR)

    return remove


def _rows_of(batches: Batches) -> Iterator[list[dict[str, Any]]]:
    """A few rows at a time, whatever the size of Spark's batches."""
    for batch in batches:
        for first in range(0, batch.num_rows, ENTRIES_PER_BATCH_MAX):
            yield batch.slice(first, ENTRIES_PER_BATCH_MAX).to_pylist()


def _batched(rows: Iterable[Any], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """Rows are objects with the fields of the schema."""
    cells = map(attrgetter(*schema.names), rows)
    return to_batches(cells, to_arrow_schema(schema), ENTRIES_PER_BATCH_MAX)


# -- the frames ------------------------------------------------------------------------------------------


def read_entries(session: SparkSession, scope: ComparisonScope) -> DataFrame:
    """All entries of all nodes (`ENTRY`), one partition for each node."""
    count = len(scope.nodes)
    return session.range(0, count, 1, count).mapInArrow(entry_reader(scope), ENTRY)


def compare_entries(entries: DataFrame, scope: ComparisonScope, *, repairs_max: int = 0) -> DataFrame:
    """`VERDICT` on all entries, condensed. An item that is written again can be listed twice; it is counted once."""
    compare = entry_comparer(scope, repairs_max=repairs_max)
    return entries.dropDuplicates(["node", "item"]).mapInArrow(compare, VERDICT)


def remove_entries(
    session: SparkSession, scope: ComparisonScope, condemned: Sequence[Condemned]
) -> dict[tuple[bool, str], int]:
    """Remove these entries; the number of `REPAIR`, by ``is_gone`` and ``error``."""
    if not condemned:
        return {}
    frame = session.createDataFrame([astuple(each) for each in condemned], CONDEMNED)
    repairs = frame.mapInArrow(entry_repairer(scope), REPAIR).groupBy("is_gone", "error").count()
    return {(row["is_gone"], row["error"]): row["count"] for row in repairs.collect()}


def audit(session: SparkSession, scope: ComparisonScope, *, repairs: bool = False) -> AuditSummary:
    """Read, compare and count; then remove what is poisoned, if ``repairs``. A node or database that does not answer
    is in the summary; only bugs raise."""
    repairs_max = REPAIRS_PER_TASK_MAX if repairs else 0
    found = compare_entries(read_entries(session, scope), scope, repairs_max=repairs_max).collect()
    verdicts = [EntryVerdict(**row.asDict()) for row in found]
    summary = AuditSummary.of(len(scope.nodes), verdicts)
    if not repairs:
        return summary
    return summary.with_repairs(remove_entries(session, scope, find_condemned(verdicts)))
