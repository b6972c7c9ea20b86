"""The keys that a memcached node holds, by ``lru_crawler metadump hash`` (memcached's doc/protocol.txt).

The crawler walks the hash table, in which an item stays where it is. ``all`` walks the lists of a living cache, and
reads move items between those: on a node that was read meanwhile it listed 1,597 of 4,000 keys (memcached 1.6.18).
The dump is taken as fast as it comes and kept in a temporary file, so that the crawler never waits for us.
Never a partial list as if it were whole: a dump without its END raises. Called by ``freshness.comparison``.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, Final
from urllib.parse import quote, unquote_to_bytes

from freshness.config.access import NodeAccess, NodeLogin
from freshness.config.hostport import parse_host_port
from freshness.errors import ConfigError, NodeUnavailable, NodeUnsuitable

TIMEOUT_SECONDS: Final = 5.0
"""The longest wait for the next bytes of the dump."""

BUSY_RETRIES_MAX: Final = 40
BUSY_WAIT_SECONDS: Final = 0.25
"""The crawler serves one client at a time, and the node itself."""

_COMMAND: Final = b"lru_crawler metadump hash\r\n"
_RECEIVE_BYTES: Final = 262_144


class _Busy(Exception):
    """The crawler is at work for somebody else."""


def require_listing(access: NodeAccess) -> None:
    """Raises `ConfigError` for nodes whose keys are not listed here."""
    if access.backend != "memcached":
        raise ConfigError(
            f'cache.backend = "{access.backend}": the entries of its nodes are not listed',
            hint="only memcached lists its keys as this reads them; `spark.audit` audits a recorded history instead",
        )
    if access.login != NodeLogin():
        raise ConfigError(
            "entries are listed without TLS and without a login, and the configuration has one",
            hint="`spark.audit` audits a recorded history instead, and opens no node",
        )


@contextmanager
def open_entry_keys(
    node: str, namespace: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Iterator[bytes]]:
    """The keys of entries, without stripes and node records, as they come in the dump.

    Raises `NodeUnavailable` where the dump is cut or the crawler stays busy, `NodeUnsuitable` where it is off.
    """
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
                f"memcached {node}: its crawler was busy at {BUSY_RETRIES_MAX} tries",
                hint="another program dumps its keys; try again when that is done",
            )
        spool.seek(0)
        yield (line.rstrip(b"\n") for line in spool)


def _dump(node: str, namespace: str, spool: IO[bytes]) -> None:
    # Most lines of a cache that is not full; a line that is spelled otherwise is left out below
    encoded = b"key=" + quote(namespace, safe="").encode()
    stripes = (encoded + b"%3A%21", encoded + b"%3A!")
    try:
        with socket.create_connection(parse_host_port(node), TIMEOUT_SECONDS) as connection:
            connection.sendall(_COMMAND)
            for line in chain.from_iterable(_blocks(connection)):
                if line.startswith(stripes):
                    continue
                line = line.rstrip(b"\r")
                if line in (b"END", b"NOTSTARTED no items to crawl"):
                    return
                key = find_entry_key(line, node, namespace)
                if key is not None:
                    spool.write(key + b"\n")
    except OSError as error:
        raise NodeUnavailable(
            f"memcached {node}: listing its keys failed: {error or type(error).__name__}",
            hint="see that memcached runs there and is reachable; nothing was concluded from the silence",
        ) from error


def _blocks(connection: socket.socket) -> Iterator[list[bytes]]:
    """Whole lines, as many as have come together."""
    rest = b""
    while True:
        received = connection.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("the server closed the connection before END")
        *lines, rest = (rest + received).split(b"\n")
        yield lines


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
    prefix = namespace.encode() + b":"
    is_entry = key.startswith(prefix) and not key.startswith(prefix + b"!")
    # No key of ours holds a line end; one that does is another program's.
    return key if is_entry and b"\n" not in key else None
