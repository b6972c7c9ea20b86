"""Opens the Spark session of a job. Called by the thin mains and by the tests, once per process.

A local session listens on loopback alone and has no web page: a job of minutes needs neither network nor page. Under
spark-submit the master and the network are those it was given.
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
"""Rows that Spark hands to Python at once. A value can have a megabyte."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which also chooses the master."""


def open_session(
    name: str, master: str | None = None, rows_per_batch_max: int = ROWS_PER_BATCH_MAX
) -> SparkSession:
    """The session, on ``master``, else on that of spark-submit, else on this machine.

    Raises `ConfigError` where there is no Java.
    """
    builder = SparkSession.builder.appName(name)
    chosen = master or (None if _SUBMITTED in os.environ else LOCAL_MASTER)
    if _SUBMITTED not in os.environ:
        _require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if chosen is not None and chosen.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if chosen is not None:
        builder = builder.master(chosen)
    if chosen is not None and chosen.startswith("local"):
        builder = (
            builder.config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        )
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_per_batch_max))
        .getOrCreate()
    )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin/java").exists()):
        raise ConfigError("Spark needs Java, and there is none", hint="install Java 17 or set JAVA_HOME")
