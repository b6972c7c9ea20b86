"""MySQL's GTIDs with a tag (8.3): their event in the log, and the sets of them in the request for a stream.

The event is a message of the server's serialization library: a version, its size, the number of the last field that a
reader must know, then fields with rising numbers, each without its type. So all fields up to the commit times are
read, and what follows (length, server versions, a ticket) is not looked at. Numbers have 1 to 9 bytes: as many of the
first byte's lowest bits are set as bytes follow it. Described in "MySQL Serialization Library" of the server's source
documentation, and compared with a real server by the tests.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from freshness.errors import FreshnessError, StreamStopped
from freshness.position import MysqlGtidSet
from invalidator.binlog.wire.event import GroupStart, LogEvent

_VERSION: Final = 1
_FLAGS, _UUID, _NUMBER, _TAG, _LAST_COMMITTED, _SEQUENCE, _COMMITTED, _ORIGINAL = range(8)
_LAST_FIELD: Final = 11
_SET_WITH_TAGS: Final = 1


class TaggedGtid(NamedTuple):
    """``committed_us``: time of its commit on this server; ``original_us``: time of its commit on the server that
    executed it first; both in µs."""

    position: MysqlGtidSet
    committed_us: int
    original_us: int


def parse_tagged_gtid(event: LogEvent) -> GroupStart:
    """Read event 42 as `parse_mysql_gtid` reads 33. Raises `StreamStopped`."""
    gtid = read_tagged_gtid(event)
    return GroupStart(gtid.position, gtid.original_us, in_transaction=False)


def read_tagged_gtid(event: LogEvent) -> TaggedGtid:
    """Raises `StreamStopped` for an event that is cut, or not of the form that is known."""
    try:
        return _Message(event.body).read()
    except (IndexError, ValueError, FreshnessError) as error:
        raise StreamStopped(
            f"event {event.kind} (GTID_TAGGED) at {event.log_pos} cannot be read: {error}",
            hint="this server may be newer than this program; report the event with the server's version",
        ) from error


class _Message:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._place = 0

    def read(self) -> TaggedGtid:
        version, size, must_know = self._read_number(), self._read_number(), self._read_number()
        if version != _VERSION or size != len(self._body) or must_know > _LAST_FIELD:
            raise ValueError(f"version {version}, {size} of {len(self._body)} bytes, field {must_know}")
        self._expect(_FLAGS)
        self._place += 1
        self._expect(_UUID)
        source = uuid.UUID(bytes=bytes(self._read_number() for _ in range(16)))
        self._expect(_NUMBER)
        number = self._read_positive()
        self._expect(_TAG)
        length = self._read_number()
        self._place += length
        tag = self._body[self._place - length : self._place].decode("ascii")
        for field in (_LAST_COMMITTED, _SEQUENCE):
            self._expect(field)
            self._read_number()
        self._expect(_COMMITTED)
        committed_us = original_us = self._read_number()
        if self._place < len(self._body) and self._body[self._place] == _ORIGINAL << 1:
            self._expect(_ORIGINAL)
            original_us = self._read_number()
        if not tag or self._place > len(self._body):
            raise ValueError("the tag is missing, or cut")
        return TaggedGtid(MysqlGtidSet.of(str(source), number, tag), committed_us, original_us)

    def _expect(self, field: int) -> None:
        found = self._read_number()
        if found != field:
            raise ValueError(f"field {found} in place of {field}")

    def _read_positive(self) -> int:
        number = self._read_number()
        if number & 1:
            raise ValueError("a negative number")
        return number >> 1

    def _read_number(self) -> int:
        first = self._body[self._place]
        more = (~first & first + 1).bit_length() - 1  # how many of its lowest bits are set
        end = self._place + 1 + more
        if end > len(self._body):
            raise ValueError("a number is cut")
        whole = int.from_bytes(self._body[self._place : end], "little")
        self._place = end
        return whole >> min(more + 1, 8)


def encode_gtid_set(intervals: Mapping[str, Sequence[tuple[int, int]]]) -> bytes:
    """A set, by ``uuid`` or ``uuid:tag``, as a server reads it: the count of sources, then of each the UUID, the
    count of intervals, and each from … up to below. With tags, which only a server since 8.3 reads, the first number
    names the format, too, and a tag with its length follows each UUID."""
    has_tags = any(":" in source for source in intervals)
    out = [
        struct.pack("<Q", _SET_WITH_TAGS << 56 | len(intervals) << 8 | _SET_WITH_TAGS if has_tags else len(intervals))
    ]
    for source, numbers in intervals.items():
        sid, _, tag = source.partition(":")
        out.append(uuid.UUID(sid).bytes)
        if has_tags:
            out.append(bytes((len(tag) << 1,)) + tag.encode())
        out.append(struct.pack("<Q", len(numbers)))
        out += (struct.pack("<QQ", first, last + 1) for first, last in numbers)
    return b"".join(out)
