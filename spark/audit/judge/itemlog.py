"""The changes of one item in one lineage, and the time at which each node acknowledged each of them.

Plain Python, called by `spark.audit.judge.facts` and `spark.audit.judge.replay`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from freshness.errors import FormatError
from spark.audit.model.finding import Reference
from spark.audit.model.row import AFTER_ABSENT, BEFORE_ABSENT, NO_NUMBER, ROW, ReplayRow
from spark.audit.model.timeline import NEVER, Place

CHANGES_HELD_MAX: Final = 5_000_000
"""Changes of one item in one lineage; 300 bytes each, and as much again for their acknowledgements."""


@dataclass(slots=True)
class Acks:
    """Acknowledgements of one node in one life: the time of each change of a log. ``best``: earliest time of each
    change and all after it: a position that lacks the change lacks all of these."""

    ends: list[int]
    refs: list[tuple[int, int]]
    best: list[int] = field(default_factory=list)

    def note(self, at: int, end_us: int, ref: tuple[int, int]) -> None:
        if end_us < self.ends[at]:
            self.ends[at], self.refs[at] = end_us, ref

    def find_best(self, at: int) -> int:
        if not self.best:
            self.best = list(accumulate(reversed(self.ends), min))
            self.best.reverse()
        return self.best[at] if at < len(self.best) else NEVER


class Ack(NamedTuple):
    """The first acknowledgement of a change that a position lacks. ``at``: which change; ``missing``: the first that
    the position lacks."""

    end_us: int
    at: int
    missing: int


@dataclass(slots=True)
class Log:
    """Changes of the item in one lineage. ``befores``, ``afters``: (is absent, digest), None: not known. ``covered``:
    when each was first invalidated, on any node. ``has_rows``: the item is a row's."""

    ordinals: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    befores: list[tuple[bool, int] | None] = field(default_factory=list)
    afters: list[tuple[bool, int] | None] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    acks: dict[tuple[int, int], Acks] = field(default_factory=dict)
    covered: list[int] = field(default_factory=list)
    has_rows: bool = False

    def add(self, change: ReplayRow, committed_us: int) -> None:
        """The next change. Several rows of a transaction, or a row archived twice: one change, the last state.

        Raises `FormatError` above `CHANGES_HELD_MAX`."""
        is_row = bool(change.flags & ROW)
        self.has_rows |= is_row
        last = _state(change.flags & AFTER_ABSENT, change.digest) if is_row else None
        if self.ordinals and self.ordinals[-1] == change.ordinal:
            if is_row:
                self.afters[-1] = last
            return
        if len(self.ordinals) >= CHANGES_HELD_MAX:
            raise FormatError(
                f"one item has more than {CHANGES_HELD_MAX:,} changes",
                hint="audit shorter spans, each with the state of the one before (--as-of, --save-state, --state)",
            )
        self.ordinals.append(change.ordinal)
        self.committed.append(committed_us)
        self.flags.append(change.flags)
        self.befores.append(_state(change.flags & BEFORE_ABSENT, change.before) if is_row else None)
        self.afters.append(last)
        self.rows.append(change.row)

    def has_later(self, at: int, value: tuple[bool, int], until_us: int) -> bool:
        """True if the row had this value from ``at`` on, or one that is not known, before ``until_us``."""
        later = zip(self.committed[at:], self.afters[at:], strict=True)
        return any(us <= until_us and after in (value, None) for us, after in later)

    def first_missing(self, place: Place) -> int:
        """The first change that the position lacks; ``len(ordinals)`` for none."""
        at = bisect_right(self.ordinals, place.prefix)
        if place.extras:
            while at < len(self.ordinals) and self.ordinals[at] in place.extras:
                at += 1
        return at

    def cover(self, place: Place, node: int, life: int, end_us: int, ref: tuple[int, int]) -> None:
        """Note an acknowledged invalidation: of exactly the changes that its position names."""
        count = len(self.ordinals)
        if not self.covered:
            self.covered = [NEVER] * count
        acks = self.acks.get((node, life))
        if acks is None:
            acks = self.acks[node, life] = Acks([NEVER] * count, [(0, 0)] * count)
        for ordinal in place.extras:
            at = bisect_left(self.ordinals, ordinal)
            if at < count and self.ordinals[at] == ordinal:
                acks.note(at, end_us, ref)
                self.covered[at] = min(self.covered[at], end_us)
        # A position that names only its end (MariaDB) covers all before it; those have been covered before.
        at = bisect_right(self.ordinals, place.prefix) - 1
        while at >= 0 and acks.ends[at] > end_us:
            acks.note(at, end_us, ref)
            self.covered[at] = min(self.covered[at], end_us)
            at -= 1

    def find_ack(self, place: Place, node: int, life: int) -> Ack | None:
        """How the node acknowledged what the position lacks; None if it did not."""
        acks = self.acks.get((node, life))
        start = self.first_missing(place)
        if acks is None or start == len(self.ordinals):
            return None
        best, at = NEVER, start
        if place.extras:
            while at < len(self.ordinals) and self.ordinals[at] <= place.extras[-1]:
                if self.ordinals[at] not in place.extras:
                    best = min(best, acks.ends[at])
                at += 1
        best = min(best, acks.find_best(at))
        return None if best == NEVER else Ack(best, acks.ends.index(best, start), start)

    def show_ack(self, ack: Ack, lineage: int, node: int, life: int) -> tuple[Reference, Reference]:
        """The change that the position lacks, and the invalidation that was acknowledged."""
        return (
            Reference("change", lineage, self.ordinals[ack.missing], self.rows[ack.missing]),
            Reference("invalidation", *self.acks[node, life].refs[ack.at]),
        )


def _state(is_absent: int, digest: int) -> tuple[bool, int] | None:
    if is_absent:
        return True, NO_NUMBER
    return (False, digest) if digest != NO_NUMBER else None
