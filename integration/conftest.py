"""Real servers for the tests: a database pair of each flavor for the whole run, a memcached for each test.

A server that cannot be had is an error with the command that gets it, never a skip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from integration.provision import find_newer, find_older_mariadb
from integration.servers import Flavor, Memcached, Pair, database_pair
from integration.servers.database import SCHEMA
from integration.servers.mysql import OLDER
from integration.servers.process import find_free_port
from integration.tested_on import TestedOn
from tests.selection import mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS: Final = {"spark": re.compile(r"/spark/|audit"), "vitess": re.compile(r"/vitess/real/")}
"""Files whose tests stay in one process: two of Spark at once starve each other, and a cluster of
Vitess takes memory."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--newer", action="store_true", help="on the servers of provision.py newer, where it has them")
    parser.addoption(
        "--older", action="store_true", help="on the MySQL and MariaDB of provision.py older, in their place"
    )
    parser.addoption("--tested-on", metavar="FILE", type=Path, help="add which servers the tests passed on")
    parser.addoption("--screenshots", metavar="FOLDER", help="where tests of a page put pictures of it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--newer"):
        os.environ["PATH"] = os.pathsep.join((str(find_newer()), os.environ["PATH"]))
    if config.getoption("--older"):
        os.environ[OLDER] = "1"
        os.environ["PATH"] = os.pathsep.join((str(find_older_mariadb()), os.environ["PATH"]))
    if path := config.getoption("--tested-on"):
        config.pluginmanager.register(TestedOn(path))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before ``-m`` chooses. Groups come first: they take the longest."""
    mark(items)
    items.sort(key=lambda item: find_group(item.nodeid.partition("::")[0]) is None)


@pytest.fixture(scope="session")
def mariadb_pair() -> Iterator[Pair]:
    """A MariaDB primary and its replica, for the run. Tests that break one, or purge its log, take an `own_pair`."""
    with database_pair("mariadb") as pair:
        yield pair


@pytest.fixture(scope="session")
def mysql_pair() -> Iterator[Pair]:
    """The same of MySQL. An error where MySQL was not provisioned."""
    with database_pair("mysql") as pair:
        yield pair


@pytest.fixture(params=["mariadb", "mysql"])
def flavor(request: pytest.FixtureRequest) -> Flavor:
    """For tests that are to hold on both."""
    chosen: Flavor = request.param
    return chosen


@pytest.fixture
def pair(flavor: Flavor, request: pytest.FixtureRequest) -> Pair:
    """The run's pair of the flavor, with an empty schema ``shop`` on both sides."""
    chosen: Pair = request.getfixturevalue(f"{flavor}_pair")
    chosen.primary.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
    chosen.primary.execute(f"CREATE DATABASE {SCHEMA}")
    chosen.wait_caught_up()
    return chosen


@pytest.fixture
def own_pair(flavor: Flavor) -> Iterator[Pair]:
    """A pair of one test, which may break it and purge its logs."""
    with database_pair(flavor) as pair:
        yield pair


@pytest.fixture
def memcached() -> Iterator[Memcached]:
    """A node of one test."""
    with Memcached() as node:
        yield node


@pytest.fixture
def port() -> int:
    """A free port for a test's own program."""
    return find_free_port()


def find_group(file: str) -> str | None:
    return next((name for name, files in GROUPS.items() if files.search(file)), None)


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests stay in one process, and those of a group all in the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return find_group(file) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """How tests are divided among processes: in their order, so that short ones fill the end."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """One Spark session for the file that asks for it."""
    # Here and not above: most files need no Spark.
    from spark.session import open_session

    opened = open_session("tests", "local[2]")
    yield opened
    opened.stop()
