"""Apply batches of the stream to a node, and publish what it has acknowledged (I2, I4).

The order is fixed (docs/algorithm.md#applying-a-batch): table floors, then stripes and deletes, and only then
progress. Progress and lease are one CAS on the record. Stripes that are missing are put back beside that
(``freshness.algorithm.restore``).

Run by the invalidator, the Spark sink and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from freshness.algorithm.envelope import NodeRecord
from freshness.algorithm.invalidate import Target, invalidate, shorten
from freshness.algorithm.membership import CAS_ATTEMPTS_MAX, HeartbeatSeen, Membership, cover
from freshness.algorithm.refill import ROWS_AT_ONCE_MAX, LoggedRow, refill
from freshness.algorithm.request import Procedure, Wait
from freshness.algorithm.witness import tell_invalidations, tell_publication
from freshness.errors import FreshnessError, MembershipLost
from freshness.position import Position
from freshness.position.token import EventToken

KEYS_AT_ONCE_MAX: Final = 8000
"""Keys of a batch between two looks at the lease, which must not lapse under a batch of any size."""

LEFT_SHARE: Final = 1 / 4
"""A record that another invalidator keeps is written by this one when so much of the lease is left."""

RESUME_SECONDS: Final = 1.0
"""How often the resume copy is written. It may be old: the events that it lacks are sent again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive transactions of the stream, as they concern one node.

    ``keys``: events that change each item key. ``raised``: tables whose rows changed in a way that
    gives no keys. ``before`` and ``streamed``: everything streamed before and after the batch. ``rows``: the row at
    ``streamed`` for some of the keys, which may take the place of their entries.
    """

    keys: Mapping[bytes, Position]
    raised: Mapping[str, Position]
    before: Position
    streamed: Position
    heartbeat: HeartbeatSeen | None = None
    rows: Mapping[bytes, LoggedRow] = field(default_factory=dict)


def apply_batch(member: Membership, batch: Batch) -> Procedure[None]:
    """Send a batch to this node and acknowledge it, one that raises tables later (`Membership.hold_progress`).

    Any error ends the membership, and the batch is not acknowledged.
    """
    assert member.applied.contains(batch.before), "a batch that leaves a gap: progress would name what was not sent"
    try:
        batch = _without_applied(member, batch)
        member.streamed, member.streamed_epoch = batch.streamed, member.joined_record().epoch
        stripes = yield from _send(member, batch)
        yield from publish(member, batch)
        yield from shorten(member.node, stripes, _target_of(member), batch.streamed)
    except FreshnessError:
        member.leave()
        raise


def acknowledge(member: Membership, batch: Batch) -> Procedure[None]:
    """Publish a batch that another process has sent to this node: the node has acknowledged all appends and deletes.

    ``keys`` of the batch is ignored. Any error ends the membership.
    """
    assert member.applied.contains(batch.before), "a batch that leaves a gap"
    try:
        batch = _without_applied(member, batch)
        member.streamed, member.streamed_epoch = batch.streamed, member.joined_record().epoch
        if batch.raised:
            yield from _raise_floors(member, batch)
        yield from publish(member, batch)
    except FreshnessError:
        member.leave()
        raise


def renew(member: Membership) -> Procedure[None]:
    """Keep the record alive while nothing happens. Any error ends the membership."""
    try:
        yield from _renew_if_due(member)
    except FreshnessError:
        member.leave()
        raise


def _renew_if_due(member: Membership) -> Procedure[None]:
    """Write the record after a third of the lease, or before it ends, since it may not have been extended (ADR
    0007), or when progress is held no more."""
    now = member.clock()
    is_old = now - member.published_at >= member.policy.lease_seconds / 3 or now >= member.lease_until - 1
    if is_old or (member.held and member.held[0][0] <= now):
        yield from publish(member, None)


def _without_applied(member: Membership, batch: Batch) -> Batch:
    """The batch without the events that the node has acknowledged in this life, to this invalidator or another."""
    if batch.before.contains(member.applied):
        return batch
    # The stream was opened earlier, for another node's sake, or another invalidator is ahead.
    keys = {key: position for key, position in batch.keys.items() if not member.applied.contains(position)}
    raised = {table: at for table, at in batch.raised.items() if not member.applied.contains(at)}
    return replace(batch, keys=keys, raised=raised)


def _send(member: Membership, batch: Batch) -> Procedure[Sequence[int]]:
    """Send table floors, stripes and deletes. Returns the stripes when the node has acknowledged them all."""
    if batch.raised:
        yield from _raise_floors(member, batch)
    stripes: list[int] = []
    if batch.keys:
        sent_us = member.witness.now_us() if member.witness is not None else 0
        keys = iter([key for key in batch.keys if key not in batch.rows] if batch.rows else batch.keys)
        while at_once := list(islice(keys, KEYS_AT_ONCE_MAX)):
            if stripes:
                yield from _renew_if_due(member)
            stripes += yield from invalidate(member.node, at_once, _target_of(member), batch.streamed)
        logged = iter([key for key in batch.keys if key in batch.rows] if batch.rows else ())
        while at_once := list(islice(logged, ROWS_AT_ONCE_MAX)):
            yield from _renew_if_due(member)
            rows = {key: batch.rows[key] for key in at_once}
            stripes += yield from _refill(member, batch, rows)
        if member.witness is not None:
            tell_invalidations(member.witness, member.node, member.joined_record(), batch.keys, sent_us)
    return stripes


def _refill(member: Membership, batch: Batch, rows: Mapping[bytes, LoggedRow]) -> Procedure[Sequence[int]]:
    policy, epoch = member.policy, member.streamed_epoch
    token = EventToken(policy.lineage, policy.lineage, epoch, 0, batch.streamed)
    target = _target_of(member)
    return (yield from refill(member.node, rows, batch.keys, target, token, policy.ring, member.witness))


def _target_of(member: Membership) -> Target:
    return Target.of(member.policy.namespace, member.joined_record())


def _wait_for_readers(member: Membership) -> Procedure[None]:
    """Wait until no reader trusts a copy of the record that names a ring or an object which has left
    (``node_refresh_seconds``), and keep the lease.

    Another one may leave during this, by a renewal that covers the record or by another invalidator.
    """
    record = None
    while record is None or not _serves_the_same(record, member.joined_record()):
        record, until = member.joined_record(), member.clock() + member.policy.node_refresh_seconds
        while (left := until - member.clock()) > 0.001:
            yield Wait(min(left, member.policy.lease_seconds / 3))
            yield from _renew_if_due(member)


def _serves_the_same(record: NodeRecord, other: NodeRecord) -> bool:
    return (record.rings, record.objects) == (other.rings, other.objects)


def _raise_floors(member: Membership, batch: Batch) -> Procedure[None]:
    """Raise the table floors to the events' own positions (F68)."""

    def change(record: NodeRecord) -> NodeRecord:
        floors = dict(record.table_floors)
        for table, position in batch.raised.items():
            held = floors.get(table)
            floors[table] = position if held is None else held.union(position).fill_gaps(batch.streamed)
        return replace(record, table_floors=floors)

    yield from member.store(change)
    member.hold_progress()


def publish(member: Membership, sent: Batch | None) -> Procedure[None]:
    """Store progress and lease by one CAS. ``sent``: a batch whose appends and deletes the node has acknowledged."""
    if sent is not None:
        member.heartbeat = sent.heartbeat or member.heartbeat
    has_looked = False
    for _ in range(CAS_ATTEMPTS_MAX):
        if sent is not None and member.joined_record().is_settling:
            yield from _wait_for_readers(member)
        now = member.clock()
        record, applied, is_caught_up = _next_record(member, sent)
        if _may_wait(member, sent, now):
            if now < member.lease_until - member.policy.lease_seconds * LEFT_SHARE:
                member.applied = applied
                return
            if not has_looked:
                has_looked = True
                yield from member.reread()
                continue
        if not member.is_covered:
            yield from cover(member)
            continue
        target, member.target = member.target, None if is_caught_up else member.target
        sent_us = member.witness.now_us() if member.witness is not None else 0
        if (yield from member.try_store(record)):
            member.applied, member.published_at = applied, now
            if member.witness is not None:
                tell_publication(member.witness, member.node, member.joined_record(), sent_us)
            if now - member.resume_written_at >= RESUME_SECONDS:
                yield from member.write_resume()
            return
        member.target = target
        yield from member.reread()
    raise MembershipLost(
        f"{member.node}: lost the race for the node record {CAS_ATTEMPTS_MAX} times",
        hint="several invalidators publish at once; the batch is sent again",
    )


def _may_wait(member: Membership, sent: Batch | None, now: float) -> bool:
    """Whether an open record is left as it is while its lease lasts.

    Either another invalidator has published all of the batch, and more. Or this one may not vouch for the node: it
    could only close what another one keeps open (ADR 0007), as a write that kept a lease could arrive late (F104).
    """
    record = member.joined_record()
    if not member.policy.is_serving or member.target is not None or not record.is_open:
        return False
    if not member.may_vouch(now, record.primary):
        return True
    return (
        sent is not None and not sent.streamed.contains(record.progress) and record.progress.contains(sent.streamed)
    )


def _next_record(member: Membership, sent: Batch | None) -> tuple[NodeRecord, Position, bool]:
    """(record to publish, ``applied`` after it, whether the node has caught up and may open)."""
    record = member.joined_record()
    applied = member.applied if sent is None else member.applied.union(sent.streamed)
    acknowledged = member.find_acknowledged(applied)
    is_caught_up = member.target is None or acknowledged.contains(member.target)
    if record.is_settling and sent is None:
        return record, applied, is_caught_up
    progress = record.progress.union(acknowledged)
    return replace(record, progress=progress, is_settling=False), applied, is_caught_up
