"""Opens a connection to a cache node of the configured technology.

Each technology is imported on first use, so that an application installs only the client that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
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
    return import_node(access.backend)(name, reach)


def import_node(backend: str) -> Callable[[str, Reach], CacheNode]:
    """The class of a backend's nodes. Raises `ConfigError` for one without, and for a client that is not installed
    `ModuleNotFoundError`."""
    if backend == "memcached":
        from freshness.nodes.memcached import MemcachedNode

        return MemcachedNode
    if backend == "redis":
        from freshness.nodes.redis import RedisNode

        return RedisNode
    raise ConfigError(
        f'cache.backend = "{backend}" cannot be opened by address',
        hint="an embedded cache is handed over by the program that embeds it: pass open_node=",
    )
