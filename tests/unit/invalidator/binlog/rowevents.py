"""Row events, and GTIDs with tags, made by hand, byte by byte, for the tests of what reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from invalidator.binlog.wire.event import LogEvent
from invalidator.binlog.wire.tablemap import (
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    LONG,
    LONGLONG,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TINY,
    VAR_STRING,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
)

TABLE_ID: Final = 77
_HEADER: Final = struct.Struct("<xIBIIIH")
_NUMERIC: Final = (TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR)
_BLOB_TEXT: Final = (252, 140)


@dataclass(frozen=True)
class Made:
    """A column. ``metadata`` as it stands in the event."""

    name: str
    kind: int
    metadata: bytes = b""
    collation: int = 45
    is_unsigned: bool = False
    labels: tuple[bytes, ...] = ()
    is_nullable: bool = True


def integer(name: str, kind: int = LONG, **options: bool) -> Made:
    return Made(name, kind, **options)  # type: ignore[arg-type]


def varchar(name: str, length: int = 30, collation: int = 45) -> Made:
    return Made(name, VARCHAR, length.to_bytes(2, "little"), collation)


def i4(number: int) -> bytes:
    """The field of an INT."""
    return number.to_bytes(4, "little", signed=True)


def packed(number: int) -> bytes:
    if number < 251:
        return bytes((number,))
    return b"\xfc" + number.to_bytes(2, "little")


def text(value: bytes) -> bytes:
    return packed(len(value)) + value


def bits(flags: Sequence[bool]) -> bytes:
    """Lowest first."""
    out = bytearray((len(flags) + 7) // 8)
    for place, flag in enumerate(flags):
        out[place >> 3] |= flag << (place & 7)
    return bytes(out)


def event(kind: int, body: bytes, *, log_pos: int = 4) -> LogEvent:
    """Without a checksum."""
    packet = _HEADER.pack(0, kind, 1, len(body) + 19, log_pos, 0) + body
    return LogEvent(kind, 0, 1, log_pos, 0, packet, 20, len(packet))


def table_map(
    columns: Sequence[Made],
    *,
    flavor: str = "mysql",
    database: str = "shop",
    name: str = "goods",
    table_id: int = TABLE_ID,
    has_names: bool = True,
    has_visibility: bool = True,
    more: bytes = b"",
) -> LogEvent:
    metadata = b"".join(column.metadata for column in columns)
    body = table_id.to_bytes(6, "little") + b"\1\0"
    body += b"".join(bytes((len(each),)) + each.encode() + b"\0" for each in (database, name))
    body += packed(len(columns)) + bytes(STRING if column.kind in (ENUM, SET) else column.kind for column in columns)
    body += packed(len(metadata)) + metadata + bits([column.is_nullable for column in columns])
    signs = [column.is_unsigned for column in columns if column.kind in _NUMERIC]
    if signs:
        # Highest first.
        body += _field(1, bytes(int(f"{byte:08b}"[::-1], 2) for byte in bits(signs)))
    texts = [column.collation for column in columns if _is_text(column.kind, flavor)]
    if texts:
        body += _field(3, b"".join(map(packed, texts)))
    if has_names:
        body += _field(4, b"".join(text(column.name.encode()) for column in columns))
    for kind, field in ((SET, 5), (ENUM, 6)):
        labels = [column.labels for column in columns if column.kind == kind]
        if labels:
            body += _field(field, b"".join(packed(len(each)) + b"".join(map(text, each)) for each in labels))
    labelled = [column.collation for column in columns if column.kind in (ENUM, SET)]
    if labelled:
        body += _field(11, b"".join(map(packed, labelled)))
    if has_visibility and flavor == "mysql":
        body += _field(12, bits([True] * len(columns)))
    return event(19, body + more)


def _field(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + packed(len(value)) + value


def _is_text(kind: int, flavor: str) -> bool:
    return kind in (STRING, VAR_STRING, VARCHAR, VARCHAR_COMPRESSED, *_BLOB_TEXT) or kind == (
        VECTOR if flavor == "mysql" else GEOMETRY
    )


def image(fields: Sequence[bytes | None]) -> bytes:
    """One image: the NULL bits, then the fields, None for NULL. Unused bits are set, as some servers do."""
    nulls = [field is None for field in fields]
    nulls += [True] * (-len(nulls) % 8)
    return bits(nulls) + b"".join(field for field in fields if field is not None)


def rows_body(
    kind: int,
    count: int,
    images: bytes,
    *,
    present: Sequence[bool] = (),
    present_after: Sequence[bool] = (),
    extra: bytes = b"",
    table_id: int = TABLE_ID,
    flags: int = 1,
) -> bytes:
    body = table_id.to_bytes(6, "little") + flags.to_bytes(2, "little")
    if kind in (30, 31, 32, 39, 169, 170, 171):
        body += (len(extra) + 2).to_bytes(2, "little") + extra
    body += packed(count) + bits(present or [True] * count)
    if kind in (24, 31, 39, 167, 170):
        body += bits(present_after or [True] * count)
    return body + images


def rows(kind: int, count: int, *images: bytes, **options: object) -> LogEvent:
    return event(kind, rows_body(kind, count, b"".join(images), **options))  # type: ignore[arg-type]


def tagged_numbers(*values: int) -> bytes:
    """As a server writes the numbers, of up to 56 bits, of an event 42."""
    out = b""
    for value in values:
        more = max(0, (value.bit_length() - 1) // 7)
        out += (value << more + 1 | (1 << more) - 1).to_bytes(more + 1, "little")
    return out


def tagged_gtid(
    sid: str, gno: int, tag: str, committed: int, original: int | None, *, flags: int = 0, must_know: int = 0
) -> bytes:
    """The body of an event 42: fields with their numbers 0 to 9, signed values doubled."""
    body = bytes((0, flags)) + tagged_numbers(1, *bytes.fromhex(sid.replace("-", "")))
    body += tagged_numbers(2, 2 * gno, 3, len(tag)) + tag.encode()
    body += tagged_numbers(4, 18, 5, 20, 6, committed)
    if original is not None:
        body += tagged_numbers(7, original)
    body += tagged_numbers(8, 500, 9, 90704)
    head_bytes = 2 + len(tagged_numbers(must_know))
    size = len(body) + head_bytes + (len(body) + head_bytes > 127)
    return tagged_numbers(1, size, must_know) + body
