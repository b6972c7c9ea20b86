"""The order of the archive (`spark.audit.model.timeline.Lineage`), and the damages in it.

Steps over the recorded changes find what follows one another (`spark.audit.input.heads`); here it is put in order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from freshness.errors import FormatError
from spark.audit.engine.step import Engine, Tables
from spark.audit.input.heads import ISLAND, ODD, TIME, Island, find_islands, find_odd_times, find_times, merge_others
from spark.audit.input.recording import RecordedFiles
from spark.audit.model import verdict
from spark.audit.model.finding import Evidence, Reference, Rules
from spark.audit.model.hashing import hash_name
from spark.audit.model.timeline import NOTHING, Lineage, Run, build_chains, find_holes

RUNS_MAX: Final = 1_000_000
"""Runs of an archive, all lineages together. Sources that alternate with every commit make many."""
TIMES_MAX: Final = 2_000_000
"""Times that are kept of an archive; with more transactions several share one."""
RAISES_MAX: Final = 100_000
ODD_TIMES_MAX: Final = 10_000
"""Commits of one archive whose times are wrong, which are reported one by one."""


class Times(NamedTuple):
    """Numbers of buckets, rising, and the latest time of each."""

    at: NDArray[numpy.int64]
    latest_us: NDArray[numpy.int64]


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

    ``times``: by lineage, of each bucket of ``bucket`` ordinals. ``end_us``: when the last
    transaction was received. ``raises``: (lineage, table, ordinal) of the statements that changed a table as a whole,
    in this part of the archive.
    """

    runs: tuple[RunRow, ...]
    lineages: Mapping[int, Lineage]
    duplicates: tuple[tuple[int, int, int], ...]
    damages: tuple[Damage, ...]
    bucket: int
    times: Mapping[int, Times]
    end_us: int
    raises: frozenset[tuple[int, str, int]] = frozenset()


def read_archive(engine: Engine, changes: RecordedFiles, rules: Rules, previous: Archive | None = None) -> Archive:
    """The order and the damages of an archive that continues ``previous``. A damage is reported once, by the audit of
    its own part. Raises `FormatError` for a GTID that cannot be read, and for an archive of more than `RUNS_MAX`
    runs."""
    told = engine.scan("order of the archive", changes.parts, find_islands)
    tables = [told["islands"]] if "islands" in told else []
    if "others" in told:
        tables.append(merge_others(told["others"]))
    found = _merge_islands(tables)
    if len(found) > RUNS_MAX:
        raise FormatError(
            f"the archive is in more than {RUNS_MAX:,} pieces",
            hint="several sources alternate with every commit; audit a shorter span",
        )
    doubles = [_double(island) for island in found if island.transactions > island.last - island.first + 1]
    runs = _merge([*(previous.runs if previous else ()), *map(_run_row, found)])
    order = _order(runs, previous)
    bucket = _bucket(order.lineages.values(), previous)
    times = _read_times(engine, changes, order.lineages, bucket)
    merged = _merge_times(times, bucket, previous)
    lineages = {
        number: _with_times(lineage, bucket, merged.get(number)) for number, lineage in order.lineages.items()
    }
    damages = [*order.damages, *doubles, *_find_odd_times(engine, changes, times, lineages, rules)]
    end_us = max((island.received_us for island in found), default=NOTHING)
    return Archive(
        runs,
        lineages,
        tuple(order.duplicates),
        tuple(damages),
        bucket,
        merged,
        max(end_us, previous.end_us if previous else NOTHING),
        _read_raises(told),
    )


def _read_raises(told: Tables) -> frozenset[tuple[int, str, int]]:
    if "raises" not in told:
        return frozenset()
    rows = told["raises"].group_by(["lineage", "table", "ordinal"]).aggregate([])
    if rows.num_rows > RAISES_MAX:
        raise FormatError(f"more than {RAISES_MAX:,} statements changed whole tables", hint="audit a shorter span")
    columns = (rows.column(name).to_pylist() for name in ("lineage", "table", "ordinal"))
    return frozenset((hash_name(name), table, ordinal) for name, table, ordinal in zip(*columns, strict=True))


def _merge_islands(tables: Sequence[pyarrow.Table]) -> list[Island]:
    """Islands that touch or overlap become one."""
    if not tables:
        return []
    key = [name for name in ISLAND.names if name not in ("last", "transactions", "received_us")]
    table = pyarrow.concat_tables(tables).sort_by([(name, "ascending") for name in key])
    merged: list[Island] = []
    for row in zip(*(table.column(name).to_pylist() for name in ISLAND.names), strict=True):
        island = Island(*row)
        last = merged[-1] if merged else None
        if last is not None and last[:5] == island[:5] and island.first <= last.last + 1:
            merged[-1] = last._replace(
                last=max(last.last, island.last),
                transactions=last.transactions + island.transactions,
                received_us=max(last.received_us, island.received_us),
            )
        else:
            merged.append(island)
    return merged


def _run_row(it: Island) -> RunRow:
    length = it.last - it.first + 1
    run = Run(it.source, it.server, it.first + it.delta, it.first, length, it.transactions)
    flavor = "mariadb" if it.server else "mysql"
    return RunRow(it.lineage, hash_name(it.lineage), flavor, it.epoch, run)


def _double(it: Island) -> Damage:
    number, ordinals = hash_name(it.lineage), (it.first, it.last)
    evidence = (Reference("change", number, it.first, 0),)
    place = it.lineage, number, it.source, *ordinals
    return Damage(verdict.ARCHIVE_DUPLICATE, "F32", *place, it.received_us, evidence)


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
        if last is not None and key(last)[:5] == key(row)[:5] and row.run.ordinal <= last.run.last_ordinal + 1:
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
        pieces.append((run._replace(number=number, ordinal=ordinal, length=length, transactions=length), is_repeat))
        number = last + 1
    if len(pieces) == 1:
        pieces = [(run, pieces[0][1])]
    yield from pieces


def _damage(kind: str, failure: str, row: RunRow, run: Run) -> Damage:
    evidence = (Reference("change", row.number, run.ordinal, 0),)
    place = row.lineage, row.number, run.source, run.number, run.last_number
    return Damage(kind, failure, *place, NOTHING, evidence)


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
        number = rows[0].number
        evidence = tuple(Reference("change", number, ordinal, 0) for ordinal in (before, after))
        place = rows[0].lineage, number, "", before + 1, after - 1
        order.damages.append(Damage(verdict.ARCHIVE_GAP, "F15", *place, NOTHING, evidence))


def _find_reorderings(row: RunRow, runs: Sequence[Run], known: int, order: _Order) -> None:
    for chains in build_chains(runs).values():
        for run in (run for chain in chains[1:] for run in chain.runs):
            if run.last_ordinal > known:
                order.damages.append(_damage(verdict.ARCHIVE_REORDERING, "F29", row, run))


def _bucket(lineages: Iterable[Lineage], previous: Archive | None) -> int:
    total = sum(lineage.last - lineage.first + 1 for lineage in lineages)
    bucket = previous.bucket if previous else 1
    while total / bucket > TIMES_MAX:
        bucket *= 2
    return bucket


def _read_times(
    engine: Engine, changes: RecordedFiles, lineages: Mapping[int, Lineage], bucket: int
) -> pyarrow.Table:
    """`TIME`, once for each bucket."""
    firsts = {number: lineage.first for number, lineage in lineages.items()}
    told = engine.scan("times of the archive", changes.parts, partial(find_times, firsts, bucket))
    times = told.get("times", TIME.empty_table())
    # A few more than there are buckets: sorting them takes less memory than Arrow's hash table.
    columns = {name: times.column(name).to_numpy() for name in TIME.names}
    order = numpy.lexsort((columns["at"], columns["number"]))
    columns = {name: column[order] for name, column in columns.items()}
    changed = [numpy.diff(columns[name]) != 0 for name in ("number", "at")]
    starts = numpy.flatnonzero(numpy.append(len(order) > 0, changed[0] | changed[1]))
    folds = {"latest_us": numpy.maximum, "earliest_us": numpy.minimum, "ahead_us": numpy.maximum}
    folded = {
        name: folds[name].reduceat(column, starts) if name in folds and len(starts) else column[starts]
        for name, column in columns.items()
    }
    return pyarrow.table(folded, schema=TIME)


def _merge_times(table: pyarrow.Table, bucket: int, previous: Archive | None) -> dict[int, Times]:
    before = previous.times if previous else {}
    times: dict[int, Times] = {}
    for number in {*before, *table.column("number").unique().to_pylist()}:
        mine = table.filter(pyarrow.compute.equal(table.column("number"), number))
        at, latest_us = (mine.column(name).to_numpy() for name in ("at", "latest_us"))
        if previous and number in before:
            at = numpy.append(at, before[number].at * previous.bucket // bucket)
            latest_us = numpy.append(latest_us, before[number].latest_us)
        order = numpy.argsort(at, kind="stable")
        starts = numpy.flatnonzero(numpy.append(True, numpy.diff(at[order]) != 0))
        times[number] = Times(at[order][starts], numpy.maximum.reduceat(latest_us[order], starts))
    return times


def _with_times(lineage: Lineage, bucket: int, times: Times | None) -> Lineage:
    """With the latest time of every bucket and all before it."""
    count = (lineage.last - lineage.first) // bucket + 1
    latest = numpy.full(count, NOTHING, numpy.int64)
    if times is not None:
        latest[times.at] = times.latest_us
    return replace(lineage, bucket=bucket, times=numpy.maximum.accumulate(latest))


def _find_odd_times(
    engine: Engine, changes: RecordedFiles, times: pyarrow.Table, lineages: Mapping[int, Lineage], rules: Rules
) -> list[Damage]:
    """Commits whose time is far before that of an earlier one (F3), or after their receipt (F4). The scan runs only
    if a bucket of ordinals may have one. Raises `FormatError` for more than `ODD_TIMES_MAX`."""
    if not any(_may_be_odd(times, number, lineage, rules) for number, lineage in lineages.items()):
        return []
    told = engine.scan("odd times", changes.parts, partial(find_odd_times, lineages, rules.clock_wrong_us))
    rows = told["odd"].group_by(ODD.names).aggregate([]) if "odd" in told else ODD.empty_table()
    if rows.num_rows > ODD_TIMES_MAX:
        raise FormatError(
            f"{rows.num_rows:,} commits of the archive have times far before earlier ones, or after their receipt",
            hint=f"at most {ODD_TIMES_MAX:,} are reported one by one; mend the clock, then audit a span after that",
        )
    columns = [rows.column(name).to_pylist() for name in ODD.names]
    damages = []
    for number, ordinal, timestamp_us, by_us in sorted(zip(*columns, strict=True)):
        place = lineages[number].name, number, "", ordinal, ordinal
        evidence = (Reference("change", number, ordinal, 0),)
        failure = "F4" if by_us > 0 else "F3"
        damages.append(Damage(verdict.CLOCK_ANOMALY, failure, *place, timestamp_us, evidence))
    return damages


def _may_be_odd(times: pyarrow.Table, number: int, lineage: Lineage, rules: Rules) -> bool:
    mine = times.filter(pyarrow.compute.equal(times.column("number"), number))
    at, earliest, ahead = (mine.column(name).to_numpy() for name in ("at", "earliest_us", "ahead_us"))
    before = lineage.times[numpy.maximum(at - 1, 0)]
    is_behind = (at > 0) & (before - earliest > rules.clock_wrong_us)
    return bool((is_behind | (ahead > rules.clock_wrong_us)).any())


def rebuild(runs: Sequence[RunRow], bucket: int, times: Mapping[int, Times], end_us: int) -> Archive:
    """The archive as an earlier audit left it, without its damages, which that audit has reported."""
    order = _order(runs, None)
    lineages = {number: _with_times(lineage, bucket, times.get(number)) for number, lineage in order.lineages.items()}
    return Archive(tuple(runs), lineages, tuple(order.duplicates), (), bucket, times, end_us)
