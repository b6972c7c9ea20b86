"""The application's own sessions: what makes them, and their writes. Until a commit the cache stands aside, and after
it a token has the commits.

Writes are seen when an engine sends statements, so a flush, a bulk operation and text are all seen. In doubt
a statement is a write. Used by ``appclient.sqlalchemy``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, Pool

from appclient.connection.driver import require_safe
from appclient.connection.statement import SessionWatch, calls_stored_function, is_several
from appclient.sqlalchemy.replay import Answer, ReplayEngine
from freshness.errors import ConfigError
from freshness.position.commit import CommitToken

log = logging.getLogger(__name__)

_STATE: Final = "freshness"
_WATCH: Final = "freshness_watch"
"""The `SessionWatch` in `Connection.info`, which lasts as long as the driver's connection."""

_CREATOR: Final = "sqlalchemy.engine.create"
"""The module of a pool's ``creator``, if that is not the application's."""

_BEGINS: Final = "freshness_begins"
_CHANGES: Final = "freshness_changes"
"""Beside it: whether the pool has just made the connection, and `SessionWatch.changes` before the handlers of a
checkout."""

SERIALIZABLE: Final = "SERIALIZABLE"

_HARMLESS: Final = ("appclient.sqlalchemy", "sqlalchemy.engine.events", "opentelemetry.")
"""Modules of handlers; SQLAlchemy wraps those that return no statement."""

_READ: Final = re.compile(
    r"(?:\s|/\*(?!!|M!).*?\*/)*(?:SELECT|SHOW|EXPLAIN|DESC|SAVEPOINT|RELEASE|ROLLBACK TO|SET(?!\s+STATEMENT))\b",
    re.IGNORECASE | re.DOTALL,
)
_LOCKS: Final = re.compile(r"\bFOR\s+(?:UPDATE|SHARE)\b|\bLOCK\s+IN\b|\bINTO\b", re.IGNORECASE)


def is_read(sql: str) -> bool:
    """Whether a statement neither writes nor locks."""
    is_plain = _READ.match(sql) is not None and _LOCKS.search(sql) is None
    return is_plain and not calls_stored_function(sql) and not is_several(sql)


@dataclass(slots=True, eq=False)
class SessionState:
    """``connections``: connections of its transaction. ``is_blind``: True once it has commits that no token has; it
    then reads only the database. ``answer``: answer to the statements of the composite that it reads."""

    connections: list[Connection] = field(default_factory=list)
    token: CommitToken | None = None
    is_blind: bool = False
    answer: tuple[ReplayEngine, Answer] | None = None

    @classmethod
    def of(cls, session: Session) -> SessionState:
        """The state of a session, created at the first call."""
        state = session.info.get(_STATE)
        if state is None:
            state = session.info[_STATE] = cls()
        return state

    def add(self, token: CommitToken | None) -> None:
        """Add commits that later reads must show."""
        if token is not None:
            self.token = token if self.token is None else self.token.union(token)


def is_special(options: Mapping[str, Any]) -> bool:
    """Whether options of an engine, connection or session choose another schema, or lock each row that is read."""
    return bool(options.get("schema_translate_map")) or options.get("isolation_level") == SERIALIZABLE


def _are_foreign(*handlers: Iterable[Any]) -> bool:
    """Whether the application has added handlers to those of SQLAlchemy, of this library, and of a tracer that only
    comments and counts."""
    return any(not str(getattr(each, "__module__", "")).startswith(_HARMLESS) for each in chain(*handlers))


def _watch(entry: Any) -> SessionWatch:
    """The watch of a connection, or of its record in the pool."""
    found: SessionWatch | None = entry.info.get(_WATCH)
    if found is None:
        of = entry.connection if isinstance(entry, Connection) else entry
        require_safe(of.driver_connection)
        found = entry.info[_WATCH] = SessionWatch(of.driver_connection)
    return found


class Writes:
    """The connections of which the present transaction has written, of all engines that are observed."""

    def __init__(self) -> None:
        self._engines: WeakSet[Engine] = WeakSet()
        self._changing: WeakSet[Pool] = WeakSet()
        self._observed: WeakSet[Connection] = WeakSet()
        self._written: WeakSet[Connection] = WeakSet()

    def observe(self, engine: Engine) -> None:
        """Listen for the statements of an engine, once."""
        if engine not in self._engines:
            self._engines.add(engine)
            # In front of the application's handlers, whose statements are seen so
            event.listen(engine, "connect", self._connect, insert=True)
            event.listen(engine, "checkout", self._check_out, insert=True)
            event.listen(engine, "engine_connect", self._open)
            event.listen(engine, "begin", self._forget)
            event.listen(engine, "before_cursor_execute", self._note)

    def _connect(self, raw: Any, record: Any) -> None:
        _watch(record)
        record.info[_BEGINS] = True

    def _check_out(self, raw: Any, record: Any, _: Any) -> None:
        watch = _watch(record)
        if record.info.pop(_BEGINS, False):
            watch.is_changed = False  # by handlers of "connect": so each session of the engine begins
        record.info[_CHANGES] = watch.changes

    def _open(self, connection: Connection) -> None:
        self._observed.add(connection)
        self._note_changes(connection)

    def _note_changes(self, connection: Connection) -> None:
        """Note what handlers have changed since its checkout: no statement was sent."""
        if connection.info.get(_CHANGES) != _watch(connection).changes:
            self._exclude(
                connection.engine.pool,
                "a handler of the engine or of its sessions changes the session each time. hint: change it in a "
                'handler of "connect", which is called once for a connection',
            )

    def _exclude(self, pool: Pool, why: str) -> None:
        if pool not in self._changing:
            self._changing.add(pool)
            log.warning("rows are not served from the cache: %s", why)

    def _forget(self, connection: Connection) -> None:
        self._written.discard(connection)

    def _note(self, connection: Connection, cursor: Any, sql: str, *_: Any) -> None:
        if connection not in self._written and not is_read(sql):
            self._written.add(connection)

    def begin(self, state: SessionState, connection: Connection) -> None:
        """A session has begun to use the connection. Nobody knows what one has written that was open before."""
        self.observe(connection.engine)
        if connection not in self._observed:
            self._written.add(connection)
        if connection not in state.connections:
            state.connections.append(connection)

    def join(self, session: Session, state: SessionState, bind: Connection | Engine) -> None:
        """Have the session begin as it does for a statement, if that could change what the statement means: by
        handlers of the application, or since each session has another connection."""
        if isinstance(bind, Connection):
            self.begin(state, bind)
            return
        if any(each.engine is bind for each in state.connections):
            return
        pool, events = bind.pool, bind.dispatch
        connects = isinstance(pool, NullPool) and (
            _are_foreign(bind.dialect.dispatch.do_connect) or pool._creator.__module__ != _CREATOR
        )
        begins = session.dispatch.after_begin, events.engine_connect, events.begin, pool.dispatch.checkout
        if connects or _are_foreign(*begins):
            self._note_changes(session.connection(bind_arguments={"bind": bind}))

    def are_others(self, state: SessionState, bind: Connection | Engine) -> bool:
        """Whether statements of the session mean other rows than those of other sessions, or lock what they read; or
        a connection of the session has written in its transaction."""
        used = [bind, *state.connections]
        if any(_are_foreign(each.dispatch.before_execute, each.dispatch.before_cursor_execute) for each in used):
            self._exclude(bind.engine.pool, "a handler of the engine rewrites statements (retval=True)")
        if bind.engine.pool in self._changing or any(is_special(each.get_execution_options()) for each in used):
            return True
        return any(each in self._written or _watch(each).is_special for each in state.connections)

    def take_ended(self, state: SessionState) -> Iterator[Connection]:
        """Connections that have written, and whose transaction is over: not one that the session has joined."""
        for connection in state.connections:
            if connection in self._written and not connection.in_transaction():
                self._written.discard(connection)
                yield connection


def find_kinds(*, is_async: bool) -> tuple[type, type]:
    """The classes of sessionmakers and of engines."""
    if is_async:
        from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

        return async_sessionmaker, AsyncEngine
    return sessionmaker, Engine


def find_maker(sessions: Any, *, is_async: bool) -> Any:
    """The sessionmaker of ``sessions``. Raises `ConfigError`."""
    maker = sessions.session_factory if isinstance(sessions, scoped_session) else sessions
    kind, _ = find_kinds(is_async=is_async)
    if not isinstance(maker, kind):
        raise ConfigError(
            f"the sessions are of type {type(sessions).__name__}",
            hint=f"expected {'an async_sessionmaker' if is_async else 'a sessionmaker or a scoped_session of one'}",
        )
    return maker


def listen_target(maker: Any) -> Any:
    """The target for listeners of the events of these sessions alone."""
    if isinstance(maker, sessionmaker):
        return maker
    base = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
    if isinstance(base, sessionmaker):
        return base
    made = type("CachedSession", (base,), {})
    maker.configure(sync_session_class=made)
    return made


def sync_engine(engine: Any) -> Engine:
    """The engine itself, also of an ``AsyncEngine``."""
    found: Engine = getattr(engine, "sync_engine", engine)
    return found


def sync_session(session: Any) -> Session:
    """The session itself, also of an ``AsyncSession`` or a scope."""
    found: Session = getattr(session, "sync_session", None) or (
        session() if isinstance(session, scoped_session) else session
    )
    return found


def server_of(engine: Engine) -> str:
    """ "HOST:PORT/DATABASE"."""
    url = engine.url
    return f"{url.host}:{url.port or 3306}/{url.database}"
