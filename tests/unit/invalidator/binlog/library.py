"""Row events as mysql-replication decodes them: what our decoder is compared with.

The library is used for decoding alone, one event at a time. Repaired here is what it would get wrong: character sets
that it does not know or whose byte order it takes from this machine, labels that are not UTF-8, texts in JSON that it
leaves as bytes, no bytes that it shows as a text, and values that it turns into None although they are not NULL,
which become `UNREADABLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
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

from freshness.stream.source import UNREADABLE
from invalidator.binlog.wire.event import CHECKSUM_BYTES, FormatDescription, LogEvent
from invalidator.charset import find_codec

_UTF_BIG_ENDIAN: Final = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf32": "utf-32-be"}
_ASCII_LABELS_ARE_SAFE: Final = frozenset(("utf8", "utf8mb3", "utf8mb4", "ascii"))
_KNOWN: Final = frozenset((*_UTF_BIG_ENDIAN.values(), "utf8"))
_ROW_CLASSES: Final = frozenset((WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, PartialUpdateRowsEvent))
_FIRST_TIMESTAMP: Final = datetime.fromisoformat("1970-01-01T00:00:01")
_NO_CHECKSUM: Final = b"\0" * CHECKSUM_BYTES

Row = dict[str, object]
Images = tuple[Row | None, Row | None]
"""Before and after."""


@dataclass(frozen=True)
class _Table:
    columns: Any
    unreadable: frozenset[str]

    @property
    def kinds(self) -> dict[str, int]:
        return {column.name: column.type for column in self.columns.columns}

    @property
    def binary_lengths(self) -> dict[str, int]:
        return {
            column.name: column.max_length
            for column in self.columns.columns
            if column.type == FIELD_TYPE.STRING and column.character_set_name == "binary"
        }

    @property
    def of_bytes(self) -> frozenset[str]:
        """Columns whose values are bytes: binary, or in a character set that Python lacks."""
        return frozenset(
            column.name
            for column in self.columns.columns
            if TableMapEvent._is_character_column(column.type, dbms="mariadb")
            and column.character_set_name not in _KNOWN
            and find_codec(column.character_set_name or "") is None
        )


class _Server:
    """What the library asks of a second connection."""

    charset = "utf8mb4"

    def __init__(self, flavor: str) -> None:
        self._flavor = flavor

    def _get_dbms(self) -> str:
        return self._flavor


class LibraryDecoder:
    """One for each log file. Raises whatever the library raises."""

    def __init__(self, flavor: str, description: FormatDescription | None = None) -> None:
        self._flavor = flavor
        self._server = _Server(flavor)
        self._format = description or FormatDescription((), False)
        self._tables: dict[int, _Table] = {}

    def map_table(self, event: LogEvent) -> None:
        parsed = self._wrap(event, {}, frozenset((TableMapEvent,)))
        columns = parsed.get_table()
        unreadable = frozenset(_repair_columns(columns, parsed.optional_metadata, self._flavor))
        self._tables[parsed.table_id] = _Table(columns, unreadable)

    def read_rows(self, event: LogEvent) -> list[Images]:
        table_id = int.from_bytes(event.packet[event.start : event.start + 6], "little")
        table = self._tables[table_id]
        parsed = self._wrap(event, {table_id: table.columns}, _ROW_CLASSES)
        names = [column.name for column in table.columns.columns]
        assert parsed.number_of_columns == len(names)
        rows = parsed.rows
        assert parsed.packet.read_bytes == parsed.event_size, "every byte was read"
        present = _present(names, parsed.columns_present_bitmap)
        found: list[Images] = []
        for row in rows:
            if "after_values" in row:
                present_after = _present(names, parsed.columns_present_bitmap2)
                before = _clean(row["before_values"], row["before_none_sources"], present, table)
                after = _clean(row["after_values"], row["after_none_sources"], present_after, table)
                found.append((before, after))
                continue
            values = _clean(row["values"], row["none_sources"], present, table)
            found.append((None, values) if isinstance(parsed, WriteRowsEvent) else (values, None))
        return found

    def _wrap(self, event: LogEvent, tables: dict[int, Any], allowed: frozenset[type]) -> Any:
        # The library assumes a checksum at the end of the packet, and would otherwise cut off metadata.
        padding = b"" if self._format.has_checksum else _NO_CHECKSUM
        wrapper = BinLogPacketWrapper(
            MysqlPacket(event.packet + padding, "utf8"), tables, self._server, (8, 0, 0),
            self._format.has_checksum, allowed, None, None, None, None, False, False, False, True, False, False,
            self._format.post_header_lengths,
        )  # fmt: skip
        assert wrapper.event is not None, f"the library drops event {event.kind}"
        return wrapper.event


def _present(names: list[str], bitmap: bytes) -> list[str]:
    return [name for place, name in enumerate(names) if bitmap[place >> 3] >> (place & 7) & 1]


def _clean(values: Mapping[str, Any], sources: Mapping[str, str], present: list[str], table: _Table) -> Row:
    """The columns that the image holds, with `UNREADABLE` for what the library cannot tell from NULL."""
    row: Row = {}
    for name in present:
        value = values[name]
        if value is None:
            source = sources.get(name, NONE_SOURCE.NULL)
            if name in table.unreadable:
                value = UNREADABLE
            elif source == NONE_SOURCE.EMPTY_SET:
                value = set()
            elif source != NONE_SOURCE.NULL:
                value = UNREADABLE
        elif isinstance(value, JsonDiff):
            value = UNREADABLE
        elif table.kinds[name] == FIELD_TYPE.JSON:
            value = _with_texts(value)
        elif value == "" and name in table.of_bytes:
            value = b""
        row[name] = _as_shown(value, table.kinds[name], table.binary_lengths.get(name, 0))
    return row


def _as_shown(value: Any, kind: int, binary_length: int) -> Any:
    """What the library leaves as the log has it: YEAR 0, the zero TIMESTAMP, a BINARY without zero bytes."""
    if kind == FIELD_TYPE.YEAR and value == 1900:
        return 0
    if kind in (FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIMESTAMP2) and value is not None and value < _FIRST_TIMESTAMP:
        return UNREADABLE
    return value.ljust(binary_length, b"\0") if isinstance(value, bytes) else value


def _with_texts(document: Any) -> Any:
    """Bytes of a document are a text, a text is a value of SQL."""
    if isinstance(document, dict):
        return {_with_texts(key): _with_texts(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_with_texts(value) for value in document]
    return document.decode() if isinstance(document, bytes) else document


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
            column.character_set_name = _UTF_BIG_ENDIAN.get(column.character_set_name, column.character_set_name)
        elif column.type == FIELD_TYPE.ENUM:
            if not column.enum_values:
                yield column.name
            elif column.character_set_name not in _ASCII_LABELS_ARE_SAFE:
                # Labels are in the column's character set, and the library reads all as UTF-8.
                column.enum_values = [
                    "",
                    *(label if label and label.isascii() else None for label in column.enum_values[1:]),
                ]
                if None in column.enum_values:
                    yield column.name
        elif column.type == FIELD_TYPE.SET and not (
            column.set_values
            and (column.character_set_name in _ASCII_LABELS_ARE_SAFE or all(map(str.isascii, column.set_values)))
        ):
            column.set_values = None
            yield column.name


def _name_unknown_charset(number: int, flavor: str) -> str:
    # MariaDB's uca1400 collations: 256 numbers for each of utf8mb3, utf8mb4, ucs2, utf16, utf32 from 2048 on.
    if flavor == "mariadb" and 2048 <= number < 2560:
        return "utf8"
    # No such codec in Python: the library then leaves the bytes as they are.
    return f"charset-{number}"
