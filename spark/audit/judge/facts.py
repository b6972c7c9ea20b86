"""The facts of one item: its changes, how an entry at a position stands by them, and which row is there.

Plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark.audit.judge.itemlog import Log
from spark.audit.model import verdict
from spark.audit.model.finding import Evidence, Knowledge, Reference, Rules
from spark.audit.model.row import ActionSpan, AuditedEntry, PlacedStamp, ReplayRow, unpack_stamps
from spark.audit.model.timeline import ALWAYS, BEFORE_ARCHIVE, FRAGMENTED, NEVER, NOTHING, UNKNOWN_FLAGS


class Standing(NamedTuple):
    """How an entry at a position stands on its node: since when it is out of date, and must not be served.
    ``committed_us``: when the newest transaction it holds was committed, at the earliest. ``unknown``: why it cannot
    be judged."""

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


class ItemFacts:
    """``logs``: the changes of the item, by lineage."""

    __slots__ = ("_standings", "known", "logs", "rules")

    def __init__(self, rules: Rules, known: Knowledge) -> None:
        self.rules, self.known = rules, known
        self.logs: dict[int, Log] = {}
        self._standings: dict[tuple[int, bytes, int], Standing] = {}

    def add_change(self, row: ReplayRow) -> None:
        log = self.logs.get(row.lineage)
        if log is None:
            log = self.logs[row.lineage] = Log()
        log.add(row, self.known.lineages[row.lineage].lifted(row.ordinal, row.begin_us))

    def add_invalidation(self, entry: AuditedEntry, span: ActionSpan) -> None:
        for stamp in unpack_stamps(entry.stamps):
            log = self.logs.get(stamp.lineage)
            if log is not None and not stamp.place.flags & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE:
                ref = (span.client, span.sequence)
                log.cover(stamp.place, entry.node, stamp.life, span.last_us, ref)

    def find_standing(self, entry: AuditedEntry) -> Standing:
        key = (entry.node, entry.stamps, entry.who if self.known.raises else 0)
        held = self._standings.get(key)
        if held is None:
            held = self._standings[key] = self._find_standing(entry, unpack_stamps(entry.stamps))
        return held

    def _find_standing(self, entry: AuditedEntry, stamps: Sequence[PlacedStamp]) -> Standing:
        unknown = find_unknown(stamps)
        if unknown:
            return Standing(unknown=unknown)
        standing = Standing(stamps[0].life, self.find_commit(stamps))
        for stamp in stamps:
            standing = self._with_changes(standing, entry.node, stamp)
            standing = self._with_raises(standing, entry, stamp)
            dead_us = min(standing.dead_after_us, self._find_end(entry.node, stamp))
            standing = standing._replace(dead_after_us=dead_us)
        return standing

    def _with_changes(self, standing: Standing, node: int, stamp: PlacedStamp) -> Standing:
        log = self.logs.get(stamp.lineage)
        at = log.first_missing(stamp.place) if log is not None else 0
        if log is None or at == len(log.ordinals):
            return standing
        standing = standing._replace(missing_since_us=min(standing.missing_since_us, log.committed[at]))
        found = log.find_ack(stamp.place, node, stamp.life)
        if found is None or found.end_us + self.rules.clock_error_us >= standing.stale_after_us:
            return standing
        evidence = log.show_ack(found, stamp.lineage, node, stamp.life)
        return standing._replace(
            stale_after_us=found.end_us + self.rules.clock_error_us,
            lineage=stamp.lineage,
            acked_by=evidence[1].source,
            is_raise=False,
            evidence=evidence,
        )

    def _with_raises(self, standing: Standing, entry: AuditedEntry, stamp: PlacedStamp) -> Standing:
        for ordinal in self.find_raises(entry.who, stamp, stamp.place.prefix):
            if stamp.place.contains(ordinal):
                continue
            raised_us = self.known.lineages[stamp.lineage].time(ordinal)
            if raised_us != NOTHING:
                standing = standing._replace(missing_since_us=min(standing.missing_since_us, raised_us))
            acked_us = self.known.raise_acks.get((entry.node, stamp.lineage, stamp.life, ordinal), NEVER)
            acked_us += self.rules.clock_error_us + self.rules.view_us
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
        lives = self.known.lives.get((node, stamp.lineage), ())
        begun = next((life.first_begin_us for life in lives if life.life == stamp.life), None)
        if begun is None:
            return NEVER
        later = (life.first_end_us for life in lives if life.first_begin_us > begun)
        return min(later, default=NEVER) + self.rules.clock_error_us + self.rules.view_us

    def find_row(self, entry: AuditedEntry) -> tuple[PlacedStamp, Log, tuple[bool, int]] | None:
        """The row at the entry's position: (its stamp, its changes, its state). A composite has none, and the archive
        may lack it."""
        found = None
        for stamp in unpack_stamps(entry.stamps):
            log = self.logs.get(stamp.lineage)
            if log is not None and log.has_rows:
                if found is not None:
                    return None
                found = stamp, log
        state = None if found is None else self._find_state(*found, entry.who)
        return None if found is None or state is None else (*found, state)

    def _find_state(self, stamp: PlacedStamp, log: Log, who: int) -> tuple[bool, int] | None:
        if stamp.place.extras and any(ordinal in stamp.place.extras for ordinal in log.ordinals):
            return None
        at = log.first_missing(stamp.place)
        if at == 0:
            raises = self.find_raises(who, stamp, 0)
            return None if any(ordinal < log.ordinals[0] for ordinal in raises) else log.befores[0]
        raises = self.find_raises(who, stamp, log.ordinals[at - 1])
        return None if any(map(stamp.place.contains, raises)) else log.afters[at - 1]

    def find_raises(self, who: int, stamp: PlacedStamp, after: int) -> list[int]:
        """The ordinals after ``after`` at which a table of the object changed as a whole."""
        if not self.known.raises:
            return []
        return [
            ordinal
            for table in self.known.tables.get(who, ())
            for ordinal in self.known.raises.get((stamp.lineage, table), ())
            if ordinal > after
        ]

    def find_commit(self, stamps: Sequence[PlacedStamp]) -> int:
        """When the newest transaction of the prefixes was committed, at the earliest."""
        latest = NOTHING
        for stamp in stamps:
            lineage = self.known.lineages.get(stamp.lineage)
            if lineage is not None:
                latest = max(latest, lineage.time(min(stamp.place.prefix, lineage.last)))
        return latest

    def was_recorded_after(self, lineage: int, committed_us: int) -> bool:
        """True if whatever was done soon after was done while actions were recorded."""
        return committed_us > self.known.history_from_us.get(lineage, NEVER) + self.rules.clock_error_us

    def was_lost(self, lineage: int, committed_us: int) -> bool:
        """True if what was done soon after may be missing."""
        return committed_us <= self.known.lost_until_us.get(lineage, ALWAYS) + self.rules.clock_error_us


def explain_flags(flags: int) -> str:
    """Why a place with `UNKNOWN_FLAGS` cannot be judged."""
    if flags & FRAGMENTED:
        return verdict.FRAGMENTED
    if flags & BEFORE_ARCHIVE:
        return verdict.BEFORE_ARCHIVE
    return verdict.NO_POSITION


def find_unknown(stamps: Sequence[PlacedStamp]) -> str:
    """Why these positions cannot be judged; "" if they can."""
    if not stamps:
        return verdict.NO_POSITION
    return next((explain_flags(stamp.place.flags) for stamp in stamps if stamp.place.flags & UNKNOWN_FLAGS), "")
