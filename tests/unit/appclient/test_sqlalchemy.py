"""Which reads of a session the cache answers. Its rows and those of the database differ, to show their origin."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    mapped_column,
    sessionmaker,
    with_loader_criteria,
)

from appclient import Cache, ConfigError, SourceUnavailable
from appclient.connection.query import LoaderConnection
from appclient.sqlalchemy import CachedReads, CachedSelect
from appclient.sqlalchemy.composite import answer_from
from appclient.sqlalchemy.own import is_read
from appclient.sqlalchemy.replay import StandAside, open_replay
from freshness.config.config import load_config
from freshness.errors import Overloaded
from freshness.position import parse_position
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

CONFIG: Final = """
[cache]
nodes = ["n:1"]
namespace = "shop"
[keyspaces.shop]
flavor = "mariadb"
[[keyspaces.shop.shards]]
primary = "mysql://app@db/shop"
[objects.customers_by_kind]
table = "customers"
key = "kind"
order_by = ["id"]
limit = 10
[objects.customer]
table = "customers"
"""
ASKED: Final = {
    r"VERSION\(\)": "10.11.0-MariaDB",
    "sql_mode": "",
    "lower_case_table_names": 0,
    "isolation": "REPEATABLE-READ",
    r"DATABASE\(\)": "shop",
    "last_gtid": "0-1-7",
}
DATABASE = "shop"
PATTERN: Final = re.compile(r"%\((\w+)\)s")


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    name: Mapped[str]


class Company(Customer):
    __mapper_args__ = {"polymorphic_identity": "company"}  # noqa: RUF012


class Server:
    """A MariaDB as far as these sessions see one: SQLite, and answers to what the dialect asks."""

    def __init__(self) -> None:
        self.rows = sqlite3.connect(":memory:", check_same_thread=False)
        self.rows.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, kind TEXT, name TEXT)")
        self.rows.executemany(
            "INSERT INTO customers VALUES (?, 'person', 'database')", [(key,) for key in range(1, 5)]
        )
        self.rows.commit()

    def connect(self) -> Any:
        return Connection(self)


class Connection:
    server_status = 0

    def __init__(self, server: Server) -> None:
        self.rows = server.rows

    def cursor(self, *_: Any) -> Any:
        return Cursor(self.rows)

    def query(self, sql: str) -> None:
        """As drivers have it; its cursors do not call it."""

    def commit(self) -> None:
        self.rows.commit()

    def rollback(self) -> None:
        self.rows.rollback()

    def autocommit(self, value: bool) -> None:
        self.rows.isolation_level = None if value else "DEFERRED"

    def get_autocommit(self) -> bool:
        return self.rows.isolation_level is None

    def close(self) -> None:
        """The rows stay."""

    def character_set_name(self) -> str:
        return "utf8mb4"


class Cursor:
    def __init__(self, rows: sqlite3.Connection) -> None:
        self._cursor = rows.cursor()

    def execute(self, sql: str, parameters: Any = None) -> None:
        if "system_time_zone" in sql:
            sql = f"SELECT '+00:00', 'UTC', 'REPEATABLE-READ', '{DATABASE}', 0"
        for pattern, answer in ASKED.items():
            if sql.count(",") < 4 and "FROM customers" not in sql and re.search(pattern, sql):
                sql, parameters = "SELECT :answer", {"answer": answer}
        if sql.startswith("SET ") or sql == "COMMIT":
            return
        sql = re.sub(r" FOR UPDATE", "", PATTERN.sub(r":\1", sql))
        self._cursor.execute(sql, parameters or {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class StillDatabase:
    def commit_token_of(self, gtids: str, *, shard: str | None = None) -> CommitToken:
        return CommitToken.of([EventToken("shop/-", "-", 1, 0, parse_position("mariadb", gtids))])

    def query(self, sql: str, params: Any = None) -> Any:
        return type("Answer", (), {"rows": []})


class StillCache(Cache):
    """Its rows never change. ``asked``: the keys, and the commits that came with them."""

    def __init__(self) -> None:
        with NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(CONFIG)
            file.flush()
            self.config = load_config(Path(file.name), is_application=True)
        self.asked: list[tuple[Any, str | None]] = []
        self.types = {"name": "varchar"}
        self.failure: Exception | None = None

    def get(self, object_name: str, key: Any, *, at_least: Any = None, **_: Any) -> Any:
        self.asked.append((key, None if at_least is None else str(at_least)))
        if self.failure is not None:
            raise self.failure
        return {"id": key, "kind": "person", "name": "cache"} if key < 5 else None

    def get_many(self, object_name: str, keys: Any, *, at_least: Any = None, **_: Any) -> dict[Any, Any]:
        return {key: self.get(object_name, key, at_least=at_least) for key in keys}

    def column_types(self, lineage: str, table: str) -> dict[str, str]:
        return self.types

    def key_columns(self, object_name: str) -> tuple[str, ...]:
        return ("id",)

    def database(self, keyspace: str | None = None) -> Any:
        return StillDatabase()


class Shop:
    def __init__(self) -> None:
        self.cache = StillCache()
        self.engine = create_engine("mysql+pymysql://app@db/shop", creator=Server().connect)
        self.sessions = sessionmaker(self.engine)
        self.reads = CachedReads(self.cache, self.sessions)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    with shop.sessions() as opened:
        yield opened


def name_of(session: Session, key: int = 1) -> str:
    session.expunge_all()
    return session.get_one(Customer, key).name


BY_KEY: Final = select(Customer.name).where(Customer.id == 1)


def test_reads_by_key(session: Session) -> None:
    assert name_of(session) == "cache"
    assert session.get(Customer, 5) is None
    assert session.execute(BY_KEY).scalars().all() == ["cache"]
    assert session.scalars(select(Customer.name).where(Customer.id.in_([1, 2, 9]))).all() == ["cache"] * 2
    assert session.scalars(select(Customer.name).where(Customer.id.in_([]))).all() == []
    assert session.scalars(select(Customer.__table__.c.name).where(Customer.__table__.c.id == 2)).all() == ["cache"]


class Doubled(sa.TypeDecorator[int]):
    """A number whose double is in the database."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else 2 * value


def test_each_execution_reads_its_own_key(shop: Shop, session: Session) -> None:
    by_name = select(Customer.id).where(Customer.id == sa.bindparam("key"))
    doubled = select(Customer.id).where(Customer.id == sa.bindparam("key", type_=Doubled))
    several = select(Customer.id).where(Customer.id.in_(sa.bindparam("keys", expanding=True, type_=Doubled)))
    for key in (1, 2):
        assert session.get_one(Customer, key).id == key
        assert session.scalar(select(Customer.id).where(Customer.id == key)) == key
        assert session.scalar(by_name, {"key": key}) == key
        assert session.scalar(by_name.params(key=key)) == key
        assert session.scalar(doubled, {"key": key}) == 2 * key
        assert session.scalars(several, {"keys": [key, 9]}).all() == [2 * key]
    assert len(shop.cache.asked) == 2 * 7, "none is read from the database"


def test_what_the_application_has_compiled_is_not_asked_for_keys(session: Session) -> None:
    """Its compiled statement has the values of the first execution."""
    options: dict[str, Any] = {"compiled_cache": {}}
    for _ in range(2):
        for key in (1, 2):
            by_key = select(Customer.id).where(Customer.id == key)
            assert session.scalar(by_key, execution_options=options) == key
            assert session.scalar(by_key, execution_options={"compiled_cache": None}) == key


def test_a_hook_that_changes_the_statement_of_a_get(shop: Shop) -> None:
    sessions, orders = sessionmaker(shop.engine), [None, Customer.id]

    def order(orm: ORMExecuteState) -> None:
        orm.statement = orm.statement.order_by(orders.pop(0))  # type: ignore[attr-defined]

    event.listen(sessions, "do_orm_execute", order)
    CachedReads(shop.cache, sessions)
    with sessions() as session:
        assert name_of(session) == "cache"
        assert name_of(session) == "database"


def test_the_read_that_sees_an_alter_is_judged_by_it(shop: Shop, session: Session) -> None:
    assert name_of(session) == "cache"
    site = shop.reads._site(shop.engine)
    assert site is not None
    assert site.session is not None
    site.session = replace(site.session, zone="+05:00")
    assert name_of(session) == "cache", "no TIMESTAMP"
    get = shop.cache.get

    def alter(*args: Any, **options: Any) -> Any:
        shop.cache.types = {"name": "timestamp"}
        return get(*args, **options)

    shop.cache.get = alter  # type: ignore[method-assign]
    assert name_of(session) == "database"


def test_a_key_that_only_the_driver_understands(session: Session) -> None:
    """The driver refuses it, or has a meaning for it; the cache would take it by column."""
    for value in ({"id": 1}, [1], {1}):
        with pytest.raises((sqlite3.Error, TypeError)):
            session.scalars(select(Customer.name).where(Customer.id == value)).all()


@pytest.mark.parametrize(
    "statement",
    [
        BY_KEY.limit(1),
        BY_KEY.with_for_update(),
        BY_KEY.where(Customer.name != ""),
        BY_KEY.where(Customer.id == 1),
        BY_KEY.order_by(Customer.id),
        BY_KEY.distinct().group_by(Customer.name),
        BY_KEY.execution_options(populate_existing=True),
        select(Customer.name).where(Customer.id >= 1, Customer.id <= 1),
        select(Customer.name).where(sa.or_(Customer.id == 1, Customer.id == 1)),
        select(sa.func.max(Customer.name)).where(Customer.id == 1),
        select(sa.literal("database")).where(Customer.id == 1),
        select(sa.alias(Customer.__table__, "c").c.name).limit(1),
        text("SELECT name FROM customers WHERE id = 1"),
    ],
)
def test_other_statements_are_the_databases(session: Session, statement: Any) -> None:
    assert session.execute(statement).scalars().all() == ["database"]


class Negated(sa.TypeDecorator[int]):
    """A number of which a SELECT shows the negative."""

    impl = sa.Integer
    cache_ok = True

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return -column


def test_an_expression_of_a_column_is_the_databases(shop: Shop, session: Session) -> None:
    negated = sa.Table("customers", sa.MetaData(), sa.Column("id", Negated, primary_key=True))
    for expression, expected in ((-Customer.id, -1), (~Customer.id, 0), (negated.c.id, -1)):
        criterion = Customer.id == 1 if expression is not negated.c.id else negated.c.id == 1
        assert session.scalar(select(expression).where(criterion)) == expected
    assert shop.cache.asked == []


def test_texts_in_a_list_are_the_databases(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two spellings may be one row."""
    monkeypatch.setattr(shop.cache, "key_columns", lambda _: ("kind",))
    shop.reads._keys.add(("customers", "kind"))
    with shop.sessions() as session:
        several = select(Customer.name).where(Customer.kind.in_(["person", "none"]))
        assert set(session.scalars(several)) == {"database"}


def test_inheritance_adds_a_criterion(session: Session) -> None:
    assert session.get(Company, 1) is None
    assert session.scalars(select(Company).where(Company.id == 1)).all() == []


@pytest.mark.parametrize("is_later", [False, True])
def test_a_hook_of_the_application_adds_a_criterion(is_later: bool) -> None:
    shop = Shop()
    sessions = sessionmaker(shop.engine)

    def hide(orm: ORMExecuteState) -> None:
        orm.statement = orm.statement.options(with_loader_criteria(Customer, Customer.name == ""))

    if not is_later:
        event.listen(sessions, "do_orm_execute", hide)
    CachedReads(shop.cache, sessions)
    if is_later:
        event.listen(sessions, "do_orm_execute", hide)
    with sessions() as session:
        assert session.get(Customer, 1) is None


def test_a_key_that_is_not_the_objects(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.cache, "key_columns", lambda _: ("id", "kind"))
    with shop.sessions() as session:
        assert name_of(session) == "database"


def test_lists_are_no_rows(session: Session) -> None:
    several = select(Customer.name).where(Customer.kind == "person", Customer.id == 1)
    assert session.scalars(several).all() == ["database"]
    assert len(session.scalars(select(Customer.name).where(Customer.kind == "person")).all()) == 4


def test_refreshed_and_expired_attributes_are_the_databases(session: Session) -> None:
    customer = session.get_one(Customer, 1)
    session.refresh(customer)
    assert customer.name == "database"
    session.expire(customer)
    assert customer.name == "database"


def test_a_statement_is_answered_with_its_own_rows_alone() -> None:
    class Rows(LoaderConnection):
        def query(self, sql: str, params: Any = None) -> list[dict[str, Any]]:
            return [{"name": "cache"}]

    def make(key: int) -> Any:
        return select(Customer.name).where(Customer.id == key)

    shop = Shop()
    rows = CachedSelect(shop.reads._find_answer, open_replay(shop.engine), "profile", make).load(Rows(), 1)
    answer = answer_from(rows, lambda _: None)
    [sql] = {str(make(1).compile(dialect=open_replay(shop.engine).dialect))}
    assert answer(None, sql, {"id_1": 1}) == [("cache",)]
    with pytest.raises(StandAside):
        answer(None, sql, {"id_1": 2})


# -- writes ----------------------------------------------------------------------------------------------


def test_changes_that_are_not_flushed(session: Session) -> None:
    changed, deleted = session.get_one(Customer, 1), session.get_one(Customer, 4)
    changed.name = "changed"
    assert session.get_one(Customer, 2).name == "database"
    session.rollback()
    assert session.get_one(Customer, 3).name == "cache"
    session.delete(deleted)
    assert session.scalars(select(Customer.name).where(Customer.id == 4)).all() == []
    session.rollback()
    session.add(Customer(id=6, name="new"))
    assert session.scalars(select(Customer.name).where(Customer.id == 6)).all() == ["new"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE customers SET name = 'database' WHERE id = 9",
        " /* why */ DELETE FROM customers WHERE id = 9",
        "REPLACE INTO customers VALUES (9, 'person', 'database')",
        "WITH few AS (SELECT 9 AS id) DELETE FROM customers WHERE id IN (SELECT id FROM few)",
    ],
)
def test_a_transaction_that_has_written(shop: Shop, session: Session, sql: str) -> None:
    session.connection().exec_driver_sql(sql)
    assert name_of(session) == "database"
    session.commit()
    assert name_of(session) == "cache"
    token = shop.reads.commit_token(session)
    assert token is not None
    assert shop.cache.asked == [(1, str(token))]
    with shop.sessions() as later:
        shop.reads.demand(later, str(token))
        shop.reads.demand(later, None)
        assert name_of(later) == "cache"
    assert shop.cache.asked[1] == (1, str(token))


def test_a_lock(session: Session) -> None:
    session.get_one(Customer, 2, with_for_update=True)
    assert name_of(session) == "database"


def test_a_rollback(shop: Shop, session: Session) -> None:
    session.execute(text("DELETE FROM customers"))
    session.rollback()
    assert name_of(session) == "cache"
    assert shop.reads.commit_token(session) is not None, "a statement may have committed by itself"


def test_a_savepoint_ends_nothing(shop: Shop, session: Session) -> None:
    with session.begin_nested():
        assert name_of(session) == "cache", "it writes nothing either"
    with session.begin_nested():
        session.execute(text("UPDATE customers SET name = 'changed'"))
    assert name_of(session) == "changed"
    assert shop.reads.commit_token(session) is None


def test_a_connection_that_was_open_before(shop: Shop) -> None:
    unobserved = create_engine("mysql+pymysql://app@db/shop", creator=Server().connect)
    for engine in (unobserved, shop.engine):
        with engine.connect() as connection:
            connection.execute(sa.update(Customer).values(name="changed"))
            with shop.sessions(bind=connection) as session:
                assert name_of(session) == "changed"
                session.commit()
            with shop.sessions(bind=connection, join_transaction_mode="rollback_only") as session:
                assert name_of(session) == "changed"
                session.connection()
                session.commit()
                assert name_of(session) == "changed"
                assert shop.reads.commit_token(session) is None


def test_without_a_token_the_database_is_read(shop: Shop, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise SourceUnavailable("nobody tells the epoch")

    monkeypatch.setattr(StillDatabase, "commit_token_of", fail)
    session.execute(text("DELETE FROM customers WHERE id = 9"))
    session.commit()
    assert name_of(session) == "database"
    with pytest.raises(SourceUnavailable, match="no token has the commits"):
        shop.reads.commit_token(session)


def test_a_session_that_is_closed_with_writes_is_blind(shop: Shop) -> None:
    session = shop.sessions()
    session.execute(text("DELETE FROM customers WHERE id = 9"))
    session.close()
    assert name_of(session) == "database"
    session.close()


def test_a_cache_that_does_not_answer(shop: Shop, session: Session) -> None:
    shop.cache.failure = SourceUnavailable("no server answers")
    assert name_of(session) == "database"
    shop.cache.failure = Overloaded("too many reads")
    with pytest.raises(Overloaded):
        name_of(session)
    shop.cache.failure = SourceUnavailable("no server answers")
    session.execute(text("DELETE FROM customers WHERE id = 9"))
    session.commit()
    with pytest.raises(SourceUnavailable, match="no server answers"):
        name_of(session)  # a server without the commit is not read in its place


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", True),
        ("  /* why */ select 1", True),
        ("/*! DELETE */ SELECT 1", False),
        ("SELECT 1 FOR UPDATE", False),
        ("SELECT 1 LOCK IN SHARE MODE", False),
        ("SELECT 1 INTO @x", False),
        ("SAVEPOINT s", True),
        ("ROLLBACK TO SAVEPOINT s", True),
        ("SET time_zone = '+00:00'", True),
        ("SET STATEMENT max_statement_time = 1 FOR DELETE FROM t", False),
        ("CALL p()", False),
        ("SELECT 1; DELETE FROM t", False),
        ("SELECTED", False),
        ("", False),
    ],
)
def test_what_counts_as_a_read(sql: str, expected: bool) -> None:
    assert is_read(sql) is expected


def test_sessions_that_do_not_fit(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="expected a sessionmaker"):
        CachedReads(shop.cache, Session)  # type: ignore[arg-type]
    proxy = create_engine("mysql+pymysql://app@proxy/shop")
    with pytest.raises(ConfigError, match="proxy:3306/shop, no server"):
        CachedReads(shop.cache, sessionmaker(proxy))
    CachedReads(shop.cache, sessionmaker(proxy), servers={proxy: "db:3306"})
    with pytest.raises(ConfigError, match="other:3306"):
        CachedReads(shop.cache, sessionmaker(), servers={proxy: "other:3306"})
