"""The audit and the maintenance of an archive on a cluster of two processes, whose tasks and executors are killed."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow import parquet

from freshness.errors import ConfigError
from freshness.history.archive_file import find_files
from freshness.stream.source import RowChange
from integration.configuration import write_config
from integration.servers.spark import SparkMaster
from integration.spark.cluster import CRASHED, LOST_EXECUTOR, ROOT, Cluster, count_tasks, run
from invalidator.archive.writer import RotationPolicy
from spark.audit.model import verdict
from tests.simulation.planted import Planted, plant
from tests.simulation.recorded import record, write_rows
from tests.unit.invalidator.archive.archive_world import NOW_US, World, message

SEEDS: Final = range(30)
PARTITIONS: Final = 4
HOURS: Final = 80
HOUR_US: Final = 3_600_000_000


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
def test_passwords_are_not_sent_to_a_cluster_that_does_not_encrypt(master: SparkMaster, tmp_path: Path) -> None:
    config = write_config(tmp_path, "mysql", "mysql://app:hidden@127.0.0.1:1/shop", ["127.0.0.1:1"])
    options = ("--config", str(config), "--url", "http://127.0.0.1:1", "--out", str(tmp_path / "copy"))
    command = [sys.executable, "-m", "spark.copy", "--master", master.address, *options]
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
@pytest.mark.long
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
