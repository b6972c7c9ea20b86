"""`CachedReads`: the reads by key of an SQLAlchemy session, served from the cache.

A row from the cache goes through SQLAlchemy's own loading (``replay``), so an instance is that of its own
SELECT, in the session's identity map. Whatever is in doubt stands aside: SQLAlchemy then reads the database
as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Select, event
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction, scoped_session, sessionmaker
from sqlalchemy.util import LRUCache, await_only

from appclient.cache import Cache
from appclient.connection.commits import read_committed
from appclient.database.atleast import AtLeast
from appclient.sqlalchemy.bykey import ByKey, find_by_key, find_columns, find_get, may_be_by_key
from appclient.sqlalchemy.composite import CachedSelect, answer_from
from appclient.sqlalchemy.own import (
    SERIALIZABLE,
    SessionState,
    Writes,
    find_kinds,
    find_maker,
    is_special,
    listen_target,
    server_of,
    sync_engine,
    sync_session,
)
from appclient.sqlalchemy.replay import (
    Answer,
    CompiledRows,
    ReplayEngine,
    StandAside,
    find_compiled,
    load,
    open_replay,
    replayed,
)
from freshness.config.keyspace import Keyspace
from freshness.database.session import ISOLATION
from freshness.errors import ConfigError, FormatError, FreshnessError, Overloaded, SourceUnavailable, SourceUnsuitable
from freshness.position.commit import CommitToken

if TYPE_CHECKING:
    # not at run time: it needs greenlet, which an application with threads has no use for
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

    from appclient.async_cache import AsyncCache

log = logging.getLogger(__name__)

_SESSION: Final = (
    "SELECT @@session.time_zone, @@system_time_zone, @@session.{isolation}, DATABASE(), @@lower_case_table_names"
)
_ASKED: Final = "freshness_asked"
"""The `_EngineSession` in `Connection.info`, which lasts as long as the driver's connection."""

PLANS_KEPT: Final = 500
"""Statements, as many as an engine of SQLAlchemy keeps."""

_UTC: Final = frozenset({"+00:00", "UTC", "GMT", "ETC/UTC", "ZULU"})


@dataclass(frozen=True, slots=True)
class _Plan:
    """The object that a statement reads."""

    object_name: str
    by_key: ByKey
    key_columns: tuple[str, ...]
    take: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Returns a row's columns in the statement's order. Raises KeyError."""


@dataclass(frozen=True, slots=True)
class _EngineSession:
    """The session that an engine's connections begin with, as the last new one showed it. ``folds``: True if names of
    databases that differ in case alone are one name to the server."""

    zone: str
    isolation: str
    database: str
    folds: bool

    def reads(self, database: str) -> bool:
        """Whether its statements read this database, and do not lock the rows."""
        is_same = self.database == database or (self.folds and self.database.lower() == database.lower())
        return is_same and self.isolation != SERIALIZABLE


@dataclass(slots=True, eq=False)
class _Site:
    """The server of an engine. ``database``: the configured one. ``session``: None until somebody has asked."""

    keyspace: Keyspace
    shard: str
    database: str
    replay: ReplayEngine
    session: _EngineSession | None = None
    is_zone_logged: bool = False
    plans: LRUCache[Any, tuple[CompiledRows, _Plan | None, Any]] = field(default_factory=lambda: LRUCache(PLANS_KEPT))
    """By the key of a statement, its layout, its plan, which is None if it reads no object, and the statement."""
    columns: WeakKeyDictionary[Any, Mapping[str, set[str]]] = field(default_factory=WeakKeyDictionary)
    """The columns that a compiled statement shows, by table."""


class CachedReads:
    """Sessions of ``sessions`` read by key through ``cache``: `Session.get`, loading by foreign keys, and a
    `select` whose only criterion is the whole key of an object.

    ``sessions``: a ``sessionmaker`` or ``scoped_session``, or with an `AsyncCache` an ``async_sessionmaker``.
    Its own hooks for ``do_orm_execute`` are registered before. ``servers``: the server of ``freshness.toml``,
    as "host:port", of each engine whose URL does not name it, such as that of a proxy.

    A session that has unflushed changes, or has written, reads the database until its commit; after it, its
    reads have its commits. Raises `ConfigError` if the cache and the sessions do not fit.
    """

    def __init__(
        self,
        cache: Cache | AsyncCache,
        sessions: sessionmaker[Any] | scoped_session[Any] | async_sessionmaker[Any],
        *,
        servers: Mapping[Engine | AsyncEngine, str] | None = None,
    ) -> None:
        self.cache = cache
        self._is_async = not isinstance(cache, Cache)
        self._blocking = cache if isinstance(cache, Cache) else cache.blocking
        self._config = self._blocking.config
        self._writes = Writes()
        self._servers: dict[Engine, str] = {}
        self._sites: WeakKeyDictionary[Engine, _Site | None] = WeakKeyDictionary()
        for engine, server in (servers or {}).items():
            self._servers[sync_engine(engine)] = server
            if self._site(sync_engine(engine)) is None:
                raise ConfigError(
                    f"an engine is said to reach {server}, no server of a keyspace with one shard",
                    hint="expected a server of freshness.toml, as host:port",
                )
        self._objects: dict[tuple[str, str], list[str]] = {}
        self._keys: set[tuple[Any, str]] = set()
        for entry in self._config.objects.values():
            if entry.table is not None and not entry.is_list:
                self._objects.setdefault((entry.keyspace, entry.table), []).append(entry.name)
                self._keys.update((entry.table, column) for column in entry.key)
        maker = find_maker(sessions, is_async=self._is_async)
        bind = maker.kw.get("bind")
        kind = find_kinds(is_async=self._is_async)[1]
        self._engine = sync_engine(bind) if isinstance(bind, Engine | kind) else None
        if self._engine is not None:
            self._writes.observe(self._engine)
            if self._site(self._engine) is None:
                raise ConfigError(
                    f"the sessions' engine is of {server_of(self._engine)}, no server of a keyspace with one shard",
                    hint="give it the host, port and database of freshness.toml, or name the server in servers=",
                )
        target: Any = listen_target(maker)
        event.listen(target, "do_orm_execute", self._read)
        event.listen(target, "after_begin", self._begin)
        event.listen(target, "after_commit", self._end)
        event.listen(target, "after_rollback", self._end)
        event.listen(target, "after_transaction_end", self._close)

    def select(self, object_name: str) -> Callable[[Callable[..., Select[Any]]], CachedSelect]:
        """Decorator: the function makes the SELECT, with loader options for its relationships, from which a composite
        object is built by its key. It reads only what a loader may read, see `Cache.loader`. Raises `ConfigError` for
        an ``object_name`` that is not a composite, or if the sessions are not bound to an engine."""
        site = None if self._engine is None else self._site(self._engine)
        if site is None:
            raise ConfigError("the sessions have no engine", hint="expected sessionmaker(engine)")

        def register(function: Callable[..., Select[Any]]) -> CachedSelect:
            made = CachedSelect(self._find_answer, site.replay, object_name, function)
            self._blocking.loader(object_name)(made.load)
            return made

        return register

    def commit_token(self, session: Session | AsyncSession | scoped_session[Any]) -> CommitToken | None:
        """The commits of the ``session`` and those that were asked of it; None for neither. Raises
        `SourceUnavailable` if the session has commits that no token has."""
        state = SessionState.of(sync_session(session))
        if state.is_blind:
            raise SourceUnavailable(
                "no token has the commits of this session", hint="the log says why; do not reuse an older token"
            )
        return state.token

    def demand(self, session: Session | AsyncSession | scoped_session[Any], at_least: AtLeast | None) -> None:
        """Later reads of the ``session`` have the commits of ``at_least``, if any. Raises `FormatError` for a text
        that is none."""
        token = CommitToken.parse(at_least) if isinstance(at_least, str) else at_least
        SessionState.of(sync_session(session)).add(token)

    def _begin(self, session: Session, _: SessionTransaction, connection: Connection) -> None:
        self._writes.begin(SessionState.of(session), connection)

    def _end(self, session: Session) -> None:
        """A rollback is asked as well: a statement may have committed implicitly, and a failed commit may not
        have."""
        state = SessionState.of(session)
        for connection in self._writes.take_ended(state):
            try:
                state.add(self._committed(connection))
            except Exception as error:  # noqa: BLE001 - what is committed must not look as if it had failed
                state.is_blind = True
                log.warning("a session reads the database from now on, for want of a commit token: %s", error)

    def _close(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            state = SessionState.of(session)
            if any(True for _ in self._writes.take_ended(state)):
                state.is_blind = True  # closed with writes, of which some may have committed implicitly
            state.connections.clear()

    def _committed(self, connection: Connection) -> CommitToken | None:
        site = self._site(connection.engine)
        if site is None:
            raise ConfigError(f"{server_of(connection.engine)} is no server of freshness.toml")
        position = read_committed(connection.connection.dbapi_connection, site.keyspace.gtid_flavor)
        if position is None:
            return None
        database = self.cache.database(site.keyspace.name)
        token: CommitToken | None = self._settled(database.commit_token_of(str(position), shard=site.shard))
        return token

    def _read(self, orm: ORMExecuteState) -> Any:
        """The event ``do_orm_execute``: a result in the place of the database's, or None."""
        if not orm.is_select or not isinstance(orm.statement, Select):
            return None
        session = orm.session
        state = SessionState.of(session)
        if state.answer is not None:
            its = self._site(session.get_bind(**orm.bind_arguments).engine)
            is_its = its is not None and its.replay is state.answer[0] and not orm._remaining_events()
            return replayed(orm, *state.answer) if is_its else None
        if not may_be_by_key(orm.statement, self._keys) or _is_special(orm):
            return None
        found = self._find_serving(session, state, orm.bind_arguments)
        if found is None:
            return None
        try:
            return self._find_result(*found, orm)
        except StandAside:
            return None

    def _find_answer(
        self, session: Session, object_name: str, key: tuple[Any, ...], statement: Select[Any]
    ) -> tuple[ReplayEngine, Answer] | None:
        """The answers to the statements of a composite from its entry, or None."""
        found = self._find_serving(session, SessionState.of(session), {"clause": statement})
        if found is None:
            return None
        site, shown = found
        try:
            rows = self.fetch(session, object_name, key if len(key) > 1 else key[0])
        except StandAside:
            return None
        return site.replay, answer_from(rows, lambda context: self.check_zone(site, shown.zone, context.compiled))

    def _find_serving(
        self, session: Session, state: SessionState, bind_arguments: Any
    ) -> tuple[_Site, _EngineSession] | None:
        """The server that the cache stands in for, and what the session's connection has shown; None if the session
        has changes, has written in its transaction, reads another database, or locks the rows."""
        if state.is_blind or session._new or session._deleted or session.identity_map._modified:
            return None
        bind = session.get_bind(**bind_arguments)
        self._writes.join(session, state, bind)
        if is_special(getattr(session, "execution_options", {})) or self._writes.are_others(state, bind):
            return None
        site = self._site(bind.engine)
        shown = None if site is None else self._look(site, state, bind.engine)
        return (site, shown) if site is not None and shown is not None and shown.reads(site.database) else None

    def _look(self, site: _Site, state: SessionState, engine: Engine) -> _EngineSession | None:
        """The session of an engine's connection. Asked of each new one that a session has, past SQLAlchemy's cursor:
        applications count the statements of that one."""
        used = next((each for each in state.connections if each.engine is engine), None)
        shown: _EngineSession | None = site.session if used is None else used.info.get(_ASKED)
        if shown is None:
            try:
                shown = self._read_session(site, used, engine)
            except Exception as error:  # noqa: BLE001 - of any driver: the session reads the database, and has it too
                log.warning("the session's own engine is read in the place of the cache: %s", error)
                return None
            if not shown.reads(site.database) and shown != site.session:
                log.warning(
                    "rows are not served from the cache: the sessions of the engine have database %s and isolation "
                    "%s. hint: connect to the database of freshness.toml, and not as SERIALIZABLE",
                    shown.database,
                    shown.isolation,
                )
            site.session = shown
        return shown

    def _read_session(self, site: _Site, used: Connection | None, engine: Engine) -> _EngineSession:
        borrowed = engine.raw_connection() if used is None else used.connection
        try:
            with closing(borrowed.cursor()) as cursor:
                cursor.execute(_SESSION.format(isolation=ISOLATION[site.keyspace.flavor]))
                [(zone, system, isolation, database, folds)] = cursor.fetchall()
            own_zone = str(system if zone == "SYSTEM" else zone)
            shown = _EngineSession(own_zone, str(isolation), str(database), int(folds) > 0)
            borrowed.info[_ASKED] = shown
            return shown
        finally:
            if used is None:
                borrowed.close()

    def fetch(self, session: Session, object_name: str, key: Any, *, is_many: bool = False) -> Any:
        """As `Cache.get` or `Cache.get_many`, with the commits of the session. Raises `StandAside` if the cache does
        not answer; with commits that no server has, the cache's error, and `Overloaded`."""
        token = SessionState.of(session).token
        get: Any = self.cache.get_many if is_many else self.cache.get
        try:
            return self._settled(get(object_name, key, at_least=token))
        except FormatError as error:
            raise StandAside from error  # a key that the cache does not take, or not this way
        except (SourceUnavailable, SourceUnsuitable) as error:
            if token is not None or isinstance(error, Overloaded):
                raise
            log.warning("the session's own engine is read in the place of the cache: %s", error)
            raise StandAside from error

    def check_zone(self, site: _Site, zone: str, compiled: Any) -> None:
        """Raise `StandAside` if a TIMESTAMP would not be in the time zone of the application's own session."""
        if zone.upper() in _UTC:
            return
        columns = site.columns.get(compiled)
        if columns is None:
            columns = site.columns[compiled] = find_columns(compiled)
        (shard,) = site.keyspace.serving_shards
        for table, names in columns.items():
            try:
                types: Any = self._settled(self.cache.column_types(shard.lineage, table))
            except FreshnessError as error:
                log.info("the session's own engine is read in the place of the cache: %s", error)
                raise StandAside from error
            if any(types.get(name) == "timestamp" for name in names):
                break
        else:
            return
        if not site.is_zone_logged:
            site.is_zone_logged = True
            log.warning(
                "rows with a TIMESTAMP are not served from the cache: the engine's time zone is %s. hint: "
                "connect with init_command=\"SET time_zone = '+00:00'\"",
                zone,
            )
        raise StandAside

    def _find_result(self, site: _Site, shown: _EngineSession, orm: ORMExecuteState) -> Any:
        """The result from the cache. Raises `StandAside`, and as `fetch`."""
        statement: Any = orm.statement
        made, key = None, None
        if orm.execution_options.get("compiled_cache", True) is not None:
            key = find_get(statement)
            if key is None:
                made = statement._generate_cache_key()
                key = made and made.key
        known = site.plans.get(key) if key else None
        if known is None:
            layout = find_compiled(orm, site.replay)
            known = layout, self._find_plan(site, layout.compiled), statement
            if key:
                site.plans[key] = known
        layout, plan, _ = known
        if plan is None:
            raise StandAside
        self.check_zone(site, shown.zone, layout.compiled)
        rows = self._find_rows(plan, orm.session, self._find_keys(layout.compiled, plan, orm, made))
        self.check_zone(site, shown.zone, layout.compiled)  # by the floors that this read has seen
        if orm._compile_state_cls is None:
            return replayed(orm, site.replay, lambda *_: rows)
        return load(orm, layout, rows)

    def _find_keys(self, compiled: Any, plan: _Plan, orm: ORMExecuteState, made: Any) -> list[Any]:
        """``made``: the statement's own cache key, with the values that are in it."""
        given: Any = orm.parameters or {}
        if getattr(made, "params", None):
            given = {**made.params, **given}
        try:
            values = compiled.construct_params(given, made and made.bindparams, escape_names=False)
            keys = plan.by_key.keys(values, compiled._bind_processors, plan.key_columns)
        except Exception as error:
            raise StandAside from error  # the engine raises it in its own words
        if plan.by_key.is_many:
            if set(map(type, keys)) - {int}:
                raise StandAside  # two spellings may be one row, which the database gives once
        elif any(isinstance(value, (dict, list, set)) for value in (keys if len(plan.key_columns) == 1 else keys[0])):
            raise StandAside  # the driver raises for it, or has a meaning of its own
        return keys

    def _find_rows(self, plan: _Plan, session: Session, keys: list[Any]) -> list[tuple[Any, ...]]:
        if len(keys) == 1:
            rows = [self.fetch(session, plan.object_name, keys[0])]
        else:
            rows = list(self.fetch(session, plan.object_name, keys, is_many=True).values())
        try:
            return [plan.take(row) for row in rows if row is not None]
        except KeyError as error:
            raise StandAside from error  # the cached row is from before the column

    def _find_plan(self, site: _Site, compiled: Any) -> _Plan | None:
        by_key = find_by_key(compiled)
        if by_key is None or by_key.schema not in (None, site.keyspace.serving_shards[0].primary.database):
            return None
        for name in self._objects.get((site.keyspace.name, by_key.table), ()):
            try:
                columns: tuple[str, ...] = self._settled(self.cache.key_columns(name))
            except FreshnessError as error:
                raise StandAside from error  # no server has told the schema yet
            if set(columns) == set(by_key.parameters):
                return _Plan(name, by_key, columns, _taking(*by_key.columns))
        return None

    def _site(self, engine: Engine) -> _Site | None:
        try:
            return self._sites[engine]
        except KeyError:
            site = self._sites[engine] = self._find_site(engine)
            return site

    def _find_site(self, engine: Engine) -> _Site | None:
        wanted = server_of(engine)
        named = self._servers.get(engine)
        for keyspace in self._config.keyspaces.values():
            if keyspace.flavor == "vitess" or len(keyspace.serving_shards) != 1:
                continue
            (shard,) = keyspace.serving_shards
            for address in (shard.primary, *shard.replicas):
                server = f"{address.host}:{address.port}"
                if server == named or f"{server}/{address.database}" == wanted:
                    return _Site(keyspace, shard.name, address.database, open_replay(engine))
        return None

    def _settled(self, answer: Any) -> Any:
        return await_only(answer) if self._is_async else answer


def _taking(first: str, *others: str) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    return itemgetter(first, *others) if others else lambda row: (row[first],)


def _is_special(orm: ORMExecuteState) -> bool:
    """Whether the application asks for more than the row: a refresh, the identity of a shard, a stream, other
    tables; or has a hook to come that may ask for more."""
    options, execution = orm.load_options, orm.execution_options
    return bool(
        orm.is_column_load
        or orm.is_executemany
        or getattr(options, "_populate_existing", False)
        or getattr(options, "_identity_token", None) is not None
        or execution.get("stream_results")
        or execution.get("yield_per")
        or execution.get("schema_translate_map")
        or orm._remaining_events()
    )
