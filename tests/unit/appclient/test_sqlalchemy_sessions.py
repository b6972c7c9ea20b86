"""Which sessions the cache answers: not those of which a statement would mean other rows, or lock them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from appclient.sqlalchemy import CachedReads, CachedSelect
from appclient.sqlalchemy.own import SessionState
from tests.unit.appclient.test_sqlalchemy import BY_KEY, Customer, Server, Shop, StillCache, name_of

URL: Final = "mysql+pymysql://app@db/shop"


@pytest.fixture
def shop() -> Shop:
    return Shop()


def change(connection: sa.Connection) -> None:
    raw: Any = connection.connection.driver_connection
    raw.query("USE tenant_b")


def test_a_connection_that_the_application_hands_over_may_have_been_changed(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        with shop.sessions(bind=connection) as session:
            assert name_of(session) == "cache"
        change(connection)
        with shop.sessions(bind=connection) as session:
            assert name_of(session) == "database"


def test_two_caches_of_an_engine_look_at_a_connection_once(shop: Shop) -> None:
    others = sessionmaker(shop.engine)
    CachedReads(shop.cache, others)
    with shop.engine.connect() as connection:
        for sessions in (shop.sessions, others):
            with sessions(bind=connection) as session:
                assert name_of(session) == "cache"


def open_profile(shop: Shop) -> CachedSelect:
    """A composite whose entry has another row than the database."""
    site = shop.reads._site(shop.engine)
    assert site is not None
    served = site.replay, lambda *_: [("cache",)]

    def find(session: Session, _: str, __: Any, statement: Any) -> Any:
        found = shop.reads._find_serving(session, SessionState.of(session), {"clause": statement})
        return served if found is not None and found[0] is site else None

    return CachedSelect(find, site.replay, "profile", lambda _: BY_KEY)


def test_options_of_a_session_lock_its_rows_or_choose_a_schema(shop: Shop) -> None:
    profile = open_profile(shop)
    options: list[dict[str, Any]] = [{"isolation_level": "SERIALIZABLE"}, {"schema_translate_map": {None: "main"}}]
    for each in options:
        with shop.sessions(execution_options=each) as session:
            assert session.scalar(BY_KEY) == "database"
        with shop.sessions(execution_options=each) as session:
            assert profile.get(session, 1) == "database"


Register = Callable[[Shop, Any], None]
HANDLERS: Final[dict[str, Register]] = {
    "of a session": lambda shop, use: event.listen(shop.sessions, "after_begin", lambda *of: use(of[2])),
    "of an engine": lambda shop, use: event.listen(shop.engine, "begin", use),
    "of a connection": lambda shop, use: event.listen(
        shop.engine, "engine_connect", lambda connection: use(connection)
    ),
    "of a checkout": lambda shop, use: event.listen(shop.engine, "checkout", lambda raw, *_: use(None, raw)),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_handlers_that_choose_the_database_of_a_tenant_do_so_for_a_read(shop: Shop, kind: str) -> None:
    """A hit needs no connection, and the first session of a tenant may be the first that has one."""
    tenants: list[str] = []

    def use(connection: Any, raw: Any = None) -> None:
        if tenants:
            (raw or connection.connection.driver_connection).query("USE tenant_b")

    HANDLERS[kind](shop, use)
    with shop.sessions() as session:
        assert name_of(session) == "cache", "it has changed nothing"
    tenants.append("b")
    for _ in range(2):
        with shop.sessions() as session:
            assert name_of(session) == "database"


def test_handlers_of_the_application_that_change_nothing(shop: Shop) -> None:
    seen: list[Any] = []
    event.listen(shop.engine, "begin", lambda _: None)
    for name in ("before_execute", "before_cursor_execute"):
        event.listen(shop.engine, name, lambda *of: seen.append(of))
    with shop.sessions() as session:
        assert name_of(session) == "cache"
    assert seen == [], "a hit sends no statement"


def rewrite_text(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> Any:
    return statement.replace("customers.name", "'rewritten'", 1), parameters


def rewrite_statement(_: Any, statement: Any, many: Any, parameters: Any, __: Any) -> Any:
    return statement.with_only_columns(sa.literal("rewritten")), many, parameters


@pytest.mark.parametrize(
    ("name", "rewrite"), [("before_cursor_execute", rewrite_text), ("before_execute", rewrite_statement)]
)
def test_a_handler_that_rewrites_statements_has_them_sent(shop: Shop, name: str, rewrite: Any) -> None:
    event.listen(shop.engine, name, rewrite, retval=True)
    with shop.sessions() as session:
        assert session.scalar(BY_KEY) == "rewritten"


@pytest.mark.parametrize("by", ["creator", "do_connect"])
def test_each_session_of_an_engine_without_a_pool_has_a_connection_of_its_own(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Which may be to the database of its tenant."""
    made: list[Any] = []

    def connect(*_: Any) -> Any:
        made.append(Server().connect())
        return made[-1]

    if by == "creator":
        engine = create_engine(URL, creator=connect, poolclass=NullPool)
    else:
        engine = create_engine(URL, poolclass=NullPool)
        event.listen(engine, "do_connect", connect)
    cache, sessions = StillCache(), sessionmaker(engine)
    CachedReads(cache, sessions)
    with sessions() as session:
        assert name_of(session) == "cache"
    monkeypatch.setattr("tests.unit.appclient.test_sqlalchemy.DATABASE", "tenant_b")
    with sessions() as other:
        assert name_of(other) == "database"
        monkeypatch.undo()
        with sessions() as session:
            assert name_of(session) == "cache"
        assert name_of(other) == "database", "whatever other sessions have been shown since"


def test_a_statement_of_a_composite_that_another_engine_or_hook_answers(shop: Shop) -> None:
    """The statement by which the entry was found is another one."""
    other = create_engine(URL.replace("db", "other"), creator=Server().connect)
    profile = open_profile(shop)
    profile._find_answer = lambda *_: open_profile(shop)._find_answer(shop.sessions(), *_[1:])
    with shop.sessions() as session:
        assert profile.get(session, 1) == "cache"
    with shop.sessions(binds={Customer: other}) as session:
        assert profile.get(session, 1) == "database"
    event.listen(shop.sessions, "do_orm_execute", lambda _: None)
    with shop.sessions() as session:
        assert profile.get(session, 1) == "database", "the hook may want other rows"
