"""The testing kit: what happens in it happens to the real algorithm, and the bug of its page is caught."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest
import sqlalchemy.ext.asyncio
from sqlalchemy import String
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from appclient import AsyncCache, Cache, ConfigError, Explanation, ReadOutcome
from appclient.sqlalchemy import CachedReads
from appclient.starlette import cache_lifespan
from appclient.testing import FakeSystem, plugin
from freshness.errors import SourceUnavailable

CHECKOUT: Final = Path(__file__).parents[3]
PAGE: Final = CHECKOUT / "docs" / "testing-your-application.md"
SCHEMA: Final = (
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO customers VALUES (42, 'Ada');"
)


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def configuration(flavor: str = "mariadb") -> str:
    (text,) = snippets("toml")
    assert 'flavor = "mariadb"' in text
    return text.replace('"mariadb"', f'"{flavor}"')


@pytest.fixture(params=["mariadb", "mysql"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeSystem]:
    path = tmp_path / "freshness.toml"
    path.write_text(configuration(request.param))
    opened = FakeSystem(path, SCHEMA)
    yield opened
    opened.close()


def read(system: FakeSystem) -> tuple[str, ReadOutcome]:
    answer = system.cache.get("customer", 42, explain=True)
    return answer.value["name"], answer.outcome


def test_the_real_cache_is_under_test(system: FakeSystem) -> None:
    assert isinstance(system.cache, Cache)
    assert read(system) == ("Ada", ReadOutcome.FILLED)
    assert read(system) == ("Ada", ReadOutcome.HIT)
    system.execute("UPDATE customers SET name = %(name)s", {"name": "100%"})
    assert read(system) == ("100%", ReadOutcome.FILLED)
    assert system.cache.get_many("customer", [42, 43])[43] is None
    system.execute("DELETE FROM customers")
    assert system.cache.get("customer", 42) is None
    assert system.find_stale() == []


def test_nodes_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(
        re.sub(r"^nodes = .*$", 'nodes = ["new:1"]\nprevious_nodes = ["old:1"]', configuration(), flags=re.M)
    )
    system = FakeSystem(path, SCHEMA)
    try:
        assert [*system.stores] == ["new:1", "old:1"]
        assert read(system) == ("Ada", ReadOutcome.FILLED)
        system.execute("UPDATE customers SET name = %(name)s", {"name": "Eve"})
        assert read(system) == ("Eve", ReadOutcome.FILLED)
        assert system.find_stale() == []
    finally:
        system.close()


def test_a_replica_that_lags_fills_nothing(system: FakeSystem) -> None:
    read(system)
    system.stop_replication()
    system.execute("UPDATE customers SET name = 'Grace'")
    assert read(system) == ("Ada", ReadOutcome.BOUNDED)
    system.start_replication()
    assert read(system) == ("Grace", ReadOutcome.FILLED)


def test_a_stripe_that_is_missing_refuses_until_it_is_back(system: FakeSystem) -> None:
    read(system)
    system.evict("customer", 42)
    system.evict_stripe("customer", 42)
    assert read(system) == ("Ada", ReadOutcome.STRIPE_ABSENT)
    system.sleep(2)
    assert read(system) == ("Ada", ReadOutcome.FILLED)


def test_hits_end_with_the_lease_of_a_dead_invalidator(system: FakeSystem) -> None:
    read(system)
    system.crash_invalidator()
    system.execute("UPDATE customers SET name = 'Grace'")
    assert read(system) == ("Ada", ReadOutcome.HIT), "within the lease"
    system.sleep(60)
    assert read(system) == ("Grace", ReadOutcome.NO_RECORD)
    system.start_invalidator()
    system.sleep(2)
    assert [read(system)[1] for _ in range(3)][-1] is ReadOutcome.HIT


def test_a_change_between_rows_and_fill_is_lost_by_the_fill(system: FakeSystem) -> None:
    with system.before_the_fill(lambda: system.execute("UPDATE customers SET name = 'Grace'")):
        assert read(system) == ("Ada", ReadOutcome.LOST_RACE)
    assert read(system) == ("Grace", ReadOutcome.FILLED)


def test_nodes_that_do_not_answer_or_restart(system: FakeSystem) -> None:
    read(system)
    system.cut_node()
    assert read(system) == ("Ada", ReadOutcome.NODE_DOWN)
    system.execute("UPDATE customers SET name = 'Grace'")
    system.mend_node()
    assert read(system)[0] == "Grace"
    system.restart_node("127.0.0.1:11211")
    assert read(system)[1] is not ReadOutcome.HIT
    system.sleep(2)
    assert [read(system)[1] for _ in range(3)][-1] is ReadOutcome.HIT


def test_a_transaction_is_seen_by_itself_until_it_commits(system: FakeSystem) -> None:
    with system.connect() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE customers SET name = 'Grace' WHERE id = %s", (42,))
        assert system.cache.get("customer", 42, connection=connection)["name"] == "Grace"
        assert read(system)[0] == "Ada"
        connection.rollback()
        cursor.execute("UPDATE customers SET name = 'Grace'")
        connection.commit()
        token = system.cache.database().commit_token(connection)
    assert system.cache.get("customer", 42, at_least=token)["name"] == "Grace"


def test_servers_that_are_down(system: FakeSystem) -> None:
    system.replicas[0].is_down = True
    assert read(system)[0] == "Ada", "by the primary"
    system.evict("customer", 42)
    system.primary.is_down = True
    with pytest.raises(SourceUnavailable):
        read(system)


def test_errors_of_statements_are_those_of_pymysql(system: FakeSystem) -> None:
    with pytest.raises(pymysql.err.IntegrityError):
        system.execute("INSERT INTO customers VALUES (42, 'Bob')")
    with pytest.raises(pymysql.err.ProgrammingError):
        system.execute("SELECT * FROM nowhere")


def test_the_sql_is_that_of_sqlite(system: FakeSystem) -> None:
    with pytest.raises(pymysql.err.ProgrammingError, match="CURDATE"):
        system.execute("SELECT CURDATE()")
    assert system.execute("SELECT date('2026-01-31') AS day") == [{"day": "2026-01-31"}]


def test_a_later_change_of_the_schema_is_not_replicated(system: FakeSystem) -> None:
    system.execute("ALTER TABLE customers ADD COLUMN age INTEGER")
    assert system.execute("SELECT * FROM customers") == [{"id": 42, "name": "Ada", "age": None}]
    assert system.cache.database().query("SELECT * FROM customers").rows == [{"id": 42, "name": "Ada"}]


def test_configurations_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(configuration())
    with pytest.raises(ConfigError, match="customers has no primary key"):
        FakeSystem(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with pytest.raises(ConfigError, match=r"customers\.id is DATE"):
        FakeSystem(path, "CREATE TABLE customers (id DATE PRIMARY KEY)")


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))


def note_outcomes(cache: Cache) -> list[ReadOutcome]:
    """Of its reads from now on."""
    outcomes: list[ReadOutcome] = []
    tell = cache.on_read
    assert tell is not None

    def note(read: Explanation) -> None:
        outcomes.append(read.outcome)
        tell(read)

    cache.on_read = note
    return outcomes


def recipe(name: str) -> Callable[[FakeSystem], Any]:
    """A function of the page."""
    names: dict[str, Any] = {"CachedReads": CachedReads}
    (text,) = [text for text in snippets("python") if f"def {name}(" in text]
    exec(text, names)
    found: Callable[[FakeSystem], Any] = names[name]
    return found


def test_the_recipe_for_sqlalchemy(system: FakeSystem) -> None:
    sessions, reads = recipe("open_sessions")(system)
    read(system)
    outcomes = note_outcomes(system.cache)
    system.stop_replication()
    with sessions() as session:
        customer = session.get(Customer, 42)
        assert outcomes == [ReadOutcome.HIT], "the cache is under test, and not the engine alone"
        assert customer.name == "Ada"
        customer.name = "Grace"
        session.commit()
        session.expunge_all()
        assert session.get(Customer, 42).name == "Grace"
        assert reads.commit_token(session) is not None
    assert system.find_stale() == []


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
def test_the_recipe_for_sqlalchemy_on_a_loop(
    system: FakeSystem, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sqlalchemy.ext.asyncio,
        "create_async_engine",
        lambda url, **options: create_async_engine(url.replace("aiomysql", driver), **options),
    )

    async def run() -> None:
        sessions, reads = await recipe("open_async_sessions")(system)
        await reads.cache.get("customer", 42)
        outcomes = note_outcomes(reads.cache.blocking)
        system.stop_replication()
        async with sessions() as session:
            customer = await session.get(Customer, 42)
            assert outcomes == [ReadOutcome.HIT]
            assert customer.name == "Ada"
            customer.name = "Grace"
            await session.commit()
            session.expunge_all()
            assert (await session.get(Customer, 42)).name == "Grace"
            assert reads.commit_token(session) is not None
        await sessions.kw["bind"].dispose()

    asyncio.run(run())
    assert system.find_stale() == []


def test_an_application_on_a_loop_has_the_same_nodes_and_databases(system: FakeSystem) -> None:
    async def run() -> list[ReadOutcome]:
        cache = await system.open_async()
        reads = [cache.get("customer", 42, explain=True) for _ in range(3)]
        outcomes = [read.outcome for read in await asyncio.gather(*reads)]
        assert read(system) == ("Ada", ReadOutcome.HIT)
        system.crash_invalidator()
        system.sleep(60)
        return [*outcomes, (await cache.get("customer", 42, explain=True)).outcome]

    assert asyncio.run(run()) == [ReadOutcome.FILLED, ReadOutcome.HIT, ReadOutcome.HIT, ReadOutcome.NO_RECORD]


def test_tasks_take_turns_within_a_read_of_the_database(system: FakeSystem) -> None:
    async def rename() -> None:
        async with await system.connect_async() as connection, connection.cursor() as cursor:
            assert await cursor.execute("UPDATE customers SET name = %s", ("Grace",)) == 1
            await connection.commit()

    async def run() -> tuple[str, ReadOutcome]:
        cache = await system.open_async()
        _, answer = await asyncio.gather(rename(), cache.get("customer", 42, explain=True))
        return answer.value["name"], answer.outcome

    assert asyncio.run(run()) == ("Ada", ReadOutcome.LOST_RACE), "the commit came between rows and fill"
    assert read(system) == ("Grace", ReadOutcome.FILLED)


def test_a_coroutine_function_runs_between_rows_and_fill(system: FakeSystem) -> None:
    async def rename() -> None:
        connection = await system.connect_async()
        cursor = await connection.cursor()
        await cursor.execute("UPDATE customers SET name = 'Grace'")
        await connection.commit()
        await connection.ensure_closed()

    async def run() -> tuple[str, ReadOutcome]:
        cache = await system.open_async()
        with system.before_the_fill(rename):
            answer = await cache.get("customer", 42, explain=True)
        return answer.value["name"], answer.outcome

    assert asyncio.run(run()) == ("Ada", ReadOutcome.LOST_RACE)
    assert read(system) == ("Grace", ReadOutcome.FILLED)


def test_the_verdict_runs_the_loaders_of_tasks(system: FakeSystem) -> None:
    remembered: list[str] = []

    async def run() -> None:
        cache = await system.open_async()

        @cache.loader("profile")
        async def load_profile(db: Any, key: int) -> Any:
            await asyncio.sleep(0)
            remembered.append("?")
            return {"customer": await cache.get("customer", key), "reads": len(remembered)}

        await cache.get("profile", 42)
        found = system.find_stale()
        assert found == [
            "profile 42: the cache has {'customer': {'id': 42, 'name': 'Ada'}, 'reads': 1}, "
            "the primary {'customer': {'id': 42, 'name': 'Ada'}, 'reads': 2}"
        ]
        await cache.get("customer", 42)  # it still belongs to its own loop

    asyncio.run(run())
    assert len(system.find_stale()) == 1, "the application's loop has ended"


def test_tasks_wait_for_the_locks_of_others(system: FakeSystem) -> None:
    async def rename(name: str) -> None:
        async with await system.connect_async() as connection, connection.cursor() as cursor:
            await cursor.execute("UPDATE customers SET name = name || %s", (name,))
            await asyncio.sleep(0)
            await connection.commit()

    async def lock() -> None:
        async with await system.connect_async() as connection, connection.cursor() as cursor:
            await cursor.execute("UPDATE customers SET name = '?'")
            with pytest.raises(pymysql.err.OperationalError):
                await rename("!")

    async def run() -> None:
        await asyncio.gather(rename(" B."), rename(" King"))
        await lock()

    asyncio.run(run())
    assert system.execute("SELECT name FROM customers") == [{"name": "Ada B. King"}]


def test_the_plugin_is_registered() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"freshness": plugin.__name__}


def test_the_bug_of_the_page_is_caught(tmp_path: Path) -> None:
    shop, test, *_ = snippets("python")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(test)
    members = 'members = { customers = "id" }'
    assert members in configuration()
    mended = 'members = { customers = "id", orders = "customer_id" }'
    assert mended in PAGE.read_text()
    (tmp_path / "freshness.toml").write_text(configuration())
    found = run_pytest(tmp_path)
    assert "1 error" in found
    assert "4 passed" in found
    assert "profile 42: the cache has {'customer': {'id': 42, 'name': 'Ada'}, 'orders': []}" in found
    (tmp_path / "freshness.toml").write_text(configuration().replace(members, mended))
    assert "4 passed" in (found := run_pytest(tmp_path))
    assert "error" not in found


def test_the_bug_of_the_loop_is_caught(tmp_path: Path) -> None:
    _, _, accounts, test, mended, *_ = snippets("python")
    assert "'Ada' == 'Grace'" in PAGE.read_text()
    (tmp_path / "accounts.py").write_text(accounts)
    (tmp_path / "test_accounts.py").write_text(test)
    (tmp_path / "freshness.toml").write_text(configuration())
    found = run_pytest(tmp_path)
    assert "AssertionError: assert 'Ada' == 'Grace'" in found
    assert "1 failed, 1 passed" in found
    (tmp_path / "accounts.py").write_text(mended)
    assert "2 passed" in run_pytest(tmp_path)


def test_applications_that_open_the_cache_themselves(system: FakeSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(name in PAGE.read_text() for name in ("monkeypatch.setattr(AsyncCache,", "setattr(Cache,"))
    for line in re.findall(r"`(monkeypatch\.setattr\([^`]*\))`", PAGE.read_text()):
        exec(line, {"monkeypatch": monkeypatch, "system": system, "AsyncCache": AsyncCache, "Cache": Cache})
    assert Cache.open("freshness.toml") is system.cache

    async def run() -> Any:
        async with cache_lifespan("freshness.toml")(None) as state:
            (cache,) = state.values()
            return await cache.get("customer", 42)

    assert asyncio.run(run()) == {"id": 42, "name": "Ada"}
    assert system.find_stale() == []


def run_pytest(folder: Path) -> str:
    # The plugins that the page names; loading all others that are installed takes seconds.
    named = ["-p", plugin.__name__, "-p", "anyio.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *named]
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{folder}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    ).stdout
