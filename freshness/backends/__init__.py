"""Cache nodes by technology: ``memory`` (reference and simulator), ``memcached``, ``redis``; and ``database``.

Each module is imported where it is used, so that an application installs only the client that it needs.
The cache nodes implement `freshness.backend.CacheNode`, pass one contract suite and never import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshness.backend import CacheNode
from freshness.config import Config
from freshness.errors import ConfigError

if TYPE_CHECKING:
    from freshness.backends.recorder import Recorder


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


def open_recorder(config: Config) -> Recorder | None:
    """The recorder that ``[history]`` asks for; None where nothing is recorded."""
    history = config.history
    if history.path is None:
        return None
    try:
        from freshness.backends.recorder import Recorder
    except ImportError as error:
        raise ConfigError(
            f"history.path = {history.path!r}: {error}",
            hint="pip install 'freshness[history]', or leave it out",
        ) from error
    folder = config.path.parent / history.path
    return Recorder(folder, sample=history.sample, rotate_seconds=history.rotate_seconds)
