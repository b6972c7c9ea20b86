"""The table of servers counts tests of a real run, also of one in several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from integration.provision import CHECKOUT

RUN_SECONDS = 300.0
BEFORE = {"tests": 7, "on": "2020-01-01"}


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_adds_its_servers_to_the_file(tmp_path: Path, processes: int) -> None:
    path, test = tmp_path / "tested-on.json", tmp_path / "test_it.py"
    path.write_text(json.dumps({"MariaDB": {"10.3.1": BEFORE}, "memcached": {"1.2.3": BEFORE}}))
    test.write_text(
        "import pytest\n"
        "from integration.servers import Memcached\n"
        "def test_with_a_node(memcached): pass\n"
        "def test_that_starts_one(memcached):\n"
        "    with Memcached() as other: assert other.version\n"
        "def test_that_fails(memcached): assert False\n"
        "def test_with_none(): pass\n"
        "@pytest.mark.parametrize('driver', ['pymysql', 'none'])\n"
        "def test_with_a_driver(driver): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "integration.conftest"]
    command += ["-n", str(processes), "--rootdir", str(CHECKOUT), "--tested-on", str(path), str(test)]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert "5 passed" in result.stdout, result.stdout + result.stderr
    counted = json.loads(path.read_text())
    assert counted["MariaDB"] == {"10.3.1": BEFORE}
    assert counted["memcached"].pop("1.2.3") == BEFORE
    [(version, passed)] = counted["memcached"].items()
    assert (version[:2], passed["tests"]) == ("1.", 2)
    assert passed["on"] > BEFORE["on"]
    assert [one["tests"] for one in counted["PyMySQL"].values()] == [1]
