"""The judge: the replay of one item, in the order of the archive what changed it, and what the cache did with it.

Rows come sorted: all changes of an item, then its invalidations, fills and hits. The earliest of several actions
that one finding shows is its evidence. Order comes from ordinals and positions. Times decide whether an action came
after an acknowledgement, with an error allowed (F3, F36). Every verdict is given here: `spark.audit.kernel`
proves by arrays what is right, and hands over what is suspicious with its witnesses, or whole items.

Its inputs and its findings are classes of `spark.audit.model.finding`. Plain Python: knows nothing of Spark, never
reads a file or a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Final, TypeAlias

from spark.audit.judge.facts import ItemFacts, Standing, explain_flags, find_unknown
from spark.audit.judge.findings import ItemFindings, is_poison
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
    INVALIDATION,
    JUDGED,
    NO_NUMBER,
    SERVED_STALE,
    UNANSWERED,
    ActionSpan,
    AuditedEntry,
    PlacedStamp,
    ReplayRow,
    unpack_stamps,
)
from spark.audit.model.timeline import ALWAYS, BEFORE_ARCHIVE, BEYOND_ARCHIVE, NEVER, UNKNOWN_FLAGS

ReadsByNode: TypeAlias = dict[int, dict[int, int]]
"""By node that had the item, and by life: when the item was last read or stored there."""


def note_read(nodes: ReadsByNode, node: int, kind: int, flags: int, begin_us: int, stamps: bytes) -> None:
    """Note an action. Old values that the configuration allows do not count."""
    reads = nodes.setdefault(node, {})
    if kind != INVALIDATION and not flags & SERVED_STALE:
        for stamp in unpack_stamps(stamps):
            reads[stamp.life] = max(begin_us, reads.get(stamp.life, begin_us))


class ItemReplay:
    """Takes the rows of one item in their order, and judges its fills and hits."""

    __slots__ = (
        "_facts",
        "_fills",
        "_findings",
        "_first_hit",
        "_hits",
        "_nodes",
        "_rules",
        "_stored",
        "_tally",
        "_unanswered",
        "_was_recorded",
    )

    def __init__(self, h1: int, h2: int, rules: Rules, known: Knowledge, tally: Tally) -> None:
        self._rules, self._tally = rules, tally
        self._facts, self._findings = ItemFacts(rules, known), ItemFindings(h1, h2)
        # The failure mode of the fill of a value, and its action.
        self._fills: dict[tuple[int, int, bytes, int, int], tuple[str, ActionSpan]] = {}
        self._stored: dict[tuple[int, int, int], ActionSpan] = {}
        self._unanswered: set[tuple[int, bytes, int]] = set()
        self._nodes: ReadsByNode = {}
        self._was_recorded = False
        self._hits = 0
        self._first_hit = 0, 0

    def add(self, row: ReplayRow, *, is_judged: bool) -> None:
        """The next row. ``is_judged``: it is right, and is there for others that rest on it."""
        if row.kind == CHANGE:
            self._facts.add_change(row)
            return
        entry, span = row.entry(), row.span()
        note_read(self._nodes, row.node, row.kind, row.flags, row.begin_us, row.stamps)
        self._was_recorded |= bool(entry.flags & JUDGED)
        is_new = not is_judged and not entry.flags & (JUDGED | CONTEXT)
        is_told = is_new and self._rules.from_us < span.first_us <= self._rules.as_of_us
        if row.kind == INVALIDATION:
            if is_told:
                self._judge_invalidation(entry, span)
            self._facts.add_invalidation(entry, span)
            return
        if row.kind == FILL:
            failure = "" if is_judged else self._judge_fill(entry, row.observed, span, is_told)
            self._remember(entry, span, failure)
        elif is_told:
            self._judge_hit(entry, span)

    def _judge_invalidation(self, entry: AuditedEntry, span: ActionSpan) -> None:
        stamps = unpack_stamps(entry.stamps)
        self._check_clock(span, self._facts.find_commit(stamps))
        for stamp in stamps:
            if stamp.place.flags & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE:
                self._tally.unknown[0, explain_flags(stamp.place.flags)] += 1

    def _remember(self, entry: AuditedEntry, span: ActionSpan, failure: str) -> None:
        stamps = unpack_stamps(entry.stamps)
        if entry.flags & UNANSWERED or entry.version == NO_NUMBER:
            self._unanswered.add((entry.node, entry.stamps, entry.digest))
        if entry.version != NO_NUMBER and stamps:
            self._fills[_value_of(entry)] = failure, span
            self._stored[entry.node, entry.version, stamps[0].life] = span

    def _judge_fill(self, entry: AuditedEntry, observed: int, span: ActionSpan, is_told: bool) -> str:
        """The failure mode of the fill, "" for none. A fill that was judged before is classified again and not
        reported."""
        stamps = unpack_stamps(entry.stamps)
        if is_told:
            self._check_clock(span, self._facts.find_commit(stamps))
        if entry.flags & UNANSWERED:
            return ""
        unknown = find_unknown(stamps)
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
                self._findings.add(verdict.FILL_BELOW_FLOOR, "F16", entry, span, (span.reference("fill"),))
            return "F16"
        return self._judge_digest(entry, span, "fill", is_told)

    def _judge_order(
        self, entry: AuditedEntry, observed: int, span: ActionSpan, stamp: PlacedStamp, is_told: bool
    ) -> str:
        """Judge whether the fill was sent after the node had acknowledged a change that the position lacks."""
        log = self._facts.logs.get(stamp.lineage)
        found = None if log is None else log.find_ack(stamp.place, entry.node, stamp.life)
        if log is None or found is None:
            return ""
        if found.end_us + self._rules.clock_error_us >= span.first_us:
            return ""
        failure = "F16" if entry.flags & BELOW_FLOOR else "F1" if observed == NO_NUMBER else "F5"
        if is_told:
            missing, acked = log.show_ack(found, stamp.lineage, entry.node, stamp.life)
            evidence = missing, acked, span.reference("fill")
            clients = span.client, acked.source
            self._findings.add(verdict.POISONED_FILL, failure, entry, span, evidence, stamp.lineage, clients)
        return failure

    def _judge_digest(self, entry: AuditedEntry, span: ActionSpan, role: str, is_told: bool) -> str:
        """Compare the value with the row at its position."""
        value = (True, NO_NUMBER) if entry.flags & ABSENT else (False, entry.digest)
        row = self._facts.find_row(entry)
        if row is None or value == (False, NO_NUMBER):
            self._tally.counts["values not comparable"] += is_told
            return ""
        self._tally.counts["values compared"] += is_told
        stamp, log, state = row
        if state == value:
            return ""
        at = log.first_missing(stamp.place)
        until_us = span.last_us + self._rules.clock_error_us
        lineage = self._facts.known.lineages[stamp.lineage]
        since = log.ordinals[at - 1] if at else lineage.first - 1
        # Rows are read after their token, so they may be newer.
        raises = self._facts.find_raises(entry.who, stamp, since)
        is_raised = any(lineage.time(ordinal) <= until_us for ordinal in raises)
        if is_raised or log.has_later(at, value, until_us):
            return ""
        if stamp.place.flags & BEYOND_ARCHIVE or lineage.has_break(since, lineage.last):
            self._tally.unknown[entry.who, verdict.ROW_UNKNOWN] += is_told
            return ""
        is_older = value in log.afters[: max(0, at - 1)] or (at > 0 and log.befores[0] == value)
        failure = "F2" if is_older else "F46"
        if is_told:
            change = Reference("change", stamp.lineage, log.ordinals[max(0, at - 1)], 0)
            evidence = change, span.reference(role)
            self._findings.add(verdict.DIGEST_MISMATCH, failure, entry, span, evidence, stamp.lineage)
        return failure

    def _judge_hit(self, entry: AuditedEntry, span: ActionSpan) -> None:
        if not self._hits:
            self._first_hit = span.client, span.sequence
        self._hits += 1
        standing = self._facts.find_standing(entry)
        if standing.unknown:
            self._tally.unknown[entry.who, standing.unknown] += 1
            return
        slices, tables = self._rules.slices, self._facts.known.tables_of(entry.who)
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
            evidence = (span.reference("hit"),)
            longest_us = max(0, span.last_us - standing.dead_after_us)
            self._findings.add(verdict.DEAD_LIFE_HIT, "F7", entry, span, evidence, 0, (span.client,), longest_us)
        if is_wrong or is_stale or is_dead:
            other = standing.acked_by if is_stale and not is_wrong else 0
            counts = [0] * slices.count
            counts[slices.find(span.first_us)] = 1
            self._tally.add_poison(entry.who, other, span.first_us, span.last_us, counts)

    def _trace(self, entry: AuditedEntry, standing: Standing, span: ActionSpan) -> tuple[str, bool]:
        """Find who stored the value: (the failure mode of that fill, "" if it was right or is not known; whether the
        hit itself is reported for it)."""
        facts, committed_us = self._facts, standing.committed_us
        fill = self._fills.get(_value_of(entry))
        if fill is not None:
            failure, stored = fill
            if committed_us <= span.last_us + self._rules.clock_wrong_us < stored.first_us:
                # It was read before it was stored: the filler is early, unless the reader is late.
                references = stored.reference("fill"), span.reference("hit")
                self._findings.add_clock(stored.client, span.last_us, stored.first_us, references)
            return failure, False
        other = self._stored.get((entry.node, entry.version, standing.life))
        evidence: Evidence = (span.reference("hit"),)
        if other is not None:
            evidence = (other.reference("fill"), *evidence)
        else:
            lineages = [stamp.lineage for stamp in unpack_stamps(entry.stamps)]
            is_unanswered = (entry.node, entry.stamps, entry.digest) in self._unanswered
            if is_unanswered or not all(facts.was_recorded_after(it, committed_us) for it in lineages):
                if not is_unanswered:
                    self._tally.counts["hits of values stored before the history"] += 1
                failure = self._judge_digest(entry, span, "hit", True)
                return failure, bool(failure)
            if any(facts.was_lost(lineage, committed_us) for lineage in lineages):
                self._tally.unknown[entry.who, verdict.NOT_FILLED_LOST] += 1
                return "", False
        self._findings.add(verdict.THIN_AIR_HIT, "F45", entry, span, evidence)
        return "F45", True

    def _stale(self, entry: AuditedEntry, standing: Standing, failure: str, span: ActionSpan) -> None:
        failure = "F21" if standing.is_raise else failure if failure in _FILL_FAILURES else "F11"
        evidence = (*standing.evidence, span.reference("hit"))
        clients = (span.client, standing.acked_by) if standing.acked_by else (span.client,)
        longest_us = max(0, span.last_us - standing.stale_after_us + self._rules.clock_error_us)
        self._findings.add(verdict.STALE_HIT, failure, entry, span, evidence, standing.lineage, clients, longest_us)

    def _check_clock(self, span: ActionSpan, committed_us: int) -> None:
        """Nobody holds a position before its last transaction was committed, and nothing ends before it begins."""
        if span.last_us < span.first_us - self._rules.clock_error_us:
            self._findings.add_clock(span.client, span.last_us, span.first_us, (span.reference("action"),))
        elif span.last_us + self._rules.clock_wrong_us < committed_us:
            self._findings.add_clock(span.client, span.last_us, committed_us, (span.reference("action"),))

    def finish(self) -> Iterator[Finding | PendingChange]:
        """Judge the changes, count the item, and tell everything that was found."""
        counts, is_changed = self._tally.counts, bool(self._facts.logs)
        if self._hits:
            self._tally.add_hot(self._hits, self._findings.h1, self._findings.h2, *self._first_hit)
        counts["items changed"] += is_changed
        changes = ChangeJudge(self._facts, self._findings, self._tally, self._nodes)
        if self._nodes:
            counts["items recorded"] += 1
            counts["items changed and recorded"] += is_changed
            changes.judge_all(was_recorded=self._was_recorded)
        return self._tell(changes.pending)

    def finish_missed(
        self, missed: Iterable[tuple[int, int]], nodes: ReadsByNode
    ) -> Iterator[Finding | PendingChange]:
        """As `finish`, for an item that is counted, and of whose changes nothing invalidated these alone."""
        changes = ChangeJudge(self._facts, self._findings, self._tally, nodes)
        for lineage, ordinal in missed:
            changes.judge_missed(lineage, ordinal)
        return self._tell(changes.pending)

    def _tell(self, pending: Sequence[PendingChange]) -> Iterator[Finding | PendingChange]:
        found = self._findings.all()
        self._tally.counts["items with poison"] += any(map(is_poison, found))
        return chain(found, pending)


_FILL_FAILURES: Final = frozenset(("F1", "F5", "F16"))


def _value_of(entry: AuditedEntry) -> tuple[int, int, bytes, int, int]:
    """Under what a fill is remembered: its node and version, and all of the value that was stored."""
    return entry.node, entry.version, entry.stamps, entry.digest, entry.flags & ABSENT


class ChangeJudge:
    """``nodes``: result of `note_read`. ``pending``: the changes that cannot be judged yet."""

    __slots__ = ("_facts", "_findings", "_nodes", "_tally", "pending")

    def __init__(self, facts: ItemFacts, findings: ItemFindings, tally: Tally, nodes: ReadsByNode) -> None:
        self._facts, self._findings, self._tally, self._nodes = facts, findings, tally, nodes
        self.pending: list[PendingChange] = []

    def judge_all(self, *, was_recorded: bool) -> None:
        """``was_recorded``: an earlier audit had actions on the item, and judged its changes then."""
        rules, tally = self._facts.rules, self._tally
        for lineage, log in self._facts.logs.items():
            for at, committed_us in enumerate(log.committed):
                if log.flags[at] & JUDGED and was_recorded:
                    continue
                if committed_us + rules.missed_after_us > rules.as_of_us:
                    self._put_off(lineage, log.ordinals[at])
                elif not log.covered or log.covered[at] == NEVER:
                    self._judge_missed(lineage, log, at)
                elif committed_us + rules.missed_after_us > rules.from_us:
                    delay_us = max(0, log.covered[at] - committed_us)
                    tally.counts["changes invalidated"] += 1
                    tally.counts["changes invalidated late"] += delay_us > rules.missed_after_us
                    tally.delays[bisect_left(STALENESS_EDGES_US, delay_us)] += 1

    def judge_missed(self, lineage: int, ordinal: int) -> None:
        """Judge a change that nothing invalidated."""
        log = self._facts.logs[lineage]
        self._judge_missed(lineage, log, bisect_left(log.ordinals, ordinal))

    def _judge_missed(self, lineage: int, log: Log, at: int) -> None:
        """Lost if progress names the change, and the item was read in that life under that floor; else it is below
        a floor, only late, or was invalidated while nobody recorded that."""
        facts, tally = self._facts, self._tally
        ordinal, committed_us = log.ordinals[at], log.committed[at]
        if not facts.was_recorded_after(lineage, committed_us):
            tally.counts["changes before the history"] += 1
            return
        lives = [(node, it) for node in self._nodes for it in facts.known.lives.get((node, lineage), ())]
        past = [(node, life) for node, life in lives if life.floor < ordinal <= life.progress]
        # Who reads by an older copy of the record may read what has left.
        wait_us = facts.rules.clock_error_us + facts.rules.view_us
        read = (
            node
            for node, life in past
            if self._nodes[node].get(life.life, ALWAYS) - wait_us > max(life.since_us, life.left_us)
        )
        passed = min(read, default=None)
        if passed is not None and facts.was_lost(lineage, committed_us):
            tally.unknown[0, verdict.NOT_INVALIDATED_LOST] += 1
        elif passed is not None:
            entry = AuditedEntry(passed, ordinal, 0, 0, 0, b"")
            span = ActionSpan(0, 0, committed_us, committed_us)
            evidence = (Reference("change", lineage, ordinal, log.rows[at]),)
            late_us = facts.rules.as_of_us - committed_us
            self._findings.add(verdict.MISSED_INVALIDATION, "F14", entry, span, evidence, lineage, (), late_us)
        elif any(ordinal <= life.floor for _, life in lives):
            tally.counts["changes below a floor"] += 1
        elif not lives:
            tally.unknown[0, verdict.NO_PUBLISH] += 1
        elif past:
            tally.counts["changes that no read needs"] += 1
        else:
            tally.counts["changes not yet acknowledged"] += 1
            self._put_off(lineage, ordinal)

    def _put_off(self, lineage: int, ordinal: int) -> None:
        self.pending.append(PendingChange(self._findings.h1, self._findings.h2, lineage, ordinal))


def replay(
    rows: Iterable[ReplayRow], rules: Rules, known: Knowledge, tally: Tally
) -> Iterator[Finding | PendingChange]:
    """Replay sorted rows, and add to the tally. Raises `FormatError` for an item with too many changes."""
    for (h1, h2), of_item in groupby(rows, attrgetter("h1", "h2")):
        item = ItemReplay(h1, h2, rules, known, tally)
        for row in of_item:
            item.add(row, is_judged=False)
        yield from item.finish()


def replay_witnesses(
    rows: Iterable[tuple[ReplayRow, bool]],
    missed: Mapping[tuple[int, int], Collection[tuple[int, int]]],
    nodes: Mapping[tuple[int, int], ReadsByNode],
    rules: Rules,
    known: Knowledge,
    tally: Tally,
) -> Iterator[Finding | PendingChange]:
    """Judge what is suspicious in items whose other actions are right. ``rows``: sorted, each with whether it is
    judged already and a witness only. ``missed``: by item, the changes (lineage, ordinal) that nothing invalidated;
    ``nodes``: nodes of those items, as `ChangeJudge` takes them. Adds to the tally what it judges."""
    for key, of_item in groupby(rows, lambda each: (each[0].h1, each[0].h2)):
        item = ItemReplay(*key, rules, known, tally)
        for row, is_judged in of_item:
            item.add(row, is_judged=is_judged)
        yield from item.finish_missed(missed.get(key, ()), nodes[key] if key in missed else {})
