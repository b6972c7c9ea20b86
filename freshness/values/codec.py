"""How a value (a row, or whatever a loader built) becomes the bytes inside a cache entry, and back.

A value comes back from `decode_value` equal to what went into `encode_value`, and of the same types, or it
is refused on the way in: a hit must not look different from the miss that filled it. Two exceptions: a tuple
comes back as a list, and an aware datetime keeps its UTC offset but not the name of its time zone.

The bytes are one byte of codec version, then MessagePack; what MessagePack lacks is in extension types of our
own (msgspec alone would flatten a Decimal or a date to text). If they are compressed, it is another codec version
and these bytes inside (``freshness.values.compression``). Never pickle: a shared cache must not be able
to run code in the application.

Called on every hit and every fill by the cached reads. The hit path is one call into msgspec, with a Python
function only for each extension value. The bytes are under test in ``tests/golden/test_codec.py``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder, Ext

from freshness.errors import FormatError
from freshness.values.compression import unpack

CODEC_VERSION: Final = 1
DIGEST_BYTES: Final = 16
DEPTH_MAX: Final = 100
"""Containers inside containers; beyond it a value is refused (a value that holds itself has no end)."""

_PREFIX: Final = bytes([CODEC_VERSION])
_DECIMAL, _DATETIME, _DATE, _TIME, _TIMEDELTA, _BIG_INT = range(1, 7)

_DATE_PARTS: Final = struct.Struct(">HBB")
_TIME_PARTS: Final = struct.Struct(">BBBI")  # the top bit of the microseconds is `fold`
_OFFSET_MICROSECONDS: Final = struct.Struct(">q")
_TIMEDELTA_PARTS: Final = struct.Struct(">iii")
_FOLD_BIT: Final = 1 << 31

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgspec keeps as they are. Exact types: an IntEnum or a str subclass would come back as less."""
_PLAIN_UNCHECKED: Final = _PLAIN - {int, str}
"""The plain types of which every value can be encoded: no integer beyond 64 bits, no lone surrogate."""
_KEYS: Final = frozenset({type(None), bool, int, str, bytes})
_ACCEPTED: Final = (
    "cacheable: dict, list, tuple, None, bool, int, float, str, bytes, Decimal, datetime, date, time, "
    "timedelta; convert it in the loader"
)


def encode_value(value: object) -> bytes:
    """Return the bytes of ``value``. Raises `FormatError`, which names the place inside the value, for a type that
    would not come back the same (subclasses of the accepted types are among them), for text that is not Unicode, and
    beyond `DEPTH_MAX`."""
    try:
        return _PREFIX + _ENCODER.encode(_packable(value, (), _PLAIN))
    except (OverflowError, UnicodeEncodeError):
        # Rare: an integer beyond 64 bits, or a lone surrogate. The slow walk finds it, and mends the integer.
        return _PREFIX + _ENCODER.encode(_packable(value, (), _PLAIN_UNCHECKED))


def decode_value(data: bytes) -> Any:
    """Return the value of which `encode_value` made ``data``, which may have been compressed since. Raises
    `FormatError` for anything else: other bytes, another codec version, an unknown extension type. So it does for
    compressed bytes where zstandard is not installed."""
    if data[:1] != _PREFIX:
        data = unpack(data)
        if data[:1] != _PREFIX:
            found = f"codec version {data[0]}" if data else "no bytes at all"
            raise FormatError(
                f"a cached value starts with {found}, expected codec version {CODEC_VERSION}",
                hint="another version of this library wrote it; treat it as a miss",
            )
    try:
        return _DECODER.decode(data[1:])
    except FormatError:
        raise
    except (MsgspecError, ValueError, TypeError, ArithmeticError, struct.error, RecursionError) as error:
        raise FormatError(
            f"a cached value of {len(data)} bytes does not decode: {error}",
            hint="the entry was damaged or not written by this library; treat it as a miss",
        ) from error


def row_digest(row: Mapping[str, object]) -> bytes | None:
    """16 bytes that are equal for equal rows, as PyMySQL reads a row; None if a value has no canonical form.

    The order of the columns does not matter, nor the scale of a number: a row that is read and the same row in the
    archive of the log (``invalidator.binlog.rows.image``) have one digest. None says nothing: it equals no digest and
    differs from none.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(row):
        value = _canonical(row[name])
        if value is None:
            return None
        for part in (name.encode("utf-8", "surrogatepass"), value):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _canonical(value: object) -> bytes | None:
    if value is None:
        return b"-"
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, Decimal):
        return _plain_number(value) if value.is_finite() else None
    if isinstance(value, float):
        return b"f" + repr(value or 0.0).encode()  # -0.0 equals 0.0
    if isinstance(value, datetime):
        return None if value.tzinfo else b"t" + value.isoformat().encode()
    if isinstance(value, date):
        return b"d" + value.isoformat().encode()
    if isinstance(value, timedelta):
        return b"T%d" % (value // timedelta(microseconds=1))
    return None


def _plain_number(value: Decimal) -> bytes:
    """A whole number as an integer is written, others without zeros at their end."""
    text = f"{value:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return b"0" if text in ("-0", "0", "-", "") else text.encode()


def _packable(value: Any, path: tuple[object, ...], plain: frozenset[type]) -> Any:
    """Return ``value`` with extension values in it; parts of plain types alone are passed on as they are."""
    kind = type(value)
    if kind in plain:
        return value
    if kind is dict or kind is list or kind is tuple:
        if len(path) >= DEPTH_MAX:
            raise FormatError(
                f"the value to be cached is nested more than {DEPTH_MAX} deep",
                hint="does it hold itself? return plain nested dicts and lists",
            )
        if kind is dict:
            return _packable_dict(value, path, plain)
        if plain.issuperset(map(type, value)):
            return value
        return [_packable(part, (*path, index), plain) for index, part in enumerate(value)]
    return _packed_scalar(kind, value, path)


def _packable_dict(value: dict[Any, Any], path: tuple[object, ...], plain: frozenset[type]) -> dict[Any, Any]:
    if not _KEYS.issuperset(map(type, value)):
        wrong = next(key for key in value if type(key) not in _KEYS)
        raise _unsupported("a dict key", type(wrong), path, "a key is None, bool, int, str or bytes")
    if plain is _PLAIN_UNCHECKED:
        for key in value:
            _check_key(key, path)
    if plain.issuperset(map(type, value.values())):
        return value  # the usual row
    return {key: _packable(part, (*path, key), plain) for key, part in value.items()}


def _check_key(key: object, path: tuple[object, ...]) -> None:
    if isinstance(key, str):
        _check_text(key, path)
    elif isinstance(key, int) and not -(1 << 63) <= key < 1 << 64:
        raise _unsupported("a dict key beyond 64 bits", int, path, "use its decimal text as the key")


def _check_text(text: str, path: tuple[object, ...]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"text that is not Unicode, lone surrogate at character {error.start}, found at {_place(path)}",
            hint="decode it with the character set of its column, or cache it as bytes",
        ) from error


def _packed_scalar(kind: type, value: Any, path: tuple[object, ...]) -> Any:
    if kind is Decimal:
        return Ext(_DECIMAL, str(value).encode())
    if kind is datetime:
        return Ext(_DATETIME, _encode_date(value) + _encode_time(value, path))
    if kind is date:
        return Ext(_DATE, _encode_date(value))
    if kind is time:
        return Ext(_TIME, _encode_time(value, path))
    if kind is timedelta:
        return Ext(_TIMEDELTA, _TIMEDELTA_PARTS.pack(value.days, value.seconds, value.microseconds))
    if kind is int:
        if -(1 << 63) <= value < 1 << 64:
            return value
        return Ext(_BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if kind is str:
        _check_text(value, path)
        return value
    raise _unsupported("a value", kind, path, _ACCEPTED)


def _encode_date(value: date) -> bytes:
    return _DATE_PARTS.pack(value.year, value.month, value.day)


def _encode_time(value: datetime | time, path: tuple[object, ...]) -> bytes:
    fold = _FOLD_BIT if value.fold else 0
    parts = _TIME_PARTS.pack(value.hour, value.minute, value.second, value.microsecond | fold)
    if value.tzinfo is None:
        return parts
    offset = value.utcoffset()
    if offset is None:  # a time of day in a zone whose offset depends on the date
        raise _unsupported("a value without UTC offset", type(value), path, "give it a fixed offset")
    return parts + _OFFSET_MICROSECONDS.pack(offset // timedelta(microseconds=1))


def _unsupported(what: str, kind: type, path: tuple[object, ...], hint: str) -> FormatError:
    return FormatError(
        f"{what} of type {kind.__module__}.{kind.__qualname__} cannot be cached, found at {_place(path)}", hint=hint
    )


def _place(path: tuple[object, ...]) -> str:
    return "value" + "".join(f"[{part!r}]" for part in path)


def _decode_extension(code: int, data: memoryview) -> Any:
    if code == _DECIMAL:
        return Decimal(str(data, "ascii"))
    if code == _DATETIME:
        parts = _decode_time(data[_DATE_PARTS.size :])
        year, month, day = _DATE_PARTS.unpack_from(data)
        return datetime.combine(date(year, month, day), parts)
    if code == _DATE:
        return date(*_DATE_PARTS.unpack(data))
    if code == _TIME:
        return _decode_time(data)
    if code == _TIMEDELTA:
        days, seconds, microseconds = _TIMEDELTA_PARTS.unpack(data)
        return timedelta(days, seconds, microseconds)
    if code == _BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    raise FormatError(
        f"a cached value holds extension type {code}, which this version does not know",
        hint="a newer version of this library wrote it; treat it as a miss",
    )


def _decode_time(data: memoryview) -> time:
    hour, minute, second, rest = _TIME_PARTS.unpack_from(data)
    zone: tzinfo | None = None
    if len(data) > _TIME_PARTS.size:
        (offset,) = _OFFSET_MICROSECONDS.unpack(data[_TIME_PARTS.size :])
        zone = timezone(timedelta(microseconds=offset))
    return time(hour, minute, second, rest & ~_FOLD_BIT, zone, fold=rest >> 31)


_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(ext_hook=_decode_extension)
