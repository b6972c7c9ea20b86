"""The audit by replay: does recorded history prove that the cache never served what it must not?

Theory of operation
-------------------

A value is stale if a change that its position lacks was acknowledged before it was served. To decide that for
every action, the audit brings together all rows of one item: its changes, invalidations, fills and hits. There is
one shuffle, by item, and it moves numbers only. A hot item is in several pieces (`spark.audit.input.spread`).
Everything that is not of one item is small, and known before anything is judged.

::

    archive: changes                            history: actions
      |          |                                       |
      |     read_archive                                 |
      |       order, damages, times                      |
      |          |                                       |
      v          v                                       v
    ChangeStep   +--------- Archive ----------------> ActionStep
    a row for each item of a change         a row for each fill, invalidation and hit, positions resolved;
      |                                     stock, lives, acknowledged raises: told beside the rows
      |                                           |         |
      +-------------- ReplayRow ------------------+         v
                          | + rows of the previous audit   Names, Knowledge
                          v                                 |
      ===== THE SHUFFLE: by item (h1, h2) ==============    |
                          |                                 |
                          | + context of hot items          |
                          v                                 |
                       judge, many items at once <----------+
                          |
                          v
                 Finding, PendingChange, Tally
                    |                |        |     | spans of the hits of views,
                    |                |        |     | ===== shuffled by view =====
                    | <-------------------------- judge_views
                    |                |        |
                    v                v        v
         judge_clocks drops        Carry   Summary
         what rests on a wrong   (next audit)
         clock
                    |
                    v
         read_records: the records of the
         history that show what was found
                    |
                    v
                violations

The steps read and judge batches of columns. An engine runs them: one process, or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final

import pyarrow

from freshness.errors import FormatError
from spark.audit.engine.step import Engine, Tables, Told
from spark.audit.input.evidence import Names, name_violations, read_records
from spark.audit.input.recording import RecordedFiles
from spark.audit.judge.findings import merge_findings
from spark.audit.kernel.judge import judge, judge_segment
from spark.audit.model import verdict
from spark.audit.model.finding import Finding, Knowledge, PendingChange, Reference, Rules, Tally, TallyRow
from spark.audit.model.schema import FINDING, PENDING, TALLY, to_table
from spark.audit.report.summary import Summary, summarize
from spark.audit.shuffle.segment import OF_ITEM, POISONED, Context, find_context
from spark.audit.shuffle.state import Carry
from spark.audit.shuffle.survey import ROWS_PER_PIECE, WHOLE, Scope, survey_history
from spark.audit.shuffle.views import divide_views, judge_views

FINDINGS_MAX: Final = 1_000_000
"""The most findings that one audit can list."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result. ``violations`` as `VIOLATION`. ``carry``: state that can be saved for the next audit until
    `close`."""

    summary: Summary
    violations: pyarrow.Table
    carry: Carry

    def close(self) -> None:
        self.carry.shuffled.close()


def audit(
    engine: Engine,
    changes: RecordedFiles,
    actions: RecordedFiles,
    *,
    rules: Rules | None = None,
    scope: Scope = WHOLE,
    pieces: int | None = None,
    hot_rows: int = ROWS_PER_PIECE,
) -> Audit:
    """Audit recorded history. The times of ``rules`` are set from ``scope``. ``hot_rows``: an item with more rows is
    spread over several pieces.
    Raises `FormatError` for history that cannot be understood, and for more than `FINDINGS_MAX` findings."""
    survey = survey_history(engine, changes, actions, rules or Rules(0), scope, pieces=pieces, hot_rows=hot_rows)
    kept = survey.kept
    context = find_context(survey.shuffled, survey.spread, survey.rules, kept.known, ROWS_PER_PIECE)
    step = partial(judge_piece, survey.rules, kept.known, context)
    regrouped = survey.shuffled.regroup("replay", step, context.number())
    replayed = regrouped.told
    tally = sum_tallies(replayed)
    found = context.merge(read_findings(replayed), tally)
    if tally.counts[verdict.VIEWED]:
        viewed = regrouped.reduce("views", partial(judge_views, kept.known))
        tally.add(sum_tallies(viewed).to_row())
        found += merge_findings(read_findings(viewed))
    regrouped.close()
    findings, wrong_clocks = judge_clocks(found, tally, kept.names)
    shown = [*(it.evidence for it in findings), *(it.evidence for it in survey.damages)]
    hot = {Reference("hit", client, sequence): hits for hits, _, _, client, sequence in tally.hot}
    records = read_records(engine, changes, actions, chain(*shown, hot))
    items = scope.previous.items if scope.previous else {}
    violations = name_violations(findings, survey.damages, kept.names, records, items)
    summary = summarize(
        violations,
        tally,
        kept.names,
        kept.archive,
        survey.stock,
        survey.rules,
        wrong_clocks,
        [(records[each[1:]].items[0], hits) for each, hits in hot.items() if each[1:] in records],
    )
    pending = replayed.get("pending", PENDING.empty_table())
    carry = Carry(kept, engine, survey.shuffled, survey.spread, changes, actions, pending, items)
    return Audit(summary, violations, carry)


def judge_piece(rules: Rules, known: Knowledge, context: Context, piece: int, table: pyarrow.Table) -> Iterator[Told]:
    """A step for each piece: ``findings``, ``pending``, one ``tally``, and the spans of views (`VIEW`), by piece.
    ``context``: context of items in several pieces."""
    tally = Tally()
    rows = context.complete(piece, table)
    is_whole = context.is_whole(piece)
    found: list[Finding] = []
    pending: list[PendingChange] = []
    judges = judge if is_whole else judge_segment
    for each in judges(rows, rules, known, tally) if rows.num_rows else ():
        if isinstance(each, PendingChange):
            pending.append(each)
        else:
            found.append(each)
    if found:
        yield "findings", to_table(map(_cells, found), FINDING)
    if pending:
        yield "pending", to_table(pending, PENDING)
    yield from divide_views(rows, rules, known, context.spread.pieces, tally)
    if not is_whole:
        for name in (*(() if context.is_first(piece) else OF_ITEM), POISONED):
            del tally.counts[name]
    yield "tally", to_table([tally.to_row()], TALLY)


_cells = attrgetter(*FINDING.names)


def sum_tallies(replayed: Tables) -> Tally:
    total = Tally()
    hot: dict[tuple[int, int], tuple[int, ...]] = {}
    for row in replayed["tally"].to_pylist() if "tally" in replayed else ():
        lists = {name: [tuple(each.values()) for each in its] for name, its in row.items() if name != "delays"}
        for hits, h1, h2, *reference in lists.pop("hot"):
            before = hot.get((h1, h2), (0, *reference))
            hot[h1, h2] = hits + before[0], *min(before[1:], tuple(reference))
        total.add(TallyRow(**lists, delays=row["delays"], hot=()))
    for item, (hits, client, sequence) in hot.items():
        total.add_hot(hits, *item, client, sequence)
    return total


def read_findings(replayed: Tables) -> list[Finding]:
    """The findings of all pieces. Raises `FormatError` for more than `FINDINGS_MAX`."""
    if "findings" not in replayed:
        return []
    table = replayed["findings"]
    if table.num_rows > FINDINGS_MAX:
        kinds = {row["values"]: row["counts"] for row in table.column("kind").value_counts().to_pylist()}
        told = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(kinds.items()))
        raise FormatError(
            f"more than {FINDINGS_MAX:,} violations ({told})", hint="they cannot all be listed: audit a shorter span"
        )
    found = []
    for row in table.to_pylist():
        evidence = tuple(Reference(**each) for each in row["evidence"])
        found.append(Finding(**{**row, "evidence": evidence, "clients": tuple(row["clients"])}))
    return found


def judge_clocks(findings: Iterable[Finding], tally: Tally, names: Names) -> tuple[list[Finding], frozenset[int]]:
    """The findings that stand, and the clients whose clocks are wrong. A finding that rests on a wrong clock proves
    nothing: it is counted as unknown in ``tally``, and so are the hits of such a client. Each wrong clock is one
    finding itself."""
    clocks: dict[tuple[str, tuple[int, ...]], list[Finding]] = {}
    others = []
    for each in findings:
        if each.kind == verdict.CLOCK_ANOMALY:
            clocks.setdefault((each.failure, each.clients), []).append(each)
        else:
            others.append(each)
    wrong = frozenset(client for _, clients in clocks for client in clients)
    stand = [each for each in others if wrong.isdisjoint(each.clients)]
    if wrong:
        resting = sum(each.count for each in others if not wrong.isdisjoint(each.clients))
        tally.unknown[0, verdict.WRONG_CLOCK] += resting
        for who in [who for who in tally.hits if names.client_of(who) in wrong]:
            tally.unknown[who, verdict.WRONG_CLOCK] += sum(tally.hits.pop(who))
    return [*stand, *map(_merge_clocks, clocks.values())], wrong


def _merge_clocks(its: list[Finding]) -> Finding:
    """All anomalies of one clock, shown by the first; they concern no item."""
    first = min(its, key=lambda each: (each.first_us, each.h1, each.h2))
    return replace(
        first,
        h1=0,
        h2=0,
        count=sum(each.count for each in its),
        last_us=max(each.last_us for each in its),
        longest_us=max(each.longest_us for each in its),
    )
