"""Stamps made one by one, as the reference of those that are made of columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from spark.audit.kernel.placement import lacks
from spark.audit.model.row import BELOW_FLOOR, PlacedStamp
from spark.audit.model.timeline import MALFORMED, NO_ARCHIVE, NOTHING, Lineage, Place


def read_stamps(
    lineages: Mapping[str, Lineage],
    names: Sequence[str],
    epochs: Sequence[str],
    lives: Sequence[bytes],
    positions: Sequence[str],
    floors: Sequence[str] = (),
) -> tuple[list[PlacedStamp], int]:
    """(stamps, `BELOW_FLOOR` or 0) of the lists of an action."""
    if any(len(part) != len(names) for part in (epochs, lives, positions)):
        return [PlacedStamp(0, NOTHING, Place(0, (), MALFORMED))], 0
    stamps, flags = [], 0
    for at, name in enumerate(names):
        lineage, life = lineages.get(name), int.from_bytes(lives[at], "big", signed=True)
        place = Place(0, (), NO_ARCHIVE) if lineage is None else _place(lineage, epochs[at], positions[at])
        number = 0 if lineage is None else lineage.number
        stamps.append(PlacedStamp(number, life if lives[at] else NOTHING, place))
        if lineage is not None and at < len(floors) and lacks(lineage.flavor, positions[at], floors[at]):
            flags = BELOW_FLOOR
    return stamps, flags


def pack_stamps(stamps: Iterable[PlacedStamp]) -> bytes:
    """The reverse of `unpack_stamps`."""
    parts = []
    for lineage, life, (prefix, extras, flags) in stamps:
        parts.append(struct.pack(f"<qqqiI{len(extras)}q", lineage, life, prefix, flags, len(extras), *extras))
    return b"".join(parts)


def _place(lineage: Lineage, epoch: str, position: str) -> Place:
    return lineage.place(int(epoch), position) if epoch.isdigit() else Place(0, (), MALFORMED)
