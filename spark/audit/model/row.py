"""Rows as they travel to the replay: a change of an item, or an action of a client or an invalidator on it.

One frame carries both, since the replay needs both in one order. A row holds kinds and flags as numbers, names as
hashes, and positions as packed stamps, so that no text goes through the shuffle. `spark.audit.input.actions` makes
the rows, `spark.audit.shuffle.state` keeps them for the next audit, and `spark.audit.judge.replay` judges them.
Plain Python.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

import numpy

from spark.audit.model.finding import Reference
from spark.audit.model.timeline import Place

CHANGE, INVALIDATION, FILL, HIT = range(4)
"""Kinds of rows, in the order in which they come."""

ROW: Final = 1
"""A change: the item's whole value is the row."""
AFTER_ABSENT: Final = 2
BEFORE_ABSENT: Final = 4
ABSENT: Final = 8
"""A fill or hit: the value says that the row does not exist."""
UNANSWERED: Final = 16
"""A fill: the node did not answer, so the value may be stored or not."""
SERVED_STALE: Final = 32
"""A hit: the caller asked for values of any age."""
BELOW_FLOOR: Final = 64
"""A fill: its position lacks the floor that came with it."""
JUDGED: Final = 128
"""Judged by an earlier audit: it is only context now."""
CONTEXT: Final = 256
"""Judged in another piece of the same item: it is only context in this one."""

NO_NUMBER: Final = -(1 << 63)
"""Stands for null in a column of integers."""

STAMP: Final = numpy.dtype(
    [("lineage", "<i8"), ("life", "<i8"), ("prefix", "<i8"), ("flags", "<i4"), ("extras", "<u4")]
)
"""A packed stamp; ``extras``: number of ordinals of 8 bytes that follow."""


class AuditedEntry(NamedTuple):
    """The entry that an action was about: its node and CAS version, the digest of its value, and its positions.
    ``who`` is the hash that hits are counted by. ``stamps`` are packed."""

    node: int
    version: int
    digest: int
    flags: int
    who: int
    stamps: bytes


class ActionSpan(NamedTuple):
    """An action: its client, its sequence there, and its times."""

    client: int
    sequence: int
    first_us: int
    last_us: int

    def reference(self, role: str) -> Reference:
        return Reference(role, self.client, self.sequence)


class ReplayRow(NamedTuple):
    """A row of `spark.audit.model.schema.REPLAY`. Null is `NO_NUMBER`, and 0 in a column of 32 bits.

    ``h1``, ``h2``: hashes of the item. A change alone has ``lineage``, ``ordinal``, ``row`` and ``before``; its
    ``begin_us`` is the time of the commit, its ``digest`` that of the row afterwards. An action alone has ``node``,
    ``version``, ``observed`` (the version of the stub that a fill replaced), ``who``, ``client``, ``sequence`` and
    ``stamps``.
    """

    h1: int
    h2: int
    kind: int
    lineage: int
    ordinal: int
    row: int
    node: int
    version: int
    observed: int
    begin_us: int
    end_us: int
    digest: int
    before: int
    flags: int
    who: int
    client: int
    sequence: int
    stamps: bytes

    def entry(self) -> AuditedEntry:
        return AuditedEntry(self.node, self.version, self.digest, self.flags, self.who, self.stamps)

    def span(self) -> ActionSpan:
        return ActionSpan(self.client, self.sequence, self.begin_us, self.end_us)


_STAMP: Final = struct.Struct("<qqqiI")
"""Lineage, life, prefix, flags, and the number of extras, which follow."""


class PlacedStamp(NamedTuple):
    """A position of one lineage, as a row carries it."""

    lineage: int
    life: int
    place: Place


@lru_cache(65536)
def unpack_stamps(data: bytes) -> tuple[PlacedStamp, ...]:
    stamps, at = [], 0
    while at < len(data):
        lineage, life, prefix, flags, count = _STAMP.unpack_from(data, at)
        at += _STAMP.size
        extras = struct.unpack_from(f"<{count}q", data, at)
        at += 8 * count
        stamps.append(PlacedStamp(lineage, life, Place(prefix, extras, flags)))
    return tuple(stamps)
