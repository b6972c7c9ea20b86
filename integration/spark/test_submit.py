"""Each job as spark-submit starts it: the file of its command line, with Spark's own Java around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark.session import ROWS_PER_BATCH_MAX, SHUFFLE_PARTITIONS

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_SUBMIT: Final = Path(pyspark.__file__).parent / "bin/spark-submit"


TOLD: Final = {
    "spark.sql.shuffle.partitions": "200",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "77",
}
OPENED: Final = f"""
import json
from spark.session import open_session
session = open_session("a job", rows_per_batch_max=5)
print(json.dumps({{name: session.conf.get(name) for name in {list(TOLD)}}}))
"""


def submit(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    command = [str(SPARK_SUBMIT), "--master", "local[1]", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=500)


@pytest.mark.parametrize("job", ["archive", "audit", "copy", "sink", "table_at"])
def test_spark_submit_runs_the_command_line_of_a_job(job: str, tmp_path: Path) -> None:
    done = submit(str(ROOT / f"spark/{job}/__main__.py"), "--help", cwd=tmp_path)
    assert (done.returncode, f"usage: freshness-spark {job} " in done.stdout) == (0, True), done.stderr


def test_a_session_has_the_settings_that_spark_submit_was_told(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(OPENED)
    settings = [part for name, value in TOLD.items() for part in ("--conf", f"{name}={value}")]
    done = submit(*settings, str(tmp_path / "job.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == TOLD


def test_a_local_session_has_no_page_and_few_pieces(session: SparkSession) -> None:
    assert session.sparkContext.uiWebUrl is None
    assert session.conf.get("spark.sql.shuffle.partitions") == str(SHUFFLE_PARTITIONS)
    assert session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == str(ROWS_PER_BATCH_MAX)
