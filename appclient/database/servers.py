"""The servers of a shard: each read runs on the first one that answers, on a connection of this library's own.

The connections only read (F108), and none ever holds uncommitted writes of the application (F19). A read goes to the
next server when one fails, and to the primary last; when all fail, it raises `SourceUnavailable`. A statement that
takes too long is ended, and not sent to another server (F109). ``appclient.database.choice`` says which server is
first; used by ``appclient.database.shard``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

from appclient.connection.own_pool import BorrowingPool, OwnPool
from appclient.connection.pool import Pool, nested_reads
from appclient.connection.query import DATABASE_ERRORS, Unanswered, describe_problem
from appclient.database.atleast import Behind
from appclient.database.choice import ServerChoice
from appclient.telemetry.observer import Observer, now_seconds
from freshness.algorithm.driver import running_clock
from freshness.algorithm.lookup import ReadServer
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, reset_session, translated
from freshness.database.session import NAME_IN_SESSION, set_up_sql
from freshness.errors import ConnectionsExhausted, FreshnessError, QueryTimedOut, SourceUnavailable, SourceUnsuitable
from freshness.network import BLOCKING, Network

log = logging.getLogger(__name__)

Result = TypeVar("Result")

ANSWER_SECONDS: Final = 1.0
"""How much longer than the server's own bound an answer is waited for, so that it is the server that ends a slow
statement. A client that gives up leaves it running."""

IS_LAST: Final = ContextVar("is_last", default=False)
"""Whether the read that runs asks the last replica before the primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How a process reaches servers.

    ``timeout_seconds``: limit of a statement. ``wait_seconds``: limit of the wait until a replica shows a commit;
    ``miss_wait_seconds``: until it shows what the cache requires of a miss.
    ``connections_max``: maximum of connections to each server. ``network``: how reads wait. ``open_connection``: in
    the place of `connect`.
    ``own_pools``: pools of the application, by host and port. ``zone``: zone of this process, "" for none.
    ``observer``: receiver of the reads of each server. ``permit_primary``: permission for one more read of
    the primary because the replicas lack what its rows must show.
    """

    timeout_seconds: float = 5.0
    wait_seconds: float = 0.05
    miss_wait_seconds: float = 0.0
    connections_max: int = 32
    network: Network = BLOCKING
    clock: Callable[[], float] = running_clock
    open_connection: Callable[..., Connection] | None = None
    own_pools: Mapping[tuple[str, int], OwnPool] = field(default_factory=dict)
    zone: str = ""
    observer: Observer | None = None
    permit_primary: Callable[[], bool] = lambda: True


DEFAULTS: Final = ServerAccess()


def close_open(connection: Connection | None) -> None:
    """Close a connection that is still open: pymysql raises for one that is closed."""
    if connection is not None and connection.open:
        connection.close()


class ShardServers:
    """The replicas of one shard, and its primary for when none of them answers."""

    def __init__(self, flavor: str, shard: Shard, access: ServerAccess) -> None:
        self._flavor, self._shard, self._access = flavor, shard, access
        self._choice = ServerChoice(shard.replicas, shard.primary, access.zone, access.clock)
        self._pools = {address: self._open_pool(address) for address in self._choice.servers}
        self._used: WeakSet[Connection] = WeakSet()
        """The connections that a query without a snapshot has had since they were set up."""

    def _open_pool(self, address: ServerAddress) -> Pool[Connection]:
        access = self._access
        if (own := access.own_pools.get((address.host, address.port))) is not None:
            borrowing = BorrowingPool(own, address, self._flavor, access.timeout_seconds)
            return cast("Pool[Connection]", borrowing)
        name = f"to {address.host}:{address.port}"
        return Pool(access.connections_max, name, close_open, access.network)

    def describe(self, address: ServerAddress) -> ReadServer:
        """The server, as the answer of a read names it."""
        return ReadServer(f"{address.host}:{address.port}", address == self._shard.primary)

    def is_permitted(self) -> bool:
        """Whether the primary gets one more read because of what the replicas lack, or may lack."""
        return not self._choice.is_avoided(self._shard.primary) and self._access.permit_primary()

    def run(
        self,
        read: Callable[[Connection, ServerAddress], Result],
        *,
        keeps_connection: bool = False,
        is_primary_first: bool = False,
    ) -> Result:
        """Run ``read`` on the first server that answers: one of the replicas, then the others, then the primary.

        A server that failed, and a replica that is late, is avoided for a while, unless all others fail too.
        ``read`` may be called again, but not after a statement of it took too long. ``keeps_connection``: the
        connection stays in use after ``read`` has returned. Raises `SourceUnavailable` when none answers.
        """
        failures: list[SourceUnavailable | SourceUnsuitable] = []
        primary, order = self._shard.primary, self._choice.find_order()
        if is_primary_first:
            order = [primary, *(address for address in order if address != primary)]
        for place, address in enumerate(order):
            is_last = address != primary and {*order[place + 1 : place + 2]} <= {primary}
            token = IS_LAST.set(is_last)
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
                if address != primary or len(order) == 1:
                    raise
                failures.append(error)  # the primary as a stand-in: the error of the replicas is shown first
            else:
                self._choice.note_answer(address)
                return result
            finally:
                IS_LAST.reset(token)
        failures.sort(key=lambda error: isinstance(error, SourceUnsuitable))
        raise SourceUnavailable(
            f"no server of {self._shard.lineage} answers: " + "; ".join(error.message for error in failures),
            hint=failures[0].hint,
        ) from failures[0]

    def _run_observed(
        self, address: ServerAddress, read: Callable[[Connection, ServerAddress], Result], keeps_connection: bool
    ) -> Result:
        observer = self._access.observer
        if observer is None:
            return self._run_on(address, read, keeps_connection)
        began_at = now_seconds()
        try:
            result = self._run_on(address, read, keeps_connection)
        except FreshnessError as error:
            seconds = now_seconds() - began_at
            if isinstance(error, Behind):
                observer.read_server(address, self._flavor, seconds)
            else:
                observer.fail_server(address, self._flavor, error, seconds)
            raise
        observer.read_server(address, self._flavor, now_seconds() - began_at)
        return result

    def _run_on(
        self, address: ServerAddress, read: Callable[[Connection, ServerAddress], Result], keeps_connection: bool
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
                if address != self._shard.primary:
                    raise  # every statement has had its answer, so the connection is in order
                close_open(connection)
                if kept is None or not pool.lends_idle:
                    raise
                # a name may lead to another server since then, and old connections to the previous primary
            except DATABASE_ERRORS as error:
                close_open(connection)
                problem = describe_problem(error, address, "reading")
                if isinstance(error, Unanswered):
                    self._choice.note_failure(address)
                is_gone = isinstance(problem, SourceUnavailable) and not isinstance(problem, QueryTimedOut)
                if kept is None or not pool.lends_idle or not is_gone:
                    raise problem from error
                # it was closed while idle: once more
            except BaseException:
                close_open(connection)
                raise
            finally:
                if not keeps:
                    self._give_back(address, connection)

    def _give_back(self, address: ServerAddress, connection: Connection | None) -> None:
        is_in_order = connection is not None and connection.open
        self._pools[address].give_back(connection if is_in_order else None)

    def _connect(self, address: ServerAddress) -> Connection:
        access = self._access
        connection = (access.open_connection or connect)(
            address, read_timeout_seconds=access.timeout_seconds + ANSWER_SECONDS, network=access.network
        )
        try:
            self._set_up(connection, address)
        except BaseException as error:
            connection.close()
            if isinstance(error, DATABASE_ERRORS):
                raise translated(error, address, "connecting") from error
            raise
        return connection

    def _set_up(self, connection: Connection, address: ServerAddress) -> None:
        """Prepare a new session."""
        with connection.cursor() as cursor:
            cursor.execute(set_up_sql(self._flavor, self._access.timeout_seconds, address.database))

    def _renew(self, connection: Connection, address: ServerAddress) -> None:
        """End a transaction, and whatever a stored function or a view has left in the session."""
        reset_session(connection)
        self._set_up(connection, address)
        self._used.discard(connection)

    def _close_changed(self, connection: Connection, address: ServerAddress) -> None:
        log.warning(
            "%s:%s: a session changed during a read, which is not stored: does a stored function set a variable?",
            address.host,
            address.port,
        )
        connection.close()

    def _new_question(self) -> tuple[str, str]:
        """The name of a statement's first column, by which the answer is known to be the one to this very statement;
        and the column: the name of the server that answers, NULL in a session that is not set up."""
        question = f"question_{random.getrandbits(48):012x}"
        return question, f"{NAME_IN_SESSION[self._flavor]} AS {question}"

    def _ask(
        self, connection: Connection, question: str, sql: str, params: Sequence[Any] = ()
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of the columns and the rows. Raises `SourceUnavailable` if they answer another question."""
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

    def is_own(self, address: ServerAddress) -> bool:
        """Whether the connections to this server are the library's own."""
        return isinstance(self._pools[address], Pool)

    @property
    def pools(self) -> list[tuple[str, Pool[Connection]]]:
        """The library's own pools of connections, each with the "host:port" of its server."""
        return [
            (f"{address.host}:{address.port}", pool)
            for address, pool in self._pools.items()
            if isinstance(pool, Pool)
        ]

    def close(self) -> None:
        """Close the idle connections. The next read opens them again."""
        for pool in self._pools.values():
            pool.close()
