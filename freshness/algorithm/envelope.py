"""The bytes of the items in the cache (docs/wire-format.md; golden bytes are under test).

Five kinds of item exist, each beginning with the same three bytes, magic, version and kind:

* a **filled** entry, under the object's key: the value, its position, and the life of the node. In place of a large
  value stands the manifest of its **parts**, which are items of their own (``freshness.algorithm.parts``);
* a **stripe**, one of a fixed number per node and lineage: the position that a fill of its keys must contain. It is
  **pending** while it is put back;
* a **node record** and its **resume copy**, one of each per lineage, in the node they speak of.

A **stub** (the advisory lease on a miss) is the empty item that memcached itself makes, so it has no envelope.
Invalidators append to stripes, be they whole or pending.
Bytes that do not parse raise `FormatError` here and are never a hit. No pickle: a shared cache must not be
able to run code in the application.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Final
from zlib import crc32

from freshness.algorithm.request import Item, Reply
from freshness.errors import FormatError
from freshness.position import Position, decode_position, empty_position
from freshness.position.wire import WireReader, Writer

MAGIC: Final = 0xFA
FORMAT_VERSION: Final = 3
LIFE_SIZE: Final = 8
STUB: Final = b""
LINEAGES_MAX: Final = 255
BEYOND_BYTES_MAX: Final = 255
CHUNK_BYTES_MAX: Final = 4096
"""A position that takes more is appended to no stripe; the stripe is deleted in its place, which is always safe."""


class Kind(IntEnum):
    FILLED = 1
    ABSENT_ROW = 2
    STRIPE = 3
    RECORD = 4
    PENDING = 5
    PARTED = 6
    PART = 7


_OPEN: Final = 1
_HAS_STARTS: Final = 2
"""Flags of a record."""

_unpack_u32: Final = struct.Struct(">I").unpack_from
_HEAD: Final = {kind: bytes((MAGIC, FORMAT_VERSION, kind)) for kind in Kind}
PART_HEAD: Final = _HEAD[Kind.PART]


def _open(data: bytes, *kinds: Kind) -> tuple[Kind, WireReader]:
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
            return kind, WireReader(data, "envelope", 3)
    raise FormatError(f"item of kind {data[2]} where {' or '.join(kind.name for kind in kinds)} was expected")


@dataclass(frozen=True, slots=True)
class Stamp:
    """From which state of one lineage an entry was read, and in which life of its node it was stored.

    The value has all events of its key in ``position``, and none beyond ``until``; None: it is not known how far."""

    lineage: str
    life: bytes
    epoch: int
    position: Position
    until: Position | None = None

    def encode_beyond(self) -> bytes:
        """``until`` less ``position``; no bytes if it is unknown, or far."""
        beyond = b"" if self.until is None else self.until.subtract(self.position).encode()
        return beyond if len(beyond) <= BEYOND_BYTES_MAX else b""

    def with_beyond(self, beyond: bytes) -> Stamp:
        """The stamp whose `encode_beyond` this is."""
        return replace(self, until=self.position.union(decode_position(beyond))) if beyond else self


@dataclass(frozen=True, slots=True)
class Filled:
    """A value with the evidence of its freshness. ``value`` is None for "no such row".

    ``is_parted``: the value is in parts, and its manifest stands here, see `freshness.algorithm.parts.Manifest`.
    """

    stamps: tuple[Stamp, ...]
    identity: bytes
    value: bytes | None
    is_parted: bool = False

    def encode(self) -> bytes:
        kind = Kind.PARTED if self.is_parted else Kind.FILLED
        writer = Writer(_HEAD[Kind.ABSENT_ROW if self.value is None else kind])
        writer.u8(len(self.stamps))
        for stamp in self.stamps:
            writer.short(stamp.lineage.encode())
            writer.raw(stamp.life)
            writer.u64(stamp.epoch)
            writer.long(stamp.position.encode())
        writer.long(self.identity)
        for stamp in self.stamps:
            writer.short(stamp.encode_beyond())
        if self.value is not None:
            writer.raw(self.value)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Filled:
        kind, reader = _open(data, Kind.FILLED, Kind.ABSENT_ROW, Kind.PARTED)
        stamps = tuple(
            Stamp(reader.read_name(), reader.read_bytes(LIFE_SIZE), reader.u64(), decode_position(reader.long()))
            for _ in range(reader.u8())
        )
        if not stamps:
            raise FormatError("an entry without a position")
        identity = reader.long()
        stamps = tuple(stamp.with_beyond(reader.read_bytes(reader.u8())) for stamp in stamps)
        if kind is not Kind.ABSENT_ROW:
            return cls(stamps, identity, reader.rest(), kind is Kind.PARTED)
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

    None if the rest does not fit: the caller then takes the slow path, whose error says why.
    """
    at = prefix_size + 8
    position_end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    identity_at = position_end + 4
    identity_end = identity_at + int.from_bytes(data[position_end:identity_at], "big")
    if identity_end >= len(data):
        return None
    value_at = identity_end + 1 + data[identity_end]
    return data[at + 4 : position_end], data[identity_at:identity_end], value_at


def find_live_value(data: bytes, beginning: bytes, identity: bytes) -> int:
    """The offset of the value in an entry that begins with this `live_prefix`. 0 if it does not, or is of another
    identity, or does not fit."""
    if not data.startswith(beginning):
        return 0
    at = len(beginning) + 8
    try:
        (position_size,) = _unpack_u32(data, at)
    except struct.error:
        return 0
    identity_at = at + 4 + position_size
    wanted = len(identity).to_bytes(4, "big") + identity
    if not data.startswith(wanted, identity_at):
        return 0
    beyond_at = identity_at + len(wanted)
    value_at = beyond_at + 1 + data[beyond_at] if beyond_at < len(data) else 0
    return value_at if value_at <= len(data) else 0


@dataclass(frozen=True, slots=True)
class Stripe:
    """The position that every fill of this stripe's keys must contain, besides the record's floor.

    Its bytes are a head and chunks: (length, life, position). Invalidators append chunks. The first chunk names the
    ``life`` in which the stripe was put back; ``position`` is the union of the chunks of that life. Chunks of another
    life come from a paused invalidator and count for nothing (I5). ``chunk_count`` has all of them.
    """

    life: bytes
    position: Position
    chunk_count: int = 1

    def encode(self) -> bytes:
        return _HEAD[Kind.STRIPE] + encode_chunk(self.life, self.position)

    @classmethod
    def decode(cls, data: bytes) -> Stripe:
        _, reader = _open(data, Kind.STRIPE)
        chunks = _read_chunks(reader)
        if not chunks:
            raise FormatError("a stripe without a chunk")
        life, position = chunks[0]
        return cls(life, _unite(position, life, chunks[1:]), len(chunks))


@dataclass(frozen=True, slots=True)
class PendingStripe:
    """A stripe that is being put back, and refuses until then; ``chunks`` holds the appends in between.

    ``nonce``: random bytes of the put-back. As long as it stands here, the item has not been absent since.
    """

    nonce: bytes
    chunks: tuple[tuple[bytes, Position], ...] = ()

    def encode(self) -> bytes:
        """Without the chunks: those are appended."""
        return _HEAD[Kind.PENDING] + self.nonce

    @classmethod
    def decode(cls, data: bytes) -> PendingStripe:
        _, reader = _open(data, Kind.PENDING)
        return cls(reader.read_bytes(LIFE_SIZE), tuple(_read_chunks(reader)))

    def complete(self, life: bytes, position: Position) -> Stripe:
        """The stripe of ``life`` with ``position`` and all that was appended in this life."""
        return Stripe(life, _unite(position, life, self.chunks))


def _read_chunks(reader: WireReader) -> list[tuple[bytes, Position]]:
    chunks = []
    while reader.offset < len(reader.data):
        chunks.append(_decode_chunk(reader.read_bytes(reader.count())))
    return chunks


def _unite(position: Position, life: bytes, chunks: Iterable[tuple[bytes, Position]]) -> Position:
    more = [other for name, other in chunks if name == life]
    if any(other.flavor != position.flavor for other in more):
        raise FormatError("a stripe with positions of two flavors")
    return position.union_all(more) if more else position


def encode_chunk(life: bytes, position: Position) -> bytes:
    """The bytes to append to a stripe. More than `CHUNK_BYTES_MAX` must not be appended."""
    encoded = position.encode()
    return b"%b%b%b" % (min(LIFE_SIZE + len(encoded), 0xFFFF).to_bytes(2, "big"), life, encoded)


@lru_cache(maxsize=256)
def _decode_chunk(data: bytes) -> tuple[bytes, Position]:
    """(life, position) of a chunk; stripes that were changed by one batch share it."""
    if len(data) <= LIFE_SIZE:
        raise FormatError(f"a chunk of {len(data)} bytes")
    return data[:LIFE_SIZE], decode_position(data[LIFE_SIZE:])


def find_stripe(data: bytes, life: bytes) -> Stripe | None:
    """The stripe in the bytes of an item; None for a stub, foreign bytes, and a stripe of another life."""
    try:
        stripe = Stripe.decode(data)
    except FormatError:
        return None
    return stripe if stripe.life == life else None


def is_within(data: bytes, life: bytes, position: Position, known: set[bytes]) -> bool:
    """Whether the bytes are a stripe of ``life`` that ``position`` contains.

    ``known``: chunks that are known to be within it, with their lengths; more are added here. Many stripes have the
    same chunks.
    """
    start, end = len(_HEAD[Kind.STRIPE]), len(data)
    if not data.startswith(_HEAD[Kind.STRIPE]) or not data.startswith(life, start + 2):
        return False
    size = 2 + int.from_bytes(data[start : start + 2], "big")
    if known.issuperset([data[at : at + size] for at in range(start, end, size)]):
        return True  # nearly always: chunks of one size, each with its length before it
    while start < end:
        size = 2 + int.from_bytes(data[start : start + 2], "big")
        chunk = data[start : start + size]
        if chunk not in known:
            if len(chunk) < size:
                return False
            try:
                name, held = _decode_chunk(chunk[2:])
            except FormatError:
                return False
            if name == life and not position.contains(held):
                return False
            known.add(chunk)
        start += size
    return True


def stripe_number(item: bytes, stripes: int) -> int:
    """Which of a lineage's ``stripes`` protects the key ``item``."""
    return crc32(item) % stripes


def stripe_numbers(items: Iterable[bytes], stripes: int) -> set[int]:
    """`stripe_number` of each, without a call for each of the thousands of a batch."""
    return {crc32(item) % stripes for item in items}


def stripe_key(namespace: str, lineage: str, number: int) -> bytes:
    """Key of a stripe, on the node of the keys that it protects."""
    return b"%b!%x" % (record_key(namespace, lineage), number)


@lru_cache(maxsize=64)
def stripe_keys(namespace: str, lineage: str, stripes: int) -> tuple[bytes, ...]:
    """The keys of all stripes of a lineage, by number; made once, for those who write many."""
    return tuple(stripe_key(namespace, lineage, number) for number in range(stripes))


def wanted_key(namespace: str, lineage: str) -> bytes:
    """Key of the list of stripes that were found missing: 4 bytes for each number, appended by those who saw it."""
    return f"{namespace}:!{lineage}!wanted".encode()


def previous_reader_key(namespace: str, lineage: str, ring: int) -> bytes:
    """Key of the name of a process that reads by this ring, which the record serves beside its present one."""
    return f"{namespace}:!{lineage}!ring:{ring:08x}".encode()


def encode_wanted(numbers: Iterable[int]) -> bytes:
    return b"".join([number.to_bytes(4, "big") for number in numbers])


def decode_wanted(data: bytes) -> list[int]:
    """The numbers, without an incomplete one at the end."""
    return [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data) - 3, 4)]


@dataclass(frozen=True, slots=True)
class Coverage:
    """An object that the invalidator covers from ``start`` on. ``fingerprint``: hash of its definition (F70)."""

    fingerprint: int
    start: Position


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The trust in one node for one lineage, kept in that node (docs/concepts.md#one-record-for-a-node).

    ``tenure``: a nonce of one unbroken keeping of the record; another one says that the record lapsed in between.
    ``is_open``: fills and hits are allowed. ``as_of_us``: wall clock of the primary's heartbeat that this state has
    applied; a reader's clock may refuse for it, and never allow (F105). ``heartbeat_age_ms``: the largest age that
    this heartbeat can have when the record expires, by the invalidator's own clock; less the TTL that is left it
    bounds the staleness of hits. ``node``: the name of the node as configured, so that two names of one server never
    share a record. ``stripes``: number of stripes of the lineage on this node, fixed for the life. ``floor``: the
    position at which the life began; it never moves. ``primary``: the identity of the primary whose history the
    record follows (F101). ``topology``: the number of the configuration under which it was written; it only rises
    (F102). ``ring``: a ring that is served, which is for the whole life unless it has a start. ``starts``: rings that
    are served from a position on, empty for the whole life. ``is_settling``: a ring or an object has left, and
    readers may still have a copy of the record that names it: progress waits for them.
    """

    lineage: str
    life: bytes
    tenure: bytes
    is_open: bool
    epoch: int
    ring: int
    as_of_us: int
    heartbeat_age_ms: int
    node: str
    stripes: int
    progress: Position
    floor: Position
    table_floors: Mapping[str, Position] = field(default_factory=dict)
    objects: Mapping[str, Coverage] = field(default_factory=dict)
    primary: str = ""
    topology: int = 1
    starts: Mapping[int, Position] = field(default_factory=dict)
    is_settling: bool = False

    @property
    def rings(self) -> Set[int]:
        return {self.ring, *self.starts}

    def find_start(self, rings: Iterable[int]) -> Position | None:
        """From where on this node is sent every event of a key that all of these rings place here: the lowest of
        their starts, empty for the whole life. None: it serves none of them."""
        lowest: Position | None = None
        for ring in rings:
            if ring == self.ring or ring in self.starts:
                start = self.starts.get(ring) or empty_position(self.floor.flavor)
                if lowest is None or lowest.contains(start):
                    lowest = start
        return lowest

    def find_coverage(self, name: str, fingerprint: int) -> Coverage | None:
        """None: the invalidators do not cover the object, or not in that definition."""
        coverage = self.objects.get(name)
        return coverage if coverage is not None and coverage.fingerprint == fingerprint else None

    def encode(self) -> bytes:
        writer = Writer(_HEAD[Kind.RECORD])
        writer.short(self.lineage.encode())
        writer.raw(self.life)
        writer.raw(self.tenure)
        has_starts = bool(self.starts) or self.is_settling
        writer.u8((_OPEN if self.is_open else 0) | (_HAS_STARTS if has_starts else 0))
        writer.u64(self.epoch)
        writer.u32(self.ring)
        writer.i64(self.as_of_us)
        writer.u32(min(self.heartbeat_age_ms, 0xFFFFFFFF))
        writer.short(self.node.encode())
        writer.u32(self.stripes)
        writer.short(self.primary.encode())
        writer.u32(self.topology)
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
        if has_starts:
            writer.u8(1 if self.is_settling else 0)
            writer.count(len(self.starts))
            for ring, start in sorted(self.starts.items()):
                writer.u32(ring)
                writer.long(start.encode())
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> NodeRecord:
        _, reader = _open(data, Kind.RECORD)
        record = cls(
            lineage=reader.read_name(),
            life=reader.read_bytes(LIFE_SIZE),
            tenure=reader.read_bytes(LIFE_SIZE),
            is_open=bool((flags := reader.u8()) & _OPEN),
            epoch=reader.u64(),
            ring=reader.u32(),
            as_of_us=reader.i64(),
            heartbeat_age_ms=reader.u32(),
            node=reader.read_name(),
            stripes=reader.u32(),
            primary=reader.read_name(),
            topology=reader.u32(),
            progress=decode_position(reader.long()),
            floor=decode_position(reader.long()),
            table_floors={reader.read_name(): decode_position(reader.long()) for _ in range(reader.count())},
            objects={
                reader.read_name(): Coverage(reader.u32(), decode_position(reader.long()))
                for _ in range(reader.count())
            },
        )
        if flags & _HAS_STARTS:
            is_settling = reader.u8() == 1
            starts = {reader.u32(): decode_position(reader.long()) for _ in range(reader.count())}
            record = replace(record, starts=starts, is_settling=is_settling)
        reader.finish()
        return record


def find_record(reply: Reply, node: str) -> NodeRecord | None:
    """The record in a reply; None if it is missing, or the bytes are not a record of this node."""
    if not isinstance(reply, Item):
        return None
    try:
        record = _decode_record(reply.value)
    except FormatError:
        return None
    return record if record.node == node else None


_decode_record = lru_cache(maxsize=64)(NodeRecord.decode)
"""Reads together fetch the record with each read, and it changes with each batch."""


def record_key(namespace: str, lineage: str) -> bytes:
    """Key of the node record. The same on every node: a record is read from the node it describes."""
    return f"{namespace}:!{lineage}".encode()


def resume_key(namespace: str, lineage: str) -> bytes:
    """Key of the record's copy without TTL, which serves only to resume."""
    return f"{namespace}:!{lineage}!resume".encode()
