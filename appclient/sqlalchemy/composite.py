"""A composite object by a SELECT with relationships: its entry has the rows of each statement that SQLAlchemy sent.

On a miss the SELECT runs in a session of its own, on the loader's snapshot. On a hit it runs in the application's
session, and its statements are answered from the entry; one that is not in it goes to the database, for example if
the session already has some of the instances. Used by ``appclient.sqlalchemy.reads``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Select, event
from sqlalchemy.exc import MultipleResultsFound
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker

from appclient.connection.query import LoaderConnection
from appclient.sqlalchemy.own import SessionState
from appclient.sqlalchemy.replay import Answer, ReplayEngine, StandAside, replayed
from freshness.errors import FormatError, SourceUnsuitable
from freshness.values.codec import encode_value

FindAnswer = Callable[[Session, str, tuple[Any, ...], Select[Any]], tuple[ReplayEngine, Answer] | None]
"""Returns the answers from a composite's entry, by its name and key, or None to use the database."""

_ANSWER: Final = "freshness_recording"
DIGEST_BYTES: Final = 16


def _digest(sql: str, parameters: Any) -> bytes:
    """The name of a statement in an entry. Raises `FormatError` for a parameter that cannot be cached."""
    return hashlib.blake2b(encode_value([sql, parameters]), digest_size=DIGEST_BYTES).digest()


class CachedSelect:
    """See `CachedReads.select`. The key is that of the object, one argument for each column."""

    def __init__(
        self, find_answer: FindAnswer, replay: ReplayEngine, object_name: str, function: Callable[..., Select[Any]]
    ) -> None:
        self._find_answer, self._replay = find_answer, replay
        self.name, self._function = object_name, function
        self._sessions = sessionmaker()
        event.listen(self._sessions, "do_orm_execute", self._record)

    def get(self, session: Session, *key: Any) -> Any:
        """The only instance, or None, as by `all`. With an ``AsyncSession``: ``await session.run_sync(x.get, key)``.
        Raises ``MultipleResultsFound`` for several."""
        found = self.all(session, *key)
        if len(found) > 1:
            raise MultipleResultsFound(f"{len(found)} rows were found where one was required")
        return found[0] if found else None

    def all(self, session: Session, *key: Any) -> list[Any]:
        """The instances, or whatever the first column of the SELECT is. ``session``: the session that has them.
        ``key``: a value for each column."""
        statement = self._function(*key)
        state = SessionState.of(session)
        served = self._find_answer(session, self.name, key, statement)
        if served is None:
            return list(session.scalars(statement).unique())
        state.answer = served
        try:
            return list(session.scalars(statement).unique())
        finally:
            state.answer = None

    def load(self, connection: LoaderConnection, *key: Any) -> dict[bytes, list[list[Any]]]:
        """The loader of the object: the rows of each statement."""
        rows: dict[bytes, list[list[Any]]] = {}

        def ask(context: Any, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
            found = [tuple(row.values()) for row in connection.query(sql, parameters)]
            if found and len(found[0]) != len(context.compiled._result_columns):
                raise SourceUnsuitable(
                    f"object {self.name}: two columns of a SELECT have the same name: {sql}",
                    hint="give each a label of its own",
                )
            rows[_digest(sql, parameters)] = [list(row) for row in found]
            return found

        with self._sessions(info={_ANSWER: ask}) as session:
            list(session.scalars(self._function(*key)).unique())
        return rows

    def _record(self, orm: ORMExecuteState) -> Any:
        return replayed(orm, self._replay, orm.session.info[_ANSWER])


def answer_from(rows: Any, check: Callable[[Any], None]) -> Answer:
    """Answers from the rows of an entry. ``check`` may stand aside from a statement."""

    def answer(context: Any, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        check(context)
        try:
            return [tuple(row) for row in rows[_digest(sql, parameters)]]
        except (KeyError, TypeError, FormatError) as error:
            raise StandAside from error  # another version of the application, or instances that are there already

    return answer
