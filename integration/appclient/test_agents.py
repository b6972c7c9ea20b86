"""The library under agents that replace the classes of the libraries that it uses: ddtrace, OpenTelemetry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from integration.appclient.traced import KEYS
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, WAIT_SECONDS, System, running_system
from integration.servers import Pair

ROOT: Final = Path(__file__).resolve().parents[2]
SILENT: Final = {
    "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",  # nobody listens there
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_CRASHTRACKING_ENABLED": "false",
}


@pytest.fixture(scope="module")
def system(mariadb_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    folder = tmp_path_factory.mktemp("agents")
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    with running_system(mariadb_pair, folder, tables=tables, objects=CUSTOMER + PROFILE) as made:
        made.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        made.settle()
        yield made


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("agent", ["none", "ddtrace", "opentelemetry"])
def test_hits_misses_and_fills_are_right_under_an_agent(system: System, agent: str, kind: str) -> None:
    system.execute("DELETE FROM customers")
    system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
    system.settle()
    found = run_application(system, agent, kind)
    row = {"id": 1, "name": "n", "v": 0}
    assert found["first"] == ["FILLED", row]
    assert found["second"] == ["HIT", row]
    assert (found["absent"], found["many"]) == (None, [*KEYS])
    assert found["changed"] == found["hit"] == found["profile"] == {**row, "v": 7}
    # That the agent was there at all
    replaced = found["replaced"]
    assert (replaced["Client"], replaced["connect"]) == (agent == "ddtrace",) * 2
    assert replaced["set"] == (agent == "opentelemetry")


def run_application(system: System, agent: str, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "integration.appclient.traced", str(system.config_path), kind]
    if agent == "ddtrace":
        program = shutil.which("ddtrace-run", path=str(Path(sys.executable).parent))
        assert program is not None, "ddtrace is in the group examples: run make venv"
        command.insert(0, program)
    elif agent == "opentelemetry":
        command.append("pymemcache")
    ended = subprocess.run(
        command,
        env={**os.environ, **SILENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * WAIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer
