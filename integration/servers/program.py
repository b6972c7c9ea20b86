"""Programs of this checkout as private processes, the invalidator above all, for tests, the demo and benchmarks.

Not exported by the package, so a test that needs only a database does not import the invalidator.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from freshness.config.config import Config, load_config
from integration.servers.process import ServerProcess
from invalidator.process.status import read_nodes

CHECKOUT = Path(__file__).resolve().parent.parent.parent


class PythonProgram(ServerProcess):
    """A program of this checkout, run by this Python with ``arguments``. Subclasses say when it is ready."""

    def __init__(self, *arguments: str) -> None:
        super().__init__()
        self._arguments = arguments

    def command(self) -> list[str]:
        return ["/usr/bin/env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-X", "faulthandler", *self._arguments]


class InvalidatorProcess(PythonProgram):
    """``invalidator run``, ready when all nodes are open and have their stripes; `launch` does not wait for that.
    ``needs_stripes``: False if the nodes are too small for all of them."""

    technology = "invalidator"

    def __init__(self, config_path: Path, *arguments: str, needs_stripes: bool = True) -> None:
        super().__init__("-m", "invalidator.cli", "run", "--config", str(config_path), *arguments)
        self._config = load_config(config_path)
        self._log_size = 0
        self._needs_stripes = needs_stripes

    def launch(self) -> None:
        self._log_size = len(self.log())
        super().launch()

    def reload(self, config: Config) -> None:
        """Make it load its file again, which says what ``config`` says."""
        self._config = config
        self._signal(signal.SIGHUP)

    def is_ready(self) -> bool:
        """Whether all nodes are open for all shards that serve, and for no other."""
        serving = {s.lineage for keyspace in self._config.keyspaces.values() for s in keyspace.serving_shards}
        return all(
            node["state"] == "open" and (node["stripes_there_percent"] == 100 or not self._needs_stripes)
            if node["lineage"] in serving
            else node["state"] != "open"
            for node in read_nodes(self._config)
        )

    def is_streaming(self) -> bool:
        """Whether it has opened its stream since it was last launched. It may have lost it again."""
        return "streaming from" in self.log()[self._log_size :]
