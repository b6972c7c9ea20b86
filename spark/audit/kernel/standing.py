"""How entries stand at their positions: what they lack, since when they are stale, and whether they are the row.

The answers of `spark.audit.judge.facts` for one entry, for all actions of a piece at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy

from spark.audit.kernel.arrays import Actions, Booleans, Integers, StampBook, mix
from spark.audit.kernel.order import AckOrder, Changes, Found, States
from spark.audit.model.finding import Knowledge, Rules
from spark.audit.model.hashing import find_distinct, find_firsts, number_values
from spark.audit.model.timeline import ALWAYS, NEVER, NOTHING


class Book:
    """Facts about each stamp, the same for every entry that has it. ``committed``: when its newest transaction was
    committed at the earliest; ``history``: since when actions of its lineage were recorded; ``lost_until``: until
    when some are missing."""

    def __init__(self, book: StampBook, known: Knowledge) -> None:
        count = len(book.lineage)
        self.committed = numpy.full(count, NOTHING, numpy.int64)
        self.history = numpy.full(count, NEVER, numpy.int64)
        self.lost_until = numpy.full(count, ALWAYS, numpy.int64)
        for number in find_distinct(book.lineage):
            of = book.lineage == number
            lineage = known.lineages.get(int(number))
            if lineage is not None:
                self.committed[of] = lineage.find_times(numpy.minimum(book.prefix[of], lineage.last))
            self.history[of] = known.history_from_us.get(int(number), NEVER)
            self.lost_until[of] = known.lost_until_us.get(int(number), ALWAYS)


@dataclass(frozen=True, slots=True)
class Raised:
    """The effect of statements on whole tables on each stamp: since when it lacks one (``since``), from when on it
    must not be served (``stale_after``), and whether one stands between the row that it knows and it (``hides_row``).
    ``concerns``: True if there is one for the tables of its object."""

    since: Integers
    stale_after: Integers
    hides_row: Booleans
    concerns: Booleans


def find_raised(actions: Actions, found: Found, changes: Changes, known: Knowledge, rules: Rules) -> Raised:
    count = len(actions.stamp)
    raised = Raised(
        numpy.full(count, NEVER, numpy.int64),
        numpy.full(count, NEVER, numpy.int64),
        numpy.zeros(count, numpy.bool_),
        numpy.zeros(count, numpy.bool_),
    )
    if not known.raises or not count:
        return raised
    names = (
        actions["who"][actions.row],
        actions["node"][actions.row],
        actions.of_stamps("lineage"),
        actions.of_stamps("life"),
    )
    code, _ = number_values(mix(*names))
    order = numpy.argsort(code, kind="stable")
    starts = numpy.flatnonzero(numpy.diff(code[order], prepend=-1))
    prefix = actions.of_stamps("prefix")
    for start, end in zip(starts, numpy.append(starts[1:], count), strict=True):
        of = order[start:end]
        who, node, lineage, life = (int(column[of[0]]) for column in names)
        tables = known.tables.get(who, ())
        ordinals = sorted({it for table in tables for it in known.raises.get((lineage, table), ())})
        if not ordinals:
            continue
        times = [known.lineages[lineage].time(it) for it in ordinals]
        waits = rules.clock_error_us + rules.view_us
        acked = [known.raise_acks.get((node, lineage, life, it), NEVER) + waits for it in ordinals]
        at = numpy.searchsorted(ordinals, prefix[of], side="right")
        raised.since[of] = _suffix_minima([NEVER if us == NOTHING else us for us in times])[at]
        raised.stale_after[of] = _suffix_minima(acked)[at]
        raised.concerns[of] = True
        if len(changes):
            held = numpy.where(found.holds[of], changes.ordinal[found.before[of]], 0)
            until = numpy.where(found.holds[of], prefix[of], changes.ordinal[found.at[of]] - 1)
            after = numpy.append(ordinals, NEVER)[numpy.searchsorted(ordinals, held, side="right")]
            raised.hides_row[of] = after <= until
    return raised


def _suffix_minima(values: list[int]) -> Integers:
    minima = numpy.minimum.accumulate(numpy.array([NEVER, *reversed(values)], numpy.int64))[::-1]
    return numpy.minimum(minima, NEVER)


@dataclass(frozen=True, slots=True)
class Placed:
    """Actions with each of their stamps among the changes and their acknowledgements. ``ack_end``, ``ack_change``,
    ``ack_row``: end, change and row of the earliest acknowledgement of what the stamp lacks. ``is_odd``: True if a
    stamp holds events out of order that matter to its item."""

    found: Found
    ack_end: Integers
    ack_change: Integers
    ack_row: Integers
    raised: Raised
    is_odd: Booleans


def place(actions: Actions, changes: Changes, acks: AckOrder, known: Knowledge, rules: Rules) -> Placed:
    row = actions.row
    lineage, prefix = actions.of_stamps("lineage"), actions.of_stamps("prefix")
    found = changes.find(actions.item[row], lineage, prefix)
    end, change, ack_row = acks.find(actions["node"][row], actions.of_stamps("life"), changes, found)
    raised = find_raised(actions, found, changes, known, rules)
    odd = numpy.zeros(len(row), numpy.bool_)
    counts = actions.book.extra_counts[actions.stamp]
    more = numpy.flatnonzero(counts)
    if len(more):
        last = actions.book.extras[actions.book.extra_starts[actions.stamp[more] + 1] - 1]
        odd[more] = raised.concerns[more]
        if len(changes):
            odd[more] |= found.lacks[more] & (changes.ordinal[found.at[more]] <= last)
    return Placed(found, end, change, ack_row, raised, odd)


ROW_UNKNOWN, ROW_SAME, ROW_OTHER = range(3)
_ONE: Final = 1


def compare(actions: Actions, placed: Placed, changes: Changes) -> tuple[Integers, Integers]:
    """(whether each value is the row at its position, the stamp that knows the row or -1). A composite has no row."""
    count = len(actions)
    result, chosen = numpy.full(count, ROW_UNKNOWN, numpy.int64), numpy.full(count, -1, numpy.int64)
    if not len(changes):
        return result, chosen
    found = placed.found
    has_log = found.lacks | found.holds
    log = changes.log[numpy.where(found.lacks, found.at, found.before)]
    with_rows = numpy.flatnonzero(has_log & changes.log_has_rows[log])
    row = actions.row[with_rows]
    of = numpy.bincount(row, minlength=count)
    chosen[row] = with_rows
    chosen[of != _ONE] = -1
    at = numpy.flatnonzero(chosen >= 0)
    stamp = chosen[at]
    before, after = changes.before[found.at[stamp]], changes.after[found.before[stamp]]
    holds = found.holds[stamp]
    is_known = numpy.where(holds, after.is_known, before.is_known) & ~placed.raised.hides_row[stamp]
    was_absent = numpy.where(holds, after.is_absent, before.is_absent)
    digest = numpy.where(holds, after.digest, before.digest)
    value = States.of_values(actions["flags"][at], actions["digest"][at])
    is_known &= value.is_known
    is_same = (value.is_absent == was_absent) & (value.digest == digest)
    result[at] = numpy.where(is_known, numpy.where(is_same, ROW_SAME, ROW_OTHER), ROW_UNKNOWN)
    return result, chosen


def find_ends(actions: Actions, known: Knowledge, rules: Rules) -> Integers:
    """For each stamp: when nobody may serve from its life any more."""
    names = (actions["node"][actions.row], actions.of_stamps("lineage"), actions.of_stamps("life"))
    code, _ = number_values(mix(*names))
    firsts = find_firsts(code)
    ends = numpy.full(len(firsts), NEVER, numpy.int64)
    for kind, at in enumerate(firsts.tolist()):
        node, lineage, life = (int(column[at]) for column in names)
        lives = known.lives.get((node, lineage), ())
        begun = next((it.first_begin_us for it in lives if it.life == life), NEVER)
        later = [it.first_end_us for it in lives if it.first_begin_us > begun]
        if later:
            ends[kind] = min(later) + rules.clock_error_us + rules.view_us
    return ends[code]
