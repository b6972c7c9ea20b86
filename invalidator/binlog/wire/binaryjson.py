"""A JSON document in MySQL's binary format, as Python values.

A container holds a count, its size, entries of keys and values, and behind them the values that do not fit into an
entry. Every place is checked against the container's end; a document that does not add up raises `FormatError`. Gaps
are normal: the server leaves them when it changes a document in place.

An SQL value inside a document becomes a Python value: its bytes if it is neither a number nor a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from datetime import time as time_of_day
from typing import Any, Final, NamedTuple

from freshness.errors import FormatError
from freshness.stream.source import UNREADABLE
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.fieldvalue import decimal_decoder

DEPTH_MAX: Final = 100
"""Containers inside containers; the server refuses deeper documents."""

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_STRING: Final = 12
_OPAQUE: Final = 15
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct(f"<{code}") for kind, code in enumerate("hHiIqQd", start=5)
}
_LITERALS: Final = (None, True, False)
_INLINE_WHEN_SMALL: Final = frozenset((_LITERAL, 5, 6))
_INLINE_WHEN_LARGE: Final = frozenset((_LITERAL, 5, 6, 7, 8))
"""Literals and integers that stand in their entry, in place of an offset."""

_naive: Final = datetime
"""The log has no time zones."""
_ZERO_DATETIME: Final = "0000-00-00 00:00:00"
_TIMES: Final = frozenset((types.TIME, types.TIME2))
_DATETIMES: Final = frozenset((types.DATE, types.DATETIME, types.DATETIME2, types.TIMESTAMP, types.TIMESTAMP2))
_DECIMALS: Final = frozenset((types.OLD_DECIMAL, types.NEWDECIMAL))


class _UntoldError(Exception):
    """A part of the document has no exact Python value."""


class _Layout(NamedTuple):
    number: struct.Struct
    entry: struct.Struct
    key: struct.Struct
    inline: frozenset[int]


_SMALL: Final = _Layout(struct.Struct("<H"), struct.Struct("<BH"), struct.Struct("<HH"), _INLINE_WHEN_SMALL)
_LARGE: Final = _Layout(struct.Struct("<I"), struct.Struct("<BI"), struct.Struct("<IH"), _INLINE_WHEN_LARGE)


def decode_json(data: bytes) -> object:
    """The document. `UNREADABLE` for a JSON null, as which the server also reads no bytes at all: None is NULL. The
    same for a document with a value that Python cannot hold exactly: a TIME that is not a time of day, bytes that are
    not text. Raises `FormatError`, and struct.error or IndexError for bytes that end early."""
    if not data:
        return UNREADABLE
    try:
        document = _decode(data[0], data, 1, len(data), 0)
        return UNREADABLE if document is None else document
    except _UntoldError:
        return UNREADABLE


def _decode(kind: int, data: bytes, place: int, end: int, depth: int) -> object:
    """The value at ``place``, which lies before ``end``."""
    if kind <= _LARGE_ARRAY:
        if depth >= DEPTH_MAX:
            raise FormatError(f"a JSON document nested more than {DEPTH_MAX} deep")
        layout = _SMALL if kind in (_SMALL_OBJECT, _SMALL_ARRAY) else _LARGE
        is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        return _decode_container(layout, is_object, data, place, end, depth)
    if kind == _LITERAL:
        return _LITERALS[data[place]]
    number = _NUMBERS.get(kind)
    if number is not None:
        if place + number.size > end:
            raise FormatError("a number in a JSON document is cut off")
        return number.unpack_from(data, place)[0]
    if kind == _STRING:
        return _decode_text(_cut_counted(data, place, end))
    if kind == _OPAQUE:
        return _decode_opaque(data[place], _cut_counted(data, place + 1, end))
    raise FormatError(f"JSON type {kind}")


def _decode_container(layout: _Layout, is_object: bool, data: bytes, start: int, end: int, depth: int) -> object:
    width = layout.number.size
    [count] = layout.number.unpack_from(data, start)
    [size] = layout.number.unpack_from(data, start + width)
    place = start + 2 * width
    values_start = place + (count * layout.key.size if is_object else 0)
    if start + size > end or values_start + count * layout.entry.size > start + size:
        raise FormatError(f"a JSON container of {count} members in {size} bytes, {end - start} are there")
    end = start + size
    values = []
    for at in range(values_start, values_start + count * layout.entry.size, layout.entry.size):
        kind, offset = layout.entry.unpack_from(data, at)
        if kind in layout.inline:
            values.append(_decode(kind, data, at + 1, at + layout.entry.size, depth))
        elif offset >= size:
            raise FormatError(f"a JSON value at {offset} of {size} bytes")
        else:
            values.append(_decode(kind, data, start + offset, end, depth + 1))
    if not is_object:
        return values
    keys = []
    for at in range(place, values_start, layout.key.size):
        offset, length = layout.key.unpack_from(data, at)
        if offset + length > size:
            raise FormatError(f"a JSON key at {offset} of {size} bytes")
        keys.append(_decode_text(data[start + offset : start + offset + length]))
    return dict(zip(keys, values, strict=True))


def _decode_text(data: bytes) -> str:
    """Texts of a document are in utf8mb4, whatever its column's character set."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _UntoldError from error


def _cut_counted(data: bytes, place: int, end: int) -> bytes:
    """Bytes behind their number: seven bits in each byte, the lowest first."""
    length = shift = 0
    while True:
        byte = data[place]
        place += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if place + length > end:
        raise FormatError(f"{length} bytes in a JSON document of which {end - place} are left")
    return data[place : place + length]


def _decode_opaque(kind: int, data: bytes) -> object:
    """A value of SQL inside of the document; ``kind`` is its column type."""
    if kind in _DECIMALS:
        return decimal_decoder(data[0], data[1])(data[2:])
    decode: Callable[[bytes], Any] = bytes
    if kind in _TIMES:
        decode = _decode_time
    elif kind in _DATETIMES:
        decode = _decode_datetime
    try:
        return decode(data)
    except FormatError:
        raise
    except ValueError as error:
        raise _UntoldError from error


def _decode_time(data: bytes) -> time_of_day:
    """Raises ValueError for a negative one, and for one of more than a day."""
    number, micros = _split_packed(data)
    return time_of_day(number >> 12, number >> 6 & 63, number & 63, micros)


def _decode_datetime(data: bytes) -> object:
    number, micros = _split_packed(data)
    if not number and not micros:
        return _ZERO_DATETIME
    year, month = divmod(number >> 22, 13)
    return _naive(year, month, number >> 17 & 31, number >> 12 & 31, number >> 6 & 63, number & 63, micros)


def _split_packed(data: bytes) -> tuple[int, int]:
    """The parts above the microseconds as bit fields, and the microseconds."""
    if len(data) != 8:
        raise FormatError(f"a date or time of {len(data)} bytes in a JSON document")
    number = int.from_bytes(data, "little", signed=True)
    return number >> 24, number & 0xFFFFFF
