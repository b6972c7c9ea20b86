"""Whether this machine allows what the configuration asks of an application that runs on it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from freshness.config.config import Config
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule

OTHER_FILES: Final = 64
"""Files that a process has open besides its connections, at a low guess."""


def check_machine(config: Config, open_files_max: int) -> Iterator[CheckFinding]:
    """``open_files_max``: the soft limit of this process."""
    shards = [shard for keyspace in config.keyspaces.values() for shard in keyspace.serving_shards]
    servers = sum(1 + len(shard.replicas) for shard in shards)
    nodes = 0 if config.cache.backend == "memory" else len(config.cache.nodes)
    needed = config.cache.connections_max * (nodes + servers) + OTHER_FILES
    if open_files_max < needed:
        yield CheckFinding(
            Rule.OPEN_FILES,
            f"a process may open {open_files_max} files here, and an application may open up to {needed}:"
            f" cache.connections_max = {config.cache.connections_max} to each of {nodes} nodes and {servers} servers",
            f"ulimit -n {needed} for the application, or lower cache.connections_max",
        )
