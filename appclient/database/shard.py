"""Reads of one shard that know how fresh they are; ``appclient.database.choice`` says of which server.

Every read takes its token first and its rows afterwards, on one connection to one server, outside any older
snapshot (F2, F17, F18). The server says its name with both: a proxy may ask two servers, and then the rows have no
token (F107). The connections are this library's own, so none ever holds uncommitted writes of the application (F19),
and they only read (F108). A read goes to the next server when one fails, and to the primary last; when all fail, it
raises `SourceUnavailable`. A statement that takes too long is ended, and not sent to another server (F109).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import pymysql

from appclient.connection.own_pool import BorrowingPool, OwnPool
from appclient.connection.pool import Pool, nested_reads
from appclient.connection.query import (
    DATABASE_ERRORS,
    LoaderConnection,
    QueryResult,
    Row,
    Unanswered,
    answered_in_time,
    describe_problem,
)
from appclient.database.atleast import (
    COMMITTED,
    WAIT_SHARE,
    Behind,
    behind,
    enclosed_by,
    is_of_the_past,
    parse_committed,
    wait_sql,
)
from appclient.database.choice import ServerChoice
from appclient.telemetry.observer import Observer, now_seconds
from freshness.algorithm.driver import running_clock
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, executed_position, translated
from freshness.errors import (
    ConnectionsExhausted,
    FreshnessError,
    QueryTimedOut,
    SourceUnavailable,
    SourceUnsuitable,
)
from freshness.network import BLOCKING, Network
from freshness.position import Position
from freshness.position.token import EventToken, covers
from freshness.stream.heartbeat import HEARTBEAT_TABLE, SERVER_NAME, parse_token, token_sql

log = logging.getLogger(__name__)

Result = TypeVar("Result")

CONNECTIONS_MAX: Final = 32

ANSWER_SECONDS: Final = 1.0
"""How much longer than the server's own bound an answer is waited for, so that it is the server that ends a slow
statement. A client that gives up leaves it running."""

EPOCH_SECONDS: Final = 1.0
"""How long an epoch is taken for the present one where a commit token is made."""

_IS_LAST: Final = ContextVar("is_last", default=False)
"""Whether the read that runs asks the last replica before the primary."""

_NO_SUCH_TABLE: Final = 1146
_SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


def _session_sql(flavor: str, timeout_seconds: float) -> str:
    """Sessions that only read, each statement no longer than that."""
    if flavor == "mariadb":
        bound = f"max_statement_time = {timeout_seconds:.3f}"
        return f"SET SESSION tx_isolation = 'REPEATABLE-READ', tx_read_only = 1, {bound}"
    bound = f"max_execution_time = {timeout_seconds * 1000:.0f}"
    return f"SET SESSION transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 1, {bound}"


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """One that was begun. ``token``: read before it, on the server ``server``."""

    connection: Connection
    address: ServerAddress
    token: EventToken | None
    server: str


@dataclass(frozen=True, slots=True)
class _Raised:
    """An application's loader raised; the connection is in order."""

    error: Exception


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()


def _load(load: Callable[[LoaderConnection], Result], opened: LoaderConnection) -> Result | _Raised:
    """The loader's value, or what it raised while the connection was in step. All other exceptions come out."""
    try:
        return load(opened)
    except DATABASE_ERRORS:
        raise
    except Exception as error:
        if not opened.is_in_step:
            raise
        return _Raised(error)


class ShardDatabase:
    """One shard, read from its replicas, or from the primary where there are none that answer."""

    def __init__(
        self,
        flavor: str,
        shard: Shard,
        *,
        timeout_seconds: float = 5.0,
        connections_max: int = CONNECTIONS_MAX,
        wait_seconds: float = 0.05,
        network: Network = BLOCKING,
        clock: Callable[[], float] = running_clock,
        open_connection: Callable[..., Connection] | None = None,
        own_pools: Mapping[tuple[str, int], OwnPool] = MappingProxyType({}),
        zone: str = "",
        observer: Observer | None = None,
    ) -> None:
        self._flavor = flavor
        self._shard = shard
        self.lineage = shard.lineage
        self._timeout_seconds = timeout_seconds
        self._wait_seconds = min(wait_seconds, timeout_seconds * WAIT_SHARE)
        self._epoch: tuple[int, float] | None = None
        self._clock = clock
        self._open_connection = open_connection
        self._network = network
        self._observer = observer
        self._choice = ServerChoice(shard.replicas, shard.primary, zone, clock)
        self._servers = self._choice.servers
        self._pools: dict[ServerAddress, Pool[Connection]] = {
            address: Pool(connections_max, f"to {address.host}:{address.port}", _close, network)
            for address in self._servers
        }
        for address in self._servers:
            own = own_pools.get((address.host, address.port))
            if own is not None:
                borrowing = BorrowingPool(own, address, flavor, timeout_seconds)
                self._pools[address] = cast("Pool[Connection]", borrowing)

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        include_event_token: bool = False,
        sent: EventToken | None = None,
        at_least: EventToken | None = None,
    ) -> QueryResult:
        """See `Database.query`."""
        token: EventToken | None = None
        if include_event_token or sent is not None or at_least is not None:
            rows, token, address = self._read_snapshot(
                lambda connection: connection.query(sql, params), at_least
            )
        else:
            rows, address = self.run(
                lambda connection, address: (LoaderConnection(connection).query(sql, params), address)
            )
        return QueryResult.of(rows, token, address, sent=sent, is_token_shown=include_event_token)

    def snapshot(
        self, load: Callable[[LoaderConnection], Result], at_least: EventToken | None = None
    ) -> tuple[Result, EventToken | None]:
        """Run ``load`` in one consistent snapshot, with the token that was read before it on the same server (F18,
        F33). ``at_least``: commits that the snapshot has."""
        loaded, token, _ = self._read_snapshot(load, at_least)
        return loaded, token

    def _read_snapshot(
        self, load: Callable[[LoaderConnection], Result], at_least: EventToken | None = None
    ) -> tuple[Result, EventToken | None, ServerAddress]:
        def read(
            connection: Connection, address: ServerAddress
        ) -> tuple[Result | _Raised, EventToken | None, ServerAddress]:
            snapshot = self._begin(connection, address, at_least)
            opened = LoaderConnection(connection)
            with enclosed_by(self.lineage, snapshot.token, at_least):
                loaded = _load(load, opened)
            # Where the loader caught an interruption, nobody may read what is still under way.
            token = self._end(snapshot, is_in_step=opened.is_in_step)
            if token is None and at_least is not None and not isinstance(loaded, _Raised):
                raise behind(address)
            return loaded, token, address

        loaded, token, address = self.run(read)
        if isinstance(loaded, _Raised):
            raise loaded.error
        return loaded, token, address

    def begin_snapshot(self, at_least: EventToken | None = None) -> ShardSnapshot:
        """Open a snapshot for a read that spans shards; the token was read before it. `end_snapshot` must follow."""
        return self.run(
            lambda connection, address: self._begin(connection, address, at_least), keeps_connection=True
        )

    def end_snapshot(self, snapshot: ShardSnapshot, *, is_in_step: bool) -> EventToken | None:
        """The token, None where a proxy asked two servers. ``is_in_step``: see `LoaderConnection`."""
        try:
            token = self._end(snapshot, is_in_step=is_in_step)
        except BaseException:
            snapshot.connection.close()
            raise
        finally:
            self._give_back(snapshot.address, snapshot.connection)
        return token

    def _begin(
        self, connection: Connection, address: ServerAddress, at_least: EventToken | None
    ) -> ShardSnapshot:
        token, server = self._read_start(connection, address, at_least)
        with connection.cursor() as cursor:
            cursor.execute(_SNAPSHOT)
        return ShardSnapshot(connection, address, token, server)

    def _end(self, snapshot: ShardSnapshot, *, is_in_step: bool) -> EventToken | None:
        """A connection that is not in step, or that fails now, is closed. The value was read before, but nobody
        says by whom."""
        connection, address, token = snapshot.connection, snapshot.address, snapshot.token
        if is_in_step:
            try:
                if token is not None:
                    question, name = self._new_question()
                    _, [(server,)] = self._ask(connection, question, f"SELECT {name}")
                    token = token if server == snapshot.server else None
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
                return token
            except (pymysql.MySQLError, OSError) as error:
                log.info("a connection to %s:%s is closed: %s", address.host, address.port, error)
        connection.close()
        return None

    def rows_with_token(
        self,
        table: str,
        condition: str,
        params: Sequence[Any],
        at_least: EventToken | None = None,
        order: str = "",
    ) -> tuple[list[Row], EventToken | None]:
        """The rows of a table, and the token that was read before them on the same server. ``at_least``: commits that
        the rows have.

        ``table``, ``condition`` and ``order``, which follows it, are SQL. The table has a primary key. One statement
        returns the server's name and the rows, and has an answer where there are none.
        """

        def read(connection: Connection, address: ServerAddress) -> tuple[list[Row], EventToken | None]:
            token, server = self._read_start(connection, address, at_least)
            question, name = self._new_question()
            one = f"(SELECT 1 AS {question}) AS {question}"
            if order:
                # Inside, where an index can give the first rows; a join would read and sort all of them.
                its = f"(SELECT * FROM {table} WHERE {condition}{order}) AS {table} ON TRUE{order}"
            else:
                its = f"{table} ON {condition}"
            sql = f"SELECT {name}, {table}.* FROM {one} LEFT JOIN {its}"
            with answered_in_time():
                names, answers = self._ask(connection, question, sql, params)
            # A primary key is never NULL: all are, where there is no row.
            rows = [
                dict(zip(names[1:], row[1:], strict=True))
                for row in answers
                if any(value is not None for value in row[1:])
            ]
            shown = token if answers[0][0] == server else None
            if shown is None and at_least is not None:
                raise behind(address)
            return rows, shown

        return self.run(read)

    def _read_start(
        self, connection: Connection, address: ServerAddress, asked: EventToken | None
    ) -> tuple[EventToken | None, str]:
        """As `read_token`, of a server that shows the commits of ``asked``. Raises `Behind` where none is known to.

        The last replica before the primary waits for them. On the primary they may be of the past.
        """
        token, server = self.read_token(connection)
        if token is not None:
            self._choice.note_position(address, token.position)
            if self._observer is not None and token.timestamp_us:
                age_seconds = time.time() - token.timestamp_us / 1e6
                self._observer.show_heartbeat(address, self.lineage, age_seconds)
        if asked is None or (token is not None and covers(token, asked)):
            return token, server
        if token is None:
            raise behind(address)
        if address == self._shard.primary:
            if is_of_the_past(asked, token) or self._has_committed(connection, asked, token, server):
                return token, server
            raise behind(address)
        if (
            _IS_LAST.get()
            and self._wait_seconds
            and (asked.lineage, asked.epoch) == (token.lineage, token.epoch)
        ):
            question, name = self._new_question()
            sql = wait_sql(self._flavor, name, self._wait_seconds)
            self._ask(connection, question, sql, [str(asked.position)])
            token, server = self.read_token(connection)
            if token is not None and covers(token, asked):
                return token, server
        raise behind(address)

    def _has_committed(
        self, connection: Connection, asked: EventToken, shown: EventToken, server: str
    ) -> bool:
        """Whether the primary shows commits that have returned, which its token may lack on MariaDB alone (F2)."""
        if self._flavor != "mariadb" or asked.epoch != shown.epoch:
            return False
        question, name = self._new_question()
        _, [(asked_server, text)] = self._ask(connection, question, f"SELECT {name}, {COMMITTED}")
        return asked_server == server and parse_committed(text).contains(asked.position)

    def find_epoch(self) -> int:
        """The epoch of the shard's history, as of a second ago or later. A former one is safe: such a commit token is
        of the past, and reads with it go to the primary.

        Raises `SourceUnavailable`, and `SourceUnsuitable` where no invalidator has prepared the shard.
        """
        known, now = self._epoch, self._clock()
        if known is not None and 0 <= now - known[1] < EPOCH_SECONDS:
            return known[0]
        token, _ = self.run(lambda connection, _: self.read_token(connection))
        if token is None:
            raise SourceUnsuitable(
                f"{self.lineage} has no {HEARTBEAT_TABLE}, or no epoch in it",
                hint="run the invalidator once: it prepares the primary",
            )
        self._epoch = token.epoch, now
        return token.epoch

    def read_head(self) -> EventToken:
        """All that the primary has executed. Raises as `find_epoch`, and what the primary raises."""
        epoch = self.find_epoch()
        position = self._run_observed(
            self._shard.primary,
            lambda connection, _: executed_position(connection, self._flavor),
            keeps_connection=False,
        )
        return self.make_token(epoch, position)

    def make_token(self, epoch: int, position: Position) -> EventToken:
        """The shard's token of a position. Raises `FormatError` for one of another flavor."""
        return EventToken(self.lineage, self._shard.name, epoch, 0, position)

    def read_token(self, connection: Connection) -> tuple[EventToken | None, str]:
        """A token whose position the server shows from now on, and the server's name. No token where no invalidator
        has prepared the server yet."""
        question, name = self._new_question()
        try:
            _, answers = self._ask(connection, question, token_sql(self._flavor, name))
        except pymysql.MySQLError as error:
            if error.args and error.args[0] == _NO_SUCH_TABLE and HEARTBEAT_TABLE in str(error):
                return None, ""
            raise
        server = str(answers[0][0] or "") if answers else ""
        rows = [row[1:] for row in answers] if server else []
        return parse_token(self._flavor, self._shard.lineage, self._shard.name, rows), server

    def _new_question(self) -> tuple[str, str]:
        """The name of a statement's first column, by which the answer is known to be the one to this very statement;
        and the column, the name of the server that answers."""
        question = f"question_{random.getrandbits(48):012x}"
        return question, f"{SERVER_NAME[self._flavor]} AS {question}"

    def _ask(
        self, connection: Connection, question: str, sql: str, params: Sequence[Any] = ()
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of the columns and the rows. Raises `SourceUnavailable` where they are another question's."""
        with connection.cursor() as cursor:
            cursor.execute(sql, params or None)
            rows = list(cursor.fetchall())
            names = [str(column[0]) for column in cursor.description or ()]
        if names[:1] != [question]:
            raise SourceUnavailable(
                f"a server of {self._shard.lineage} gave the answer to another question",
                hint="the connection is one answer behind and was closed; is a proxy in between?",
            )
        return names, rows

    def run(
        self, read: Callable[[Connection, ServerAddress], Result], *, keeps_connection: bool = False
    ) -> Result:
        """Run ``read`` on the first server that answers: one of the replicas, then the others, then the primary.

        A server that failed, and a replica that is late, is avoided for a while, unless all others fail too.
        ``read`` may be called again, but not after a statement of it took too long. ``keeps_connection``: the
        connection stays in use after ``read`` has returned. Raises `SourceUnavailable` when none answers.
        """
        failures: list[SourceUnavailable | SourceUnsuitable] = []
        order = self._choice.find_order()
        for place, address in enumerate(order):
            is_last = self._shard.primary in order[place + 1 : place + 2]
            token = _IS_LAST.set(is_last)
            try:
                result = self._run_observed(address, read, keeps_connection)
            except (QueryTimedOut, ConnectionsExhausted):
                raise
            except Behind as error:
                failures.append(error)
            except SourceUnavailable as error:
                failures.append(error)
                self._choice.note_failure(address)
            except SourceUnsuitable as error:
                if address != self._shard.primary or len(order) == 1:
                    raise
                failures.append(error)  # the primary as a stand-in: the error of the replicas is shown first
            else:
                self._choice.note_answer(address)
                return result
            finally:
                _IS_LAST.reset(token)
        failures.sort(key=lambda error: isinstance(error, SourceUnsuitable))
        raise SourceUnavailable(
            f"no server of {self._shard.lineage} answers: " + "; ".join(error.message for error in failures),
            hint=failures[0].hint,
        ) from failures[0]

    def _run_observed(
        self,
        address: ServerAddress,
        read: Callable[[Connection, ServerAddress], Result],
        keeps_connection: bool,
    ) -> Result:
        observer = self._observer
        if observer is None:
            return self._run_on(address, read, keeps_connection)
        began_at = now_seconds()
        try:
            result = self._run_on(address, read, keeps_connection)
        except FreshnessError as error:
            if not isinstance(error, Behind):
                observer.fail_server(address, self._flavor, error, now_seconds() - began_at)
                raise
            observer.read_server(address, self._flavor, now_seconds() - began_at)
            raise
        observer.read_server(address, self._flavor, now_seconds() - began_at)
        return result

    def _run_on(
        self,
        address: ServerAddress,
        read: Callable[[Connection, ServerAddress], Result],
        keeps_connection: bool,
    ) -> Result:
        """The connection belongs to this read until it ends in order. After any exception, a signal handler's too,
        an answer may still be under way: the connection is closed, and nobody else ever reads from it (F46)."""
        while True:
            pool = self._pools[address]
            kept = connection = pool.take()
            keeps = False
            try:
                if connection is None:
                    connection = self._connect(address)
                with nested_reads():
                    result = read(connection, address)
                keeps = keeps_connection
                return result
            except Behind:
                raise  # every statement has had its answer, so the connection is in order
            except DATABASE_ERRORS as error:
                _close(connection)
                problem = describe_problem(error, address, "reading")
                if isinstance(error, Unanswered):
                    self._choice.note_failure(address)
                is_gone = isinstance(problem, SourceUnavailable) and not isinstance(problem, QueryTimedOut)
                if kept is None or not pool.lends_idle or not is_gone:
                    raise problem from error
                # it was closed while idle: once more
            except BaseException:
                _close(connection)
                raise
            finally:
                if not keeps:
                    self._give_back(address, connection)

    def _give_back(self, address: ServerAddress, connection: Connection | None) -> None:
        is_in_order = connection is not None and connection.open
        self._pools[address].give_back(connection if is_in_order else None)

    def _connect(self, address: ServerAddress) -> Connection:
        open_connection = self._open_connection or connect
        connection = open_connection(
            address, read_timeout_seconds=self._timeout_seconds + ANSWER_SECONDS, network=self._network
        )
        try:
            self._set_up(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, DATABASE_ERRORS):
                raise translated(error, address, "connecting") from error
            raise
        return connection

    def _set_up(self, connection: Connection) -> None:
        """Prepare a new session."""
        with connection.cursor() as cursor:
            cursor.execute(_session_sql(self._flavor, self._timeout_seconds))

    @property
    def pools(self) -> list[tuple[str, Pool[Connection]]]:
        """The library's own pools of connections, each with the "host:port" of its server."""
        return [
            (f"{address.host}:{address.port}", pool)
            for address, pool in self._pools.items()
            if isinstance(pool, Pool)
        ]

    def close(self) -> None:
        """Close the connections that no read uses just now. The next read opens them again."""
        for pool in self._pools.values():
            pool.close()
