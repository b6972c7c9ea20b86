"""Values that were read together: were they those of one moment (I11)?

Each hit of a view shows a row as it was between two changes of the archive. A view is torn if these spans have no
ordinal in common. The spans are found with the items, and brought together by view in a shuffle of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pyarrow

from spark.audit.engine.step import Told
from spark.audit.input.spread import divide_rows
from spark.audit.kernel.arrays import Booleans, Integers, mix, number_items, search, to_numbers
from spark.audit.kernel.judge import Piece
from spark.audit.kernel.order import Changes, States
from spark.audit.kernel.standing import ROW_UNKNOWN, compare
from spark.audit.model import verdict
from spark.audit.model.finding import Knowledge, Reference, Rules, Tally
from spark.audit.model.hashing import number_values
from spark.audit.model.row import CHANGE, HIT, NO_NUMBER
from spark.audit.model.schema import FINDING, TALLY, VIEW, to_table
from spark.audit.model.timeline import ALWAYS, NEVER


def divide_views(table: pyarrow.Table, rules: Rules, known: Knowledge, pieces: int, tally: Tally) -> Iterator[Told]:
    """The spans (`VIEW`) of the hits of views in the rows of some items (`REPLAY`), by piece."""
    columns = to_numbers(table)
    is_viewed = (columns["kind"] == HIT) & (columns["observed"] != NO_NUMBER)
    if not is_viewed.any():
        return
    items = number_items(columns["h1"], columns["h2"])
    chosen = is_viewed | ((columns["kind"] == CHANGE) & numpy.isin(items, numpy.unique(items[is_viewed])))
    columns = {name: column[chosen] for name, column in columns.items()}
    piece = Piece(table.filter(pyarrow.array(chosen)), columns, items[chosen], rules, known, Tally())
    spans = _find_spans(piece, rules)
    tally.counts[verdict.VIEWED] += spans.num_rows
    view = mix(spans.column("client").to_numpy(), spans.column("view").to_numpy())
    yield from divide_rows(spans, (view % numpy.uint64(pieces)).astype(numpy.int64), pieces)


def _find_spans(piece: Piece, rules: Rules) -> pyarrow.Table:
    hits, placed, changes = piece.told_hits, piece.placed_hits, piece.changes
    if not len(changes):
        return VIEW.empty_table()
    row, chosen = compare(hits, placed, changes)
    until_us = hits["end_us"] + rules.clock_error_us
    is_raised = hits.any(placed.raised.since <= until_us[hits.row])
    at = numpy.flatnonzero((hits.first_unknown == 0) & (row != ROW_UNKNOWN) & ~is_raised)
    versions = Versions(changes)
    found, stamp = placed.found, chosen[at]
    log = changes.log[numpy.where(found.lacks, found.at, found.before)[stamp]]
    held = numpy.where(found.holds[stamp], found.before[stamp], changes.log_starts[log] - 1)
    value = States.of_values(hits["flags"][at], hits["digest"][at])
    begin, end, is_there = versions.find(log, held, value, until_us[at])
    at, stamp, begin, end = at[is_there], stamp[is_there], begin[is_there], end[is_there]
    names = "client", "h1", "h2", "node", "version", "who", "sequence", "begin_us", "end_us"
    told = {name: hits[name][at] for name in names}
    told["view"], told["row"] = hits["observed"][at], piece.find_row_numbers(numpy.maximum(end, 0))
    told["lineage"], told["since"] = (hits.of_stamps(name)[stamp] for name in ("lineage", "prefix"))
    told["begin"] = numpy.where(begin < 0, ALWAYS, changes.ordinal[begin])
    told["end"] = numpy.where(end < 0, NEVER, changes.ordinal[end])
    return pyarrow.table([told[name] for name in VIEW.names], schema=VIEW)


class Versions:
    """The states of rows, one after the other: of each log the one before it, and all that its changes left. A change
    that leaves what was there is none, and a state before that is not known counts as the first that is."""

    def __init__(self, changes: Changes) -> None:
        starts, logs = changes.log_starts, numpy.arange(len(changes.log_starts))
        left = mix(changes.log, changes.after.is_absent, changes.after.digest)
        before = changes.before[starts]
        first = numpy.where(before.is_known, mix(logs, before.is_absent, before.digest), left[starts])
        states = numpy.insert(left, starts, first)
        is_new = numpy.append(True, states[1:] != states[:-1])
        self._place = numpy.cumsum(is_new) - 1
        self._states, self._state = numpy.unique(states[is_new], return_inverse=True)
        self._change: Integers = numpy.insert(numpy.arange(len(left)), starts, -1)[is_new]
        self._log: Integers = numpy.insert(changes.log, starts, logs)[is_new]
        self._committed = numpy.where(self._change < 0, ALWAYS, changes.committed[self._change])
        self._doubtful = numpy.unique(changes.log[~changes.after.is_known])
        self._count = len(self._change)
        self._order = numpy.sort(self._state * self._count + numpy.arange(self._count))

    def find(self, log: Integers, held: Integers, value: States, until_us: Integers) -> tuple[Integers, ...]:
        """(the change that left each value, the one that replaced it, whether it was there), from the change ``held``
        on. -1: none. If a row came back to its value by ``until_us``, all that time counts."""
        wanted = mix(log, value.is_absent, value.digest)
        state = numpy.minimum(search(self._states, wanted), len(self._states) - 1)
        first = search(self._order, state * self._count + self._place[held + log + 1])

        def is_same(at: Integers) -> Booleans:
            inside = self._order[numpy.minimum(at, self._count - 1)]
            is_its: Booleans = (at < self._count) & (inside // self._count == state)
            is_its &= self._committed[inside % self._count] <= until_us
            return is_its

        is_there = (self._states[state] == wanted) & is_same(first) & ~numpy.isin(log, self._doubtful)
        last, recurs = first.copy(), is_there.copy()
        while (recurs := recurs & is_same(last + 1)).any():
            last[recurs] += 1
        begin, end = (self._order[numpy.minimum(at, self._count - 1)] % self._count for at in (first, last))
        after = numpy.minimum(end + 1, self._count - 1)
        is_replaced = (after > end) & (self._log[after] == self._log[end])
        return self._change[begin], numpy.where(is_replaced, self._change[after], -1), is_there


def judge_views(known: Knowledge, _: int, table: pyarrow.Table) -> Iterator[Told]:
    """A step for each piece of spans (`VIEW`): ``findings`` and a ``tally``."""
    columns = {name: table.column(name).to_numpy() for name in VIEW.names}
    code, _first = number_values(mix(columns["client"], columns["view"], columns["lineage"]))
    oldest, youngest = (
        order[numpy.flatnonzero(numpy.diff(code[order], prepend=-1))]
        for order in (numpy.lexsort((columns["sequence"], key, code)) for key in (columns["end"], -columns["begin"]))
    )
    tally, found = Tally(), list[dict[str, Any]]()
    tally.counts["views compared"] = int((numpy.bincount(code) > 1).sum())
    is_torn = columns["begin"][youngest] >= columns["end"][oldest]
    rows = (table.take(pyarrow.array(its[is_torn])).to_pylist() for its in (oldest, youngest))
    for old, young in zip(*rows, strict=True):
        lineage = known.lineages[old["lineage"]]
        if lineage.has_break(min(old["since"], young["since"]), lineage.last):
            tally.unknown[old["who"], verdict.VIEW_UNKNOWN] += 1
            continue
        evidence = (
            Reference("change", old["lineage"], old["end"], old["row"]),
            *(Reference("hit", each["client"], each["sequence"]) for each in (old, young)),
        )
        held = {name: old[name] for name in ("h1", "h2", "node", "version", "lineage", "who")}
        held |= {"first_us": old["begin_us"], "last_us": max(old["end_us"], young["end_us"]), "longest_us": 0}
        kind = {"kind": verdict.TORN_VIEW, "failure": "I11", "clients": (old["client"],), "count": 1}
        found.append({**held, **kind, "evidence": [each._asdict() for each in evidence]})
    if found:
        yield "findings", pyarrow.Table.from_pylist(found, FINDING)
    yield "tally", to_table([tally.to_row()], TALLY)
