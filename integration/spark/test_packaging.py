"""The project packed with venv-pack2, as docs/spark.md says, and run by spark-submit on a cluster of two workers.

The packed environment has the wheel of the project alone. Its dependencies, Spark and Arrow, are found beside it
instead of being packed for each run of this test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration.servers.spark import SparkMaster, SparkWorker
from integration.spark.cluster import Cluster
from integration.spark.test_engines import Written, written
from integration.spark.test_submit import ROOT, SPARK_SUBMIT
from spark.audit import __main__ as command
from spark.session import JAVA_OPTIONS

__all__ = ["written"]

PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose processes find the project only in the packed environment."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with SparkMaster() as master, SparkWorker(master.address) as one, SparkWorker(master.address, "127.0.0.2") as two:
        yield Cluster(master.address, (one, two))


def run(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_project(place: Path) -> Path:
    """Building a wheel leaves files beside its source."""
    for name in ("freshness", "invalidator", "appclient", "spark"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, place / name)
    return place


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_packed_environment_runs_on_a_cluster(cluster: Cluster, written: Written, tmp_path: Path) -> None:
    job, archive = tmp_path / "job", tmp_path / "job.tar.gz"
    wheels = ["pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run(sys.executable, "-m", *wheels, "-w", tmp_path, copy_project(tmp_path / "project"), cwd=tmp_path)
    run(sys.executable, "-m", "venv", job, cwd=tmp_path)
    [wheel] = tmp_path.glob("freshness-*.whl")
    run(job / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    packages = job / "lib" / PYTHON / "site-packages"
    beside = f"import sys\n\nsys.path.append({sysconfig.get_path('purelib')!r})\n"
    (packages / "sitecustomize.py").write_text(beside)
    run(Path(sys.executable).parent / "venv-pack", "-q", "-p", job, "-o", archive, cwd=tmp_path)

    assert command.main([*options_of(written, tmp_path / "here"), "--engine", "local"]) == 5
    done = subprocess.run(
        [
            str(SPARK_SUBMIT),
            *("--master", cluster.address, "--archives", f"{archive}#job"),
            *("--conf", "spark.pyspark.python=job/bin/python"),
            *("--conf", f"spark.pyspark.driver.python={job}/bin/python"),
            str(packages / "spark/audit/__main__.py"),
            *options_of(written, tmp_path / "there"),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=dict(os.environ),
    )
    assert done.returncode == 5, done.stderr
    here = json.loads((tmp_path / "here/summary.json").read_text())
    assert json.loads(done.stdout) == here
    assert json.loads((tmp_path / "there/summary.json").read_text()) == here


def options_of(written: Written, report: Path) -> list[str]:
    return [f"--archive={written.archive}", f"--history={written.history}", f"--report={report}"]
