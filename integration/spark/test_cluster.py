"""The audit and the maintenance of an archive on a cluster of two processes, whose tasks and executors are killed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyarrow import parquet

from freshness.errors import ConfigError
from freshness.history.archive_file import find_files
from freshness.stream.source import RowChange
from integration.configuration import write_config
from integration.servers.spark import SparkMaster, SparkWorker
from invalidator.archive.writer import RotationPolicy
from spark.audit import verdict
from spark.session import JAVA_OPTIONS
from tests.simulation.planted import Planted, plant
from tests.simulation.recorded import record, write_rows
from tests.unit.invalidator.archive.archive_world import NOW_US, World, message

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = range(30)
PARTITIONS: Final = 4
HOURS: Final = 80
HOUR_US: Final = 3_600_000_000
LOOK_SECONDS: Final = 0.1
STOPPED_LOOKS: Final = 20
"""For so long, and as long in between, the processes of tasks stand still once the rest was done."""

CRASHED: Final = "Python worker exited unexpectedly"
LOST_EXECUTOR: Final = "Lost executor"
"""Spark's warnings."""

SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "20ms",
    "spark.speculation.task.duration.threshold": "500ms",
    "spark.task.maxFailures": "50",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


class Cluster(NamedTuple):
    """A cluster on this machine."""

    address: str
    workers: tuple[SparkWorker, SparkWorker]


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


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)  # six programs of Java, for a minute
    with (
        SparkMaster() as master,
        SparkWorker(master.address) as one,
        SparkWorker(master.address, "127.0.0.2") as two,
    ):
        yield Cluster(master.address, (one, two))


class Done(NamedTuple):
    """What a job said in the end. ``told``: its standard error."""

    exit_code: int
    result: dict[str, Any]
    told: str


def run(
    command: list[str],
    folder: Path,
    *,
    kills: Cluster | None = None,
    may_kill: Callable[[], bool] = lambda: True,
) -> Done:
    """``python -m`` with the command. ``kills``: as soon as it may be, an executor is killed, and the process of a
    task of the other one, until the job has noticed both. From then on processes of tasks stand still again and
    again, and slow tasks are started twice."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if kills is not None:
        settings = {**SPECULATION, "spark.eventLog.dir": folder.as_uri()}
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join(
            (*(f"--conf {name}={value}" for name, value in settings.items()), "pyspark-shell")
        )
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        arguments = [sys.executable, "-m", *command, "--json"]
        job = subprocess.Popen(arguments, stdout=stdout, stderr=stderr, cwd=ROOT, env=environment)
        looks = 0
        try:
            while job.poll() is None:
                if kills is not None and may_kill():
                    looks += _strike(kills, err.read_text(errors="replace"), looks)
                time.sleep(LOOK_SECONDS)
        finally:
            if kills is not None:
                kills.workers[1].signal_python(signal.SIGCONT)
            job.kill()
            job.wait()
    told = err.read_text(errors="replace")
    assert out.stat().st_size, told
    return Done(job.returncode, json.loads(out.read_text()), told)


def _strike(cluster: Cluster, told: str, looks: int) -> bool:
    """Whether both were noticed. ``looks``: how often that was so before."""
    one, two = cluster.workers
    if LOST_EXECUTOR not in told:
        one.kill_executor()
    if CRASHED not in told:
        two.signal_python()
    is_done = LOST_EXECUTOR in told and CRASHED in told
    if is_done:
        is_stopped = looks // STOPPED_LOOKS % 2 == 0
        two.signal_python(signal.SIGSTOP if is_stopped else signal.SIGCONT)
    return is_done


def count_tasks(folder: Path) -> Counter[str]:
    """Attempts at the tasks of a job, by how they ended, and those that were second ones on suspicion."""
    found: Counter[str] = Counter()
    for path in folder.rglob("events_*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                found[event["Task End Reason"]["Reason"]] += 1
                found["speculative"] += event["Task Info"]["Speculative"]
    return found


def audit_command(folders: dict[str, str], master: str, out: Path) -> list[str]:
    command = ["spark.audit", "--master", master, "--report", str(out), "--partitions", str(PARTITIONS)]
    return [
        *command,
        *("--archive", folders["archive"]),
        *("--history", folders["history"]),
        *("--as-of", "2027-01-01"),
    ]


def read_violations(out: Path) -> list[str]:
    return sorted(map(str, parquet.read_table(out / "violations").to_pylist()))


@pytest.mark.slow
def test_passwords_are_not_sent_to_a_cluster_that_does_not_encrypt(cluster: Cluster, tmp_path: Path) -> None:
    config = write_config(tmp_path, "mysql", "mysql://app:hidden@127.0.0.1:1/shop", ["127.0.0.1:1"])
    options = ("--config", str(config), "--url", "http://127.0.0.1:1", "--out", str(tmp_path / "copy"))
    command = [sys.executable, "-m", "spark.copy", "--master", cluster.address, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "spark.network.crypto.enabled" in done.stderr
    assert "hidden" not in done.stderr
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_cluster_whose_processes_are_killed_says_what_one_process_says(
    folders: dict[str, str], worlds: list[Planted], cluster: Cluster, tmp_path: Path
) -> None:
    here, there, faulty = (tmp_path / name for name in ("local", "cluster", "faults"))
    local = run(audit_command(folders, "local[*]", here), tmp_path / "1")
    spread = run(audit_command(folders, cluster.address, there), tmp_path / "2")
    struck = run(audit_command(folders, cluster.address, faulty), tmp_path / "3", kills=cluster)
    assert local.exit_code == verdict.STALE_DATA
    assert sum(each["entries"] for each in local.result["found"]) == len(
        {expected for world in worlds for expected in world.expected}
    )
    assert spread[:2] == struck[:2] == local[:2]
    assert read_violations(faulty) == read_violations(there) == read_violations(here)
    assert (faulty / "report.html").exists()
    tasks = count_tasks(tmp_path / "3")
    assert LOST_EXECUTOR in struck.told
    assert CRASHED in struck.told
    assert tasks["speculative"], tasks


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """480 transactions in 240 files of 80 hours."""
    numbers = range(11, 491)
    with World(tmp_path / "archive", RotationPolicy(rows_max=2), begins_at=10) as world:
        for place, number in enumerate(numbers):
            world.now_us = NOW_US + place * HOURS // len(numbers) * HOUR_US
            row = {"id": number % 5, "v": f"value {number}"}
            world.writer.write(message(number, RowChange("customers", "insert", None, row)))
    return tmp_path / "archive"


def read_archive(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        str(file.path.relative_to(folder)): parquet.ParquetFile(file.path).read().to_pylist()
        for file in find_files(folder)
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_archive_is_merged_as_by_one_process_though_processes_are_killed(
    archive: Path, cluster: Cluster, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(archive, other)

    def is_merging() -> bool:
        return any(file.last - file.first > 1 for file in find_files(other))

    local = run(["spark.archive", str(archive), "--master", "local[*]"], tmp_path / "1")
    command = ["spark.archive", str(other), "--master", cluster.address]
    struck = run(command, tmp_path / "2", kills=cluster, may_kill=is_merging)
    assert (local.exit_code, struck.exit_code) == (0, 0), struck.told
    assert len(local.result["merged"]) == HOURS - 1
    assert read_archive(other) == read_archive(archive)
    assert LOST_EXECUTOR in struck.told
    again = run(["spark.archive", str(other), "--master", "local[*]"], tmp_path / "3")
    assert (again.exit_code, again.result["problems"], again.result["merged"]) == (0, [], [])
    assert read_archive(other) == read_archive(archive)
    assert [*other.rglob(".*.merging")] == []
