"""Row events in which every row is laid out as the first: the same NULLs and the same lengths.

The rows of a table without columns of variable length mostly are alike, and so are those with codes and hashes of one
length. Where they are, each key column is at one distance from one row to the next, and all keys can be read in one
call. Whether they are is looked at in every row: where its NULL bits and length bytes are those of the first row, a
walk through it would take the same steps and end where the next row begins.

Called by ``invalidator.keyplan``, which walks through the rows wherever this says that they are not alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from invalidator.columnstep import Step

EVENT_BYTES_MIN: Final = 512
"""A smaller event has too few rows to win anything."""

ROWS_MIN: Final = 8
PAUSE_EVENTS: Final = 31
"""Events of one shape that are not looked at after one whose rows were not alike."""

LAYOUTS_MAX: Final = 8
"""Layouts of one shape that are remembered. A column of variable length may give a new one with every event."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One row: its size; the bytes (offset, value) of its NULL bitmaps and lengths; where each value is (offset,
    size), None for NULL. Values have the names of `freshness` rows' variables: image letter and column number."""

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

    def format(self, wanted: Mapping[str, Step]) -> tuple[struct.Struct, list[str], list[str]]:
        """What unpacks one row, to the values of these names in the order of the first list; the second: NULLs."""
        codes, found, nulls, at = ["<"], [], [], 0
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
        return struct.Struct("".join(codes)), found, nulls


def find_layout(
    images: Sequence[tuple[str, Sequence[int]]], steps: Sequence[Step], packet: bytes, start: int, end: int
) -> Layout | None:
    """The layout of the row at ``start``; None where it does not end before ``end``, or is one of few.

    ``images``: their letters, and the columns in them.
    """
    marks: list[tuple[int, int]] = []
    values: list[tuple[str, tuple[int, int] | None]] = []
    place = start
    for letter, columns in images:
        bitmap = packet[place : place + (len(columns) + 7) // 8]
        marks += _marks(place - start, bitmap)
        place += len(bitmap)
        nulls = int.from_bytes(bitmap, "little")
        for index, column in enumerate(columns):
            step, name = steps[column], f"{letter}{column}"
            if nulls >> index & 1:
                values.append((name, None))
                continue
            size = step.size
            if not step.is_fixed:
                length = packet[place : place + size]
                marks += _marks(place - start, length)
                place += size
                size = int.from_bytes(length, "little")
            values.append((name, (place - start, size)))
            place += size
    if (place - start) * ROWS_MIN > end - start:
        return None
    return Layout(place - start, tuple(marks), tuple(values))


def _marks(offset: int, taken: bytes) -> Iterator[tuple[int, int]]:
    return ((offset + index, byte) for index, byte in enumerate(taken))
