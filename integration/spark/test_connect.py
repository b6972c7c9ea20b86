"""The audit on Spark Connect, where the driver is elsewhere: a client has no context, no RDD and no JVM."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from integration.spark.connect_audit import audit_folders
from tests.simulation.planted import plant
from tests.simulation.recorded import record, write_rows

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = range(24)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_audit_on_spark_connect_says_what_any_other_says(session: SparkSession, tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)  # what the production code logs of what is done to it
    try:
        worlds = [plant(record(seed), seed) for seed in SEEDS]
    finally:
        logging.disable(logging.NOTSET)
    changes = [row for world in worlds for row in world.history.changes]
    actions = [row for world in worlds for row in world.history.actions]
    archive = write_rows("changes", changes, tmp_path / "archive")
    history = write_rows("actions", actions, tmp_path / "history")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "integration.spark.connect_audit", archive, history]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    told = json.loads(done.stdout)
    assert len(told["violations"]) > 10
    assert told == audit_folders(session, archive, history)
