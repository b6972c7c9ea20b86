"""Values as vtgate sends them, text by query.Type, as the Python values that ``invalidator.binlog.rows.decoder``
reads in a binlog.

A decoder is chosen once for each column. A value that cannot be decoded exactly (a zero date, a label in an unknown
character set, an unknown type) becomes `UNREADABLE`, never NULL and never a guess.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, Literal, TypeAlias

from freshness.stream.source import UNREADABLE, Shape
from invalidator.charset import find_charset, find_codec, is_exact
from invalidator.vstream.proto import vitess_pb2 as pb

Decoder: TypeAlias = Callable[[bytes], object]

NULL: Final = 0
FLOAT32: Final = 1035
FLOAT64: Final = 1036
TIMESTAMP: Final = 2061
DATE: Final = 2062
DATETIME: Final = 2064
TIME: Final = 2063
DECIMAL: Final = 18
BINARY: Final = 10264
BIT: Final = 2073
ENUM: Final = 2074
SET: Final = 2075
JSON: Final = 2078

_INTEGERS: Final = (257, 770, 259, 772, 261, 774, 263, 776, 265, 778, 785)  # INT8 … UINT64, YEAR
_TEXTS: Final = (6163, 6165, 6167)  # TEXT, VARCHAR, CHAR
_BLOBS: Final = (10260, 10262)  # BLOB, VARBINARY
_GEOMETRY: Final = 2077
_BYTES: Final = (_GEOMETRY, 2083)  # and VECTOR
BINARY_COLLATION: Final = 63

TYPE_NAMES: Final = {
    **dict.fromkeys((257, 770), "tinyint"),
    **dict.fromkeys((259, 772), "smallint"),
    **dict.fromkeys((261, 774), "mediumint"),
    **dict.fromkeys((263, 776), "int"),
    **dict.fromkeys((265, 778), "bigint"),
    785: "year",
    FLOAT32: "float",
    FLOAT64: "double",
    DECIMAL: "decimal",
    DATE: "date",
    TIME: "time",
    DATETIME: "datetime",
    TIMESTAMP: "timestamp",
    6163: "text",
    6165: "varchar",
    6167: "char",
    10260: "blob",
    10262: "varbinary",
    BINARY: "binary",
    BIT: "bit",
    ENUM: "enum",
    SET: "set",
    JSON: "json",
    _GEOMETRY: "geometry",
    2083: "vector",
}
"""In SQL, for a column whose declaration does not come."""

_SAME: Final = frozenset((*_INTEGERS, FLOAT64, DECIMAL, DATE, DATETIME, TIME, ENUM, _GEOMETRY))
_RULES: Final[dict[int, Literal["float", "bit", "timestamp"]]] = {
    FLOAT32: "float",
    BIT: "bit",
    TIMESTAMP: "timestamp",
}

_TIME = re.compile(rb"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_LABELS = re.compile(r"(?i:enum|set)\s*\((.*)\)", re.DOTALL)
_LABEL = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|$)", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_UNESCAPED: Final = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


def find_decoder(field: pb.Field, *, has_labels: bool) -> Decoder:
    """The decoder of a column's values that are not NULL. ``has_labels``: ENUM and SET come as text (Vitess 20 and
    later), not as numbers."""
    decode = _choose(field, has_labels)

    def decode_or_give_up(data: bytes) -> object:
        try:
            return decode(data)
        except (ValueError, InvalidOperation, OverflowError, IndexError):
            return UNREADABLE

    return decode_or_give_up


def find_shape(field: pb.Field) -> Shape:
    """How a client reads the column: as `invalidator.binlog.rows.image.find_shapes` does for a binlog's."""
    kind = _kind_of(field)
    if kind in _SAME:
        return Shape("same")
    if kind in _TEXTS or kind in _BLOBS:
        if field.charset == BINARY_COLLATION:
            return Shape("binary")
        return Shape("text" if is_exact(find_charset(field.charset, "mysql")) else "ascii")
    if kind in _RULES:
        return Shape(_RULES[kind])
    if kind == SET:
        labels = tuple(read_labels(field.column_type))
        return Shape("set", labels) if labels else Shape("untold")
    if kind == BINARY and field.charset == BINARY_COLLATION:
        return Shape("binary")
    # JSON: how does the server print it? Text that vttablet padded with zero bytes may have had some of its own.
    return Shape("untold")


def _kind_of(field: pb.Field) -> int:
    """The type. With a binary collation Vitess calls ENUM and SET BINARY, and sends their labels all the same."""
    declared = field.column_type.lstrip()[:5].lower()
    if declared == "enum(":
        return ENUM
    return SET if declared[:4] == "set(" else field.type


def _choose(field: pb.Field, has_labels: bool) -> Decoder:
    kind = _kind_of(field)
    if kind == ENUM:
        return _enum_decoder(read_labels(field.column_type), has_labels)
    if kind == SET:
        return _set_decoder(read_labels(field.column_type), has_labels)
    known = _BY_TYPE.get(kind)
    if known is not None:
        return known
    if kind in _TEXTS or kind in _BLOBS:
        # Vitess distinguishes text with a binary collation (utf8mb4_bin) from bytes by the collation alone.
        return _text_decoder(field.charset)
    if kind == BINARY and field.charset == BINARY_COLLATION:
        return lambda data: data.ljust(field.column_length, b"\0")
    if kind == BINARY:
        # Text of fixed length, which vttablet pads with zero bytes.
        read_text = _text_decoder(field.charset)
        return lambda data: read_text(data.rstrip(b"\0"))
    if kind == BIT:
        return lambda data: _read_bits(data, field.column_length)
    return lambda data: UNREADABLE


def _read_float32(data: bytes) -> float:
    """To the precision that the column has, as the binary log gives it."""
    narrowed: float = struct.unpack("<f", struct.pack("<f", float(data)))[0]
    return narrowed


def _read_decimal(data: bytes) -> object:
    value = Decimal(data.decode("ascii"))
    return value if value.is_finite() else UNREADABLE


def _read_datetime(data: bytes) -> datetime:
    """Naive: TIMESTAMP is in UTC. Raises ValueError for a date that does not exist, 0000-00-00 among them."""
    text = data.decode("ascii")
    if not 19 <= len(text) <= 26 or text[10] != " ":
        raise ValueError(text)
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int((fraction or "0").ljust(6, "0")))


def _read_time(data: bytes) -> timedelta:
    match = _TIME.fullmatch(data)
    if match is None:
        raise ValueError(data)
    sign, hours, minutes, seconds, fraction = match.groups()
    value = timedelta(
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int((fraction or b"").ljust(6, b"0")),
    )
    return -value if sign else value


def _read_json(data: bytes) -> object:
    document = json.loads(data)
    return UNREADABLE if document is None else document  # None is NULL


def _read_bits(data: bytes, length: int) -> str:
    bits = "".join(f"{byte:08b}" for byte in data)
    return bits[-length:].rjust(length, "0") if length else bits


_BY_TYPE: Final[dict[int, Decoder]] = {
    NULL: lambda data: UNREADABLE,  # a value in a column that has none
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(_BYTES, bytes),
    FLOAT32: _read_float32,
    FLOAT64: float,
    DECIMAL: _read_decimal,
    TIMESTAMP: _read_datetime,
    DATE: lambda data: date.fromisoformat(data.decode("ascii")),
    TIME: _read_time,
    DATETIME: _read_datetime,
    JSON: _read_json,
}


def _text_decoder(collation: int) -> Decoder:
    """By the number of the collation. In ``binary``, and in one that is not known, the bytes stay as they are; they
    give no key of text, so that the table is raised."""
    codec = find_codec(find_charset(collation, "mysql"))
    return bytes if codec is None else lambda data: data.decode(codec)


def read_labels(column_type: str) -> list[str]:
    """The labels of ``enum('a','b')``; empty if they cannot be read."""
    match = _LABELS.fullmatch(column_type.strip())
    labels: list[str] = []
    place = 0
    while match is not None and place < len(match[1]):
        label = _LABEL.match(match[1], place)
        if label is None:
            return []
        labels.append(_ESCAPE.sub(lambda each: _UNESCAPED.get(each[1], each[1]) if each[1] else "'", label[1]))
        place = label.end()
    return labels


def _enum_decoder(labels: Sequence[str], has_labels: bool) -> Decoder:
    def by_number(data: bytes) -> object:
        number = int(data)
        if number == 0:  # what MySQL stores for a value that is none of the labels
            return ""
        return labels[number - 1] if number > 0 else UNREADABLE

    return bytes.decode if has_labels else by_number


def _set_decoder(labels: Sequence[str], has_labels: bool) -> Decoder:
    def by_mask(data: bytes) -> object:
        mask = int(data)
        if mask < 0 or mask >> len(labels):
            return UNREADABLE
        return {label for place, label in enumerate(labels) if mask >> place & 1}

    return (lambda data: set(data.decode().split(",")) if data else set()) if has_labels else by_mask
