"""The head of a row event: its table, its operation, and the columns that its row images hold.

A head that is too short raises; the rows behind it are left to the two decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from freshness.errors import FormatError, StreamStopped
from freshness.stream.source import Operation
from invalidator.binlog.wire.compression import PLAIN_KINDS
from invalidator.binlog.wire.event import ROW_EVENTS, TABLE_MAP, FormatDescription, LogEvent
from invalidator.binlog.wire.tablemap import NAMES_START, read_packed

OPERATIONS: Final[Mapping[int, Operation]] = {
    **ROW_EVENTS,  # type: ignore[dict-item]
    **{kind: ROW_EVENTS[plain] for kind, plain in PLAIN_KINDS.items()},  # type: ignore[misc]
}
"""Every row event, with the compressed ones."""

STATEMENT_END: Final = 1
"""The flag of the last row event of a statement."""

CASCADES_LOGGED: Final = 0x12
"""MySQL's flags of a row event that changes no row without logging it: 16 if the cascades of its rows are logged, too
(9.6), and 2 if foreign keys were not checked, so that nothing cascades."""

_NO_TABLE: Final = b"\xff\xff\xff\0\0\0"
"""The table id of a row event that only ends a statement."""

_PARTIAL_UPDATE: Final = 39
_FIRST_VERSION: Final = frozenset((23, 24, 25))
_FIXED_BYTES: Final = 8


class RowHead(NamedTuple):
    """``table_id`` is None if the event only ends a statement."""

    op: Operation
    table_id: bytes | None
    ends_statement: bool


class ImageBitmaps(NamedTuple):
    """The bitmaps of the columns in the images of each row. ``after`` is None but for an update. ``json_bytes``: size
    of the bitmap of partial values in front of an after-image, in bytes; -1 in an event without one."""

    before: bytes
    after: bytes | None
    json_bytes: int


def read_head(event: LogEvent) -> RowHead:
    """Raises `StreamStopped` for an event that is shorter than its head."""
    packet, start = event.packet, event.start
    if event.end < start + _FIXED_BYTES:
        raise StreamStopped(f"row event {event.kind} at {event.log_pos} is shorter than its head")
    table_id = packet[start : start + 6]
    ends_statement = bool(packet[start + 6] & STATEMENT_END)
    return RowHead(OPERATIONS[event.kind], None if table_id == _NO_TABLE else table_id, ends_statement)


def not_announced(event: LogEvent, table_id: bytes) -> StreamStopped:
    """The error for rows without a table map before them (F61)."""
    return StreamStopped(
        f"row event at {event.log_pos} for table number {int.from_bytes(table_id, 'little')},"
        " which was not announced",
        hint="the stream was joined inside a transaction: resume from a GTID position (F61)",
    )


def read_bitmaps(event: LogEvent, columns_count: int, json_bytes: int) -> tuple[ImageBitmaps, int]:
    """The bitmaps of a row event that is not compressed, and the place of its first row. Raises `FormatError`, and
    IndexError if the event ends early. ``columns_count``: number of columns in the table map; ``json_bytes``: size of
    its JSON bitmap, which has a bit for each JSON column, in bytes."""
    packet, kind = event.packet, event.kind
    place = event.start + _FIXED_BYTES
    if kind not in _FIRST_VERSION:
        extra = packet[place] | packet[place + 1] << 8
        if extra < 2:
            raise FormatError(f"{extra} bytes of extra information")
        place += extra
    count, place = read_packed(packet, place)
    if count != columns_count:
        raise FormatError(f"{count} columns where the table map has {columns_count}")
    size = (count + 7) >> 3
    before = packet[place : place + size]
    place += size
    after = None
    if OPERATIONS[kind] == "update":
        after = packet[place : place + size]
        place += size
    if place > event.end:
        raise FormatError("a row event shorter than its head")
    return ImageBitmaps(before, after, json_bytes if kind == _PARTIAL_UPDATE else -1), place


def find_present(bitmap: bytes, columns_count: int) -> tuple[int, ...]:
    """The places of the columns whose bit is set."""
    return tuple(place for place in range(columns_count) if bitmap[place >> 3] >> (place & 7) & 1)


def check_table_map_head(description: FormatDescription) -> None:
    """Raises `StreamStopped` for a log whose table maps have another head than all servers since MySQL 5.1 write."""
    lengths = description.post_header_lengths
    size = lengths[TABLE_MAP - 1] if len(lengths) >= TABLE_MAP else NAMES_START
    if size != NAMES_START:
        raise StreamStopped(f"table maps with a head of {size} bytes", hint="this log is of a very old server")
