"""Rows of the replay as columns, with their items numbered and their positions taken apart.

A row of an action has **stamps**, one for each lineage of its entry. They stand in columns of their own: a stamp
knows its row, and rows are folded over their stamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy
import pyarrow
from numpy.typing import NDArray

from spark.audit.model.hashing import find_firsts, number_values, read_at
from spark.audit.model.row import NO_NUMBER, STAMP, ReplayRow, unpack_stamps
from spark.audit.model.timeline import NEVER, UNKNOWN_FLAGS

Integers: TypeAlias = NDArray[numpy.int64]
Booleans: TypeAlias = NDArray[numpy.bool_]
NumberColumns: TypeAlias = dict[str, NDArray[Any]]

_MIX: Final = numpy.uint64(0x9E3779B97F4A7C15)
_NUMBERS: Final = tuple(name for name in ReplayRow._fields if name != "stamps")


def to_numbers(table: pyarrow.Table) -> NumberColumns:
    """The columns of integers. Null is `NO_NUMBER`, and 0 in a column of 32 bits."""
    columns = {}
    for name in _NUMBERS:
        column = table.column(name)
        missing = NO_NUMBER if column.type == pyarrow.int64() else 0
        columns[name] = column.fill_null(missing).to_numpy() if column.null_count else column.to_numpy()
    return columns


def number_items(h1: Integers, h2: NDArray[numpy.int32]) -> Integers:
    """For each row the number of its item, from 0 on."""
    codes, _ = number_values(h1)
    if (h2[find_firsts(codes)][codes] == h2).all():
        return codes
    order = numpy.lexsort((h2, h1))
    is_new = numpy.zeros(len(order), numpy.int64)
    is_new[1:] = (h1[order][1:] != h1[order][:-1]) | (h2[order][1:] != h2[order][:-1])
    numbers = numpy.empty(len(order), numpy.int64)
    numbers[order] = numpy.cumsum(is_new)
    return numbers


def mix(*columns: NDArray[Any]) -> NDArray[numpy.uint64]:
    """A hash of each row of the columns. Equal rows have equal hashes; of equal hashes the rows must be compared."""
    mixed = numpy.zeros(len(columns[0]), numpy.uint64)
    for column in columns:
        mixed = (mixed ^ (mixed >> numpy.uint64(29)) ^ column.astype(numpy.uint64)) * _MIX
    return mixed


def search(keys: NDArray[Any], wanted: NDArray[Any], side: Literal["left", "right"] = "left") -> NDArray[numpy.int64]:
    """As `numpy.searchsorted`. The needles are sorted before: neighbours find their places in the same lines of
    memory, in a fifth of the time."""
    order = numpy.argsort(wanted)
    found = numpy.empty(len(wanted), numpy.int64)
    found[order] = numpy.searchsorted(keys, wanted[order], side)
    return found


def sort_by(first: NDArray[Any], *others: NDArray[Any]) -> Integers:
    """The order by ``first``, then by the others. As `numpy.lexsort` with the keys turned round, in a fraction of the
    time where few values are equal."""
    order: Integers = numpy.argsort(first)
    values = first[order]
    is_same = values[1:] == values[:-1]
    if is_same.any():
        tied = numpy.flatnonzero(numpy.append(is_same, False) | numpy.append(False, is_same))
        its = order[tied]
        order[tied] = its[numpy.lexsort((its, *(each[its] for each in reversed(others)), first[its]))]
    return order


@dataclass(frozen=True, slots=True)
class StampBook:
    """The different values of the column ``stamps``, taken apart. Value ``v`` has the stamps ``starts[v]`` to
    ``starts[v + 1]``; stamp ``s`` has the extras ``extra_starts[s]`` to ``extra_starts[s + 1]``."""

    starts: Integers
    lineage: Integers
    life: Integers
    prefix: Integers
    flags: Integers
    extra_starts: Integers
    extras: Integers

    @classmethod
    def of(cls, values: pyarrow.BinaryArray) -> StampBook:
        """Values as `unpack_stamps` reads them. Nearly all are of one stamp with at most one extra."""
        bounds = numpy.frombuffer(values.buffers()[1], numpy.int32, len(values) + 1, values.offset * 4)
        data = values.buffers()[2]
        lengths = numpy.diff(bounds)
        is_plain = (lengths == STAMP.itemsize) | (lengths == STAMP.itemsize + 8)
        at = numpy.flatnonzero(is_plain)
        others = {each: unpack_stamps(values[each].as_py()) for each in numpy.flatnonzero(~is_plain).tolist()}
        counts = numpy.ones(len(values), numpy.int64)
        counts[list(others)] = list(map(len, others.values()))
        starts = to_starts(counts)
        heads = numpy.zeros(int(starts[-1]), STAMP)
        heads[starts[at]] = read_at(data, bounds[at], STAMP)
        placed = [(starts[each] + n, stamp) for each, its in others.items() for n, stamp in enumerate(its)]
        for place, stamp in placed:
            where = stamp.place
            heads[place] = stamp.lineage, stamp.life, where.prefix, where.flags, len(where.extras)
        extra_starts = to_starts(heads["extras"])
        extras = numpy.zeros(int(extra_starts[-1]), numpy.int64)
        at = at[lengths[at] > STAMP.itemsize]
        extras[extra_starts[starts[at]]] = read_at(data, bounds[at] + STAMP.itemsize, numpy.dtype("<i8"))
        for place, stamp in placed:
            extras[extra_starts[place] : extra_starts[place + 1]] = stamp.place.extras
        return cls(
            starts,
            heads["lineage"].astype(numpy.int64),
            heads["life"].astype(numpy.int64),
            heads["prefix"].astype(numpy.int64),
            heads["flags"].astype(numpy.int64),
            extra_starts,
            extras,
        )

    @property
    def extra_counts(self) -> Integers:
        return numpy.diff(self.extra_starts)


def to_starts(counts: NDArray[Any]) -> Integers:
    """The starts of ranges of these lengths, one after the other, and the end of the last one."""
    return numpy.concatenate((numpy.zeros(1, numpy.int64), numpy.cumsum(counts, dtype=numpy.int64)))


def spread(starts: Integers, counts: Integers) -> Integers:
    """All places of some ranges, one range after the other."""
    ends = numpy.cumsum(counts)
    within = numpy.arange(ends[-1] if len(ends) else 0) - numpy.repeat(ends - counts, counts)
    places: Integers = numpy.repeat(starts, counts) + within
    return places


def read_stamps(column: pyarrow.ChunkedArray) -> tuple[StampBook, Integers]:
    """(the different values, for each row which of them it has). No stamps at all count as b""."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return StampBook.of(encoded.dictionary.fill_null(b"")), encoded.indices.to_numpy().astype(numpy.int64)


@dataclass(frozen=True)
class Actions:
    """Rows of one kind: their places in the table (``at``), their columns, and their stamps."""

    at: Integers
    columns: NumberColumns
    item: Integers
    book: StampBook
    value: Integers

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.at)

    def where(self, chosen: Booleans) -> Actions:
        if chosen.all():
            return self
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Actions(self.at[chosen], columns, self.item[chosen], self.book, self.value[chosen])

    @cached_property
    def counts(self) -> Integers:
        """How many stamps each row has."""
        return self.book.starts[self.value + 1] - self.book.starts[self.value]

    @cached_property
    def is_single(self) -> bool:
        return bool((self.counts == 1).all())

    @property
    def life(self) -> Integers:
        """The life of each row's first stamp; 0 for a row without stamps."""
        life, has_some = numpy.zeros(len(self), numpy.int64), self.counts > 0
        life[has_some] = self.book.life[self.book.starts[self.value[has_some]]]
        return life

    @cached_property
    def row(self) -> Integers:
        """The row of each stamp."""
        rows = numpy.arange(len(self), dtype=numpy.int64)
        return rows if self.is_single else numpy.repeat(rows, self.counts)

    @cached_property
    def stamp(self) -> Integers:
        """The place of each stamp in the book."""
        first: Integers = self.book.starts[self.value]
        if self.is_single:
            return first
        return spread(first, self.counts)

    @cached_property
    def starts(self) -> Integers:
        """The first stamp of each row."""
        ends: Integers = numpy.cumsum(self.counts)
        return ends - self.counts

    def of_stamps(self, name: str) -> Integers:
        """A column of the book, for each stamp."""
        column: Integers = getattr(self.book, name)[self.stamp]
        return column

    def fold(self, function: numpy.ufunc, values: NDArray[Any], empty: Any) -> NDArray[Any]:
        """For each row the fold of the values of its stamps, ``empty`` for rows without stamps."""
        if self.is_single:
            return values
        folded = numpy.full(len(self), empty, values.dtype)
        has_some = self.counts > 0
        if has_some.any():
            folded[has_some] = function.reduceat(values, self.starts[has_some])
        return folded

    def least(self, values: Integers) -> Integers:
        return self.fold(numpy.minimum, values, NEVER)

    def any(self, values: Booleans) -> Booleans:
        return self.fold(numpy.logical_or, values, False)

    @cached_property
    def first_unknown(self) -> Integers:
        """The flags of each row's first stamp that cannot be judged; 0 for none, -1 for a row without stamps."""
        flags = self.of_stamps("flags")
        flags = numpy.where(flags & UNKNOWN_FLAGS, flags, 0)
        if self.is_single:
            return flags
        found = numpy.where(self.counts == 0, -1, 0)
        bad = numpy.flatnonzero(flags)[::-1]
        found[self.row[bad]] = flags[bad]
        return found


def count_rows(row: Integers, rows: int, column: Integers, columns: int) -> list[list[int]]:
    """How often each pair of a row and a column occurs, row by row."""
    counts: list[list[int]] = (
        numpy.bincount(row * columns + column, minlength=rows * columns).reshape(rows, columns).tolist()
    )
    return counts


def count_each(values: Integers) -> list[tuple[int, int]]:
    each, counts = numpy.unique(values, return_counts=True)
    return list(zip(each.tolist(), counts.tolist(), strict=True))


def count_pairs(first: Integers, second: Integers) -> list[tuple[tuple[int, int], int]]:
    pairs, counts = numpy.unique(numpy.stack((first, second)), axis=1, return_counts=True)
    return [((int(one), int(two)), int(count)) for one, two, count in zip(pairs[0], pairs[1], counts, strict=True)]
