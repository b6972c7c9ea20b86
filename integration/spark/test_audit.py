"""The audit as people run it: as a command in a process of its own, and on a cluster of two processes."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from integration.servers.process import ServerProcess
from spark.audit import verdict
from spark.session import JAVA_OPTIONS
from tests.simulation.planted import Planted, plant
from tests.simulation.recorded import record, write_rows

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin/spark-class"
SEEDS: Final = range(30)
PARTITIONS: Final = 4


@pytest.fixture(scope="module")
def worlds() -> list[Planted]:
    logging.disable(logging.CRITICAL)  # what the production code logs of what is done to it
    try:
        return [plant(record(seed), seed) for seed in SEEDS]
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def folders(worlds: list[Planted], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("recorded")
    rows = {
        "archive": ("changes", [row for world in worlds for row in world.history.changes]),
        "history": ("actions", [row for world in worlds for row in world.history.actions]),
    }
    return {name: write_rows(kind, held, folder / name) for name, (kind, held) in rows.items()}


def run_audit(folders: dict[str, str], out: Path, master: str) -> tuple[int, dict[str, Any]]:
    """(exit code, summary) of ``python -m spark.audit``."""
    command = [sys.executable, "-m", "spark.audit", "--json", "--master", master, "--report", str(out)]
    command += ["--archive", folders["archive"], "--history", folders["history"], "--as-of", "2027-01-01"]
    command += ["--partitions", str(PARTITIONS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=280
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


class SparkMaster(ServerProcess):
    """The master of a standalone cluster."""

    technology = "Spark"

    def command(self) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        return [str(SPARK_CLASS), "org.apache.spark.deploy.master.Master", *options]

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return "I have been elected leader" in self.log()


class SparkWorker(ServerProcess):
    """One worker, with one core, that has found its master."""

    technology = "Spark"

    def __init__(self, master: str) -> None:
        super().__init__()
        self._master = master

    def command(self) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0", "--cores", "1"]
        options += ["--memory", "1g", "--work-dir", str(self.directory), self._master]
        return [str(SPARK_CLASS), "org.apache.spark.deploy.worker.Worker", *options]

    def is_ready(self) -> bool:
        return "Successfully registered with master" in self.log()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two worker processes on this machine."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)  # six programs of Java, for a minute
    with SparkMaster() as master, SparkWorker(master.address), SparkWorker(master.address):
        yield master.address


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_of_two_processes_says_what_one_process_says(
    folders: dict[str, str], worlds: list[Planted], cluster: str, tmp_path: Path
) -> None:
    local = run_audit(folders, tmp_path / "local", "local[*]")
    spread = run_audit(folders, tmp_path / "cluster", cluster)
    assert local[0] == verdict.STALE_DATA
    assert sum(each["entries"] for each in local[1]["found"]) == len(
        {expected for world in worlds for expected in world.expected}
    )
    assert spread == local
    assert (tmp_path / "cluster/report.html").exists()
