"""Sessions of SQLAlchemy that read by key from the cache, on real servers with a replica that lags."""

from __future__ import annotations

import asyncio
import enum
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    aliased,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
    sessionmaker,
    with_loader_criteria,
)
from sqlalchemy.pool import NullPool

from appclient import AsyncCache, Cache, ConfigError, Database, Explanation, ReadOutcome, SourceUnavailable
from appclient.sqlalchemy import CachedReads, CachedSelect
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, running_system, wait_for_hits
from integration.servers import Flavor, database_pair

THINGS: Final = """CREATE TABLE things (
    id INT PRIMARY KEY, kind ENUM('small', 'big'), is_on TINYINT(1), doc JSON, price DECIMAL(9, 2),
    weight DECIMAL(9, 2), points TEXT, at_time DATETIME(3), since TIMESTAMP NULL, data VARBINARY(20)
) CHARACTER SET utf8mb4"""
OBJECTS: Final = (
    CUSTOMER + PROFILE + '[objects.order]\ntable = "orders"\n[objects.thing]\ntable = "things"\n'
    '[objects.stock]\ntable = "stock"\n[objects.person]\ntable = "people"\n'
    '[objects.person_by_badge]\ntable = "people"\nkey = "badge"\n'
    '[objects.report]\nkey = ["id"]\nmembers = { things = ["id"] }\n'
)
STOCK: Final = "CREATE TABLE stock (shop INT, item VARCHAR(20) COLLATE utf8mb4_bin, n INT, PRIMARY KEY (shop, item))"

PEOPLE: Final = "CREATE TABLE people (id INT PRIMARY KEY, kind VARCHAR(20), badge VARCHAR(20) UNIQUE)"


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    name: Mapped[str | None] = mapped_column(sa.String(50))
    v: Mapped[int | None]
    orders: Mapped[list[Order]] = relationship(back_populates="customer", order_by="Order.id")


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    customer_id: Mapped[int | None] = mapped_column(sa.ForeignKey("customers.id"))
    total: Mapped[int | None]
    customer: Mapped[Customer | None] = relationship(back_populates="orders")


class Kind(enum.Enum):
    small = "s"
    big = "b"


class Points(sa.types.TypeDecorator[list[int]]):
    """Numbers in a text."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[int] | None, dialect: Any) -> str | None:
        return None if value is None else ",".join(map(str, value))

    def process_result_value(self, value: str | None, dialect: Any) -> list[int] | None:
        return None if value is None else [int(each) for each in value.split(",")]


class Thing(Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[Kind | None]
    is_on: Mapped[bool | None]
    doc: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)
    price: Mapped[Decimal | None] = mapped_column(sa.Numeric(9, 2))
    weight: Mapped[float | None] = mapped_column(sa.Numeric(9, 2, asdecimal=False))
    points: Mapped[list[int] | None] = mapped_column(Points)
    at_time: Mapped[datetime | None] = mapped_column(mysql.DATETIME(fsp=3))
    since: Mapped[datetime | None] = mapped_column(sa.TIMESTAMP)
    data: Mapped[bytes | None] = mapped_column(sa.VARBINARY(20))


class Stock(Base):
    __tablename__ = "stock"
    shop: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    n: Mapped[int | None]


class Person(Base):
    __tablename__ = "people"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(20))
    badge: Mapped[str] = mapped_column(sa.String(20))


class Manager(Person):
    __mapper_args__ = {"polymorphic_identity": "manager"}  # noqa: RUF012


class Application:
    """An engine to the primary, the cache of its sessions, and what both were asked."""

    def __init__(self, system: System, **options: Any) -> None:
        self.system = system
        self.seen: list[Explanation] = []
        self.statements: list[str] = []
        self.engine = create_engine(engine_url(system), **options)
        self.cache = Cache.open(system.config_path, on_read=self.seen.append)
        self.sessions = sessionmaker(self.engine)
        self.reads = CachedReads(self.cache, self.sessions)
        self.plain = sessionmaker(self.engine)
        event.listen(self.engine, "before_cursor_execute", self._note)

    def _note(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        self.statements.append(statement)

    def outcomes(self, function: Callable[[], Any]) -> list[ReadOutcome]:
        """The outcomes of the cache reads that ``function`` makes."""
        self.seen.clear()
        function()
        return [each.outcome for each in self.seen]

    def count_statements(self, function: Callable[[], Any]) -> int:
        self.statements.clear()
        function()
        return len(self.statements)

    def warm(self, name: str, *keys: Any) -> None:
        self.system.settle()
        wait_for_hits(self.cache, name, keys, self.system.describe)
        self.seen.clear()
        self.statements.clear()

    def close(self) -> None:
        self.cache.close()
        self.engine.dispose()


def engine_url(system: System, driver: str = "") -> str:
    """``driver``: empty for mysqlclient on MySQL, PyMySQL on MariaDB."""
    driver = driver or {"mysql": "mysqldb", "mariadb": "pymysql"}[system.pair.primary.flavor]
    return f"mysql+{driver}://app:app@127.0.0.1:{system.pair.primary.port}/shop?charset=utf8mb4"


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Flavor], System]]:
    with ExitStack() as stack:
        running: dict[Flavor, System] = {}

        def start(flavor: Flavor) -> System:
            if flavor not in running:
                pair = stack.enter_context(database_pair(flavor))
                tables = (CUSTOMERS_TABLE, ORDERS_TABLE, THINGS, STOCK, PEOPLE)
                folder = tmp_path_factory.mktemp(flavor)
                system = stack.enter_context(running_system(pair, folder, tables=tables, objects=OBJECTS))
                rows = ", ".join(f"({key}, 'n', 0)" for key in range(300))
                system.execute(f"INSERT INTO customers VALUES {rows}")
                system.execute(
                    f"INSERT INTO orders VALUES {', '.join(f'({key}, {key // 3}, 5)' for key in range(300))}"
                )
                system.execute(
                    "INSERT INTO things VALUES (1, 'big', 1, '{\"a\": [1, 2.5]}', '12.30', '1.25', '1,2,3',"
                    " '2026-01-02 03:04:05.678', '2026-06-01 12:00:00', x'00ff'),"
                    " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
                )
                system.execute("INSERT INTO stock VALUES (1, 'coffee', 5), (1, 'tea', 6)")
                system.execute("INSERT INTO people VALUES (1, 'person', 'Ab1'), (2, 'manager', 'Ab2')")
                system.settle()
                running[flavor] = system
            return running[flavor]

        yield start


@pytest.fixture
def system(systems: Callable[[Flavor], System], flavor: Flavor) -> System:
    return systems(flavor)


@pytest.fixture
def app(system: System) -> Iterator[Application]:
    with closing(Application(system)) as opened:
        yield opened


@contextmanager
def stopped_replica(system: System) -> Iterator[None]:
    system.pair.replica.stop_replication()
    try:
        yield
    finally:
        system.pair.replica.start_replication()
        system.pair.wait_caught_up()


def state_of(instance: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(instance).items() if key != "_sa_instance_state"}


# -- instances from the cache ---------------------------------------------------------------------------


def test_a_row_by_its_primary_key_needs_no_statement(app: Application) -> None:
    app.warm("customer", 7, 8)
    with app.sessions() as session:
        customer = session.get(Customer, 7)
        assert customer is not None
        assert (customer.id, customer.name, customer.v) == (7, "n", 0)
        assert session.get(Customer, 7) is customer, "the identity map has it"
        assert session.scalars(select(Customer).where(Customer.id == 7)).one() is customer
        [both] = session.execute(select(Customer).where(Customer.id.in_([7, 8]))).scalars().all()[1:]
        assert both.id == 8
        assert session.execute(select(Customer.name, Customer.id).where(Customer.id == 8)).one() == ("n", 8)
        assert session.query(Customer).filter_by(id=8).one() is both
    assert [each.outcome for each in app.seen] == [ReadOutcome.HIT] * 6
    assert app.statements == []
    assert sa.inspect(customer).detached
    assert customer.name == "n", "as an instance of any other session that was closed"


def test_a_row_that_does_not_exist(app: Application) -> None:
    app.warm("customer", 100_000)
    with app.sessions() as session:
        assert session.get(Customer, 100_000) is None
    assert app.statements == []


@pytest.mark.parametrize("key", [1, 2])
def test_types_are_those_of_the_orms_own_select(app: Application, key: int) -> None:
    utc = create_engine(app.engine.url, connect_args={"init_command": "SET time_zone = '+00:00'"})
    with closing(app.cache), Session(utc) as plain:
        expected = state_of(plain.get(Thing, key))
        sessions = sessionmaker(utc)
        CachedReads(app.cache, sessions)
        app.warm("thing", key)
        with sessions() as session:
            found = state_of(session.get(Thing, key))
            assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in expected.items()
    }
    assert found["kind"] is (Kind.big if key == 1 else None)
    utc.dispose()


def test_a_timestamp_in_another_time_zone_is_read_from_the_database(system: System) -> None:
    zone = {"init_command": "SET time_zone = '+05:00'"}
    with closing(Application(system, connect_args=zone)) as app, app.sessions() as session:
        app.warm("thing", 1)
        thing = session.get(Thing, 1)
        assert thing is not None
        assert thing.since == datetime(2026, 6, 1, 17)  # noqa: DTZ001 - as this session shows it
        assert app.seen == [], "the cache is not asked"
        name = session.execute(select(Thing.kind).where(Thing.id == 1)).scalar_one()
        assert (name, [each.outcome for each in app.seen]) == (Kind.big, [ReadOutcome.HIT]), "no TIMESTAMP"


def test_a_column_that_becomes_a_timestamp_is_read_from_the_database(system: System) -> None:
    """And stays so when it is none any more: another reader's hits may be of before."""
    zone = {"init_command": "SET time_zone = '+05:00'"}
    with closing(Application(system, connect_args=zone)) as app:

        def read(sessions: Any) -> Any:
            with sessions() as session:
                return session.execute(select(Thing.at_time).where(Thing.id == 1)).scalar_one()

        try:
            app.warm("thing", 1)
            before = read(app.sessions)
            assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
            for kind, hours in (("TIMESTAMP(3)", 5), ("DATETIME(3)", 0)):
                system.execute(f"ALTER TABLE things MODIFY at_time {kind} NULL")
                app.warm("thing", 1)
                assert read(app.plain) == before + timedelta(hours=hours), "as this session shows it"
                assert read(app.sessions) == before + timedelta(hours=hours)
                assert app.seen == [], "the cache is not asked"
        finally:
            system.execute("ALTER TABLE things MODIFY at_time DATETIME(3) NULL")


def test_a_new_connection_in_another_time_zone_is_noticed(system: System) -> None:
    """As after a failover. The cache stands aside from then on, also in sessions without a connection."""
    with closing(Application(system)) as app:
        app.warm("thing", 1)
        with app.sessions() as session:
            assert session.get_one(Thing, 1).since == datetime(2026, 6, 1, 12)  # noqa: DTZ001
            assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
        with system.pair.primary.setting("time_zone", "'+05:00'"):
            app.engine.dispose()
            for _ in range(2):
                with app.sessions() as session:
                    session.execute(text("SELECT 1"))
                    assert session.get_one(Thing, 1).since == datetime(2026, 6, 1, 17)  # noqa: DTZ001
            with app.sessions() as session:
                assert session.get_one(Thing, 1).since == datetime(2026, 6, 1, 17)  # noqa: DTZ001


@pytest.mark.parametrize("kind", ["alias", "function"])
def test_a_timestamp_in_an_expression_is_read_from_the_database(system: System, kind: str) -> None:
    """Or under another name of its table, as joined loading gives it."""
    other = aliased(Thing)
    texts: dict[str, Callable[[int], Any]] = {
        "alias": lambda key: select(other.since).where(other.id == key),
        "function": lambda key: select(sa.func.max(Thing.since)).where(Thing.id == key),
    }
    zone = {"init_command": "SET time_zone = '+05:00'"}
    system.execute("UPDATE things SET is_on = NOT is_on WHERE id = 1")  # no entry of the other text
    with closing(Application(system, connect_args=zone)) as app:
        read = app.reads.select("report")(texts[kind])
        app.warm("report", 1)
        with app.sessions() as session:
            assert read.all(session, 1) == [datetime(2026, 6, 1, 17)]  # noqa: DTZ001


def test_keys_of_several_columns(app: Application) -> None:
    app.warm("stock", (1, "coffee"), (1, "tea"))
    with app.sessions() as session:
        for key, count in (("coffee", 5), ("tea", 6)):
            stock = session.get(Stock, (1, key))
            assert stock is not None
            assert (stock.item, stock.n) == (key, count)
        where = (Stock.item == "tea", Stock.shop == 1)
        assert session.scalar(select(Stock.n).where(*where)) == 6
    assert app.statements == []


def test_a_unique_key(app: Application) -> None:
    app.warm("person_by_badge", "Ab1")
    with app.sessions() as session:
        person = session.scalars(select(Person).where(Person.badge == "ab1")).one()
        assert person.id == 1, "as the collation compares"
        assert session.scalars(select(Person).where(Person.badge == "Ab1")).one() is person
        assert len(app.seen) == 2
        several = select(Person).where(Person.badge.in_(["ab1", "AB1"]))
        assert session.scalars(several).all() == [person], "two spellings of one row"


def test_core_statements(app: Application) -> None:
    app.warm("customer", 9)
    table = Customer.__table__
    with app.sessions() as session:
        assert session.execute(select(table).where(table.c.id == 9)).one() == (9, "n", 0)
    assert app.statements == []


# -- relationships ---------------------------------------------------------------------------------------


def test_foreign_keys_are_followed_in_the_cache(app: Application) -> None:
    app.warm("order", 30, 33)
    app.warm("customer", 10, 11)
    with app.sessions() as session:
        order = session.get(Order, 30)
        assert order is not None
        assert order.customer is not None
        assert order.customer.id == 10, "by lazy loading"
        later = session.get(Order, 33, options=[selectinload(Order.customer)])
        assert later is not None
        assert "customer" in state_of(later), "by the loader option"
    assert later.customer is not None
    assert later.customer.id == 11
    assert app.statements == []


def test_a_joined_relationship_is_read_from_the_database(app: Application) -> None:
    app.warm("customer", 12)
    with app.sessions() as session:
        customer = session.get(Customer, 12, options=[joinedload(Customer.orders)])
        assert customer is not None
        assert [order.id for order in customer.orders] == [36, 37, 38]
    assert app.seen == []
    assert len(app.statements) == 1


def test_a_collection_is_loaded_from_the_database_and_stays_usable(app: Application) -> None:
    app.warm("customer", 13)
    with app.sessions() as session:
        customer = session.get(Customer, 13)
        assert customer is not None
        assert [order.id for order in customer.orders] == [39, 40, 41]
        customer.name = "changed"
        customer.orders[0].total = 6
        session.commit()
    with app.plain() as plain:
        assert plain.get_one(Customer, 13).name == "changed"
        assert plain.get_one(Order, 39).total == 6


# -- what stands aside -----------------------------------------------------------------------------------


def test_statements_that_ask_for_more_than_the_row(app: Application) -> None:
    app.warm("customer", 14)
    by_key = select(Customer).where(Customer.id == 14)
    with app.sessions() as session:
        customer = session.get_one(Customer, 14)
        app.seen.clear()
        session.refresh(customer)
        session.get_one(Customer, 14, populate_existing=True)
        for statement in (
            by_key.where(Customer.v == 0),
            by_key.limit(1),
            by_key.execution_options(populate_existing=True),
            select(Customer).where(Customer.id > 13, Customer.id < 15),
            select(Customer).where(sa.or_(Customer.id == 14, Customer.id == 14)),
            select(sa.func.max(Customer.v)).where(Customer.id == 14),
            select(Customer, Order).where(Customer.id == 14, Order.id == Customer.id),
            text("SELECT * FROM customers WHERE id = 14"),
        ):
            assert len(session.execute(statement).all()) == 1, statement
        assert session.execute(by_key.with_for_update()).scalar_one() is customer
    assert app.seen == []


def test_inheritance(app: Application) -> None:
    app.warm("person", 1, 2)
    with app.sessions() as session:
        assert type(session.get(Person, 2)) is Manager
        assert len(app.seen) == 1
        session.expunge_all()
        assert session.get(Manager, 1) is None, "inheritance adds a criterion"
        assert type(session.get(Manager, 2)) is Manager
        assert len(app.seen) == 1


def test_criteria_of_the_applications_own_hook(system: System) -> None:
    engine = create_engine(engine_url(system))
    sessions, late = sessionmaker(engine), sessionmaker(engine)
    seen: list[Explanation] = []

    def hide(orm: ORMExecuteState) -> None:
        orm.statement = orm.statement.options(with_loader_criteria(Customer, Customer.v > 0))

    with closing(Cache.open(system.config_path, on_read=seen.append)) as cache:
        event.listen(sessions, "do_orm_execute", hide)
        CachedReads(cache, sessions)
        CachedReads(cache, late)
        event.listen(late, "do_orm_execute", hide)
        for made in (sessions, late):
            with made() as session:
                assert session.get(Customer, 15) is None
    assert seen == []
    engine.dispose()


def test_another_database_is_not_served(system: System) -> None:
    """A table of the same name in another database has other rows."""
    system.pair.primary.execute("CREATE DATABASE IF NOT EXISTS other")
    system.pair.primary.execute("CREATE TABLE IF NOT EXISTS other.customers LIKE shop.customers")
    url = engine_url(system).replace("/shop?", "/other?").replace("app:app", "root")
    engine, other = create_engine(engine_url(system)), create_engine(url)
    sessions = sessionmaker(engine, binds={Order: other})
    with closing(Cache.open(system.config_path)) as cache:
        CachedReads(cache, sessions)
        with pytest.raises(ConfigError, match="no server of a keyspace"):
            CachedReads(cache, sessionmaker(other))
        CachedReads(cache, sessionmaker(other), servers={other: f"127.0.0.1:{system.pair.primary.port}"})
        with pytest.raises(ConfigError, match="expected a sessionmaker"):
            CachedReads(cache, Session)  # type: ignore[arg-type]
        seen: list[Any] = []
        event.listen(other, "before_cursor_execute", lambda *args: seen.append(args))
        with sessions() as session, pytest.raises(sa.exc.DBAPIError):
            session.get(Order, 1)
        assert seen, "its own engine was asked"
    engine.dispose()
    other.dispose()


# -- writes ----------------------------------------------------------------------------------------------


def change(session: Session, key: int) -> None:
    session.get_one(Customer, key).v = 7


def flush(session: Session, key: int) -> None:
    change(session, key)
    session.flush()


WRITES: Final[dict[str, Callable[[Session, int], Any]]] = {
    "flush": flush,
    "unflushed": change,
    "update": lambda session, key: session.execute(sa.update(Customer).where(Customer.id == key).values(v=7)),
    "text": lambda session, key: session.execute(text(f"UPDATE customers SET v = 7 WHERE id = {key}")),
    "core": lambda session, key: session.connection().execute(
        sa.update(Customer).where(Customer.id == key).values(v=7)
    ),
    "driver": lambda session, key: session.connection().exec_driver_sql(
        f"/* why */ UPDATE customers SET v = 7 WHERE id = {key}"
    ),
    "bulk": lambda session, key: session.bulk_update_mappings(sa.inspect(Customer), [{"id": key, "v": 7}]),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_session_that_has_written_reads_its_rows_and_after_the_commit_its_commit(
    app: Application, kind: str
) -> None:
    key = 100 + list(WRITES).index(kind)
    app.warm("customer", key)
    with stopped_replica(app.system), app.sessions(autoflush=False) as session:
        WRITES[kind](session, key)
        app.seen.clear()
        if kind != "unflushed":
            session.expire_all()
        assert session.get_one(Customer, key).v == 7
        assert session.scalars(select(Customer.id).where(Customer.id == key + 50)).one() == key + 50
        assert app.seen == [], "the cache stands aside, for other rows as well"
        session.commit()
        session.expunge_all()
        assert session.get_one(Customer, key).v == 7
        [own] = app.seen
        assert not own.is_hit or own.value["v"] == 7
        token = app.reads.commit_token(session)
        assert token is not None
    with app.sessions() as next_request:
        app.reads.demand(next_request, str(token))
        assert next_request.get_one(Customer, key).v == 7
    app.system.assert_none_stale(app.cache, "customer", [key])


def test_after_a_rollback_the_cache_serves_again(app: Application) -> None:
    app.warm("customer", 120, 121)
    with app.sessions() as session:
        session.get_one(Customer, 120).v = 7
        session.flush()
        session.rollback()
        app.seen.clear()
        assert session.get_one(Customer, 121).v == 0
        assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
        assert session.get_one(Customer, 120).v == 0
    app.system.assert_none_stale(app.cache, "customer", [120, 121])


def test_an_exception_leaves_nothing_behind(app: Application) -> None:
    app.warm("customer", 122)
    with pytest.raises(ZeroDivisionError), app.sessions.begin() as session:  # noqa: PT012
        session.get_one(Customer, 122).v = 7
        session.flush()
        raise ZeroDivisionError
    with pytest.raises(sa.exc.IntegrityError), app.sessions.begin() as session:
        session.add(Customer(id=122))
    with app.sessions() as session:
        assert session.get_one(Customer, 122).v == 0
    assert [each.outcome for each in app.seen[-1:]] == [ReadOutcome.HIT]
    app.system.assert_none_stale(app.cache, "customer", [122])


def test_savepoints_end_no_transaction(app: Application) -> None:
    app.warm("customer", 123, 124, 125)
    with app.sessions() as session:
        with session.begin_nested():
            assert session.get_one(Customer, 123).v == 0
        assert len(app.seen) == 1, "a savepoint writes nothing"
        app.seen.clear()
        with pytest.raises(ZeroDivisionError), session.begin_nested():  # noqa: PT012
            session.get_one(Customer, 123).v = 7
            session.flush()
            raise ZeroDivisionError
        app.seen.clear()
        assert session.get_one(Customer, 124).v == 0
        with session.begin_nested():
            session.get_one(Customer, 124).v = 8
        session.expire_all()
        assert session.get_one(Customer, 124).v == 8
        assert app.seen == []
        session.commit()
        session.expunge_all()
        assert session.get_one(Customer, 124).v == 8
        assert session.get_one(Customer, 125).v == 0
        assert len(app.seen) == 2
    app.system.assert_none_stale(app.cache, "customer", [123, 124, 125])


def test_rows_that_were_deleted_and_inserted(app: Application) -> None:
    app.warm("customer", 126, 100_126)
    with stopped_replica(app.system), app.sessions() as session:
        session.delete(session.get_one(Customer, 126))
        session.add(Customer(id=100_126, v=3))
        session.commit()
        assert session.get(Customer, 126) is None
        session.expunge_all()
        assert session.get_one(Customer, 100_126).v == 3
    app.system.assert_none_stale(app.cache, "customer", [126, 100_126])


def test_what_expires_at_the_commit_is_read_from_the_database(app: Application) -> None:
    app.warm("customer", 127)
    with stopped_replica(app.system), app.sessions() as session:
        customer = session.get_one(Customer, 127)
        customer.v = 7
        session.commit()
        assert customer.v == 7
    assert len(app.seen) == 1


def test_rows_that_are_locked_are_read_in_the_transaction(app: Application) -> None:
    app.warm("customer", 128, 129)
    with app.sessions() as session:
        session.get_one(Customer, 128, with_for_update=True)
        session.get_one(Customer, 129)
    assert app.seen == []


@pytest.mark.parametrize(
    "statement",
    [
        "USE mysql",
        "SET time_zone = '+05:00'",
        "/*!50000 SET time_zone = '+05:00' */",
        "CREATE TEMPORARY TABLE freshness_other (id INT)",
        "SELECT GET_LOCK('customers', 0)",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ],
)
def test_a_connection_whose_session_was_changed_is_not_served(app: Application, statement: str) -> None:
    app.warm("customer", 140)
    with app.sessions() as session:
        connection = session.connection()
        try:
            session.execute(sa.text(statement))
            if not statement.startswith("USE"):
                session.get_one(Customer, 140)
        finally:
            connection.invalidate()
        assert app.seen == []
    with app.sessions() as session:
        session.get_one(Customer, 140)
    assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]


def send_by_cursor(connection: sa.Connection) -> None:
    connection.connection.cursor().execute("SET time_zone = '+05:00'")


def send_by_driver(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.query("SET time_zone = '+05:00'")


def choose_database(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.select_db("mysql")
    driver.select_db("shop")


@pytest.mark.parametrize("send", [send_by_cursor, send_by_driver, choose_database])
def test_a_session_that_was_changed_past_sqlalchemy_is_not_served(
    app: Application, send: Callable[[sa.Connection], None]
) -> None:
    app.warm("customer", 144)
    with app.engine.connect() as connection:
        send(connection)
    with app.sessions() as session:
        connection = session.connection()
        session.get_one(Customer, 144)
        assert app.seen == []
        connection.invalidate()
    with app.sessions() as session:
        session.get_one(Customer, 144)
    assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]


def test_an_engine_whose_handler_changes_each_session_is_not_served(system: System) -> None:
    """A hit has no connection that could be asked."""
    with closing(Application(system)) as app:

        @event.listens_for(app.engine, "connect")
        def begin(raw: Any, _: Any) -> None:
            raw.query("SET time_zone = '+00:00'")

        app.warm("customer", 145)
        with app.sessions() as session:
            session.get_one(Customer, 145)
        assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
        app.seen.clear()

        @event.listens_for(app.engine, "checkout")
        def choose(raw: Any, _: Any, __: Any) -> None:
            raw.query("USE mysql")

        with app.sessions() as session:
            session.connection()
        with app.sessions() as session, pytest.raises(sa.exc.ProgrammingError, match="doesn't exist"):
            session.get_one(Customer, 145)
        assert app.seen == []


def test_options_of_sqlalchemy_change_no_session(system: System) -> None:
    with closing(Application(system)) as app:
        app.warm("customer", 146)
        for level in ("SERIALIZABLE", "READ COMMITTED", "AUTOCOMMIT"):
            with app.engine.connect().execution_options(isolation_level=level) as connection:
                connection.execute(sa.text("SELECT 1"))
            with app.sessions() as session:
                session.connection()
                session.get_one(Customer, 146)
        assert [each.outcome for each in app.seen] == [ReadOutcome.HIT] * 3


def test_a_schema_that_is_chosen_later_than_the_url_is_not_served(app: Application, system: System) -> None:
    prepare_tenant(system, 141)
    app.warm("customer", 141)
    translated = {"schema_translate_map": {None: "tenant_b"}}
    with app.sessions(bind=app.engine.execution_options(**translated)) as session:
        assert session.get_one(Customer, 141).name == "b"
    with app.engine.connect().execution_options(**translated) as connection, app.sessions(bind=connection) as session:
        assert session.get_one(Customer, 141).name == "b"
    with app.sessions() as session:
        session.connection(execution_options=translated)
        assert session.get_one(Customer, 141).name == "b"
    name = "db" if "mysqldb" in engine_url(system) else "database"
    for options in ({"connect_args": {name: "tenant_b"}}, {"creator": lambda: open_tenant(system, "tenant_b")}):
        engine = create_engine(engine_url(system), **options)
        with app.sessions(bind=engine) as session:
            assert session.get_one(Customer, 141).name == "b"
        engine.dispose()
    assert app.seen == []


def prepare_tenant(system: System, key: int) -> None:
    """Another database with a customer of the same key, whose name is "b"."""
    system.execute("CREATE DATABASE IF NOT EXISTS tenant_b")
    system.execute("GRANT ALL ON tenant_b.* TO app@'%'")
    system.pair.primary.execute(CUSTOMERS_TABLE.replace("TABLE ", "TABLE IF NOT EXISTS "), database="tenant_b")
    system.execute(f"REPLACE INTO tenant_b.customers VALUES ({key}, 'b', 1)")


def open_tenant(system: System, tenant: str = "shop") -> Any:
    return pymysql.connect(
        host="127.0.0.1", port=system.pair.primary.port, user="app", password="app", database=tenant
    )


@pytest.mark.parametrize("kind", ["session", "begin", "no pool", "rewriting"])
def test_a_handler_that_chooses_the_tenant_is_asked(system: System, kind: str) -> None:
    """A hit needs no connection. The first session of the other tenant is the first one that it is chosen for."""
    prepare_tenant(system, 147)
    tenants: list[str] = []
    options: dict[str, Any] = {}
    if kind == "no pool":
        options = {"poolclass": NullPool, "creator": lambda: open_tenant(system, *tenants)}
    with closing(Application(system, **options)) as app:

        def use(connection: sa.Connection) -> None:
            for each in tenants:
                connection.exec_driver_sql(f"USE {each}")

        def rewrite(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> Any:
            return statement.replace("FROM ", "FROM tenant_b."), parameters

        app.warm("customer", 147)
        if kind == "session":
            event.listen(app.sessions, "after_begin", lambda *of: use(of[2]))
        elif kind == "begin":
            event.listen(app.engine, "begin", use)
        with app.sessions() as session:
            assert session.get_one(Customer, 147).name == "n"
        assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
        tenants.append("tenant_b")
        if kind == "rewriting":
            event.listen(app.engine, "before_cursor_execute", rewrite, retval=True)
        for _ in range(2):
            with app.sessions() as session:
                assert session.get_one(Customer, 147).name == "b"
        assert len(app.seen) == 1


@pytest.mark.parametrize("where", ["engine", "option", "connection", "transaction", "server"])
def test_a_transaction_that_locks_what_it_reads_is_not_served(system: System, where: str) -> None:
    """Two of them would both hit, and one of their updates would be lost."""
    level = {"isolation_level": "SERIALIZABLE"}
    variable = "transaction_isolation" if system.pair.primary.flavor == "mysql" else "tx_isolation"
    begins_so = where in ("engine", "server")
    with ExitStack() as stack:
        if where == "server":
            stack.enter_context(system.pair.primary.setting(variable, "'SERIALIZABLE'"))
        app = stack.enter_context(closing(Application(system, **(level if where == "engine" else {}))))
        app.warm("customer", 142)
        if not begins_so:
            with app.sessions() as usual:
                usual.get_one(Customer, 142)
            assert [each.outcome for each in app.seen] == [ReadOutcome.HIT]
            app.seen.clear()
        if where == "option":
            session = app.sessions(bind=app.engine.execution_options(**level))
        elif where == "connection":
            session = app.sessions(bind=stack.enter_context(app.engine.connect()).execution_options(**level))
        else:
            session = app.sessions()
        if where == "transaction":
            session.connection(execution_options=level)
        with session:
            session.get_one(Customer, 142)
        assert app.seen == []


def test_a_function_that_may_lock_counts_as_a_write(app: Application, system: System) -> None:
    with system.pair.primary.setting("log_bin_trust_function_creators", 1):
        system.execute("DROP FUNCTION IF EXISTS lock_customer")
        system.execute("CREATE FUNCTION lock_customer() RETURNS INT DETERMINISTIC NO SQL RETURN 1")
    app.warm("customer", 143)
    with app.sessions() as session:
        session.execute(sa.text("SELECT lock_customer()"))
        session.get_one(Customer, 143)
    assert app.seen == []


def test_a_connection_that_was_open_before_counts_as_written(app: Application) -> None:
    """As in tests that roll back what the session commits."""
    app.warm("customer", 130)
    with app.engine.connect() as connection:
        outer = connection.begin()
        connection.execute(sa.update(Customer).where(Customer.id == 130).values(v=7))
        with app.sessions(bind=connection, join_transaction_mode="create_savepoint") as session:
            assert session.get_one(Customer, 130).v == 7
            session.get_one(Customer, 130).v = 8
            session.commit()
            session.expunge_all()
            assert session.get_one(Customer, 130).v == 8
            assert app.reads.commit_token(session) is None
        outer.rollback()
    assert app.seen == []
    unobserved = create_engine(engine_url(app.system))
    with unobserved.connect() as connection:
        connection.begin()
        connection.execute(sa.update(Customer).where(Customer.id == 130).values(v=7))
        with app.sessions(bind=connection) as session:
            assert session.get_one(Customer, 130).v == 7
    assert app.seen == []
    unobserved.dispose()
    app.system.assert_none_stale(app.cache, "customer", [130])


def test_a_session_whose_commit_has_no_token_reads_the_database(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.warm("customer", 131)

    def fail(*_: Any, **__: Any) -> None:
        raise SourceUnavailable("nobody tells the epoch")

    monkeypatch.setattr(Database, "commit_token_of", fail)
    with stopped_replica(app.system), app.sessions() as session:
        session.get_one(Customer, 131).v = 7
        session.commit()
        session.expunge_all()
        app.seen.clear()
        assert session.get_one(Customer, 131).v == 7
        assert app.seen == []
        with pytest.raises(SourceUnavailable, match="no token has the commits"):
            app.reads.commit_token(session)


def test_statements_that_commit_by_themselves_are_in_the_token(app: Application) -> None:
    app.warm("customer", 132)
    with stopped_replica(app.system), app.sessions() as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        session.execute(sa.update(Customer).where(Customer.id == 132).values(v=7))
        session.rollback()
        assert app.reads.commit_token(session) is not None
        assert session.get_one(Customer, 132).v == 7
    app.system.assert_none_stale(app.cache, "customer", [132])


def test_no_session_reads_before_its_commit_and_nothing_old_is_stored(app: Application) -> None:
    """Threads that write and read beside a replica that stops and goes on."""
    system, keys = app.system, list(range(200, 220))
    app.warm("customer", *keys)
    stop, stale, counts = threading.Event(), [], Counter[str]()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(150):
            key = chance.choice(keys)
            with app.sessions() as session:
                customer = session.get_one(Customer, key, with_for_update=chance.random() < 0.5)
                session.execute(sa.update(Customer).where(Customer.id == key).values(v=Customer.v + 1))
                least = session.scalar(select(Customer.v).where(Customer.id == key))
                if chance.random() < 0.2:
                    session.rollback()
                    continue
                session.commit()
                session.expunge_all()
                found = session.get_one(Customer, key).v
                counts["reads"] += 1
                if found is None or least is None or found < least:
                    stale.append((seed, number, key, least, found, customer))

    def lag() -> None:
        while not stop.is_set():
            with stopped_replica(system):
                stop.wait(0.3)
            stop.wait(0.1)

    with ThreadPoolExecutor(5) as pool:
        late = pool.submit(lag)
        try:
            for each in [pool.submit(work, seed) for seed in range(4)]:
                each.result()
        finally:
            stop.set()
        late.result()
    assert stale == []
    assert counts["reads"] > 300
    system.assert_none_stale(app.cache, "customer", keys)


# -- composite objects -----------------------------------------------------------------------------------


def open_profile(reads: CachedReads) -> CachedSelect:
    @reads.select("profile")
    def profile(customer_id: int) -> sa.Select[Any]:
        return select(Customer).where(Customer.id == customer_id).options(selectinload(Customer.orders))

    return profile


def test_a_composite_by_a_select_with_relationships(app: Application) -> None:
    profile = open_profile(app.reads)
    app.warm("profile", 20, 100_020)
    with app.sessions() as session:
        customer = profile.get(session, 20)
        assert [order.id for order in customer.orders] == [60, 61, 62]
        assert customer.orders[0].customer is customer
        assert profile.get(session, 100_020) is None
    assert app.statements == []
    with app.sessions() as session:
        customer = profile.get(session, 20)
        customer.orders[0].total = 7
        assert [order.total for order in profile.get(session, 20).orders] == [7, 5, 5], "read in the session"
        customer.orders.append(Order(id=1020, total=9))
        session.commit()
    with stopped_replica(app.system), app.sessions() as session:
        customer = session.get_one(Customer, 20)
        session.add(Order(id=1021, customer_id=20, total=8))
        session.commit()
        assert [order.total for order in profile.get(session, 20).orders] == [7, 5, 5, 9, 8]
        assert customer.id == 20
    app.warm("profile", 20)
    with app.sessions() as session, app.plain() as plain:
        cached = [state_of(order) for order in profile.get(session, 20).orders]
        assert app.statements == []
        expected = plain.get_one(Customer, 20).orders
        assert [(each["id"], each["total"]) for each in cached] == [(each.id, each.total) for each in expected]


def test_a_composite_of_another_version_or_with_known_instances_is_read_from_the_database(app: Application) -> None:
    profile = open_profile(app.reads)
    app.warm("profile", 21)
    with app.sessions() as session:
        assert len(session.get_one(Order, 63).customer.orders) == 3  # type: ignore[union-attr]
        assert len(profile.get(session, 21).orders) == 3

    @app.reads.select("profile")
    def newer(customer_id: int) -> sa.Select[Any]:
        return select(Customer).where(Customer.id == customer_id).options(joinedload(Customer.orders))

    with app.sessions() as session:
        assert len(newer.get(session, 21).orders) == 3
    with pytest.raises(ConfigError, match="needs no loader"):
        app.reads.select("customer")(lambda key: select(Customer))
    with pytest.raises(ConfigError, match="have no engine"):
        CachedReads(app.cache, sessionmaker()).select("profile")


# -- event loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
def test_sessions_of_an_event_loop(app: Application, driver: str) -> None:
    system, key = app.system, 240 + ["asyncmy", "aiomysql"].index(driver)
    app.warm("customer", key, *range(220, 230))
    app.cache.loader("profile")(lambda *_: None)
    seen: list[Explanation] = []

    async def work() -> None:
        engine = create_async_engine(engine_url(system, driver))
        sessions = async_sessionmaker(engine)
        plain = async_sessionmaker(engine)
        async with await AsyncCache.open(system.config_path, on_read=seen.append) as cache:
            reads = CachedReads(cache, sessions)
            profile = open_profile(reads)

            async def read(number: int) -> Any:
                async with sessions() as session:
                    return (await session.get_one(Customer, number)).id

            found = await asyncio.gather(*(read(number) for number in range(220, 230)))
            assert found == list(range(220, 230))
            assert {each.outcome for each in seen} == {ReadOutcome.HIT}
            seen.clear()
            async with sessions() as session:
                table = Customer.__table__
                one = (await session.execute(select(table).where(table.c.id == key))).one()
                assert (one.id, [each.outcome for each in seen]) == (key, [ReadOutcome.HIT])
                (await session.get_one(Customer, key)).v = 7
                await session.flush()
                session.expunge_all()
                seen.clear()
                assert (await session.get_one(Customer, key)).v == 7
                assert seen == []
                await session.commit()
                session.expunge_all()
                assert (await session.get_one(Customer, key)).v == 7
                assert len(seen) == 1
                token = reads.commit_token(session)
            async with sessions() as session:
                reads.demand(session, token)
                assert (await session.get_one(Customer, key)).v == 7
                customer = await session.run_sync(profile.get, key)
                assert (customer.v, len(customer.orders)) == (7, 3 if key < 100 else 0)
            async with plain() as session:
                assert (await session.get_one(Customer, key)).v == 7
                seen.clear()
            async with sessions() as session:
                raw = await (await session.connection()).get_raw_connection()
                own: Any = raw.driver_connection
                async with own.cursor() as cursor:
                    await cursor.execute("SET time_zone = '+05:00'")
                assert (await session.get_one(Customer, key)).v == 7
                assert seen == []
            with pytest.raises(ConfigError, match="an async_sessionmaker"):
                CachedReads(cache, app.sessions)
            async with engine.connect() as connection:
                bound = CachedReads(cache, async_sessionmaker(connection))
                with pytest.raises(ConfigError, match="have no engine"):
                    bound.select("profile")
        assert seen == [], "sessions of another maker are left alone"
        await engine.dispose()

    with stopped_replica(system):
        asyncio.run(work())
    system.assert_none_stale(app.cache, "customer", [key])
