"""Values of rows in the forms of Debezium's connectors for MySQL and MariaDB, as JSON without a schema.

The modes, by Debezium's names: ``decimal.handling.mode=string``, ``time.precision.mode=microseconds``,
``binary.handling.mode=base64``, ``bigint.unsigned.handling.mode=long``. They render our values exactly. Called by
``invalidator.publish.envelope``. No I/O.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

import msgspec

from freshness.stream.source import UNREADABLE, Shape

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's own word for a value that the log does not tell. It is not null: a null would be a wrong value."""

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00")
_MICROSECOND: Final = timedelta(microseconds=1)
_SRID_BYTES: Final = 4
_UNKNOWN: Final = Shape("same")
_encode_document: Final = msgspec.json.Encoder(decimal_format="number").encode


def to_debezium_row(
    image: Mapping[str, object] | None, shapes: Mapping[str, Shape] | None
) -> dict[str, Any] | None:
    """A column that the table has and the log does not hold is `UNAVAILABLE`, as is a value that cannot be read."""
    if image is None:
        return None
    shapes = shapes or {}
    row = {name: to_debezium(value, shapes.get(name, _UNKNOWN)) for name, value in image.items()}
    return row | {name: UNAVAILABLE for name in shapes if name not in image}


def to_debezium(value: Any, shape: Shape) -> Any:
    """One value, which `freshness.stream.source.Shape` describes."""
    if value is None or value is UNREADABLE:
        return None if value is None else UNAVAILABLE
    match shape.rule:
        case "bit":
            # Debezium: one bit is a boolean, several are bytes from the lowest to the highest.
            if len(value) == 1:
                return value == "1"
            return _base64(int(value, 2).to_bytes((len(value) + 7) // 8, "little"))
        case "set":
            return ",".join(label for label in shape.labels if label in value)
        case "timestamp":
            return f"{value.isoformat()}Z"
        case "ascii":
            return value if isinstance(value, str) and value.isascii() else UNAVAILABLE
        case "binary":
            return _base64(value)
        case "untold":
            return _base64(value) if isinstance(value, bytes) else _to_document(value)
    return _by_type(value)


def _by_type(value: Any) -> Any:
    match value:
        case str():
            return value if _is_unicode(value) else UNAVAILABLE
        case int():
            return value
        case float():
            return value if math.isfinite(value) else UNAVAILABLE
        case Decimal():
            return format(value, "f")
        case datetime():
            return (value - _EPOCH) // _MICROSECOND
        case date():
            return (value - _EPOCH.date()).days
        case timedelta():
            return value // _MICROSECOND
        case bytes():
            # The one type without a text that comes as bytes and reads the same: a geometry, behind its SRID.
            srid = int.from_bytes(value[:_SRID_BYTES], "little")
            return {"wkb": _base64(value[_SRID_BYTES:]), "srid": srid or None}
    return UNAVAILABLE


def _to_document(value: Any) -> str:
    try:
        return _encode_document(_plain(value)).decode("utf-8")
    except (TypeError, ValueError):
        return UNAVAILABLE


def _plain(value: Any) -> Any:
    """A part of a document, with times as MySQL prints them. Raises `TypeError` for one that has no text."""
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case datetime():
            return value.isoformat(" ", "microseconds")
        case date():
            return value.isoformat()
        case time_of_day():
            return value.isoformat("microseconds")
        case None | bool() | int() | float() | str() | Decimal():
            return value
    raise TypeError(type(value))


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
