"""Reads of one shard that know how fresh they are; ``appclient.database.servers`` says on which server they run.

Every read takes its token first and its rows afterwards, on one connection to one server, outside any older
snapshot (F2, F17, F18). The server says its name with both: a proxy may ask two servers, and then the rows have no
token (F107).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import pymysql

from appclient.connection.query import (
    LoaderConnection,
    LoaderError,
    Params,
    QueryResult,
    Row,
    answered_in_time,
    run_loader,
    unwrap,
)
from appclient.database.atleast import (
    COMMITTED,
    WAIT_SHARE,
    behind,
    enclosed_by,
    is_of_the_past,
    parse_committed,
    wait_sql,
)
from appclient.database.required import (
    BUSY,
    LOCK,
    NOTHING_REQUIRED,
    KeyedRows,
    Required,
    Servers,
    giving_way,
    log_sql,
)
from appclient.database.servers import DEFAULTS, IS_LAST, ServerAccess, ShardServers, close_open
from freshness.algorithm.request import LATEST
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, executed_position
from freshness.errors import SourceUnavailable, SourceUnsuitable
from freshness.position import Position, parse_position
from freshness.position.token import EventToken, covers, lacks
from freshness.stream.heartbeat import HEARTBEAT_TABLE, parse_token, parse_until, token_sql, until_sql

log = logging.getLogger(__name__)

Result = TypeVar("Result")

EPOCH_SECONDS: Final = 1.0
"""Time that commit tokens reuse an epoch, in seconds."""

_NO_SUCH_TABLE: Final = 1146
_SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """One that was begun. ``token``: read before it, on the server ``server``."""

    connection: Connection
    address: ServerAddress
    token: EventToken | None
    server: str


class ShardDatabase(ShardServers):
    """One shard, read with tokens."""

    def __init__(self, flavor: str, shard: Shard, access: ServerAccess = DEFAULTS) -> None:
        super().__init__(flavor, shard, access)
        self.lineage = shard.lineage
        wait_max = access.timeout_seconds * WAIT_SHARE
        self._wait_seconds = min(access.wait_seconds, wait_max)
        self._miss_wait_seconds = min(access.miss_wait_seconds, wait_max)
        self._epoch: tuple[int, float] | None = None

    def query(
        self,
        sql: str,
        params: Params = None,
        *,
        include_event_token: bool = False,
        sent: EventToken | None = None,
        at_least: EventToken | None = None,
    ) -> QueryResult:
        """See `Database.query`."""
        token: EventToken | None = None
        if include_event_token or sent is not None or at_least is not None:
            rows, token, address = self._read_snapshot(lambda connection: connection.query(sql, params), at_least)
        else:
            rows, address = self.run(
                lambda connection, address: (self._query(connection, address, sql, params), address)
            )
        return QueryResult.of(rows, token, address, sent=sent, is_token_shown=include_event_token)

    def _query(self, connection: Connection, address: ServerAddress, sql: str, params: Params) -> list[Row]:
        opened = LoaderConnection(connection, network=self._access.network)
        rows = unwrap(run_loader(lambda view: view.query(sql, params), opened))
        if not opened.is_reusable:
            connection.close()
        elif self.is_own(address):
            self._used.add(connection)
        return rows

    def snapshot(
        self,
        load: Callable[[LoaderConnection], Result],
        at_least: EventToken | None = None,
        required: Required = NOTHING_REQUIRED,
        servers: Servers | None = None,
    ) -> tuple[Result, EventToken | None]:
        """Run ``load`` in one consistent snapshot, with the token that was read before it on the same server (F18,
        F33). ``at_least``: commits that the snapshot has; the others: see `run_showing`."""
        loaded, token, _ = self._read_snapshot(load, at_least, required, servers)
        return loaded, token

    def _read_snapshot(
        self,
        load: Callable[[LoaderConnection], Result],
        at_least: EventToken | None = None,
        required: Required = NOTHING_REQUIRED,
        servers: Servers | None = None,
    ) -> tuple[Result, EventToken | None, ServerAddress]:
        def read(
            connection: Connection, address: ServerAddress, shown: EventToken | None
        ) -> tuple[Result | LoaderError, EventToken | None, ServerAddress]:
            snapshot = self._begin(connection, address, at_least, shown, required.rows)
            opened = LoaderConnection(connection, network=self._access.network)
            with enclosed_by(self.lineage, snapshot.token, at_least) as enclosing:
                loaded = run_loader(load, opened)
            # If the loader caught an interruption, an answer may still be under way: nobody may read it.
            token = enclosing.bound(self._end(snapshot, opened))
            if token is None and at_least is not None and not isinstance(loaded, LoaderError):
                raise behind(address)
            return loaded, token, address

        loaded, token, address = self.run_showing(required.token, read, servers)
        return unwrap(loaded), token, address

    def begin_snapshot(
        self,
        at_least: EventToken | None = None,
        required: Required = NOTHING_REQUIRED,
        servers: Servers | None = None,
    ) -> ShardSnapshot:
        """Open a snapshot for a read that spans shards; the token was read before it. `end_snapshot` must follow."""

        def begin(connection: Connection, address: ServerAddress, shown: EventToken | None) -> ShardSnapshot:
            return self._begin(connection, address, at_least, shown, required.rows)

        return self.run_showing(required.token, begin, servers, keeps_connection=True)

    def run_showing(
        self,
        required: EventToken | None,
        read: Callable[[Connection, ServerAddress, EventToken | None], Result],
        servers: Servers | None = None,
        *,
        keeps_connection: bool = False,
    ) -> Result:
        """As `run`, on a replica that shows the events of ``required``, else on the primary (I10). If the primary
        does not answer, or gets no more such reads, on any replica, as without ``required``. `LATEST`: on the primary
        at once. ``servers``: gets the server that was read."""
        run = partial(self.run, keeps_connection=True) if keeps_connection else self.run
        if required is LATEST:
            required = None
            if len(self._choice.servers) > 1 and self.is_permitted():
                run = partial(run, is_primary_first=True)

        def noted(connection: Connection, address: ServerAddress, required: EventToken | None) -> Result:
            result = read(connection, address, required)
            if servers is not None:
                servers[self.lineage] = self.describe(address)
            return result

        if required is not None:
            with giving_way(self.lineage):
                return run(lambda connection, address: noted(connection, address, required))
        return run(lambda connection, address: noted(connection, address, None))

    def end_snapshot(self, snapshot: ShardSnapshot, opened: LoaderConnection | None) -> EventToken | None:
        """The token, None if a proxy asked two servers. ``opened``: the loader's view, None after an interruption."""
        try:
            token = self._end(snapshot, opened)
        except BaseException:
            snapshot.connection.close()
            raise
        finally:
            self._give_back(snapshot.address, snapshot.connection)
        return token

    def _begin(
        self,
        connection: Connection,
        address: ServerAddress,
        at_least: EventToken | None,
        required: EventToken | None,
        rows: Sequence[KeyedRows],
    ) -> ShardSnapshot:
        if connection in self._used:
            self._renew(connection, address)
        token, server = self._read_start(connection, address, at_least, required, may_lock=bool(rows))
        if token is not None and required is not None and rows and self._may_lock(address, token, required):
            token = self._lock_rows(connection, server, rows, token, required)
        with connection.cursor() as cursor:
            cursor.execute(_SNAPSHOT)
        return ShardSnapshot(connection, address, token, server)

    def _end(self, snapshot: ShardSnapshot, opened: LoaderConnection | None) -> EventToken | None:
        """A connection that is not in step, that fails now, or whose session is not as before is closed. The value
        was read before, but nobody says by whom."""
        connection, address, token = snapshot.connection, snapshot.address, snapshot.token
        if opened is None or not opened.is_in_step:
            close_open(connection)
            return None
        try:
            if token is not None:
                question, name = self._new_question()
                _, [(server, until)] = self._ask(
                    connection, question, f"SELECT {name}, {until_sql(self._flavor, token)}"
                )
                is_same = server == snapshot.server
                token = replace(token, until=parse_until(self._flavor, token, until)) if is_same else None
                if server is None:
                    self._close_changed(connection, address)
            if connection.open and self.is_own(address):
                self._renew(connection, address)
            elif not opened.is_reusable:
                close_open(connection)
            elif connection.open:
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
        except (pymysql.MySQLError, OSError) as error:
            log.info("a connection to %s:%s is closed: %s", address.host, address.port, error)
            close_open(connection)
            return None
        return token

    def rows_with_token(
        self,
        table: str,
        condition: str,
        params: Sequence[Any],
        at_least: EventToken | None = None,
        order: str = "",
        required: EventToken | None = None,
        servers: Servers | None = None,
    ) -> tuple[list[Row], EventToken | None]:
        """The rows of a table, and the token that was read before them on the same server. ``at_least``: commits that
        the rows have; ``required`` and ``servers``: see `run_showing`.

        ``table``, ``condition`` and ``order``, which follows it, are SQL. The table has a primary key. One statement
        returns the server's name and the rows, and has an answer even without rows.
        """

        wanted = KeyedRows(table, condition, params)

        def read(
            connection: Connection, address: ServerAddress, required: EventToken | None
        ) -> tuple[list[Row], EventToken | None]:
            token, server = self._read_start(connection, address, at_least, required)
            logged, lock = token, ""
            if token is not None and required is not None and self._may_lock(address, token, required):
                logged, lock = self._read_log(connection, server, [table], token, required)
            try:
                names, answers = self._select(connection, wanted, token, order, lock)
                token = logged
            except pymysql.MySQLError as error:
                if not lock or error.args[0] not in BUSY:
                    raise
                names, answers = self._select(connection, wanted, token, order)
            # Without a row, all is NULL; a primary key never is otherwise.
            rows = [
                dict(zip(names[2:], row[2:], strict=True))
                for row in answers
                if any(value is not None for value in row[2:])
            ]
            shown = None
            if token is not None and answers[0][0] == server:
                shown = replace(token, until=parse_until(self._flavor, token, answers[-1][1]))
            if answers[0][0] is None:
                self._close_changed(connection, address)
            if shown is None and at_least is not None:
                raise behind(address)
            return rows, shown

        return self.run_showing(required, read, servers)

    def _select(
        self, connection: Connection, wanted: KeyedRows, token: EventToken | None, order: str = "", lock: str = ""
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of the columns and the rows, each with the name of the server and the answer to `until_sql` in
        front."""
        table, condition, params = wanted
        question, name = self._new_question()
        one = f"(SELECT 1 AS {question}) AS {question}"
        if order:
            # Inside, an index can give the first rows; a join would read and sort all of them.
            its = f"(SELECT * FROM {table} WHERE {condition}{order}{lock}) AS {table} ON TRUE{order}"
        else:
            its = f"{table} ON {condition}{lock}"
        sql = f"SELECT {name}, {until_sql(self._flavor, token)}, {table}.* FROM {one} LEFT JOIN {its}"
        try:
            with answered_in_time():
                return self._ask(connection, question, sql, params)
        except UnicodeDecodeError as error:
            raise SourceUnsuitable(
                f"a column of {table} in {self.lineage} has bytes that the driver takes for text: {error}",
                hint="a VECTOR? make it INVISIBLE or keep it in another table; `invalidator check` names it",
            ) from error

    def _read_start(
        self,
        connection: Connection,
        address: ServerAddress,
        asked: EventToken | None,
        required: EventToken | None,
        *,
        may_lock: bool = True,
    ) -> tuple[EventToken | None, str]:
        """As `_read_asked`. Raises `Behind` for a server that does not show ``required``: a replica, unless it is the
        last one and the primary is down or gets no more such reads; the primary, if it is one no more."""
        token, server = self._read_asked(connection, address, asked)
        if required is None or not lacks(token, required):
            return token, server
        if address == self._shard.primary:
            if token is not None and not (may_lock and self._may_lock(address, token, required)):
                self._read_log(connection, server, (), token, required)
            return token, server
        if (waited := self._wait(connection, address, required, token, self._miss_wait_seconds)) is not None:
            if (observer := self._access.observer) is not None:
                observer.need_primary("waited")
            return waited
        if IS_LAST.get() and not self.is_permitted():
            return token, server
        raise behind(address)

    def _may_lock(self, address: ServerAddress, token: EventToken, required: EventToken) -> bool:
        """Whether a lock can show more than the token: on a MariaDB primary, in a session of this library."""
        is_primary, is_own = address == self._shard.primary, self.is_own(address)
        return self._flavor == "mariadb" and is_primary and is_own and not covers(token, required)

    def _read_log(
        self, connection: Connection, server: str, tables: Sequence[str], token: EventToken, required: EventToken
    ) -> tuple[EventToken, str]:
        """The token at the end of the primary's log, and the clause by which a SELECT shows that much of its rows.
        Raises `Behind` for a log that lacks ``required`` on a server that takes no writes: it was the primary."""
        question, name = self._new_question()
        sql, names = log_sql(self._flavor, tables)
        _, [(answering, is_read_only, end, count)] = self._ask(connection, question, f"SELECT {name}, {sql}", names)
        logged = replace(token, position=token.position.union(parse_position(self._flavor, str(end or ""))))
        if str(is_read_only) not in ("0", "OFF") and lacks(logged, required):
            raise behind(self._shard.primary)
        return (logged, LOCK) if answering == server and count == len(tables) else (token, "")

    def _lock_rows(
        self, connection: Connection, server: str, rows: Sequence[KeyedRows], token: EventToken, required: EventToken
    ) -> EventToken:
        """The token at the end of the log: a snapshot after it shows that much of these rows, since each was locked
        once. The token as it was if a writer holds one of them."""
        logged, lock = self._read_log(connection, server, [each.table for each in rows], token, required)
        if not lock:
            return token
        for wanted in rows:
            try:
                # All columns, as a lock of an index that has all that is asked for leaves the rows alone.
                _, answers = self._select(connection, wanted, None, lock=lock)
            except pymysql.MySQLError as error:
                if error.args[0] not in BUSY:
                    raise
                return token
            if answers[0][0] != server:
                return token
        return logged

    def _read_asked(
        self, connection: Connection, address: ServerAddress, asked: EventToken | None
    ) -> tuple[EventToken | None, str]:
        """As `read_token`, of a server that shows the commits of ``asked``. Raises `Behind` if no server is known to.
        The last replica before the primary waits for them. On the primary they may be of the past."""
        token, server = self.read_token(connection)
        if token is not None:
            self._choice.note_position(address, token.position)
            if (observer := self._access.observer) is not None and token.timestamp_us:
                age_seconds = time.time() - token.timestamp_us / 1e6
                observer.show_heartbeat(address, self.lineage, age_seconds)
        if asked is None or (token is not None and covers(token, asked)):
            return token, server
        if token is None:
            raise behind(address)
        if address == self._shard.primary:
            if is_of_the_past(asked, token) or self._has_committed(connection, asked, token, server):
                return token, server
            raise behind(address)
        if (waited := self._wait(connection, address, asked, token, self._wait_seconds)) is not None:
            return waited
        raise behind(address)

    def _wait(
        self,
        connection: Connection,
        address: ServerAddress,
        wanted: EventToken,
        shown: EventToken | None,
        seconds: float,
    ) -> tuple[EventToken, str] | None:
        """As `read_token`, of the last replica before the primary once it shows ``wanted``. None if it does not
        within ``seconds``, or did not when another read has just waited for it."""
        if shown is None or (wanted.lineage, wanted.epoch) != (shown.lineage, shown.epoch):
            return None
        if not seconds or not IS_LAST.get() or self._choice.is_wait_vain(address):
            return None
        question, name = self._new_question()
        sql = wait_sql(self._flavor, name, seconds)
        self._ask(connection, question, sql, [str(wanted.position)])
        token, server = self.read_token(connection)
        if token is not None and covers(token, wanted):
            return token, server
        self._choice.note_vain_wait(address)
        return None

    def _has_committed(self, connection: Connection, asked: EventToken, shown: EventToken, server: str) -> bool:
        """Whether the primary shows commits that have returned, which its token may lack on MariaDB alone (F2)."""
        if self._flavor != "mariadb" or asked.epoch != shown.epoch:
            return False
        question, name = self._new_question()
        _, [(asked_server, text)] = self._ask(connection, question, f"SELECT {name}, {COMMITTED}")
        return asked_server == server and parse_committed(text).contains(asked.position)

    def find_epoch(self) -> int:
        """The epoch of the shard's history, as of a second ago or later. An older epoch is safe: reads with such a
        commit token go to the primary. Raises `SourceUnavailable`, and `SourceUnsuitable` if no invalidator has
        prepared the shard."""
        known, now = self._epoch, self._access.clock()
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
        """A token whose position the server shows from now on, and the server's name. No token if no invalidator has
        prepared the server yet."""
        question, name = self._new_question()
        try:
            _, answers = self._ask(connection, question, token_sql(self._flavor, name))
        except pymysql.MySQLError as error:
            if error.args and error.args[0] == _NO_SUCH_TABLE and HEARTBEAT_TABLE in str(error):
                return None, ""
            raise
        if answers and answers[0][0] is None:
            raise SourceUnavailable(
                f"a session on a server of {self._shard.lineage} is not as it was set up",
                hint="does a stored function change it, or does a proxy in between choose another one?",
            )
        server = str(answers[0][0]) if answers else ""
        rows = [row[1:] for row in answers] if server else []
        return parse_token(self._flavor, self._shard.lineage, self._shard.name, rows), server
