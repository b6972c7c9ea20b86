"""The audit by replay in one process and on Spark, beside a query that only counts, on the same files in one run.

``python -m benchmarks.audit [--events 1000000 …] [--json]``. Not part of ``make bench``, which repeats everything:
thirty million events take minutes. The history has violations of every kind, and all must find what was planted.

Each contestant is a process of its own, measured from its start: imports, the JVM and the opening of a session count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy
import polars
import psutil
from pyarrow import parquet

from benchmarks.audit_history import ERROR_US, Bench, Counts, generate
from benchmarks.report import describe_machine
from spark.audit.engine.local import HELD_BYTES_MAX, LocalEngine
from spark.audit.engine.progress import Progress
from spark.audit.engine.step import Engine
from spark.audit.input.recording import open_actions, open_changes
from spark.audit.job import audit
from spark.audit.model.finding import STALENESS_EDGES_US, Rules
from spark.audit.shuffle.survey import Scope

EVENTS: Final = (1_000_000, 3_000_000, 10_000_000)
SAMPLE_SECONDS: Final = 0.2
HELD_SMALL: Final = 64 << 20
HEAP_SMALL: Final = "512m"
HEAP_LARGE: Final = "4g"
COUNTED: Final = ("poisoned_fill", "stale_hit", "thin_air_hit", "missed_invalidation", "digest_mismatch")
"""Kinds that the query counts; it ignores the others and returns only a number."""
COUNTS_ONLY: Final = "polars, counts only"

Said: TypeAlias = tuple[Counts, list[int], list[tuple[Any, ...]]]
"""(violations by kind, histogram of staleness, every violation)."""
Contestant: TypeAlias = Callable[[Bench], AbstractContextManager[Said]]
"""Its processes are there until the context ends."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant. MB are 10⁶ bytes of resident memory, at its most; ``python_mb`` of all processes of Python
    together, ``java_mb`` of the JVM. CPU is that of all processes."""

    name: str
    seconds: float
    cpu_seconds: float
    cpu_us_per_event: float
    python_mb: int
    java_mb: int


@dataclass(frozen=True, slots=True)
class Run:
    """One history. ``arrow_mb``: its columns in memory, as the recorders wrote them."""

    events: int
    parquet_mb: float
    arrow_mb: float
    violations: int
    measured: Sequence[Measured]


# -- the contestants -------------------------------------------------------------------------------------


@contextmanager
def audit_in_one_process(bench: Bench, held_bytes_max: int = HELD_BYTES_MAX) -> Iterator[Said]:
    yield _audit(LocalEngine(held_bytes_max=held_bytes_max), bench)


@contextmanager
def audit_on_spark(bench: Bench, master: str, heap: str) -> Iterator[Said]:
    from spark.audit.engine.cluster import open_spark  # no contestant pays for what it does not use

    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {heap} pyspark-shell"
    with open_spark(Progress(), master) as engine:
        yield _audit(engine, bench)


def _audit(engine: Engine, bench: Bench) -> Said:
    changes, actions = open_changes(engine, str(bench.archive)), open_actions(engine, str(bench.history))
    result = audit(engine, changes, actions, rules=Rules(0), scope=Scope(1 << 60))
    found: dict[str, int] = {}
    rows = result.violations.to_pylist()
    for row in rows:
        found[row["kind"]] = found.get(row["kind"], 0) + row["count"]
    result.close()
    return found, list(result.summary.staleness), sorted(tuple(map(str, row.values())) for row in rows)


@contextmanager
def count_in_polars(bench: Bench) -> Iterator[Said]:
    """Counts as one would write them by hand for such a history: joins, and as-of joins by item. No evidence, no
    positions of several sources, no lives, no floors, no damage."""
    number = polars.col("position").str.extract(r"(\d+)$").cast(polars.Int64)
    changes = (
        polars.scan_parquet(bench.archive / "*.parquet")
        .filter(polars.col("keyspace") == "bench")
        .select(
            "ordinal",
            polars.col("gtid").str.extract(r"(\d+)$").cast(polars.Int64).alias("number"),
            polars.min_horizontal("timestamp_us", "received_us").alias("committed"),
            polars.col("items").list.first().alias("item"),
            "before_digest",
            "after_digest",
        )
    )
    actions = polars.scan_parquet(bench.history / "*.parquet").select(
        "action",
        "client",
        "item",
        "node",
        "version",
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
    found = {
        "poisoned_fill": fills.filter(late).height,
        "stale_hit": hits.filter(late).height,
        "thin_air_hit": hits.join(fills.select(same).unique(), on=same, how="anti").height,
        "missed_invalidation": missed,
        "digest_mismatch": wrong.height,
    }
    staleness = (hits["begin_us"] - hits["committed"]).clip(0).fill_null(0)
    buckets = numpy.searchsorted(STALENESS_EDGES_US, staleness.to_numpy())
    yield found, numpy.bincount(buckets, minlength=len(STALENESS_EDGES_US) + 1).tolist(), []


def list_contestants(master: str) -> dict[str, Contestant]:
    return {
        COUNTS_ONLY: count_in_polars,
        "one process, all verdicts": audit_in_one_process,
        "one process, all verdicts, 64 MB of rows": partial(audit_in_one_process, held_bytes_max=HELD_SMALL),
        f"Spark {master}, all verdicts": partial(audit_on_spark, master=master, heap=HEAP_LARGE),
        f"Spark {master}, all verdicts, heap of {HEAP_SMALL}": partial(
            audit_on_spark, master=master, heap=HEAP_SMALL
        ),
    }


# -- measuring -------------------------------------------------------------------------------------------


def measure(folder: Path, events: int, contestants: Mapping[str, Contestant]) -> Run:
    """Generate a history, and let each audit it. Raises `AssertionError` if one misses a violation, or
    two audits differ in any violation."""
    bench = generate(folder, events)
    files = [*bench.archive.glob("*.parquet"), *bench.history.glob("*.parquet")]
    arrow = sum(batch.nbytes for file in files for batch in parquet.ParquetFile(file).iter_batches())
    expected = {kind: count for kind, count in bench.expected.items() if count}
    told: list[Said] = []
    measured = []
    for name, contestant in contestants.items():
        one, said = _measure_apart(name, contestant, bench)
        is_query = name == COUNTS_ONLY
        wanted = {kind: count for kind, count in expected.items() if not is_query or kind in COUNTED}
        found = {kind: count for kind, count in said[0].items() if count}
        assert found == wanted, (name, found, wanted)
        told += [] if is_query else [said]
        measured.append(one)
        print(one, file=sys.stderr)
    assert all(said == told[0] for said in told), "the verdicts differ"
    parquet_mb = sum(file.stat().st_size for file in files) / 1e6
    violations = sum(expected.values())
    return Run(bench.events, round(parquet_mb, 1), round(arrow / 1e6, 1), violations, measured)


def _measure_apart(name: str, contestant: Contestant, bench: Bench) -> tuple[Measured, Said]:
    """In a new process, whose memory is watched from here."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_and_tell, args=(theirs, contestant, bench))
    python = java = 0
    start = time.perf_counter()
    process.start()
    theirs.close()
    try:
        while not ours.poll(SAMPLE_SECONDS):
            held = _find_resident(process.pid)
            python, java = max(python, held[0]), max(java, held[1])
        cpu_seconds, said = ours.recv()
        seconds = time.perf_counter() - start
    finally:
        process.join()
    measured = Measured(
        name,
        round(seconds, 1),
        round(cpu_seconds, 1),
        round(cpu_seconds / bench.events * 1e6, 2),
        round(python / 1e6),
        round(java / 1e6),
    )
    return measured, said


def _run_and_tell(pipe: Connection, contestant: Contestant, bench: Bench) -> None:
    """Sends (CPU seconds of this process and all below it, what was said)."""
    own = psutil.Process()
    with contestant(bench) as said:
        pipe.send((sum(sum(each.cpu_times()[:4]) for each in (own, *own.children(recursive=True))), said))


def _find_resident(pid: int | None) -> tuple[int, int]:
    """(bytes of Python, bytes of Java) of a process and all below it."""
    python = java = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0
    for each in processes:
        try:
            resident, name = each.memory_info().rss, each.name()
        except psutil.NoSuchProcess:
            continue  # it has just ended
        java += resident if name == "java" else 0
        python += resident if name.startswith("python") else 0
    return python, java


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.audit", description="Measure the audit by replay.")
    parser.add_argument("--events", type=int, action="append", help=f"by default {', '.join(map(str, EVENTS))}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--master", default="local[2]", help="the Spark master, by default local[2]")
    options = parser.parse_args(arguments)
    runs = []
    for events in options.events or EVENTS:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measure(Path(folder), events, list_contestants(options.master)))
    if options.json:
        print(json.dumps({"machine": describe_machine(), "runs": [asdict(each) for each in runs]}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
