"""Row events to rows, on mysql-replication's decoder.

The library is used for decoding alone, one event at a time; its own stream loop is not, since that drops events
it does not know, row events without a table map, and reconnects by itself. What this module
adds: table maps of uninteresting tables are never handed to the library (a VECTOR column would kill the stream,
F62); an equal table map is decoded once; the outcome is checked (column names, column count, every byte
consumed); values that the library turns into None, although they are not NULL, become `UNREADABLE`.

A row that cannot be decoded is never skipped: the event's ``problem`` says so and the table is raised.
Called by ``invalidator.binlog.decoder``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymysql.protocol import MysqlPacket
from pymysqlreplication.constants import FIELD_TYPE, NONE_SOURCE
from pymysqlreplication.constants.CHARSET import charset_by_id
from pymysqlreplication.json_binary import JsonDiff
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from freshness.errors import StreamStopped
from freshness.stream.source import UNREADABLE, Operation, RowChange, Shape
from invalidator.binlog.rows.image import find_shapes
from invalidator.binlog.wire.event import CHECKSUM_BYTES, ROW_EVENTS, TABLE_MAP, Event, FormatDescription

_NO_TABLE: Final = 0xFFFFFF
"""The table id of a row event that only ends a statement."""

_STATEMENT_END: Final = 1
_UTF_BIG_ENDIAN: Final = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf32": "utf-32-be"}
_ASCII_LABELS_ARE_SAFE: Final = frozenset(("utf8", "utf8mb3", "utf8mb4", "ascii"))
_ROW_CLASSES: Final = frozenset((WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, PartialUpdateRowsEvent))
_NO_CHECKSUM: Final = b"\0" * CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class MappedTable:
    """What a TABLE_MAP event announces. ``columns`` is the library's description, None where it is not wanted or
    where ``problem`` says why it cannot be read."""

    database: str
    name: str
    wanted: bool
    body: bytes
    columns: Any = None
    unreadable_columns: frozenset[str] = frozenset()
    problem: str = ""
    shapes: Mapping[str, Shape] | None = None


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """One row event. ``table`` is None where it only ends a statement. With a ``problem`` the rows are not known.

    ``items``: the cache items that its rows concern, where those were asked for instead of ``changes``, else None.
    """

    table: MappedTable | None
    op: Operation
    ends_statement: bool
    changes: tuple[RowChange, ...] = ()
    problem: str = ""
    items: list[bytes] | None = None


class _Server:
    """What the library asks of its second connection, which we do not open."""

    charset = "utf8mb4"

    def __init__(self, flavor: str) -> None:
        self._flavor = flavor

    def _get_dbms(self) -> str:
        return self._flavor


class RowDecoder:
    """Holds the table maps of the log file that is being read."""

    def __init__(self, flavor: str, database: str, tables: frozenset[str]) -> None:
        self._flavor = flavor
        self._database = database
        self._tables = tables
        self._server = _Server(flavor)
        self._format = FormatDescription((), False)
        self._mapped: dict[int, MappedTable] = {}

    def start_file(self, description: FormatDescription) -> None:
        """Forget the table maps: a server that was restarted uses their numbers for other tables."""
        self._format = description
        self._mapped.clear()

    def map_table(self, event: Event) -> MappedTable:
        """Take note of a TABLE_MAP event."""
        body = event.body
        table_id = int.from_bytes(body[:6], "little")
        known = self._mapped.get(table_id)
        if known is not None and known.body == body:
            return known
        self._mapped[table_id] = table = self._read_table(event, body, table_id)
        return table

    def read_rows(self, event: Event) -> ChangedRows:
        """Decode a row event. Raises `StreamStopped` where no table map came before it (F61)."""
        table_id = int.from_bytes(event.packet[event.start : event.start + 6], "little")
        ends_statement = bool(event.packet[event.start + 6] & _STATEMENT_END)
        op: Operation = ROW_EVENTS[event.kind]  # type: ignore[assignment]
        if table_id == _NO_TABLE:
            return ChangedRows(None, op, ends_statement)
        table = self._mapped.get(table_id)
        if table is None:
            raise StreamStopped(
                f"row event at {event.log_pos} for table number {table_id}, which was not announced",
                hint="the stream was joined inside a transaction: resume from a GTID position (F61)",
            )
        if not table.wanted or table.problem:
            return ChangedRows(table, op, ends_statement, problem=table.problem)
        try:
            changes = tuple(self._decode(event, table, table_id, op))
        except Exception as error:  # noqa: BLE001 - whatever the library trips over, the table is raised
            problem = f"rows of {table.name} at {event.log_pos} cannot be decoded: {error!r}"
            return ChangedRows(table, op, ends_statement, problem=problem)
        return ChangedRows(table, op, ends_statement, changes)

    def _read_table(self, event: Event, body: bytes, table_id: int) -> MappedTable:
        offset = self._post_header_length(TABLE_MAP, 8)
        database, offset = _read_name(body, offset)
        name, _ = _read_name(body, offset)
        if database != self._database or name not in self._tables:
            return MappedTable(database, name, False, body)
        try:
            parsed = self._wrap(event, {}, frozenset((TableMapEvent,)))
            columns = parsed.get_table()
            unreadable = frozenset(_repair_columns(columns, parsed.optional_metadata, self._flavor))
        except Exception as error:  # noqa: BLE001 - as above; the rows of this table then raise it
            problem = f"the columns of {name} cannot be read: {error!r}"
            return MappedTable(database, name, True, body, problem=problem)
        if any(column.name is None for column in columns.columns):
            problem = f"the log has no column names of {name}: binlog_row_metadata is not FULL"
            return MappedTable(database, name, True, body, problem=problem)
        shapes = find_shapes(columns.columns, self._flavor)
        return MappedTable(database, name, True, body, columns, unreadable, shapes=shapes)

    def _decode(self, event: Event, table: MappedTable, table_id: int, op: Operation) -> Iterator[RowChange]:
        parsed = self._wrap(event, {table_id: table.columns}, _ROW_CLASSES)
        names = [column.name for column in table.columns.columns]
        if parsed.number_of_columns != len(names):
            raise ValueError(f"{parsed.number_of_columns} columns where the table map has {len(names)}")
        rows = parsed.rows
        if parsed.packet.read_bytes != parsed.event_size:
            raise ValueError(f"{parsed.packet.read_bytes} bytes of {parsed.event_size} were read")
        present = _present(names, parsed.columns_present_bitmap)
        if op == "update":
            present_after = _present(names, parsed.columns_present_bitmap2)
            for row in rows:
                before = _clean(row["before_values"], row["before_none_sources"], present, table)
                after = _clean(row["after_values"], row["after_none_sources"], present_after, table)
                yield RowChange(table.name, op, before, after, table.shapes)
            return
        for row in rows:
            values = _clean(row["values"], row["none_sources"], present, table)
            if op == "insert":
                yield RowChange(table.name, op, None, values, table.shapes)
            else:
                yield RowChange(table.name, op, values, None, table.shapes)

    def _wrap(self, event: Event, library_tables: dict[int, Any], allowed: frozenset[type]) -> Any:
        # The library takes it that a checksum ends the packet, and would leave out metadata where none does.
        padding = b"" if self._format.has_checksum else _NO_CHECKSUM
        packet = MysqlPacket(event.packet + padding, "utf8")
        wrapper = BinLogPacketWrapper(
            packet,
            library_tables,
            self._server,
            (8, 0, 0),
            self._format.has_checksum,
            allowed,
            None,
            None,
            None,
            None,
            False,
            False,
            False,
            True,
            False,
            False,
            self._format.post_header_lengths,
        )
        if wrapper.event is None:
            raise ValueError(f"the library drops event {event.kind}")
        return wrapper.event

    def _post_header_length(self, kind: int, default: int) -> int:
        lengths = self._format.post_header_lengths
        return lengths[kind - 1] if kind <= len(lengths) else default


def _read_name(body: bytes, offset: int) -> tuple[str, int]:
    """A name with its length before it and a zero after it, and the offset behind them."""
    if offset >= len(body):
        raise StreamStopped("a TABLE_MAP event is shorter than its names")
    end = offset + 1 + body[offset]
    return body[offset + 1 : end].decode("utf-8", "backslashreplace"), end + 1


def _present(names: list[str], bitmap: bytes) -> list[str]:
    return [name for place, name in enumerate(names) if bitmap[place >> 3] >> (place & 7) & 1]


def _clean(
    values: Mapping[str, Any], sources: Mapping[str, str], present: list[str], table: MappedTable
) -> dict[str, object]:
    """The columns that the image holds, with `UNREADABLE` for what the library cannot tell from NULL."""
    row: dict[str, object] = {}
    for name in present:
        value = values[name]
        if value is None:
            source = sources.get(name, NONE_SOURCE.NULL)
            if name in table.unreadable_columns:
                value = UNREADABLE
            elif source == NONE_SOURCE.EMPTY_SET:
                value = set()
            elif source != NONE_SOURCE.NULL:
                value = UNREADABLE
        elif isinstance(value, JsonDiff):
            value = UNREADABLE
        row[name] = value
    return row


def _repair_columns(table: Any, metadata: Any, flavor: str) -> Iterator[str]:
    """Correct the library's idea of character sets; the names of columns in which None may not be NULL."""
    charsets = iter(metadata.charset_collation_list or ())
    for column in table.columns:
        if TableMapEvent._is_character_column(column.type, dbms=flavor):
            number = next(charsets, None)
            if number is not None and charset_by_id(number, flavor) is None:
                # The library would take an unknown one for UTF-8.
                column.character_set_name = _name_unknown_charset(number, flavor)
            # It would read these in the byte order of this machine.
            column.character_set_name = _UTF_BIG_ENDIAN.get(
                column.character_set_name, column.character_set_name
            )
        elif column.type == FIELD_TYPE.ENUM:
            if not column.enum_values:
                yield column.name
            elif column.character_set_name not in _ASCII_LABELS_ARE_SAFE:
                # Labels are in the column's character set, and the library reads all as UTF-8.
                labels = column.enum_values
                column.enum_values = [
                    "",
                    *(label if label and label.isascii() else None for label in labels[1:]),
                ]
                if None in column.enum_values:
                    yield column.name
        elif column.type == FIELD_TYPE.SET and not (
            column.set_values
            and (
                column.character_set_name in _ASCII_LABELS_ARE_SAFE
                or all(map(str.isascii, column.set_values))
            )
        ):
            column.set_values = None
            yield column.name


def _name_unknown_charset(number: int, flavor: str) -> str:
    # MariaDB's uca1400 collations: 256 numbers for each of utf8mb3, utf8mb4, ucs2, utf16, utf32 from 2048 on.
    if flavor == "mariadb" and 2048 <= number < 2560:
        return "utf8"
    # No such codec in Python: the library then leaves the bytes as they are.
    return f"charset-{number}"
