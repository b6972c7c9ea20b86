"""What the tests passed on: ``--tested-on=FILE`` adds a run to the file whose table docs/topology.md has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

from integration.servers import Pair, ServerProcess
from integration.servers.galera import GaleraCluster
from integration.servers.group import Group
from integration.servers.process import ready_servers

SERVER: Final = "server"
"""The name of a property of a test's report, by which processes of a run tell the one that writes the file."""
DRIVERS: Final = {
    "pymysql": "PyMySQL",
    "mysqldb": "mysqlclient",
    "mysqlconnector": "mysql-connector-python",
    "asyncmy": "asyncmy",
    "aiomysql": "aiomysql",
}
"""The packages of drivers, by the parameter of tests that has their name."""


class TestedOn:
    """Counts passed tests by server. ``path``: JSON, product → version → number of tests and day of the run.

    A test counts for the servers that it started itself, for the pair, group or Spark session that it was given, and
    for a driver that is its parameter, so servers of another fixture of more than one test count for the first alone:
    a number is a lower bound. The number of a version that the run had replaces its previous number, and the others
    stay.
    """

    __test__ = False  # for pytest: no class of tests

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: Counter[tuple[str, str]] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        ready_servers.clear()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        if call.when == "call":
            given = getattr(item, "funcargs", {}).values()
            found = ready_servers | set(servers_of(given)) | set(drivers_of(given))
            item.user_properties += [(SERVER, one) for one in sorted(found)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            # JSON between two processes makes lists of tuples.
            servers: list[Any] = [value for name, value in report.user_properties if name == SERVER]
            self._passed.update((product, version) for product, version in servers)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or not self._passed:
            return
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        for (product, version), passed in self._passed.items():
            known.setdefault(product, {})[version] = {"tests": passed, "on": f"{datetime.now(UTC):%Y-%m-%d}"}
        self._path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def servers_of(values: Any) -> Iterator[tuple[str, str]]:
    """Product and version of those that a test was given."""
    for value in values:
        if type(value).__name__ == "SparkSession":
            yield "Spark", value.version
        if isinstance(value, Group):
            yield "Group Replication", f"MySQL {value.members[0].version}"
        if isinstance(value, GaleraCluster):
            yield "Galera", f"MariaDB {value.nodes[0].version}"
        servers = (value.primary, value.replica) if isinstance(value, Pair) else (value,)
        yield from ((one.product, one.version) for one in servers if isinstance(one, ServerProcess) and one.version)


def drivers_of(values: Any) -> Iterator[tuple[str, str]]:
    for value in values:
        if isinstance(value, str) and value in DRIVERS:
            yield DRIVERS[value], metadata.version(DRIVERS[value])
