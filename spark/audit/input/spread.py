"""Which piece each row of the replay goes to, and how an item with too many rows for a piece is spread over several.

All rows of an item are in one piece, but for **hot** items. Their rows are divided by the archive's order into
**segments**: a change is in the segment of its ordinal, a fill or a hit in that of its position, an invalidation in
those of the changes that it names. A position whose hits alone fill a piece has a segment with several pieces: each
gets some of the hits, and all other rows. A row that is in several pieces is judged in one of them, and is context
(`CONTEXT`) in the others. `spark.audit.shuffle.segment` finds the rows of other segments that a piece needs.

Hot items are found in a sample: the first rows of each part. A hot item that the sample lacks is in one piece, which
costs memory and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, NamedTuple

import numpy
import pyarrow

from spark.audit.engine.step import Engine, PlannedScan, ScanPart, ScanStep, Told
from spark.audit.input.recording import RowPart
from spark.audit.kernel.arrays import (
    Integers,
    NumberColumns,
    mix,
    number_items,
    read_stamps,
    spread,
    to_numbers,
    to_starts,
)
from spark.audit.model.row import CHANGE, CONTEXT, HIT, INVALIDATION
from spark.audit.model.timeline import Lineage

SAMPLE_ROWS: Final = 4_096
PARTS_SAMPLED_MAX: Final = 1_000
_POINTS: Final = pyarrow.schema(
    [
        ("h1", pyarrow.int64()),
        ("h2", pyarrow.int32()),
        ("lineage", pyarrow.int64()),
        ("ordinal", pyarrow.int64()),
        ("is_hit", pyarrow.bool_()),
        ("rows", pyarrow.float64()),
    ]
)


class Segment(NamedTuple):
    """The segment of a piece of a hot item. ``is_first``: False for a piece that judges only hits of the segment."""

    number: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class HotItem:
    """``first``: the first ordinal of the archive of its ``lineage``. ``starts``: the first ordinal of each segment
    but the first one; ``copies``: number of pieces of each segment. ``base``: the number of its first piece."""

    h1: int
    h2: int
    lineage: int
    first: int
    starts: tuple[int, ...]
    copies: tuple[int, ...]
    base: int

    @property
    def pieces(self) -> range:
        return range(self.base, self.base + sum(self.copies))

    def find(self, piece: int) -> Segment:
        ends = numpy.cumsum(self.copies)
        number = int(numpy.searchsorted(ends, piece - self.base, side="right"))
        return Segment(number, piece - self.base == ends[number] - self.copies[number])


@dataclass(frozen=True, slots=True)
class Spread:
    """``pieces``: number of pieces of all items that are not hot, numbered from 0; the pieces of hot items follow."""

    pieces: int
    items: tuple[HotItem, ...] = ()

    @property
    def total(self) -> int:
        return self.pieces + sum(len(item.pieces) for item in self.items)

    def find(self, piece: int) -> HotItem | None:
        return next((item for item in self.items if piece in item.pieces), None)

    def divide(self, table: pyarrow.Table) -> Iterator[Told]:
        """The rows (`spark.audit.model.schema.REPLAY`) of each piece."""
        h1, h2 = table.column("h1").to_numpy(), table.column("h2").to_numpy()
        number = (h1.view(numpy.uint64) % numpy.uint64(self.pieces)).astype(numpy.int64)
        for item in self.items:
            mine = h1 == item.h1
            if mine.any():
                mine &= h2 == item.h2
                number[mine] = self.pieces
                yield from _divide_hot(item, table.filter(pyarrow.array(mine)))
        yield from divide_rows(table, number, self.pieces)


def divide_rows(table: pyarrow.Table, number: Integers, pieces: int) -> Iterator[Told]:
    """The rows of each piece; rows with the number ``pieces`` are in none."""
    order = numpy.argsort(number.astype(numpy.min_scalar_type(pieces)), kind="stable")
    starts = to_starts(numpy.bincount(number, minlength=pieces)[:pieces])
    sorted_rows = table.take(pyarrow.array(order[: starts[-1]]))
    for piece in numpy.flatnonzero(numpy.diff(starts)).tolist():
        yield piece, sorted_rows.slice(starts[piece], starts[piece + 1] - starts[piece])


class Touched(NamedTuple):
    """The ordinals that rows stand at, one after the other: an invalidation at each that it names."""

    row: Integers
    lineage: Integers
    ordinal: Integers


def find_touched(table: pyarrow.Table, columns: NumberColumns, first: int) -> Touched:
    """Rows with positions of several lineages stand nowhere. ``first``: first ordinal of the archive; an invalidation
    whose prefix is before it names single transactions."""
    kind = columns["kind"]
    changes = numpy.flatnonzero(kind == CHANGE)
    book, value = read_stamps(table.column("stamps"))
    counts = book.starts[value + 1] - book.starts[value]
    actions = numpy.flatnonzero((kind != CHANGE) & (counts == 1))
    stamp = book.starts[value[actions]]
    extras = numpy.where(kind[actions] == INVALIDATION, book.extra_counts[stamp], 0)
    by_prefix = (extras == 0) | (book.prefix[stamp] >= first)
    by_extra = numpy.repeat(numpy.arange(len(actions)), extras)
    ordinals = book.extras[spread(book.extra_starts[stamp], extras)]
    lineage = book.lineage[stamp]
    return Touched(
        numpy.concatenate((changes, actions[by_prefix], actions[by_extra])),
        numpy.concatenate((columns["lineage"][changes], lineage[by_prefix], lineage[by_extra])),
        numpy.concatenate((columns["ordinal"][changes], book.prefix[stamp][by_prefix], ordinals)),
    )


def _divide_hot(item: HotItem, table: pyarrow.Table) -> Iterator[Told]:
    columns = to_numbers(table)
    touched = find_touched(table, columns, item.first)
    segments = len(item.copies)
    segment = numpy.searchsorted(item.starts, touched.ordinal, side="right")
    segment[touched.lineage != item.lineage] = 0
    nowhere = numpy.setdiff1d(numpy.arange(table.num_rows), touched.row)
    places = numpy.unique(numpy.concatenate((touched.row * segments + segment, nowhere * segments)))
    row, segment = places // segments, places % segments
    is_first = numpy.ones(len(row), numpy.bool_)
    is_first[1:] = row[1:] != row[:-1]
    # Each piece of a segment gets some of its hits, and everything else.
    copies = numpy.array(item.copies, numpy.int64)[segment]
    is_hit = columns["kind"][row] == HIT
    counts = numpy.where(is_hit, 1, copies)
    at, copy = (numpy.repeat(numpy.arange(len(row)), counts), spread(numpy.zeros(len(row), numpy.int64), counts))
    chosen = mix(columns["client"][row], columns["sequence"][row]) % copies.astype(numpy.uint64)
    copy = numpy.where(is_hit[at], chosen.astype(numpy.int64)[at], copy)
    is_context = ~is_first[at] | (~is_hit[at] & (copy > 0))
    piece = item.base + to_starts(numpy.array(item.copies))[segment[at]] + copy
    rows = table.take(pyarrow.array(row[at]))
    yield from divide_rows(mark(rows, is_context), piece, item.pieces.stop)


def mark(table: pyarrow.Table, is_context: numpy.ndarray) -> pyarrow.Table:
    """The rows, with the mark `CONTEXT` set on those that are context and cleared on all others."""
    flags = table.column("flags").to_numpy() & ~numpy.int32(CONTEXT)
    marked = numpy.where(is_context, flags | CONTEXT, flags).astype(numpy.int32)
    return table.set_column(table.schema.get_field_index("flags"), "flags", pyarrow.array(marked))


def drop_context(table: pyarrow.Table) -> pyarrow.Table:
    """The rows that are judged in this piece."""
    is_context = (table.column("flags").to_numpy() & CONTEXT) > 0
    return table.filter(pyarrow.array(~is_context)) if is_context.any() else table


@dataclass(frozen=True, slots=True)
class SampleStep:
    """A step: ``points`` (`_POINTS`) of items that may have ``hot_rows`` rows, by the first rows of each part, whose
    rows ``step`` makes. ``rows``, ``parts``: all rows, and how many parts are read."""

    step: ScanStep
    rows: int
    parts: int
    hot_rows: int

    def __call__(self, parts: Iterable[ScanPart]) -> Iterator[Told]:
        for part in parts:
            tables = [table for name, table in self.step([part]) if isinstance(name, int)]
            if tables:
                yield "points", self._read(pyarrow.concat_tables(tables))

    def _read(self, table: pyarrow.Table) -> pyarrow.Table:
        # A key may be hot for an hour: a part is asked as if all were like it.
        weight = self.rows / table.num_rows
        columns = to_numbers(table)
        item = number_items(columns["h1"], columns["h2"])
        counts = numpy.bincount(item)
        is_hot = (counts * weight >= self.hot_rows / 4) & (counts > 1)
        chosen = is_hot[item]
        table = table.filter(pyarrow.array(chosen))
        columns = {name: column[chosen] for name, column in columns.items()}
        touched = find_touched(table, columns, 1 << 62)
        _, at = numpy.unique(touched.row, return_index=True)
        row = touched.row[at]
        arrays = (
            columns["h1"][row],
            columns["h2"][row],
            touched.lineage[at],
            touched.ordinal[at],
            columns["kind"][row] == HIT,
            numpy.full(len(row), weight / self.parts),
        )
        return pyarrow.Table.from_arrays(list(map(pyarrow.array, arrays)), schema=_POINTS)


def find_hot(
    engine: Engine, scans: Sequence[PlannedScan], lineages: Mapping[int, Lineage], pieces: int, hot_rows: int
) -> Spread:
    """How the rows that ``scans`` make are spread. ``lineages``: lineages by number. ``hot_rows``: number of rows
    from which on an item is hot."""
    if sum(part.rows for scan in scans for part in scan.parts) < hot_rows:
        return Spread(pieces)
    points = []
    for scan in (each for each in scans if each.parts):
        every = ceil(len(scan.parts) / PARTS_SAMPLED_MAX) or 1
        parts = [_take_first(part) for part in scan.parts[::every]]
        step = SampleStep(scan.step, sum(part.rows for part in scan.parts), len(parts), hot_rows)
        points.append(engine.scan("hot items", parts, step).get("points", _POINTS.empty_table()))
    table = pyarrow.concat_tables(points)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in _POINTS.names}
    if not table.num_rows:
        return Spread(pieces)
    item = number_items(columns["h1"], columns["h2"])
    found = Spread(pieces)
    for number in numpy.flatnonzero(numpy.bincount(item, columns["rows"]) >= hot_rows).tolist():
        its = {name: column[item == number] for name, column in columns.items()}
        lineage = lineages.get(int(its["lineage"][0]))
        if lineage is None or (its["lineage"] != lineage.number).any():
            continue
        starts, copies = cut(its["ordinal"], its["is_hit"], its["rows"], hot_rows)
        if sum(copies) > 1:
            key = int(its["h1"][0]), int(its["h2"][0])
            hot = HotItem(*key, lineage.number, lineage.first, starts, copies, found.total)
            found = replace(found, items=(*found.items, hot))
    return found


def _take_first(part: ScanPart) -> RowPart:
    assert isinstance(part, RowPart)
    return part.take_first(SAMPLE_ROWS)


def cut(
    ordinal: Integers, is_hit: numpy.ndarray, rows: numpy.ndarray, hot_rows: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the starts of an item's segments but for the first one, the copies of each segment), so that a piece has about
    ``hot_rows`` rows. An ordinal whose hits alone would fill several pieces is a segment with copies."""
    order = numpy.argsort(ordinal, kind="stable")
    ordinal, is_hit, rows = ordinal[order], is_hit[order], rows[order]
    sums = numpy.cumsum(rows)
    count = ceil(sums[-1] / hot_rows)
    wanted = sums[-1] * numpy.arange(1, count) / count
    cuts = Counter(ordinal[numpy.searchsorted(sums, wanted)].tolist())
    starts: dict[int, int] = {}
    for start, times in sorted(cuts.items()):
        starts[start] = 1
        if times > 1:
            hits, others = (float(rows[(ordinal == start) & of].sum()) for of in (is_hit, ~is_hit))
            starts[start] = max(1, ceil(hits / hot_rows)) if others <= hot_rows else 1
            starts[start + 1] = 1
    first = starts.pop(int(ordinal[0]), 1)
    return tuple(starts), (first, *starts.values())
