"""How the rows of a table become Python rows: one plan for each table map.

Theory of operation. A row image is a bitmap of NULLs and then the fields of the other columns. Once the NULLs are
known, every distance up to the next field of variable length is a constant. So a plan compiles one function for each
NULL pattern that has come a few times: it unpacks each run of fixed fields in one call, cuts the variable ones, and
makes the row. A rare pattern is walked field by field. Both ways give the same row, which the tests compare. The
source text is made of numbers and of names of this module; a column's name is a value that the text refers to.

The functions read without looking at the end of the event. A truncated or damaged event raises on the way, or does
not end with its last row; then none of its rows is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from freshness.errors import FormatError
from freshness.stream.source import UNREADABLE, Operation, RowChange
from invalidator.binlog.rows.image import find_shapes
from invalidator.binlog.rows.layout import Period
from invalidator.binlog.rows.schema import describe_table
from invalidator.binlog.rows.value import ValueReader, find_reader
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.event import LogEvent
from invalidator.binlog.wire.fieldformat import FieldFormat, find_format
from invalidator.binlog.wire.rowevent import find_present, read_bitmaps
from invalidator.binlog.wire.tablemap import MappedColumn

PATTERNS_MAX: Final = 32
"""NULL patterns of one image that are compiled."""

WALKS_BEFORE_COMPILING: Final = 4
"""Rows of one NULL pattern that are walked: compiling costs as much as walking some hundred rows."""

WALKED_PATTERNS_MAX: Final = 1024
IMAGES_MAX: Final = 64
"""Bitmaps of columns of one table (binlog_row_image=MINIMAL). More than that start over."""

_NO_PARTIAL: Final = b""

Row = dict[str, object]
ReadImage = Callable[[bytes, int], tuple[Row, int]]
"""(packet, place of the image) → the row, and the place behind it."""


class RowPlan:
    """The rows of one table, as a table map announced it. Raises `FormatError` for a column of no known width."""

    def __init__(
        self,
        table: str,
        columns: Sequence[MappedColumn],
        flavor: str,
        key: tuple[str, ...] = (),
        period: Period | None = None,
    ) -> None:
        """``key``: names of the primary key's columns. ``period``: period of a system-versioned table, whose rows of
        the past are left out."""
        self._table = table
        self._period = period
        shown = columns
        if period is not None:
            shown = [column for column in columns if column.name not in period.hidden]
            key = tuple(name for name in key if name != period.end)
        self._shapes = find_shapes(shown, flavor)
        self._schema = describe_table(shown, key, flavor)
        json_columns = [place for place, column in enumerate(columns) if column.kind == types.JSON]
        self._json_bytes = (len(json_columns) + 7) // 8
        self._fields = []
        for place, column in enumerate(columns):
            form = find_format(column)
            json_place = json_columns.index(place) if place in json_columns else -1
            self._fields.append(_Field(column.name, form, find_reader(column, form, flavor), json_place))
        self._images: dict[bytes, _Image] = {}

    @property
    def is_versioned(self) -> bool:
        return self._period is not None

    def read(self, event: LogEvent, op: Operation) -> list[RowChange]:
        """All rows of the event. Raises whatever its bytes lead to."""
        bitmaps, place = read_bitmaps(event, len(self._fields), self._json_bytes)
        packet, end, table, shapes = event.packet, event.end, self._table, self._shapes
        schema = self._schema
        first = self._find_image(bitmaps.before)
        if place < end and not first.null_bytes:
            raise FormatError("a row event whose rows have no columns")
        read_first = first.read
        changes = []
        if bitmaps.after is not None:
            read_second, json_bytes = self._find_image(bitmaps.after).read, bitmaps.json_bytes
            partial = _NO_PARTIAL
            while place < end:
                before, place = read_first(packet, place)
                if json_bytes >= 0:
                    partial, place = _read_partial(packet, place, json_bytes)
                after, place = read_second(packet, place, partial)
                changes.append(RowChange(table, op, before, after, shapes, schema))
        elif op == "insert":
            while place < end:
                row, place = read_first(packet, place)
                changes.append(RowChange(table, op, None, row, shapes, schema))
        else:
            while place < end:
                row, place = read_first(packet, place)
                changes.append(RowChange(table, op, row, None, shapes, schema))
        if place != end:
            raise FormatError(f"the last row ends at {place} and not at {end}")
        return changes if self._period is None else list(_show_present(changes, self._period))

    def _find_image(self, bitmap: bytes) -> _Image:
        image = self._images.get(bitmap)
        if image is None:
            if len(self._images) >= IMAGES_MAX:
                self._images.clear()
            present = find_present(bitmap, len(self._fields))
            image = self._images[bitmap] = _Image([self._fields[place] for place in present])
        return image


_ENDLESS: Final = frozenset(map(datetime.fromisoformat, ("2038-01-19T03:14:07.999999", "2106-02-07T06:28:15.999999")))
"""The end of a row that is there, before and since MariaDB 11.5."""


def _show_present(changes: Iterable[RowChange], period: Period) -> Iterator[RowChange]:
    """The changes of the rows that are there. A row that becomes one of the past is deleted. Raises KeyError if an
    image lacks the end."""
    for change in changes:
        before, after = change.before, change.after
        if before is not None and before[period.end] not in _ENDLESS:
            before = None
        if after is not None and {**(change.before or {}), **after}[period.end] not in _ENDLESS:
            after = None
        op: Operation = "delete" if after is None else "insert" if before is None else "update"
        if before is not None or after is not None:
            yield replace(change, op=op, before=_cut(before, period), after=_cut(after, period))


def _cut(image: Mapping[str, object] | None, period: Period) -> Mapping[str, object] | None:
    if image is None:
        return None
    return {name: value for name, value in image.items() if name not in period.hidden}


def _read_partial(packet: bytes, place: int, json_bytes: int) -> tuple[bytes, int]:
    """The bitmap of JSON columns whose after-image is a difference, and the place behind it; no bytes for none."""
    option = packet[place]
    place += 1
    if option > 1:
        raise FormatError(f"the unknown binlog_row_value_options {option}")
    if not option:
        return _NO_PARTIAL, place
    partial = packet[place : place + json_bytes]
    return partial if any(partial) else _NO_PARTIAL, place + json_bytes


@dataclass(frozen=True, slots=True)
class _Field:
    """``json_place``: which of the table's JSON columns it is, -1 for another."""

    name: str
    form: FieldFormat
    reader: ValueReader
    json_place: int

    def read(self, packet: bytes, place: int, *, is_partial: bool) -> tuple[object, int]:
        size, decode = self.form.size, self.reader.decode
        value: object
        if self.form.is_fixed:
            [value] = struct.unpack_from(f"<{self.reader.code}", packet, place)
            place += size
        else:
            start = place + size
            place = start + int.from_bytes(packet[place:start], "little")
            value = packet[start:place]
        if is_partial:
            return UNREADABLE, place
        return value if decode is None else decode(value), place


class _Image:
    """The columns of one image of a row, and the functions that were compiled for it."""

    def __init__(self, fields: Sequence[_Field]) -> None:
        self._fields = fields
        self.null_bytes = (len(fields) + 7) // 8
        self._compiled: dict[bytes, ReadImage] = {}
        self._walks: dict[bytes, int] = {}

    def read(self, packet: bytes, place: int, partial: bytes = _NO_PARTIAL) -> tuple[Row, int]:
        """The row at ``place``, and the place behind it."""
        nulls = packet[place : place + self.null_bytes]
        read = self._compiled.get(nulls)
        if read is None:
            read = self._find_read(nulls)
        if read is None or partial:
            return self._walk(packet, place, nulls, partial)
        return read(packet, place)

    def _find_read(self, nulls: bytes) -> ReadImage | None:
        """None for a pattern that is not compiled, or not yet."""
        if len(self._compiled) >= PATTERNS_MAX or len(self._walks) > WALKED_PATTERNS_MAX:
            return None
        walks = self._walks[nulls] = self._walks.get(nulls, 0) + 1
        if walks <= WALKS_BEFORE_COMPILING:
            return None
        self._compiled[nulls] = read = _compile(self._fields, nulls)
        return read

    def _walk(self, packet: bytes, place: int, nulls: bytes, partial: bytes) -> tuple[Row, int]:
        row: Row = {}
        place += self.null_bytes
        null_bits, partial_bits = int.from_bytes(nulls, "little"), int.from_bytes(partial, "little")
        for index, field in enumerate(self._fields):
            if null_bits >> index & 1:
                row[field.name] = None
            else:
                is_partial = field.json_place >= 0 and bool(partial_bits >> field.json_place & 1)
                row[field.name], place = field.read(packet, place, is_partial=is_partial)
        return row, place


class _Source:
    """The text of one function, and what it names: ``u0`` … unpack, ``d0`` … decode, ``n0`` … are column names."""

    def __init__(self, null_bytes: int) -> None:
        self.names: dict[str, Any] = {"from_bytes": int.from_bytes}
        self._lines = ["def read(b, o):"]
        self._format, self._variables = f"{null_bytes}x", list[str]()
        self._runs = 0

    def add(self, code: str, variable: str) -> None:
        """Another field of the run of fixed fields."""
        self._format += code
        self._variables.append(variable)

    def end_run(self) -> None:
        unpacker = struct.Struct(f"<{self._format}")
        if unpacker.size:
            if self._variables:
                name = f"u{self._runs}"
                self.names[name] = unpacker.unpack_from
                self.line(f"{', '.join(self._variables)}, = {name}(b, o)")
            self.line(f"o += {unpacker.size}")
        self._format, self._variables = "", []
        self._runs += 1

    def line(self, text: str) -> None:
        self._lines.append(f" {text}")

    def compile(self) -> ReadImage:
        exec(compile("\n".join(self._lines), "<row reader>", "exec"), self.names)  # our own text, see the module
        read: ReadImage = self.names["read"]
        return read


_LENGTH_CODES: Final = {1: "B", 2: "H", 3: "3s", 4: "I"}


def _compile(fields: Sequence[_Field], nulls: bytes) -> ReadImage:
    source = _Source(len(nulls))
    null_bits = int.from_bytes(nulls, "little")
    pairs = []
    for index, field in enumerate(fields):
        variable = f"x{index}"
        source.names[f"n{index}"] = field.name
        if null_bits >> index & 1:
            pairs.append(f"n{index}: None")
            continue
        value, decode = variable, field.reader.decode
        if field.form.is_fixed:
            source.add(field.reader.code, variable)
        else:
            source.add(_LENGTH_CODES[field.form.size], "n")
            source.end_run()
            if field.form.size == 3:
                source.line("n = from_bytes(n, 'little')")
            source.line(f"{variable} = b[o:o + n]; o += n")
        if field.reader.is_utf_8:
            value = f"{variable}.decode()"
        elif decode is not None:
            source.names[f"d{index}"] = decode
            value = f"d{index}({variable})"
        pairs.append(f"n{index}: {value}")
    source.end_run()
    source.line(f"return {{{', '.join(pairs)}}}, o")
    return source.compile()
