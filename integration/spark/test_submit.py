"""Each job as spark-submit starts it: the file of its command line, with Spark's own Java around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_SUBMIT: Final = Path(pyspark.__file__).parent / "bin/spark-submit"


@pytest.mark.parametrize("job", ["archive", "audit", "copy", "live", "sink", "table_at"])
def test_spark_submit_runs_the_command_line_of_a_job(job: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    command = [str(SPARK_SUBMIT), "--master", "local[1]", str(ROOT / f"spark/{job}/__main__.py"), "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=120
    )
    assert (done.returncode, f"usage: spark.{job} " in done.stdout) == (0, True), done.stderr
