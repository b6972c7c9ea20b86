"""Random sessions: loaders, own pools and SQLAlchemy's sessions do what a grammar lets them, and a process that does
nothing odd compares each of its hits with the primary.

``FUZZ_SECONDS`` and ``FUZZ_SEED`` in the environment make it longer, and another one.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any, Final

import MySQLdb
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from appclient import Cache
from appclient.connection import own_pool, query
from appclient.connection.query import LoaderConnection
from appclient.database import servers
from appclient.sqlalchemy import CachedReads
from freshness.errors import FreshnessError
from freshness.stream.heartbeat import SERVER_NAME
from integration.appclient.sessions import KEYS, fill_tables, opened
from integration.harness import System
from integration.servers import Flavor, Pair
from integration.servers.database import DatabaseServer

DRIVERS: Final = {"mysql": "mysqldb", "mariadb": "pymysql"}
DRIVER_ERRORS: Final = (MySQLdb.MySQLError, pymysql.MySQLError)
SECONDS: Final = float(os.environ.get("FUZZ_SECONDS", "30"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
ROUNDS_AT_LEAST: Final = 30
CHECKED_EVERY: Final = 5
FILL_SHARE: Final = 0.5

CHANGES: Final = (
    "SET time_zone = '{zone}'",
    "SET SESSION sql_mode = '{mode}'",
    "SET sql_select_limit = {limit}",
    "SET character_set_connection = latin1",
    "SET sql_auto_is_null = 1",
    "SET group_concat_max_len = 4",
    "SET SESSION TRANSACTION ISOLATION LEVEL {isolation}",
    "USE tenant_b",
    "SELECT 1; USE tenant_b",
    "/*! USE tenant_b */",
    "/*!50000 SET time_zone = '{zone}' */",
    "EXECUTE IMMEDIATE 'USE tenant_b'",
    "BEGIN NOT ATOMIC SET time_zone = '{zone}'; END",
    "SELECT shift_zone()",
    "CALL be_odd()",
    "SELECT @tenant := 5",
    "SELECT GET_LOCK('lock{limit}', 0)",
    "SELECT * FROM nowhere",
    "SELECT 1",
)
TABLES: Final = {
    "customer": "* FROM customers",
    "stamp": "id, CONVERT_TZ(at, @@session.time_zone, '+00:00'), fixed, name FROM stamps",
}
PARTS: Final = {
    "zone": ("-05:00", "+09:30", "+00:00"),
    "mode": ("", "PAD_CHAR_TO_FULL_LENGTH", "ANSI_QUOTES", "PIPES_AS_CONCAT"),
    "limit": ("0", "1", "2"),
    "isolation": ("READ COMMITTED", "READ UNCOMMITTED", "SERIALIZABLE"),
}


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(50))
    v: Mapped[int]


class Stamp(Base):
    __tablename__ = "stamps"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime | None] = mapped_column(sa.TIMESTAMP)
    name: Mapped[str] = mapped_column(sa.String(20))


class Odd(Exception):
    """A loader's own error."""


class Application:
    """A process that changes sessions in every way that the library lets it. Errors are its own business."""

    def __init__(self, system: System, dice: random.Random, stack: ExitStack) -> None:
        self.system, self.dice = system, dice
        self.cache = stack.enter_context(opened(system))
        self.cache.loader("report")(self.load)
        server = f"127.0.0.1:{system.pair.replica.port}"
        pooled = self._engine(system.pair.replica, stack)
        self.raw = pooled
        self.pooled = stack.enter_context(opened(system, pools={server: pooled}))
        engine = self._engine(system.pair.primary, stack)
        self.sessions = sessionmaker(engine)
        self.reads = CachedReads(self.cache, self.sessions)
        self.plain = sessionmaker(engine)
        self.wrong: list[str] = []

    @staticmethod
    def _engine(server: DatabaseServer, stack: ExitStack) -> sa.Engine:
        url = f"mysql+{DRIVERS[server.flavor]}://app:app@127.0.0.1:{server.port}/shop?charset=utf8mb4"
        engine = sa.create_engine(url, pool_size=2)
        stack.callback(engine.dispose)
        return engine

    def draw(self) -> str:
        return self.dice.choice(CHANGES).format(**{name: self.dice.choice(values) for name, values in PARTS.items()})

    def load(self, database: LoaderConnection, key: int) -> Any:
        for _ in range(self.dice.randrange(3)):
            with suppress(FreshnessError, *DRIVER_ERRORS):
                database.query(self.draw())
        if self.dice.random() < 0.2:
            raise Odd
        if self.dice.random() < 0.3:
            return self._ask_side_by_side(database)
        return database.query("SELECT id, at, fixed FROM stamps WHERE id = %s", (key,))

    def _ask_side_by_side(self, database: LoaderConnection) -> list[Any]:
        found: dict[int, Any] = {}

        def ask(number: int) -> None:
            try:
                [row] = database.query("SELECT %s AS n", (number,))
                found[number] = row["n"]
            except Exception as error:  # noqa: BLE001 - compared below
                found[number] = error

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if found != {number: number for number in range(6)}:
            self.wrong.append(f"queries of one loader got each other's answers: {found}")
        return []

    def run_loader(self) -> None:
        with suppress(FreshnessError, *DRIVER_ERRORS, Odd):
            self.cache.get("report", self.dice.choice(KEYS))

    def run_query(self) -> None:
        with suppress(FreshnessError, *DRIVER_ERRORS):
            self.cache.database().query(self.draw())

    def use_pool(self) -> None:
        with suppress(*DRIVER_ERRORS):
            connection = self.raw.raw_connection()
            cursor = connection.cursor()
            with suppress(*DRIVER_ERRORS):
                cursor.execute(self.draw())
            cursor.close()
            connection.close()

    def read_by_orm(self) -> None:
        """A session reads what its own engine would have read."""
        changes = [self.draw() for _ in range(self.dice.randrange(4))]
        kind, key = self.dice.choice((Customer, Stamp)), self.dice.choice(KEYS)
        found = [self._read_by(maker, changes, kind, key) for maker in (self.sessions, self.plain)]
        if found[0] != found[1]:
            self.wrong.append(f"after {changes} the session read {found[0]} and not {found[1]}")

    def _read_by(self, maker: sessionmaker[Any], changes: list[str], kind: type[Any], key: int) -> Any:
        with maker() as used:
            connection = used.connection()
            try:
                for number, each in enumerate(changes):
                    with suppress(sa.exc.DBAPIError, *DRIVER_ERRORS):
                        if number % 2:
                            connection.connection.cursor().execute(each)
                            continue
                        used.execute(sa.text(each.replace(":=", r"\:=")))
                row = used.get(kind, key)
                return None if row is None else [getattr(row, column.name) for column in kind.__table__.columns]
            except sa.exc.DBAPIError as error:
                return type(error).__name__
            finally:
                connection.invalidate()

    def fill(self) -> None:
        """Change some rows, and read them by connections that somebody has used."""
        some = self.dice.sample(KEYS, 4)
        for key in some:
            self.system.execute(f"UPDATE customers SET v = v + 1 WHERE id = {key}")
            self.system.execute(f"UPDATE stamps SET name = 'n{self.dice.randrange(9)}' WHERE id = {key}")
        self.system.settle()
        for name in TABLES:
            with suppress(FreshnessError):
                self.wrong += find_differences(self.system, self.dice.choice((self.cache, self.pooled)), name, some)

    def do_one(self) -> None:
        self.dice.choice((self.run_loader, self.run_query, self.use_pool, self.read_by_orm))()
        if self.dice.random() < FILL_SHARE:
            self.fill()


def find_differences(system: System, cache: Cache, name: str, keys: Iterable[int] = KEYS) -> list[str]:
    """What a process reads, against the rows of the primary. All servers have caught up."""
    rows = {row[0]: row for row in system.execute(f"SELECT {TABLES[name]}")}
    found = []
    for key, read in cache.get_many(name, keys, explain=True).items():
        value = None if read.value is None else tuple(read.value.values())
        if value != rows[key]:
            found.append(f"{name} {key}: {read.outcome} {value}, the primary has {rows[key]}")
    return found


def fuzz(system: System, seconds: float, seed: int) -> list[str]:
    """The first differences, or none in that time."""
    fill_tables(system)
    dice = random.Random(seed)
    until = time.monotonic() + seconds
    rounds = 0
    with ExitStack() as stack:
        application = Application(system, dice, stack)
        innocent = stack.enter_context(opened(system))
        while rounds < ROUNDS_AT_LEAST or time.monotonic() < until:
            for _ in range(CHECKED_EVERY):
                application.do_one()
            rounds += 1
            wrong = [
                *application.wrong,
                *(each for name in TABLES for each in find_differences(system, innocent, name)),
            ]
            if wrong:
                return [f"seed {seed}, round {rounds}: {each}" for each in wrong]
    return []


@pytest.fixture
def system(tenants: Callable[[Pair], System], flavor: Flavor, request: pytest.FixtureRequest) -> System:
    return tenants(request.getfixturevalue(f"{flavor}_pair"))


def test_no_session_changes_what_others_read(system: System) -> None:
    assert fuzz(system, SECONDS, SEED) == []


def plant_statements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query, "require_read", lambda _: None)
    patch.setattr("appclient.database.database.require_read", lambda _: None)
    patch.setattr("appclient.database.servers.NAME_IN_SESSION", SERVER_NAME)


def plant_database(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(own_pool, "use_sql", lambda _: "SELECT 1")
    patch.setattr("appclient.database.servers.NAME_IN_SESSION", SERVER_NAME)


def plant_variables(patch: pytest.MonkeyPatch) -> None:
    plant_statements(patch)
    patch.setattr(own_pool, "set_up_sql", lambda *_, **__: "SET @freshness_nothing = 1")
    patch.setattr(own_pool, "put_back_sql", lambda _: "SELECT 1")
    patch.setattr(servers, "set_up_sql", lambda *_, **__: "SET @freshness_nothing = 1")


def plant_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoaderConnection, "_take_turn", lambda _: True)


def plant_adapter(patch: pytest.MonkeyPatch) -> None:
    """No statement is looked at, and another connection of the engine is asked for its session."""
    patch.setattr("appclient.connection.statement.changes_session", lambda _: False)
    ask = CachedReads._read_session
    patch.setattr(CachedReads, "_read_session", lambda self, site, _, engine: ask(self, site, None, engine))


@pytest.mark.parametrize("plant", [plant_statements, plant_database, plant_variables, plant_turns, plant_adapter])
def test_it_finds_each_defence_that_is_taken_out(
    tenants: Callable[[Pair], System],
    mariadb_pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plant(monkeypatch)
    assert any(fuzz(tenants(mariadb_pair), 0, seed) for seed in range(20))
