"""Audit by replay: does recorded history prove that the cache never served what it must not? The job and its main.

``python -m spark.audit --archive … --history … --report out/``, or spark-submit. One shuffle by item, one sort, one
pass (`spark.audit.replay`); what is small (the archive's order, lives of nodes, names) travels to the executors
beside it. Exit codes: 0 clean, 2 usage or history that will not do, 3 not decided, 5 poison. See docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from freshness.errors import FormatError
from spark.audit import verdict
from spark.audit.actions import (
    Stock,
    collect_lives,
    collect_raise_acks,
    encode_actions,
    encode_changes,
    find_published,
    take_stock,
)
from spark.audit.archive import RAISES_MAX, Archive, find_raises, read_archive
from spark.audit.evidence import Names, find_gtid_gaps, find_recorder_gaps, name_violations
from spark.audit.finding import Knowledge, Life, Rules, Tally, format_evidence, format_tally, merge_tally
from spark.audit.itemlog import CHANGE, NO_NUMBER
from spark.audit.part import AuditPart, find_items
from spark.audit.replay import replay
from spark.audit.state import State
from spark.audit.summary import Summary, summarize
from spark.batch import Batches, BatchFunction
from spark.schema import REPLAYED

ROWS_PER_BATCH_MAX: Final = 20_000
SETTLE_US: Final = 5_000_000
"""How long before the archive's end an audit stops by itself: what was committed then may not be archived yet."""
TALLY: Final = "tally"
PENDING: Final = "pending"


@dataclass(frozen=True, slots=True)
class Audit:
    """The result. ``violations`` (`VIOLATION`) and ``rows`` (`REPLAY`) are persisted until `close`."""

    summary: Summary
    violations: DataFrame
    state: State
    _held: tuple[DataFrame, ...]

    def close(self) -> None:
        for frame in self._held:
            frame.unpersist()


# -- on the executors ------------------------------------------------------------------------------------


def replayer(rules: Rules, known: Knowledge) -> BatchFunction:
    """Sorted batches of `REPLAY` become batches of `REPLAYED`."""
    schema = to_arrow_schema(REPLAYED)

    def run(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        tally = Tally()
        held: list[tuple[Any, ...]] = []
        for h1, h2, findings, pending in replay(_rows(batches), rules, known, tally):
            for found in findings:
                evidence = format_evidence(found.evidence)
                spans = (found.count, found.first_us, found.last_us, found.longest_us)
                where = (found.node, found.version, found.lineage, found.who)
                held.append((found.kind, found.failure, h1, h2, *where, found.clients, *spans, evidence))
            held.extend(
                (PENDING, "", h1, h2, 0, ordinal, lineage, 0, (), 1, 0, 0, 0, "")
                for lineage, ordinal in pending
            )
            if len(held) >= ROWS_PER_BATCH_MAX:
                yield _batch(held, schema)
                held = []
        held.append((TALLY, "", 0, 0, 0, 0, 0, 0, (), 1, 0, 0, 0, format_tally(tally)))
        yield _batch(held, schema)

    return run


def _rows(batches: Batches) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        columns = [
            column.to_pylist()
            if pyarrow.types.is_binary(column.type)
            else pyarrow.compute.fill_null(column, NO_NUMBER if column.type == pyarrow.int64() else 0)
            .to_numpy()
            .tolist()
            for column in batch.columns
        ]
        yield from zip(*columns, strict=True)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pyarrow.RecordBatch.from_arrays(
        [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


# -- the frames ------------------------------------------------------------------------------------------


def replay_rows(rows: DataFrame, rules: Rules, known: Knowledge, partitions: int) -> DataFrame:
    """Rows (`REPLAY`) in any order become what was found (`REPLAYED`): one shuffle, one sort, one pass."""
    order = F.when(F.col("kind") == CHANGE, F.col("version")).otherwise(F.col("begin_us"))
    sorted_rows = rows.repartition(partitions, "h1", "h2").sortWithinPartitions("h1", "h2", "kind", order)
    return sorted_rows.mapInArrow(replayer(rules, known), REPLAYED)


def audit(
    changes: DataFrame,
    actions: DataFrame,
    *,
    rules: Rules | None = None,
    as_of_us: int | None = None,
    previous: State | None = None,
    partitions: int | None = None,
    part: AuditPart | None = None,
) -> Audit:
    """Audit recorded history that continues ``previous``. ``rules.as_of_us`` is set from ``as_of_us``, which is by
    default a little before the archive's end. ``part``: the only items that are judged, without a ``previous``.
    Raises `FormatError` for history that cannot be understood."""
    assert part is None or previous is None, "what a state carries is not of a part"
    rules = rules or Rules(0)
    archive = read_archive(changes, rules, previous.archive if previous else None)
    if not archive.lineages:
        raise FormatError(
            "the archive is empty", hint="nothing can be proved without the changes; is it the right folder?"
        )
    rules = replace(rules, as_of_us=archive.end_us - SETTLE_US if as_of_us is None else as_of_us)
    stock = take_stock(actions)
    by_name = {lineage.name: lineage for lineage in archive.lineages.values()}
    published = find_published(actions, by_name).persist()
    raises = _collect_raises(changes, previous)
    recorded = find_recorder_gaps(stock, by_name, previous)
    known = _know(archive, stock, raises, published, recorded.lost, previous)
    told = previous.told if previous else frozenset()
    gaps = find_gtid_gaps(actions, archive, told)
    damages = [*archive.damages, *recorded.damages, *gaps]
    rows = encode_changes(changes, archive.duplicates).unionByName(encode_actions(actions, by_name))
    if part is not None:
        rows = rows.join(find_items(changes, part), ["h1", "h2"], "left_semi")
    if previous is not None:
        rows = rows.unionByName(previous.rows)
    found = replay_rows(
        rows, rules, known, partitions or max(8, 4 * changes.sparkSession.sparkContext.defaultParallelism)
    ).persist()
    tally = Tally()
    for row in found.where(F.col("kind") == TALLY).select("evidence").toLocalIterator():
        merge_tally(tally, row["evidence"])
    names = Names.of(archive, stock, previous)
    violations, wrong_clocks = _judge_clocks(found, tally, names)
    before = previous.items if previous else None
    named = name_violations(violations, names, changes, actions, damages, before).persist()
    pending = found.where(F.col("kind") == PENDING).select(
        "h1", "h2", "lineage", F.col("version").alias("ordinal")
    )
    state = State(
        rows=rows,
        pending=pending,
        items=_name_items(pending, changes, actions, rules.as_of_us, before),
        archive=archive,
        known=known,
        names=names,
        sequences=recorded.sequences,
        raises=raises,
        told=told | {(gap.number, gap.source, gap.first) for gap in gaps},
        as_of_us=rules.as_of_us,
    )
    summary = summarize(named, tally, names, archive, stock, rules, wrong_clocks, changes, actions)
    summary = replace(summary, part=str(part or ""))
    return Audit(summary, named, state, (published, found, named))


def _name_items(
    pending: DataFrame, changes: DataFrame, actions: DataFrame, as_of_us: int, before: DataFrame | None
) -> DataFrame:
    """(h1, h2, item) of what is pending, and of actions that are judged next time: their records are here only."""
    item = F.col("item")
    hashed = F.xxhash64(item).alias("h1"), F.hash(item).alias("h2"), item
    now = changes.select(F.explode("items").alias("item")).select(*hashed)
    known = now if before is None else now.unionByName(before)
    open_items = known.join(pending, ["h1", "h2"], "left_semi")
    late = actions.where((F.col("end_us") > as_of_us) & item.isNotNull()).select(*hashed)
    return open_items.unionByName(late).dropDuplicates(["h1", "h2"])


def _collect_raises(changes: DataFrame, previous: State | None) -> frozenset[tuple[int, str, int]]:
    rows: list[Any] = find_raises(changes).limit(RAISES_MAX + 1).collect()
    if len(rows) > RAISES_MAX:
        raise FormatError(
            f"more than {RAISES_MAX:,} statements changed whole tables", hint="audit a shorter span"
        )
    new = frozenset((row["number"], row["table"], row["ordinal"]) for row in rows)
    return new | (previous.raises if previous else frozenset())


def _know(
    archive: Archive,
    stock: Sequence[Stock],
    raises: frozenset[tuple[int, str, int]],
    published: DataFrame,
    lost: frozenset[int],
    previous: State | None,
) -> Knowledge:
    numbers = {lineage.name: number for number, lineage in archive.lineages.items()}
    by_table: dict[tuple[int, str], list[int]] = {}
    for lineage, table, ordinal in sorted(raises):
        by_table.setdefault((lineage, table), []).append(ordinal)
    since: dict[int, int] = {}
    for each in stock:
        for name in each.lineages:
            if name in numbers:
                since[numbers[name]] = min(since.get(numbers[name], each.begin_us), each.begin_us)
    before = previous.known if previous else Knowledge({})
    acks = {**before.raise_acks}
    for key, end_us in collect_raise_acks(published, raises).items():
        acks[key] = min(end_us, acks.get(key, end_us))
    return Knowledge(
        lineages=archive.lineages,
        lives=_merge_lives(before.lives, collect_lives(published)),
        raises=by_table,
        raise_acks=acks,
        tables={**before.tables, **{each.who: each.tables for each in stock if each.tables}},
        lost=lost | before.lost,
        history_from_us={**since, **before.history_from_us},
    )


def _merge_lives(
    before: Mapping[tuple[int, int], Sequence[Life]], now: Mapping[tuple[int, int], Sequence[Life]]
) -> dict[tuple[int, int], Sequence[Life]]:
    merged: dict[tuple[int, int], dict[int, Life]] = {}
    for lives in (before, now):
        for place, of_place in lives.items():
            held = merged.setdefault(place, {})
            for life in of_place:
                old = held.get(life.life, life)
                held[life.life] = Life(
                    life.life,
                    min(old.first_begin_us, life.first_begin_us),
                    min(old.first_end_us, life.first_end_us),
                    min(old.floor, life.floor),
                    max(old.progress, life.progress),
                )
    return {
        place: sorted(held.values(), key=lambda life: life.first_begin_us) for place, held in merged.items()
    }


def _judge_clocks(found: DataFrame, tally: Tally, names: Names) -> tuple[DataFrame, frozenset[int]]:
    """What rests on a clock that is wrong is not known. ``tally`` is changed accordingly."""
    findings = found.where(~F.col("kind").isin(TALLY, PENDING))
    is_clock = F.col("kind") == verdict.CLOCK_ANOMALY
    clocks = _once_for_each_client(findings.where(is_clock))
    rows: list[Any] = (
        findings.where(is_clock).select(F.explode("clients").alias("client")).distinct().collect()
    )
    wrong = frozenset(row["client"] for row in rows)
    if not wrong:
        return findings, wrong
    rests_on_it = F.arrays_overlap("clients", F.array(*map(F.lit, sorted(wrong))))
    (row,) = findings.where(~is_clock & rests_on_it).agg(F.sum("count").alias("count")).collect()
    tally.unknown[0, verdict.WRONG_CLOCK] += row["count"] or 0
    for who in [who for who in tally.hits if names.client_of(who) in wrong]:
        tally.unknown[who, verdict.WRONG_CLOCK] += sum(tally.hits.pop(who))
    return findings.where(~is_clock & ~rests_on_it).unionByName(clocks), wrong


def _once_for_each_client(clocks: DataFrame) -> DataFrame:
    return (
        clocks.groupBy("kind", "failure", "clients")
        .agg(
            F.lit(0).cast("long").alias("h1"),
            F.lit(0).cast("int").alias("h2"),
            *(F.first(name).alias(name) for name in ("node", "version", "lineage", "who")),
            F.sum("count").alias("count"),
            F.min_by("evidence", "first_us").alias("evidence"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            F.max("longest_us").alias("longest_us"),
        )
        .select(*clocks.columns)
    )
