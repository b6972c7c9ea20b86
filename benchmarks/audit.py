"""The audit by replay beside counts of a few verdicts in Polars, on the same files in the same run.

``python -m benchmarks.audit [--events 1000000 …] [--json]``. Not part of ``make bench``, which repeats everything:
ten million events take minutes. The history has violations, which both must find.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy
import polars
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.audit_history import ERROR_US, Bench, Counts, generate
from benchmarks.report import describe_machine
from spark.audit.finding import STALENESS_EDGES_US, Rules
from spark.audit.job import ROWS_PER_BATCH_MAX, audit
from spark.history import read_actions, read_changes
from spark.session import open_session

EVENTS: Final = (1_000_000, 3_000_000, 10_000_000)
Result = TypeVar("Result")


def audit_on_spark(session: SparkSession, bench: Bench) -> tuple[Counts, list[int]]:
    """(violations by kind, histogram of staleness)."""
    changes, actions = read_changes(session, str(bench.archive)), read_actions(session, str(bench.history))
    result = audit(changes, actions, rules=Rules(0), as_of_us=1 << 60)
    rows: list[Any] = result.violations.groupBy("kind").agg(F.sum("count").alias("count")).collect()
    found = {row["kind"]: row["count"] for row in rows}
    result.close()
    return found, list(result.summary.staleness)


def audit_in_polars(bench: Bench) -> tuple[Counts, list[int]]:
    """Counts only, of the kinds that such a history has, as one would write them by hand: joins, and as-of joins by
    item. No evidence, no positions of several sources, no lives."""
    number = polars.col("position").str.extract(r"(\d+)$").cast(polars.Int64)
    changes = polars.scan_parquet(bench.archive / "*.parquet").select(
        "ordinal",
        polars.col("gtid").str.extract(r"(\d+)$").cast(polars.Int64).alias("number"),
        polars.min_horizontal("timestamp_us", "received_us").alias("committed"),
        polars.col("items").list.first().alias("item"),
        "before_digest",
        "after_digest",
    )
    actions = polars.scan_parquet(bench.history / "*.parquet").select(
        "action",
        "client",
        "sequence",
        "item",
        "node",
        "version",
        "observed",
        "begin_us",
        "end_us",
        "digest",
        polars.col("positions").list.first().alias("position"),
    )
    order = changes.select("number", "ordinal")
    placed = (
        actions.filter(polars.col("item").is_not_null())
        .with_columns(number=number)
        .join(order, on="number", how="left")
    )
    acks = (
        placed.filter(polars.col("action") == "invalidation")
        .group_by("item", "ordinal")
        .agg(polars.col("end_us").min())
    )
    known = changes.join(acks, on=["item", "ordinal"], how="left").sort("item", "ordinal").collect()
    missed = known["end_us"].null_count()
    known = known.with_columns(
        acked=polars.col("end_us").fill_null(1 << 62).reverse().cum_min().reverse().over("item"),
        place=polars.col("ordinal"),
    ).sort("ordinal")
    read = placed.filter(polars.col("action") != "invalidation").collect().sort("ordinal")
    ahead = known.select("item", "place", "acked", "committed", "before_digest")
    read = read.with_columns(after=polars.col("ordinal") + 1).join_asof(
        ahead, left_on="after", right_on="place", by="item", strategy="forward", check_sortedness=False
    )
    late = polars.col("begin_us") > polars.col("acked") + ERROR_US
    fills, hits = (read.filter(polars.col("action") == name) for name in ("fill", "hit"))
    held = known.select("item", "ordinal", "after_digest")
    rows = fills.join_asof(held, on="ordinal", by="item", strategy="backward", check_sortedness=False)
    row = polars.coalesce("after_digest", "before_digest")
    wrong = rows.filter(~late.fill_null(False) & row.is_not_null() & (row != polars.col("digest")))
    same = ["node", "version", "item", "digest", "position"]
    staleness = (hits["begin_us"] - hits["committed"]).clip(0).fill_null(0)
    histogram = numpy.bincount(
        numpy.searchsorted(STALENESS_EDGES_US, staleness.to_numpy()), minlength=len(STALENESS_EDGES_US) + 1
    )
    runs = (
        actions.group_by("client")
        .agg(polars.len().alias("n"), polars.col("sequence").max().alias("last"))
        .collect()
    )
    assert (runs["n"] == runs["last"]).all(), "a recorder gap"
    found = {
        "poisoned_fill": fills.filter(late).height,
        "stale_hit": hits.filter(late).height,
        "thin_air_hit": hits.join(fills.select(same).unique(), on=same, how="anti").height,
        "missed_invalidation": missed,
        "digest_mismatch": wrong.height,
    }
    return found, histogram.tolist()


@dataclass(frozen=True, slots=True)
class Measured:
    """One size: events per second of both."""

    events: int
    spark_seconds: float
    polars_seconds: float
    spark_per_second: int
    polars_per_second: int


def measure(session: SparkSession, folder: Path, events: int) -> Measured:
    """Generate, audit with both, compare. Raises `AssertionError` where they do not find what is there."""
    bench = generate(folder, events)
    theirs, polars_seconds = _timed(lambda: audit_in_polars(bench))
    ours, spark_seconds = _timed(lambda: audit_on_spark(session, bench))
    expected = {kind: count for kind, count in bench.expected.items() if count}
    assert {kind: count for kind, count in theirs[0].items() if count} == expected, theirs[0]
    assert dict(ours[0]) == expected, (ours[0], expected)
    assert ours[1] == theirs[1], (ours[1], theirs[1])
    return Measured(
        bench.events,
        round(spark_seconds, 1),
        round(polars_seconds, 1),
        round(bench.events / spark_seconds),
        round(bench.events / polars_seconds),
    )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.audit", description="Measure the audit by replay.")
    parser.add_argument(
        "--events", type=int, action="append", help=f"by default {', '.join(map(str, EVENTS))}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--master", default="local[2]", help="the Spark master, by default local[2]")
    options = parser.parse_args(arguments)
    session = open_session("benchmark", options.master, ROWS_PER_BATCH_MAX)
    measured = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(session, Path(folder) / "warm", 50_000)
            for events in options.events or EVENTS:
                measured.append(measure(session, Path(folder) / str(events), events))
                print(f"{measured[-1]}", file=sys.stderr)
    finally:
        session.stop()
    if options.json:
        told = {"machine": describe_machine(), "results": [asdict(each) for each in measured]}
        print(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
