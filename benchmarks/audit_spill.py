"""Whether the audit's memory is bounded when the history is not.

``python -m benchmarks.audit_spill [--events 4000000] [--json]``. One history is audited with a heap that holds it and
with one whose execution memory is a tenth of it or less, each in processes of their own; they must say the same, and
the small one must have spilled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyarrow import parquet
from pyspark.sql import SparkSession

from benchmarks.audit_history import Bench, generate
from benchmarks.report import describe_machine
from spark.audit.finding import Rules
from spark.audit.job import ROWS_PER_BATCH_MAX, audit
from spark.history import read_actions, read_changes
from spark.session import open_session

EVENTS: Final = 4_000_000
SAMPLE_SECONDS: Final = 0.2
TIMES_MEMORY: Final = 10
"""How much larger the history is than what Spark has for execution and storage, at least."""


@dataclass(frozen=True, slots=True)
class Heap:
    """A JVM. ``fraction``: of the heap beyond Spark's 300 MB, what execution and storage share."""

    mb: int
    fraction: float


SMALL: Final = Heap(512, 0.3)
LARGE: Final = Heap(8192, 0.6)
Said: TypeAlias = tuple[list[tuple[Any, ...]], list[int]]
"""Every violation, and the histogram of staleness."""


@dataclass(frozen=True, slots=True)
class Spill:
    """One run. MB are 10⁶ bytes. ``pool_mb``: what Spark has for execution and storage. ``*_spilled_mb``: summed over
    all stages, as rows in memory and as files. Peaks are resident memory, ``python_peak_mb`` of all workers together
    and without the driver, ``peak_mb`` of both at one moment."""

    heap_mb: int
    pool_mb: float
    seconds: float
    shuffled_mb: float
    memory_spilled_mb: float
    disk_spilled_mb: float
    jvm_peak_mb: float = 0.0
    python_peak_mb: float = 0.0
    peak_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Spills:
    """``parquet_mb``: the files; ``arrow_mb``: the same in memory, as Arrow's columns."""

    events: int
    parquet_mb: float
    arrow_mb: float
    large: Spill
    small: Spill


def measure_spill(folder: Path, events: int, small: Heap = SMALL, large: Heap = LARGE) -> Spills:
    """Raises `AssertionError` where the two differ, find something else than what is there, or did not spill."""
    bench = generate(folder, events)
    files = [*bench.archive.glob("*.parquet"), *bench.history.glob("*.parquet")]
    arrow = sum(
        batch.nbytes for file in files for batch in parquet.ParquetFile(file).iter_batches(ROWS_PER_BATCH_MAX)
    )
    (few, said_few), (many, said_many) = (_audit_apart(bench, heap) for heap in (small, large))
    expected = {kind: count for kind, count in bench.expected.items() if count}
    assert said_few == said_many, "the verdicts differ"
    found: Counter[str] = Counter()
    for kind, *_, count in said_few[0]:
        found[kind] += count
    assert found == expected, (found, expected)
    assert few.disk_spilled_mb > 0, "nothing was spilled: more events, or a smaller heap"
    assert arrow / 1e6 > TIMES_MEMORY * few.pool_mb, "the history is not much larger than memory"
    parquet_mb = sum(file.stat().st_size for file in files) / 1e6
    return Spills(bench.events, round(parquet_mb, 1), round(arrow / 1e6, 1), many, few)


def _audit_apart(bench: Bench, heap: Heap) -> tuple[Spill, Said]:
    """In a new process with a JVM of its own, and watched from here."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_audit_and_tell, args=(theirs, bench, heap))
    process.start()
    theirs.close()
    assert process.pid is not None
    java = python = both = 0
    try:
        while not ours.poll(SAMPLE_SECONDS):
            held = _resident(process.pid)
            java, python = max(java, held[0]), max(python, held[1])
            both = max(both, sum(held))
        run, said = ours.recv()
    finally:
        process.join()
    peaks = {"jvm_peak_mb": java, "python_peak_mb": python, "peak_mb": both}
    return replace(run, **{name: round(peak / 1e6) for name, peak in peaks.items()}), said


def _audit_and_tell(pipe: Connection, bench: Bench, heap: Heap) -> None:
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-memory {heap.mb}m --conf spark.memory.fraction={heap.fraction} pyspark-shell"
    )
    session = open_session("spill", "local[2]", ROWS_PER_BATCH_MAX)
    try:
        start = time.perf_counter()
        said = _say(session, bench)
        seconds = time.perf_counter() - start
        gateway: Any = session.sparkContext._gateway
        context: Any = session.sparkContext._jsc.sc()
        jvm = gateway.jvm
        nothing = gateway.new_array(jvm.double, 0), jvm.java.util.ArrayList()
        stages = context.statusStore().stageList(None, False, False, *nothing)
        held = [stages.apply(at) for at in range(stages.size())]
        pool = context.getExecutorMemoryStatus().values().head()._1()
        run = Spill(
            heap.mb,
            round(pool / 1e6, 1),
            round(seconds, 1),
            round(sum(stage.shuffleWriteBytes() for stage in held) / 1e6, 1),
            round(sum(stage.memoryBytesSpilled() for stage in held) / 1e6, 1),
            round(sum(stage.diskBytesSpilled() for stage in held) / 1e6, 1),
        )
        pipe.send((run, said))
    finally:
        session.stop()


def _say(session: SparkSession, bench: Bench) -> Said:
    """(every violation, histogram of staleness)."""
    changes, actions = read_changes(session, str(bench.archive)), read_actions(session, str(bench.history))
    result = audit(changes, actions, rules=Rules(0), as_of_us=1 << 60)
    columns = ("kind", "failure", "item", "node", "version", "first_us", "last_us", "longest_us", "count")
    rows = [(*row,) for row in result.violations.select(*columns).collect()]
    result.close()
    return sorted(rows, key=repr), list(result.summary.staleness)


def _resident(root: int) -> tuple[int, int]:
    """(bytes of Java, bytes of Python) of all descendants of a process."""
    children: dict[int, list[int]] = {}
    held: dict[int, tuple[str, int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":\t", 1) for line in (path / "status").read_text().splitlines())
        except (OSError, ValueError):
            continue  # it has just ended
        children.setdefault(int(fields["PPid"]), []).append(int(path.name))
        held[int(path.name)] = fields["Name"].strip(), int(fields.get("VmRSS", "0").split()[0]) * 1024
    java = python = 0
    below = list(children.get(root, ()))
    while below:
        process = below.pop()
        below += children.get(process, ())
        name, resident = held[process]
        java += resident if name == "java" else 0
        python += resident if name.startswith("python") else 0
    return java, python


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.audit_spill",
        description=f"Audit one history on local[2] with heaps of {SMALL.mb} and {LARGE.mb} MB.",
    )
    parser.add_argument("--events", type=int, default=EVENTS, help=f"by default {EVENTS}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        spills = measure_spill(Path(folder) / "history", options.events)
    if options.json:
        print(json.dumps({"machine": describe_machine(), "spill": asdict(spills)}, indent=2))
    else:
        print(f"{spills.events:,} events, {spills.parquet_mb} MB on disk, {spills.arrow_mb} MB in memory")
        print(spills.large, spills.small, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
