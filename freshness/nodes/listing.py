"""The keys of the entries that a cache node holds, of any technology that has a server of its own. For the prober."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from freshness.config.access import NodeAccess
from freshness.errors import ConfigError
from freshness.nodes.metadump import is_entry_key, open_dump
from freshness.nodes.open import open_node

TIMEOUT_SECONDS: Final = 5.0
"""The longest wait for the next keys."""


def require_listing(access: NodeAccess) -> None:
    """Raises `ConfigError` for nodes that no other program can ask."""
    if access.backend == "memory":
        raise ConfigError(
            'cache.backend = "memory": the nodes are parts of the programs that use them, and nobody else lists them',
            hint="`spark.audit` audits a recorded history instead, and opens no node",
        )


@contextmanager
def open_entry_keys(access: NodeAccess, name: str, namespace: str) -> Iterator[Iterator[bytes]]:
    """The keys of entries, without stripes and node records. An entry that is there all the while is among them; one
    can come twice.

    Raises `NodeUnavailable` if not all are listed, `NodeUnsuitable` if the node lists none.
    """
    require_listing(access)
    seconds = TIMEOUT_SECONDS
    with closing(open_node(access, name, connect_timeout_seconds=seconds, timeout_seconds=seconds)) as node:
        if access.backend == "redis":
            from freshness.nodes.redis import RedisNode

            assert isinstance(node, RedisNode)
            found = node.scan(namespace.encode() + b":")
            yield (key for key in found if is_entry_key(key, namespace))
        else:
            from freshness.nodes.memcached import MemcachedNode

            assert isinstance(node, MemcachedNode)
            with open_dump(node, namespace) as keys:
                yield keys
