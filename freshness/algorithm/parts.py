"""Values that are too large for one item: parts in items of their own, on the node of the entry that names them.

The entry has its stamps as any other, and is stored by the same CAS and the same rule. In place of the value it has a
manifest: the value's size and digest. The digest names the parts, too, and a value is served only if they give that
very digest: so parts need no version, no stamp and no invalidation. A part that is missing, damaged or of another
value makes the entry no hit. Parts are written before the entry, so that an entry without parts has lost them. Parts
without an entry are garbage, and expire.

Used by ``freshness.algorithm.read``, and by those who look at entries: ``invalidator inspect``,
``freshness.comparison``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from freshness.algorithm.envelope import PART_HEAD, Filled
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Cas, Finds, Flow, Flows, Get, Item, Procedure, Refused, Stored
from freshness.algorithm.rule import ReadOutcome
from freshness.config.cache import PARTS_MAX, VALUE_BYTES_MAX
from freshness.errors import FormatError, FreshnessError
from freshness.value import value

DIGEST_BYTES: Final = 32

_LAYOUT: Final = struct.Struct(f">II{DIGEST_BYTES}s")


@value
class Manifest:
    """The parts of a value. ``size``, ``part_bytes``: bytes of the value and of each part but the last."""

    size: int
    part_bytes: int
    digest: bytes

    @classmethod
    def of(cls, payload: bytes, part_bytes: int) -> Manifest | None:
        """None for a value that would have too many parts, or be too large for any reader."""
        manifest = cls(len(payload), part_bytes, _digest(payload, part_bytes))
        return manifest if manifest.is_bounded else None

    def encode(self) -> bytes:
        return _LAYOUT.pack(self.size, self.part_bytes, self.digest)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises `FormatError` also for one that no writer makes: readers ask for no more than `PARTS_MAX`."""
        if len(data) == _LAYOUT.size:
            manifest = cls(*_LAYOUT.unpack(data))
            if manifest.is_bounded:
                return manifest
        raise FormatError(f"the manifest of a value does not add up: {data[:60].hex()}")

    @property
    def is_bounded(self) -> bool:
        return 0 < self.part_bytes < self.size <= min(VALUE_BYTES_MAX, PARTS_MAX * self.part_bytes)

    @property
    def count(self) -> int:
        return -(-self.size // self.part_bytes)

    def keys(self, namespace: str) -> list[bytes]:
        """The keys of the parts, in order. Two values, or two ways to split one, share none."""
        name = f"{namespace}:!!{self.digest.hex()}!".encode()
        return [b"%b%x" % (name, number) for number in range(self.count)]

    def split(self, payload: bytes) -> Iterator[bytes]:
        """The parts as items."""
        for start in range(0, self.size, self.part_bytes):
            yield PART_HEAD + payload[start : start + self.part_bytes]

    def join(self, items: Sequence[bytes | None]) -> bytes | None:
        """The value; None if a part is missing, or these are not the parts of the very same value."""
        if any(item is None or not item.startswith(PART_HEAD) for item in items):
            return None
        payload = b"".join([memoryview(item)[len(PART_HEAD) :] for item in items if item is not None])
        is_whole = len(payload) == self.size and _digest(payload, self.part_bytes) == self.digest
        return payload if is_whole else None


def _digest(payload: bytes, part_bytes: int) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES, salt=part_bytes.to_bytes(16, "big")).digest()


def fetch_parts(
    namespace: str, wanted: Sequence[tuple[str, bytes]]
) -> Procedure[list[bytes | FreshnessError | None]]:
    """The values of these manifests, each given as its node and its bytes, with one flow to each node.

    For each None if it is not whole, or the error of a node that did not answer.
    """
    manifests: list[Manifest | None] = []
    keys: dict[str, list[bytes]] = {}
    for node, data in wanted:
        try:
            manifest = Manifest.decode(data)
        except FormatError:
            manifests.append(None)
        else:
            manifests.append(manifest)
            keys.setdefault(node, []).extend(manifest.keys(namespace))
    answers: Sequence[Any] = ()
    if keys:
        answers = yield Flows(tuple(Flow(node, Finds(of_node)) for node, of_node in keys.items()))
    found: dict[str, Any] = {
        node: replies if isinstance(replies, FreshnessError) else iter(replies)
        for node, replies in zip(keys, answers, strict=True)
    }
    values: list[bytes | FreshnessError | None] = []
    for (node, _), known in zip(wanted, manifests, strict=True):
        replies = found.get(node) if known is not None else None
        if known is None or replies is None or isinstance(replies, FreshnessError):
            values.append(replies)
        else:
            items = [find_data(next(replies, None)) for _ in range(known.count)]
            values.append(known.join(items))
    return values


def store_parts(
    namespace: str, node: str, manifest: Manifest, payload: bytes, ttl_seconds: int, stub_ttl_seconds: int
) -> Procedure[ReadOutcome | None]:
    """Write the parts of a value. Returns why some are missing, None if all are there.

    Parts that are there already are written again, so that they live as long as the entry.
    """
    keys = manifest.keys(namespace)
    (stubs,) = yield Flows((Flow(node, tuple(Get(key, stub_ttl_seconds) for key in keys)),))
    if isinstance(stubs, FreshnessError):
        return ReadOutcome.NODE_DOWN
    writes = tuple(
        Cas(key, part, stub.version if isinstance(stub, Item) else 0, ttl_seconds)
        for key, part, stub in zip(keys, manifest.split(payload), stubs, strict=True)
    )
    (replies,) = yield Flows((Flow(node, writes),))
    if isinstance(replies, FreshnessError):
        return ReadOutcome.NODE_DOWN
    if all(isinstance(reply, Stored) for reply in replies):
        return None
    is_refused = any(isinstance(reply, Refused) for reply in replies)
    return ReadOutcome.TOO_LARGE if is_refused else ReadOutcome.LOST_RACE


def read_value(node: CacheNode, namespace: str, entry: Filled) -> bytes | None:
    """The value of an entry of this node, joined from its parts if it has any; None for "no such row".

    Raises `FormatError` if a part is missing, and as the node does.
    """
    if not entry.is_parted or entry.value is None:
        return entry.value
    manifest = Manifest.decode(entry.value)
    replies = node.perform(Finds(manifest.keys(namespace)))
    payload = manifest.join([find_data(reply) for reply in replies])
    if payload is None:
        raise FormatError(
            f"parts of a value of {manifest.size} bytes are missing",
            hint="they were evicted or replaced; the next reader fills the entry again",
        )
    return payload


def find_data(reply: Any) -> bytes | None:
    """The bytes in a reply to `Finds`, which is an item, or its bytes themselves."""
    held = reply.value if isinstance(reply, Item) else reply
    return held if isinstance(held, bytes) else None
