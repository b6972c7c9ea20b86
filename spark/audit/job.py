"""The audit by replay: does recorded history prove that the cache never served what it must not?

Theory of operation
-------------------

A value is stale if a change that its position lacks was acknowledged before it was served. To decide that for every
action, the audit brings together all rows of one item: its changes, invalidations, fills and hits. There is one
shuffle, by item, and it moves numbers only. Everything that is not of one item is small: the driver collects it once,
and it travels to the executors in the closure of the replay.

::

    archive: changes                            history: actions
      |          |                                |          |
      |          +--- read_archive                |          +--- take_stock, find_published
      |               order, damages, times       |               clients, lives, acknowledged raises
      |                         |                 |                         |
      |                         +------ survey_history: on the driver ------+
      |                                           |         |
      |                                     Archive, Names, Knowledge
      v                                           |         |
    encode_changes                          encode_actions  |
    a row for each item of a change         a row for each fill, invalidation and hit;
      |                                     positions resolved to places
      |                                           |         |
      +-------------- ReplayRow ------------------+         | broadcast
                          | + rows of the former audit      |
                          v                                 |
      ===== THE SHUFFLE: by item (h1, h2) ==============    |
                          |                                 |
                          v                                 |
                       judge, many items at once <----------+
                          |
                          v
      Replayed:  Finding       PendingChange       TallyRow, one for each partition
                    |                |                 |
                    v                |                 v
         judge_clocks drops          |        Tally, added up on the driver
         what rests on a wrong       |                 |
         clock                       |                 |
                    |                v                 |
                    |              State               |
                    v           (next audit)           v
         name_violations                            Summary
         findings are broadcast to the records
         of the history that show them
                    |
                    v
                violations

A clean audit has no findings, so it joins nothing after the replay. Called by ``spark.audit``'s main.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from spark.audit import verdict
from spark.audit.actions import encode_actions, encode_changes
from spark.audit.evidence import Names, name_violations
from spark.audit.finding import Finding, Knowledge, PendingChange, Replayed, Rules, Tally
from spark.audit.kernel.judge import judge
from spark.audit.part import AuditPart, find_items
from spark.audit.state import State
from spark.audit.summary import Summary, summarize
from spark.audit.survey import Survey, survey_history
from spark.batch import Batches, BatchFunction, to_batches
from spark.schema import FINDING, REPLAY, REPLAYED

ROWS_PER_BATCH_MAX: Final = 20_000
ROWS_PER_PIECE: Final = 250_000
"""A piece is in memory as a whole, with up to 1,000 bytes for each row."""
PIECES_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class Audit:
    """The result. ``violations`` (`VIOLATION`) and what ``state`` refers to are persisted until `close`."""

    summary: Summary
    violations: DataFrame
    state: State
    _held: tuple[DataFrame, ...]

    def close(self) -> None:
        for frame in self._held:
            frame.unpersist()


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
    assert part is None or previous is None, "a state is never of a part"
    survey = survey_history(changes, actions, rules or Rules(0), as_of_us, previous)
    rows = encode_rows(changes, actions, survey, previous, part)
    replayed = replay_rows(rows, survey.rules, survey.known, partitions or count_pieces(survey)).persist()
    tally = sum_tallies(replayed)
    findings, wrong_clocks = judge_clocks(replayed, tally, survey.names)
    items = previous.items if previous else None
    violations = name_violations(findings, survey.names, changes, actions, survey.damages, items)
    state = _carry(rows, replayed, survey, changes, actions, items)
    summary = summarize(
        violations,
        tally,
        survey.names,
        survey.archive,
        survey.stock,
        survey.rules,
        wrong_clocks,
        changes,
        actions,
    )
    held = (survey.published, replayed, violations)
    return Audit(replace(summary, part=str(part or "")), violations, state, held)


# -- rows ------------------------------------------------------------------------------------------------


def encode_rows(
    changes: DataFrame,
    actions: DataFrame,
    survey: Survey,
    previous: State | None = None,
    part: AuditPart | None = None,
) -> DataFrame:
    """All rows of the replay (`REPLAY`), those that a former audit kept too."""
    rows = encode_changes(changes, survey.archive.duplicates)
    rows = rows.unionByName(encode_actions(actions, survey.lineages))
    if part is not None:
        rows = rows.join(find_items(changes, part), ["h1", "h2"], "left_semi")
    return rows if previous is None else rows.unionByName(previous.rows)


def count_pieces(survey: Survey) -> int:
    """How many pieces the replay is cut into: by its rows, and not by the cores that happen to be there."""
    transactions = sum(lineage.last - lineage.first + 1 for lineage in survey.archive.lineages.values())
    rows = transactions + sum(each.actions for each in survey.stock)
    return max(PIECES_MIN, -(-rows // ROWS_PER_PIECE))


def replay_rows(rows: DataFrame, rules: Rules, known: Knowledge, partitions: int) -> DataFrame:
    """Rows (`REPLAY`) in any order become what was found (`REPLAYED`): one shuffle, no sort."""
    return rows.repartition(partitions, "h1", "h2").mapInArrow(replayer(rules, known), REPLAYED)


# -- on the executors ------------------------------------------------------------------------------------


def replayer(rules: Rules, known: Knowledge) -> BatchFunction:
    """Batches of `REPLAY` become batches of `REPLAYED`, with one tally for the partition."""

    def run(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        tally, schema = Tally(), to_arrow_schema(REPLAY)
        # A join before the shuffle makes columns that cannot be null, which is another schema.
        pieces = [pyarrow.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]
        table = pyarrow.Table.from_batches(pieces, schema)

        def results() -> Iterator[Replayed]:
            for found in judge(table, rules, known, tally):
                yield _replayed(found)
            yield Replayed(tally=tally.to_row())

        yield from to_batches(results(), to_arrow_schema(REPLAYED), ROWS_PER_BATCH_MAX)

    return run


_cells = attrgetter(*FINDING.names)


def _replayed(found: Finding | PendingChange) -> Replayed:
    return Replayed(pending=found) if isinstance(found, PendingChange) else Replayed(finding=_cells(found))


# -- what the replay found -------------------------------------------------------------------------------


def sum_tallies(replayed: DataFrame) -> Tally:
    """The counts of all partitions."""
    total = Tally()
    for row in replayed.where(F.col("tally").isNotNull()).select("tally.*").toLocalIterator():
        total.add(row)
    return total


def judge_clocks(replayed: DataFrame, tally: Tally, names: Names) -> tuple[DataFrame, frozenset[int]]:
    """The findings (`FINDING`) that stand, and the clients whose clocks are wrong.

    A finding that rests on a wrong clock proves nothing: it is counted as unknown in ``tally``, and so are the hits
    of such a client. Each wrong clock is one finding itself.
    """
    findings = replayed.where(F.col("finding").isNotNull()).select("finding.*")
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


# -- what the next audit gets ----------------------------------------------------------------------------


def _carry(
    rows: DataFrame,
    replayed: DataFrame,
    survey: Survey,
    changes: DataFrame,
    actions: DataFrame,
    before: DataFrame | None,
) -> State:
    pending = replayed.where(F.col("pending").isNotNull()).select("pending.*")
    return State(
        rows=rows,
        pending=pending,
        items=_name_items(pending, changes, actions, survey.rules.as_of_us, before),
        archive=survey.archive,
        known=survey.known,
        names=survey.names,
        sequences=survey.sequences,
        raises=survey.raises,
        told=survey.told,
        as_of_us=survey.rules.as_of_us,
    )


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
