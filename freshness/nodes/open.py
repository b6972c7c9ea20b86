"""Opens a connection to a cache node of the configured technology.

Each technology is imported where it is used, so that an application installs only the client that it needs.
"""

from __future__ import annotations

from typing import Final

from freshness.algorithm.node import CacheNode
from freshness.errors import ConfigError
from freshness.network import BLOCKING, Network

TIMEOUT_SECONDS: Final = 1.0
"""How long a node is waited for where nothing else is configured."""


def open_node(
    backend: str,
    name: str,
    *,
    connect_timeout_seconds: float = TIMEOUT_SECONDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
    network: Network = BLOCKING,
) -> CacheNode:
    """A connection to the node "host:port" of the configured backend. Connects with its first request."""
    if backend == "memcached":
        from freshness.nodes.memcached import MemcachedNode

        return MemcachedNode(
            name,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
            network=network,
        )
    if backend == "redis":
        from freshness.nodes.redis import RedisNode

        return RedisNode(
            name,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
            network=network,
        )
    raise ConfigError(
        f'cache.backend = "{backend}" cannot be opened by address',
        hint="an embedded cache is handed over by the program that embeds it: pass open_node=",
    )
