"""Rows and head of a primary, for the comparison. Runs on executors; reads only.

Each SELECT has a snapshot of its own, so a row is never older than the statement that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pymysql.cursors import DictCursor

from freshness.backends.database import Connection, connect, executed_position, quote_name, translated
from freshness.position import Position
from freshness.registry import ObjectDefinition
from spark.scope import PrimaryAddress

Row = dict[str, Any]
Result = TypeVar("Result")


class Primary:
    """One connection, opened when it is needed. Raises `SourceUnavailable` or `SourceUnsuitable`."""

    def __init__(self, server: PrimaryAddress) -> None:
        self._server = server
        self._connection: Connection | None = None

    def read_rows(self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]) -> dict[bytes, Row]:
        """The rows of these keys by identity. A key without a row is left out."""
        if not keys:
            return {}
        names = [column.name for column in definition.builder.columns]
        one = f"({', '.join(['%s'] * len(names))})"
        sql = (
            f"SELECT * FROM {quote_name(str(definition.config.table))} "
            f"WHERE ({', '.join(map(quote_name, names))}) IN ({', '.join([one] * len(keys))})"
        )

        def read(connection: Connection) -> list[Row]:
            with connection.cursor(DictCursor) as cursor:
                cursor.execute(sql, [value for key in keys for value in key])
                return list(cursor.fetchall())

        rows = self._run(read, "reading rows")
        build = definition.builder.build
        return {definition.identity(build([row[name] for name in names])): row for row in rows}

    def read_head(self) -> Position:
        """All that the primary has executed: an upper bound of what the rows read before it show."""
        flavor = self._server.flavor
        return self._run(lambda connection: executed_position(connection, flavor), "reading the head")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _run(self, read: Callable[[Connection], Result], doing: str) -> Result:
        if self._connection is None:
            self._connection = connect(self._server.address)
        try:
            return read(self._connection)
        except Exception as error:
            self.close()
            raise translated(error, self._server.address, doing) from error
