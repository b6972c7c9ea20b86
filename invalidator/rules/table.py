"""Whether the tables of cached objects suit them: indexes that find the rows of a key, and a period that is logged
as rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from freshness.config.object import ObjectConfig
from freshness.database.connection import Connection, read_rows
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts

_INDEXES: Final = """SELECT table_name, index_name, column_name FROM information_schema.statistics
  WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index"""

_BY_TRANSACTION: Final = """SELECT table_name FROM information_schema.columns
  WHERE table_schema = DATABASE() AND generation_expression = 'ROW END' AND data_type = 'bigint'"""

_NOT_DECODED: Final = """SELECT table_name, column_name, data_type FROM information_schema.columns
  WHERE table_schema = DATABASE() AND data_type = 'vector' AND extra NOT LIKE '%INVISIBLE%'"""
"""MySQL sends them with a type of their own, MariaDB as bytes."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """``indexes``: columns of each index, in their order, by table. ``by_transaction``: tables that are
    system-versioned by transaction id. ``not_decoded``: columns of MySQL of a SELECT * that the driver does not
    decode, by table, with their types."""

    indexes: Mapping[str, Collection[tuple[str, ...]]]
    by_transaction: Sequence[str]
    not_decoded: Mapping[str, Sequence[str]]

    @classmethod
    def look(cls, connection: Connection) -> TableFacts:
        """Raises what pymysql raises."""
        columns: dict[tuple[str, str], list[str]] = {}
        for table, index, column in read_rows(connection, _INDEXES):
            columns.setdefault((str(table), str(index)), []).append(str(column))
        indexes: dict[str, list[tuple[str, ...]]] = {}
        for (table, _), names in columns.items():
            indexes.setdefault(table, []).append(tuple(names))
        by_transaction = sorted(str(table) for (table,) in read_rows(connection, _BY_TRANSACTION))
        not_decoded: dict[str, list[str]] = {}
        for table, column, kind in read_rows(connection, _NOT_DECODED):
            not_decoded.setdefault(str(table), []).append(f"{column} ({str(kind).upper()})")
        return cls(indexes, by_transaction, not_decoded)


def check_tables(server: ServerFacts, objects: Iterable[ObjectConfig], tables: TableFacts) -> Iterator[CheckFinding]:
    """``objects``: objects of the server's keyspace, whose tables and columns are there."""
    for table in tables.by_transaction:
        yield server.find(
            Rule.VERSIONED_BY_TRANSACTION,
            f"table {table} is system-versioned by transaction id, and each write to it raises all tables",
        )
    for entry in objects:
        not_decoded = tables.not_decoded.get(entry.table or "", ())
        if not_decoded and server.flavor == "mysql":
            yield server.find(
                Rule.NOT_DECODED,
                f"the driver does not decode {', '.join(not_decoded)} of table {entry.table}: each read of"
                f" {entry.name} raises an error",
            )
        wanted = dict(entry.members) if entry.table is None else {entry.table: entry.key}
        for table, columns in wanted.items():
            if columns and not _is_indexed(columns, tables.indexes.get(table, ())):
                names = ", ".join(f"`{column}`" for column in columns)
                statement = f"CREATE INDEX `{entry.name}_key` ON `{table}` ({names})"
                yield server.find(
                    Rule.NO_INDEX,
                    f"no index of {table} begins with {', '.join(columns)}: each miss of {entry.name} reads the"
                    " whole table",
                    statement,
                    statement,
                )


def _is_indexed(columns: tuple[str, ...], indexes: Iterable[tuple[str, ...]]) -> bool:
    wanted = {column.casefold() for column in columns}
    return any({column.casefold() for column in index[: len(wanted)]} == wanted for index in indexes)
