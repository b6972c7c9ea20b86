"""The order of the archive (`spark.audit.timeline.Lineage`), and the damages in it.

Runs of consecutive numbers are found by one aggregation, without a sort; only what is out of order is looked at row
by row. Called by the audit, first of all. Functions of DataFrames; reads no file.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from freshness.errors import FormatError
from spark.audit import verdict
from spark.audit.checksum import has_each_once, sum_of, sum_of_squares
from spark.audit.finding import Evidence, Reference, Rules
from spark.audit.timeline import NOTHING, Lineage, Run, build_chains, find_holes

RUNS_MAX: Final = 1_000_000
"""Runs of an archive, all lineages together. Sources that alternate with every commit make many."""
TIMES_MAX: Final = 2_000_000
"""Times that are kept of an archive; with more transactions several share one."""
RAISES_MAX: Final = 100_000
DAMAGES_MAX: Final = 10_000
"""The most damages of one archive that are reported one by one."""


class RunRow(NamedTuple):
    """A run and the lineage it belongs to, as they are carried to the next audit."""

    lineage: str
    number: int
    flavor: str
    epoch: int
    run: Run


class Damage(NamedTuple):
    """A violation of the archive itself. ``first``, ``last``: ordinals, or the numbers of a source."""

    kind: str
    failure: str
    lineage: str
    number: int
    source: str
    first: int
    last: int
    at_us: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Archive:
    """``lineages`` by their hash. ``duplicates``: (lineage, first ordinal, last ordinal) that repeat others.

    ``times``: by lineage, the latest time of each bucket of ``bucket`` ordinals. ``end_us``: when the last
    transaction was received.
    """

    runs: tuple[RunRow, ...]
    lineages: Mapping[int, Lineage]
    duplicates: tuple[tuple[int, int, int], ...]
    damages: tuple[Damage, ...]
    bucket: int
    times: Mapping[int, Mapping[int, int]]
    end_us: int


def find_heads(changes: DataFrame) -> DataFrame:
    """One row for each transaction: (lineage, number, epoch, ordinal, gtid, source, server, sequence, timestamp_us,
    received_us, doubles), ``doubles`` being how often it is there.

    A transaction with changes has a row 0, one without anything is ``empty``. Only those of heartbeats and of whole
    tables alone can have several rows without being there several times.
    """
    of = ("lineage", "epoch", "ordinal", "gtid")
    is_whole = (F.col("row") == 0) | (F.col("op") == "empty")
    whole = changes.where(is_whole).select(
        *of, "timestamp_us", "received_us", F.lit(1).cast("long").alias("doubles")
    )
    others = changes.where(~is_whole & (F.col("rows") == 0))
    once = others.groupBy(*of, "op", "table", "detail").agg(
        F.count("*").alias("doubles"),
        F.min("timestamp_us").alias("timestamp_us"),
        F.max("received_us").alias("received_us"),
    )
    single = once.groupBy(*of).agg(
        F.min("timestamp_us").alias("timestamp_us"),
        F.max("received_us").alias("received_us"),
        F.max("doubles").alias("doubles"),
    )
    gtid = F.col("gtid")
    is_mysql = gtid.contains(":")
    mysql, mariadb = r"^(.*):([0-9]+)$", r"^([0-9]+)-([0-9]+)-([0-9]+)$"
    return whole.unionByName(single).select(
        "lineage",
        F.xxhash64("lineage").alias("number"),
        "epoch",
        "ordinal",
        F.when(is_mysql, F.regexp_extract(gtid, mysql, 1))
        .otherwise(F.regexp_extract(gtid, mariadb, 1))
        .alias("source"),
        F.when(is_mysql, F.lit("")).otherwise(F.regexp_extract(gtid, mariadb, 2)).alias("server"),
        F.when(is_mysql, F.regexp_extract(gtid, mysql, 2))
        .otherwise(F.regexp_extract(gtid, mariadb, 3))
        .try_cast("long")
        .alias("sequence"),
        "timestamp_us",
        "received_us",
        "doubles",
    )


_RUN: Final = ("lineage", "number", "epoch", "source", "server", "delta")


def find_runs(heads: DataFrame) -> DataFrame:
    """(`_RUN`, first, last, transactions, total, squares, received_us): what may be a run, and its sums."""
    return (
        heads.withColumn("delta", F.col("sequence") - F.col("ordinal"))
        .groupBy(*_RUN)
        .agg(
            F.min("ordinal").alias("first"),
            F.max("ordinal").alias("last"),
            F.sum("doubles").alias("transactions"),
            sum_of(F.col("ordinal"), F.col("doubles")).alias("total"),
            sum_of_squares(F.col("ordinal"), F.col("doubles")).alias("squares"),
            F.max("received_us").alias("received_us"),
        )
    )


def find_islands(heads: DataFrame, lineages: Sequence[str]) -> DataFrame:
    """Exact runs of lineages that are damaged: each consecutive piece, with its doubles counted."""
    each = (
        heads.where(F.col("lineage").isin(list(lineages)))
        .withColumn("delta", F.col("sequence") - F.col("ordinal"))
        .groupBy(*_RUN, "ordinal")
        .agg(F.sum("doubles").alias("doubles"), F.max("received_us").alias("received_us"))
    )
    order = Window.partitionBy(*_RUN).orderBy("ordinal")
    return (
        each.withColumn("island", F.col("ordinal") - F.row_number().over(order))
        .groupBy(*_RUN, "island")
        .agg(
            F.min("ordinal").alias("first"),
            F.max("ordinal").alias("last"),
            F.sum("doubles").alias("transactions"),
            F.max("received_us").alias("received_us"),
        )
    )


def find_times(heads: DataFrame, firsts: Mapping[int, int], bucket: int) -> DataFrame:
    """(number, at, latest_us): of each bucket of ordinals the latest time that was not after its receipt."""
    first = _lookup(heads, firsts)
    at = F.floor((F.col("ordinal") - F.col("first")) / F.lit(bucket)).cast("long")
    return (
        first.withColumn("at", at)
        .groupBy("number", "at")
        .agg(F.max(F.least("timestamp_us", "received_us")).alias("latest_us"))
    )


def _lookup(heads: DataFrame, firsts: Mapping[int, int]) -> DataFrame:
    table = heads.sparkSession.createDataFrame(list(firsts.items()), "number long, first long")
    return heads.join(F.broadcast(table), "number")


def find_raises(changes: DataFrame) -> DataFrame:
    """(number, table, ordinal) of the statements that changed a table as a whole."""
    raised = changes.where(F.col("op") == "raise")
    return raised.select(F.xxhash64("lineage").alias("number"), "table", "ordinal").distinct()


def read_archive(changes: DataFrame, rules: Rules, previous: Archive | None = None) -> Archive:
    """The order and the damages of an archive that continues ``previous``. A damage is reported once, by the audit of
    its own part.

    Raises `FormatError` for a GTID that cannot be read, and for an archive of more than `RUNS_MAX` runs.
    """
    heads = find_heads(changes)
    found = _collect(find_runs(heads))
    broken = sorted({row["lineage"] for row in found if not _is_whole(row)})
    doubles: list[Damage] = []
    if broken:
        islands = _collect(find_islands(heads, broken))
        doubles = [_double(row) for row in islands if row["transactions"] > row["last"] - row["first"] + 1]
        found = [row for row in found if row["lineage"] not in broken] + islands
    runs = _merge([*(previous.runs if previous else ()), *map(_run_row, found)])
    order = _order(runs, previous)
    bucket = _bucket(order.lineages.values(), previous)
    times = _times(heads, order.lineages, bucket, previous)
    lineages = {
        number: _with_times(lineage, bucket, times.get(number, {}))
        for number, lineage in order.lineages.items()
    }
    damages = [*order.damages, *doubles, *_find_odd_times(heads, lineages, rules)]
    end_us = max((row["received_us"] for row in found), default=NOTHING)
    return Archive(
        runs,
        lineages,
        tuple(order.duplicates),
        tuple(damages),
        bucket,
        times,
        max(end_us, previous.end_us if previous else NOTHING),
    )


def _collect(runs: DataFrame) -> list[Any]:
    rows: list[Any] = runs.limit(RUNS_MAX + 1).collect()
    if len(rows) > RUNS_MAX:
        raise FormatError(
            f"the archive is in more than {RUNS_MAX:,} pieces",
            hint="several sources alternate with every commit; audit a shorter span",
        )
    for row in rows:
        if row["delta"] is None:
            raise FormatError(
                f"the archive of {row['lineage']} has a GTID that cannot be read, at ordinal {row['first']}",
                hint="expected uuid:number, uuid:tag:number or domain-server-number",
            )
    return rows


def _is_whole(row: Any) -> bool:
    return has_each_once(row["first"], row["last"], row["transactions"], row["total"], row["squares"])


def _run_row(row: Any) -> RunRow:
    length = row["last"] - row["first"] + 1
    run = Run(
        row["source"], row["server"], row["first"] + row["delta"], row["first"], length, row["transactions"]
    )
    flavor = "mariadb" if row["server"] else "mysql"
    return RunRow(row["lineage"], row["number"], flavor, row["epoch"], run)


def _double(row: Any) -> Damage:
    evidence: Evidence = (Reference("change", row["number"], row["first"], 0),)
    return Damage(
        verdict.ARCHIVE_DUPLICATE,
        "F32",
        row["lineage"],
        row["number"],
        row["source"],
        row["first"],
        row["last"],
        row["received_us"],
        evidence,
    )


def _merge(rows: Sequence[RunRow]) -> tuple[RunRow, ...]:
    """Runs that continue one another become one."""

    def key(row: RunRow) -> tuple[Any, ...]:
        return (
            row.lineage,
            row.epoch,
            row.run.source,
            row.run.server,
            row.run.number - row.run.ordinal,
            row.run.ordinal,
        )

    merged: list[RunRow] = []
    for row in sorted(rows, key=key):
        last = merged[-1] if merged else None
        if (
            last is not None
            and key(last)[:5] == key(row)[:5]
            and row.run.ordinal <= last.run.last_ordinal + 1
        ):
            length = max(last.run.last_ordinal, row.run.last_ordinal) - last.run.ordinal + 1
            both = last.run.transactions + row.run.transactions
            merged[-1] = last._replace(run=last.run._replace(length=length, transactions=both))
        else:
            merged.append(row)
    return tuple(merged)


@dataclass(slots=True)
class _Order:
    lineages: dict[int, Lineage]
    duplicates: list[tuple[int, int, int]]
    damages: list[Damage]


def _order(rows: Sequence[RunRow], previous: Archive | None) -> _Order:
    order = _Order({}, [], [])
    for (name, number, flavor), group in groupby(
        sorted(rows, key=lambda row: (row.number, row.lineage, row.flavor, row.run.ordinal)),
        key=lambda row: (row.lineage, row.number, row.flavor),
    ):
        of_lineage = list(group)
        before = previous.lineages.get(number) if previous else None
        known = before.last if before is not None else 0
        runs = _without_repeats(of_lineage, known, order)
        _find_gaps(of_lineage, known, order)
        _find_reorderings(of_lineage[0], runs, known, order)
        ends: dict[int, int] = {}
        for row in of_lineage:
            ends[row.epoch] = max(ends.get(row.epoch, 0), row.run.last_ordinal)
        breaks = {ordinal for *_, ordinal in find_holes(runs)}
        breaks |= {end for end, _ in _gaps(of_lineage)}
        order.lineages[number] = Lineage(
            name,
            number,
            flavor,
            min(row.run.ordinal for row in of_lineage),
            max(row.run.last_ordinal for row in of_lineage),
            build_chains(runs),
            ends,
            tuple(sorted(breaks)),
        )
    return order


def _without_repeats(rows: Sequence[RunRow], known: int, order: _Order) -> list[Run]:
    """Without what repeats numbers of an earlier run: transactions that were archived again."""
    kept: list[Run] = []
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in rows:
        held = spans.setdefault((row.run.source, row.run.server), [])
        for piece, is_repeat in _cut(row.run, held):
            if not is_repeat:
                kept.append(piece)
                insort(held, (piece.number, piece.last_number))
                continue
            order.duplicates.append((row.number, piece.ordinal, piece.last_ordinal))
            if piece.last_ordinal > known:
                order.damages.append(_damage(verdict.ARCHIVE_DUPLICATE, "F32", row, piece))
    return kept


def _cut(run: Run, held: Sequence[tuple[int, int]]) -> Iterator[tuple[Run, bool]]:
    """A run in pieces, of which each is in one of the spans, or in none. ``held`` rises."""
    number, pieces = run.number, []
    while number <= run.last_number:
        at = bisect_right(held, (number, run.last_number + 1)) - 1
        is_repeat = at >= 0 and held[at][1] >= number
        if is_repeat:
            last = min(run.last_number, held[at][1])
        else:
            last = min(run.last_number, held[at + 1][0] - 1) if at + 1 < len(held) else run.last_number
        length = last - number + 1
        ordinal = run.ordinal + number - run.number
        pieces.append(
            (run._replace(number=number, ordinal=ordinal, length=length, transactions=length), is_repeat)
        )
        number = last + 1
    if len(pieces) == 1:
        pieces = [(run, pieces[0][1])]
    yield from pieces


def _damage(kind: str, failure: str, row: RunRow, run: Run) -> Damage:
    evidence: Evidence = (Reference("change", row.number, run.ordinal, 0),)
    return Damage(
        kind, failure, row.lineage, row.number, run.source, run.number, run.last_number, NOTHING, evidence
    )


def _gaps(rows: Sequence[RunRow]) -> list[tuple[int, int]]:
    """(last ordinal before, first ordinal after) of what is missing. ``rows`` by ordinal."""
    gaps, end = [], rows[0].run.ordinal - 1
    for row in rows:
        if row.run.ordinal > end + 1:
            gaps.append((end, row.run.ordinal))
        end = max(end, row.run.last_ordinal)
    return gaps


def _find_gaps(rows: Sequence[RunRow], known: int, order: _Order) -> None:
    for before, after in _gaps(rows):
        if after <= known:
            continue
        first = rows[0]
        evidence: Evidence = (
            Reference("change", first.number, before, 0),
            Reference("change", first.number, after, 0),
        )
        order.damages.append(
            Damage(
                verdict.ARCHIVE_GAP,
                "F15",
                first.lineage,
                first.number,
                "",
                before + 1,
                after - 1,
                NOTHING,
                evidence,
            )
        )


def _find_reorderings(row: RunRow, runs: Sequence[Run], known: int, order: _Order) -> None:
    for chains in build_chains(runs).values():
        for run in (run for chain in chains[1:] for run in chain.runs):
            if run.last_ordinal > known:
                order.damages.append(_damage(verdict.ARCHIVE_REORDERING, "F29", row, run))


# -- times -----------------------------------------------------------------------------------------------


def _bucket(lineages: Iterable[Lineage], previous: Archive | None) -> int:
    total = sum(lineage.last - lineage.first + 1 for lineage in lineages)
    bucket = previous.bucket if previous else 1
    while total / bucket > TIMES_MAX:
        bucket *= 2
    return bucket


def _times(
    heads: DataFrame, lineages: Mapping[int, Lineage], bucket: int, previous: Archive | None
) -> dict[int, dict[int, int]]:
    times: dict[int, dict[int, int]] = {}
    for number, held in (previous.times if previous else {}).items():
        mine = times.setdefault(number, {})
        for at, latest_us in held.items():
            place = at * previous.bucket // bucket if previous else at
            mine[place] = max(mine.get(place, NOTHING), latest_us)
    firsts = {number: lineage.first for number, lineage in lineages.items()}
    table = find_times(heads, firsts, bucket).toArrow()
    for number, at, latest_us in zip(
        *(table.column(name).to_pylist() for name in table.column_names), strict=True
    ):
        mine = times.setdefault(number, {})
        mine[at] = max(mine.get(at, NOTHING), latest_us)
    return times


def _with_times(lineage: Lineage, bucket: int, times: Mapping[int, int]) -> Lineage:
    """With the latest time of every bucket and all before it."""
    count = (lineage.last - lineage.first) // bucket + 1
    latest = numpy.full(count, NOTHING, numpy.int64)
    latest[list(times)] = list(times.values())
    return Lineage(
        lineage.name,
        lineage.number,
        lineage.flavor,
        lineage.first,
        lineage.last,
        lineage.chains,
        lineage.epoch_ends,
        lineage.breaks,
        bucket,
        numpy.maximum.accumulate(latest),
    )


_ODD: Final = "number long, ordinal long, timestamp_us long, by_us long"


def _find_odd_times(heads: DataFrame, lineages: Mapping[int, Lineage], rules: Rules) -> list[Damage]:
    """Commits whose time is far before that of an earlier one (F3), or after their receipt (F4)."""

    def find(batches: Iterable[pyarrow.RecordBatch]) -> Iterable[pyarrow.RecordBatch]:
        for batch in batches:
            columns = [
                batch.column(name).to_numpy() for name in ("number", "ordinal", "timestamp_us", "received_us")
            ]
            numbers, ordinals, stamps, received = columns
            by_us = stamps - received
            for number in numpy.unique(numbers):
                lineage, mine = lineages[int(number)], numbers == number
                before = (ordinals[mine] - lineage.first) // lineage.bucket - 1
                latest = numpy.where(before >= 0, lineage.times[numpy.maximum(before, 0)], stamps[mine])
                by_us[mine] = numpy.where(
                    by_us[mine] > rules.clock_wrong_us, by_us[mine], stamps[mine] - latest
                )
            odd = numpy.abs(by_us) > rules.clock_wrong_us
            arrays = [pyarrow.array(column[odd]) for column in (numbers, ordinals, stamps, by_us)]
            yield pyarrow.RecordBatch.from_arrays(arrays, ["number", "ordinal", "timestamp_us", "by_us"])

    columns: list[Column] = [F.col(name) for name in ("number", "ordinal", "timestamp_us", "received_us")]
    rows = heads.select(*columns).mapInArrow(find, _ODD).limit(DAMAGES_MAX).collect()
    return [
        Damage(
            verdict.CLOCK_ANOMALY,
            "F4" if row["by_us"] > 0 else "F3",
            lineages[row["number"]].name,
            row["number"],
            "",
            row["ordinal"],
            row["ordinal"],
            row["timestamp_us"],
            (Reference("change", row["number"], row["ordinal"], 0),),
        )
        for row in rows
    ]


def rebuild(
    runs: Sequence[RunRow], bucket: int, times: Mapping[int, Mapping[int, int]], end_us: int
) -> Archive:
    """The archive as an earlier audit left it, without its damages, which that audit has reported."""
    order = _order(runs, None)
    lineages = {
        number: _with_times(lineage, bucket, times.get(number, {}))
        for number, lineage in order.lineages.items()
    }
    return Archive(tuple(runs), lineages, tuple(order.duplicates), (), bucket, times, end_us)
