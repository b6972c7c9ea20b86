"""Apply batches of the stream to a node, and publish what it has acknowledged (I2, I4).

The order is fixed (docs/algorithm.md#applying-a-batch): floors that must stand before the tombstones, then tombstones
and deletes, and only then progress. Progress, floor and lease are one CAS on the record. The floor trails by W:
tombstones, which live D, protect the events of the last W seconds, and the floor protects all older ones (F64).

Run by the invalidator, the Spark sink and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from freshness.algorithm.envelope import NodeRecord
from freshness.algorithm.invalidate import Event, invalidate
from freshness.algorithm.membership import CAS_ATTEMPTS_MAX, HeartbeatSeen, Membership
from freshness.algorithm.request import Flow, InspectStorage, Procedure, Wait
from freshness.algorithm.witness import tell_invalidations, tell_publication
from freshness.errors import FreshnessError, MembershipLost
from freshness.position import Position

RESENDS_MAX: Final = 3
"""How often one batch is sent again because its tombstones grew too old before its progress was stored (F65)."""

RECENT_STEP_SECONDS: Final = 0.1
"""Batches closer together than this share the older one's age, which bounds the memory per node (I6)."""

KEYS_AT_ONCE_MAX: Final = 8000
"""Keys of a batch between two looks at the lease, which must not lapse under a batch of any size."""

INSPECT_SECONDS: Final = 1.0
"""How often a node is asked whether it lost tombstones (F67); a longer pause inspects before it publishes."""

LEFT_SHARE: Final = 1 / 4
"""A record that another invalidator keeps is written by this one when so much of the lease is left."""

RESUME_SECONDS: Final = 1.0
"""How often the resume copy is written. It may be old: the events that it lacks are sent again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive transactions of the stream, as they concern one node.

    ``keys``: for each item key the events that change it. ``raised``: tables whose rows changed in a way that
    gives no keys. ``before`` and ``streamed``: everything streamed before and after the batch.
    """

    keys: Mapping[bytes, Position]
    raised: Mapping[str, Position]
    before: Position
    streamed: Position
    heartbeat: HeartbeatSeen | None = None


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch whose tombstones were sent at ``at`` and are all acknowledged by the node."""

    at: float
    batch: Batch


def apply_batch(member: Membership, batch: Batch) -> Procedure[None]:
    """Acknowledge a batch on this node. Any error ends the membership, and the batch is not acknowledged."""
    assert member.applied.contains(batch.before), (
        "a batch that leaves a gap: progress would name what was not sent"
    )
    try:
        batch = _without_known(member, batch)
        for _ in range(RESENDS_MAX):
            sent = yield from _send(member, batch)
            if (yield from publish(member, sent)):
                return
        raise MembershipLost(
            f"{member.node}: {RESENDS_MAX} times the tombstones were older than "
            f"{member.policy.trail_seconds:.0f} s when their progress was to be stored",
            hint="this process or the node is paused or overloaded",
        )
    except FreshnessError:
        member.leave()
        raise


def acknowledge(member: Membership, batch: Batch, sent_at: float) -> Procedure[bool]:
    """Publish a batch whose tombstones and deletes another process has sent to this node.

    The node has acknowledged them all, and all were sent after ``sent_at`` by the member's clock. ``keys`` of the
    batch is ignored. Only for a node whose floor trails: in head mode the floor must stand before the tombstones.
    Returns False where the batch has grown too old; then it is not acknowledged. Any error ends the membership.
    """
    assert member.applied.contains(batch.before), "a batch that leaves a gap"
    assert member.is_trailing, "in head mode the floor comes first"
    assert not member.recent or member.recent[-1][0] <= sent_at, "batches follow one another"
    try:
        batch = _without_known(member, batch)
        member.streamed, member.streamed_epoch = batch.streamed, member.joined_record().epoch
        if batch.raised:
            yield from _raise_floors(member, batch.raised, batch)
        _remember(member, sent_at, batch.streamed)
        member.note_sent(batch.streamed)
        if batch.raised:
            yield from _wait_for_readers(member)
        return (yield from publish(member, _Sent(sent_at, batch)))
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
    0007)."""
    now = member.clock()
    if now - member.published_at >= member.policy.lease_seconds / 3 or now >= member.lease_until - 1:
        yield from publish(member, None)


def _without_known(member: Membership, batch: Batch) -> Batch:
    """The batch without the events that this membership has sent already.

    Events that only another invalidator has sent are sent again: then their age is known (ADR 0016).
    """
    if not member.known.contains(batch.before):
        member.take_foreign_for_old()  # this stream does not bring what the other one has acknowledged
    if batch.before.contains(member.known):
        return batch
    # The stream was opened earlier, for another node's sake.
    keys = {key: position for key, position in batch.keys.items() if not member.known.contains(position)}
    raised = {table: at for table, at in batch.raised.items() if not member.known.contains(at)}
    return replace(batch, keys=keys, raised=raised)


def _send(member: Membership, batch: Batch) -> Procedure[_Sent]:
    """Send floors, tombstones and deletes. Returns when the node has acknowledged them all."""
    keys, raised = batch.keys, batch.raised
    member.streamed, member.streamed_epoch = batch.streamed, member.joined_record().epoch
    if raised or not member.is_trailing:
        yield from _raise_floors(member, raised, batch)
    sent_at = member.clock()
    if keys:
        sent_us = member.witness.now_us() if member.witness is not None else 0
        yield from _invalidate(member, keys, batch.streamed)
        _remember(member, sent_at, batch.streamed)
        if member.witness is not None:
            tell_invalidations(member.witness, member.node, member.joined_record(), keys, sent_us)
    member.note_sent(batch.streamed)
    if raised:
        yield from _wait_for_readers(member)
    return _Sent(sent_at, batch)


def _wait_for_readers(member: Membership) -> Procedure[None]:
    """Wait until no reader trusts an older copy of the record (``node_refresh_seconds``), and keep the lease."""
    until = member.clock() + member.policy.node_refresh_seconds
    while (left := until - member.clock()) > 0.001:
        yield Wait(min(left, member.policy.lease_seconds / 3))
        yield from _renew_if_due(member)


def _raise_floors(member: Membership, raised: Mapping[str, Position], batch: Batch) -> Procedure[None]:
    """Raise the table floors to the events' own positions (F68), and in head mode the floor."""

    def change(record: NodeRecord) -> NodeRecord:
        floors = dict(record.table_floors)
        for table, position in raised.items():
            held = floors.get(table)
            floors[table] = position if held is None else held.union(position).fill_gaps(batch.streamed)
        floor = record.floor if member.is_trailing else record.floor.union(batch.streamed)
        return replace(record, table_floors=floors, floor=floor)

    yield from member.store(change)


def _invalidate(member: Membership, keys: Mapping[bytes, Position], streamed: Position) -> Procedure[None]:
    record = member.joined_record()
    items = list(keys.items())
    # Keys of one transaction share its position, and so the encoding of their tombstones.
    event: Event | None = None
    for start in range(0, len(items), KEYS_AT_ONCE_MAX):
        if start:
            yield from _renew_if_due(member)
        events: dict[bytes, Event] = {}
        for key, position in items[start : start + KEYS_AT_ONCE_MAX]:
            if event is None or event.position is not position:
                event = Event(record.lineage, record.epoch, position, streamed)
            events[key] = event
        found = yield from invalidate(
            member.node,
            events,
            member.policy.tombstone_ttl_seconds,
            expects_tombstones=member.expects_tombstones,
        )
        member.expects_tombstones = 2 * found > len(events)


def _remember(member: Membership, sent_at: float, streamed: Position) -> None:
    recent = member.recent
    if recent and sent_at - recent[-1][0] < RECENT_STEP_SECONDS:
        recent[-1] = (recent[-1][0], streamed)
    else:
        recent.append((sent_at, streamed))


def publish(member: Membership, sent: _Sent | None) -> Procedure[bool]:
    """Store progress, floor and lease by one CAS. False: ``sent`` has grown too old and must be sent again."""
    if member.clock() - member.inspected_at >= INSPECT_SECONDS:
        yield from _inspect(member)
    has_looked = False
    for _ in range(CAS_ATTEMPTS_MAX):
        now = member.clock()
        if sent is not None:
            if now - sent.at >= member.policy.trail_seconds:
                return False
            member.heartbeat = sent.batch.heartbeat or member.heartbeat
        if _is_other_ahead(member, sent):
            if now < member.lease_until - member.policy.lease_seconds * LEFT_SHARE:
                return True
            if not has_looked:
                has_looked = True
                yield from member.reread()
                continue
        record, applied, is_caught_up = _next_record(member, sent)
        target, member.target = member.target, None if is_caught_up else member.target
        sent_us = member.witness.now_us() if member.witness is not None else 0
        if (yield from member.try_store(record)):
            member.applied, member.published_at = applied, now
            if member.witness is not None:
                tell_publication(member.witness, member.node, member.joined_record(), sent_us)
            if now - member.resume_written_at >= RESUME_SECONDS:
                yield from member.write_resume()
            return True
        member.target = target
        yield from member.reread()
    raise MembershipLost(
        f"{member.node}: lost the race for the node record {CAS_ATTEMPTS_MAX} times",
        hint="several invalidators publish at once; the batch is sent again",
    )


def _is_other_ahead(member: Membership, sent: _Sent | None) -> bool:
    """Whether another invalidator has acknowledged all that is to be published, and more (ADR 0016).

    A write would count the other one's events as old and put the floor at the head. So this invalidator goes on
    sending, and writes again when it has caught up, or when the lease runs out.
    """
    record = member.joined_record()
    return (
        member.foreign is not None
        and member.is_trailing
        and member.policy.is_serving
        and member.target is None
        and record.is_open
        and (sent is None or record.progress.contains(sent.batch.streamed))
    )


def _next_record(member: Membership, sent: _Sent | None) -> tuple[NodeRecord, Position, bool]:
    """(record to publish, ``applied`` after it, whether the node has caught up and may open)."""
    record = member.joined_record()
    applied = member.applied if sent is None else member.applied.union(sent.batch.streamed)
    is_caught_up = member.target is None or applied.contains(member.target)
    floor = record.floor if member.target is None or not is_caught_up else record.floor.union(member.target)
    return replace(record, progress=record.progress.union(applied), floor=floor), applied, is_caught_up


def _inspect(member: Membership) -> Procedure[None]:
    """End the life if the node may have lost a tombstone since the last time (F51, F67)."""
    (report,) = yield Flow(member.node, (InspectStorage(member.policy.tombstone_ttl_seconds),))
    member.inspected_at = member.clock()
    if not member.is_trailing:
        if report.keeps_tombstones:
            # From now on the floor may trail; what was stored until now may be evicted and stays in the floor.
            member.start_from(member.applied)
            yield from member.store(lambda record: replace(record, losses=report.losses))
            member.is_trailing = True
    elif report.losses != member.joined_record().losses or not report.keeps_tombstones:
        member.is_trailing = report.keeps_tombstones
        yield from member.begin_life(report.losses)
