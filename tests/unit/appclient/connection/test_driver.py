"""A driver of a dangerous version is refused wherever a connection of it comes in; the error says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import aiomysql
import asyncmy
import pytest

from appclient.connection import driver
from appclient.connection.commits import ask_committed
from appclient.connection.driver import LEAST, require_safe
from appclient.connection.own_pool import BorrowingPool, OwnPool
from appclient.sqlalchemy.own import _watch
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnsuitable


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    driver._require.cache_clear()
    yield
    driver._require.cache_clear()


def make_connection(package: str) -> Any:
    return type("Connection", (), {"__module__": f"{package}.connection"})()


@pytest.mark.parametrize(("package", "found"), [("asyncmy", "0.2.11"), ("asyncmy", "0.1"), ("aiomysql", "0.3.1")])
def test_an_older_version_is_refused(package: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {package: found}.__getitem__)
    least = LEAST[package][0]
    with pytest.raises(
        SourceUnsuitable, match=rf"^{package} {found} is installed; versions before {least} "
    ) as caught:
        require_safe(make_connection(package))
    assert caught.value.hint == f"pip install '{package}>={least}'"


@pytest.mark.parametrize(("package", "found"), [("asyncmy", "0.2.12"), ("asyncmy", "0.10.0"), ("aiomysql", "1.0rc1")])
def test_a_later_version_is_taken(package: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {package: found}.__getitem__)
    require_safe(make_connection(package))


@pytest.mark.parametrize("package", ["asyncmy2", ""])
def test_a_fork_of_another_name_is_looked_up(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its metadata nobody knows the version."""

    def find(name: str) -> str:
        if name != "asyncmy2":
            raise metadata.PackageNotFoundError(name)
        return "0.2.21"

    monkeypatch.setattr(metadata, "version", find)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"asyncmy": [package]} if package else {})
    if package:
        require_safe(make_connection("asyncmy"))
    else:
        with pytest.raises(SourceUnsuitable, match="no version of asyncmy is known"):
            require_safe(make_connection("asyncmy"))


def test_a_driver_without_a_dangerous_version_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {}.__getitem__)
    require_safe(make_connection("pymysql"))


def test_the_installed_drivers_are_known_by_the_modules_of_their_connections() -> None:
    for kind in (aiomysql.Connection, asyncmy.Connection):
        assert kind.__module__.partition(".")[0] in LEAST
        assert metadata.version(kind.__module__.partition(".")[0])


@pytest.mark.parametrize(
    "take",
    [
        lambda raw: asyncio.run(ask_committed(raw, "mysql")),
        lambda raw: _watch(SimpleNamespace(info={}, driver_connection=raw)),
    ],
    ids=["commit token", "SQLAlchemy"],
)
def test_it_is_refused_before_a_statement(take: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"asyncmy": "0.2.11"}.__getitem__)
    with pytest.raises(SourceUnsuitable, match=r"asyncmy 0\.2\.11"):
        take(make_connection("asyncmy"))


def test_a_pool_gets_it_back_to_discard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"aiomysql": "0.3.1"}.__getitem__)
    raw = make_connection("aiomysql")
    discarded: list[Any] = []
    pool = OwnPool(lambda: raw, lambda _: pytest.fail("given back"), discarded.append, RuntimeError)
    with pytest.raises(SourceUnsuitable, match=r"aiomysql 0\.3\.1"):
        BorrowingPool(pool, ServerAddress("127.0.0.1"), "mysql", 1.0).take()
    assert discarded == [raw]
