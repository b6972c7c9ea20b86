"""The cluster of the tests of jobs on Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from integration.servers.spark import SparkMaster, SparkWorker
from integration.spark.cluster import ROOT, Cluster
from spark.session import JAVA_OPTIONS

# The store of test_object_store.py takes any credentials. The JVM of the session and its Python workers inherit the
# environment of its start, whichever test starts it.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "nobody")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "nothing")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkMaster]:
    """Of a cluster that has no worker yet."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    # Six programs of Java, for a minute
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{JAVA_OPTIONS} {os.environ.get('SPARK_SUBMIT_OPTS', '')}")
    with SparkMaster() as started:
        yield started


@pytest.fixture
def cluster(master: SparkMaster) -> Iterator[Cluster]:
    with SparkWorker(master.address) as one, SparkWorker(master.address, "127.0.0.2") as two:
        yield Cluster(master.address, (one, two))
