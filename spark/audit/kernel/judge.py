"""The replay of whole items at once: a piece of the history becomes findings, pending changes and counts.

Theory of operation
-------------------

Nearly everything in a history is right, and that is proved here by comparisons of columns; a test may suspect what is
right, never the other way round. Whatever is suspicious goes to `ItemReplay`, the one judge, with only those rows
that its verdict rests on (its **witnesses**), and is counted there and not here::

    fill     the earliest acknowledgement of what it lacks was before it; or below its floor; or not the row
    hit      as a fill; or the life has ended; or nobody stored this value; or the filler's clock is late
    change   progress passed it, and nothing invalidated it
    any      a clock contradicts the order

Witnesses of a stamp are the last change that it holds, the first that it lacks, and the earliest acknowledgement of
what it lacks, with its change. A value that is not its row has all changes of its item as witnesses, and a hit the
fill that stored its value. An item is replayed whole where arrays would need more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from spark.audit.judge.facts import explain_flags
from spark.audit.judge.replay import ReadsByNode, note_read, replay, replay_witnesses
from spark.audit.kernel.arrays import (
    Actions,
    Booleans,
    Integers,
    NumberColumns,
    count_each,
    count_pairs,
    count_rows,
    mix,
    number_items,
    read_stamps,
    search,
    sort_by,
    to_numbers,
)
from spark.audit.kernel.order import AckOrder, Changes, States
from spark.audit.kernel.standing import ROW_OTHER, ROW_UNKNOWN, Book, Placed, compare, find_ends, place
from spark.audit.model import verdict
from spark.audit.model.finding import (
    HOT_ITEMS,
    STALENESS_EDGES_US,
    Finding,
    Knowledge,
    PendingChange,
    Rules,
    Tally,
    add_counts,
)
from spark.audit.model.hashing import number_values
from spark.audit.model.row import (
    ABSENT,
    BELOW_FLOOR,
    CHANGE,
    CONTEXT,
    FILL,
    HIT,
    INVALIDATION,
    JUDGED,
    NO_NUMBER,
    SERVED_STALE,
    UNANSWERED,
    ReplayRow,
)
from spark.audit.model.timeline import ALWAYS, BEFORE_ARCHIVE, NEVER, UNKNOWN_FLAGS

_EDGES: Final = numpy.array(STALENESS_EDGES_US, numpy.int64)
_BUCKETS: Final = len(_EDGES) + 1


def judge(table: pyarrow.Table, rules: Rules, known: Knowledge, tally: Tally) -> Iterator[Finding | PendingChange]:
    """Judge all rows (`REPLAY`) of some items, in any order, and add to the tally. Raises `FormatError` for an item
    with too many changes."""
    if not table.num_rows:
        return
    columns = to_numbers(table)
    items = number_items(columns["h1"], columns["h2"])
    piece = Piece(table, columns, items, rules, known, tally)
    odd = piece.find_odd()
    if len(odd):
        is_odd = numpy.isin(items, odd)
        yield from replay(read_rows(table.filter(pyarrow.array(is_odd))), rules, known, tally)
        yield from judge(table.filter(pyarrow.array(~is_odd)), rules, known, tally)
        return
    yield from piece.judge()


def judge_segment(
    table: pyarrow.Table, rules: Rules, known: Knowledge, tally: Tally
) -> Iterator[Finding | PendingChange]:
    """As `judge`, for one item whose rows are in several pieces: with all context that this one needs."""
    columns = to_numbers(table)
    yield from Piece(table, columns, number_items(columns["h1"], columns["h2"]), rules, known, tally).judge()


def read_rows(table: pyarrow.Table) -> list[ReplayRow]:
    """The rows in the order of the replay."""
    return _read_rows(to_numbers(table), table.column("stamps"))[0]


def _read_rows(columns: NumberColumns, packed: pyarrow.ChunkedArray) -> tuple[list[ReplayRow], list[int]]:
    """(the rows in the order of the replay, for each its place). ``packed``: the stamps."""
    order = numpy.lexsort(_order(columns))
    stamps = packed.to_pylist()
    lists = [
        [stamps[at] for at in order.tolist()] if name == "stamps" else columns[name][order].tolist()
        for name in ReplayRow._fields
    ]
    return list(map(ReplayRow._make, zip(*lists, strict=True))), order.tolist()


def _order(columns: NumberColumns) -> tuple[NDArray[Any], ...]:
    """Keys for `numpy.lexsort`, the last one first."""
    is_change = columns["kind"] == CHANGE
    first = numpy.where(is_change, columns["ordinal"], columns["begin_us"])
    second = numpy.where(is_change, columns["row"], columns["client"])
    return columns["sequence"], second, first, columns["kind"], columns["h2"], columns["h1"]


class Piece:
    """Rows of some items, with each action among the changes of its item."""

    def __init__(
        self,
        table: pyarrow.Table,
        columns: NumberColumns,
        items: Integers,
        rules: Rules,
        known: Knowledge,
        tally: Tally,
    ) -> None:
        self._columns, self._items, self._stamps = columns, items, table.column("stamps")
        self._rules, self._known, self._tally = rules, known, tally
        kind = columns["kind"]
        at = numpy.flatnonzero(kind == CHANGE)
        of_changes = {name: column[at] for name, column in columns.items()}
        self.changes = Changes(at, items[at], of_changes, known)
        stamps, values = read_stamps(self._stamps)
        self._book = Book(stamps, known)
        parts = []
        for each in (INVALIDATION, FILL, HIT):
            at = numpy.flatnonzero(kind == each)
            of_kind = {name: column[at] for name, column in columns.items()}
            parts.append(Actions(at, of_kind, items[at], stamps, values[at]))
        self.invalidations, self.fills, self.hits = parts
        self._acks = AckOrder(self.invalidations, self.changes)
        self.placed_fills = self._place(self.fills)
        self.told_hits = self.hits.where(self.is_told(self.hits))
        self.placed_hits = self._place(self.told_hits)
        self._change_witnesses = numpy.zeros(len(self.changes), numpy.bool_)
        self._suspicious: list[Integers] = []
        self._witnesses: list[Integers] = []

    def _place(self, actions: Actions) -> Placed:
        return place(actions, self.changes, self._acks, self._known, self._rules)

    def find_row_numbers(self, changes: Integers) -> Integers:
        """The number of each change's first row in its transaction."""
        numbers: Integers = self._columns["row"][self.changes.rows[self.changes.row_starts[changes]]]
        return numbers

    def find_odd(self) -> Integers:
        """Items that must be replayed whole."""
        pairs = ((self.fills, self.placed_fills), (self.told_hits, self.placed_hits))
        odd = [actions.item[actions.row[placed.is_odd]] for actions, placed in pairs]
        return numpy.unique(numpy.concatenate((self._acks.odd, *odd)))

    def judge(self) -> Iterator[Finding | PendingChange]:
        self._judge_invalidations()
        self._judge_fills()
        self._judge_hits()
        missed, pending = self._judge_changes()
        self._count_items()
        yield from self._find(missed)
        h1, h2 = self._columns["h1"], self._columns["h2"]
        changes = self.changes
        for at in pending.tolist():
            row = changes.rows[changes.row_starts[at]]
            yield PendingChange(int(h1[row]), int(h2[row]), int(changes.lineage[at]), int(changes.ordinal[at]))

    def is_told(self, actions: Actions) -> Booleans:
        is_new: Booleans = (actions["flags"] & (JUDGED | CONTEXT)) == 0
        begin_us = actions["begin_us"]
        return is_new & (self._rules.from_us < begin_us) & (begin_us <= self._rules.as_of_us)

    def _committed(self, actions: Actions) -> Integers:
        return actions.fold(numpy.maximum, self._book.committed[actions.stamp], -1)

    def _has_wrong_clock(self, actions: Actions, committed_us: Integers) -> Booleans:
        end_us = actions["end_us"]
        is_backwards: Booleans = end_us < actions["begin_us"] - self._rules.clock_error_us
        is_early: Booleans = end_us + self._rules.clock_wrong_us < committed_us
        return is_backwards | is_early

    def _judge_invalidations(self) -> None:
        actions = self.invalidations
        is_told = self.is_told(actions)
        bad = is_told & self._has_wrong_clock(actions, self._committed(actions))
        self._suspicious.append(actions.at[bad])
        flags = actions.of_stamps("flags") & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE
        self._count_unknown(numpy.zeros(len(flags), numpy.int64), flags, (is_told & ~bad)[actions.row])

    def _judge_fills(self) -> None:
        actions, placed, counts = self.fills, self.placed_fills, self._tally.counts
        is_told = self.is_told(actions)
        flags = actions["flags"]
        is_answered = (flags & UNANSWERED) == 0
        is_known = actions.first_unknown == 0
        begin_us = actions["begin_us"]
        is_late = placed.ack_end + self._rules.clock_error_us < begin_us[actions.row]
        row, _ = compare(actions, placed, self.changes)
        is_wrong = actions.any(is_late) | ((flags & BELOW_FLOOR) > 0) | (row == ROW_OTHER)
        bad = is_answered & is_known & is_wrong
        bad |= is_told & self._has_wrong_clock(actions, self._committed(actions))
        self._bear_witness(actions, placed, bad, bad & (row == ROW_OTHER))
        told = is_told & is_answered & ~bad
        counts["fills"] += int(told.sum())
        self._count_unknown(actions["who"], actions.first_unknown, told)
        self._count_compared(row, told & is_known)

    def _judge_hits(self) -> None:
        actions, placed, rules = self.told_hits, self.placed_hits, self._rules
        is_known = actions.first_unknown == 0
        begin_us = actions["begin_us"]
        found = placed.found
        since = placed.raised.since
        if len(self.changes):
            committed = numpy.where(found.lacks, self.changes.committed[found.at], NEVER)
            since = numpy.minimum(since, committed)
        stale_after = numpy.minimum(placed.ack_end + rules.clock_error_us, placed.raised.stale_after)
        ends = find_ends(actions, self._known, rules)
        is_late = begin_us > numpy.minimum(actions.least(stale_after), actions.least(ends))
        committed_us = self._committed(actions)
        fill, is_filled, is_same = self.find_fills(actions)
        origin = self._trace(actions, committed_us, fill, is_filled, is_same)
        row, _ = compare(actions, placed, self.changes)
        is_compared = (origin == _UNANSWERED) | (origin == _BEFORE_HISTORY)
        bad = is_late & ((actions["flags"] & SERVED_STALE) == 0)
        bad |= self._has_wrong_clock(actions, committed_us)
        bad |= (origin == _SUSPICIOUS) | (is_compared & (row == ROW_OTHER))
        bad &= is_known
        self._bear_witness(actions, placed, bad, bad & is_compared & (row == ROW_OTHER))
        self._name_fillers(actions, bad, fill[bad & is_filled])
        good, counts = is_known & ~bad, self._tally.counts
        self._count_unknown(actions["who"], actions.first_unknown, ~is_known)
        staleness_us = numpy.maximum(0, begin_us - actions.least(since))
        self._count_staleness(actions["who"][good], begin_us[good], staleness_us[good])
        counts["hits of values stored before the history"] += int((good & (origin == _BEFORE_HISTORY)).sum())
        self._count_compared(row, good & is_compared)
        for who, count in count_each(actions["who"][good & (origin == _LOST)]):
            self._tally.unknown[who, verdict.NOT_FILLED_LOST] += count

    def _trace(
        self, actions: Actions, committed_us: Integers, fill: Integers, is_there: Booleans, is_same: Booleans
    ) -> Integers:
        """Who stored each value: see `_STORED` and its like. ``fill``, ``is_there``, ``is_same``: result of
        `find_fills`."""
        book, rules = self._book, self._rules
        since = actions.fold(numpy.maximum, book.history[actions.stamp], NEVER)
        is_within = committed_us > since + rules.clock_error_us
        lost_until = actions.fold(numpy.maximum, book.lost_until[actions.stamp], ALWAYS)
        is_lost = committed_us <= lost_until + rules.clock_error_us
        origin = numpy.where(is_within, numpy.where(is_lost, _LOST, _SUSPICIOUS), _BEFORE_HISTORY)
        origin[self._is_unanswered(actions)] = _UNANSWERED
        if len(self.fills):
            is_same &= actions["end_us"] + rules.clock_wrong_us >= self.fills["begin_us"][fill]
        origin[is_there] = numpy.where(is_same, _STORED, _SUSPICIOUS)[is_there]
        return origin

    def find_fills(self, actions: Actions) -> tuple[Integers, Booleans, Booleans]:
        """(the last fill with each value, else the last one with its node, version and life, whether there is one,
        whether it has the value)."""
        fills = self.fills
        fill = numpy.zeros(len(actions), numpy.int64)
        is_there, is_same = fill > 0, fill > 0
        is_named = (fills["version"] != NO_NUMBER) & (fills.counts > 0)
        wanted = actions["version"] != NO_NUMBER
        if not is_named.any() or not wanted.any():
            return fill, is_there, is_same
        for is_found, key_of in ((is_same, _stored_key), (is_there, _entry_key)):
            rest = wanted & ~is_same
            if rest.any():
                its = actions.where(rest)
                fill[rest], is_found[rest] = _find_last(fills, is_named, its, key_of)
        return fill, is_there | is_same, is_same

    def _is_unanswered(self, actions: Actions) -> Booleans:
        fills = self.fills
        unanswered = fills.where(((fills["flags"] & UNANSWERED) > 0) | (fills["version"] == NO_NUMBER))
        if not len(unanswered):
            return numpy.zeros(len(actions), numpy.bool_)
        return numpy.isin(_value_key(actions), _value_key(unanswered))

    def _judge_changes(self) -> tuple[Integers, Integers]:
        """(changes that may be lost, changes that cannot be judged yet)."""
        changes, rules, counts = self.changes, self._rules, self._tally.counts
        if not len(changes):
            return numpy.zeros(0, numpy.int64), numpy.zeros(0, numpy.int64)
        is_action = self._columns["kind"] != CHANGE
        recorded, judged = (numpy.zeros(int(self._items.max()) + 1, numpy.bool_) for _ in range(2))
        recorded[self._items[is_action]] = True
        judged[self._items[is_action & ((self._columns["flags"] & JUDGED) > 0)]] = True
        is_open = recorded[changes.item] & ((changes.flags & CONTEXT) == 0)
        is_open &= ~(((changes.flags & JUDGED) > 0) & judged[changes.item])
        due_us = changes.committed + rules.missed_after_us
        waits = due_us > rules.as_of_us
        is_covered = self._acks.covered != NEVER
        is_counted = is_open & ~waits & is_covered & (due_us > rules.from_us)
        delay_us = numpy.maximum(0, self._acks.covered - changes.committed)[is_counted]
        counts["changes invalidated"] += len(delay_us)
        counts["changes invalidated late"] += int((delay_us > rules.missed_after_us).sum())
        found = numpy.bincount(numpy.searchsorted(_EDGES, delay_us), minlength=_BUCKETS).tolist()
        add_counts(self._tally.delays, found)
        return numpy.flatnonzero(is_open & ~waits & ~is_covered), numpy.flatnonzero(is_open & waits)

    def _count_unknown(self, who: Integers, flags: Integers, chosen: Booleans) -> None:
        """Count what cannot be judged. ``flags``: why; 0 for what can be judged, -1 for an action without a
        position."""
        at = numpy.flatnonzero(chosen & (flags != 0))
        for (each, why), count in count_pairs(who[at], flags[at]):
            name = verdict.NO_POSITION if why == -1 else explain_flags(why)
            self._tally.unknown[each, name] += count

    def _count_compared(self, row: Integers, chosen: Booleans) -> None:
        is_known = row != ROW_UNKNOWN
        self._tally.counts["values compared"] += int((chosen & is_known).sum())
        self._tally.counts["values not comparable"] += int((chosen & ~is_known).sum())

    def _count_staleness(self, who: Integers, begin_us: Integers, staleness_us: Integers) -> None:
        number, whos = number_values(who)
        bucket = numpy.searchsorted(_EDGES, staleness_us)
        for each, counts in zip(whos.tolist(), count_rows(number, len(whos), bucket, _BUCKETS), strict=True):
            add_counts(self._tally.staleness(each), counts)
        slices = self._rules.slices
        each_slice = numpy.clip((begin_us - slices.begin_us) // slices.width_us, 0, slices.count - 1)
        groups: dict[tuple[str, ...], int] = {}
        group = numpy.array(
            [groups.setdefault(self._known.tables_of(each), len(groups)) for each in whos.tolist()], numpy.int64
        )
        size = slices.count * _BUCKETS
        table = count_rows(group[number], len(groups), each_slice * _BUCKETS + bucket, size)
        for tables, counts in zip(groups, table, strict=True):
            add_counts(self._tally.staleness_by_slice(tables, size), counts)

    def _count_items(self) -> None:
        counts, items = self._tally.counts, self._items
        size = int(items.max()) + 1
        is_change = self._columns["kind"] == CHANGE
        changed = numpy.bincount(items[is_change], minlength=size) > 0
        recorded = numpy.bincount(items[~is_change], minlength=size) > 0
        counts["items changed"] += int(changed.sum())
        counts["items recorded"] += int(recorded.sum())
        counts["items changed and recorded"] += int((changed & recorded).sum())
        hits = numpy.bincount(self.told_hits.item, minlength=size)
        h1, h2 = numpy.zeros(size, numpy.int64), numpy.zeros(size, numpy.int64)
        h1[items], h2[items] = self._columns["h1"], self._columns["h2"]
        hottest = numpy.lexsort((h2, h1, hits))[-HOT_ITEMS:]
        for item in hottest[hits[hottest] > 0].tolist():
            mine = numpy.flatnonzero(self.told_hits.item == item)
            sequence, client, begin_us = (self.told_hits[name][mine] for name in ("sequence", "client", "begin_us"))
            first = numpy.lexsort((sequence, client, begin_us))[0]
            reference = int(client[first]), int(sequence[first])
            self._tally.add_hot(int(hits[item]), int(h1[item]), int(h2[item]), *reference)

    def _bear_witness(self, actions: Actions, placed: Placed, bad: Booleans, with_log: Booleans) -> None:
        """Call the witnesses of bad actions; where ``with_log``, all that left the value."""
        changes, found = self.changes, placed.found
        self._suspicious.append(actions.at[bad])
        if not len(changes):
            return
        stamp = numpy.flatnonzero(bad[actions.row])
        is_acked = placed.ack_row[stamp] >= 0
        self._witnesses.append(placed.ack_row[stamp][is_acked])
        self._change_witnesses[placed.ack_change[stamp][is_acked]] = True
        whole = with_log[actions.row[stamp]]
        for at, is_there in ((found.at[stamp], found.lacks[stamp]), (found.before[stamp], found.holds[stamp])):
            self._change_witnesses[at[is_there]] = True
            log = changes.log[at]
            # A log has rows where any of its changes is one.
            has_rows, is_rows = changes.log_has_rows[log], changes.log_is_rows[log]
            needs_all = is_there & ((whole & ~is_rows) | (has_rows & ~changes.is_row[at]))
            needs_value = is_there & whole & is_rows
            row = actions.row[stamp[needs_value]]
            values = States.of_values(actions["flags"][row], actions["digest"][row])
            self._change_witnesses[changes.find_states(log[needs_value], values)] = True
            self._change_witnesses[numpy.isin(changes.log, numpy.unique(log[needs_all]))] = True

    def _name_fillers(self, actions: Actions, bad: Booleans, fillers: Integers) -> None:
        """The fills that stored the values of bad hits, and those that may have."""
        self._witnesses.append(self.fills.at[fillers])
        fills = self.fills
        may_have = ((fills["flags"] & UNANSWERED) > 0) | (fills["version"] == NO_NUMBER)
        may_have &= numpy.isin(_value_key(fills), _value_key(actions.where(bad)))
        self._witnesses.append(fills.at[may_have])

    def _find(self, missed: Integers) -> Iterator[Finding | PendingChange]:
        """The judge's findings."""
        changes = self.changes
        self._change_witnesses[missed] = True
        suspicious = numpy.unique(numpy.concatenate(self._suspicious))
        witnesses = numpy.setdiff1d(numpy.concatenate(self._witnesses), suspicious)
        witnesses = numpy.append(changes.find_rows(numpy.flatnonzero(self._change_witnesses)), witnesses)
        at = numpy.append(suspicious, witnesses)
        columns = {name: column[at] for name, column in self._columns.items()}
        rows, order = _read_rows(columns, self._stamps.take(pyarrow.array(at)))
        lost: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for change in missed.tolist():
            row = changes.rows[changes.row_starts[change]]
            item = int(self._columns["h1"][row]), int(self._columns["h2"][row])
            lost.setdefault(item, []).append((int(changes.lineage[change]), int(changes.ordinal[change])))
        yield from replay_witnesses(
            ((row, at >= len(suspicious)) for row, at in zip(rows, order, strict=True)),
            lost,
            self._find_nodes(changes.item[missed]),
            self._rules,
            self._known,
            self._tally,
        )

    def _find_nodes(self, items: Integers) -> dict[tuple[int, int], ReadsByNode]:
        """By item, the nodes that had it, and when it was read there."""
        chosen = numpy.isin(self._items, numpy.unique(items)) & (self._columns["kind"] != CHANGE)
        nodes: dict[tuple[int, int], ReadsByNode] = {}
        names = ("h1", "h2", "node", "kind", "flags", "begin_us")
        columns = [self._columns[name][chosen].tolist() for name in names]
        stamps = self._stamps.filter(pyarrow.array(chosen)).to_pylist()
        for h1, h2, *action in zip(*columns, stamps, strict=True):
            note_read(nodes.setdefault((h1, h2), {}), *action)
        return nodes


_STORED, _UNANSWERED, _BEFORE_HISTORY, _LOST, _SUSPICIOUS = range(5)
"""The origin of a value: a fill that was recorded, one that was not answered, one from before the recording, one of
which nothing is known because actions were lost, or none."""


def _entry_key(actions: Actions) -> NDArray[numpy.uint64]:
    return mix(actions.item, actions["node"], actions["version"], actions.life)


def _stored_key(actions: Actions) -> NDArray[numpy.uint64]:
    columns = actions["node"], actions["version"], actions["digest"], actions["flags"] & ABSENT
    return mix(actions.item, actions.value, *columns)


def _find_last(
    fills: Actions, chosen: Booleans, actions: Actions, key_of: Callable[[Actions], NDArray[numpy.uint64]]
) -> tuple[Integers, Booleans]:
    """(for each action the last of the chosen fills with its key, whether there is one)."""
    kept = numpy.flatnonzero(chosen)
    keys = key_of(fills)[kept]
    order = sort_by(keys, *(fills[name][kept] for name in ("begin_us", "client", "sequence")))
    keys, kept = keys[order], kept[order]
    wanted = key_of(actions)
    at = numpy.maximum(search(keys, wanted, "right") - 1, 0)
    fill = kept[at]
    return fill, (keys[at] == wanted) & (fills.item[fill] == actions.item)


def _value_key(actions: Actions) -> NDArray[numpy.uint64]:
    return mix(actions.item, actions["node"], actions.value, actions["digest"])
