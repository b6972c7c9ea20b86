"""Opens the Spark session of a job.

A local session that a job opens itself listens on loopback alone and has no web page: a job of minutes needs neither
network nor page. Under spark-submit all settings are those of spark-submit.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from freshness.config.access import NodeLogin, PasswordCommand, PasswordFile
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError

VERSIONS: Final = ("4.2", "4.3")
"""Versions of Spark that tests passed on. 4.1 has no limits for a stream's reads
(``pyspark.sql.streaming.datasource``)."""
LOCAL_MASTER: Final = "local[*]"
SHUFFLE_PARTITIONS: Final = 8
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseParallelGC"
"""Compiled once and quickly. The first option alone leaves 48 MB for code; once that is full Java only interprets.
Blobs of megabytes cost the usual collector, G1, a tenth of the CPU of Java."""
ROWS_PER_BATCH_MAX: Final = 200
"""Rows that Spark hands to Python at once, unless spark-submit sets another number. A value can have a megabyte."""

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

_ENCRYPTION: Final = (
    ("spark.authenticate",),
    ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled"),
    ("spark.io.encryption.enabled",),
)
"""One setting of each must be true: for who may ask, for sockets, for files."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which also chooses the master."""


def open_session(name: str, master: str | None = None, rows_per_batch_max: int = ROWS_PER_BATCH_MAX) -> SparkSession:
    """The session, on ``master``, else on that of spark-submit, else on this machine. Raises `ConfigError` if Java is
    missing."""
    # No job uses pandas. Under spark-submit this would stand before the JSON, in standard output.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
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


@contextmanager
def using_session(
    session: SparkSession | None, name: str, master: str | None, rows_per_batch_max: int = ROWS_PER_BATCH_MAX
) -> Iterator[SparkSession]:
    """``session``, which its owner stops, else one of `open_session`, which is stopped at the end. Raises
    `ConfigError` for a version of Spark that nobody tested."""
    if not pyspark.__version__.startswith(tuple(f"{each}." for each in VERSIONS)):
        raise ConfigError(f"Spark {pyspark.__version__} was not tested", hint=f"use one of {', '.join(VERSIONS)}")
    if session is not None:
        yield session
        return
    opened = open_session(name, master, rows_per_batch_max)
    try:
        yield opened
    finally:
        opened.stop()


def require_encryption(session: SparkSession, servers: Iterable[ServerAddress | NodeLogin]) -> None:
    """Closures carry how to log in to ``servers``, and Spark writes closures to sockets and to disks. Raises
    `ConfigError` if one has a password, and not only the place of one, and the session is of a cluster that encrypts
    neither."""
    conf = session.conf
    passwords = [each.password for each in servers]
    has_secret = any(each and not isinstance(each, PasswordFile | PasswordCommand) for each in passwords)
    if str(conf.get("spark.master")).startswith("local") or not has_secret:
        return
    missing = [
        " or ".join(names)
        for names in _ENCRYPTION
        if not any(str(conf.get(name, "false")).lower() == "true" for name in names)
    ]
    if missing:
        raise ConfigError(
            f"executors would get passwords in clear: {', '.join(missing)} is not set",
            hint="set it to true for spark-submit (--conf), as Spark's page on security says",
        )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin/java").exists()):
        raise ConfigError("Spark needs Java, and there is none", hint="install Java 17 or set JAVA_HOME")
