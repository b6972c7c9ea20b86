"""``freshness-spark`` in a folder that has a package ``spark`` of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.audit_history import generate
from spark.command import JOBS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "__init__.py").write_text('raise AssertionError("this is not the one")\n')
    return tmp_path


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    # Behind the folder, as an installation would be.
    environment["PYTHONPATH"] = str(ROOT)
    program = "from spark.command import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_ours(job: str, folder: Path) -> None:
    ended = run(folder, job, "--help")
    assert (ended.returncode, f"usage: freshness-spark {job} " in ended.stdout) == (0, True), ended.stderr


def test_a_job_that_does_not_exist_is_a_usage_error(folder: Path) -> None:
    ended = run(folder, "audits")
    assert ended.returncode == 2
    assert "usage: freshness-spark archive | audit" in ended.stderr


def test_the_processes_of_a_local_session_import_ours(folder: Path) -> None:
    bench = generate(folder / "bench", 3_000)
    places = ["--archive", str(bench.archive), "--history", str(bench.history), "--report", str(folder / "out")]
    ended = run(folder, "audit", *places, "--engine", "spark", "--master", "local[1]", "--json")
    assert ended.returncode in (3, 5), ended.stderr  # this little history decides not all
    assert json.loads(ended.stdout)["exit_code"] == ended.returncode
