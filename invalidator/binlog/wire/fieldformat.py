"""How the field of each column type lies in a row: its width, and how a number is read.

Numbers are read by source text, from which ``invalidator.binlog.keys.plan`` compiles its functions; `NAMES` is what
the texts call. Knows widths, and neither keys nor values.
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
    **{f"u{size}": struct.Struct(f"<{code.upper()}").unpack_from for size, code in _CODES.items() if size > 1},
    **{f"i{size}": struct.Struct(f"<{code}").unpack_from for size, code in _CODES.items()},
}
"""The functions that the texts call; the row's bytes are ``b``."""


class FieldFormat(NamedTuple):
    """A field is ``size`` bytes, or a length of ``size`` bytes and as many bytes as it says.

    ``number``: source text that reads a number, with its place left open; "" if the bytes are the value. ``code``:
    format of the number for `struct`. ``convert``: source text that makes the number from the result of `struct`;
    empty if `struct` returns the number.
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


_LENGTHS: Final = {1: "b[{0}]", 2: "u2(b, {0})[0]", 3: "from_bytes(b[{0}:{0} + 3], 'little')", 4: "u4(b, {0})[0]"}
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
_LABELLED_BYTES_MAX: Final = {types.ENUM: 2, types.SET: 8}
_WITH_FRACTION: Final = {types.TIMESTAMP2: 4, types.DATETIME2: 5, types.TIME2: 3}


def find_format(column: MappedColumn) -> FieldFormat:
    """Raises `FormatError` for a type or a width that is not known."""
    kind = column.kind
    if kind in INTEGER_BYTES:
        return FieldFormat(True, INTEGER_BYTES[kind], *_number_texts(INTEGER_BYTES[kind], column.is_unsigned))
    if kind == types.YEAR:
        return FieldFormat(True, 1, "(b[{0}] and b[{0}] + 1900)", "B", "{0} and {0} + 1900")
    if kind in STRINGS or kind == types.VARCHAR_COMPRESSED:
        return FieldFormat(False, 1 if column.width < 256 else 2)
    if kind in BLOBS and column.width in _LENGTHS:
        return FieldFormat(False, column.width)
    if kind in _WITH_FRACTION and column.width <= 6:
        return FieldFormat(True, _WITH_FRACTION[kind] + (column.width + 1) // 2)
    if kind in _FIXED:
        return FieldFormat(True, _FIXED[kind])
    if kind == types.NEWDECIMAL:
        return FieldFormat(True, decimal_bytes(column.width, column.scale))
    if kind == types.BIT and 1 <= column.width <= 64:
        return FieldFormat(True, (column.width + 7) // 8)
    if kind in _LABELLED_BYTES_MAX and 1 <= column.width <= _LABELLED_BYTES_MAX[kind]:
        return FieldFormat(True, column.width)
    raise FormatError(f"column {column.name} has the unknown type {kind} of width {column.width}")


def refuse_old_temporals(column: MappedColumn) -> None:
    """Raises `FormatError` for a temporal column in the format that MariaDB had before 10.1."""
    if column.kind in (types.TIME, types.DATETIME, types.TIMESTAMP):
        raise FormatError(
            f"column {column.name} has the temporal format of old servers, whose width is not in the binary log",
            hint="convert the table: SET GLOBAL mysql56_temporal_format=ON, then ALTER TABLE … FORCE",
        )


def _number_texts(size: int, is_unsigned: bool) -> tuple[str, str, str]:
    if size == 3:
        signed = f"'little', signed={not is_unsigned}"
        return f"from_bytes(b[{{0}}:{{0}} + 3], {signed})", "3s", f"from_bytes({{0}}, {signed})"
    code = _CODES[size]
    if is_unsigned:
        return ("b[{0}]" if size == 1 else f"u{size}(b, {{0}})[0]"), code.upper(), ""
    return f"i{size}(b, {{0}})[0]", code, ""
