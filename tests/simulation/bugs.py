"""Planted bugs: one defence each, taken out of the production code. The tests of the checkers.

Each must be caught by the simulator (``python -m tests.simulation --bugs``) and by a directed schedule
(tests/schedules/test_defences.py). A bug is a patch of the very functions that run in production, or, where the
defence is the backend's or the reader's own, a change of the world's transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import freshness.algorithm.admission
import freshness.algorithm.applier
import freshness.algorithm.apply
import freshness.algorithm.invalidate
import freshness.algorithm.read
import freshness.algorithm.rule
import freshness.algorithm.view
import freshness.objects.keyfinder
import spark.sink.acknowledger
from freshness.algorithm.applier import Applier
from freshness.algorithm.apply import Batch
from freshness.algorithm.envelope import Coverage, NodeRecord, Tombstone
from freshness.algorithm.gather import gather
from freshness.algorithm.invalidate import Event
from freshness.algorithm.membership import HeartbeatSeen, Membership, find_record, is_of_another_configuration
from freshness.algorithm.request import (
    DONE,
    MISSING,
    Add,
    Cas,
    Delete,
    Flow,
    Get,
    InspectStorage,
    Procedure,
    StorageReport,
    Stored,
)
from freshness.algorithm.rule import (
    ObjectPolicy,
    ReadOutcome,
    find_fill_refusal,
    find_hit_refusal,
    find_record_refusal,
)
from freshness.algorithm.view import NodeView
from freshness.errors import FreshnessError, MembershipLost
from freshness.keys.cachekey import tombstone_key
from freshness.nodes.memory import MemoryStore
from freshness.position import MysqlGtidSet, Position, empty_position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat
from spark.sink.sender import Part
from tests.simulation.reshard import STAYS_OPEN

Planted: TypeAlias = contextlib.AbstractContextManager[Any]
Plant: TypeAlias = Callable[[], Planted]


def _patch(target: Any, name: str, value: Any) -> Planted:
    return patch.object(target, name, value)


# -- reading -------------------------------------------------------------------------------------------


def _no_compare() -> Planted:
    def refusal(policy: Any, ring: int, records: Any, _: Any, tokens: Any) -> ReadOutcome | None:
        return find_fill_refusal(policy, ring, records, None, tokens)

    return _patch(freshness.algorithm.read, "find_fill_refusal", refusal)


def _blind_to(change: Callable[[NodeRecord, ObjectPolicy], NodeRecord]) -> Planted:
    """The rule of fills sees other records than the node has."""

    def refusal(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        tombstone: Any,
        tokens: Any,
    ) -> ReadOutcome | None:
        seen = {lineage: record and change(record, policy) for lineage, record in records.items()}
        return find_fill_refusal(policy, ring, seen, tombstone, tokens)

    return _patch(freshness.algorithm.read, "find_fill_refusal", refusal)


def _no_floor() -> Planted:
    return _blind_to(lambda record, _: replace(record, floor=empty_position(record.floor.flavor)))


def _coverage_ignored() -> Planted:
    def covered(record: NodeRecord, policy: ObjectPolicy) -> NodeRecord:
        start = Coverage(policy.fingerprint, empty_position(record.floor.flavor))
        return replace(record, objects={policy.name: start})

    return _blind_to(covered)


def _ring_ignored() -> Planted:
    def refusal(record: NodeRecord | None, _: int) -> ReadOutcome | None:
        return find_record_refusal(record, record.ring if record is not None else 0)

    stack = contextlib.ExitStack()
    stack.enter_context(_patch(freshness.algorithm.rule, "find_record_refusal", refusal))
    stack.enter_context(_patch(freshness.algorithm.view, "find_record_refusal", refusal))
    return stack


def _hit_refusal_ignored(ignored: ReadOutcome) -> Planted:
    def refusal(*arguments: Any) -> ReadOutcome | None:
        found = find_hit_refusal(*arguments)
        return None if found is ignored else found

    return _patch(freshness.algorithm.view, "find_hit_refusal", refusal)


def _life_ignored() -> Planted:
    return _hit_refusal_ignored(ReadOutcome.DEAD)


def _table_floor_ignored() -> Planted:
    stack = contextlib.ExitStack()
    stack.enter_context(_patch(NodeView, "_is_covered", lambda *_: True))
    stack.enter_context(_hit_refusal_ignored(ReadOutcome.TABLE_FLOOR))
    return stack


# -- invalidating --------------------------------------------------------------------------------------


def _delete_first() -> Planted:
    def invalidate(
        node: str, events: Mapping[bytes, Event], ttl: int, *, expects_tombstones: bool
    ) -> Procedure[int]:
        yield Flow(node, tuple(Delete(key) for key in events))
        procedure = _ORIGINAL_INVALIDATE(node, events, ttl, expects_tombstones=expects_tombstones)
        replies: Any = None
        while True:
            try:
                step = procedure.send(replies)
            except StopIteration as stop:
                return int(stop.value)
            assert isinstance(step, Flow)
            kept = tuple(request for request in step.requests if not isinstance(request, Delete))
            answers = iter((yield Flow(node, kept)))
            replies = [DONE if isinstance(request, Delete) else next(answers) for request in step.requests]

    return _patch(freshness.algorithm.apply, "invalidate", invalidate)


_ORIGINAL_INVALIDATE: Final = freshness.algorithm.invalidate.invalidate


def _first_sender_only_deletes() -> Planted:
    def one(node: str, key: bytes, event: Event, ttl: int) -> Procedure[int]:
        marker = tombstone_key(key)
        data = Tombstone.of(event.lineage, event.epoch, event.position).encode()
        (added,) = yield Flow(node, (Add(marker, data, ttl),))
        if isinstance(added, Stored):
            yield Flow(node, (Delete(key),))
            return 0
        (held,) = yield Flow(node, (Get(marker),))
        if held is not MISSING and Tombstone.decode(held.value).contains(
            event.lineage, event.epoch, event.position
        ):
            yield Flow(node, (Cas(marker, held.value, held.version, ttl),))
            return 1
        return (yield from _ORIGINAL_INVALIDATE(node, {key: event}, ttl))

    def invalidate(
        node: str, events: Mapping[bytes, Event], ttl: int, *, expects_tombstones: bool
    ) -> Procedure[int]:
        del expects_tombstones
        results = yield from gather([one(node, key, event, ttl) for key, event in events.items()])
        found = 0
        for result in results:
            if isinstance(result, FreshnessError):
                raise result
            found += result
        return found

    return _patch(freshness.algorithm.apply, "invalidate", invalidate)


def _duplicate_keeps_age() -> Planted:
    original = freshness.algorithm.invalidate._accumulate

    def accumulate(node: str, events: Mapping[bytes, Event], ttl: int) -> Procedure[dict[bytes, Event]]:
        held = yield Flow(node, tuple(Get(tombstone_key(key)) for key in events))
        known = [
            key
            for (key, event), item in zip(events.items(), held, strict=True)
            if item is not MISSING
            and Tombstone.decode(item.value).contains(event.lineage, event.epoch, event.position)
        ]
        if known:
            yield Flow(node, tuple(Delete(key) for key in known))
        left = {key: event for key, event in events.items() if key not in known}
        return (yield from original(node, left, ttl)) if left else {}

    return _patch(freshness.algorithm.invalidate, "_accumulate", accumulate)


def _tombstone_replaced() -> Planted:
    def union(_: Tombstone, lineage: str, epoch: int, position: Position) -> Tombstone:
        return Tombstone.of(lineage, epoch, position)

    return _patch(Tombstone, "union", union)


def _before_image_ignored() -> Planted:
    original = freshness.objects.keyfinder._items_of

    def items(definition: Any, table: str, before: Any, after: Any) -> Any:
        return original(definition, table, None if after is not None else before, after)

    return _patch(freshness.objects.keyfinder, "_items_of", items)


# -- publishing ----------------------------------------------------------------------------------------


_ORIGINAL_APPLY: Final = freshness.algorithm.apply.apply_batch


def apply_progress_first(member: Membership, batch: Batch) -> Procedure[None]:
    yield from freshness.algorithm.apply.publish(
        member, freshness.algorithm.apply._Sent(member.clock(), batch)
    )
    member.applied = batch.before
    yield from _ORIGINAL_APPLY(member, batch)


def _progress_first() -> Planted:
    return _patch(freshness.algorithm.applier, "apply_batch", apply_progress_first)


def _age_not_checked() -> Planted:
    """Events count as sent when they enter progress. The age counts in two places, in the check before the CAS and in
    the floor that goes with it; each alone suffices, so both forget it."""

    class Ageless(freshness.algorithm.apply._Sent):
        def __init__(self, _: float, batch: Batch) -> None:
            super().__init__(float("inf"), batch)

    original = Membership._with_floor

    def with_floor(self: Membership, record: NodeRecord, now: float) -> NodeRecord:
        published = self.joined_record().progress
        for place, (_, streamed) in enumerate(self.recent):
            if not published.contains(streamed):
                self.recent[place] = (now, streamed)
        return original(self, record, now)

    stack = contextlib.ExitStack()
    stack.enter_context(_patch(freshness.algorithm.apply, "_Sent", Ageless))
    stack.enter_context(_patch(Membership, "_with_floor", with_floor))
    return stack


def _floor_stands_still() -> Planted:
    return _patch(Membership, "_with_floor", lambda _, record, now: record)


def _foreign_is_own() -> Planted:
    """What another invalidator has sent counts as sent by this one, now, and is never old."""

    def forget(self: Membership) -> None:
        if self.foreign is not None:
            self.known, self.foreign = self.known.union(self.foreign), None

    return _patch(Membership, "take_foreign_for_old", forget)


def _foreign_is_old() -> Planted:
    """As it was once (ADR 0016): what this one has just sent itself is old when another one has published it."""
    original = Membership.adopt

    def adopt(self: Membership, record: NodeRecord, item: Any, read_at: float) -> None:
        is_new = not self.applied.contains(record.progress)
        original(self, record, item, read_at)
        if is_new:
            self.foreign = record.progress
            self.take_foreign_for_old()

    return _patch(Membership, "adopt", adopt)


def _lease_without_heartbeat() -> Planted:
    original = Membership._lease

    def lease(self: Membership, record: NodeRecord, now: float) -> Any:
        self.heartbeat = HeartbeatSeen(now, 0)
        return original(self, record, now)

    return _patch(Membership, "_lease", lease)


def _foreign_heartbeat() -> Planted:
    def own(self: Applier, beats: Sequence[Heartbeat]) -> HeartbeatSeen | None:
        return HeartbeatSeen(self.clock(), 0) if beats else None

    return _patch(Applier, "find_own_heartbeat", own)


def _lapse_ignored() -> Planted:
    def reread(self: Membership) -> Procedure[None]:
        read_at = self.clock()
        (reply,) = yield Flow(self.node, (Get(self.record_key),))
        current = find_record(reply)
        if current is not None:
            self.adopt(replace(current, progress=self.joined_record().progress), reply, read_at)

    return _patch(Membership, "reread", reread)


def _record_put_back() -> Planted:
    original = Membership.try_store

    def store(self: Membership, record: NodeRecord) -> Procedure[bool]:
        (reply,) = yield Flow(self.node, (Get(self.record_key),))
        if reply is MISSING:
            yield Flow(self.node, (Add(self.record_key, record.encode(), self.policy.lease_seconds),))
            (item,) = yield Flow(self.node, (Get(self.record_key),))
            self.version = 0 if item is MISSING else item.version
        return (yield from original(self, record))

    return _patch(Membership, "try_store", store)


def _opened_before_caught_up() -> Planted:
    original = freshness.algorithm.admission._revive

    def revive(member: Membership, resume: NodeRecord) -> Procedure[None]:
        yield from original(member, resume)
        member.target, member.opens_after = None, float("-inf")

    return _patch(freshness.algorithm.admission, "_revive", revive)


def _losses_ignored() -> Planted:
    def inspect(member: Membership) -> Procedure[None]:
        member.inspected_at = member.clock()
        return
        yield

    return _patch(freshness.algorithm.apply, "_inspect", inspect)


def _tenure_ignored() -> Planted:
    def reread(self: Membership) -> Procedure[None]:
        read_at = self.clock()
        (reply,) = yield Flow(self.node, (Get(self.record_key),))
        mine, current = self.joined_record(), find_record(reply)
        if current is None or current.life != mine.life:
            raise MembershipLost(f"{self.node}: its life has ended")
        if is_of_another_configuration(current, self.policy):
            raise MembershipLost(f"{self.node}: another configuration")
        self.adopt(current, reply, read_at)

    return _patch(Membership, "reread", reread)


def _resume_without_table_floors() -> Planted:
    original = Membership.write_resume

    def write(
        self: Membership, record: NodeRecord | None = None, *, is_birth: bool = False
    ) -> Procedure[None]:
        bare = replace(record or self.joined_record(), table_floors={})
        yield from original(self, bare, is_birth=is_birth)

    return _patch(Membership, "write_resume", write)


def _readers_not_waited_for() -> Planted:
    def nothing(_: Membership) -> Procedure[None]:
        return
        yield

    return _patch(freshness.algorithm.apply, "_wait_for_readers", nothing)


def _trailing_without_temp_lru() -> Planted:
    original = MemoryStore._inspect

    def inspect(self: MemoryStore, request: InspectStorage) -> StorageReport:
        return replace(original(self, request), keeps_tombstones=True)

    return _patch(MemoryStore, "_inspect", inspect)


def _revived_at_the_head() -> Planted:
    original = freshness.algorithm.admission._revive

    def revive(member: Membership, resume: NodeRecord) -> Procedure[None]:
        yield from original(member, resume)
        if member.target is not None:
            member.start_from(member.applied.union(member.target))

    return _patch(freshness.algorithm.admission, "_revive", revive)


def _losses_ignored_at_join() -> Planted:
    return _patch(freshness.algorithm.admission, "_may_have_lost_tombstones", lambda *_: False)


def _epoch_ignored() -> Planted:
    """By the rule of fills, by hits and by the joins of nodes."""

    def refusal(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        tombstone: Tombstone | None,
        tokens: Mapping[str, EventToken],
    ) -> ReadOutcome | None:
        relabelled = {
            lineage: replace(token, epoch=record.epoch)
            for lineage, token in tokens.items()
            if (record := records.get(lineage)) is not None
        }
        return find_fill_refusal(policy, ring, records, tombstone, {**tokens, **relabelled})

    return _patch(freshness.algorithm.read, "find_fill_refusal", refusal)


def _empty_newborn() -> Planted:
    """Neither the floor nor the objects of a new life begin at the head; each alone suffices."""
    original = Membership.begin_life

    def begin_life(self: Membership, losses: int) -> Procedure[None]:
        yield from original(self, losses)
        nothing, record = empty_position(self.streamed.flavor), self.joined_record()
        objects = {name: Coverage(each.fingerprint, nothing) for name, each in record.objects.items()}
        self.old, self.record = nothing, replace(record, floor=nothing, objects=objects)

    return _patch(Membership, "begin_life", begin_life)


# -- what others have sent -----------------------------------------------------------------------------


def _failed_part_acknowledged() -> Planted:
    original = Applier.acknowledge

    def acknowledge(
        self: Applier, raised: Any, before: Any, streamed: Any, beats: Any, permit: Any, _: Any
    ) -> Any:
        yield from original(self, raised, before, streamed, beats, permit, {})

    return _patch(Applier, "acknowledge", acknowledge)


def _holes_acknowledged() -> Planted:
    def ends(lineage: str, parts: Sequence[Part]) -> tuple[Position, Position]:
        first = min((part for part in parts if part.before is not None), key=lambda part: part.first)
        assert first.before is not None
        streamed = [part.streamed for part in parts if part.streamed is not None]
        return first.before, first.before.union_all(streamed)

    return _patch(spark.sink.acknowledger, "require_whole", ends)


def _as_old_as_the_commit() -> Planted:
    """What executors have sent counts as sent when the driver commits it."""
    original = freshness.algorithm.apply.acknowledge

    def acknowledge(member: Membership, batch: Batch, _: float) -> Procedure[bool]:
        return original(member, batch, member.clock())

    return _patch(freshness.algorithm.applier, "acknowledge", acknowledge)


# -- caching nothing -----------------------------------------------------------------------------------


def _only_winners_fill() -> Planted:
    original = freshness.algorithm.read._wait_for_winners

    def wait(context: Any, waiting: Any, max_staleness_seconds: Any) -> Procedure[None]:
        yield from original(context, waiting, max_staleness_seconds)
        for entry in waiting:
            if entry.is_waiting:
                entry.state = freshness.algorithm.read._Refused(ReadOutcome.LOST_RACE)

    def keep(_: Any) -> Procedure[None]:
        return
        yield

    stack = contextlib.ExitStack()
    stack.enter_context(_patch(freshness.algorithm.read, "_wait_for_winners", wait))
    stack.enter_context(_patch(freshness.algorithm.read, "_drop_stubs", keep))
    return stack


def _hull_of_numbers() -> Planted:
    """Gaps are filled with all numbers between, streamed or not."""

    def fill(self: MysqlGtidSet, streamed: Position) -> MysqlGtidSet:
        hull = MysqlGtidSet()
        for source, borders in self._borders.items():
            hull = hull.union(MysqlGtidSet.parse(f"{source}:{borders[0]}-{borders[-1] - 1}"))
        return hull

    return _patch(MysqlGtidSet, "fill_gaps", fill)


def _target_never_reached() -> Planted:
    original = freshness.algorithm.apply._next_record

    def next_record(member: Membership, sent: Any) -> Any:
        record, applied, is_caught_up = original(member, sent)
        return record, applied, is_caught_up and member.target is None

    return _patch(freshness.algorithm.apply, "_next_record", next_record)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


class Planting(contextlib.AbstractContextManager[None]):
    """With the named bug planted; "": none."""

    def __init__(self, name: str) -> None:
        self._planted = PLANTED[name]() if name else None

    def __enter__(self) -> None:
        if self._planted is not None:
            self._planted.__enter__()

    def __exit__(self, *details: Any) -> None:
        if self._planted is not None:
            self._planted.__exit__(*details)


PLANTED: Final[dict[str, Plant]] = {
    "fill without compare": _no_compare,
    "floor ignored": _no_floor,
    "life ignored by hits": _life_ignored,
    "table floor ignored by hits": _table_floor_ignored,
    "delete before tombstone": _delete_first,
    "a duplicate does not delete again": _first_sender_only_deletes,
    "a duplicate keeps the old age": _duplicate_keeps_age,
    "tombstone replaced": _tombstone_replaced,
    "before-image ignored": _before_image_ignored,
    "progress before acknowledge": _progress_first,
    "progress late": _age_not_checked,
    "floor late": _floor_stands_still,
    "foreign progress is never old": _foreign_is_own,
    "lease without heartbeat": _lease_without_heartbeat,
    "foreign heartbeat": _foreign_heartbeat,
    "lapse and life ignored": _lapse_ignored,
    "record put back from memory": _record_put_back,
    "opened before it caught up": _opened_before_caught_up,
    "losses ignored": _losses_ignored,
    "losses ignored at join": _losses_ignored_at_join,
    "tenure ignored": _tenure_ignored,
    "ring ignored": _ring_ignored,
    "object coverage ignored": _coverage_ignored,
    "epoch ignored by fills": _epoch_ignored,
    "resume copy without table floors": _resume_without_table_floors,
    "table floor acknowledged at once": _readers_not_waited_for,
    "trailing where tombstones are evicted": _trailing_without_temp_lru,
    "revived without sending again": _revived_at_the_head,
    # Of the sink:
    "a node that failed is acknowledged": _failed_part_acknowledged,
    "a micro-batch with a hole is acknowledged": _holes_acknowledged,
    "a micro-batch is as old as its commit": _as_old_as_the_commit,
    # These cache nothing for ever, and are found when all faults end (I5):
    "only the holder of a lease may fill": _only_winners_fill,
    "numbers that were never streamed": _hull_of_numbers,
    "foreign progress is always old": _foreign_is_old,
    "a revived node never opens": _target_never_reached,
    "errant transactions in a floor": _nothing,
    # In the world's transport, see `World.bug`:
    "blind set": _nothing,
    "fill removes the tombstone": _nothing,
    "token of the binlog": _nothing,
    "floor of a new life is empty": _empty_newborn,
    "keys move when a node is down": _nothing,
    "snapshot before token": _nothing,
    "timestamps first": _nothing,
    STAYS_OPEN: _nothing,
}

KNOWN_SEEDS: Final[dict[str, int]] = {
    "fill without compare": 1,
    "floor ignored": 300,
    "life ignored by hits": 236,
    "table floor ignored by hits": 9,
    "delete before tombstone": 0,
    "a duplicate does not delete again": 432,
    "a duplicate keeps the old age": 844,
    "tombstone replaced": 2,
    "before-image ignored": 403,
    "progress before acknowledge": 0,
    "progress late": 459,
    "floor late": 6,
    "foreign progress is never old": 707,
    "lease without heartbeat": 28,
    "foreign heartbeat": 798,
    "lapse and life ignored": 17,
    "record put back from memory": 107,
    "opened before it caught up": 492,
    "losses ignored": 1146,
    "tenure ignored": 4195,
    "ring ignored": 283,
    "object coverage ignored": 104,
    "resume copy without table floors": 634,
    "table floor acknowledged at once": 9,
    "trailing where tombstones are evicted": 2050,
    "revived without sending again": 147,
    "a node that failed is acknowledged": 591,
    "a micro-batch with a hole is acknowledged": 138,
    "a micro-batch is as old as its commit": 370,
    "only the holder of a lease may fill": 40,
    "numbers that were never streamed": 3400,
    "foreign progress is always old": 20,
    "a revived node never opens": 0,
    "errant transactions in a floor": 0,
    "blind set": 14,
    "fill removes the tombstone": 1,
    "token of the binlog": 1,
    "floor of a new life is empty": 236,
    "keys move when a node is down": 107,
    "snapshot before token": 277,
    STAYS_OPEN: 2307,
    "timestamps first": 1,
}
"""A seed that catches the bug; ``make sim ARGS=--bugs`` finds new ones when worlds have changed."""

SELDOM_CAUGHT: Final = {
    "losses ignored at join": "the inspection a second later sees the same counter, and what is served until then is "
    "the exception to I1 that docs/invariants.md names",
    "epoch ignored by fills": "every life of a new epoch has the epoch's own transaction in its floor, which no "
    "server of the former history shows",
}
"""Why chance cannot show that these defences are needed: another one does the same. A directed schedule shows each.
"""
