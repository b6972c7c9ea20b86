"""Rows of one table for an external copy: read from the primary in ranges of the primary key, or decoded from the
stream.

Both ways give the same cells for the same row, so that a copy can be made of the one and kept up to date by the
other. A column that the two ways decode differently is refused before anything is read. Knows nothing of Spark but
its types. Runs on the driver and on executors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias, TypeVar

from pymysql.cursors import SSCursor
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connected, quote_name, read_rows
from freshness.database.walk import WalkedColumn, above_key, read_walked_table, reading_above
from freshness.errors import ConfigError, SourceUnavailable
from freshness.position import Position
from freshness.stream.source import UNREADABLE
from freshness.values.json import from_json_row

KEY: Final = "_key"
"""Column of the copy: the primary key as text, one for each row."""

PLACE: Final = ("_ordinal", "_row", "_part")
IS_GONE: Final = "_is_gone"
IS_WHOLE: Final = "_is_whole"
"""Columns of what the stream says of a table, beside the copy's own."""

FETCH_ROWS: Final = 2_000
_LENGTH: Final = "length"
_TEXT: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum")
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year")
_TYPES: Final[Mapping[str, DataType]] = {
    **dict.fromkeys(_TEXT, StringType()),
    **dict.fromkeys(_BYTES, BinaryType()),
    **dict.fromkeys(_WHOLE, LongType()),
    "date": DateType(),
    "datetime": TimestampNTZType(),
    "timestamp": TimestampNTZType(),
    "double": DoubleType(),
}

RowImage: TypeAlias = dict[str, Any] | None
"""A row, by column; None if it is not there."""


@dataclass(frozen=True, slots=True)
class CopyColumn:
    """``length``: length of a BINARY(n), whose zero bytes at the end the log leaves out; else 0."""

    name: str
    type: DataType
    length: int = 0

    def to_cell(self, value: Any) -> Any:
        """A value as PyMySQL or the log gives it, as the copy holds it. A zero date is null. Raises KeyError for any
        other value of the log that cannot be read."""
        if value is UNREADABLE and not isinstance(self.type, DateType | TimestampNTZType):
            raise KeyError(f"the value of {self.name} cannot be told")
        if value is None or value is UNREADABLE:
            return None
        if isinstance(self.type, StringType):
            return str(value)
        if isinstance(self.type, BinaryType):
            # Archives of earlier versions have an empty one as text.
            return (value.encode() if isinstance(value, str) else bytes(value)).ljust(self.length, b"\0")
        if isinstance(self.type, DecimalType):
            return Decimal(value)
        if isinstance(self.type, LongType):
            return int(value)
        if isinstance(self.type, DoubleType):
            return float(value)
        if isinstance(self.type, TimestampNTZType):
            return value if isinstance(value, datetime) else None  # PyMySQL gives text if it is not a time
        return value if isinstance(value, date) else None


@dataclass(frozen=True, slots=True)
class CopyTable:
    """``key``: names of the primary key's columns, in order."""

    name: str
    columns: tuple[CopyColumn, ...]
    key: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a copy's state. `from_json` is the inverse."""
        fields = [StructField(each.name, each.type, metadata={_LENGTH: each.length}) for each in self.columns]
        return {"name": self.name, "key": list(self.key), "schema": StructType(fields).jsonValue()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopyTable:
        """Raises KeyError, TypeError or ValueError for what `to_json` never gave."""
        columns = tuple(
            CopyColumn(each.name, each.dataType, each.metadata[_LENGTH])
            for each in StructType.fromJson(data["schema"])
        )
        return cls(data["name"], columns, tuple(data["key"]))

    def schema(self) -> StructType:
        return StructType(
            [StructField(KEY, StringType()), *(StructField(column.name, column.type) for column in self.columns)]
        )

    def change_schema(self) -> StructType:
        """The schema of changes: the copy's columns, with the place in the stream, and whether the row is gone."""
        place = [StructField(name, LongType()) for name in PLACE]
        flags = [StructField(name, BooleanType()) for name in (IS_GONE, IS_WHOLE)]
        return StructType([*place, *flags, *self.schema().fields])

    def to_row(self, lineage: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The row of the copy. Raises KeyError for a row that lacks a column."""
        cells = {column.name: column.to_cell(row[column.name]) for column in self.columns}
        return (self._key(lineage, cells), *cells.values())

    def to_changes(self, change: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Decode a row of the update stream: a row is gone, is there now, or both, if its key changed. A change that
        lacks columns (``binlog_row_image``, or the table has others now) is marked as not whole."""
        before, now = _read_images(change)
        return self._tell(change["lineage"], (change["ordinal"], change["row"]), before, now)

    def to_undone_changes(self, change: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The same for a change that is taken back: the row is there again as it was before, and places fall, so that
        of several the oldest is the newest. The image before must be whole: a column that it lacks cannot come from
        the image after."""
        before, now = _read_images(change)
        return self._tell(change["lineage"], (-change["ordinal"], -change["row"]), now, before)

    def _tell(
        self, lineage: str, place: tuple[int, int], gone: RowImage, here: RowImage
    ) -> Iterator[tuple[Any, ...]]:
        """The row is not under the key of ``gone`` any more, and is there as ``here`` is."""
        try:
            previous = None if gone is None else self._key_of(lineage, gone)
            now = None if here is None else self.to_row(lineage, here)
        except KeyError:
            yield (*place, 0, False, False, *(None,) * (len(self.columns) + 1))
            return
        if previous is not None and (now is None or previous != now[0]):
            yield (*place, 0, True, True, previous, *(None,) * len(self.columns))
        if now is not None:
            yield (*place, 1, False, True, *now)

    def _key_of(self, lineage: str, row: Mapping[str, Any]) -> str:
        columns = {column.name: column for column in self.columns}
        return self._key(lineage, {name: columns[name].to_cell(row[name]) for name in self.key})

    def _key(self, lineage: str, cells: Mapping[str, Any]) -> str:
        """A row that moves to another shard is another one: which of the two changes came first, nobody knows."""
        if any(cells[name] is None for name in self.key):
            raise KeyError("a part of the key cannot be told")
        return json.dumps([lineage, *(_spell(cells[name]) for name in self.key)])


def _read_images(change: Mapping[str, Any]) -> tuple[RowImage, RowImage]:
    """The row before the change, and after it, with what the log leaves out since it did not change."""
    before, after = (
        None if change[name] is None else from_json_row(json.loads(change[name])) for name in ("before", "after")
    )
    return before, None if after is None else {**(before or {}), **after}


def _spell(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return cell.hex()
    return cell if isinstance(cell, int | str) else str(cell)


def read_table(address: ServerAddress, table: str, left_out: Sequence[str] = ()) -> CopyTable:
    """The columns and the key of a table now. ``left_out``: columns that are not copied. Raises `ConfigError` for a
    table that cannot be copied, and what `connect` raises."""
    with connected(address, "reading the columns") as connection:
        found = read_walked_table(connection, table)
    if found is None:
        raise ConfigError(f"there is no table {address.database}.{table}", hint="is the name spelled so?")
    columns = tuple(_to_column(table, each) for each in found.columns if each.name not in left_out)
    if not set(found.key) <= {column.name for column in columns}:
        raise ConfigError(f"table {table}: the primary key cannot be left out")
    return CopyTable(table, columns, found.key)


def _to_column(table: str, column: WalkedColumn) -> CopyColumn:
    name, kind = column.name, column.kind
    if kind == "decimal" and column.precision <= 38:
        return CopyColumn(name, DecimalType(column.precision, column.scale))
    if kind == "bigint" and "unsigned" in column.whole_type.lower():
        return CopyColumn(name, DecimalType(20, 0))
    found = _TYPES.get(kind)
    if found is None or column.is_virtual:
        raise ConfigError(
            f"column {table}.{name} of type {column.whole_type} cannot be copied: the log and a client spell it"
            " differently",
            hint=f"leave it out with --leave-out {table}.{name}",
        )
    return CopyColumn(name, found, column.octets if kind == "binary" else 0)


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Rows with keys above ``after`` and up to ``until``; None for no limit."""

    after: tuple[Any, ...] | None
    until: tuple[Any, ...] | None


def find_spans(address: ServerAddress, table: CopyTable, rows: int) -> list[KeySpan]:
    """Ranges of about ``rows`` rows each, found by walking the primary key; in its order, together everything."""
    names = ", ".join(map(quote_name, table.key))
    borders: list[tuple[Any, ...] | None] = [None]
    with connected(address, f"walking the keys of {table.name}", read_timeout_seconds=READ_SECONDS) as connection:
        while True:
            condition, parameters = above_key(table.key, borders[-1])
            sql = f"SELECT {names} FROM {quote_name(table.name)} WHERE {condition}"
            sql += f" ORDER BY {names} LIMIT 1 OFFSET %s"
            found = read_rows(connection, sql, [*parameters, rows - 1])
            if not found:
                break
            borders.append(tuple(found[0]))
    return [KeySpan(*span) for span in zip(borders, [*borders[1:], None], strict=True)]


READ_SECONDS: Final = 600.0
"""How long the server may take for the next rows of a dump."""


ReadingBegin: TypeAlias = Callable[[Connection], AbstractContextManager[object]]
"""The frame of the SELECT of a range, on its connection."""


@contextmanager
def reading_shown(shard: Shard, position: Position, connection: Connection) -> Iterator[None]:
    """A transaction on a tablet of Vitess that shows the position, for any number of rows. Raises `SourceUnavailable`
    if the tablet does not show it, as after a failover that lost commits."""
    read_rows(connection, "SET workload = 'olap'")
    with reading_above(connection, position.flavor, shard) as low:
        if not low.position.contains(position):
            raise SourceUnavailable(
                f"the tablet of {shard.lineage} shows {low.position}, and not {position}",
                hint="another one is the primary now: run it again",
            )
        yield


def dump_span(
    lineage: str,
    address: ServerAddress,
    table: CopyTable,
    span: KeySpan,
    rows_per_second: float | None = None,
    begin: ReadingBegin = nullcontext,
) -> Iterator[tuple[Any, ...]]:
    """Rows of the copy, in one statement, which has a snapshot of its own. Raises as `connect`, and what ``begin``
    raises."""
    above, first = above_key(table.key, span.after)
    upto, last = ("TRUE", []) if span.until is None else _upto(table.key, span.until)
    names = ", ".join(quote_name(column.name) for column in table.columns)
    sql = f"SELECT {names} FROM {quote_name(table.name)} WHERE ({above}) AND ({upto})"
    with connected(address, f"reading {table.name}", read_timeout_seconds=READ_SECONDS) as connection:
        read_rows(connection, "SET time_zone = '+00:00'")
        with begin(connection), connection.cursor(SSCursor) as cursor:
            cursor.execute(sql, [*first, *last])
            for rows in pace(iter(lambda: cursor.fetchmany(FETCH_ROWS), ()), rows_per_second):
                for row in rows:
                    yield table.to_row(
                        lineage, dict(zip((column.name for column in table.columns), row, strict=True))
                    )


Rows = TypeVar("Rows", bound=Sequence[Any])


def pace(
    batches: Iterable[Rows],
    rows_per_second: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Rows]:
    """The batches until an empty one, on average no faster than ``rows_per_second``."""
    begun, rows = clock(), 0
    for batch in batches:
        if not batch:
            return
        yield batch
        rows += len(batch)
        if rows_per_second is not None:
            sleep(max(0.0, begun + rows / rows_per_second - clock()))


def _upto(key: Sequence[str], border: tuple[Any, ...]) -> tuple[str, list[Any]]:
    above, parameters = above_key(key, border)
    return f"NOT ({above})", parameters
