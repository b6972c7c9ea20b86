"""Changes of items in the archive's order, and the earliest acknowledgement of each and all after it, as arrays.

The answers of `spark.audit.itemlog.Log` for one position of one item are given here for all positions at once. Called
by `spark.audit.kernel.judge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from spark.audit.finding import Knowledge
from spark.audit.itemlog import NEVER
from spark.audit.kernel.arrays import Actions, Booleans, Integers, NumberColumns, mix, spread
from spark.audit.row import AFTER_ABSENT, BEFORE_ABSENT, NO_NUMBER, ROW
from spark.audit.timeline import BEFORE_ARCHIVE, UNKNOWN_FLAGS


@dataclass(frozen=True, slots=True)
class States:
    """States of rows: whether each is known, whether there was no row, and its digest."""

    is_known: Booleans
    is_absent: Booleans
    digest: Integers

    @classmethod
    def of(cls, is_row: Booleans, is_absent: Booleans, digest: Integers) -> States:
        is_known = is_row & (is_absent | (digest != NO_NUMBER))
        return cls(is_known, is_absent, numpy.where(is_absent, NO_NUMBER, digest))

    def __getitem__(self, at: Any) -> States:
        return States(self.is_known[at], self.is_absent[at], self.digest[at])


@dataclass(frozen=True, slots=True)
class Found:
    """The place of each stamp among the changes. ``at``: the first change that it lacks, ``lacks``: whether there is
    one; ``before``: the last one that it holds, ``holds``: whether there is one."""

    at: Integers
    lacks: Booleans
    before: Integers
    holds: Booleans


class Changes:
    """All changes by item and lineage (a **log**), then ordinal. Several rows of one transaction are one change.

    ``rows``: places in the table, in that order; change ``c`` has ``rows[row_starts[c]:row_starts[c + 1]]``.
    ``log``: of each change its log, from 0 on.
    """

    def __init__(self, at: Integers, item: Integers, columns: NumberColumns, known: Knowledge) -> None:
        self._lineages = numpy.unique(columns["lineage"])
        ordinals = columns["ordinal"]
        self._levels = numpy.unique(ordinals)
        self._shift = int(len(self._levels) + 1).bit_length()
        keys = self._keys(item, numpy.searchsorted(self._lineages, columns["lineage"]), ordinals)
        order = numpy.lexsort((columns["row"], keys))
        keys = keys[order]
        is_first = numpy.ones(len(order), numpy.bool_)
        is_first[1:] = keys[1:] != keys[:-1]
        firsts = numpy.flatnonzero(is_first)
        self.rows = at[order]
        self.row_starts = numpy.append(firsts, len(order))
        first = order[firsts]
        self.keys = keys[firsts]
        self.item = item[first]
        self.lineage = columns["lineage"][first]
        self.ordinal = ordinals[first]
        self.flags = columns["flags"][first]
        self.committed = _lift(self.lineage, self.ordinal, columns["begin_us"][first], known)
        self.log, self.log_starts = _number_runs(self.keys >> self._shift)
        is_row = (columns["flags"] & ROW) > 0
        flags = columns["flags"]
        before = States.of(is_row, (flags & BEFORE_ABSENT) > 0, columns["before"])
        after = States.of(is_row, (flags & AFTER_ABSENT) > 0, columns["digest"])
        self.before = before[first]
        # The state after a transaction is that of its last row; what is no row changes nothing of it.
        places = numpy.where(is_row[order], numpy.arange(len(order)), -1)
        last = numpy.maximum.reduceat(places, firsts) if len(firsts) else firsts
        self.after = after[order[numpy.where(last >= 0, last, firsts)]]
        self.is_row = last >= 0
        rows_of = (
            numpy.add.reduceat(self.is_row.astype(numpy.int64), self.log_starts) if len(first) else first
        )
        self.log_has_rows = rows_of > 0

    def __len__(self) -> int:
        return len(self.keys)

    def _keys(self, item: Integers, lineage: Integers, ordinals: Integers) -> Integers:
        """Sort keys; positions beyond an ordinal have at least its key."""
        level = numpy.searchsorted(self._levels, ordinals, side="right")
        keys: Integers = ((item * max(1, len(self._lineages)) + lineage) << self._shift) | level
        return keys

    def find(self, item: Integers, lineage: Integers, prefix: Integers) -> Found:
        """Where the first change is that a prefix lacks."""
        count = len(self.keys)
        if not count:
            nothing = numpy.zeros(len(item), numpy.int64)
            return Found(nothing, nothing > 0, nothing, nothing > 0)
        code = numpy.minimum(numpy.searchsorted(self._lineages, lineage), len(self._lineages) - 1)
        is_known = self._lineages[code] == lineage
        keys = self._keys(item, code, prefix)
        at = numpy.searchsorted(self.keys, keys, side="right")
        inside, previous = numpy.minimum(at, count - 1), numpy.maximum(at - 1, 0)
        of = keys >> self._shift
        lacks = is_known & (at < count) & (self.keys[inside] >> self._shift == of)
        holds = is_known & (at > 0) & (self.keys[previous] >> self._shift == of)
        return Found(inside, lacks, previous, holds)

    def find_rows(self, changes: Integers) -> Integers:
        """The places in the table of these changes."""
        starts = self.row_starts[changes]
        rows: Integers = self.rows[spread(starts, self.row_starts[changes + 1] - starts)]
        return rows


def _lift(lineage: Integers, ordinal: Integers, time_us: Integers, known: Knowledge) -> Integers:
    lifted = time_us.copy()
    for number in numpy.unique(lineage):
        of = lineage == number
        times = known.lineages[int(number)].find_times(ordinal[of] - 1)
        lifted[of] = numpy.maximum(time_us[of], times)
    return lifted


def _number_runs(groups: NDArray[Any]) -> tuple[Integers, Integers]:
    """(of each value of a sorted array the number of its run, the start of each run)."""
    is_first = numpy.ones(len(groups), numpy.bool_)
    is_first[1:] = groups[1:] != groups[:-1]
    return numpy.cumsum(is_first) - 1, numpy.flatnonzero(is_first)


def find_suffix_minima(groups: Integers, values: Integers, ties: Integers) -> Integers:
    """For each place in sorted groups: where in the rest of its group the least value is; of equal ones that with the
    lower tie."""
    order = numpy.lexsort((ties, values))
    rank = numpy.empty(len(order), numpy.int64)
    rank[order] = numpy.arange(len(order))
    keys = (groups << 32) | rank
    best: Integers = order[numpy.minimum.accumulate(keys[::-1])[::-1] & 0xFFFFFFFF]
    return best


class AckOrder:
    """The acknowledged invalidations of each log by node and life, in the order of their changes.

    ``covered``: when each change was first invalidated, on any node. ``odd``: items that must be replayed whole.
    """

    def __init__(self, invalidations: Actions, changes: Changes) -> None:
        book = invalidations.book
        stamp, row = invalidations.stamp, invalidations.row
        may_cover = (book.flags[stamp] & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE) == 0
        stamp, row = stamp[may_cover], row[may_cover]
        item, lineage = invalidations.item[row], book.lineage[stamp]
        extra_counts = book.extra_counts[stamp]
        prefix = changes.find(item, lineage, book.prefix[stamp])
        by_prefix = numpy.flatnonzero(prefix.holds)
        by_extra = numpy.repeat(numpy.arange(len(stamp)), extra_counts)
        ordinal = book.extras[spread(book.extra_starts[stamp], extra_counts)]
        exact = changes.find(item[by_extra], lineage[by_extra], ordinal)
        is_exact = exact.holds.copy()
        is_exact[is_exact] = changes.ordinal[exact.before[is_exact]] == ordinal[is_exact]
        names = numpy.concatenate((by_prefix, by_extra[is_exact]))
        change = numpy.concatenate((prefix.before[by_prefix], exact.before[is_exact]))
        log = changes.log[change] if len(changes) else change
        # A prefix that ends at the first change of a log covers nothing else.
        is_wide = numpy.zeros(len(change), numpy.bool_)
        is_wide[: len(by_prefix)] = True
        if len(changes):
            is_wide &= change > changes.log_starts[log]
        self._row = row[names]
        self._rows = invalidations.at
        node, life = invalidations["node"][self._row], book.life[stamp[names]]
        self._build(log, node, life, change, invalidations["end_us"][self._row])
        self._order(invalidations, is_wide)
        self.odd = self._find_odd(changes, log, is_wide)
        self.covered = self._cover(changes, change, is_wide)

    def _build(
        self, log: Integers, node: Integers, life: Integers, change: Integers, end_us: Integers
    ) -> None:
        self._group = mix(log, node, life)
        self._change, self._end = change, end_us

    def _order(self, invalidations: Actions, is_wide: Booleans) -> None:
        """Sort by group and change, the earliest of each first."""
        row = self._row
        order = numpy.lexsort((self._change, self._group))
        self._wide = is_wide
        group, self._group_starts = _number_runs(self._group[order])
        begun = numpy.lexsort(
            (invalidations["sequence"][row], invalidations["client"][row], invalidations["begin_us"][row])
        )
        turn = numpy.empty(len(begun), numpy.int64)
        turn[begun] = numpy.arange(len(begun))
        # Exact events: the first change, then the first to acknowledge it. Wide ones: the first to acknowledge.
        ties = numpy.where(is_wide, turn, self._change * (len(turn) + 1) + turn)[order]
        self._groups = self._group[order][self._group_starts]
        self._sorted_group, self._sorted_change = group, self._change[order]
        best = find_suffix_minima(group, self._end[order], ties)
        self._best_end = self._end[order][best]
        self._best_change = self._change[order][best]
        self._best_row = self._rows[row[order][best]]
        self._shift = int(len(order) and int(self._change.max()) + 2).bit_length()
        self._keys = (group << self._shift) | self._sorted_change

    def _find_odd(self, changes: Changes, log: Integers, is_wide: Booleans) -> Integers:
        """Items of which one node was told by exact events and by prefixes in one life."""
        if not is_wide.any() or is_wide.all():
            return numpy.zeros(0, numpy.int64)
        wide = numpy.unique(self._group[is_wide])
        narrow = numpy.unique(self._group[~is_wide])
        both = numpy.intersect1d(wide, narrow, assume_unique=True)
        return numpy.unique(changes.item[self._change[numpy.isin(self._group, both)]])

    def _cover(self, changes: Changes, change: Integers, is_wide: Booleans) -> Integers:
        covered = numpy.full(len(changes), NEVER, numpy.int64)
        numpy.minimum.at(covered, change[~is_wide], self._end[~is_wide])
        if is_wide.any():
            wide = numpy.full(len(changes), NEVER, numpy.int64)
            numpy.minimum.at(wide, change[is_wide], self._end[is_wide])
            places = numpy.arange(len(changes))
            covered = numpy.minimum(covered, wide[find_suffix_minima(changes.log, wide, places)])
        return covered

    def find(
        self, node: Integers, life: Integers, changes: Changes, found: Found
    ) -> tuple[Integers, Integers, Integers]:
        """(the earliest end, its change, its row in the table) of what stamps lack; `NEVER`, -1, -1 for none."""
        count = len(found.at)
        end = numpy.full(count, NEVER, numpy.int64)
        change, row = numpy.full(count, -1, numpy.int64), numpy.full(count, -1, numpy.int64)
        asked = numpy.flatnonzero(found.lacks)
        if not len(asked) or not len(self._groups):
            return end, change, row
        first = found.at[asked]
        group = mix(changes.log[first], node[asked], life[asked])
        number = numpy.minimum(numpy.searchsorted(self._groups, group), len(self._groups) - 1)
        is_there = self._groups[number] == group
        asked, first, number = asked[is_there], first[is_there], number[is_there]
        at = numpy.searchsorted(self._keys, (number << self._shift) | first)
        inside = numpy.minimum(at, len(self._keys) - 1)
        is_there = (at < len(self._keys)) & (self._sorted_group[inside] == number)
        asked, inside = asked[is_there], inside[is_there]
        end[asked] = self._best_end[inside]
        change[asked], row[asked] = self._best_change[inside], self._best_row[inside]
        return end, change, row
