"""The live audit: compares what every memcached node holds now with the primary.

Reads only, but for ``repairs``, which removes poisoned entries by CAS. Every step is a function DataFrame →
DataFrame; `spark.live.entry` and `spark.live.comparison` decide about one row and know nothing of Spark. Called by
``spark.live``'s main.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from operator import attrgetter
from typing import Any, Final

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from freshness.database.primary import Primary
from freshness.nodes.memcached import MemcachedNode
from spark.batch import Batches, BatchFunction, to_batches
from spark.live.comparison import POISONED, UNKNOWN, Comparison
from spark.live.entry import ENTRIES_PER_BATCH_MAX, LIVE, UNAVAILABLE, NodeEntry, read_node
from spark.live.report import AuditSummary, Example
from spark.schema import ENTRY, VERDICT
from spark.scope import AuditScope

EXAMPLES_MAX: Final = 20
ERRORS_MAX: Final = 20


# -- on the executors ------------------------------------------------------------------------------------


def entry_reader(scope: AuditScope) -> BatchFunction:
    """Batches with the column ``id``, a node's place in the list, become batches of `ENTRY`."""

    def read(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for place in batch.column("id").to_pylist():
                yield from _batched(read_node(scope, MemcachedNode(scope.nodes[place])), ENTRY)

    return read


def entry_comparer(scope: AuditScope, *, repairs: bool = False) -> BatchFunction:
    """Batches of `ENTRY` become batches of `VERDICT`. Connections are kept for a partition."""

    def compare(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        nodes: dict[str, MemcachedNode] = {}
        primaries: dict[str, Primary] = {}
        replicas: dict[str, dict[str, Primary]] = defaultdict(dict)
        with ExitStack() as stack:

            def find_node(name: str) -> MemcachedNode:
                if name not in nodes:
                    nodes[name] = MemcachedNode(name)
                    stack.callback(nodes[name].close)
                return nodes[name]

            def find_primary(lineage: str) -> Primary:
                if lineage not in primaries:
                    server = scope.primaries[lineage]
                    primaries[lineage] = Primary(server.address, server.flavor)
                    stack.callback(primaries[lineage].close)
                return primaries[lineage]

            def find_replicas(lineage: str) -> dict[str, Primary]:
                server = scope.primaries[lineage]
                for address in server.replicas:
                    if str(address) not in replicas[lineage]:
                        opened = replicas[lineage][str(address)] = Primary(address, server.flavor)
                        stack.callback(opened.close)
                return replicas[lineage]

            comparison = Comparison(
                scope, find_node, find_primary, find_replicas=find_replicas, repairs=repairs
            )
            for batch in batches:
                entries = [NodeEntry(**row) for row in batch.to_pylist()]
                yield from _batched(comparison.compare(entries), VERDICT)

    return compare


def _batched(rows: Iterable[Any], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """Rows are objects with the fields of the schema."""
    cells = map(attrgetter(*schema.names), rows)
    return to_batches(cells, to_arrow_schema(schema), ENTRIES_PER_BATCH_MAX)


# -- the frames ------------------------------------------------------------------------------------------


def read_entries(session: SparkSession, scope: AuditScope) -> DataFrame:
    """All entries of all nodes (`ENTRY`), one partition for each node."""
    count = len(scope.nodes)
    return session.range(0, count, 1, count).mapInArrow(entry_reader(scope), ENTRY)


def compare_entries(entries: DataFrame, scope: AuditScope, *, repairs: bool = False) -> DataFrame:
    """A `VERDICT` for each entry. The crawler can list an item twice; it is counted once."""
    return entries.dropDuplicates(["node", "item"]).mapInArrow(
        entry_comparer(scope, repairs=repairs), VERDICT
    )


def count_verdicts(verdicts: DataFrame) -> DataFrame:
    """(state, verdict, count, repaired)."""
    return verdicts.groupBy("state", "verdict").agg(
        F.count("*").alias("count"), F.sum(F.col("repaired").cast("long")).alias("repaired")
    )


def find_examples(verdicts: DataFrame) -> DataFrame:
    """The entries to show, the poisoned ones first."""
    return (
        verdicts.where(F.col("verdict").isin(POISONED, UNKNOWN) & F.col("item").isNotNull())
        .orderBy((F.col("verdict") != POISONED).cast("int"), "node", "item")
        .limit(EXAMPLES_MAX)
    )


def find_errors(verdicts: DataFrame) -> DataFrame:
    """(error) of what did not answer, each once."""
    failed = (F.col("state") == UNAVAILABLE) | (
        (F.col("verdict") == UNKNOWN) & (F.col("state") == LIVE) & (F.col("cached") == "")
    )
    return verdicts.where(failed).select("error").distinct().orderBy("error").limit(ERRORS_MAX)


def audit(session: SparkSession, scope: AuditScope, *, repairs: bool = False) -> AuditSummary:
    """Read, compare and count; remove what is poisoned, where that is asked for. A node or database that does
    not answer is in the summary; only bugs raise."""
    verdicts = compare_entries(read_entries(session, scope), scope, repairs=repairs).persist()
    try:
        counted = count_verdicts(verdicts).collect()
        counts = {(row["state"], row["verdict"]): row["count"] for row in counted}
        examples = tuple(
            Example(**{**row.asDict(), "item": bytes(row["item"]).decode("ascii", "backslashreplace")})
            for row in find_examples(verdicts).drop("state", "repaired").collect()
        )
        errors = tuple(row["error"] for row in find_errors(verdicts).collect())
    finally:
        verdicts.unpersist()

    repaired = sum(row["repaired"] for row in counted)
    return AuditSummary.of(len(scope.nodes), counts, repaired, errors, examples)
