"""Planted bugs: one defence each, taken out of the production code. The tests of the checkers.

Each must be caught by the simulator (``python -m tests.simulation --bugs``) and by a directed schedule
(tests/unit/test_defences.py). A bug is a patch of the very functions that run in production, or, where the
defence is the backend's or the reader's own, a change of the world's transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import freshness.admission
import freshness.apply
import freshness.invalidate
import freshness.read
import freshness.view
import invalidator.shard
from freshness.apply import Batch
from freshness.cachekey import tombstone_key
from freshness.envelope import NodeRecord, Tombstone
from freshness.invalidate import Event
from freshness.membership import HeartbeatSeen, Membership, find_record
from freshness.position import MysqlGtidSet, Position
from freshness.request import DONE, MISSING, Add, Cas, Delete, Flow, Get, Procedure, Stored
from freshness.rule import ObjectPolicy, ReadOutcome, find_fill_refusal
from freshness.view import NodeView
from invalidator.shard import ShardInvalidator
from invalidator.source import Transaction

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


def _patch(target: Any, name: str, value: Any) -> contextlib.AbstractContextManager[Any]:
    return patch.object(target, name, value)


# -- reading -------------------------------------------------------------------------------------------


def _no_compare() -> contextlib.AbstractContextManager[Any]:
    def refusal(policy: Any, ring: int, records: Any, _: Any, tokens: Any) -> ReadOutcome | None:
        return find_fill_refusal(policy, ring, records, None, tokens)

    return _patch(freshness.read, "find_fill_refusal", refusal)


def _no_floor() -> contextlib.AbstractContextManager[Any]:
    def refusal(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        tombstone: Any,
        tokens: Any,
    ) -> ReadOutcome | None:
        bare = {
            lineage: record and replace(record, floor=MysqlGtidSet()) for lineage, record in records.items()
        }
        return find_fill_refusal(policy, ring, bare, tombstone, tokens)

    return _patch(freshness.read, "find_fill_refusal", refusal)


def _life_ignored() -> contextlib.AbstractContextManager[Any]:
    judge = NodeView.judge

    def judge_any_life(self: NodeView, policy: ObjectPolicy, identity: bytes, data: bytes) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_patch(freshness.view, "find_hit_refusal", lambda *_: None))
            prefixes, self._prefixes = self._prefixes, {}
            try:
                return judge(self, policy, identity, data)
            finally:
                self._prefixes = prefixes

    return _patch(NodeView, "judge", judge_any_life)


def _table_floor_ignored() -> contextlib.AbstractContextManager[Any]:
    stack = contextlib.ExitStack()
    stack.enter_context(_patch(NodeView, "_is_covered", lambda *_: True))
    original = freshness.view.find_hit_refusal

    def refusal(*arguments: Any) -> ReadOutcome | None:
        found = original(*arguments)
        return None if found is ReadOutcome.TABLE_FLOOR else found

    stack.enter_context(_patch(freshness.view, "find_hit_refusal", refusal))
    return stack


# -- invalidating --------------------------------------------------------------------------------------


def _delete_first() -> contextlib.AbstractContextManager[Any]:
    def invalidate(node: str, key: bytes, event: Event, ttl: int) -> Procedure[None]:
        yield Flow(node, (Delete(key),))
        procedure = _ORIGINAL_INVALIDATE(node, key, event, ttl)
        replies: Any = None
        while True:
            try:
                step = procedure.send(replies)
            except StopIteration:
                return
            assert isinstance(step, Flow)
            kept = tuple(request for request in step.requests if not isinstance(request, Delete))
            answers = iter((yield Flow(node, kept)))
            replies = [DONE if isinstance(request, Delete) else next(answers) for request in step.requests]

    return _patch(freshness.apply, "invalidate", invalidate)


_ORIGINAL_INVALIDATE: Final = freshness.invalidate.invalidate


def _first_sender_only_deletes() -> contextlib.AbstractContextManager[Any]:
    def invalidate(node: str, key: bytes, event: Event, ttl: int) -> Procedure[None]:
        marker = tombstone_key(key)
        data = Tombstone.of(event.lineage, event.epoch, event.position).encode()
        (added,) = yield Flow(node, (Add(marker, data, ttl),))
        if isinstance(added, Stored):
            yield Flow(node, (Delete(key),))
            return
        (held,) = yield Flow(node, (Get(marker),))
        if held is not MISSING and Tombstone.decode(held.value).contains(
            event.lineage, event.epoch, event.position
        ):
            yield Flow(node, (Cas(marker, held.value, held.version, ttl),))
            return
        yield from _ORIGINAL_INVALIDATE(node, key, event, ttl)

    return _patch(freshness.apply, "invalidate", invalidate)


def _duplicate_keeps_age() -> contextlib.AbstractContextManager[Any]:
    original = freshness.invalidate._accumulate

    def accumulate(
        node: str, marker: bytes, key: bytes, held: Any, event: Event, ttl: int
    ) -> Procedure[bool]:
        if Tombstone.decode(held.value).contains(event.lineage, event.epoch, event.position):
            yield Flow(node, (Delete(key),))
            return True
        return (yield from original(node, marker, key, held, event, ttl))

    return _patch(freshness.invalidate, "_accumulate", accumulate)


def _tombstone_replaced() -> contextlib.AbstractContextManager[Any]:
    def union(_: Tombstone, lineage: str, epoch: int, position: Position) -> Tombstone:
        return Tombstone.of(lineage, epoch, position)

    return _patch(Tombstone, "union", union)


def _before_image_ignored() -> contextlib.AbstractContextManager[Any]:
    original = invalidator.shard._items_of

    def items(definition: Any, table: str, before: Any, after: Any) -> Any:
        return original(definition, table, None if after is not None else before, after)

    return _patch(invalidator.shard, "_items_of", items)


# -- publishing ----------------------------------------------------------------------------------------


def _progress_first() -> contextlib.AbstractContextManager[Any]:
    original = freshness.apply.apply_batch

    def apply(member: Membership, batch: Batch) -> Procedure[None]:
        yield from freshness.apply.publish(member, freshness.apply._Sent(member.clock(), batch))
        member.applied = batch.before
        yield from original(member, batch)

    return _patch(invalidator.shard, "apply_batch", apply)


def _age_not_checked() -> contextlib.AbstractContextManager[Any]:
    class Ageless(freshness.apply._Sent):
        def __init__(self, _: float, batch: Batch) -> None:
            super().__init__(float("inf"), batch)

    return _patch(freshness.apply, "_Sent", Ageless)


def _floor_stands_still() -> contextlib.AbstractContextManager[Any]:
    return _patch(Membership, "_with_floor", lambda _, record, now: record)


def _lease_without_heartbeat() -> contextlib.AbstractContextManager[Any]:
    original = Membership._lease

    def lease(self: Membership, record: NodeRecord, now: float) -> Any:
        self.heartbeat = HeartbeatSeen(now, 0)
        return original(self, record, now)

    return _patch(Membership, "_lease", lease)


def _foreign_heartbeat() -> contextlib.AbstractContextManager[Any]:
    def own(self: ShardInvalidator, transaction: Transaction) -> HeartbeatSeen | None:
        return HeartbeatSeen(self.clock(), 0) if transaction.heartbeats else None

    return _patch(ShardInvalidator, "_own_heartbeat", own)


def _lapse_ignored() -> contextlib.AbstractContextManager[Any]:
    def reread(self: Membership) -> Procedure[None]:
        read_at = self.clock()
        (reply,) = yield Flow(self.node, (Get(self.record_key),))
        current = find_record(reply)
        if current is not None:
            self.adopt(replace(current, progress=self.joined_record().progress), reply, read_at)

    return _patch(Membership, "reread", reread)


def _record_put_back() -> contextlib.AbstractContextManager[Any]:
    original = Membership.try_store

    def store(self: Membership, record: NodeRecord) -> Procedure[bool]:
        (reply,) = yield Flow(self.node, (Get(self.record_key),))
        if reply is MISSING:
            yield Flow(self.node, (Add(self.record_key, record.encode(), self.policy.lease_seconds),))
            (item,) = yield Flow(self.node, (Get(self.record_key),))
            self.version = 0 if item is MISSING else item.version
        return (yield from original(self, record))

    return _patch(Membership, "try_store", store)


def _opened_before_caught_up() -> contextlib.AbstractContextManager[Any]:
    original = freshness.admission._revive

    def revive(member: Membership, resume: NodeRecord) -> Procedure[None]:
        yield from original(member, resume)
        member.target = None

    return _patch(freshness.admission, "_revive", revive)


def _losses_ignored() -> contextlib.AbstractContextManager[Any]:
    def inspect(member: Membership) -> Procedure[None]:
        member.inspected_at = member.clock()
        return
        yield

    return _patch(freshness.apply, "_inspect", inspect)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


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
    "lease without heartbeat": _lease_without_heartbeat,
    "foreign heartbeat": _foreign_heartbeat,
    "lapse and life ignored": _lapse_ignored,
    "record put back from memory": _record_put_back,
    "opened before it caught up": _opened_before_caught_up,
    "losses ignored": _losses_ignored,
    # In the world's transport, see `World.bug`:
    "blind set": _nothing,
    "fill removes the tombstone": _nothing,
    "token of the binlog": _nothing,
    "floor of a new life is empty": _nothing,
    "keys move when a node is down": _nothing,
    "snapshot before token": _nothing,
}
