"""How far nodes had come: the publishes of their records, the lives of the nodes, and numbers that the archive lacks.

Read by the step over the actions, and folded by the survey. A publish has, for each lineage, a life of the node, its
floor and its progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from freshness.errors import FormatError
from spark.audit.kernel.arrays import StampBook, spread, to_starts
from spark.audit.kernel.placement import STAMP_COLUMNS, encode_stamps
from spark.audit.model.finding import Life
from spark.audit.model.hashing import hash_names
from spark.audit.model.schema import to_table
from spark.audit.model.timeline import ALWAYS, MALFORMED, NO_ARCHIVE, NOTHING, Lineage, holds_any

LIVES_MAX: Final = 1_000_000


def _longs(*names: str) -> pyarrow.Schema:
    return pyarrow.schema([(name, pyarrow.int64()) for name in names])


_PLACE: Final = ["node", "lineage", "life"]
_LIVES: Final = _longs(*_PLACE, "floor", "begin_us", "end_us", "progress", "left_us")
_ACKS: Final = _longs(*_PLACE, "ordinal", "end_us")
_HELD: Final = _longs("hole", "begin_us", "client", "sequence")
_FOLDS: Final = [("begin_us", "min"), ("end_us", "min"), ("progress", "max"), ("left_us", "max")]


class Hole(NamedTuple):
    """Numbers of a source that the archive of a lineage leaves out. ``ordinal``: ordinal of the transaction before
    them."""

    number: int
    flavor: str
    lineage: str
    source: str
    first: int
    last: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """Reads batches of actions. ``raises``: (lineage, ordinal) of statements that changed whole tables."""

    lineages: Mapping[str, Lineage]
    raises: Sequence[tuple[int, int]]
    holes: Sequence[Hole]

    def read(self, batch: pyarrow.RecordBatch) -> Iterator[tuple[str, pyarrow.Table]]:
        """``lives``: by node, lineage, life and floor, the first times, the highest progress, and when something left
        last; ``acks``: when a raise was acknowledged; ``held``: who held a number of a hole."""
        action = batch.column("action")
        published = batch.filter(pyarrow.compute.equal(action, "publish"))
        if published.num_rows:
            table = self._place(published)
            yield "lives", _fold_lives(table)
            if self.raises:
                yield "acks", self._find_acks(table)
        if self.holes:
            is_position = pyarrow.compute.is_in(action, pyarrow.array(["fill", "publish"]))
            yield "held", self._find_held(batch.filter(is_position))

    def _place(self, published: pyarrow.RecordBatch) -> pyarrow.Table:
        """`_LIVES`, for each lineage of each publish that the archive has."""
        columns = {name: published.column(name) for name in STAMP_COLUMNS}
        none = pyarrow.array([[]] * published.num_rows, columns["floors"].type)
        progress, floor = (
            StampBook.of(encode_stamps(self.lineages, {**columns, "positions": columns[name], "floors": none})[0])
            for name in ("positions", "floors")
        )
        # If the lists differ in length, one of them is malformed as a whole.
        counts = numpy.diff(progress.starts)
        counts = numpy.where(counts == numpy.diff(floor.starts), counts, 0)
        row = numpy.repeat(numpy.arange(len(counts)), counts)
        at, low = (spread(book.starts[:-1], counts) for book in (progress, floor))
        flags = progress.flags[at] | floor.flags[low]
        chosen = (flags & MALFORMED == 0) & (progress.lineage[at] != 0)
        row, at, low = row[chosen], at[chosen], low[chosen]
        begin_us = published.column("begin_us").to_numpy()[row]
        is_settling = pyarrow.compute.equal(published.column("outcome"), "settling")
        # A life begins though the archive has nothing of its epoch yet: nothing else is known of it then.
        is_placed = flags[chosen] & NO_ARCHIVE == 0
        arrays = (
            hash_names(published.column("node"))[row],
            progress.lineage[at],
            progress.life[at],
            numpy.where(is_placed, floor.prefix[low], NOTHING),
            begin_us,
            published.column("end_us").to_numpy()[row],
            numpy.where(is_placed, progress.prefix[at], NOTHING),
            numpy.where(is_settling.to_numpy(zero_copy_only=False)[row], begin_us, ALWAYS),
        )
        return pyarrow.Table.from_arrays(list(map(pyarrow.array, arrays)), schema=_LIVES)

    def _find_acks(self, table: pyarrow.Table) -> pyarrow.Table:
        names = (*_PLACE, "progress", "end_us")
        node, lineage, life, progress, end = (table.column(name).to_numpy() for name in names)
        raised = numpy.array(self.raises, numpy.int64).reshape(-1, 2)
        found: list[tuple[int, ...]] = []
        for place in sorted(set(zip(node.tolist(), lineage.tolist(), life.tolist(), strict=True))):
            mine = (node == place[0]) & (lineage == place[1]) & (life == place[2])
            order = numpy.argsort(progress[mine], kind="stable")
            ends = numpy.minimum.accumulate(end[mine][order][::-1])[::-1]
            ordinals = raised[raised[:, 0] == place[1], 1]
            at = numpy.searchsorted(progress[mine][order], ordinals)
            for ordinal, first in zip(ordinals[at < len(ends)].tolist(), at[at < len(ends)].tolist(), strict=True):
                found.append((*place, ordinal, int(ends[first])))
        return to_table(found, _ACKS)

    def _find_held(self, actions: pyarrow.RecordBatch) -> pyarrow.Table:
        lineages, positions = actions.column("lineages"), actions.column("positions")
        counts = pyarrow.compute.list_value_length(lineages).to_numpy().astype(numpy.int64)
        others = pyarrow.compute.list_value_length(positions).to_numpy().astype(numpy.int64)
        both = numpy.minimum(counts, others)
        row = numpy.repeat(numpy.arange(len(both)), both)
        name, position = (
            column.flatten().take(pyarrow.array(spread(to_starts(its)[:-1], both)))
            for column, its in ((lineages, counts), (positions, others))
        )
        begin, sequence = (actions.column(each).to_numpy()[row] for each in ("begin_us", "sequence"))
        client = hash_names(actions.column("client"))[row]
        pair = pyarrow.Table.from_arrays([name, position], ["name", "position"])
        named = pyarrow.compute.is_in(name, pyarrow.array(sorted({hole.lineage for hole in self.holes})))
        rows = numpy.flatnonzero(named.to_numpy(zero_copy_only=False))
        pair = pair.take(pyarrow.array(rows)).append_column("at", pyarrow.array(rows))
        # Each distinct position is looked at once, for the first action that had it.
        order = numpy.lexsort((sequence[rows], client[rows], begin[rows]))
        first = pair.take(pyarrow.array(order)).group_by(["name", "position"], use_threads=False)
        told = first.aggregate([("at", "first")])
        found = [
            (number, begin[at], client[at], sequence[at])
            for text, value, at in zip(
                *(told.column(each).to_pylist() for each in ("name", "position", "at_first")), strict=True
            )
            for number, hole in enumerate(self.holes)
            if hole.lineage == text and holds_any(hole.flavor, value, hole.source, hole.first, hole.last)
        ]
        return _fold_held(to_table(found, _HELD))


def _fold_lives(lives: pyarrow.Table) -> pyarrow.Table:
    return lives.group_by([*_PLACE, "floor"]).aggregate(_FOLDS).rename_columns(_LIVES.names)


def _fold_held(held: pyarrow.Table) -> pyarrow.Table:
    """For each hole the first action."""
    rows = sorted(zip(*(held.column(name).to_pylist() for name in _HELD.names), strict=True))
    first: dict[int, tuple[int, ...]] = {}
    for row in rows:
        first.setdefault(row[0], row)
    return to_table(first.values(), _HELD)


def read_lives(told: pyarrow.Table | None) -> dict[tuple[int, int], list[Life]]:
    """By (node, lineage), each life as often as its floor rose. Raises `FormatError` for more than `LIVES_MAX`."""
    table = _fold_lives(told if told is not None else _LIVES.empty_table())
    if table.num_rows > LIVES_MAX:
        raise FormatError(
            f"nodes of the cache had more than {LIVES_MAX:,} lives in one history", hint="audit a shorter span"
        )
    lives: dict[tuple[int, int], list[Life]] = {}
    for row in sorted(table.to_pylist(), key=lambda row: (row["begin_us"], row["life"])):
        names = ("life", "begin_us", "end_us", "floor", "progress", "begin_us", "left_us")
        life = Life(*(row[name] for name in names))
        lives.setdefault((row["node"], row["lineage"]), []).append(life)
    return lives


def read_acks(told: pyarrow.Table | None) -> dict[tuple[int, int, int, int], int]:
    """By (node, lineage, life, ordinal): when a change of a whole table was acknowledged."""
    if told is None:
        return {}
    acks = told.group_by([*_PLACE, "ordinal"]).aggregate([("end_us", "min")]).rename_columns(_ACKS.names)
    return {(row["node"], row["lineage"], row["life"], row["ordinal"]): row["end_us"] for row in acks.to_pylist()}


def read_held(told: pyarrow.Table | None) -> dict[int, tuple[int, int, int]]:
    """By hole: (begin_us, client, sequence) of the first action whose position holds a number of it."""
    if told is None:
        return {}
    return {row["hole"]: (row["begin_us"], row["client"], row["sequence"]) for row in _fold_held(told).to_pylist()}
