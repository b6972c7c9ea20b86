"""How the value of each column type is stepped over in a row, and read where it is a number.

As source text, from which ``invalidator.binlog.keys.plan`` makes its functions; `NAMES` is what the texts call. Knows
widths, and nothing of keys.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from freshness.errors import FormatError
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.fieldvalue import INTEGER_BYTES, STRINGS, decimal_bytes
from invalidator.binlog.wire.tablemap import BLOBS, MappedColumn

_CODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}

NAMES: Final[Mapping[str, Any]] = {
    "from_bytes": int.from_bytes,
    **{
        f"u{size}": struct.Struct(f"<{code.upper()}").unpack_from for size, code in _CODES.items() if size > 1
    },
    **{f"i{size}": struct.Struct(f"<{code}").unpack_from for size, code in _CODES.items()},
}
"""What the texts call; the row's bytes are ``b``."""


class Step(NamedTuple):
    """How a column is stepped over: ``size`` bytes, or as many as its length in ``size`` bytes says.

    ``number``: the text that reads it as a number, with the place left open; "" where its bytes are taken. ``code``:
    the number in the format of `struct`; ``convert``: the text that makes it of what this gives, "" where it is it.
    """

    is_fixed: bool
    size: int
    number: str = ""
    code: str = ""
    convert: str = ""

    def read(self, place: str) -> str:
        return self.number.format(place) if self.number else f"b[{place}:{place} + {self.size}]"

    def length(self, place: str) -> str:
        """The text of the length that stands at this place."""
        return _LENGTHS[self.size].format(place)


_LENGTHS: Final = {
    1: "b[{0}]",
    2: "u2(b, {0})[0]",
    3: "from_bytes(b[{0}:{0} + 3], 'little')",
    4: "u4(b, {0})[0]",
}
_FIXED: Final = {
    types.FLOAT: 4,
    types.DOUBLE: 8,
    types.NULL: 0,
    types.DATE: 3,
    types.NEWDATE: 3,
    types.TIME: 3,
    types.DATETIME: 8,
    types.TIMESTAMP: 4,
}
_WITH_FRACTION: Final = {types.TIMESTAMP2: 4, types.DATETIME2: 5, types.TIME2: 3}


def find_step(column: MappedColumn, flavor: str) -> Step:
    kind = column.kind
    if kind in INTEGER_BYTES:
        return Step(True, INTEGER_BYTES[kind], *_number_texts(INTEGER_BYTES[kind], column.is_unsigned))
    if kind == types.YEAR:
        return Step(True, 1, "(b[{0}] and b[{0}] + 1900)", "B", "{0} and {0} + 1900")
    if kind in STRINGS or kind == types.VARCHAR_COMPRESSED:
        return Step(False, 1 if column.width < 256 else 2)
    if kind in BLOBS and column.width in _LENGTHS:
        return Step(False, column.width)
    if kind in _WITH_FRACTION and column.width <= 6:
        return Step(True, _WITH_FRACTION[kind] + (column.width + 1) // 2)
    if kind in (types.TIME, types.DATETIME, types.TIMESTAMP) and flavor == "mariadb":
        raise FormatError(
            f"column {column.name} has the temporal format of old servers, whose width is not in the binary log",
            hint="convert the table: SET GLOBAL mysql56_temporal_format=ON, then ALTER TABLE … FORCE",
        )
    if kind in _FIXED:
        return Step(True, _FIXED[kind])
    if kind == types.NEWDECIMAL:
        return Step(True, decimal_bytes(column.width, column.scale))
    if kind == types.BIT and 1 <= column.width <= 64:
        return Step(True, (column.width + 7) // 8)
    if kind in (types.ENUM, types.SET) and 1 <= column.width <= 8:
        return Step(True, column.width)
    raise FormatError(f"column {column.name} has the unknown type {kind} of width {column.width}")


def _number_texts(size: int, is_unsigned: bool) -> tuple[str, str, str]:
    if size == 3:
        signed = f"'little', signed={not is_unsigned}"
        return f"from_bytes(b[{{0}}:{{0}} + 3], {signed})", "3s", f"from_bytes({{0}}, {signed})"
    code = _CODES[size]
    if is_unsigned:
        return ("b[{0}]" if size == 1 else f"u{size}(b, {{0}})[0]"), code.upper(), ""
    return f"i{size}(b, {{0}})[0]", code, ""
