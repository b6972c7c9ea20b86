"""The keys of the entries that a cache node holds, of any technology that has a server of its own. For the prober.

memcached lists them by ``lru_crawler metadump hash`` (its doc/protocol.txt): that walks the hash table, in which
items do not move. ``all`` walks the lists of a living cache, and reads move items between those: on a node with
concurrent reads it listed 1,597 of 4,000 keys (memcached 1.6.18). The dump is taken as fast as it comes and kept in a
temporary file, so that the crawler never waits for us. Never a partial list as if it were whole: a dump without its
END raises.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import IO, Final, Protocol
from urllib.parse import quote, unquote_to_bytes

from freshness.config.access import NodeAccess
from freshness.errors import ConfigError, NodeUnavailable, NodeUnsuitable
from freshness.nodes.open import open_node

BUSY_RETRIES_MAX: Final = 40
BUSY_WAIT_SECONDS: Final = 0.25
"""The crawler serves one client at a time, and the node itself."""

_COMMAND: Final = b"lru_crawler metadump hash\r\n"


class _Busy(Exception):
    """The crawler is at work for somebody else."""


class DumpingNode(Protocol):
    """A `freshness.nodes.memcached.MemcachedNode`."""

    name: str

    def read_lines(self, command: bytes) -> Generator[bytes]:
        """The lines of the answer, until the server closes the connection. Raises `NodeUnavailable`."""


@contextmanager
def open_dump(
    node: DumpingNode, namespace: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Iterator[bytes]]:
    """The keys of entries, without stripes and node records, as they come in the dump. Raises `NodeUnavailable` if
    the dump is cut or the crawler stays busy, `NodeUnsuitable` if it is off."""
    with tempfile.TemporaryFile() as spool:
        for _ in range(BUSY_RETRIES_MAX):
            spool.seek(0)
            spool.truncate()
            try:
                _dump(node, namespace, spool)
                break
            except _Busy:
                sleep(BUSY_WAIT_SECONDS)
        else:
            raise NodeUnavailable(
                f"memcached {node.name}: its crawler was busy at {BUSY_RETRIES_MAX} tries",
                hint="another program dumps its keys; try again when that is done",
            )
        spool.seek(0)
        yield (line.rstrip(b"\n") for line in spool)


def _dump(node: DumpingNode, namespace: str, spool: IO[bytes]) -> None:
    # Most lines of a cache that is not full; a line that is spelled otherwise is left out below
    encoded = b"key=" + quote(namespace, safe="").encode()
    stripes = (encoded + b"%3A%21", encoded + b"%3A!")
    with closing(node.read_lines(_COMMAND)) as lines:
        for line in lines:
            if line.startswith(stripes):
                continue
            line = line.rstrip(b"\r")
            if line in (b"END", b"NOTSTARTED no items to crawl"):
                return
            key = find_entry_key(line, node.name, namespace)
            if key is not None:
                spool.write(key + b"\n")
    raise NodeUnavailable(
        f"memcached {node.name}: listing its keys failed: the server closed the connection before END",
        hint="see that memcached runs there and is reachable; nothing was concluded from the silence",
    )


def find_entry_key(line: bytes, node: str, namespace: str) -> bytes | None:
    """The key in one line of the dump; None for a key of others, a stripe or a node record."""
    if not line.startswith(b"key="):
        if line.startswith((b"BUSY", b"ERROR locked")):
            raise _Busy
        raise NodeUnsuitable(
            f"memcached {node} does not list its keys: {line[:200].decode('latin-1')}",
            hint="say 'lru_crawler enable' to it, or start it without -o no_lru_crawler and -X",
        )
    # A colon is in each key of ours, and by far the most frequent sign that is encoded
    key = line[4:].split(b" ", 1)[0].replace(b"%3A", b":")
    if b"%" in key:
        key = unquote_to_bytes(key)
    # No key of ours holds a line end; one that does is another program's.
    return key if is_entry_key(key, namespace) and b"\n" not in key else None


def is_entry_key(key: bytes, namespace: str) -> bool:
    """Whether it is the key of an entry in the namespace, and not of a stripe or a node record."""
    prefix = namespace.encode() + b":"
    return key.startswith(prefix) and not key.startswith(prefix + b"!")


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
    can come twice. Raises `NodeUnavailable` if not all are listed, `NodeUnsuitable` if the node lists none."""
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
