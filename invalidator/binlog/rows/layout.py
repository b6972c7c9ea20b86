"""The primary key of each table, the columns that ``SELECT *`` shows, and the period of a system-versioned table.

The logs of MySQL and MariaDB tell the key beside each row. That of MariaDB does not tell which columns are shown, and
a VStream may lack the key. Layouts are read from the primary when they are needed, and again for a table that was
raised, since its columns may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from freshness.config.server import ServerAddress
from freshness.database.connection import connected, read_rows
from freshness.errors import FormatError

_COLUMNS: Final = """SELECT c.table_name, c.column_name, c.extra,
  CASE c.generation_expression WHEN 'ROW END' THEN NULL ELSE k.ordinal_position END
  FROM information_schema.columns AS c LEFT JOIN information_schema.key_column_usage AS k
  ON k.table_schema = c.table_schema AND k.table_name = c.table_name AND k.column_name = c.column_name
     AND k.constraint_name = 'PRIMARY'
  WHERE c.table_schema = DATABASE() ORDER BY k.ordinal_position"""


_PERIOD: Final = """SELECT t.table_type, c.column_name, c.generation_expression FROM information_schema.tables AS t
  JOIN information_schema.columns AS c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
  WHERE t.table_schema = DATABASE() AND t.table_name = %s"""
_VERSIONED: Final = "SYSTEM VERSIONED"
_UNNAMED: Final = ("row_start", "row_end")
"""The columns of a period without names in the definition: the log has them, and information_schema does not."""


class Period(NamedTuple):
    """``end``: the column by which a row that is there differs from one that was: both are in the log. ``hidden``:
    columns that no SELECT * shows."""

    end: str
    hidden: frozenset[str] = frozenset()


FindPeriod: TypeAlias = Callable[[str, Collection[str], Collection[str]], Period | None]
"""(table, its TIMESTAMP(6) columns in the log, those of the primary key) → the period; None for a table that is not
system-versioned. Raises `FormatError` if the table has changed since, and may have been."""


@dataclass(frozen=True, slots=True)
class Layout:
    """``key``: columns of the primary key, in its order; empty if there is none. ``columns``: all columns;
    ``visible``: columns that ``SELECT *`` shows."""

    key: tuple[str, ...]
    columns: frozenset[str]
    visible: frozenset[str]


Layouts: TypeAlias = Mapping[str, Layout]


def read_layouts(address: ServerAddress) -> dict[str, Layout]:
    """The layouts of all tables of a database, by name. Raises `SourceUnavailable` or `SourceUnsuitable`."""
    with connected(address, "reading the columns") as connection:
        rows = read_rows(connection, _COLUMNS)
    keys: dict[str, list[str]] = {}
    columns: dict[str, set[str]] = {}
    hidden: set[tuple[str, str]] = set()
    for table, column, extra, place in rows:
        columns.setdefault(table, set()).add(column)
        if place is not None:
            keys.setdefault(table, []).append(column)
        if "INVISIBLE" in str(extra).upper():
            hidden.add((table, column))
    return {
        table: Layout(
            tuple(keys.get(table, ())),
            frozenset(names),
            frozenset(name for name in names if (table, name) not in hidden),
        )
        for table, names in columns.items()
    }


def read_period(address: ServerAddress, table: str, moments: Collection[str], key: Collection[str]) -> Period | None:
    """See `FindPeriod`. Raises `SourceUnavailable` or `SourceUnsuitable`, too."""
    with connected(address, "reading the period") as connection:
        rows = read_rows(connection, _PERIOD, (table,))
    return find_period(rows, table, moments, key)


def find_period(
    rows: Sequence[tuple[Any, ...]], table: str, moments: Collection[str], key: Collection[str]
) -> Period | None:
    """See `FindPeriod`. ``rows``: type of the table, name and expression of each column."""
    names = {str(name) for _, name, _ in rows}
    if any(kind == _VERSIONED for kind, _, _ in rows):
        named = [str(name) for _, name, expression in rows if expression == "ROW END"]
        period = Period(named[0]) if named else Period(_UNNAMED[1], frozenset(_UNNAMED))
        return period if period.end in moments else None
    if any(name not in names and (name in key or name == _UNNAMED[1]) for name in moments):
        raise FormatError("it was perhaps system-versioned, and the server does not know it so any more")
    return None
