"""Cache nodes by technology: ``memory`` (reference and simulator), ``memcached``, ``redis``; and ``database``.

Each module is imported where it is used, so that an application installs only the client that it needs.
The cache nodes implement `freshness.backend.CacheNode`, pass one contract suite and never import each other.
"""

from __future__ import annotations

from freshness.backend import CacheNode
from freshness.errors import ConfigError


def open_node(backend: str, name: str) -> CacheNode:
    """A connection to the node "host:port" of the configured backend. Connects with its first request."""
    if backend == "memcached":
        from freshness.backends.memcached import MemcachedNode

        return MemcachedNode(name)
    if backend == "redis":
        from freshness.backends.redis import RedisNode

        return RedisNode(name)
    raise ConfigError(
        f'cache.backend = "{backend}" cannot be opened by address',
        hint="an embedded cache is handed over by the program that embeds it: pass open_node=",
    )
