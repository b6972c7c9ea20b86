"""Opens the Spark session of a job. Called by the thin mains and by the tests, once per process.

A local session that a job opens itself listens on loopback alone and has no web page: a job of minutes needs neither
network nor page. Under spark-submit everything is as spark-submit was told.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from freshness.errors import ConfigError

LOCAL_MASTER: Final = "local[*]"
SHUFFLE_PARTITIONS: Final = 8
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m"
"""Compiled once and quickly. The first option alone leaves 48 MB for code; once that is full Java only interprets."""
ROWS_PER_BATCH_MAX: Final = 200
"""Rows that Spark hands to Python at once, where spark-submit was told nothing. A value can have a megabyte."""

_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OF_THIS_MACHINE: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
}
"""Settings of a local session alone: a terabyte on a cluster needs others, and a page to see it."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which also chooses the master."""


def open_session(
    name: str, master: str | None = None, rows_per_batch_max: int = ROWS_PER_BATCH_MAX
) -> SparkSession:
    """The session, on ``master``, else on that of spark-submit, else on this machine.

    Raises `ConfigError` where there is no Java.
    """
    is_submitted = _SUBMITTED in os.environ
    chosen = master or (None if is_submitted else LOCAL_MASTER)
    builder = SparkSession.builder.appName(name)
    if chosen is not None:
        builder = builder.master(chosen)
    if not is_submitted:
        _require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not is_submitted and chosen is not None and chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for key, value in _OF_THIS_MACHINE.items():
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not session.sparkContext.getConf().contains(_BATCH_ROWS):
        session.conf.set(_BATCH_ROWS, str(rows_per_batch_max))
    return session


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin/java").exists()):
        raise ConfigError("Spark needs Java, and there is none", hint="install Java 17 or set JAVA_HOME")
