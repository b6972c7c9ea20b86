"""Opens a connection to a cache node of the configured technology.

Each technology is imported on first use, so that an application installs only the client that it needs.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from freshness.algorithm.node import CacheNode
from freshness.config.access import NodeAccess
from freshness.errors import ConfigError
from freshness.login import find_credentials, make_context
from freshness.network import BLOCKING, Network
from freshness.nodes.servernode import Reach

TIMEOUT_SECONDS: Final = 1.0
"""Default time-out of a node, in seconds."""


def open_node(
    access: NodeAccess,
    name: str,
    *,
    connect_timeout_seconds: float = TIMEOUT_SECONDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
    network: Network = BLOCKING,
) -> CacheNode:
    """A connection to the node "host:port" of the configured backend. Connects with its first request, and reads
    password and certificates each time that it connects."""
    login = access.login
    make_tls = partial(make_context, login.tls, network) if login.tls is not None else None
    credentials = partial(find_credentials, login, name, network) if login.password else None
    reach = Reach(connect_timeout_seconds, timeout_seconds, make_tls, credentials, network)
    if access.backend == "memcached":
        from freshness.nodes.memcached import MemcachedNode

        return MemcachedNode(name, reach)
    if access.backend == "redis":
        from freshness.nodes.redis import RedisNode

        return RedisNode(name, reach)
    raise ConfigError(
        f'cache.backend = "{access.backend}" cannot be opened by address',
        hint="an embedded cache is handed over by the program that embeds it: pass open_node=",
    )
