"""The value of one field of a row, as the update stream and the archive show it.

Temporal values are Python's own, and a date that Python does not have is `UNREADABLE`; keys need the text that the
server shows instead (``invalidator.binlog.wire.fieldvalue``). Text is read by Python's codecs. A field that cannot be
decoded raises: its table is raised, and no value is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple

from freshness.errors import FormatError
from freshness.stream.source import UNREADABLE
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.binaryjson import decode_json
from invalidator.binlog.wire.fieldformat import FieldFormat
from invalidator.binlog.wire.fieldvalue import (
    COMPRESSED,
    INTEGER_BYTES,
    TEXTS,
    decimal_decoder,
    decode_fraction,
    decode_labels,
    decompress_field,
    split_datetime,
    text_decoder,
)
from invalidator.binlog.wire.tablemap import BINARY_COLLATION, MappedColumn
from invalidator.charset import find_charset, find_codec

_naive: Final = datetime
"""The log has no time zones."""
_EPOCH: Final = datetime.fromisoformat("1970-01-01")
_YEAR_BEFORE_FIRST: Final = 1900
_UTF_8: Final = "utf-8"


class ValueReader(NamedTuple):
    """How a field becomes a value. ``code``: the format of `struct` for a field of fixed width, else "". ``decode``:
    function that makes the value from the result of `struct`, or from a field's bytes; None if that is the value."""

    code: str
    decode: Callable[[Any], object] | None

    @property
    def is_utf_8(self) -> bool:
        """Whether the value is the text of the bytes in UTF-8, and nothing else."""
        return self.decode is _decode_utf_8


def find_reader(column: MappedColumn, form: FieldFormat, flavor: str) -> ValueReader:
    """The reader of a column's values. A type that is not known becomes `UNREADABLE`."""
    kind = column.kind
    if kind in INTEGER_BYTES:
        if kind != types.INT24:
            return ValueReader(form.code, None)
        is_signed = not column.is_unsigned
        return ValueReader("3s", lambda raw: int.from_bytes(raw, "little", signed=is_signed))
    if kind in TEXTS:
        if kind == types.STRING and column.collation == BINARY_COLLATION:
            length = column.width  # the log leaves out the zero bytes at the end
            return ValueReader("", lambda raw: raw.ljust(length, b"\0"))
        decode = _text_decoder(column.collation, flavor)
        return ValueReader("", decode if kind not in COMPRESSED else lambda raw: decode(decompress_field(raw)))
    if kind == types.YEAR:
        return ValueReader("B", lambda number: number and number + _YEAR_BEFORE_FIRST)
    if kind in (types.FLOAT, types.DOUBLE):
        return ValueReader("f" if kind == types.FLOAT else "d", None)
    if kind in (types.ENUM, types.SET):
        return _label_reader(column, form, flavor)
    if kind == types.BIT:
        width, mask = column.width, (1 << column.width) - 1
        return ValueReader(f"{form.size}s", lambda raw: f"{int.from_bytes(raw, 'big') & mask:0{width}b}")
    if kind == types.NEWDECIMAL:
        return ValueReader(f"{form.size}s", decimal_decoder(column.width, column.scale))
    return ValueReader(f"{form.size}s" if form.is_fixed else "", _DECODERS.get(kind, lambda _: UNREADABLE))


def _decode_utf_8(raw: bytes) -> str:
    return raw.decode()


def _text_decoder(collation: int, flavor: str) -> Callable[[bytes], object]:
    """A decoder by Python's codec, and by the server's own table if the codec fails. It raises UnicodeDecodeError for
    bytes that are not text in this character set."""
    codec = find_codec(find_charset(collation, flavor))
    if codec is None:
        return bytes
    if codec == _UTF_8:
        return _decode_utf_8
    decode_exactly = text_decoder(collation, flavor)

    def decode(raw: bytes) -> object:
        try:
            return raw.decode(codec)
        except UnicodeDecodeError:
            # Bytes like 0x81 in latin1: a character for the server, and none for Python.
            value = decode_exactly(raw)
            if value is UNREADABLE:
                raise
            return value

    return decode


def _label_reader(column: MappedColumn, form: FieldFormat, flavor: str) -> ValueReader:
    labels = decode_labels(column, flavor)
    if column.kind == types.ENUM:
        # Number 0: the server's mark for a value that is none of the labels.
        numbered = ("", *labels)
        return ValueReader("BH"[form.size - 1], numbered.__getitem__)
    return ValueReader(f"{form.size}s", lambda raw: _choose_labels(labels, int.from_bytes(raw, "little")))


def _choose_labels(labels: Sequence[object], bits: int) -> object:
    if bits >> len(labels):
        raise FormatError(f"bits {bits:x} of a SET with {len(labels)} labels")
    chosen = {label for place, label in enumerate(labels) if bits >> place & 1}
    return UNREADABLE if UNREADABLE in chosen else chosen


def _decode_date(raw: bytes) -> object:
    number = int.from_bytes(raw, "little")
    try:
        return date(number >> 9, number >> 5 & 15, number & 31)
    except ValueError:
        return UNREADABLE


def _decode_datetime(raw: bytes) -> object:
    try:
        return _naive(*split_datetime(raw))
    except ValueError:
        return UNREADABLE


def _decode_old_datetime(raw: bytes) -> object:
    """Decimal digits. Raises ValueError if they are not a date and time: MariaDB has other formats of this type."""
    day, time = divmod(int.from_bytes(raw, "little"), 1_000_000)
    year, month, day = day // 10000, day // 100 % 100, day % 100
    if not (year and month and day):
        return UNREADABLE
    return _naive(year, month, day, time // 10000, time // 100 % 100, time % 100)


def _to_timestamp(seconds: int, microseconds: int) -> object:
    """In UTC. The zero date stands as the first second of 1970, which no TIMESTAMP holds."""
    return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds) if seconds else UNREADABLE


def _decode_time(raw: bytes) -> timedelta:
    """Big-endian with an offset of half the range, the fraction behind the seconds."""
    size = len(raw)
    number = int.from_bytes(raw, "big") - (1 << 8 * size - 1)
    bits = 8 * (size - 3)
    whole = abs(number) >> bits
    fraction = (abs(number) & (1 << bits) - 1).to_bytes(size - 3, "big")
    value = timedelta(
        hours=whole >> 12, minutes=whole >> 6 & 63, seconds=whole & 63, microseconds=decode_fraction(fraction)
    )
    return -value if number < 0 else value


def _decode_old_time(raw: bytes) -> timedelta:
    number = int.from_bytes(raw, "little", signed=True)
    digits = abs(number)
    value = timedelta(hours=digits // 10000, minutes=digits // 100 % 100, seconds=digits % 100)
    return -value if number < 0 else value


_DECODERS: Final[dict[int, Callable[[bytes], object]]] = {
    types.DATE: _decode_date,
    types.NEWDATE: _decode_date,
    types.DATETIME: _decode_old_datetime,
    types.DATETIME2: _decode_datetime,
    types.TIMESTAMP: lambda raw: _to_timestamp(int.from_bytes(raw, "little"), 0),
    types.TIMESTAMP2: lambda raw: _to_timestamp(int.from_bytes(raw[:4], "big"), decode_fraction(raw[4:])),
    types.TIME: _decode_old_time,
    types.TIME2: _decode_time,
    types.JSON: decode_json,
    types.GEOMETRY: bytes,
}
