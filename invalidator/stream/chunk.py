"""A chunk of a table: the next rows by primary key, as the log would have them, between two positions of the server.

The position before the SELECT is one that it shows (`reading_above`), the one after it holds all that it may have
shown. Values come in the log's form, so that a row reads the same whether it was changed or read again; a value whose
form in the log is uncertain is `UNREADABLE`. Runs in a thread of its own, takes no lock and writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connected, quote_name, read_rows
from freshness.database.walk import WalkedColumn, WalkedTable, above_key, read_walked_table, reading_above
from freshness.errors import ConfigError, FormatError
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.source import UNREADABLE
from freshness.values.json import from_json, to_json
from invalidator.charset import find_codec, is_exact

READ_SECONDS: Final = 20.0
"""How long the server may take for a chunk."""

Convert: TypeAlias = Callable[[Any], object]
"""A value as PyMySQL gives it, not None → as the log has it."""

_INTEGERS: Final = frozenset(("tinyint", "smallint", "mediumint", "int", "integer", "bigint"))
_TEXTS: Final = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
_BYTES: Final = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_GEOMETRIES: Final = frozenset(
    (
        *("geometry", "point", "linestring", "polygon", "geometrycollection", "geomcollection"),
        *("multipoint", "multilinestring", "multipolygon"),
    )
)
_ORDERED: Final = _INTEGERS | _TEXTS | _BYTES | {"decimal", "date", "datetime", "timestamp"}
"""Types of a key whose order is that of comparisons. An ENUM is ordered by number and compared by label; a FLOAT does
not equal its own text; a YEAR of 0 is compared as 2000."""

_EMPTY_LABEL: Final = re.compile("[(,]''[,)]")

_SAME: Final[Convert] = lambda value: value  # noqa: E731


class ReadRow(NamedTuple):
    """``key``: the values of the primary key, as the log has them; ``row``: the values of all columns."""

    key: tuple[object, ...]
    row: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows after ``after``. ``low``: position that the server showed before they were read; ``high``: position that
    the primary had executed after that. ``last``: key to go on after, for `read_chunk`; None if the table ends here.
    ``columns`` and ``key``: their names; none if the table is gone."""

    low: EventToken
    high: Position
    rows: Sequence[ReadRow]
    last: list[Any] | None
    columns: frozenset[str]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogTable:
    """A table with the conversion of each of its columns."""

    walked: WalkedTable
    selects: tuple[str, ...]
    converts: tuple[Convert, ...]

    def to_row(self, values: Sequence[Any]) -> ReadRow:
        """Raises `FormatError` if the key is unreadable."""
        row = {
            column.name: None if value is None else convert(value)
            for column, convert, value in zip(self.walked.columns, self.converts, values, strict=True)
        }
        key = tuple(row[name] for name in self.walked.key)
        if UNREADABLE in key:
            raise FormatError(
                f"table {self.walked.name} has a row whose key cannot be told: {values!r:.200}",
                hint="a zero date, or text that is not ASCII in a character set that Python reads differently",
            )
        return ReadRow(key, row)


def make_log_table(walked: WalkedTable) -> LogTable:
    """Raises `ConfigError` for a primary key by which rows cannot be read in order."""
    for column in walked.columns:
        if column.name in walked.key and (column.kind not in _ORDERED or _is_raw(column)):
            raise ConfigError(
                f"table {walked.name} cannot be refreshed: {column.name} of its primary key is {column.whole_type},"
                " and rows cannot be read in its order",
                hint="copy the table by other means, and start the stream at a token from before that",
            )
    forms = [_find_form(column) for column in walked.columns]
    return LogTable(walked, tuple(sql for sql, _ in forms), tuple(convert for _, convert in forms))


def _find_form(column: WalkedColumn) -> tuple[str, Convert]:
    """The expression to select, and what the log makes of its value."""
    name, kind, is_text_exact = quote_name(column.name), column.kind, is_exact(_charset_of(column))
    if kind in _INTEGERS | _BYTES | _GEOMETRIES | {"decimal", "double", "time", "year"}:
        return name, _SAME
    if _is_raw(column):
        return f"CAST({name} AS BINARY)", _SAME
    if kind in _TEXTS or kind == "enum":
        return name, _SAME if is_text_exact else lambda text: text if text.isascii() else UNREADABLE
    if kind == "set":
        has_empty_label = _EMPTY_LABEL.search(column.whole_type) is not None
        return name, partial(_to_set, is_exact=is_text_exact, has_empty_label=has_empty_label)
    if kind == "float":
        return f"{name} * 1e0", _SAME  # its own text has six digits
    if kind == "bit":
        return name, lambda value: f"{int.from_bytes(value, 'big'):0{column.precision}b}"
    if kind in ("date", "datetime", "timestamp"):
        return name, lambda value: value if isinstance(value, date) else UNREADABLE
    # JSON, UUID, INET6, VECTOR and what is new: only whether it is NULL
    return f"IF({name} IS NULL, NULL, 1)", lambda _: UNREADABLE


def _is_raw(column: WalkedColumn) -> bool:
    """Whether the log has bytes of the text: Python lacks the character set."""
    return column.kind in _TEXTS and find_codec(_charset_of(column)) is None


def _charset_of(column: WalkedColumn) -> str:
    return "utf8mb3" if column.charset == "utf8" else column.charset


def _to_set(text: str, *, is_exact: bool, has_empty_label: bool) -> object:
    if not is_exact and not text.isascii():
        return UNREADABLE
    if has_empty_label and not text:
        return UNREADABLE  # that label alone reads as no label
    return set(text.split(",")) if text else set()


def find_table(server: ServerAddress, name: str) -> LogTable | None:
    """The table as it is now; None if there is none. Raises as `make_log_table`, and what `connect` raises."""
    with connected(server, f"reading the columns of {name}") as connection:
        walked = read_walked_table(connection, name)
    return None if walked is None else make_log_table(walked)


def read_chunk(
    server: ServerAddress,
    flavor: str,
    shard: Shard,
    read_head: Callable[[], Position],
    is_shown_enough: Callable[[EventToken], bool],
    table: str,
    after: list[Any] | None,
    rows: int,
) -> Chunk | EventToken:
    """The next rows of a table, at most ``rows``, after a chunk's ``last``. Only the position that the server shows
    if ``is_shown_enough`` rejects it.

    A table that is gone has no rows. One whose key has other columns than ``after`` is read from its begin. Raises
    `ConfigError` and `FormatError` as `LogTable`, and what `connect` raises.
    """
    with (
        connected(server, f"reading {table}", read_timeout_seconds=READ_SECONDS) as connection,
        reading_above(connection, flavor, shard) as low,
    ):
        if not is_shown_enough(low):
            return low
        walked = read_walked_table(connection, table)
        if walked is not None:
            log_table = make_log_table(walked)
            found = read_rows(connection, *_select(log_table, after, rows))
    high = read_head()
    if walked is None:
        return Chunk(low, high, (), None, frozenset(), ())
    last = None
    if len(found) == rows:
        places = [[column.name for column in walked.columns].index(name) for name in walked.key]
        last = [to_json(found[-1][place]) for place in places]
    return Chunk(
        low,
        high,
        [log_table.to_row(values) for values in found],
        last,
        frozenset(column.name for column in walked.columns),
        walked.key,
    )


def _select(table: LogTable, after: list[Any] | None, rows: int) -> tuple[str, list[Any]]:
    walked = table.walked
    border = None if after is None else [from_json(value) for value in after]
    if border is not None and len(border) != len(walked.key):
        border = None
    condition, parameters = above_key(walked.key, border)
    order = ", ".join(map(quote_name, walked.key))
    sql = (
        f"SELECT {', '.join(table.selects)} FROM {quote_name(walked.name)}"
        f" WHERE {condition} ORDER BY {order} LIMIT %s"
    )
    return sql, [*parameters, rows]
