"""The bytes of the items in the cache (docs/wire-format.md; golden bytes are under test).

Four kinds of item exist, each beginning with the same three bytes, magic, version and kind:

* a **filled** entry, under the object's key: the value, its position, and the life of the node;
* a **tombstone**, under the object's key with ``!`` appended: the positions of recent invalidations;
* a **node record** and its **resume copy**, one of each per lineage, in the node they speak of.

A **stub** (the advisory lease on a miss) is the empty item that memcached itself makes, so it has no envelope.
Bytes that do not parse raise `FormatError` here and are never a hit. No pickle: a shared cache must not be
able to run code in the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

from freshness.errors import FormatError
from freshness.position import Position, decode_position
from freshness.position.wire import Reader, Writer

MAGIC: Final = 0xFA
FORMAT_VERSION: Final = 1
LIFE_SIZE: Final = 8
STUB: Final = b""
LINEAGES_MAX: Final = 255


class Kind(IntEnum):
    FILLED = 1
    ABSENT_ROW = 2
    TOMBSTONE = 3
    RECORD = 4


_HEAD: Final = {kind: bytes((MAGIC, FORMAT_VERSION, kind)) for kind in Kind}


def _open(data: bytes, *kinds: Kind) -> tuple[Kind, Reader]:
    if len(data) < 3 or data[0] != MAGIC:
        raise FormatError(
            f"not one of our items: it begins with {data[:3].hex() or 'nothing'}",
            hint="another program writes under the same keys; give the cache a namespace of its own",
        )
    if data[1] != FORMAT_VERSION:
        raise FormatError(
            f"item of format version {data[1]}, this program reads version {FORMAT_VERSION}",
            hint="an application or invalidator of another release shares this cache",
        )
    for kind in kinds:
        if data[2] == kind:
            return kind, Reader(data, "envelope", 3)
    raise FormatError(f"item of kind {data[2]} where {' or '.join(kind.name for kind in kinds)} was expected")


# -- filled entries ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """From which state of one lineage an entry was read, and in which life of its node it was stored."""

    lineage: str
    life: bytes
    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class Filled:
    """A value with the evidence of its freshness. ``value`` is None for "no such row"."""

    stamps: tuple[Stamp, ...]
    identity: bytes
    value: bytes | None

    def encode(self) -> bytes:
        writer = Writer(_HEAD[Kind.ABSENT_ROW if self.value is None else Kind.FILLED])
        writer.u8(len(self.stamps))
        for stamp in self.stamps:
            writer.short(stamp.lineage.encode())
            writer.raw(stamp.life)
            writer.u64(stamp.epoch)
            writer.long(stamp.position.encode())
        writer.long(self.identity)
        if self.value is not None:
            writer.raw(self.value)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Filled:
        kind, reader = _open(data, Kind.FILLED, Kind.ABSENT_ROW)
        stamps = tuple(
            Stamp(
                reader.read_name(), reader.read_bytes(LIFE_SIZE), reader.u64(), decode_position(reader.long())
            )
            for _ in range(reader.u8())
        )
        if not stamps:
            raise FormatError("an entry without a position")
        identity = reader.long()
        if kind is Kind.FILLED:
            return cls(stamps, identity, reader.rest())
        reader.finish()
        return cls(stamps, identity, None)


def live_prefix(kind: Kind, lineage: str, life: bytes) -> bytes:
    """The first bytes of every entry that depends on one lineage alone and was stored in ``life``.

    The hit path compares this prefix instead of decoding the stamps (see `find_live_value`).
    """
    writer = Writer(_HEAD[kind])
    writer.u8(1)
    writer.short(lineage.encode())
    writer.raw(life)
    return writer.getvalue()


def split_live(data: bytes, prefix_size: int) -> tuple[bytes, bytes, int] | None:
    """(encoded position, identity, offset of the value) of an entry that begins with a `live_prefix`.

    None where the rest does not fit: the caller then takes the slow path, whose error says why.
    """
    at = prefix_size + 8
    position_end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    identity_at = position_end + 4
    identity_end = identity_at + int.from_bytes(data[position_end:identity_at], "big")
    if identity_end > len(data):
        return None
    return data[at + 4 : position_end], data[identity_at:identity_end], identity_end


def find_live_value(data: bytes, prefix_size: int, identity: bytes) -> int:
    """The offset of the value in such an entry; 0 for another identity, or where the rest does not fit."""
    at = prefix_size + 8
    identity_at = at + 4 + int.from_bytes(data[at : at + 4], "big")
    wanted = len(identity).to_bytes(4, "big") + identity
    return identity_at + len(wanted) if data.startswith(wanted, identity_at) else 0


# -- tombstones ----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _tombstone_start(count: int, lineage: str, epoch: int) -> bytes:
    """The first bytes of a tombstone of this many positions, up to its first position."""
    writer = Writer(_HEAD[Kind.TOMBSTONE])
    writer.u8(count)
    writer.short(lineage.encode())
    writer.u64(epoch)
    return writer.getvalue()


def encode_single_tombstone(lineage: str, epoch: int, position: Position) -> bytes:
    """``Tombstone.of(lineage, epoch, position).encode()``, faster, for the thousands of a batch."""
    encoded = position.encode()
    return b"%b%b%b" % (_tombstone_start(1, lineage, epoch), len(encoded).to_bytes(4, "big"), encoded)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The events that invalidated a key lately: a position for each lineage and epoch.

    It only ever grows (F56): see ``union``.
    """

    positions: Mapping[tuple[str, int], Position]

    @classmethod
    def of(cls, lineage: str, epoch: int, position: Position) -> Tombstone:
        return cls({(lineage, epoch): position})

    def contains(self, lineage: str, epoch: int, position: Position) -> bool:
        held = self.positions.get((lineage, epoch))
        return held is not None and held.contains(position)

    def union(self, lineage: str, epoch: int, position: Position) -> Tombstone:
        """This tombstone with ``position`` added.

        Positions of a former epoch of the lineage are dropped: reads of that epoch never fill, and no read of this
        epoch could contain them.
        """
        kept = {key: at for key, at in self.positions.items() if key[0] != lineage or key[1] >= epoch}
        held = kept.get((lineage, epoch))
        return Tombstone({**kept, (lineage, epoch): position if held is None else held.union(position)})

    def encode(self) -> bytes:
        if len(self.positions) == 1:
            (((lineage, epoch), position),) = self.positions.items()
            return encode_single_tombstone(lineage, epoch, position)
        writer = Writer(_HEAD[Kind.TOMBSTONE])
        writer.u8(len(self.positions))
        for (lineage, epoch), position in sorted(self.positions.items(), key=lambda item: item[0]):
            writer.short(lineage.encode())
            writer.u64(epoch)
            writer.long(position.encode())
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Tombstone:
        _, reader = _open(data, Kind.TOMBSTONE)
        positions = {
            (reader.read_name(), reader.u64()): decode_position(reader.long()) for _ in range(reader.u8())
        }
        reader.finish()
        return cls(positions)


# -- node records --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coverage:
    """An object that the invalidator covers from ``start`` on. ``fingerprint``: of its definition (F70)."""

    fingerprint: int
    start: Position


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The trust in one node for one lineage, kept in that node (docs/concepts.md#one-record-for-a-node).

    ``tenure``: a nonce of one unbroken keeping of the record; another one says that the record lapsed in between.
    ``is_open``: fills and hits are allowed. ``as_of_us``: wall clock of the primary's heartbeat that this state has
    applied, for display. ``heartbeat_age_ms``: the age of that heartbeat when the record was written, by the
    invalidator's own clock; with the record's remaining TTL it bounds the staleness of hits. ``losses``: the node's
    counters of lost unevictable items at that time (F67).
    """

    lineage: str
    life: bytes
    tenure: bytes
    is_open: bool
    epoch: int
    ring: int
    as_of_us: int
    heartbeat_age_ms: int
    losses: int
    progress: Position
    floor: Position
    table_floors: Mapping[str, Position] = field(default_factory=dict)
    objects: Mapping[str, Coverage] = field(default_factory=dict)

    def encode(self) -> bytes:
        writer = Writer(_HEAD[Kind.RECORD])
        writer.short(self.lineage.encode())
        writer.raw(self.life)
        writer.raw(self.tenure)
        writer.u8(1 if self.is_open else 0)
        writer.u64(self.epoch)
        writer.u32(self.ring)
        writer.i64(self.as_of_us)
        writer.u32(min(self.heartbeat_age_ms, 0xFFFFFFFF))
        writer.u64(self.losses)
        writer.long(self.progress.encode())
        writer.long(self.floor.encode())
        writer.count(len(self.table_floors))
        for table, position in sorted(self.table_floors.items()):
            writer.short(table.encode())
            writer.long(position.encode())
        writer.count(len(self.objects))
        for name, coverage in sorted(self.objects.items()):
            writer.short(name.encode())
            writer.u32(coverage.fingerprint)
            writer.long(coverage.start.encode())
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> NodeRecord:
        _, reader = _open(data, Kind.RECORD)
        record = cls(
            lineage=reader.read_name(),
            life=reader.read_bytes(LIFE_SIZE),
            tenure=reader.read_bytes(LIFE_SIZE),
            is_open=reader.u8() == 1,
            epoch=reader.u64(),
            ring=reader.u32(),
            as_of_us=reader.i64(),
            heartbeat_age_ms=reader.u32(),
            losses=reader.u64(),
            progress=decode_position(reader.long()),
            floor=decode_position(reader.long()),
            table_floors={reader.read_name(): decode_position(reader.long()) for _ in range(reader.count())},
            objects={
                reader.read_name(): Coverage(reader.u32(), decode_position(reader.long()))
                for _ in range(reader.count())
            },
        )
        reader.finish()
        return record


def record_key(namespace: str, lineage: str) -> bytes:
    """Key of the node record. The same on every node: a record is read from the node it describes."""
    return f"{namespace}:!{lineage}".encode()


def resume_key(namespace: str, lineage: str) -> bytes:
    """Key of the record's copy without TTL, which serves only to resume."""
    return f"{namespace}:!{lineage}!resume".encode()
