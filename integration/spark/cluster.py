"""A cluster of Spark on this machine for the tests: what runs on it, and what strikes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from integration.harness import wait_until
from integration.servers.spark import SparkWorker

ROOT: Final = Path(__file__).resolve().parents[2]
LOOK_SECONDS: Final = 0.1
UNTIL_SECONDS: Final = 120.0
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
    "spark.sql.shuffle.partitions": "4",
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
    command: list[str], folder: Path, *, kills: Cluster | None = None, may_kill: Callable[[], bool] = lambda: True
) -> Done:
    """``python -m`` with the command. ``kills``: once ``may_kill`` allows it, kill an executor and a task process of
    the other one, until the job has noticed both. From then on task processes are paused again and again, and slow
    tasks are started twice."""
    out, err = folder / "out", folder / "err"
    with _started(command, folder, is_struck=kills is not None) as job:
        looks = 0
        try:
            while job.poll() is None:
                if kills is not None and may_kill():
                    looks += _strike(kills, err.read_text(errors="replace"), looks)
                time.sleep(LOOK_SECONDS)
        finally:
            if kills is not None:
                kills.workers[1].signal_python(signal.SIGCONT)
    told = err.read_text(errors="replace")
    assert out.stat().st_size, told
    return Done(job.returncode, json.loads(out.read_text()), told)


def run_until(command: list[str], folder: Path, is_time: Callable[[], bool], what: str) -> None:
    """The same, whose driver is killed at that time, and its JVM with it."""
    with _started(command, folder, is_struck=False) as job:
        wait_until(
            lambda: is_time() or job.poll() is not None, what, (folder / "err").read_text, seconds=UNTIL_SECONDS
        )
        assert job.poll() is None, f"the job ended before it was killed\n{(folder / 'err').read_text()}"


@contextmanager
def _started(command: list[str], folder: Path, *, is_struck: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which is killed at the end of the block. ``folder``: gets what it says, as ``out`` and ``err``."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if is_struck:
        settings = {**SPECULATION, "spark.eventLog.dir": folder.as_uri()}
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join(
            (*(f"--conf {name}={value}" for name, value in settings.items()), "pyspark-shell")
        )
    arguments = [sys.executable, "-m", *command, "--json"]
    with (folder / "out").open("wb") as stdout, (folder / "err").open("wb") as stderr:
        job = subprocess.Popen(
            arguments, stdout=stdout, stderr=stderr, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            yield job
        finally:
            with suppress(ProcessLookupError):  # all of the group have ended
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()


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
