"""Opens a connection to a cache node of the configured technology.

Each technology is imported where it is used, so that an application installs only the client that it needs.
"""

from __future__ import annotations

from freshness.algorithm.node import CacheNode
from freshness.errors import ConfigError


def open_node(backend: str, name: str) -> CacheNode:
    """A connection to the node "host:port" of the configured backend. Connects with its first request."""
    if backend == "memcached":
        from freshness.nodes.memcached import MemcachedNode

        return MemcachedNode(name)
    if backend == "redis":
        from freshness.nodes.redis import RedisNode

        return RedisNode(name)
    raise ConfigError(
        f'cache.backend = "{backend}" cannot be opened by address',
        hint="an embedded cache is handed over by the program that embeds it: pass open_node=",
    )
