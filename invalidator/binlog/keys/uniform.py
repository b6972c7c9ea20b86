"""Row events in which every row is laid out as the first: the same NULLs and the same lengths.

Most rows of a table without columns of variable length are alike, and so are rows with codes of one length. Each key
column is then at one distance from one row to the next, and all keys are read in one call. The NULL bits and length
bytes of every row are compared with the first row's: if they are equal, a walk through the row would take the same
steps and end at the next row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from invalidator.binlog.wire.fieldformat import FieldFormat

EVENT_BYTES_MIN: Final = 512
"""A smaller event has too few rows to win anything."""

ROWS_MIN: Final = 8
PAUSE_EVENTS: Final = 31
"""Events of one shape that are not looked at after one whose rows were not alike."""

UNIFORM_ROWS_MAX: Final = 4
"""Layouts of one shape that are remembered. A column of variable length may give a new one with every event."""

FORMAT_ROWS_MAX: Final = 2048
FORMATS_MAX: Final = 8
"""Numbers of rows whose format is kept, for one uniform row."""


@dataclass(frozen=True, slots=True)
class UniformRow:
    """One row. ``marks``: the bytes of its NULL bitmaps and lengths, as (offset, byte). ``values``: under the name of
    its variable in ``invalidator.binlog.keys.plan``, image letter and column number, (offset, size) of each, None for
    NULL."""

    row_bytes: int
    marks: tuple[tuple[int, int], ...]
    values: tuple[tuple[str, tuple[int, int] | None], ...]

    def fits(self, packet: bytes, start: int, end: int) -> bool:
        """Whether every row from ``start`` to ``end`` is laid out like this."""
        size = self.row_bytes
        count, rest = divmod(end - start, size)
        return not rest and all(
            packet[start + offset : end : size] == bytes((value,)) * count for offset, value in self.marks
        )

    def format(self, wanted: Mapping[str, FieldFormat]) -> tuple[str, list[str], list[str]]:
        """The format of one row for `struct`, without the byte order; the wanted values in their order; and those of
        them that are NULL."""
        codes, found, nulls, at = [], [], [], 0
        for name, place in self.values:
            if name not in wanted:
                continue
            if place is None:
                nulls.append(name)
                continue
            offset, size = place
            codes.append(f"{offset - at}x{wanted[name].code or f'{size}s'}")
            found.append(name)
            at = offset + size
        codes.append(f"{self.row_bytes - at}x")
        return "".join(codes), found, nulls


class NumberReader:
    """The items of rows that are all alike and whose keys are numbers: all in one piece of text, which is cut. That
    needs a format as long as the rows are many. The formats of an event's usual sizes are kept."""

    def __init__(self, row_format: str, template: bytes) -> None:
        """``template``: an item, with the numbers of one row left open."""
        assert b"\n" not in template, "the cut is at line ends"
        self._row_format = row_format
        self._row = struct.Struct(f"<{row_format}")
        self._template = template
        self._formats: dict[int, tuple[struct.Struct, bytes]] = {}

    def __call__(self, packet: bytes, start: int, end: int) -> list[bytes]:
        count = (end - start) // self._row.size
        known = self._formats.get(count)
        if known is None:
            if count > FORMAT_ROWS_MAX or len(self._formats) >= FORMATS_MAX:
                return [self._template % row for row in self._row.iter_unpack(packet[start:end])]
            known = struct.Struct(f"<{self._row_format * count}"), b"\n".join([self._template] * count)
            self._formats[count] = known
        numbers, texts = known
        return (texts % numbers.unpack_from(packet, start)).split(b"\n")


def find_uniform_row(
    images: Sequence[tuple[str, Sequence[int]]], formats: Sequence[FieldFormat], packet: bytes, start: int, end: int
) -> UniformRow | None:
    """The row at ``start``; None if it does not end before ``end``, or is one of few. ``images``: their letters, and
    the columns in them."""
    marks: list[tuple[int, int]] = []
    values: list[tuple[str, tuple[int, int] | None]] = []
    place = start
    for letter, columns in images:
        bitmap = packet[place : place + (len(columns) + 7) // 8]
        marks += _marks(place - start, bitmap)
        place += len(bitmap)
        nulls = int.from_bytes(bitmap, "little")
        for index, column in enumerate(columns):
            form, name = formats[column], f"{letter}{column}"
            if nulls >> index & 1:
                values.append((name, None))
                continue
            size = form.size
            if not form.is_fixed:
                length = packet[place : place + size]
                marks += _marks(place - start, length)
                place += size
                size = int.from_bytes(length, "little")
            values.append((name, (place - start, size)))
            place += size
    if (place - start) * ROWS_MIN > end - start:
        return None
    return UniformRow(place - start, tuple(marks), tuple(values))


def _marks(offset: int, taken: bytes) -> Iterator[tuple[int, int]]:
    return ((offset + index, byte) for index, byte in enumerate(taken))
