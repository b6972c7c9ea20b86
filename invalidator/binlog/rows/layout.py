"""The primary key of each table, and the columns that ``SELECT *`` shows.

The logs of MySQL and MariaDB tell the key beside each row. That of MariaDB does not tell which columns are shown, and
a VStream may lack the key. Layouts are read from the primary when they are needed, and again for a table that was
raised, since its columns may have changed. Called by the writers of the update stream and of the archive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from freshness.config.server import ServerAddress
from freshness.database.connection import connect, read_rows, translated

_COLUMNS: Final = """SELECT c.table_name, c.column_name, c.extra, k.ordinal_position
  FROM information_schema.columns AS c LEFT JOIN information_schema.key_column_usage AS k
  ON k.table_schema = c.table_schema AND k.table_name = c.table_name AND k.column_name = c.column_name
     AND k.constraint_name = 'PRIMARY'
  WHERE c.table_schema = DATABASE() ORDER BY k.ordinal_position"""


@dataclass(frozen=True, slots=True)
class Layout:
    """``key``: the primary key, in its order, empty where there is none. ``columns``: all of them; ``visible``: those
    that ``SELECT *`` shows."""

    key: tuple[str, ...]
    columns: frozenset[str]
    visible: frozenset[str]


Layouts: TypeAlias = Mapping[str, Layout]


def read_layouts(address: ServerAddress) -> dict[str, Layout]:
    """The layouts of all tables of a database, by name. Raises `SourceUnavailable` or `SourceUnsuitable`."""
    connection = connect(address)
    try:
        rows = read_rows(connection, _COLUMNS)
    except Exception as error:
        raise translated(error, address, "reading the columns") from error
    finally:
        connection.close()
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
