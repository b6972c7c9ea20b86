"""The writes of the ORM on each of Django's connections, and the commits that the reads of a session must have.

A connection notes each statement that can write. While its transaction is open the cache stands aside: its rows are
in no cache. When it is over, the token of its commits is taken, once, before the next cached read or the end of the
request. Nothing is registered with ``on_commit``, whose hooks an application's tests count.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connections
from django.db.backends.signals import connection_created

from appclient.cache import Cache
from appclient.connection.commits import COMMITTED_SQL, read_gtids
from appclient.connection.statement import SPACE, SessionWatch, calls_stored_function, is_several
from appclient.django.place import DatabaseRole, DjangoDatabases, place_of
from freshness.database.session import ISOLATION
from freshness.position.commit import CommitToken

log = logging.getLogger(__name__)

_READS: Final = re.compile(
    r"(?:\s|\(|--(?=\s)[^\n]*|/\*(?!!|M!).*?\*/)*"
    r"(?:SELECT|SHOW|EXPLAIN|DESCRIBE|DESC|USE|SET(?!\s+STATEMENT)|VALUES|SAVEPOINT|RELEASE|ROLLBACK\s+TO)\b",
    re.IGNORECASE | re.DOTALL,
)
_LOCKS: Final = re.compile(r"\bFOR\s+(?:UPDATE|SHARE)\b|\bLOCK\s+IN\s+SHARE\s+MODE\b", re.IGNORECASE)
_BEGINS: Final = re.compile(
    rf"{SPACE}*+(?:BEGIN|START{SPACE}++TRANSACTION|XA|(?:COMMIT|ROLLBACK)\b.*\bAND{SPACE}++CHAIN)\b",
    re.IGNORECASE | re.DOTALL,
)
_ENDS: Final = re.compile(r"\s*(?:COMMIT|ROLLBACK)\b(?!\s+TO)", re.IGNORECASE)
_CHOOSES: Final = re.compile(r"\bUSE\b", re.IGNORECASE)
_ALL_COMMITTED: Final = {"mariadb": "SELECT @@global.gtid_current_pos", "mysql": "SELECT @@global.gtid_executed"}
"""Statements for the commits of all sessions, if the session that has committed is gone."""


def may_write(sql: str, *, in_transaction: bool) -> bool:
    """Whether a statement can change rows, or locks them in a transaction: in doubt it does."""
    return (
        not _READS.match(sql)
        or (in_transaction and _LOCKS.search(sql) is not None)
        or calls_stored_function(sql)
        or is_several(sql)
    )


@dataclass(slots=True)
class Session:
    """The commits that reads have, of one request, or of a thread or task outside of any. They are forgotten after
    some time, as a token must not outlive the history that it is of."""

    token: CommitToken | None = None
    until: float = 0.0
    is_new: bool = False
    is_asked: bool = False
    """Whether a read has asked for the commits: the response is not another client's."""
    written: list[Any] = field(default_factory=list)
    """Django's connections that have written since their tokens were taken."""

    def find_token(self) -> CommitToken | None:
        """The commits to read, None without any or after their time."""
        if self.token is not None and time.monotonic() > self.until:
            self.token = None
        return self.token

    def add(self, token: CommitToken, seconds: float) -> None:
        """Add commits, to be read for ``seconds`` from now on."""
        previous = self.find_token()
        self.token = token if previous is None else previous.union(token)
        self.until = time.monotonic() + seconds
        self.is_new = True


_session: ContextVar[Session] = ContextVar("freshness_session")


def get_session() -> Session:
    """The session of the request, thread or task."""
    try:
        return _session.get()
    except LookupError:
        made = Session()
        _session.set(made)
        return made


def forget() -> None:
    """Begin another session for this thread or task. Tests call it, and long-running workers between their jobs."""
    _session.set(Session())


@contextmanager
def serving(session: Session) -> Iterator[None]:
    """The session of a request, for as long as it is served."""
    previous = _session.set(session)
    try:
        yield
    finally:
        _session.reset(previous)


@dataclass(slots=True)
class _Writes:
    """State of one of Django's connections. ``block``: outermost atomic block of the last write, or None.
    ``raw``: the driver's connection that wrote. ``has_begun``: whether a statement that Django does not see began
    it. ``watch``: watch of the driver's connection; ``isolation``, ``database``: its level and its database's name,
    each beside the connection that was asked."""

    block: Any = None
    raw: Any = None
    has_begun: bool = False
    watch: SessionWatch | None = None
    isolation: tuple[Any, str] = (None, "")
    database: tuple[Any, str] = (None, "")


def _writes_of(connection: Any) -> _Writes:
    found: _Writes | None = connection.__dict__.get("_freshness_writes")
    if found is None:
        found = connection.__dict__["_freshness_writes"] = _Writes()
    return found


def watch(*, connection: Any, **_: Any) -> None:
    """Note the statements of a connection that was just made: a receiver of ``connection_created``."""
    if connection.vendor != "mysql":
        return
    if note_statement not in connection.execute_wrappers:
        # In front: execute_wrapper() removes the last one when it ends
        connection.execute_wrappers.insert(0, note_statement)
    # Django's own statements at a reconnect were before
    writes = _writes_of(connection)
    writes.watch, writes.has_begun = SessionWatch(connection.connection), False


def note_statement(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """A wrapper of Django's for each statement. One that fails can have written all the same."""
    connection, text = context["connection"], str(sql)
    try:
        return execute(sql, params, many, context)
    finally:
        if may_write(text, in_transaction=connection.in_atomic_block):
            _note(connection)
            writes = _writes_of(connection)
            if _BEGINS.match(text):
                writes.has_begun = True
            elif _ENDS.match(text):
                writes.has_begun = False


def wrote(using: str = "default") -> None:
    """Tell that the database ``using`` has written where Django does not see it: by ``callproc``, by a function that
    a SELECT calls, or on the driver's own connection."""
    _note(connections[using])


def _note(connection: Any) -> None:
    writes = _writes_of(connection)
    writes.block = connection.atomic_blocks[0] if connection.in_atomic_block else None
    writes.raw = connection.connection
    session = get_session()
    if not any(each is connection for each in session.written):
        session.written.append(connection)


def is_dirty(connection: Any) -> bool:
    """Whether its open transaction can have written. Inside a TestCase it counts as one that has."""
    if connection.connection is None:
        return False
    writes = _writes_of(connection)
    if connection.in_atomic_block:
        # Without commit_on_exit the transaction began before the block, by hand
        if not connection.commit_on_exit or any(block._from_testcase for block in connection.atomic_blocks):
            return True
        return writes.block is connection.atomic_blocks[0]
    return not connection.autocommit or writes.has_begun


def has_own_rows(connection: Any) -> bool:
    """As `is_dirty`, or it has written, and nobody knows when a session that was changed commits (autocommit = 0)."""
    writes, raw = _writes_of(connection), connection.connection
    has_written = raw is not None and raw is writes.raw
    return is_dirty(connection) or (has_written and writes.watch is not None and writes.watch.is_changed)


def _begins_elsewhere(connection: Any) -> bool:
    """Whether another database than that of its settings was chosen as it began: by ``init_command``, or by a
    receiver of ``connection_created``. That decides for each connection, so one that is missing is made."""
    settings, writes = connection.settings_dict, _writes_of(connection)
    if _CHOOSES.search(str((settings.get("OPTIONS") or {}).get("init_command") or "")):
        return True
    if len(connection_created.receivers) <= 1:
        return False
    connection.ensure_connection()
    if writes.database[0] is not connection.connection:
        writes.database = connection.connection, _ask(connection.connection, "SELECT DATABASE()")
    return writes.database[1].lower() != place_of(settings)[2].lower()


def is_special(connection: Any) -> bool:
    """Whether its statements mean other rows than those of other sessions, or lock what they read."""
    if _begins_elsewhere(connection):
        return True
    raw = connection.connection
    if raw is None:
        return False
    writes = _writes_of(connection)
    if writes.watch is not None and writes.watch.is_special:
        return True
    if not connection.in_atomic_block:
        return False
    level = connection.isolation_level
    if not level:  # the server's own
        if writes.isolation[0] is not raw:
            variable = ISOLATION["mariadb" if connection.mysql_is_mariadb else "mysql"]
            writes.isolation = raw, _ask(raw, f"SELECT @@session.{variable}")
        level = writes.isolation[1]
    return str(level).upper() == "SERIALIZABLE"


def take_tokens(session: Session, cache: Cache, places: DjangoDatabases, seconds: float) -> None:
    """Add the commits of the session's connections to it, which then reads its own writes. Raises Django's errors of
    the database, and those of `Database.commit_token_of`: then the commits stay pending."""
    for connection in list(session.written):
        if is_dirty(connection):
            continue
        server = places.find(connection.settings_dict)
        if server is not None and server.is_primary:
            gtids = _read_committed(connection, server)
            token = cache.database(server.keyspace).commit_token_of(gtids, shard=server.shard)
            if token is not None:
                session.add(token, seconds)
        _writes_of(connection).block = None
        session.written.remove(connection)


def _read_committed(written: Any, server: DatabaseRole) -> str:
    """Asked past Django's cursor: an application's tests count the queries of that one. ``written`` can be the
    connection of another thread of the same task."""
    connection: Any = connections[written.alias]
    raw = connection.connection
    if connection is written and raw is not None and raw is _writes_of(connection).raw:
        try:
            return _ask(raw, COMMITTED_SQL[server.flavor])
        except connection.Database.Error as error:
            log.warning("a commit is asked for on a new connection to %s: %s", connection.alias, error)
            if not connection.in_atomic_block:
                connection.close()
    connection.ensure_connection()
    with connection.wrap_database_errors:
        return _ask(connection.connection, _ALL_COMMITTED[server.flavor])


def _ask(raw: Any, sql: str) -> str:
    with closing(raw.cursor()) as cursor:
        cursor.execute(sql)
        return read_gtids(cursor.fetchone())
