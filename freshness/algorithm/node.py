"""The role of a cache node: one connection to one node that answers the requests of `freshness.algorithm.request`.

Implemented by ``freshness.nodes.open`` (memory, memcached, redis); used by the drivers, which send a flow to
every node first and receive from all of them afterwards. An implementation must never answer with a default:
a missing answer raises `NodeUnavailable` and is never `MISSING` (F11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

from freshness.algorithm.request import Reply, Request
from freshness.errors import FormatError

KEY_BYTES_MAX: Final = 250
"""memcached's limit (F45); the same for all backends, so that a key never fits one and fails another."""

LATE_SECONDS: Final = 0.01
"""Wait for an answer that was due during the waits for other nodes, in seconds."""

TTL_SECONDS_MAX: Final = 2_592_000
"""30 days. memcached takes a longer TTL for an absolute time, in 1970 (F50)."""

is_key: Final = re.compile(rb"[!-~\x80-\xff]{1,%d}" % KEY_BYTES_MAX).fullmatch
"""Truthy for a key that every backend takes: 1 to 250 bytes, no blanks, no control characters."""


class CacheNode(Protocol):
    """One connection to one cache node. Not thread-safe: a caller holds one per thread.

    Every failure (connect, timeout, reset, bytes that are not the protocol, a reply that does not fit its
    request) raises `NodeUnavailable` with the node's name, `NodeUnsuitable` if the node can never serve,
    and closes the connection, so that a late reply is never taken for the answer to a later request (F46).
    After a failure the caller does not know which requests of the flow were carried out. The next `send`
    opens a new connection. A request that no node could take (see `check_key`, `lifetime_seconds`) raises
    `FormatError` before it or anything behind it is sent; mostly nothing is, and else the connection is closed.
    """

    @property
    def name(self) -> str:
        """``host:port`` as configured: the name that is used for placement and in messages."""

    def send(self, requests: Sequence[Request]) -> None:
        """Write the whole flow without waiting for its answers.

        Where answers of an earlier flow were not received, the connection is closed first.
        """

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, and its server is not known to have closed it."""

    def connect(self) -> None:
        """Open the connection if it is closed; fails as `send`."""

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        """One reply for each request of the last `send`, in its order.

        ``is_late``: the node has had the whole time-out for its answer by now, and is hardly waited for.
        """

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        """`send` and `receive`."""

    def find(self, key: bytes) -> bytes | None:
        """The value of an item, or None: `perform` of one `Get`, for callers that need no more."""

    def close(self) -> None:
        """Close the connection; never raises. The next `send` opens it again."""


@runtime_checkable
class DescribedNode(Protocol):
    """A node that says what it is, for those who look after it; no step of the algorithm asks."""

    def describe(self) -> Mapping[str, Mapping[str, str]]:
        """The answers by the command that asked, each as texts by name. Empty for a command that the server, or the
        rights of the account, refuse. Fails as `CacheNode.send`."""


def check_key(key: bytes) -> None:
    """Raise `FormatError` for a key that some backend would refuse, or misread as two words of a command."""
    if not is_key(key):
        raise FormatError(
            f"cache key {key[:300]!r} of {len(key)} bytes cannot be used",
            hint=f"keys have 1 to {KEY_BYTES_MAX} bytes, without blanks and control characters",
        )


@lru_cache(maxsize=256)
def lifetime_seconds(ttl_seconds: int) -> int:
    """The TTL to send to a server that counts whole seconds and whose first second is partial (F50).

    One more than asked, so that the item lives at least as long as asked; at most 30 days; 0 (no expiry)
    stays 0. Raises `FormatError` for a negative TTL: memcached would take it and drop the item at once.
    """
    if ttl_seconds < 0:
        raise FormatError(f"a TTL of {ttl_seconds} s", hint="0 means no expiry, else give whole seconds above 0")
    if ttl_seconds == 0:
        return 0
    return min(ttl_seconds + 1, TTL_SECONDS_MAX)
