"""The audit by replay against the same verdicts in Polars, on the same files in the same run.

``python -m benchmarks.audit [--events 1000000 …] [--json]``. Not part of ``make bench``, which repeats everything:
ten million events take minutes. The history is generated as columns: one lineage, one key with a tenth of everything,
and a known number of violations of each kind, which both must find.

``--spill`` measures another thing: whether memory is bounded when history is not. The same history is audited with a
heap that holds it and with one whose execution memory is a tenth of it or less, each in processes of their own; they
must say the same, and the small one must have spilled.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy
import polars
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.report import describe_machine
from spark.audit import ROWS_PER_BATCH_MAX, audit
from spark.history import read_actions, read_changes
from spark.replay import STALENESS_EDGES_US, Rules
from spark.session import open_session
from tests.simulation.recorded import arrow_schema

EVENTS: Final = (1_000_000, 3_000_000, 10_000_000)
FILES: Final = 8
NODES: Final = 4
READERS: Final = 8
PLANTED: Final = 500
START_US: Final = 1_790_000_000_000_000
STEP_US: Final = 1_000
ACK_US: Final = 12_000
TOKEN_AGE_US: Final = 5_000
LIVED_US: Final = 60_000_000
ERROR_US: Final = 500_000
LATE_US: Final = 2_000_000
SID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
LINEAGE: Final = "bench/-"
LIFE: Final = b"LIFELIFE"
SPILL_EVENTS: Final = 4_000_000
SAMPLE_SECONDS: Final = 0.2
TIMES_MEMORY: Final = 10
"""How much larger the history is than what Spark has for execution and storage, at least."""
Integers = NDArray[numpy.int64]
Counts = Mapping[str, int]
Result = TypeVar("Result")


# -- the history -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a generated history is, and what is wrong with it."""

    archive: Path
    history: Path
    events: int
    expected: Counts


@dataclass(slots=True)
class _Changes:
    """By ordinal - 1: the key that was changed. ``places``: (key, ordinal) as one number, rising."""

    keys: Integers
    places: Integers

    def next(self, keys: Integers, prefixes: Integers) -> Integers:
        """The next change of each key after a prefix, as an ordinal; 0 for none."""
        at = numpy.searchsorted(self.places, _place(keys, prefixes), side="right")
        found = self.places[numpy.minimum(at, len(self.places) - 1)]
        return numpy.where((at < len(self.places)) & (found >> 32 == keys), found & 0xFFFFFFFF, 0)

    def last(self, keys: Integers, prefixes: Integers) -> Integers:
        """The last change of each key in a prefix; 0 for none."""
        at = numpy.searchsorted(self.places, _place(keys, prefixes), side="right") - 1
        found = self.places[numpy.maximum(at, 0)]
        return numpy.where((at >= 0) & (found >> 32 == keys), found & 0xFFFFFFFF, 0)


def _place(keys: Integers, ordinals: Integers) -> Integers:
    return (keys << 32) | ordinals


def _committed(ordinals: Integers) -> Integers:
    return START_US + ordinals * STEP_US


def _keys(random: numpy.random.Generator, count: int, kinds: int) -> Integers:
    keys = random.integers(1, kinds, count)
    keys[random.random(count) < 0.1] = 0
    return keys


def generate(folder: Path, events: int) -> Bench:
    """About ``events`` rows: a fifth changes, a fifth invalidations, a tenth fills, half of it hits."""
    random = numpy.random.default_rng(events)
    count, kinds = events // 5, max(2000, events // 50)
    keys = _keys(random, count, kinds)
    ordinals = numpy.arange(1, count + 1)
    changes = _Changes(keys, numpy.sort(_place(keys, ordinals)))
    (archive, history) = (folder / "archive", folder / "history")
    for each in (archive, history):
        each.mkdir(parents=True)
    _write_changes(archive, changes, ordinals)

    fills = _fills(random, changes, events // 10, kinds, count)
    # Of items that nobody reads it is not known that they are recorded at all.
    missed = numpy.flatnonzero((keys % 97 == 5) & numpy.isin(keys, fills["key"]))[:PLANTED]
    kept = numpy.delete(ordinals, missed)
    hits = _hits(random, changes, fills, events // 2)
    bad = numpy.flatnonzero((fills["key"] % 97 == 7) & (changes.next(fills["key"], fills["prefix"]) > 0))[
        : 2 * PLANTED
    ]
    acked_us = _committed(changes.next(fills["key"], fills["prefix"])) + ACK_US
    poisoned, outlived = bad[::2], bad[1::2]
    late = {name: column[poisoned] for name, column in fills.items()}
    late["begin"] = acked_us[poisoned] + LATE_US
    late["version"] = numpy.arange(len(poisoned)) * 2 + 2 * len(fills["key"]) + 1
    stale = {name: column[outlived] for name, column in fills.items()}
    stale["begin"] = acked_us[outlived] + LATE_US
    young = numpy.flatnonzero(_committed(hits["prefix"]) > START_US + LATE_US)[:PLANTED]
    thin = {name: column[young] for name, column in hits.items()}
    thin["version"] = thin["version"] + (1 << 40)
    _write_actions(history, changes, kept, _joined(fills, late), _joined(hits, stale, thin))
    expected = {
        "poisoned_fill": len(poisoned),
        "stale_hit": len(outlived),
        "thin_air_hit": len(thin["key"]),
        "missed_invalidation": len(missed),
        "digest_mismatch": 0,
    }
    rows = (
        count
        + len(kept)
        + len(fills["key"])
        + len(poisoned)
        + len(hits["key"])
        + len(outlived)
        + len(thin["key"])
    )
    return Bench(archive, history, rows, expected)


def _joined(*parts: Mapping[str, Integers]) -> dict[str, Integers]:
    return {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}


def _fills(
    random: numpy.random.Generator, changes: _Changes, count: int, kinds: int, ordinals: int
) -> dict[str, Integers]:
    """From a replica that is a little behind, but has all that was acknowledged."""
    begins = START_US + random.integers(100_000, ordinals * STEP_US, count)
    return {
        "key": _keys(random, count, kinds),
        "begin": begins,
        "prefix": numpy.minimum((begins - TOKEN_AGE_US - START_US) // STEP_US, ordinals),
        "version": numpy.arange(count) * 2 + 1,
    }


def _hits(
    random: numpy.random.Generator, changes: _Changes, fills: Mapping[str, Integers], count: int
) -> dict[str, Integers]:
    """Each of some entry, before the change after it was acknowledged."""
    chosen = random.integers(0, len(fills["key"]), count)
    hits = {name: column[chosen] for name, column in fills.items()}
    following = changes.next(hits["key"], hits["prefix"])
    ends = hits["begin"] + LIVED_US
    ends = numpy.where(following > 0, numpy.minimum(ends, _committed(following) + ACK_US), ends)
    begins = hits["begin"] + 2_500
    hits["begin"] = begins + (random.random(count) * numpy.maximum(0, ends - begins)).astype(numpy.int64)
    return hits


# -- files -----------------------------------------------------------------------------------------------


def _digests(ordinals: Integers, keys: Integers) -> pyarrow.Array:
    """Of the state that a change left; 0: of the row as it was at first."""
    numbers = (ordinals * 1_000_003 + numpy.where(ordinals == 0, keys, 0)).astype("<i8")
    return pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(8), len(numbers), [None, pyarrow.py_buffer(numbers.tobytes())]
    ).cast(pyarrow.binary())


def _texts(prefix: str, numbers: Integers) -> pyarrow.Array:
    texts = pyarrow.array(numbers).cast(pyarrow.string())
    return pyarrow.compute.binary_join_element_wise(prefix, texts, "")


def _lists(values: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.ListArray.from_arrays(
        pyarrow.array(numpy.arange(len(values) + 1, dtype=numpy.int32)), values
    )


def _same(value: Any, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    if pyarrow.types.is_list(kind) and value:
        return _lists(
            pyarrow.array([value[0]], kind.value_type).take(pyarrow.array(numpy.zeros(count, numpy.int64)))
        )
    return pyarrow.array([value], kind).take(pyarrow.array(numpy.zeros(count, numpy.int64)))


def _table(kind: str, count: int, columns: Mapping[str, Any]) -> pyarrow.Table:
    schema = arrow_schema(kind)
    arrays = []
    for field in schema:
        value: Any = columns.get(field.name)
        if isinstance(value, numpy.ndarray):
            value = pyarrow.array(value)
        is_whole = isinstance(value, (pyarrow.Array, pyarrow.ChunkedArray))
        arrays.append(value.cast(field.type) if is_whole else _same(value, field.type, count))
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _write(folder: Path, name: str, table: pyarrow.Table) -> None:
    size = -(-table.num_rows // FILES)
    for number in range(FILES):
        parquet.write_table(table.slice(number * size, size), folder / f"{name}{number}.parquet")


def _items(keys: Integers) -> pyarrow.Array:
    return _texts("bench:row:", keys).cast(pyarrow.binary())


def _write_changes(folder: Path, changes: _Changes, ordinals: Integers) -> None:
    before = changes.last(changes.keys, ordinals - 1)
    items = _lists(_items(changes.keys))
    columns = {
        "keyspace": "bench",
        "shard": "-",
        "lineage": LINEAGE,
        "epoch": 1,
        "ordinal": ordinals,
        "row": 0,
        "rows": 1,
        "gtid": _texts(f"{SID}:", ordinals),
        "timestamp_us": _committed(ordinals),
        "received_us": _committed(ordinals) + 1_000,
        "op": "update",
        "table": "rows",
        "items": items,
        "row_items": items,
        "key": pyarrow.array(changes.keys).cast(pyarrow.string()),
        "before_digest": _digests(before, changes.keys),
        "after_digest": _digests(ordinals, changes.keys),
    }
    _write(folder, "part", _table("changes", len(ordinals), columns))


def _write_actions(
    folder: Path,
    changes: _Changes,
    kept: Integers,
    fills: Mapping[str, Integers],
    hits: Mapping[str, Integers],
) -> None:
    common = {"lineages": [LINEAGE], "epochs": ["1"], "lives": [LIFE], "is_absent": False, "count": 1}
    keys = changes.keys[kept - 1]
    committed = _committed(kept)
    invalidations = {
        **common,
        "client": "bench/invalidator/1",
        "sequence": numpy.arange(1, len(kept) + 1),
        "action": "invalidation",
        "outcome": "stored",
        "item": _items(keys),
        "node": _texts("n", keys % NODES),
        "tables": [],
        "floors": [],
        "positions": _lists(_texts(f"{SID}:", kept)),
        "begin_us": committed + ACK_US - 2_000,
        "end_us": committed + ACK_US,
    }
    _write(folder, "invalidation", _table("actions", len(kept), invalidations))
    end_us = int(committed[-1]) + ACK_US
    published = {
        **invalidations,
        "item": None,
        "floors": [""],
        "positions": [f"{SID}:1-{len(changes.keys)}"],
        "client": "bench/publisher/1",
        "sequence": numpy.arange(1, NODES + 1),
        "action": "publish",
        "node": _texts("n", numpy.arange(NODES)),
        "begin_us": end_us,
        "end_us": end_us,
    }
    _write(folder, "publish", _table("actions", NODES, published))
    for name, rows, outcome in (("fill", fills, "FILLED"), ("hit", hits, "HIT")):
        count = len(rows["key"])
        reader = numpy.arange(count) * READERS // count
        firsts = numpy.searchsorted(reader, reader)
        columns = {
            **common,
            "client": _texts(f"bench/{name}-reader-", reader),
            "sequence": numpy.arange(count) - firsts + 1,
            "action": name,
            "outcome": outcome,
            "object": "row",
            "tables": ["rows"],
            "item": _items(rows["key"]),
            "node": _texts("n", rows["key"] % NODES),
            "floors": [""] if name == "fill" else [],
            "positions": _lists(_texts(f"{SID}:1-", rows["prefix"])),
            "digest": _digests(changes.last(rows["key"], rows["prefix"]), rows["key"]),
            "version": rows["version"],
            "observed": rows["version"] - 1 if name == "fill" else None,
            "begin_us": rows["begin"],
            "end_us": rows["begin"] + 2_000,
        }
        _write(folder, name, _table("actions", count, columns))


# -- both sides ------------------------------------------------------------------------------------------


def audit_on_spark(session: SparkSession, bench: Bench) -> tuple[Counts, list[int]]:
    """(violations by kind, histogram of staleness)."""
    changes, actions = read_changes(session, str(bench.archive)), read_actions(session, str(bench.history))
    result = audit(changes, actions, rules=Rules(0), as_of_us=1 << 60)
    rows: list[Any] = result.violations.groupBy("kind").agg(F.sum("count").alias("count")).collect()
    found = {row["kind"]: row["count"] for row in rows}
    result.close()
    return found, list(result.summary.staleness)


def audit_in_polars(bench: Bench) -> tuple[Counts, list[int]]:
    """The same verdicts for such a history, as one would write them by hand: joins, and as-of joins by item."""
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


# -- more history than memory ---------------------------------------------------------------------------


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
        said, seconds = _timed(lambda: _say(session, bench))
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
    parser.add_argument(
        "--spill",
        action="store_true",
        help=f"audit {SPILL_EVENTS:,} events on local[2] with heaps of {SMALL.mb} and {LARGE.mb} MB",
    )
    options = parser.parse_args(arguments)
    if options.spill:
        return _main_of_spill(options)
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


def _main_of_spill(options: argparse.Namespace) -> int:
    (events,) = options.events or (SPILL_EVENTS,)
    with tempfile.TemporaryDirectory() as folder:
        spills = measure_spill(Path(folder) / "history", events)
    if options.json:
        print(json.dumps({"machine": describe_machine(), "spill": asdict(spills)}, indent=2))
    else:
        print(f"{spills.events:,} events, {spills.parquet_mb} MB on disk, {spills.arrow_mb} MB in memory")
        print(spills.large, spills.small, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
