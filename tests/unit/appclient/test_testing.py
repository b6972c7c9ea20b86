"""The testing kit: what happens in it happens to the real algorithm, and the bug of its page is caught."""

from __future__ import annotations

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
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from appclient import Cache, ConfigError, ReadOutcome
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


def test_a_replica_that_lags_fills_nothing(system: FakeSystem) -> None:
    read(system)
    system.stop_replication()
    system.execute("UPDATE customers SET name = 'Grace'")
    assert read(system) == ("Ada", ReadOutcome.STRIPE)
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


def test_the_recipe_for_sqlalchemy(system: FakeSystem) -> None:
    names: dict[str, Any] = {}
    exec(snippets("python")[-1], names)
    open_sessions: Callable[[FakeSystem], Any] = names["open_sessions"]
    sessions, reads = open_sessions(system)
    read(system)
    system.stop_replication()
    with sessions() as session:
        customer = session.get(Customer, 42)
        assert customer.name == "Ada"
        customer.name = "Grace"
        session.commit()
        session.expunge_all()
        assert session.get(Customer, 42).name == "Grace"
        assert reads.commit_token(session) is not None
    assert system.find_stale() == []


def test_the_plugin_is_registered() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"freshness": plugin.__name__}


def test_the_bug_of_the_page_is_caught(tmp_path: Path) -> None:
    shop, test, _ = snippets("python")
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


def run_pytest(folder: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{folder}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    ).stdout
