"""Rows that are there already, by SQLAlchemy's own loading: an engine whose cursor asks no server.

Its dialect is that of PyMySQL, since cached rows are as PyMySQL reads them. So enumerations, JSON, decorated
types and the rest of the mapping are applied by SQLAlchemy itself, and instances are those of its own SELECT.
An `Answer` is asked instead of sending the statement. Used by ``appclient.sqlalchemy``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from sqlalchemy.engine import Connection, Engine, IteratorResult, make_url
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.pool import StaticPool

Answer = Callable[[Any, str, Any], list[tuple[Any, ...]]]
"""The rows of a statement: called with its execution context, its text and its parameters. Raises `StandAside`."""

ANSWER: Final = "freshness_answer"
"""The execution option with the `Answer` of a statement."""


class StandAside(Exception):
    """This statement is not answered here."""


class _Cursor:
    arraysize = 1
    lastrowid = None
    rowcount = -1
    description: list[tuple[Any, ...]] | None = None

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self.rows = self.rows, []
        return rows

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        count = len(self.rows) if size is None else size
        rows, self.rows = self.rows[:count], self.rows[count:]
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows.pop(0) if self.rows else None

    def close(self) -> None:
        """Nothing: it has no server."""

    async def _async_soft_close(self) -> None:
        """Asked of cursors by an ``AsyncSession``."""


class _Connection:
    def cursor(self, *_: Any) -> _Cursor:
        return _Cursor()

    def commit(self) -> None:
        """Nothing: as all of these."""

    rollback = close = commit


class _Replaying:
    """In front of a dialect."""

    supports_statement_cache = True

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        cursor.rows = context.execution_options[ANSWER](context, statement, parameters)
        names = [column[0] for column in context.compiled._result_columns]
        cursor.description = [(name, None, None, None, None, None, None) for name in names]


class ReplayEngine(Engine):
    """Listeners of all engines, such as those that count or trace statements, do not hear of it."""

    _has_events = False
    idle: deque[Connection]
    """Idle connections."""


def open_replay(engine: Engine) -> ReplayEngine:
    """An engine in the place of ``engine``, for statements that have an `ANSWER`."""
    dialect: Any = engine.dialect
    kind = make_url(f"{dialect.name}+pymysql://").get_dialect()
    made: Any = type("ReplayDialect", (_Replaying, kind), {"supports_statement_cache": True})(
        dbapi=pymysql,
        json_serializer=getattr(dialect, "_json_serializer", None),
        json_deserializer=getattr(dialect, "_json_deserializer", None),
    )
    made.server_version_info = getattr(dialect, "server_version_info", None) or (8, 0, 0)
    made.is_mariadb = dialect.is_mariadb
    connect: Any = _Connection
    replay = ReplayEngine(StaticPool(connect), made, make_url(f"{dialect.name}+pymysql://"), logging_name="freshness")
    replay.idle = deque()
    return replay


@dataclass(frozen=True, slots=True)
class CompiledRows:
    """A compiled statement, and the layout of its rows: the context of a result that no cursor has."""

    compiled: Any
    metadata: Any
    _is_server_side = False


def find_compiled(orm: ORMExecuteState, replay: ReplayEngine) -> CompiledRows:
    """The statement as SQLAlchemy compiles it, by one execution that finds no row."""
    result = _run(orm, replay, lambda *_: [], None)
    return CompiledRows(result.context.compiled, result._metadata)


def load(orm: ORMExecuteState, layout: CompiledRows, rows: list[tuple[Any, ...]]) -> Any:
    """The result of the ORM's statement, by its own loading, without another execution."""
    kind: Any = orm._compile_state_cls
    result: Any = IteratorResult(layout.metadata, iter(rows))
    result.context = layout
    return kind.orm_setup_cursor_result(
        orm.session, orm.statement, orm.parameters or {}, orm.execution_options, orm.bind_arguments, result
    )


def replayed(orm: ORMExecuteState, replay: ReplayEngine, answer: Answer) -> Any:
    """The result of a statement with the rows of ``answer``; None if that stands aside."""
    try:
        return _run(orm, replay, answer, orm._compile_state_cls)
    except StandAside:
        return None


def _run(orm: ORMExecuteState, replay: ReplayEngine, answer: Answer, kind: Any) -> Any:
    """``kind``: the loading of its result, None for bare rows."""
    options = orm.execution_options.union({ANSWER: answer})
    parameters: Any = orm.parameters or {}
    try:
        connection = replay.idle.pop()
    except IndexError:
        connection = replay.connect()
    try:
        if kind is None:
            result: Any = connection.execute(orm.statement, parameters, execution_options=options)
        else:
            result = kind.orm_execute_statement(
                orm.session, orm.statement, parameters, options, orm.bind_arguments, connection
            )
    except StandAside:
        replay.idle.append(connection)
        raise
    except BaseException:
        connection.close()  # SQLAlchemy may have marked it as broken
        raise
    replay.idle.append(connection)
    return result
