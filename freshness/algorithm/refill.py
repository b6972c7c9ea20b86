"""Fill from the log: replace entries of one node by the rows that the log holds, instead of deleting them.

The image of a row after event e is the row at every position that has e and no later event of this row; the end of
the batch is such a position. So the rule of ``freshness.algorithm.rule`` decides over it as over a value that a
reader has loaded, and the steps have a reader's order: the item, then the stripe and the record, then CAS on that
item. The event is appended to the stripe before all of that. An entry that has the event already stays. In any doubt,
and where the CAS fails, the key is invalidated as any other. A key without an item gets none: nobody asked for it.

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
    find_stripe,
    record_key,
    stripe_keys,
    stripe_number,
    stripe_numbers,
)
from freshness.algorithm.invalidate import Target, invalidate
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import (
    MISSING,
    STORED,
    Append,
    Cas,
    Flow,
    Get,
    Item,
    Procedure,
    Reply,
    Request,
    Stored,
)
from freshness.algorithm.rule import ReadOutcome, find_fill_refusal
from freshness.algorithm.witness import Witness, tell_fill
from freshness.errors import FormatError
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.value import value

ROWS_AT_ONCE_MAX: Final = 256
"""Entries that are read in one flow: each can be large."""

TTL_SHARE: Final = 0.1
"""By up to so much the TTLs of entries differ, as those of readers' fills do (F47)."""


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

    ``positions``: for each item its events, all of them in ``token``, which is the end of the batch. Returns and
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
    appended, held = replies[: len(numbers)], replies[len(numbers) : len(numbers) + len(items)]
    guards = dict(zip(numbers, replies[len(numbers) + len(items) : -1], strict=True))
    record = find_record(replies[-1], node)
    removed: list[bytes] = []
    fills: list[tuple[LoggedRow, Cas]] = []
    for item, reply in zip(items, held, strict=True):
        number = stripe_number(item, target.stripes)
        if appended[numbers.index(number)] != STORED:
            removed.append(item)
        elif reply is not MISSING and not _has(reply, record, positions[item]):
            cas = _find_fill(rows[item], reply, guards[number], record, target.life, token, ring)
            if cas is None:
                removed.append(item)
            else:
                fills.append((rows[item], cas))
    if fills:
        sent_us = witness.now_us() if witness is not None else 0
        replies = yield Flow(node, tuple(cas for _, cas in fills))
        for (row, cas), reply in zip(fills, replies, strict=True):
            if not isinstance(reply, Stored):
                removed.append(cas.key)
            elif witness is not None:
                loaded = Loaded(row.payload, {token.lineage: token})
                records = {token.lineage: record}
                lookup = replace(row.lookup, node=node)
                tell_fill(witness, lookup, ReadOutcome.FILLED, records, loaded, cas, reply, sent_us)
    if removed:
        yield from invalidate(node, removed, target, token.position)
    return [number for number, reply in zip(numbers, appended, strict=True) if reply == STORED]


def _has(reply: Reply, record: NodeRecord | None, events: Position) -> bool:
    """Whether the item is an entry of this life and history that has the events."""
    entry = _find_entry(reply)
    return (
        entry is not None
        and record is not None
        and any(
            (stamp.lineage, stamp.life, stamp.epoch) == (record.lineage, record.life, record.epoch)
            and stamp.position.contains(events)
            for stamp in entry.stamps
        )
    )


def _find_fill(
    row: LoggedRow,
    reply: Reply,
    guard: Reply,
    record: NodeRecord | None,
    life: bytes,
    token: EventToken,
    ring: int,
) -> Cas | None:
    """The request that puts the row in the place of the item; None where it must not stand there."""
    if not isinstance(reply, Item) or record is None:
        return None
    lookup = row.lookup
    if reply.value != STUB:
        entry = _find_entry(reply)
        if entry is None or entry.identity != lookup.identity:
            return None
    # A record of another life refuses the stripe of this one.
    stripe: Stripe | None = find_stripe(guard.value, life) if isinstance(guard, Item) else None
    lineage = token.lineage
    if (
        find_fill_refusal(lookup.policy, ring, {lineage: record}, {lineage: stripe}, {lineage: token})
        is not None
    ):
        return None
    stamp = Stamp(lineage, life, token.epoch, token.position)
    data = Filled((stamp,), lookup.identity, row.payload).encode()
    share = crc32(lookup.item) / 2**32
    return Cas(
        lookup.item,
        data,
        reply.version,
        max(1, int(lookup.policy.value_ttl_seconds * (1 - TTL_SHARE * share))),
    )


def _find_entry(reply: Reply) -> Filled | None:
    if not isinstance(reply, Item):
        return None
    try:
        return Filled.decode(reply.value)
    except FormatError:
        return None
