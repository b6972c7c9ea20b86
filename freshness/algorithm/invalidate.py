"""Invalidate keys of one node, each by its event: the write half (docs/algorithm.md#invalidating).

First the tombstone is stored, which keeps every reader that lacks the event from filling; then the entry is deleted.
In the other order a lagging reader could put the old value back before the tombstone is there. A tombstone only
grows, by CAS, since another invalidator may know newer events (F48, F56).

Many keys share one write and one read in each round, and each key is treated as if it were alone. Run by the
invalidator, by invalidation by hand and by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from freshness.algorithm.envelope import Tombstone, encode_single_tombstone
from freshness.algorithm.request import (
    CONFLICT,
    MISSING,
    STORED,
    Flow,
    Get,
    Marks,
    Merges,
    Procedure,
    Stored,
    Version,
)
from freshness.errors import FormatError, InvalidationFailed
from freshness.keys.cachekey import TOMBSTONE_SUFFIX
from freshness.position import Position
from freshness.value import value

CAS_ATTEMPTS_MAX: Final = 16
"""Lost races for one tombstone before the batch fails loudly (I6)."""

TOMBSTONE_INTERVALS_MAX: Final = 8
"""Above this many GTID intervals a tombstone's gaps are filled with what was streamed, to keep it short."""


@value
class Event:
    """One committed transaction, as it concerns a key. ``streamed``: everything streamed so far, for `compact`.

    ``tombstone``: the tombstone of this event alone, encoded once for all its keys.
    """

    lineage: str
    epoch: int
    position: Position
    streamed: Position
    tombstone: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        alone = encode_single_tombstone(self.lineage, self.epoch, self.position)
        object.__setattr__(self, "tombstone", alone)


def invalidate(
    node: str, events: Mapping[bytes, Event], tombstone_ttl_seconds: int, *, expects_tombstones: bool = False
) -> Procedure[int]:
    """Store the tombstones of these keys of one node, then delete the entries.

    Returns how many had a tombstone already, when the node has acknowledged all. ``expects_tombstones``: most keys
    have one; that saves a round trip where it is true, and costs one where it is not. Raises `NodeUnavailable` when
    the node did not answer, and `InvalidationFailed` when the race for a tombstone was lost `CAS_ATTEMPTS_MAX` times;
    then nothing counts as acknowledged, and the caller sends the events again.
    """
    left: Mapping[bytes, Event] = events
    found = 0
    if expects_tombstones:
        left = yield from _accumulate(node, events, tombstone_ttl_seconds)
        found = len(events) - len(left)
        if not left:
            return found
    for _ in range(CAS_ATTEMPTS_MAX):
        # Each delete travels behind its add: on one connection it is executed after it. Where the tombstone
        # exists already it comes too early, does no harm, and is sent again below.
        keys = list(left)
        tombstones = [event.tombstone for event in left.values()]
        replies = yield Flow(node, Marks(keys, tombstones, TOMBSTONE_SUFFIX, tombstone_ttl_seconds))
        added = replies[::2]
        if added.count(STORED) == len(keys):
            return found
        present = [key for key, reply in zip(keys, added, strict=True) if not isinstance(reply, Stored)]
        if not present:
            return found
        left = yield from _accumulate(node, {key: left[key] for key in present}, tombstone_ttl_seconds)
        found += len(present) - len(left)
        if not left:
            return found
    raise InvalidationFailed(
        f"lost the race for the tombstone of {next(iter(left))!r} on {node} {CAS_ATTEMPTS_MAX} times",
        hint="many invalidators write the same key; the batch is sent again",
    )


def _accumulate(node: str, events: Mapping[bytes, Event], ttl_seconds: int) -> Procedure[dict[bytes, Event]]:
    """Add each event to the tombstone that is there. Returns the events whose tombstone changed or vanished
    meanwhile."""
    held = yield Flow(node, tuple([Get(key + TOMBSTONE_SUFFIX) for key in events]))
    again: dict[bytes, Event] = {}
    keys: list[bytes] = []
    merged: list[tuple[bytes, Version, int]] = []
    known: dict[tuple[bytes, bytes], bytes] = {}
    for (key, event), item in zip(events.items(), held, strict=True):
        if item is MISSING:
            again[key] = event  # expired or evicted in between: add again
            continue
        both = item.value, event.tombstone
        data = known.get(both)
        if data is None:
            data = known[both] = _merge(item.value, event)
        # Never shorter than it was: another invalidator, with a larger D, counts on it. A node keeps items for a
        # second more than asked (F50): without the 1 the tombstone of a busy key would live longer with every write.
        keys.append(key)
        merged.append((data, item.version, max(ttl_seconds, item.ttl_seconds - 1)))
    if not keys:
        return again
    replies = yield Flow(node, Merges(keys, merged, TOMBSTONE_SUFFIX))
    for key, stored in zip(keys, replies[::2], strict=True):
        if stored is CONFLICT or stored is MISSING:
            again[key] = events[key]
        elif not isinstance(stored, Stored):
            raise InvalidationFailed(
                f"{node} refused the tombstone of {key!r}: {stored}",
                hint="the node has no memory for tombstones",
            )
    return again


def _merge(held: bytes, event: Event) -> bytes:
    """The tombstone with the event in it."""
    try:
        tombstone = Tombstone.decode(held)
    except FormatError:
        # Foreign bytes: readers refuse to fill while they stand (doubt never fills), so keeping them for the full
        # TTL protects at least as well as a tombstone with the event in it.
        return held
    # A duplicate is stored again as it is: it must not inherit the age of the first (F64). And the entry is
    # removed again: the invalidator that stored the tombstone may have died before it removed the entry.
    return compact(tombstone.union(event.lineage, event.epoch, event.position), event).encode()


def compact(tombstone: Tombstone, event: Event) -> Tombstone:
    """Keep a tombstone short: fill the gaps between its GTIDs with numbers that the stream has delivered.

    Other numbers may never be executed anywhere (Group Replication hands out blocks of numbers), and then no replica
    could contain the tombstone.
    """
    held = tombstone.positions[event.lineage, event.epoch]
    if held.interval_count <= TOMBSTONE_INTERVALS_MAX:
        return tombstone
    return tombstone.union(event.lineage, event.epoch, held.fill_gaps(event.streamed))
