"""A row of the log as a client reads it, so that both have one digest.

The log and a SELECT show the same row differently: a BIT is text, a SET has no order. Only this module converts the
one to the other. The client's session is in UTC, as the log is (``freshness.database.connection``). If the log does
not show what a client reads, the result is None, never a wrong row. ``invalidator.vstream.value`` does the same for
the columns of a VStream. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from freshness.stream.source import UNREADABLE, Shape
from freshness.values.codec import row_digest
from invalidator.binlog.rows.layout import Layout
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.fieldvalue import INTEGER_BYTES, TEXTS, decode_labels
from invalidator.binlog.wire.tablemap import BINARY_COLLATION, MappedColumn
from invalidator.charset import find_charset, is_exact

_SAME: Final = frozenset(
    (
        *INTEGER_BYTES,
        *(
            types.DOUBLE,
            types.NEWDECIMAL,
            types.DATE,
            types.DATETIME2,
            types.TIME2,
            types.YEAR,
            types.ENUM,
            types.GEOMETRY,
        ),
    )
)
_READ_AS_LOGGED: Final = frozenset(("same", "binary", "timestamp"))

_MARIADB_ADDRESS_BYTES: Final = (4, 16)
"""On MariaDB, UUID, INET4 and INET6 look like BINARY of these lengths, and a client reads text."""


def find_shapes(columns: Iterable[MappedColumn], flavor: str) -> dict[str, Shape]:
    """By the columns' names."""
    return {column.name: _find_shape(column, flavor) for column in columns}


def _find_shape(column: MappedColumn, flavor: str) -> Shape:
    kind = column.kind
    if kind in _SAME:
        return Shape("same")
    if kind in TEXTS:
        return _find_text_shape(column, flavor)
    match kind:
        case types.FLOAT:
            return Shape("float")
        case types.BIT:
            return Shape("bit")
        case types.TIMESTAMP2:
            return Shape("timestamp")
        case types.SET:
            labels = decode_labels(column, flavor)
            texts = tuple(label for label in labels if isinstance(label, str))
            return Shape("set", texts) if len(texts) == len(labels) else Shape("untold")
    return Shape("untold")  # JSON: how does the server print it?


def _find_text_shape(column: MappedColumn, flavor: str) -> Shape:
    if column.collation != BINARY_COLLATION:
        return Shape("text" if is_exact(find_charset(column.collation, flavor)) else "ascii")
    is_fixed = column.kind == types.STRING
    if is_fixed and flavor == "mariadb" and column.width in _MARIADB_ADDRESS_BYTES:
        return Shape("untold")
    return Shape("binary")


def read_row(
    image: Mapping[str, object] | None, shapes: Mapping[str, Shape] | None, layout: Layout | None
) -> dict[str, object] | None:
    """The row that a client reads with ``SELECT *``, its columns in their order; None if the log does not show it. An
    image that leaves columns out (binlog_row_image) is not a row, and one with other columns than the layout's is
    from another time."""
    if image is None or shapes is None or layout is None:
        return None
    if image.keys() != shapes.keys() or image.keys() != layout.columns:
        return None
    row: dict[str, object] = {}
    for name, value in image.items():
        if name in layout.visible:
            row[name] = read = _as_read(value, shapes[name])
            if read is UNREADABLE:
                return None
    return row


def digest_image(
    image: Mapping[str, object] | None, shapes: Mapping[str, Shape] | None, layout: Layout | None
) -> bytes | None:
    """`freshness.values.codec.row_digest` of `read_row`; None if that is None."""
    row = read_row(image, shapes, layout)
    return None if row is None else row_digest(row)


def _as_read(value: Any, shape: Shape) -> object:
    """The value that PyMySQL returns, or `UNREADABLE`."""
    if value is None or value is UNREADABLE or shape.rule in _READ_AS_LOGGED:
        return value
    match shape.rule:
        case "text":
            is_told = isinstance(value, str)
        case "ascii":
            is_told = isinstance(value, str) and value.isascii()
        case "float":
            # The server prints 6 digits, or as many as FLOAT(M, D) says.
            is_told = float(f"{value:.6g}") == value
        case "untold":
            return UNREADABLE
        case "bit":
            return int(value, 2).to_bytes((len(value) + 7) // 8, "big")
        case "set":
            return ",".join(label for label in shape.labels if label in value)
    return value if is_told else UNREADABLE
