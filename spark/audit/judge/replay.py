"""The judge: the replay of one item, in the order of the archive what changed it, and what the cache did with it.

Rows come sorted: all changes of an item, then its invalidations, fills and hits. The earliest of several actions
that one finding shows is its evidence. Order comes from ordinals and positions. Times decide whether an action came
after an acknowledgement, with an error allowed (F3, F36). Every verdict is given here: `spark.audit.kernel` proves
by arrays what is right, and hands over what is suspicious with its witnesses, or whole items.

Its inputs and its findings are classes of `spark.audit.model.finding`. Plain Python: knows nothing of Spark, never
reads a file or a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from spark.audit.judge.itemlog import Log
from spark.audit.model import verdict
from spark.audit.model.finding import (
    STALENESS_EDGES_US,
    Evidence,
    Finding,
    Knowledge,
    PendingChange,
    Reference,
    Rules,
    Tally,
)
from spark.audit.model.row import (
    ABSENT,
    BELOW_FLOOR,
    CHANGE,
    CONTEXT,
    FILL,
    HIT,
    JUDGED,
    NO_NUMBER,
    SERVED_STALE,
    UNANSWERED,
    ActionSpan,
    AuditedEntry,
    ItemChange,
    PlacedStamp,
    ReplayRow,
    unpack_stamps,
)
from spark.audit.model.timeline import (
    ALWAYS,
    BEFORE_ARCHIVE,
    BEYOND_ARCHIVE,
    FRAGMENTED,
    NEVER,
    NOTHING,
    UNKNOWN_FLAGS,
)


class RememberedFill(NamedTuple):
    """A fill as its hits need it. ``failure``: what was wrong with it."""

    failure: str
    span: ActionSpan


class Standing(NamedTuple):
    """How an entry at a position stands on its node: since when it is out of date, and must not be served.

    ``committed_us``: when the newest transaction it holds was committed, at the earliest. ``unknown``: why it cannot
    be judged.
    """

    life: int = 0
    committed_us: int = NOTHING
    missing_since_us: int = NEVER
    stale_after_us: int = NEVER
    dead_after_us: int = NEVER
    lineage: int = 0
    acked_by: int = 0
    evidence: Evidence = ()
    is_raise: bool = False
    unknown: str = ""


class ItemReplay:
    """Takes the rows of one item in their order; `finish` gives the findings, and ``pending`` the changes that cannot
    be judged yet."""

    __slots__ = (
        "_fills",
        "_findings",
        "_first_hit",
        "_h1",
        "_h2",
        "_hits",
        "_known",
        "_logs",
        "_nodes",
        "_rules",
        "_standings",
        "_stored",
        "_tally",
        "_unanswered",
        "_was_recorded",
        "pending",
    )

    def __init__(self, h1: int, h2: int, rules: Rules, known: Knowledge, tally: Tally) -> None:
        self._h1, self._h2 = h1, h2
        self._rules, self._known, self._tally = rules, known, tally
        self._logs: dict[int, Log] = {}
        self._fills: dict[tuple[int, int, bytes, int, int], RememberedFill] = {}
        self._stored: dict[tuple[int, int, int], ActionSpan] = {}
        self._unanswered: set[tuple[int, bytes, int]] = set()
        self._standings: dict[tuple[int, bytes, int], Standing] = {}
        self._findings: dict[tuple[Any, ...], Finding] = {}
        self._nodes: dict[int, bool] = {}
        self._was_recorded = False
        self._hits = 0
        self._first_hit = 0, 0
        self.pending: list[PendingChange] = []

    # -- changes and their invalidations ------------------------------------------------------------------

    def add_change(self, change: ItemChange) -> None:
        log = self._logs.get(change.lineage)
        if log is None:
            log = self._logs[change.lineage] = Log()
        log.add(change, self._known.lineages[change.lineage].lifted(change.ordinal, change.committed_us))

    def add_invalidation(self, entry: AuditedEntry, span: ActionSpan) -> None:
        self._nodes.setdefault(entry.node, False)
        self._was_recorded |= bool(entry.flags & JUDGED)
        stamps = unpack_stamps(entry.stamps)
        is_told = self._is_told(entry, span)
        if is_told:
            self._check_clock(span, _committed(self._known, stamps))
        for stamp in stamps:
            if stamp.place.flags & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE:
                self._tally.unknown[0, explain_flags(stamp.place.flags)] += is_told
        self.note_invalidation(entry, span)

    def note_invalidation(self, entry: AuditedEntry, span: ActionSpan) -> None:
        """As `add_invalidation`, for one that is judged already."""
        for stamp in unpack_stamps(entry.stamps):
            log = self._logs.get(stamp.lineage)
            if log is not None and not stamp.place.flags & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE:
                ref = (span.client, span.sequence)
                log.cover(stamp.place, entry.node, stamp.life, span.last_us, ref)

    # -- fills --------------------------------------------------------------------------------------------

    def add_fill(self, entry: AuditedEntry, observed: int, span: ActionSpan) -> None:
        self._nodes[entry.node] = True
        self._was_recorded |= bool(entry.flags & JUDGED)
        stamps = unpack_stamps(entry.stamps)
        if self._is_told(entry, span):
            self._check_clock(span, _committed(self._known, stamps))
        failure = "" if entry.flags & UNANSWERED else self._judge_fill(entry, observed, span, stamps)
        self.note_fill(entry, span, failure)

    def note_fill(self, entry: AuditedEntry, span: ActionSpan, failure: str = "") -> None:
        """As `add_fill`, for one that is judged already."""
        stamps = unpack_stamps(entry.stamps)
        if entry.flags & UNANSWERED or entry.version == NO_NUMBER:
            self._unanswered.add((entry.node, entry.stamps, entry.digest))
        if entry.version != NO_NUMBER and stamps:
            self._fills[_value_of(entry)] = RememberedFill(failure, span)
            self._stored[entry.node, entry.version, stamps[0].life] = span

    def _judge_fill(
        self, entry: AuditedEntry, observed: int, span: ActionSpan, stamps: Sequence[PlacedStamp]
    ) -> str:
        """The failure mode of the fill, "" for none. A fill that was judged before is classified again and not
        reported."""
        is_told = self._is_told(entry, span)
        unknown = _find_unknown(stamps)
        if is_told:
            self._tally.counts["fills"] += 1
            self._tally.unknown[entry.who, unknown] += bool(unknown)
        if unknown:
            return ""
        for stamp in stamps:
            failure = self._judge_order(entry, observed, span, stamp, is_told)
            if failure:
                return failure
        if entry.flags & BELOW_FLOOR:
            if is_told:
                self._found(verdict.FILL_BELOW_FLOOR, "F16", entry, span, (span.reference("fill"),))
            return "F16"
        return self._judge_digest(entry, span, "fill", is_told)

    def _judge_order(
        self, entry: AuditedEntry, observed: int, span: ActionSpan, stamp: PlacedStamp, is_told: bool
    ) -> str:
        """Judge whether the fill was sent after the node had acknowledged a change that the position lacks."""
        log = self._logs.get(stamp.lineage)
        found = None if log is None else log.find_ack(stamp.place, entry.node, stamp.life)
        if log is None or found is None:
            return ""
        if found.end_us + self._rules.clock_error_us >= span.first_us:
            return ""
        failure = "F16" if entry.flags & BELOW_FLOOR else "F1" if observed == NO_NUMBER else "F5"
        if is_told:
            acked_by = log.acks[entry.node, stamp.life].refs[found.at]
            evidence: Evidence = (
                Reference("change", stamp.lineage, log.ordinals[found.missing], log.rows[found.missing]),
                Reference("invalidation", *acked_by),
                span.reference("fill"),
            )
            clients = span.client, acked_by[0]
            self._found(verdict.POISONED_FILL, failure, entry, span, evidence, stamp.lineage, clients)
        return failure

    # -- the row at the token -----------------------------------------------------------------------------

    def _judge_digest(self, entry: AuditedEntry, span: ActionSpan, role: str, is_told: bool) -> str:
        """Compare the value with the row at its position. A composite has no row, and the archive may lack one."""
        value = (True, NO_NUMBER) if entry.flags & ABSENT else (False, entry.digest)
        stamps = unpack_stamps(entry.stamps)
        of_row = [(stamp, self._logs[stamp.lineage]) for stamp in stamps if stamp.lineage in self._logs]
        of_row = [(stamp, log) for stamp, log in of_row if log.has_rows]
        state = self._row_at(*of_row[0], entry.who) if len(of_row) == 1 else None
        if state is None or value == (False, NO_NUMBER):
            self._tally.counts["values not comparable"] += is_told
            return ""
        self._tally.counts["values compared"] += is_told
        if state == value:
            return ""
        stamp, log = of_row[0]
        at = log.first_missing(stamp.place)
        until_us = span.last_us + self._rules.clock_error_us
        lineage = self._known.lineages[stamp.lineage]
        since = log.ordinals[at - 1] if at else lineage.first - 1
        # Rows are read after their token, so they may be newer.
        is_raised = any(
            lineage.time(ordinal) <= until_us for ordinal in self._raises(entry.who, stamp, since)
        )
        if is_raised or log.has_later(at, value, until_us):
            return ""
        if stamp.place.flags & BEYOND_ARCHIVE or lineage.has_break(since, lineage.last):
            self._tally.unknown[entry.who, verdict.ROW_UNKNOWN] += is_told
            return ""
        is_older = value in log.afters[: max(0, at - 1)] or (at > 0 and log.befores[0] == value)
        failure = "F2" if is_older else "F46"
        if is_told:
            evidence: Evidence = (
                Reference("change", stamp.lineage, log.ordinals[max(0, at - 1)], 0),
                span.reference(role),
            )
            self._found(verdict.DIGEST_MISMATCH, failure, entry, span, evidence, stamp.lineage)
        return failure

    def _row_at(self, stamp: PlacedStamp, log: Log, who: int) -> tuple[bool, int] | None:
        if stamp.place.extras and any(ordinal in stamp.place.extras for ordinal in log.ordinals):
            return None
        at = log.first_missing(stamp.place)
        if at == 0:
            raises = self._raises(who, stamp, 0)
            return None if any(ordinal < log.ordinals[0] for ordinal in raises) else log.befores[0]
        raises = self._raises(who, stamp, log.ordinals[at - 1])
        return None if any(map(stamp.place.contains, raises)) else log.afters[at - 1]

    def _raises(self, who: int, stamp: PlacedStamp, after: int) -> list[int]:
        """Where the object's tables changed as a whole, after an ordinal."""
        if not self._known.raises:
            return []
        return [
            ordinal
            for table in self._known.tables.get(who, ())
            for ordinal in self._known.raises.get((stamp.lineage, table), ())
            if ordinal > after
        ]

    # -- hits ---------------------------------------------------------------------------------------------

    def add_hit(self, entry: AuditedEntry, span: ActionSpan) -> None:
        self._nodes[entry.node] = True
        self._was_recorded |= bool(entry.flags & JUDGED)
        if not self._is_told(entry, span):
            return
        if not self._hits:
            self._first_hit = span.client, span.sequence
        self._hits += 1
        standing = self._standing(entry)
        if standing.unknown:
            self._tally.unknown[entry.who, standing.unknown] += 1
            return
        slices, tables = self._rules.slices, self._known.tables_of(entry.who)
        staleness_us = max(0, span.first_us - standing.missing_since_us)
        self._tally.count_hit(entry.who, tables, slices, span.first_us, staleness_us)
        self._check_clock(span, standing.committed_us)
        failure, is_wrong = self._trace(entry, standing, span)
        wants_fresh = not entry.flags & SERVED_STALE
        is_stale = wants_fresh and span.first_us > standing.stale_after_us
        is_dead = wants_fresh and not is_stale and span.first_us > standing.dead_after_us
        if is_stale:
            self._stale(entry, standing, failure, span)
        elif is_dead:
            self._dead(entry, standing, span)
        if is_wrong or is_stale or is_dead:
            other = standing.acked_by if is_stale and not is_wrong else 0
            counts = [0] * slices.count
            counts[slices.find(span.first_us)] = 1
            self._tally.add_poison(entry.who, other, span.first_us, span.last_us, counts)

    def _is_told(self, entry: AuditedEntry, span: ActionSpan) -> bool:
        is_new = not entry.flags & (JUDGED | CONTEXT)
        return is_new and self._rules.from_us < span.first_us <= self._rules.as_of_us

    def _standing(self, entry: AuditedEntry) -> Standing:
        key = (entry.node, entry.stamps, entry.who if self._known.raises else 0)
        held = self._standings.get(key)
        if held is None:
            held = self._standings[key] = self._find_standing(entry, unpack_stamps(entry.stamps))
        return held

    def _find_standing(self, entry: AuditedEntry, stamps: Sequence[PlacedStamp]) -> Standing:
        unknown = _find_unknown(stamps)
        if unknown:
            return Standing(unknown=unknown)
        standing = Standing(stamps[0].life, _committed(self._known, stamps))
        for stamp in stamps:
            standing = self._with_changes(standing, entry.node, stamp)
            standing = self._with_raises(standing, entry, stamp)
            dead_us = min(standing.dead_after_us, self._find_end(entry.node, stamp))
            standing = standing._replace(dead_after_us=dead_us)
        return standing

    def _with_changes(self, standing: Standing, node: int, stamp: PlacedStamp) -> Standing:
        log = self._logs.get(stamp.lineage)
        at = log.first_missing(stamp.place) if log is not None else 0
        if log is None or at == len(log.ordinals):
            return standing
        standing = standing._replace(missing_since_us=min(standing.missing_since_us, log.committed[at]))
        found = log.find_ack(stamp.place, node, stamp.life)
        if found is None or found.end_us + self._rules.clock_error_us >= standing.stale_after_us:
            return standing
        ref = log.acks[node, stamp.life].refs[found.at]
        return standing._replace(
            stale_after_us=found.end_us + self._rules.clock_error_us,
            lineage=stamp.lineage,
            acked_by=ref[0],
            is_raise=False,
            evidence=(
                Reference("change", stamp.lineage, log.ordinals[found.missing], log.rows[found.missing]),
                Reference("invalidation", *ref),
            ),
        )

    def _with_raises(self, standing: Standing, entry: AuditedEntry, stamp: PlacedStamp) -> Standing:
        for ordinal in self._raises(entry.who, stamp, stamp.place.prefix):
            if stamp.place.contains(ordinal):
                continue
            raised_us = self._known.lineages[stamp.lineage].time(ordinal)
            if raised_us != NOTHING:
                standing = standing._replace(missing_since_us=min(standing.missing_since_us, raised_us))
            acked_us = self._known.raise_acks.get((entry.node, stamp.lineage, stamp.life, ordinal), NEVER)
            acked_us += self._rules.clock_error_us + self._rules.view_us
            if acked_us < standing.stale_after_us:
                standing = standing._replace(
                    stale_after_us=acked_us,
                    lineage=stamp.lineage,
                    acked_by=0,
                    is_raise=True,
                    evidence=(Reference("change", stamp.lineage, ordinal, 0),),
                )
        return standing

    def _find_end(self, node: int, stamp: PlacedStamp) -> int:
        """When nobody may serve from that life any more."""
        lives = self._known.lives.get((node, stamp.lineage), ())
        begun = next((life.first_begin_us for life in lives if life.life == stamp.life), None)
        if begun is None:
            return NEVER
        later = (life.first_end_us for life in lives if life.first_begin_us > begun)
        return min(later, default=NEVER) + self._rules.clock_error_us + self._rules.view_us

    def _trace(self, entry: AuditedEntry, standing: Standing, span: ActionSpan) -> tuple[str, bool]:
        """Find who stored the value: (the failure mode of that fill, "" where it was right or is not known; whether
        the hit itself is reported for it)."""
        fill = self._fills.get(_value_of(entry))
        if fill is not None:
            if span.last_us + self._rules.clock_wrong_us < fill.span.first_us:
                self._check_filler(fill.span, span, standing)
            return fill.failure, False
        other = self._stored.get((entry.node, entry.version, standing.life))
        evidence: Evidence = (span.reference("hit"),)
        if other is not None:
            evidence = (other.reference("fill"), *evidence)
        elif (entry.node, entry.stamps, entry.digest) in self._unanswered:
            failure = self._judge_digest(entry, span, "hit", True)
            return failure, bool(failure)
        elif not self._is_within_history(entry, standing):
            self._tally.counts["hits of values stored before the history"] += span.actions
            failure = self._judge_digest(entry, span, "hit", True)
            return failure, bool(failure)
        elif any(
            self._was_lost(stamp.lineage, standing.committed_us) for stamp in unpack_stamps(entry.stamps)
        ):
            self._tally.unknown[entry.who, verdict.NOT_FILLED_LOST] += span.actions
            return "", False
        self._found(verdict.THIN_AIR_HIT, "F45", entry, span, evidence)
        return "F45", True

    def _is_within_history(self, entry: AuditedEntry, standing: Standing) -> bool:
        """True if the value must have been stored while actions were recorded: its position is younger."""
        return all(
            self._was_recorded_after(stamp.lineage, standing.committed_us)
            for stamp in unpack_stamps(entry.stamps)
        )

    def _was_recorded_after(self, lineage: int, committed_us: int) -> bool:
        """True if whatever was done soon after was done while actions were recorded."""
        return committed_us > self._known.history_from_us.get(lineage, NEVER) + self._rules.clock_error_us

    def _was_lost(self, lineage: int, committed_us: int) -> bool:
        """True if what was done soon after may be missing."""
        return committed_us <= self._known.lost_until_us.get(lineage, ALWAYS) + self._rules.clock_error_us

    def _stale(self, entry: AuditedEntry, standing: Standing, failure: str, span: ActionSpan) -> None:
        failure = "F21" if standing.is_raise else failure if failure in _FILL_FAILURES else "F11"
        evidence: Evidence = (*standing.evidence, span.reference("hit"))
        clients = (span.client, standing.acked_by) if standing.acked_by else (span.client,)
        longest_us = max(0, span.last_us - standing.stale_after_us + self._rules.clock_error_us)
        self._found(verdict.STALE_HIT, failure, entry, span, evidence, standing.lineage, clients, longest_us)

    def _dead(self, entry: AuditedEntry, standing: Standing, span: ActionSpan) -> None:
        longest_us = max(0, span.last_us - standing.dead_after_us)
        evidence: Evidence = (span.reference("hit"),)
        self._found(verdict.DEAD_LIFE_HIT, "F7", entry, span, evidence, 0, (span.client,), longest_us)

    # -- clocks -------------------------------------------------------------------------------------------

    def _check_clock(self, span: ActionSpan, committed_us: int) -> None:
        """Nobody holds a position before its last transaction was committed, and nothing ends before it begins."""
        if span.last_us < span.first_us - self._rules.clock_error_us:
            self._wrong_clock(span.client, span.last_us, span.first_us, (span.reference("action"),))
        elif span.last_us + self._rules.clock_wrong_us < committed_us:
            self._wrong_clock(span.client, span.last_us, committed_us, (span.reference("action"),))

    def _check_filler(self, fill: ActionSpan, hit: ActionSpan, standing: Standing) -> None:
        """Somebody read the value before it was stored: the filler is early, unless the reader is late."""
        if hit.last_us + self._rules.clock_wrong_us >= standing.committed_us:
            self._wrong_clock(
                fill.client, hit.last_us, fill.first_us, (fill.reference("fill"), hit.reference("hit"))
            )

    def _wrong_clock(self, client: int, first_us: int, last_us: int, evidence: Evidence) -> None:
        nothing = AuditedEntry(0, NO_NUMBER, 0, 0, 0, b"")
        span = ActionSpan(client, 0, 1, first_us, last_us)
        self._found(verdict.CLOCK_ANOMALY, "F36", nothing, span, evidence, 0, (client,), last_us - first_us)

    # -- the end ------------------------------------------------------------------------------------------

    def finish(self) -> list[Finding]:
        tally = self._tally
        if self._hits:
            tally.add_hot(self._hits, self._h1, self._h2, *self._first_hit)
        tally.counts["items changed"] += bool(self._logs)
        if self._nodes:
            tally.counts["items recorded"] += 1
            tally.counts["items changed and recorded"] += bool(self._logs)
            for lineage, log in self._logs.items():
                self._find_missed(lineage, log)
        found = self.findings
        tally.counts["items with poison"] += any(map(is_poison, found))
        return found

    @property
    def findings(self) -> list[Finding]:
        return list(self._findings.values())

    def _find_missed(self, lineage: int, log: Log) -> None:
        rules, counts = self._rules, self._tally.counts
        for at in range(len(log.ordinals)):
            if log.flags[at] & JUDGED and self._was_recorded:
                continue
            if log.committed[at] + rules.missed_after_us > rules.as_of_us:
                self.pending.append(PendingChange(self._h1, self._h2, lineage, log.ordinals[at]))
                continue
            if log.covered and log.covered[at] != NEVER:
                if log.committed[at] + rules.missed_after_us <= rules.from_us:
                    continue
                delay_us = max(0, log.covered[at] - log.committed[at])
                counts["changes invalidated"] += 1
                counts["changes invalidated late"] += delay_us > rules.missed_after_us
                self._tally.delays[bisect_left(STALENESS_EDGES_US, delay_us)] += 1
            else:
                self._judge_missed(lineage, log, at)

    def judge_missed(self, lineage: int, ordinal: int, nodes: Mapping[int, bool]) -> None:
        """Judge a change that nothing invalidated. ``nodes``: those that had the item, and whether it was read
        there."""
        self._nodes = dict(nodes)
        log = self._logs[lineage]
        self._judge_missed(lineage, log, bisect_left(log.ordinals, ordinal))

    def _judge_missed(self, lineage: int, log: Log, at: int) -> None:
        """Lost if progress names the change; else it is below a floor, only late, or was invalidated while nobody
        recorded that."""
        ordinal, committed_us = log.ordinals[at], log.committed[at]
        if not self._was_recorded_after(lineage, committed_us):
            self._tally.counts["changes before the history"] += 1
            return
        nodes = [node for node, is_read in self._nodes.items() if is_read] or list(self._nodes)
        lives = [(node, life) for node in nodes for life in self._known.lives.get((node, lineage), ())]
        passed = min((node for node, life in lives if life.floor < ordinal <= life.progress), default=None)
        if passed is not None and self._was_lost(lineage, committed_us):
            self._tally.unknown[0, verdict.NOT_INVALIDATED_LOST] += 1
        elif passed is not None:
            entry = AuditedEntry(passed, ordinal, 0, 0, 0, b"")
            span = ActionSpan(0, 0, 1, committed_us, committed_us)
            evidence: Evidence = (Reference("change", lineage, ordinal, log.rows[at]),)
            late_us = self._rules.as_of_us - committed_us
            self._found(verdict.MISSED_INVALIDATION, "F14", entry, span, evidence, lineage, (), late_us)
        elif any(ordinal <= life.floor for _, life in lives):
            self._tally.counts["changes below a floor"] += 1
        elif not lives:
            self._tally.unknown[0, verdict.NO_PUBLISH] += 1
        else:
            self._tally.counts["changes not yet acknowledged"] += 1
            self.pending.append(PendingChange(self._h1, self._h2, lineage, ordinal))

    def _found(
        self,
        kind: str,
        failure: str,
        entry: AuditedEntry,
        span: ActionSpan,
        evidence: Evidence,
        lineage: int = 0,
        clients: tuple[int, ...] = (),
        longest_us: int = 0,
    ) -> None:
        key = (kind, failure, entry.node, entry.version, lineage, clients)
        held = self._findings.get(key)
        if held is None:
            self._findings[key] = Finding(
                kind,
                failure,
                self._h1,
                self._h2,
                entry.node,
                entry.version,
                lineage,
                entry.who,
                clients,
                span.actions,
                span.first_us,
                span.last_us,
                longest_us,
                evidence,
            )
            return
        held.count += span.actions
        held.last_us = max(held.last_us, span.last_us)
        held.longest_us = max(held.longest_us, longest_us)
        if (span.first_us, evidence) < (held.first_us, held.evidence):
            held.first_us, held.evidence, held.who = span.first_us, evidence, entry.who


_FILL_FAILURES: Final = frozenset(("F1", "F5", "F16"))


def _value_of(entry: AuditedEntry) -> tuple[int, int, bytes, int, int]:
    """Under what a fill is remembered: its node and version, and all of the value that was stored."""
    return entry.node, entry.version, entry.stamps, entry.digest, entry.flags & ABSENT


def explain_flags(flags: int) -> str:
    """Why a place with `UNKNOWN_FLAGS` cannot be judged."""
    if flags & FRAGMENTED:
        return verdict.FRAGMENTED
    if flags & BEFORE_ARCHIVE:
        return verdict.BEFORE_ARCHIVE
    return verdict.NO_POSITION


def _committed(known: Knowledge, stamps: Sequence[PlacedStamp]) -> int:
    """When the newest transaction of the prefixes was committed, at the earliest."""
    latest = NOTHING
    for stamp in stamps:
        lineage = known.lineages.get(stamp.lineage)
        if lineage is not None:
            latest = max(latest, lineage.time(min(stamp.place.prefix, lineage.last)))
    return latest


def _find_unknown(stamps: Sequence[PlacedStamp]) -> str:
    """Why these positions cannot be judged; "" where they can."""
    if not stamps:
        return verdict.NO_POSITION
    return next(
        (explain_flags(stamp.place.flags) for stamp in stamps if stamp.place.flags & UNKNOWN_FLAGS), ""
    )


def is_poison(finding: Finding) -> bool:
    return verdict.KIND_BY_NAME[finding.kind].is_poison


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of rows that were judged apart, as if they had been judged together."""
    merged: dict[tuple[Any, ...], Finding] = {}
    for it in findings:
        key = it.h1, it.h2, it.kind, it.failure, it.node, it.version, it.lineage, it.clients
        held = merged.setdefault(key, it)
        if held is not it:
            first = min(held, it, key=lambda each: (each.first_us, each.evidence))
            merged[key] = replace(
                first,
                count=held.count + it.count,
                last_us=max(held.last_us, it.last_us),
                longest_us=max(held.longest_us, it.longest_us),
            )
    return list(merged.values())


# -- many items ------------------------------------------------------------------------------------------


def replay(
    rows: Iterable[ReplayRow], rules: Rules, known: Knowledge, tally: Tally
) -> Iterator[Finding | PendingChange]:
    """Replay sorted rows, and add to the tally. Raises `FormatError` for an item with too many changes."""
    for (h1, h2), of_item in groupby(rows, attrgetter("h1", "h2")):
        item = ItemReplay(h1, h2, rules, known, tally)
        for row in of_item:
            _add(item, row, is_judged=False)
        yield from item.finish()
        yield from item.pending


def replay_witnesses(
    rows: Iterable[tuple[ReplayRow, bool]],
    missed: Mapping[tuple[int, int], Collection[tuple[int, int]]],
    nodes: Mapping[tuple[int, int], Mapping[int, bool]],
    rules: Rules,
    known: Knowledge,
    tally: Tally,
) -> Iterator[Finding | PendingChange]:
    """Judge what is suspicious in items whose other actions are right. ``rows``: sorted, each with whether it is
    judged already and a witness only. ``missed``: by item, the changes (lineage, ordinal) that nothing invalidated;
    ``nodes``: for those items, as of `ItemReplay.judge_missed`. Adds to the tally what it judges."""
    for (h1, h2), of_item in groupby(rows, lambda each: (each[0].h1, each[0].h2)):
        item = ItemReplay(h1, h2, rules, known, tally)
        for row, is_judged in of_item:
            _add(item, row, is_judged=is_judged)
        for lineage, ordinal in missed.get((h1, h2), ()):
            item.judge_missed(lineage, ordinal, nodes[h1, h2])
        tally.counts["items with poison"] += any(map(is_poison, item.findings))
        yield from item.findings
        yield from item.pending


def _add(item: ItemReplay, row: ReplayRow, *, is_judged: bool) -> None:
    """``is_judged``: the row is right, and is there for others that rest on it."""
    if row.kind == CHANGE:
        item.add_change(row.change())
    elif row.kind == HIT:
        item.add_hit(row.entry(), row.span())
    elif row.kind == FILL and is_judged:
        item.note_fill(row.entry(), row.span())
    elif row.kind == FILL:
        item.add_fill(row.entry(), row.observed, row.span())
    elif is_judged:
        item.note_invalidation(row.entry(), row.span())
    else:
        item.add_invalidation(row.entry(), row.span())
