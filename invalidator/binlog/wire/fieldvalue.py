"""The value of one field of a row image, from its bytes: as the server would show it to the application.

Temporal values come as text, since a zero date is a value for the server and none for Python. A value that cannot be
decoded exactly is `UNREADABLE`, and no key is built from it. Character sets follow the servers' tables, which differ
from Python's in a few places. Never reads outside of the field.
"""

from __future__ import annotations

import codecs
import struct
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final

from freshness.errors import FormatError
from freshness.stream.source import UNREADABLE
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.tablemap import BINARY_COLLATION, MappedColumn
from invalidator.charset import find_charset

Decode = Callable[[bytes], object]
"""The bytes of a field, without those of its length → its value."""

INTEGER_BYTES: Final = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
STRINGS: Final = frozenset((types.STRING, types.VAR_STRING, types.VARCHAR))
COMPRESSED: Final = frozenset((types.VARCHAR_COMPRESSED, types.BLOB_COMPRESSED))
TEXTS: Final = STRINGS | COMPRESSED | {types.TINY_BLOB, types.BLOB, types.MEDIUM_BLOB, types.LONG_BLOB}
UNCOMPRESSED_BYTES_MAX: Final = 1 << 30

_DECIMAL_GROUP_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_MICROSECONDS: Final = (0, 10_000, 100, 1)
_DATETIME_BYTES: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_TIME: Final = "0000-00-00 00:00:00"

_CODECS: Final[Mapping[str, str]] = {
    **{name: name for name in ("ascii", "cp850", "cp852", "cp866", "cp932", "gbk", "gb2312", "big5")},
    **{name: name for name in ("cp1250", "cp1251", "cp1256", "cp1257")},
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    **dict.fromkeys(("ucs2", "utf16"), "utf-16-be"),
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "dec8": "latin-1",
    "hp8": "hp-roman8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "macce": "mac-latin2",
    "macroman": "mac-roman",
    "tis620": "tis-620",
    "euckr": "cp949",
    "sjis": "shift-jis",
}
"""Character sets of the servers for which Python has the same table, but for what follows."""

_PATCHES: Final[Mapping[str, Mapping[int, str]]] = {
    "latin1": {code: chr(code) for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "greek": {0xA1: "\u02bd", 0xA2: "\u02bc"},
    "hebrew": {0xAF: "\u203e"},
    "dec8": {0xA8: "\u00a4", 0xD7: "\u0152", 0xDD: "\u0178", 0xF7: "\u0153", 0xFD: "\u00ff"},
    "koi8u": {0x95: "\u2022"},
    "cp866": {0xFC: "\u207f", 0xFD: "\u00b2"},
}
_REPLACED: Final[Mapping[str, tuple[str, str]]] = {"sjis": ("\uff3c", "\\")}
_DISTRUSTED: Final[Mapping[str, str]] = {"big5": "\u2574\uffe3\u02cd\uff0f\uff3c\u5341\u5345"}
"""Characters of several bytes that the server reads differently."""

_WIDE: Final = frozenset(("ucs2", "utf16", "utf16le", "utf32", "filename"))


def is_ascii_safe(collation: int, flavor: str) -> bool:
    """True iff the bytes of A-Z a-z 0-9 _ . - alone are these characters."""
    charset = find_charset(collation, flavor)
    return bool(charset) and charset not in _WIDE and charset != "binary"


def find_decoder(column: MappedColumn, flavor: str) -> Decode:
    """The decoder of this column's values. It raises `FormatError` for bytes that do not fit."""
    kind = column.kind
    if kind in INTEGER_BYTES:
        return lambda raw: int.from_bytes(raw, "little", signed=not column.is_unsigned)
    if kind in TEXTS:
        decode = text_decoder(column.collation, flavor)
        return decode if kind not in COMPRESSED else lambda raw: decode(decompress_field(raw))
    match kind:
        case types.YEAR:
            return lambda raw: raw[0] + 1900 if raw[0] else 0
        case types.NEWDECIMAL:
            return decimal_decoder(column.width, column.scale)
        case types.FLOAT | types.DOUBLE:
            return _decode_float
        case types.DATE | types.NEWDATE:
            return decode_date
        case types.DATETIME:
            return _decode_old_datetime
        case types.DATETIME2:
            return decode_datetime
        case types.TIMESTAMP:
            return lambda raw: _format_timestamp(int.from_bytes(raw, "little"), 0)
        case types.TIMESTAMP2:
            return lambda raw: _format_timestamp(int.from_bytes(raw[:4], "big"), decode_fraction(raw[4:]))
        case types.ENUM | types.SET:
            labels = decode_labels(column, flavor)
            find = _find_label if kind == types.ENUM else _join_labels
            return lambda raw: find(labels, int.from_bytes(raw, "little"))
        case types.BIT | types.GEOMETRY | types.VECTOR:
            return bytes
    return lambda raw: UNREADABLE  # TIME and JSON have no spelling in a key


def decode_labels(column: MappedColumn, flavor: str) -> list[object]:
    """The labels of an ENUM or SET; `UNREADABLE` for one that cannot be decoded exactly."""
    decode = text_decoder(column.collation, flavor)
    return [decode(label) for label in column.labels]


def decimal_bytes(precision: int, scale: int) -> int:
    """How many bytes a DECIMAL(precision, scale) takes."""
    if not 0 <= scale <= precision <= 81 or not precision:
        raise FormatError(f"DECIMAL({precision},{scale})")
    whole, whole_rest = divmod(precision - scale, 9)
    part, part_rest = divmod(scale, 9)
    return 4 * (whole + part) + _DECIMAL_GROUP_BYTES[whole_rest] + _DECIMAL_GROUP_BYTES[part_rest]


@lru_cache(maxsize=256)
def decimal_decoder(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    """The decoder of a DECIMAL(precision, scale): groups of nine digits, big-endian. The sign is the inverted top
    bit, and a negative number is inverted. Raises `FormatError` for a field that does not fit."""
    size = decimal_bytes(precision, scale)
    groups = [
        (_DECIMAL_GROUP_BYTES[count], count)
        for count in (*_groups(precision - scale, is_whole=True), *_groups(scale, is_whole=False))
    ]
    sign_bit, all_bits = 1 << 8 * size - 1, (1 << 8 * size) - 1

    def decode(raw: bytes) -> Decimal:
        if len(raw) != size:
            raise FormatError(f"a DECIMAL({precision},{scale}) of {len(raw)} bytes")
        number = int.from_bytes(raw, "big") ^ sign_bit
        is_negative = number & sign_bit
        if is_negative:
            number ^= all_bits
        data = number.to_bytes(size, "big")
        digits, place = "", 0
        for width, count in groups:
            text = str(int.from_bytes(data[place : place + width], "big"))
            if len(text) > count:
                raise FormatError(f"a group of {count} digits holds {len(text)}")
            digits += text.rjust(count, "0")
            place += width
        sign = "-" if is_negative else ""
        return Decimal(f"{sign}{digits[: precision - scale]}.{digits[precision - scale :]}")

    return decode


def _groups(digits: int, *, is_whole: bool) -> list[int]:
    full, rest = divmod(digits, 9)
    groups = [9] * full
    if rest:
        groups.insert(0 if is_whole else full, rest)
    return groups


def decode_date(raw: bytes) -> str:
    number = int.from_bytes(raw, "little")
    return f"{number >> 9:04d}-{number >> 5 & 15:02d}-{number & 31:02d}"


def decode_datetime(raw: bytes) -> str:
    year, month, day, hour, minute, second, microseconds = split_datetime(raw)
    has_fraction = len(raw) > _DATETIME_BYTES
    return _format_time(year, month, day, hour, minute, second, microseconds if has_fraction else None)


def split_datetime(raw: bytes) -> tuple[int, int, int, int, int, int, int]:
    """Year, month, day, hour, minute, second, microsecond of a DATETIME: five bytes, then those of the fraction.
    Raises `FormatError` for a number that no server writes."""
    number = int.from_bytes(raw[:_DATETIME_BYTES], "big") - (1 << 39)
    if number < 0:
        raise FormatError("a DATETIME below zero")
    year, month = divmod(number >> 22, 13)
    microsecond = decode_fraction(raw[_DATETIME_BYTES:])
    return year, month, number >> 17 & 31, number >> 12 & 31, number >> 6 & 63, number & 63, microsecond


def _decode_old_datetime(raw: bytes) -> str:
    date, time = divmod(int.from_bytes(raw, "little"), 1_000_000)
    return _format_time(
        date // 10000, date // 100 % 100, date % 100, time // 10000, time // 100 % 100, time % 100, None
    )


def _format_time(
    year: int, month: int, day: int, hour: int, minute: int, second: int, microseconds: int | None
) -> str:
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    return text if microseconds is None else f"{text}.{microseconds:06d}"


def decode_fraction(fraction: bytes) -> int:
    """The microseconds: one byte for two digits, up to three for six."""
    return int.from_bytes(fraction, "big") * _MICROSECONDS[len(fraction)]


def _format_timestamp(seconds: int, microseconds: int) -> str:
    """In UTC. Zero is the zero date, not a moment."""
    if not seconds and not microseconds:
        return _ZERO_TIME
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(" ")


def _decode_float(raw: bytes) -> object:
    [value] = struct.unpack("<f" if len(raw) == 4 else "<d", raw)
    return value


def _find_label(labels: list[object], number: int) -> object:
    if number > len(labels):
        raise FormatError(f"label {number} of an ENUM with {len(labels)}")
    return labels[number - 1] if number else ""  # 0: the server's mark of a value that was not a label


def _join_labels(labels: list[object], bits: int) -> object:
    if bits >> len(labels):
        raise FormatError(f"bits {bits:x} of a SET with {len(labels)} labels")
    chosen = [label for place, label in enumerate(labels) if bits >> place & 1]
    return ",".join(map(str, chosen)) if UNREADABLE not in chosen else UNREADABLE


def decompress_field(raw: bytes) -> bytes:
    """The content of a MariaDB COMPRESSED column: how it is compressed, its length (big-endian), the rest."""
    if not raw:
        return b""
    method, size = raw[0] >> 4, raw[0] & 7
    if method == 0:
        return raw[1:]
    length = int.from_bytes(raw[1 : 1 + size], "big")
    if method != 8 or length > UNCOMPRESSED_BYTES_MAX:
        raise FormatError(f"compression method {method} with {length} bytes")
    unpacker = zlib.decompressobj(-15 if raw[0] & 8 else 15)
    content = unpacker.decompress(raw[1 + size :], length + 1)
    if len(content) != length:
        raise FormatError(f"{len(content)} bytes came out of a compressed column, not {length}")
    return content


def text_decoder(collation: int, flavor: str) -> Decode:
    """By the server's own table of the character set; `UNREADABLE` for bytes that it cannot tell for certain."""
    if collation == BINARY_COLLATION:
        return bytes
    charset = find_charset(collation, flavor)
    codec = _CODECS.get(charset)
    if codec is None:
        # An ASCII-like set without a codec: its plain letters are known.
        return _decode_plain if is_ascii_safe(collation, flavor) else lambda raw: UNREADABLE
    if charset in _PATCHES:
        table = _patched_table(charset)
        return lambda raw: _decode_by_table(raw, table)
    distrusted = frozenset(_DISTRUSTED.get(charset, ""))
    replaced = _REPLACED.get(charset, ("\0", "\0"))

    def decode(raw: bytes) -> object:
        try:
            text = raw.decode(codec).replace(*replaced)
        except UnicodeDecodeError:
            return UNREADABLE
        return UNREADABLE if distrusted and not distrusted.isdisjoint(text) else text

    return decode


def _decode_plain(raw: bytes) -> object:
    return raw.decode("ascii") if raw.isalnum() and raw.isascii() else UNREADABLE


def _decode_by_table(raw: bytes, table: str) -> object:
    try:
        return codecs.charmap_decode(raw, "strict", table)[0]
    except UnicodeDecodeError:
        return UNREADABLE


@lru_cache(maxsize=16)
def _patched_table(charset: str) -> str:
    # U+FFFE stands for "no character" in such a table.
    table = list(bytes(range(256)).decode(_CODECS[charset], "replace").replace("\ufffd", "\ufffe"))
    for code, character in _PATCHES[charset].items():
        table[code] = character
    return "".join(table)
