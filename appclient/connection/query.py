"""Statements of a read and their rows: what a loader is given, and what an uncached query returns.

Used by ``appclient.database``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.cursors import DictCursor

from freshness.config.server import ServerAddress
from freshness.database.connection import TIMEOUT_HINT, Connection, translated
from freshness.errors import FreshnessError, QueryTimedOut, SourceUnavailable, SourceUnsuitable
from freshness.position.token import EventToken, covers

Row = dict[str, Any]

DATABASE_ERRORS: Final = (pymysql.MySQLError, OSError, SourceUnavailable, SourceUnsuitable)
"""Errors of a server or a connection. Every other exception is the loader's own, or an interruption."""


@dataclass(frozen=True, slots=True)
class QueryExtras:
    """``event_token``: read before the rows; None where it was not asked for, where the server has none, or where a
    proxy asked two servers.

    ``fresher``: True where the rows contain all of the token that was sent; None where that is unknown. ``server``:
    the server that answered.
    """

    event_token: EventToken | None
    fresher: bool | None
    server: str


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows as dictionaries, and the evidence of their freshness."""

    rows: list[Row]
    extras: QueryExtras

    @classmethod
    def of(
        cls,
        rows: list[Row],
        token: EventToken | None,
        address: ServerAddress,
        *,
        sent: EventToken | None,
        is_token_shown: bool,
    ) -> QueryResult:
        """Rows that a server gave with this token. ``sent``: what the caller compares it with."""
        fresher = True if sent is not None and token is not None and covers(token, sent) else None
        server = f"{address.host}:{address.port}"
        return cls(rows, QueryExtras(token if is_token_shown else None, fresher, server))


class Unanswered(pymysql.OperationalError):
    """Nobody answered in time, not even that the statement has ended. It may be running still."""


@contextmanager
def answered_in_time() -> Iterator[None]:
    try:
        yield
    except pymysql.OperationalError as error:
        if isinstance(error.__context__, TimeoutError):
            raise Unanswered(*error.args) from error
        raise


def describe_problem(error: Exception, address: ServerAddress, doing: str) -> FreshnessError:
    if isinstance(error, Unanswered):
        return QueryTimedOut(
            f"{address.host}:{address.port}: {doing}: {error.args[1]} [{error.args[0]}]", hint=TIMEOUT_HINT
        )
    return translated(error, address, doing)


class LoaderConnection:
    """A loader's read-only view of one snapshot, on one connection to each shard that may hold the object's rows.

    As a rule that is one shard.
    """

    __slots__ = ("_connections", "is_in_step")

    def __init__(self, *connections: Connection) -> None:
        self._connections = connections
        self.is_in_step = True
        """Whether every statement has had its whole answer. Else the next answer may be that of a former one."""

    @classmethod
    def join(cls, parts: Iterable[LoaderConnection]) -> LoaderConnection:
        """All of their connections."""
        return cls(*(connection for part in parts for connection in part._connections))

    def query(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Row]:
        """All rows of one SELECT; where it runs on several shards, the rows of all, shard by shard."""
        rows: list[Row] = []
        self.is_in_step = False
        for connection in self._connections:
            with answered_in_time(), connection.cursor(DictCursor) as cursor:
                cursor.execute(sql, params)
                rows += cursor.fetchall()
        self.is_in_step = True
        return rows

    def query_one(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Row | None:
        """The only row, None where there is none. More than one raises `ValueError`."""
        rows = self.query(sql, params)
        if len(rows) > 1:
            raise ValueError(f"{len(rows)} rows where at most one was expected: {sql}")
        return rows[0] if rows else None
