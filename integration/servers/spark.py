"""A standalone cluster of Spark on loopback: a master, and workers of one core whose processes can be killed."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark

from integration.servers.process import ServerProcess

SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin/spark-class"
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_PYTHON: Final = "pyspark.daemon"


class SparkMaster(ServerProcess):
    """The master of a cluster."""

    technology = "Spark"

    def command(self) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        return [str(SPARK_CLASS), "org.apache.spark.deploy.master.Master", *options]

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return "I have been elected leader" in self.log()


class SparkWorker(ServerProcess):
    """One worker, with one core, that has found its master. ``host``: Spark runs a task that it suspects to be slow
    on another host only."""

    technology = "Spark"

    def __init__(self, master: str, host: str = "127.0.0.1") -> None:
        super().__init__()
        self._master, self._host = master, host

    def command(self) -> list[str]:
        options = ["--host", self._host, "--port", str(self.port), "--webui-port", "0", "--cores", "1"]
        options += ["--memory", "1g", "--work-dir", str(self.directory), self._master]
        return [str(SPARK_CLASS), "org.apache.spark.deploy.worker.Worker", *options]

    def is_ready(self) -> bool:
        return "Successfully registered with master" in self.log()

    def kill_executor(self) -> bool:
        """Kill one that has Python at work, so its driver knows it. Whether there was one. The worker starts
        another."""
        return _kill(
            pid
            for pid, command in find_descendants(self.pid)
            if _EXECUTOR in command and any(_PYTHON in of for _, of in find_descendants(pid))
        )

    def signal_python(self, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to the Python processes of tasks. Whether there were any. A task whose process is killed
        fails, and one whose process is stopped is slow."""
        return _kill(
            (
                pid
                for daemon, command in find_descendants(self.pid)
                if _PYTHON in command
                for pid, _ in find_descendants(daemon)
            ),
            number,
        )


def _kill(pids: Iterator[int], number: signal.Signals = signal.SIGKILL) -> bool:
    is_any = False
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it has ended
        is_any = True
    return is_any


def find_descendants(root: int) -> list[tuple[int, str]]:
    """(process, command line) of all processes that a process has started, and those, too."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.append((pid, command))
            waiting.append(pid)
    return found
