"""Reads inside the application's own open transaction: on its connection, past the cache (F19).

Uncommitted rows must not be stored, and a hit does not have them. Any connection of PEP 249 whose parameters are
written ``%s``. Used by ``appclient.reading``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

from appclient.connection.commits import find_transaction
from appclient.connection.query import LoaderConnection, Params, Row
from freshness.errors import ConfigError
from freshness.position.token import EventToken

Result = TypeVar("Result")


def find_driver_connection(connection: Any) -> Any:
    """The connection of PEP 249, also of an SQLAlchemy ``Connection``. Raises `ConfigError` for anything else."""
    if hasattr(connection, "cursor"):
        return connection
    raw = getattr(getattr(connection, "connection", None), "dbapi_connection", None)
    if raw is None:
        raise ConfigError(
            f"connection= got a {type(connection).__name__}",
            hint="expected a connection of PEP 249, or an SQLAlchemy Connection",
        )
    return raw


def is_dirty(connection: Any) -> bool:
    """Whether the connection can have uncommitted writes. A driver that does not say is taken for one in doubt."""
    return find_transaction(connection) is not False


class OwnConnection(LoaderConnection):
    """A loader's view of the application's connection. Values are as this session shows them."""

    __slots__ = ("_own",)

    def __init__(self, own: Any) -> None:
        super().__init__()
        self._own = own

    def _run(self, sql: str, params: Params) -> list[Row]:
        """Errors of the driver come out as they are."""
        with closing(self._own.cursor()) as cursor:
            cursor.execute(sql, params)
            names = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchall()
            return [dict(row if isinstance(row, Mapping) else zip(names, row, strict=True)) for row in rows]


class OpenedDatabase:
    """A connection in the place of `Database`, for loaders. It gives no token, so nothing is stored."""

    def __init__(self, opened: LoaderConnection) -> None:
        self._opened = opened
        self.shards: Mapping[str, OpenedDatabase] = defaultdict(lambda: self)
        """The shard of whatever lineage."""

    def rows_with_token(
        self,
        table: str,
        condition: str,
        params: Sequence[Any],
        at_least: EventToken | None = None,
        order: str = "",
        required: EventToken | None = None,
        servers: Any = None,
    ) -> tuple[list[Row], None]:
        """The rows of one SELECT as dictionaries by column, without a token. Raises as the connection does."""
        return self._opened.query(f"SELECT * FROM {table} WHERE {condition}{order}", params), None

    def snapshot(
        self,
        lineages: Sequence[str],
        load: Callable[[LoaderConnection], Result],
        at_least: Mapping[str, EventToken] | None = None,
        required: Mapping[str, Any] | None = None,
        servers: Any = None,
    ) -> tuple[Result, list[None]]:
        """The result of ``load`` on the connection, with None as the token of each lineage."""
        return load(self._opened), [None for _ in lineages]


def require_one_shard(object_name: str, lineages: Sequence[str], why: str) -> None:
    """Raise `ConfigError` if a key is read from several shards."""
    if len(lineages) > 1:
        raise ConfigError(
            f"object {object_name} is read from {len(lineages)} shards, and {why}",
            hint="read it alone and outside a transaction, or query each shard",
        )
