"""Statements of a read and their rows: what a loader is given, and what an uncached query returns.

Used by ``appclient.database``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import pymysql
from pymysql.cursors import DictCursor

from appclient.connection.statement import leaves_state, require_read
from freshness.config.server import ServerAddress
from freshness.database.connection import TIMEOUT_HINT, Connection, translated
from freshness.errors import ConfigError, FreshnessError, QueryTimedOut, SourceUnavailable, SourceUnsuitable
from freshness.network import BLOCKING, Network
from freshness.position.token import EventToken, covers

Result = TypeVar("Result")

Row = dict[str, Any]
Params: TypeAlias = Sequence[Any] | Mapping[str, Any] | None

DATABASE_ERRORS: Final = (pymysql.MySQLError, OSError, SourceUnavailable, SourceUnsuitable)
"""Errors of a server or a connection, if it was ours that raised them."""

WRONG_STATEMENT: Final = frozenset(
    (1052, 1054, 1055, 1060, 1064, 1065, 1066, 1109, 1111, 1115, 1140, 1222, 1241, 1242, 1247, 1248, 1250, 1253, 1270,
     1271, 1273, 1305, 1318, 1365, 1370, 1582, 1583, 1584, 1630, 1690, *range(3140, 3159))
)  # fmt: skip
"""Answers to a statement that no server would carry out."""

TURN_SECONDS: Final = 3600.0
"""How long a query of a loader waits for the others, each of which has a bound of its own, in seconds."""


@dataclass(frozen=True, slots=True)
class QueryExtras:
    """``event_token``: read before the rows; None if it was not requested, the server has none, or a proxy asked two
    servers. ``fresher``: True if the rows contain all of the token that was sent; None if that is unknown.
    ``server``: the server that answered."""

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
        """Rows that a server gave with this token. ``sent``: the token that the caller compares it with."""
        fresher = True if sent is not None and token is not None and covers(token, sent) else None
        server = f"{address.host}:{address.port}"
        return cls(rows, QueryExtras(token if is_token_shown else None, fresher, server))


class Unanswered(pymysql.OperationalError):
    """Nobody answered in time, not even that the statement has ended. It may be running still."""


@contextmanager
def answered_in_time() -> Iterator[None]:
    """Raise `Unanswered` for a pymysql error that a time-out caused."""
    try:
        yield
    except pymysql.OperationalError as error:
        if isinstance(error.__context__, TimeoutError):
            raise Unanswered(*error.args) from error
        raise


def describe_problem(error: Exception, address: ServerAddress, doing: str) -> FreshnessError:
    """The error to raise for a driver's: `QueryTimedOut` if nothing was answered in time."""
    if isinstance(error, Unanswered):
        return QueryTimedOut(
            f"{address.host}:{address.port}: {doing}: {error.args[1]} [{error.args[0]}]", hint=TIMEOUT_HINT
        )
    return translated(error, address, doing)


class LoaderConnection:
    """A loader's read-only view of one snapshot, on one connection to each shard that may hold the object's rows. As
    a rule that is one shard. Queries that a loader starts side by side, in threads, greenlets or tasks, run one after
    the other: an answer belongs to the query before it."""

    __slots__ = ("_connections", "_ended_by", "_gate", "_is_busy", "failure", "is_in_step", "is_reusable")

    def __init__(self, *connections: Connection, network: Network = BLOCKING) -> None:
        self._connections = connections
        self._gate = network.open_gate()
        self._is_busy = False
        self._ended_by = ""
        self.failure: Exception | None = None
        """The error of our server or connection that the last failed query raised. Every other one is the
        loader's own, whatever its class."""
        self.is_in_step = True
        """Whether every statement has had its whole answer. Else the next answer may belong to an earlier one."""
        self.is_reusable = True
        """Whether no statement has left a user variable or a lock in the session."""

    @classmethod
    def join(cls, parts: Sequence[LoaderConnection], network: Network = BLOCKING) -> LoaderConnection:
        """All of their connections."""
        return cls(*(connection for part in parts for connection in part._connections), network=network)

    def query(self, sql: str, params: Params = None) -> list[Row]:
        """All rows of ``sql``, one SELECT; on several shards, the rows of all, shard by shard. ``params``: values for
        its placeholders. Raises `SourceUnsuitable` for a statement that does not only read, `ConfigError` after the
        loader's end or an interruption."""
        require_read(sql)
        with self._turn():
            self.is_in_step = False
            if leaves_state(sql):
                self.is_reusable = False
            try:
                rows = self._run(sql, params)
            except DATABASE_ERRORS as error:
                self.failure = error
                raise
            except BaseException:
                self._ended_by = "an interruption"  # whose answer may be under way
                raise
            self.is_in_step = True
            return rows

    def _run(self, sql: str, params: Params) -> list[Row]:
        rows: list[Row] = []
        for connection in self._connections:
            with answered_in_time(), connection.cursor(DictCursor) as cursor:
                cursor.execute(sql, params)
                rows += cursor.fetchall()
        return rows

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._gate.wait_for(self._take_turn, TURN_SECONDS):
            raise QueryTimedOut(
                "a query of a loader waited too long for another one of it",
                hint="start fewer side by side: they run one after the other",
            )
        try:
            if self._ended_by:
                raise ConfigError(
                    f"a loader's connection was used after {self._ended_by}",
                    hint="await or join all that a loader starts before it returns",
                )
            yield
        finally:
            self._pass_turn()

    def _take_turn(self) -> bool:
        if self._is_busy:
            return False
        self._is_busy = True
        return True

    def _pass_turn(self) -> None:
        self._is_busy = False
        if self._gate.waiting:
            self._gate.wake()

    def end(self) -> None:
        """Let no query begin, and end one that is under way: its connection must be closed."""
        self._ended_by = "the loader's end"
        if self._is_busy:
            for connection in self._connections:
                interrupt(connection)
            if self._gate.wait_for(self._take_turn, TURN_SECONDS):
                self._pass_turn()
            self.is_in_step = False

    def query_one(self, sql: str, params: Params = None) -> Row | None:
        """The only row, or None, as by `query`. More than one raises `ValueError`."""
        rows = self.query(sql, params)
        if len(rows) > 1:
            raise ValueError(f"{len(rows)} rows where at most one was expected: {sql}")
        return rows[0] if rows else None


def interrupt(connection: Connection) -> None:
    """Let a query that waits for its answer fail. The socket stays open: its number must not become another one's
    while somebody waits for it. A connection of an own pool gives its answer, or fails, within its own bounds."""
    connected = getattr(connection, "_sock", None)
    if connected is not None:
        with suppress(OSError):  # it is broken already
            connected.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class LoaderError:
    """An error of an application's loader in the place of its value: no failure of our server."""

    error: Exception


def run_loader(load: Callable[[LoaderConnection], Result], opened: LoaderConnection) -> Result | LoaderError:
    """The loader's value, or its own error. Errors of our server, and interruptions, come out."""
    try:
        return load(opened)
    except Exception as error:
        if error is not opened.failure:
            return LoaderError(error)
        if isinstance(error, pymysql.MySQLError) and error.args[:1] and error.args[0] in WRONG_STATEMENT:
            raise SourceUnsuitable(
                f"a read of the cache sent a wrong statement: {error.args[1]} [{error.args[0]}]",
                hint="correct it, or grant what it needs",
            ) from error
        if isinstance(error, pymysql.ProgrammingError) and "format" in str(error.args[:1]):
            raise SourceUnsuitable(
                f"a read of the cache sent a wrong statement: {error.args[0]}",
                hint="give each %s one parameter, and write %% for a percent sign",
            ) from error
        raise
    finally:
        opened.end()


def unwrap(loaded: Result | LoaderError) -> Result:
    """The loader's value. Raises its own error."""
    if isinstance(loaded, LoaderError):
        raise loaded.error
    return loaded
