"""A cluster of Spark on this machine for the tests: what runs on it, and what strikes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from integration.servers.spark import SparkWorker

ROOT: Final = Path(__file__).resolve().parents[2]
LOOK_SECONDS: Final = 0.1
STOPPED_LOOKS: Final = 20
"""For so long, and as long in between, the processes of tasks stand still once the rest was done."""

CRASHED: Final = "Python worker exited unexpectedly"
LOST_EXECUTOR: Final = "Lost executor"
"""Spark's warnings."""

SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "20ms",
    "spark.speculation.task.duration.threshold": "500ms",
    "spark.task.maxFailures": "50",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


class Cluster(NamedTuple):
    """A cluster on this machine."""

    address: str
    workers: tuple[SparkWorker, SparkWorker]


class Done(NamedTuple):
    """What a job said in the end. ``told``: its standard error."""

    exit_code: int
    result: dict[str, Any]
    told: str


def run(
    command: list[str],
    folder: Path,
    *,
    kills: Cluster | None = None,
    may_kill: Callable[[], bool] = lambda: True,
) -> Done:
    """``python -m`` with the command. ``kills``: as soon as it may be, an executor is killed, and the process of a
    task of the other one, until the job has noticed both. From then on processes of tasks stand still again and
    again, and slow tasks are started twice."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if kills is not None:
        settings = {**SPECULATION, "spark.eventLog.dir": folder.as_uri()}
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join(
            (*(f"--conf {name}={value}" for name, value in settings.items()), "pyspark-shell")
        )
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        arguments = [sys.executable, "-m", *command, "--json"]
        job = subprocess.Popen(arguments, stdout=stdout, stderr=stderr, cwd=ROOT, env=environment)
        looks = 0
        try:
            while job.poll() is None:
                if kills is not None and may_kill():
                    looks += _strike(kills, err.read_text(errors="replace"), looks)
                time.sleep(LOOK_SECONDS)
        finally:
            if kills is not None:
                kills.workers[1].signal_python(signal.SIGCONT)
            job.kill()
            job.wait()
    told = err.read_text(errors="replace")
    assert out.stat().st_size, told
    return Done(job.returncode, json.loads(out.read_text()), told)


def _strike(cluster: Cluster, told: str, looks: int) -> bool:
    """Whether both were noticed. ``looks``: how often that was so before."""
    one, two = cluster.workers
    if LOST_EXECUTOR not in told:
        one.kill_executor()
    if CRASHED not in told:
        two.signal_python()
    is_done = LOST_EXECUTOR in told and CRASHED in told
    if is_done:
        is_stopped = looks // STOPPED_LOOKS % 2 == 0
        two.signal_python(signal.SIGSTOP if is_stopped else signal.SIGCONT)
    return is_done


def count_tasks(folder: Path) -> Counter[str]:
    """Attempts at the tasks of a job, by how they ended, and those that were second ones on suspicion."""
    found: Counter[str] = Counter()
    for path in folder.rglob("events_*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                found[event["Task End Reason"]["Reason"]] += 1
                found["speculative"] += event["Task Info"]["Speculative"]
    return found
