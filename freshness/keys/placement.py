"""Which cache node holds an object: one ring, the same in every process, for readers and invalidators (F10).

The place depends only on the object key and the set of node names. It ignores health on purpose: a dead node keeps
its keys and means database reads without fills. A key that moved to another node while its own was down would be
invalidated there, and found old when the node comes back (F9). An object's stripe lives on the object's node, so
never pass a stripe's key.

Names are compared as written: ``localhost:11211`` and ``127.0.0.1:11211`` are two nodes. Processes that disagree have
another `ring_version`, which the node records carry, and then neither hit nor fill.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

from freshness.errors import ConfigError

_ALGORITHM: Final = b"freshness ring 1"
_POINTS_PER_NODE: Final = 512
"""The spread of load over nodes is about 1 / sqrt(points): 512 gives 4 to 5 %."""
_POINTS_PER_DIGEST: Final = 16


class Placement:
    """A fixed ring over node names. The order of ``nodes`` does not matter. ``namespace`` goes into `ring_version`
    only. Raises `ConfigError` for no nodes, one named twice, or a name that is empty or holds blanks."""

    __slots__ = ("_borders", "_owners", "nodes", "ring_version")

    nodes: tuple[str, ...]
    ring_version: int
    """A fingerprint (32 bits) of the algorithm, the namespace and the set of node names."""

    def __init__(self, nodes: Sequence[str], namespace: str = "") -> None:
        self.nodes = tuple(sorted(nodes))
        _require_names(self.nodes)
        identity = "\0".join((namespace, *self.nodes)).encode("utf-8")
        self.ring_version = int.from_bytes(blake2b(_ALGORITHM + b"\0" + identity, digest_size=4).digest(), "big")
        # Two points at one place: the name decides. One point more at the end closes the ring.
        points = sorted((point, node) for node in self.nodes for point in _points(node))
        self._borders = [point for point, _ in points]
        self._owners = [node for _, node in points]
        self._owners.append(self._owners[0])

    def node_for(self, key: bytes) -> str:
        """The node that holds the object with this key, dead or alive."""
        # CRC-32 is the quickest hash in every Python; alike keys have alike sums, so the bits are mixed.
        place = crc32(key)
        place = (place ^ place >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        place = (place ^ place >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        return self._owners[bisect_right(self._borders, place)]

    def is_within(self, other: Placement, node: str) -> bool:
        """Whether ``other`` places every key on this node that this ring places there."""
        places = {0, *self._borders, *other._borders}
        return all(other._owner(place) == node for place in places if self._owner(place) == node)

    def _owner(self, place: int) -> str:
        return self._owners[bisect_right(self._borders, place)]

    def __repr__(self) -> str:
        return f"Placement({list(self.nodes)!r}, ring_version={self.ring_version:#010x})"


def _require_names(nodes: tuple[str, ...]) -> None:
    if not nodes:
        raise ConfigError("no cache nodes are named", hint='set cache.nodes, as in ["127.0.0.1:11211"]')
    for node in nodes:
        if not node or not node.isprintable() or " " in node:
            raise ConfigError(f"cache node {node!r} is not a name", hint="expected host:port without blanks")
    doubles = sorted({node for node in nodes if nodes.count(node) > 1})
    if doubles:
        raise ConfigError(f"cache nodes named twice: {', '.join(doubles)}", hint="name each node once")


def _points(node: str) -> list[int]:
    points: list[int] = []
    for block in range(_POINTS_PER_NODE // _POINTS_PER_DIGEST):
        digest = blake2b(_ALGORITHM + b"\0%d\0" % block + node.encode("utf-8")).digest()
        points += (int.from_bytes(digest[at : at + 4], "big") for at in range(0, 64, 4))
    return points


def find_rings(placements: Iterable[Placement], item: bytes, node: str) -> tuple[int, ...]:
    """The rings that place the item on the node."""
    return tuple(each.ring_version for each in placements if each.node_for(item) == node)
