"""The sink on Spark as a private process: a driver with its JVM, on this machine or on a cluster of the tests."""

from __future__ import annotations

from pathlib import Path

from freshness.config.config import load_config
from integration.servers.program import PythonProgram
from invalidator.process.status import read_nodes
from spark.session import JAVA_OPTIONS


class SinkProcess(PythonProgram):
    """``python -m spark.sink``, ready when all nodes are open. ``kill`` ends its JVM, too."""

    technology = "sink"

    def __init__(self, config_path: Path, *arguments: str, checkpoint: Path, master: str = "local[2]") -> None:
        super().__init__(
            *("-m", "spark.sink", "--config", str(config_path), "--checkpoint", str(checkpoint)),
            *("--master", master, *arguments),
        )
        self._config = load_config(config_path)

    def command(self) -> list[str]:
        program, *rest = super().command()
        return [program, "SPARK_LOCAL_IP=127.0.0.1", f"JAVA_TOOL_OPTIONS={JAVA_OPTIONS}", *rest]

    def is_ready(self) -> bool:
        return all(node["state"] == "open" for node in read_nodes(self._config))
