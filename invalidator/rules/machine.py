"""Whether this machine allows what the configuration asks of an application that runs on it, and whether each name in
it leads to one server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from freshness.config.config import Config
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule

OTHER_FILES: Final = 64
"""Files that a process has open besides its connections, at a low guess."""


def check_machine(config: Config, open_files_max: int) -> Iterator[CheckFinding]:
    """``open_files_max``: the soft limit of this process."""
    shards = [shard for keyspace in config.keyspaces.values() for shard in keyspace.serving_shards]
    servers = sum(1 + len(shard.replicas) for shard in shards)
    nodes = 0 if config.cache.backend == "memory" else len(config.cache.all_nodes)
    needed = config.cache.connections_max * (nodes + servers) + OTHER_FILES
    if open_files_max < needed:
        yield CheckFinding(
            Rule.OPEN_FILES,
            f"a process may open {open_files_max} files here, and an application may open up to {needed}:"
            f" cache.connections_max = {config.cache.connections_max} to each of {nodes} nodes and {servers} servers",
            f"ulimit -n {needed} for the application, or lower cache.connections_max",
        )


def check_names(config: Config, look_up: Callable[[str, int], set[str]]) -> Iterator[CheckFinding]:
    """``look_up``: the IP addresses of a name, none if it has none. One server may have two, as IPv4 and IPv6."""
    nodes = () if config.cache.backend == "memory" else config.cache.all_nodes
    places = [urlsplit(f"//{name}") for name in nodes if not name.startswith("/")]
    named = [
        (
            each.hostname or "",
            each.port or 0,
            "give each node a name of its own, such as that of a pod, and list all in cache.nodes",
        )
        for each in places
    ]
    named += [
        (server.host, server.port, "give each server its own name, and list the replicas in replicas")
        for keyspace in config.keyspaces.values()
        for shard in keyspace.shards
        if shard.vtgate is None
        for server in (shard.primary, *shard.replicas)
    ]
    for host, port, hint in named:
        found = sorted(look_up(host, port))
        for is_ipv6 in (False, True):
            rivals = [address for address in found if (":" in address) is is_ipv6]
            if len(rivals) > 1:
                yield CheckFinding(
                    Rule.SEVERAL_ADDRESSES,
                    f"{host}:{port} has {len(rivals)} addresses, {', '.join(rivals)}: each connection may reach"
                    " another server",
                    hint,
                    f"{host}:{port}",
                )
