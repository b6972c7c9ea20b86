"""Fill from the log: replace entries of one node by the rows that the log holds, instead of deleting them.

The image of a row after event e is the row at every position that has e and no later event of this row; the end of
the batch is such a position. So the rule of ``freshness.algorithm.rule`` decides over it as over a value that a
reader has loaded, and the steps have a reader's order: the item, then the stripe and the record, then CAS on that
item. The event is appended to the stripe before all of that. An entry that has the event already stays. In any doubt,
and if the CAS fails, the key is invalidated as any other. A key without an item gets none: nobody asked for it.

Run by the invalidator and by the simulator, for objects with ``fill_from_log``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from zlib import crc32

from freshness.algorithm.envelope import (
    CHUNK_BYTES_MAX,
    STUB,
    Filled,
    NodeRecord,
    Stamp,
    Stripe,
    encode_chunk,
    find_record,
    is_within,
    record_key,
    stripe_keys,
    stripe_number,
    stripe_numbers,
)
from freshness.algorithm.invalidate import Target, invalidate
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.request import STORED, Append, Cas, Flow, Get, Item, Procedure, Reply, Request, Stored
from freshness.algorithm.rule import ReadOutcome, find_fill_refusal
from freshness.algorithm.witness import Attempt, Witness, tell_fill
from freshness.errors import FormatError
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.value import value

ROWS_AT_ONCE_MAX: Final = 256
"""Entries that are read in one flow: each can be large."""


@value
class LoggedRow:
    """A row as the log holds it. ``lookup``: its key, in the one lineage of the log, on any node. ``payload``: the
    encoded value that a reader would store; None for "no such row"."""

    lookup: Lookup
    payload: bytes | None


def refill(
    node: str,
    rows: Mapping[bytes, LoggedRow],
    positions: Mapping[bytes, Position],
    target: Target,
    token: EventToken,
    ring: int,
    witness: Witness | None,
) -> Procedure[Sequence[int]]:
    """Bring the entries of these items to the position of ``token``, or remove them, as `invalidate` does.

    ``positions``: events of each item, all of them in ``token``, which is the end of the batch. Returns and
    raises as `invalidate`.
    """
    items = list(rows)
    names = stripe_keys(target.namespace, target.lineage, target.stripes)
    numbers = sorted(stripe_numbers(items, target.stripes))
    chunk = encode_chunk(target.life, token.position.subtract(target.floor))
    if len(chunk) > CHUNK_BYTES_MAX:
        return (yield from invalidate(node, items, target, token.position))
    # One connection carries them out in this order. The record is the last: its life is still that of the target.
    requests: list[Request] = [Append(names[number], chunk) for number in numbers]
    requests += [Get(item) for item in items]
    requests += [Get(names[number]) for number in numbers]
    requests.append(Get(record_key(target.namespace, target.lineage), is_bound=True))
    replies = yield Flow(node, tuple(requests))
    appended = {number for number, reply in zip(numbers, replies, strict=False) if reply == STORED}
    held, guards = replies[len(numbers) : -len(numbers) - 1], replies[-len(numbers) - 1 : -1]
    record = find_record(replies[-1], node)
    known: set[bytes] = set()
    allowing = {
        number
        for number, guard in zip(numbers, guards, strict=True)
        if isinstance(guard, Item) and is_within(guard.value, target.life, token.position, known)
    }
    removed: list[bytes] = []
    fills: list[tuple[LoggedRow, Cas]] = []
    for item, reply in zip(items, held, strict=True):
        number = stripe_number(item, target.stripes)
        entry = _find_entry(reply)
        if number not in appended:
            removed.append(item)
        elif isinstance(reply, Item) and not _has(entry, record, positions[item]):
            row = rows[item]
            # Any stripe that the position contains decides alike; one that it does not counts as none.
            stripe = Stripe(target.life, target.floor) if number in allowing else None
            if _may_replace(row, reply, entry) and _may_fill(row, record, stripe, token, ring):
                fills.append((row, _replace(row, reply, target.life, token)))
            else:
                removed.append(item)
    if fills:
        removed += yield from _fill(node, fills, record, token, witness)
    if removed:
        yield from invalidate(node, removed, target, token.position)
    return sorted(appended)


def _fill(
    node: str,
    fills: Sequence[tuple[LoggedRow, Cas]],
    record: NodeRecord | None,
    token: EventToken,
    witness: Witness | None,
) -> Procedure[list[bytes]]:
    """Store the rows. Returns the items in whose place another one is by now."""
    sent_us = witness.now_us() if witness is not None else 0
    replies = yield Flow(node, tuple(cas for _, cas in fills))
    failed: list[bytes] = []
    for (row, cas), reply in zip(fills, replies, strict=True):
        if not isinstance(reply, Stored):
            failed.append(cas.key)
        elif witness is not None:
            records, tokens = {token.lineage: record}, {token.lineage: token}
            attempt = Attempt(row.payload, cas, reply, sent_us)
            tell_fill(witness, replace(row.lookup, node=node), ReadOutcome.FILLED, records, tokens, attempt)
    return failed


def _has(entry: Filled | None, record: NodeRecord | None, events: Position) -> bool:
    """Whether it is an entry of this life and history that has the events."""
    return (
        entry is not None
        and record is not None
        and any(
            (stamp.lineage, stamp.life, stamp.epoch) == (record.lineage, record.life, record.epoch)
            and stamp.position.contains(events)
            for stamp in entry.stamps
        )
    )


def _may_replace(row: LoggedRow, item: Item, entry: Filled | None) -> bool:
    """Whether it is a stub, or an entry of the very key."""
    return item.value == STUB if entry is None else entry.identity == row.lookup.identity


def _may_fill(row: LoggedRow, record: NodeRecord | None, stripe: Stripe | None, token: EventToken, ring: int) -> bool:
    of = token.lineage
    return find_fill_refusal(row.lookup.policy, ring, {of: record}, {of: stripe}, {of: token}) is None


def _replace(row: LoggedRow, item: Item, life: bytes, token: EventToken) -> Cas:
    lookup = row.lookup
    stamp = Stamp(token.lineage, life, token.epoch, token.position, token.position)
    data = Filled((stamp,), lookup.identity, row.payload).encode()
    ttl = lookup.policy.spread_ttl(crc32(lookup.item) / 2**32)
    return Cas(lookup.item, data, item.version, ttl)


def _find_entry(reply: Reply) -> Filled | None:
    if not isinstance(reply, Item):
        return None
    try:
        return Filled.decode(reply.value)
    except FormatError:
        return None
