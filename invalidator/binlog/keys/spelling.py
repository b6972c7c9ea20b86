"""From the bytes of a key column to its spelling in a cache item, as `freshness.keys.keycolumn` spells it.

The common cases go straight from bytes to bytes; all others through the value and `KeyColumn.spell`. Both give the
same, which the tests compare. A value that has no spelling raises `FormatError`.
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Callable
from typing import Final

from freshness.errors import FormatError
from freshness.keys.keycolumn import TEXT_LENGTH_MAX, ColumnKind, KeyColumn
from freshness.stream.source import UNREADABLE
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.fieldvalue import (
    COMPRESSED,
    TEXTS,
    decode_date,
    decode_datetime,
    find_decoder,
    is_ascii_safe,
)
from invalidator.binlog.wire.tablemap import BINARY_COLLATION, MappedColumn

Spell = Callable[[bytes], bytes]
"""The bytes of a field, without those of its length → its coarse spelling."""

_PLAIN: Final = re.compile(rb"[A-Za-z0-9_.-]{0,%d}" % TEXT_LENGTH_MAX)
"""Text that is spelled as it is, in lower case."""


def find_spelling(column: MappedColumn, of_table: KeyColumn, of_object: KeyColumn, flavor: str) -> Spell:
    """How this column is spelled. ``of_table`` pads a BINARY(n), ``of_object`` is what the key is built by."""
    spell_any = _general(column, of_table, of_object, flavor)
    is_text = column.kind in TEXTS and column.kind not in COMPRESSED
    if of_object.kind is ColumnKind.BINARY and is_text and column.collation == BINARY_COLLATION:
        length = of_table.length
        return lambda raw: hexlify(raw.ljust(length, b"\0"))
    if of_object.kind is ColumnKind.STRING and is_text and is_ascii_safe(column.collation, flavor):
        is_plain = _PLAIN.fullmatch
        return lambda raw: raw.lower() if is_plain(raw) else spell_any(raw)
    if of_object.kind is ColumnKind.DATE and column.kind == types.DATE:
        return lambda raw: decode_date(raw).encode("ascii")
    if of_object.kind is ColumnKind.DATETIME and column.kind == types.DATETIME2:
        return _spell_datetime
    return spell_any


def _general(column: MappedColumn, of_table: KeyColumn, of_object: KeyColumn, flavor: str) -> Spell:
    decode = find_decoder(column, flavor)

    def spell(raw: bytes) -> bytes:
        value = decode(raw)
        if value is UNREADABLE:
            raise FormatError(f"the value of {of_table.name} cannot be told from the binary log")
        if column.kind == types.BIT and of_object.kind is ColumnKind.INTEGER:
            value = int.from_bytes(raw, "big")
        if isinstance(value, bytes):
            value = of_table.pad(value)
        return of_object.spell(value)[0].encode("ascii")

    return spell


def _spell_datetime(raw: bytes) -> bytes:
    date, _, time = decode_datetime(raw).partition(" ")
    if "." in time:
        time = time.rstrip("0").rstrip(".")
    return f"{date}T{time}".replace(":", "%3A").encode("ascii")
