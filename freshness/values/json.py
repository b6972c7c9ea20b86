"""Values of rows as JSON and back: the forms of the archive and of the stream (docs/update-stream.md).

Every value comes back as it was: a type that JSON lacks is an object with one key that begins with ``$``. No I/O and
no JSON text: the functions convert to and from the values that a JSON library writes and reads.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

from freshness.errors import FormatError
from freshness.stream.source import UNREADABLE

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
"""Larger ones are texts in an object: many readers of JSON would round them."""


def to_json_row(row: Mapping[str, object] | None) -> dict[str, Any] | None:
    """A row whose values JSON can hold. Raises `FormatError` for a value of a type that no source delivers."""
    return None if row is None else {name: to_json(value) for name, value in row.items()}


def from_json_row(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The row of which `to_json_row` made this. Raises `FormatError`."""
    return None if row is None else {name: from_json(value) for name, value in row.items()}


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def to_json(value: Any) -> Any:
    """One value. `from_json` is its inverse."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_unicode(value) else {"$text": _base64(value.encode("utf-8", "surrogatepass"))}
    if kind is int:
        return value if INTEGER_MIN <= value <= INTEGER_MAX else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") and _is_unicode(key) for key in value):
            return {key: to_json(part) for key, part in value.items()}
        return {"$object": [[to_json(key), to_json(part)] for key, part in value.items()]}
    if kind is list or kind is tuple:
        return [to_json(part) for part in value]
    return _special_to_json(kind, value)


def _special_to_json(kind: type, value: Any) -> dict[str, Any]:
    if value is UNREADABLE:
        return {"$unreadable": True}
    if kind is bytes or kind is bytearray:
        return {"$bytes": _base64(value)}
    if kind is Decimal:
        return {"$decimal": str(value)}
    if kind is datetime:
        return {"$datetime": value.isoformat()}
    if kind is date:
        return {"$date": value.isoformat()}
    if kind is time_of_day:
        return {"$time": value.isoformat()}
    if kind is timedelta:
        return {"$timedelta_us": value // timedelta(microseconds=1)}
    if kind is set or kind is frozenset:
        return {"$set": sorted(to_json(part) for part in value)}
    raise FormatError(
        f"a value of type {kind.__module__}.{kind.__qualname__} has no JSON form",
        hint="no source of this project delivers it: please report the column's type",
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_SPECIAL_FROM_JSON: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$unreadable": lambda _: UNREADABLE,
    "$text": lambda text: base64.b64decode(text, validate=True).decode("utf-8", "surrogatepass"),
    "$int": int,
    "$float": float,
    "$object": lambda pairs: {from_json(key): from_json(part) for key, part in pairs},
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$decimal": Decimal,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time_of_day.fromisoformat,
    "$timedelta_us": lambda count: timedelta(microseconds=count),
    "$set": lambda parts: {from_json(part) for part in parts},
}


def from_json(value: Any) -> Any:
    """The value of which `to_json` made this (a tuple comes back as a list). Raises `FormatError`."""
    if isinstance(value, list):
        return [from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if not name.startswith("$"):
        return {key: from_json(part) for key, part in value.items()}
    read = _SPECIAL_FROM_JSON.get(name) if len(value) == 1 else None
    if read is None:
        raise FormatError(
            f"{name!r} begins a value that this version does not know",
            hint=f"expected one of {', '.join(_SPECIAL_FROM_JSON)}, alone in its object",
        )
    try:
        return read(value[name])
    except FormatError:
        raise
    except (ValueError, TypeError, ArithmeticError) as error:
        raise FormatError(f"{name} of {str(value[name])[:60]!r}: {error}") from error
