"""The server that takes a shard's writes: its head and its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pymysql.cursors import DictCursor

from freshness.algorithm.request import Head
from freshness.config.server import ServerAddress
from freshness.database.connection import (
    Connection,
    connect,
    executed_position,
    match_keys,
    order_rows,
    quote_name,
    server_identity,
    translated,
)
from freshness.errors import FreshnessError
from freshness.objects.registry import ObjectDefinition

Row = dict[str, Any]
Result = TypeVar("Result")


class Primary:
    """One connection, opened when it is needed and again after an error.

    ``flavor``: flavor of its positions; ``read_epoch``: returns the epoch of the heartbeat table, for
      `read_head`. All methods raise `SourceUnavailable` or `SourceUnsuitable`.
    """

    def __init__(self, address: ServerAddress, flavor: str, read_epoch: Callable[[], int] = lambda: 0) -> None:
        self._address = address
        self._flavor = flavor
        self._read_epoch = read_epoch
        self._connection: Connection | None = None

    def read_head(self) -> Head:
        """Epoch, position and identity. The epoch is read first: a position with an older epoch is UNKNOWN, which is
        safe. On a new connection: an old one outlives the role of its server, once its name leads to another one.
        """
        self.close()
        epoch = self._read_epoch()

        def read(connection: Connection) -> Head:
            # Behind a vtgate each statement may reach another server: the position is that server's or a later one's
            identity = server_identity(connection, self._flavor)
            return Head(executed_position(connection, self._flavor), epoch, identity)

        return self._run(read, "reading the head")

    def read_rows(
        self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]
    ) -> dict[bytes, Row] | dict[bytes, list[Row]]:
        """The rows of these keys by identity, without a key that has none; of a list all its rows for each key. Each
        SELECT has a snapshot of its own, so a row is never older than the statement that reads it."""
        if not keys:
            return {}
        build = definition.builder.build
        names = [column.name for column in definition.builder.columns]
        table = quote_name(str(definition.config.table))

        def read(some: Sequence[tuple[Any, ...]], order: str = "") -> list[Row]:
            sql = f"SELECT * FROM {table} WHERE {match_keys(names, len(some))}{order}"

            def run(connection: Connection) -> list[Row]:
                with connection.cursor(DictCursor) as cursor:
                    cursor.execute(sql, [value for key in some for value in key])
                    return list(cursor.fetchall())

            return self._run(run, "reading rows")

        if definition.config.is_list:
            order = order_rows(definition.order, definition.config.limit)
            return {definition.identity(build(key)): read([key], order) for key in keys}
        rows = read(keys)
        return {definition.identity(build([row[name] for name in names])): row for row in rows}

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _run(self, read: Callable[[Connection], Result], doing: str) -> Result:
        if self._connection is None:
            self._connection = connect(self._address)
        try:
            return read(self._connection)
        except FreshnessError:
            raise
        except Exception as error:
            self.close()
            raise translated(error, self._address, doing) from error
