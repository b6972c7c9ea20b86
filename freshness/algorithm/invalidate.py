"""Invalidate keys of one node: the write half (docs/algorithm.md#invalidating).

First the event is appended to the stripe of each key, which keeps every reader that lacks the event from filling;
then the entry is deleted. In the other order a lagging reader could put the old value back before the stripe has the
event. A stripe that is absent needs nothing: no fill is allowed without it. An append needs no version and loses no
race, and an append or a delete that comes twice or late does no harm.

Many keys share one flow, and each key is treated as if it were alone. Run by the invalidator, by the Spark sink, by
invalidation by hand and by the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final
from zlib import crc32

from freshness.algorithm.envelope import (
    CHUNK_BYTES_MAX,
    NodeRecord,
    Stripe,
    encode_chunk,
    encode_wanted,
    find_stripe,
    is_within,
    stripe_keys,
    stripe_number,
    stripe_numbers,
    wanted_key,
)
from freshness.algorithm.request import STORED, Append, Cas, Delete, Flow, Get, Item, Procedure, Request, Strikes
from freshness.position import Position
from freshness.value import value

SHORTEN_SHARE: Final = 16
"""Average number of appends after which a stripe is shortened to one chunk."""

WANTED_MAX: Final = 1024
"""Maximum of missing stripes that are noted at once; the restorer finds the others."""


@value
class Target:
    """The stripes of one lineage on one node, in the life that its record names. ``floor``: see `NodeRecord`."""

    namespace: str
    lineage: str
    life: bytes
    stripes: int
    floor: Position

    @classmethod
    def of(cls, namespace: str, record: NodeRecord) -> Target:
        return cls(namespace, record.lineage, record.life, record.stripes, record.floor)


def invalidate(node: str, keys: Collection[bytes], target: Target, streamed: Position) -> Procedure[Sequence[int]]:
    """Add ``streamed`` to the stripes of these keys of one node, then delete the entries.

    ``streamed`` has the events of all the keys. Returns the stripes that it was appended to, when the node has
    acknowledged all: each of the other keys' stripes was absent at one moment, and the key was deleted after that.
    Raises `NodeUnavailable` when the node did not answer; then nothing counts as acknowledged, and the caller sends
    the keys again.
    """
    count = target.stripes
    numbers = stripe_numbers(keys, count)
    names = stripe_keys(target.namespace, target.lineage, count)
    chunk = encode_chunk(target.life, streamed.subtract(target.floor))
    if len(chunk) > CHUNK_BYTES_MAX:
        absent = numbers
    else:
        # Each delete travels behind the appends: on one connection it is executed after them.
        replies = yield Flow(node, Strikes([names[number] for number in numbers], chunk, list(keys)))
        appended = replies[: len(numbers)]
        if appended.count(STORED) == len(numbers):
            return list(numbers)
        absent = {number for number, reply in zip(numbers, appended, strict=True) if reply != STORED}
    # Absent, or refused for memory: after this certainly absent. And the keys after that.
    requests: list[Request] = [Delete(names[number]) for number in absent]
    requests += [Delete(key) for key in keys if stripe_number(key, count) in absent]
    requests.append(Append(wanted_key(target.namespace, target.lineage), encode_wanted(islice(absent, WANTED_MAX))))
    yield Flow(node, tuple(requests))
    return [number for number in numbers if number not in absent]


def shorten(node: str, numbers: Sequence[int], target: Target, streamed: Position) -> Procedure[None]:
    """Write some of these stripes again, as one chunk each, so that none of them grows without bound.

    The batch decides which, so that nobody needs to count. A stripe that changes in between is left to the next time.
    """
    turn = crc32(streamed.encode()) % SHORTEN_SHARE
    names = stripe_keys(target.namespace, target.lineage, target.stripes)
    keys = [names[number] for number in numbers if number % SHORTEN_SHARE == turn]
    if not keys:
        return
    held = yield Flow(node, tuple([Get(key) for key in keys]))
    position = streamed.subtract(target.floor)
    alone = Stripe(target.life, position).encode()
    known: set[bytes] = set()
    requests: list[Request] = []
    for key, item in zip(keys, held, strict=True):
        if not isinstance(item, Item):
            continue
        is_plain = is_within(item.value, target.life, position, known)
        data = alone if is_plain else _shortened(item.value, target.life)
        if len(data) < len(item.value):
            is_long = len(data) > CHUNK_BYTES_MAX
            requests.append(Delete(key) if is_long else Cas(key, data, item.version, 0))
    if requests:
        yield Flow(node, tuple(requests))


def _shortened(data: bytes, life: bytes) -> bytes:
    """The same position in one chunk; other bytes than a stripe of this life stay as they are."""
    stripe = find_stripe(data, life)
    return data if stripe is None else stripe.encode()
