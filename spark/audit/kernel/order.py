"""Changes of items in the archive's order, and the earliest acknowledgement of each and all after it, as arrays.

The answers of `spark.audit.judge.itemlog.Log` for one position of one item are given here for all positions at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from spark.audit.kernel.arrays import Actions, Booleans, Integers, NumberColumns, mix, search, sort_by, spread
from spark.audit.model.finding import Knowledge
from spark.audit.model.hashing import find_distinct
from spark.audit.model.row import ABSENT, AFTER_ABSENT, BEFORE_ABSENT, NO_NUMBER, ROW
from spark.audit.model.timeline import BEFORE_ARCHIVE, NEVER, UNKNOWN_FLAGS

_KEY_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class States:
    """States of rows: whether each is known, whether the row was absent, and its digest."""

    is_known: Booleans
    is_absent: Booleans
    digest: Integers

    @classmethod
    def of(cls, is_row: Booleans, is_absent: Booleans, digest: Integers) -> States:
        is_known = is_row & (is_absent | (digest != NO_NUMBER))
        return cls(is_known, is_absent, numpy.where(is_absent, NO_NUMBER, digest))

    @classmethod
    def of_values(cls, flags: Integers, digest: Integers) -> States:
        """As values of actions say that they are."""
        return cls.of(numpy.ones(len(flags), numpy.bool_), (flags & ABSENT) > 0, digest)

    def __getitem__(self, at: Any) -> States:
        return States(self.is_known[at], self.is_absent[at], self.digest[at])


@dataclass(frozen=True, slots=True)
class Found:
    """The place of each stamp among the changes. ``at``: the first change that it lacks, if ``lacks``; ``before``:
    the last one that it holds, if ``holds``."""

    at: Integers
    lacks: Booleans
    before: Integers
    holds: Booleans


class Changes:
    """All changes by item and lineage (a **log**), then ordinal. Several rows of one transaction are one change.
    ``rows``: places in the table, in that order; change ``c`` has ``rows[row_starts[c]:row_starts[c + 1]]``. ``log``:
    number of each change's log, from 0 on."""

    def __init__(self, at: Integers, item: Integers, columns: NumberColumns, known: Knowledge) -> None:
        self._lineages = find_distinct(columns["lineage"])
        ordinals = columns["ordinal"]
        self._first, self._last = (int(ordinals.min()), int(ordinals.max())) if len(at) else (0, 0)
        self._shift = (self._last - self._first + 1).bit_length()
        logs = (int(item.max()) + 1) * len(self._lineages) if len(at) else 0
        assert self._shift + logs.bit_length() < _KEY_BITS, "an archive of more transactions than are counted"
        keys = self._keys(item, numpy.searchsorted(self._lineages, columns["lineage"]), ordinals)
        order = sort_by(keys, columns["row"])
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
        # The state after a transaction is that of its last row; a change that is not a row does not alter it.
        places = numpy.where(is_row[order], numpy.arange(len(order)), -1)
        last = numpy.maximum.reduceat(places, firsts) if len(firsts) else firsts
        self.after = after[order[numpy.where(last >= 0, last, firsts)]]
        self.is_row = last >= 0
        rows_of = numpy.add.reduceat(self.is_row.astype(numpy.int64), self.log_starts) if len(first) else first
        self.log_has_rows = rows_of > 0
        self.log_is_rows = rows_of == numpy.diff(numpy.append(self.log_starts, len(first)))

    def __len__(self) -> int:
        return len(self.keys)

    def _keys(self, item: Integers, lineage: Integers, ordinals: Integers) -> Integers:
        """Sort keys; positions beyond an ordinal have at least its key."""
        level = numpy.clip(ordinals, self._first - 1, self._last) - (self._first - 1)
        keys: Integers = ((item * max(1, len(self._lineages)) + lineage) << self._shift) | level
        return keys

    def find(self, item: Integers, lineage: Integers, prefix: Integers) -> Found:
        """Find the first change that each prefix lacks, and the last one that it holds."""
        count = len(self.keys)
        if not count:
            nothing = numpy.zeros(len(item), numpy.int64)
            return Found(nothing, nothing > 0, nothing, nothing > 0)
        code = numpy.minimum(numpy.searchsorted(self._lineages, lineage), len(self._lineages) - 1)
        is_known = self._lineages[code] == lineage
        keys = self._keys(item, code, prefix)
        at = search(self.keys, keys, "right")
        inside, previous = numpy.minimum(at, count - 1), numpy.maximum(at - 1, 0)
        of = keys >> self._shift
        lacks = is_known & (at < count) & (self.keys[inside] >> self._shift == of)
        holds = is_known & (at > 0) & (self.keys[previous] >> self._shift == of)
        return Found(inside, lacks, previous, holds)

    def find_states(self, log: Integers, value: States) -> Integers:
        """The changes of some logs that left one of these values, or one that is not known; and each log's first."""
        left = mix(self.log, self.after.is_absent, self.after.digest)
        may_be = numpy.isin(left, mix(log, value.is_absent, value.digest))
        may_be |= numpy.isin(self.log, log) & ~self.after.is_known
        return numpy.append(numpy.flatnonzero(may_be), self.log_starts[log])

    def find_rows(self, changes: Integers) -> Integers:
        """The places in the table of these changes."""
        starts = self.row_starts[changes]
        rows: Integers = self.rows[spread(starts, self.row_starts[changes + 1] - starts)]
        return rows


def _lift(lineage: Integers, ordinal: Integers, time_us: Integers, known: Knowledge) -> Integers:
    lifted = time_us.copy()
    for number in find_distinct(lineage):
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
    order = sort_by(values, ties)
    rank = numpy.empty(len(order), numpy.int64)
    rank[order] = numpy.arange(len(order))
    keys = (groups << 32) | rank
    best: Integers = order[numpy.minimum.accumulate(keys[::-1])[::-1] & 0xFFFFFFFF]
    return best


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Acknowledgements, one for each change that an invalidation names. ``group``: a hash of log, node and life;
    ``at``: the invalidation's place in the table; ``turn``: its place in the order of the replay; ``is_wide``: True
    if it names all changes before this one, too; ``is_single``: True if it names single transactions."""

    change: Integers
    group: NDArray[numpy.uint64]
    end_us: Integers
    at: Integers
    turn: Integers
    is_wide: Booleans
    is_single: Booleans


def read_told(invalidations: Actions, changes: Changes) -> Acknowledged:
    """Which changes the invalidations name."""
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
    log = changes.log[change]
    is_single = numpy.arange(len(change)) >= len(by_prefix)
    row = row[names]
    order = sort_by(*(invalidations[name][row] for name in ("begin_us", "client", "sequence")))
    turn = numpy.empty(len(order), numpy.int64)
    turn[order] = numpy.arange(len(order))
    group = mix(log, invalidations["node"][row], book.life[stamp[names]])
    # A prefix that ends at the first change of a log covers nothing else: it is one among others of its group.
    beyond = ~is_single & (change > changes.log_starts[log])
    is_wide = ~is_single & numpy.isin(group, group[beyond])
    return Acknowledged(change, group, invalidations["end_us"][row], invalidations.at[row], turn, is_wide, is_single)


class AckOrder:
    """The acknowledged invalidations of each log by node and life, in the order of their changes. ``covered``: when
    each change was first invalidated, on any node. ``odd``: items that were invalidated by single transactions and by
    prefixes on one node in one life; they must be replayed whole."""

    def __init__(self, invalidations: Actions, changes: Changes) -> None:
        told = read_told(invalidations, changes)
        self.odd = _find_odd(told, changes)
        self.covered = _find_covered(told, changes)
        order = numpy.lexsort((told.change, told.group))
        self._group, starts = _number_runs(told.group[order])
        self._groups = told.group[order][starts]
        # Single transactions: the first change, then the first to acknowledge it. Prefixes: the first to acknowledge.
        ties = numpy.where(told.is_wide, told.turn, told.change * (len(order) + 1) + told.turn)
        best = order[find_suffix_minima(self._group, told.end_us[order], ties[order])]
        self._end, self._change, self._at = told.end_us[best], told.change[best], told.at[best]
        self._shift = len(changes).bit_length()
        self._keys = (self._group << self._shift) | told.change[order]

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
        number = numpy.minimum(search(self._groups, group), len(self._groups) - 1)
        is_there = self._groups[number] == group
        asked, first, number = asked[is_there], first[is_there], number[is_there]
        at = search(self._keys, (number << self._shift) | first)
        inside = numpy.minimum(at, len(self._keys) - 1)
        is_there = (at < len(self._keys)) & (self._group[inside] == number)
        asked, inside = asked[is_there], inside[is_there]
        end[asked], change[asked], row[asked] = self._end[inside], self._change[inside], self._at[inside]
        return end, change, row


def _find_odd(told: Acknowledged, changes: Changes) -> Integers:
    wide, narrow = (numpy.unique(told.group[chosen]) for chosen in (told.is_wide, told.is_single))
    both = numpy.intersect1d(wide, narrow, assume_unique=True)
    return numpy.unique(changes.item[told.change[numpy.isin(told.group, both)]])


def _find_covered(told: Acknowledged, changes: Changes) -> Integers:
    single, wide = (numpy.full(len(changes), NEVER, numpy.int64) for _ in range(2))
    numpy.minimum.at(single, told.change[~told.is_wide], told.end_us[~told.is_wide])
    if not told.is_wide.any():
        return single
    numpy.minimum.at(wide, told.change[told.is_wide], told.end_us[told.is_wide])
    places = numpy.arange(len(changes))
    return numpy.minimum(single, wide[find_suffix_minima(changes.log, wide, places)])
