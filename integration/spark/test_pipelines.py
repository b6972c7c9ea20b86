"""Spark accepts the example of a pipeline. A run needs a format of tables that has MERGE."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from integration.spark.test_submit import ROOT, SPARK_SUBMIT

SPECIFICATION: Final = """
name: customers
storage: {folder}/storage
libraries:
  - glob:
      include: transformations/**
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_spark_accepts_the_example_of_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    shutil.copy(ROOT / "examples" / "auto_cdc.py", tmp_path / "transformations")
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path.as_uri()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        [str(SPARK_SUBMIT.with_name("spark-pipelines")), "dry-run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "Run is COMPLETED" in ended.stdout + ended.stderr
