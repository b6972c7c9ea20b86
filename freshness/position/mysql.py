"""MySQL GTID sets, tags included.

A set maps each ``uuid`` or ``uuid:tag`` to its numbers. The numbers are one flat, strictly rising tuple of
borders ``(first, past_last, first, past_last, …)``, so that "is n in it" is one bisect (an odd place is
inside), and the hot path (a stream's prefix takes one more transaction, once per transaction) copies a
small dict and a tuple.

Never talks to a server, and never guesses: text or bytes that do not parse raise `FormatError`.
Called through ``freshness.position``.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from freshness.errors import FlavorMismatch, FormatError
from freshness.position.order import Position
from freshness.position.varint import ByteReader, append_varint, varint

Borders: TypeAlias = tuple[int, ...]
"""Strictly rising: start and end (exclusive) of each interval. Neighbours that touch are one interval."""

GTID_NUMBER_MAX: Final = (1 << 63) - 1
TAG_LENGTH_MAX: Final = 32
ENCODED_MYSQL: Final = 0x11
"""First byte of the binary form: version 1 (high half), MySQL (low half)."""

_VITESS_PREFIX = "MySQL56/"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}", re.ASCII)
_INTERVAL = re.compile(r"([0-9]{1,19})(?:\s*-\s*([0-9]{1,19}))?", re.ASCII)
_LOOKS_MARIADB = re.compile(r"(?:MariaDB/)?\s*[0-9]+-[0-9]+-[0-9]+\s*(?:,|$)", re.ASCII)
_EXPECTED = "expected uuid:1-5 or uuid:tag:1-5, several separated by commas"


class MysqlGtidSet(Position):
    """A set of MySQL GTIDs, as ``@@global.gtid_executed`` prints it."""

    __slots__ = ("_borders", "_encoded", "_hash")

    flavor = "mysql"

    _borders: Mapping[str, Borders]
    _encoded: bytes | None
    _hash: int | None

    def __init__(self) -> None:
        """The empty set. Others come from `of`, `parse`, `decode` and the set operations."""
        self._borders = {}
        self._encoded = None
        self._hash = None

    @classmethod
    def of(cls, sid: str, number: int, tag: str = "") -> MysqlGtidSet:
        """The set of one GTID. Raises `FormatError` for a sid that is not a UUID, or a bad tag or number."""
        if not 1 <= number <= GTID_NUMBER_MAX:
            raise FormatError(f"GTID number {number} of {sid}", hint=f"expected 1 to {GTID_NUMBER_MAX}")
        return _from_borders({_source_of(sid, tag): (number, number + 1)})

    @classmethod
    def parse(cls, text: str) -> MysqlGtidSet:
        """Read a GTID set. Blanks, line breaks, upper case, repeated UUIDs are accepted; "" is the empty set. Raises
        `FormatError`; `FlavorMismatch` if the text is a MariaDB position."""
        return _from_borders(_parse_sources(text))

    @classmethod
    def decode(cls, data: bytes) -> MysqlGtidSet:
        """Read what `encode` wrote. Raises `FormatError` for anything else."""
        position = _from_borders(_decode_sources(data))
        position._encoded = bytes(data)
        return position

    def encode(self) -> bytes:
        """See `Position.encode`. Kept after the first call."""
        if self._encoded is None and len(self._borders) == 1:
            [(source, borders)] = self._borders.items()
            if len(borders) == 2:
                start, end = borders
                self._encoded = b"%b%b%b" % (_lone_start(source), varint(start - 1), varint(end - start - 1))
        if self._encoded is None:
            out = bytearray((ENCODED_MYSQL,))
            append_varint(out, len(self._borders))
            for source in sorted(self._borders) if len(self._borders) > 1 else self._borders:
                _append_source(out, source, self._borders[source])
            self._encoded = bytes(out)
        return self._encoded

    def contains(self, other: Position) -> bool:
        if not isinstance(other, MysqlGtidSet):
            return False
        for source, wanted in other._borders.items():
            mine = self._borders.get(source)
            if mine is None or not (mine is wanted or _covers(mine, wanted)):
                return False
        return True

    def union(self, other: Position) -> MysqlGtidSet:
        large, small = self, _same_flavor(other)
        if len(large._borders) < len(small._borders):
            large, small = small, large
        merged: dict[str, Borders] | None = None
        for source, added in small._borders.items():
            before = large._borders.get(source)
            after = added if before is None else _unite(before, added)
            if after is not before:
                if merged is None:
                    merged = dict(large._borders)
                merged[source] = after
        return large if merged is None else _from_borders(merged)

    def union_all(self, others: Iterable[Position]) -> MysqlGtidSet:
        """See `Position.union_all`. Neighbours in a log follow one another, so they are first made one interval."""
        runs: dict[str, list[int]] = {}
        for other in others:
            for source, added in _same_flavor(other)._borders.items():
                run = runs.get(source)
                if run is None:
                    runs[source] = list(added)
                elif added[0] == run[-1]:
                    run[-1:] = added[1:]
                elif added[0] > run[-1]:
                    run += added
                else:
                    runs[source] = list(_unite(tuple(run), added))
        return self.union(_from_borders({source: tuple(run) for source, run in runs.items()}))

    def intersection(self, other: Position) -> MysqlGtidSet:
        theirs = _same_flavor(other)._borders
        common = {
            source: _intersect(borders, theirs[source])
            for source, borders in self._borders.items()
            if source in theirs
        }
        return _from_borders({source: borders for source, borders in common.items() if borders})

    def fill_gaps(self, streamed: Position) -> MysqlGtidSet:
        """See `Position.fill_gaps`: self ∪ (hull of self ∩ streamed), the hull taken per uuid and tag."""
        known = _same_flavor(streamed)._borders
        filled: dict[str, Borders] = dict(self._borders)
        for source, borders in self._borders.items():
            if len(borders) > 2 and source in known:
                inside = _intersect(known[source], (borders[0], borders[-1]))
                filled[source] = _unite(borders, inside) if inside else borders
        return _from_borders(filled)

    def subtract(self, other: Position) -> MysqlGtidSet:
        """The transactions that are not in ``other``. Raises `FlavorMismatch` for another flavor."""
        theirs = _same_flavor(other)._borders
        left = {
            source: _cut(borders, theirs[source]) if source in theirs else borders
            for source, borders in self._borders.items()
        }
        return _from_borders({source: borders for source, borders in left.items() if borders})

    def by_source(self) -> dict[str, Position]:
        parts: dict[str, dict[str, Borders]] = {}
        for source in sorted(self._borders):
            parts.setdefault(source.partition(":")[0], {})[source] = self._borders[source]
        return {uuid: _from_borders(borders) for uuid, borders in parts.items()}

    def intervals(self) -> dict[str, tuple[tuple[int, int], ...]]:
        return {
            source: tuple((start, end - 1) for start, end in _intervals(self._borders[source]))
            for source in sorted(self._borders)
        }

    @property
    def is_empty(self) -> bool:
        return not self._borders

    @property
    def interval_count(self) -> int:
        return sum(map(len, self._borders.values())) // 2

    def __str__(self) -> str:
        by_uuid: dict[str, list[str]] = {}
        for source in sorted(self._borders):
            uuid, _, tag = source.partition(":")
            parts = by_uuid.setdefault(uuid, [uuid])
            if tag:
                parts.append(tag)
            for start, end in _intervals(self._borders[source]):
                parts.append(str(start) if end == start + 1 else f"{start}-{end - 1}")
        return ",".join(":".join(parts) for parts in by_uuid.values())

    def __repr__(self) -> str:
        return f"MysqlGtidSet({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MysqlGtidSet) and self._borders == other._borders

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._borders.items()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (MysqlGtidSet.decode, (self.encode(),))


def _from_borders(borders: Mapping[str, Borders]) -> MysqlGtidSet:
    position = MysqlGtidSet.__new__(MysqlGtidSet)  # a busy log needs it 100,000 times a second
    position._borders, position._encoded, position._hash = borders, None, None
    return position


def _same_flavor(other: Position) -> MysqlGtidSet:
    if not isinstance(other, MysqlGtidSet):
        raise FlavorMismatch(
            f"a MySQL GTID set cannot be combined with a {other.flavor} position {str(other)[:80]!r}",
            hint="keep the positions of each lineage apart",
        )
    return other


def _covers(borders: Borders, wanted: Borders) -> bool:
    """True iff every interval of ``wanted`` lies inside one interval of ``borders``."""
    for index in range(0, len(wanted), 2):
        place = bisect_right(borders, wanted[index])
        if not place & 1 or borders[place] < wanted[index + 1]:
            return False
    return True


def _unite(borders: Borders, added: Borders) -> Borders:
    """The union; ``borders`` itself if nothing is new. Quick where ``added`` has few intervals."""
    if len(added) > len(borders):
        borders, added = added, borders
    if len(added) > 16:
        return _unite_long(borders, added)
    for index in range(0, len(added), 2):
        borders = _unite_interval(borders, added[index], added[index + 1])
    return borders


def _unite_interval(borders: Borders, start: int, end: int) -> Borders:
    last = borders[-1]
    if start == last:  # the next transaction of this source: nearly every call
        return (*borders[:-1], end)
    if start > last:
        return (*borders, start, end)
    inside = bisect_right(borders, start)
    if inside & 1 and end <= borders[inside]:
        return borders
    left, right = bisect_left(borders, start), bisect_right(borders, end)
    new_start = () if left & 1 else (start,)  # an odd place is inside or at the end of an interval
    new_end = () if right & 1 else (end,)
    return borders[:left] + new_start + new_end + borders[right:]


def _unite_long(one: Borders, two: Borders) -> Borders:
    merged = _from_intervals([*_intervals(one), *_intervals(two)])
    return one if merged == one else merged


def _intersect(one: Borders, two: Borders) -> Borders:
    """The common numbers, () if there are none."""
    common: list[int] = []
    i = j = 0
    while i < len(one) and j < len(two):
        start, end = max(one[i], two[j]), min(one[i + 1], two[j + 1])
        if start < end:
            common += (start, end)
        if one[i + 1] < two[j + 1]:
            i += 2
        else:
            j += 2
    return tuple(common)


def _cut(borders: Borders, removed: Borders) -> Borders:
    """The numbers that are not in ``removed``, () if none is left."""
    kept = (1, *removed) if removed[0] > 1 else removed[1:]  # borders of all other numbers, but for their end
    return _intersect(borders, (*kept, max(borders[-1], removed[-1]) + 1))


def _intervals(borders: Borders) -> Iterable[tuple[int, int]]:
    return zip(borders[::2], borders[1::2], strict=True)


def _from_intervals(intervals: list[tuple[int, int]]) -> Borders:
    """Borders of intervals in any order that may overlap or touch."""
    borders: list[int] = []
    for start, end in sorted(intervals):
        if borders and start <= borders[-1]:
            borders[-1] = max(borders[-1], end)
        else:
            borders += (start, end)
    return tuple(borders)


@lru_cache(maxsize=1024)
def _source_of(sid: str, tag: str) -> str:
    """The dict key of a source: ``uuid`` or ``uuid:tag``, lower case, so that sorting keys sorts the text."""
    uuid, name = sid.strip().lower(), tag.strip().lower()
    if not _UUID.fullmatch(uuid):
        raise FormatError(
            f"source id {sid[:60]!r} is not a UUID",
            hint="expected 8-4-4-4-12 hexadecimal digits, as in 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5",
        )
    if name and not _TAG.fullmatch(name):
        raise FormatError(
            f"GTID tag {tag[:60]!r} of {uuid}",
            hint=f"expected a letter or _ and then letters, digits, _; at most {TAG_LENGTH_MAX} characters",
        )
    return f"{uuid}:{name}" if name else uuid


def _parse_sources(text: str) -> dict[str, Borders]:
    if _LOOKS_MARIADB.match(text.strip()):
        raise FlavorMismatch(
            f"{text.strip()[:80]!r} is not a MySQL GTID set",
            hint='it looks like a MariaDB position; is the keyspace\'s flavor "mariadb"?',
        )
    text = text.strip().removeprefix(_VITESS_PREFIX).strip()
    found: dict[str, list[tuple[int, int]]] = {}
    for item in text.split(",") if text else ():
        _parse_item(item.strip(), found)
    return {source: _from_intervals(intervals) for source, intervals in found.items()}


def _parse_item(item: str, found: dict[str, list[tuple[int, int]]]) -> None:
    """Read ``uuid[:tag]:interval…[:tag:interval…]``: a tag holds for the intervals after it."""
    sid, *parts = (part.strip() for part in item.split(":"))
    source = _source_of(sid, "")
    is_waiting = True  # for the first interval of a source or tag
    for part in parts:
        if part[:1].isdigit():
            found.setdefault(source, []).append(_parse_interval(part, item))
            is_waiting = False
        elif not part or (is_waiting and ":" in source):
            raise FormatError(f"no numbers before {part[:60]!r} in {item[:120]!r}", hint=_EXPECTED)
        else:
            source = _source_of(sid, part)
            is_waiting = True
    if is_waiting:
        raise FormatError(f"no numbers at the end of {item[:120]!r}", hint=_EXPECTED)


def _parse_interval(part: str, item: str) -> tuple[int, int]:
    match = _INTERVAL.fullmatch(part)
    if match is None:
        raise FormatError(f"interval {part[:60]!r} in {item[:120]!r}", hint=_EXPECTED)
    first = int(match[1])
    last = int(match[2] or first)
    if not 1 <= first <= last <= GTID_NUMBER_MAX:
        raise FormatError(
            f"interval {part!r} in {item[:120]!r}",
            hint=f"numbers start at 1, end at {GTID_NUMBER_MAX}, and the first is not above the last",
        )
    return first, last + 1


@lru_cache(maxsize=1024)
def _source_head(source: str) -> bytes:
    """The uuid and the tag, as they stand before the numbers."""
    uuid, _, tag = source.partition(":")
    return bytes.fromhex(uuid.replace("-", "")) + bytes((len(tag),)) + tag.encode("ascii")


@lru_cache(maxsize=1024)
def _lone_start(source: str) -> bytes:
    """The bytes before the interval of a set of one interval, as each transaction's own position is."""
    return bytes((ENCODED_MYSQL, 1)) + _source_head(source) + bytes((1,))


def _append_source(out: bytearray, source: str, borders: Borders) -> None:
    out += _source_head(source)
    append_varint(out, len(borders) // 2)
    before = 0
    for border in borders:  # borders rise strictly and start at 1: each step is at least 1
        append_varint(out, border - before - 1)
        before = border


def _decode_sources(data: bytes) -> dict[str, Borders]:
    reader = ByteReader(data, "MySQL GTID set")
    if reader.read_byte() != ENCODED_MYSQL:
        raise reader.error(f"starts with {data[0]:#04x}, expected {ENCODED_MYSQL:#04x}")
    found: dict[str, Borders] = {}
    before = ""
    for _ in range(reader.read_varint()):
        source, borders = _read_source(reader)
        if source <= before:
            raise reader.error(f"has its sources out of order at byte {reader.offset}")
        found[source] = borders
        before = source
    reader.finish()
    return found


def _read_source(reader: ByteReader) -> tuple[str, Borders]:
    uuid = _format_uuid(reader.read_bytes(16))
    tag = reader.read_bytes(reader.read_byte()).decode("latin-1")
    if tag and not _TAG.fullmatch(tag):
        raise reader.error(f"has a malformed tag that ends at byte {reader.offset}")
    count = reader.read_varint()
    if count == 0:
        raise reader.error(f"has a source without numbers at byte {reader.offset}")
    borders: list[int] = []
    last = 0
    for _ in range(2 * count):
        last += reader.read_varint() + 1
        if last > GTID_NUMBER_MAX + 1:
            raise reader.error(f"has a GTID number above {GTID_NUMBER_MAX} at byte {reader.offset}")
        borders.append(last)
    return (f"{uuid}:{tag}" if tag else uuid), tuple(borders)


@lru_cache(maxsize=1024)
def _format_uuid(binary: bytes) -> str:
    digits = binary.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
