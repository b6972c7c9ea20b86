"""Planted bugs: one defence each, taken out of the production code. The tests of the checkers.

Each must be caught by the simulator (``python -m tests.simulation --bugs``) and by a directed schedule
(tests/schedules/test_defences.py). A bug is a patch of the very functions that run in production, or, if the
defence is the backend's or the reader's own, a change of the world's transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar, cast
from unittest.mock import patch

import appclient.database.servers
import appclient.database.shard
import freshness.algorithm.admission
import freshness.algorithm.applier
import freshness.algorithm.apply
import freshness.algorithm.fill
import freshness.algorithm.hit
import freshness.algorithm.invalidate
import freshness.algorithm.membership
import freshness.algorithm.read
import freshness.algorithm.restore
import freshness.algorithm.rule
import freshness.algorithm.together
import freshness.algorithm.view
import freshness.objects.keyfinder
import freshness.stream.heartbeat
import invalidator.replica.server
import spark.sink.acknowledger
from appclient.connection.query import LoaderConnection
from appclient.database.shard import ShardDatabase
from freshness.algorithm.applier import Applier
from freshness.algorithm.apply import Batch
from freshness.algorithm.envelope import (
    Coverage,
    Kind,
    NodeRecord,
    PendingStripe,
    Stamp,
    Stripe,
    find_record,
    find_stripe,
    record_key,
    stripe_key,
    stripe_keys,
    stripe_number,
)
from freshness.algorithm.gather import gather
from freshness.algorithm.invalidate import Target
from freshness.algorithm.membership import HeartbeatSeen, Membership, is_of_another_configuration
from freshness.algorithm.membership import serve as serve_record
from freshness.algorithm.request import (
    DONE,
    MISSING,
    STORED,
    Add,
    Append,
    Cas,
    Delete,
    Flow,
    Flows,
    Get,
    Head,
    Item,
    Procedure,
    ReadStream,
    Reply,
    Stored,
    Streamed,
)
from freshness.algorithm.restore import Restorer
from freshness.algorithm.rule import (
    ObjectPolicy,
    ReadOutcome,
    Span,
    find_fill_refusal,
    find_hit_refusal,
    find_required,
)
from freshness.algorithm.state import Guarded, Pending, ReadContext, Stub, Unstored, record_gets
from freshness.algorithm.view import NodeView, Sightings
from freshness.config.cache import CacheConfig
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import FormatError, MembershipLost
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryStore
from freshness.position import MariadbPosition, MysqlGtidSet, Position, empty_position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat
from invalidator.loop.shard import ShardInvalidator
from spark.sink.sender import Part
from tests.simulation.network import BOUND_ANYWHERE
from tests.simulation.reshard import STAYS_OPEN

Planted: TypeAlias = contextlib.AbstractContextManager[Any]
Plant: TypeAlias = Callable[[], Planted]
Result = TypeVar("Result")


def _patch(target: Any, name: str, value: Any) -> Planted:
    return patch.object(target, name, value)


# -- reading -------------------------------------------------------------------------------------------


def _no_compare() -> Planted:
    return _with_stripes(lambda stripe, record: stripe and _empty_stripe(record))


def _with_stripes(change: Callable[[Stripe | None, NodeRecord], Stripe | None]) -> Planted:
    """The rule of fills sees other stripes than the node has."""

    def refusal(policy: Any, ring: int, records: Any, stripes: Any, tokens: Any) -> ReadOutcome | None:
        seen = {
            lineage: change(stripe, records[lineage]) if records.get(lineage) is not None else stripe
            for lineage, stripe in stripes.items()
        }
        return find_fill_refusal(policy, ring, records, seen, tokens)

    return _patch(freshness.algorithm.fill, "find_fill_refusal", refusal)


def _empty_stripe(record: NodeRecord) -> Stripe:
    return Stripe(record.life, empty_position(record.floor.flavor))


def _absent_allows() -> Planted:
    return _with_stripes(lambda stripe, record: stripe or _empty_stripe(record))


def _pending_allows() -> Planted:
    """A pending stripe counts as a whole one, with what was appended to it."""

    original = freshness.algorithm.fill._find_stripe

    def find(view: NodeView, lineage: str, reply: Reply) -> Stripe | None:
        record = view.records[lineage]
        if record is None or not isinstance(reply, Item) or reply.value[2:3] != bytes((Kind.PENDING,)):
            return original(view, lineage, reply)
        chunks = PendingStripe.decode(reply.value).chunks
        appended = [position for name, position in chunks if name == record.life]
        return Stripe(record.life, empty_position(record.floor.flavor).union_all(appended))

    return _patch(freshness.algorithm.fill, "_find_stripe", find)


def _stripe_of_any_life() -> Planted:
    def find(data: bytes, life: bytes) -> Stripe | None:
        try:
            return Stripe(life, Stripe.decode(data).position)
        except FormatError:
            return None

    return _patch(freshness.algorithm.fill, "find_stripe", find)


def _stripe_before_stub() -> Planted:
    """Step 2 before step 1: what was read first decides over the fill."""
    read = freshness.algorithm.read
    look_up = freshness.algorithm.hit.look_up
    early: dict[int, Any] = {}

    def look_up_late(context: Any, entries: Any, demand: Any) -> Procedure[None]:
        for entry in entries:
            lookup = entry.lookup
            gets: list[Any] = record_gets(context.namespace, lookup.policy.lineages)
            (records,) = yield Flows((Flow(lookup.node, tuple(gets)),))
            if isinstance(records, list):
                found = [find_record(reply, lookup.node) for reply in records]
                gets = [
                    Get(stripe_key(context.namespace, lineage, stripe_number(lookup.item, record.stripes)))
                    for lineage, record in zip(lookup.policy.lineages, found, strict=True)
                    if record is not None
                ] + gets
                (early[id(entry)],) = yield Flows((Flow(lookup.node, tuple(gets)),))
        yield from look_up(context, entries, demand)

    def fetch_nothing(context: Any, stubs: Any) -> Procedure[None]:
        for entry in stubs:
            lookup, replies = entry.lookup, early.pop(id(entry), None)
            lineages, stub = lookup.policy.lineages, entry.state
            if not isinstance(stub, Stub):
                continue
            if not isinstance(replies, list) or len(replies) != 2 * len(lineages):
                entry.state = stub.refuse(ReadOutcome.NO_RECORD)
                continue
            count = len(lineages)
            records = {
                name: find_record(reply, lookup.node) for name, reply in zip(lineages, replies[count:], strict=True)
            }
            stripes = {
                name: find_stripe(reply.value, record.life)
                if isinstance(reply, Item) and (record := records[name]) is not None
                else None
                for name, reply in zip(lineages, replies[:count], strict=True)
            }
            entry.state = Guarded(stub, stripes, records)
        return
        yield

    stack = contextlib.ExitStack()
    stack.enter_context(_patch(read, "look_up", look_up_late))
    stack.enter_context(_patch(freshness.algorithm.fill, "_fetch_guards", fetch_nothing))
    return stack


def _coverage_ignored() -> Planted:
    return _patch(NodeRecord, "find_coverage", _coverage_of_all)


def _coverage_of_all(record: NodeRecord, _: str, fingerprint: int) -> Coverage:
    return Coverage(fingerprint, empty_position(record.floor.flavor))


def _ring_ignored() -> Planted:
    find_start = NodeRecord.find_start
    return _patch(NodeRecord, "find_start", lambda record, _: find_start(record, record.rings))


def _start_ignored() -> Planted:
    """Of a ring: what a node holds of a key may be from before it was sent the key's events."""
    find_start = NodeRecord.find_start

    def no_start(record: NodeRecord, rings: Iterable[int]) -> Position | None:
        start = find_start(record, rings)
        return None if start is None else empty_position(start.flavor)

    return _patch(NodeRecord, "find_start", no_start)


def _object_start_ignored() -> Planted:
    """What a node holds of a key may be from before its definition came back."""
    find_coverage = NodeRecord.find_coverage

    def no_start(record: NodeRecord, name: str, fingerprint: int) -> Coverage | None:
        found = find_coverage(record, name, fingerprint)
        return None if found is None else _coverage_of_all(record, name, fingerprint)

    return _patch(NodeRecord, "find_coverage", no_start)


def _published_while_settling() -> Planted:
    """A renewal of the lease publishes what was sent while readers are waited for."""
    original = freshness.algorithm.apply._next_record

    def next_record(member: Membership, sent: Batch | None) -> Any:
        record, applied, is_caught_up = original(member, sent)
        return replace(record, progress=record.progress.union(applied)), applied, is_caught_up

    return _patch(freshness.algorithm.apply, "_next_record", next_record)


def _published_uncovered() -> Planted:
    """The record goes on with the rings and objects of the previous file, by which nothing is sent."""

    def nothing(member: Membership) -> Procedure[None]:
        member.is_covered = True
        return
        yield

    return _patch(freshness.algorithm.apply, "cover", nothing)


def _moved_as_of_now() -> Planted:
    """An entry of another node counts as the row at the progress of the present one."""
    original = freshness.algorithm.fill._find_moved

    def find_moved(context: Any, entry: Any, there: NodeView, *rest: Any) -> Any:
        here = entry.state.records
        there.records = {
            of: held and here[of] and replace(held, progress=here[of].progress) for of, held in there.records.items()
        }
        return original(context, entry, there, *rest)

    return _patch(freshness.algorithm.fill, "_find_moved", find_moved)


def _name_ignored() -> Planted:
    def find(reply: Reply, _: str) -> NodeRecord | None:
        return find_record(reply, NodeRecord.decode(reply.value).node) if isinstance(reply, Item) else None

    stack = contextlib.ExitStack()
    for module in (
        freshness.algorithm.membership,
        freshness.algorithm.admission,
        freshness.algorithm.restore,
        freshness.algorithm.view,
    ):
        stack.enter_context(_patch(module, "find_record", find))
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


def _view_outlives_connection() -> Planted:
    return _patch(ReadContext, "forget", lambda *_: None)


class _Kept(dict[str, NodeView]):
    def clear(self) -> None: ...


def _view_outlives_interruption() -> Planted:
    original = ReadContext.__init__

    def begin(self: ReadContext, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.views = _Kept(self.views)

    return _patch(ReadContext, "__init__", begin)


def _own_bound_ignored() -> Planted:
    return _patch(NodeView, "staleness_seconds", lambda *_: 0.0)


def _bound_is_position() -> Planted:
    return _patch(Stamp, "encode_beyond", lambda self: empty_position(self.position.flavor).encode())


def _own_progress_alone() -> Planted:
    def are_of_one_state(spans: Iterable[Span]) -> bool:
        return all(span.since.contains(span.until) for span in spans)

    return _patch(freshness.algorithm.together, "are_of_one_state", are_of_one_state)


# -- invalidating --------------------------------------------------------------------------------------


def _delete_first() -> Planted:
    def invalidate(node: str, keys: Any, target: Target, streamed: Position) -> Procedure[Sequence[int]]:
        yield Flow(node, tuple(Delete(key) for key in keys))
        return (yield from _without_deletes(node, keys, target, streamed))

    return _patch(freshness.algorithm.apply, "invalidate", invalidate)


_ORIGINAL_INVALIDATE: Final = freshness.algorithm.invalidate.invalidate


def _relay(procedure: Procedure[Result], ask: Callable[[Any], Procedure[Any]]) -> Procedure[Result]:
    """The procedure, each of whose steps is answered by ``ask``."""
    answer: Any = None
    while True:
        try:
            step = procedure.send(answer)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        answer = yield from ask(step)


def _without_deletes(node: str, keys: Any, target: Target, streamed: Position) -> Procedure[Sequence[int]]:
    def ask(flow: Flow) -> Procedure[Any]:
        requests = list(flow.requests)
        kept = [request for request in requests if not isinstance(request, Delete)]
        answers = iter((yield Flow(node, tuple(kept))))
        return [DONE if isinstance(request, Delete) else next(answers) for request in requests]

    return _relay(_ORIGINAL_INVALIDATE(node, keys, target, streamed), ask)


def _refused_is_done() -> Planted:
    def ask(flow: Flow) -> Procedure[Any]:
        replies = yield flow
        return [
            STORED if isinstance(request, Append) else reply
            for request, reply in zip(flow.requests, replies, strict=True)
        ]

    def invalidate(node: str, keys: Any, target: Target, streamed: Position) -> Procedure[Sequence[int]]:
        return _relay(_ORIGINAL_INVALIDATE(node, keys, target, streamed), ask)

    return _patch(freshness.algorithm.apply, "invalidate", invalidate)


def _refused_deletes_once() -> Planted:
    """The stripe of a refused append is deleted, and the keys are not deleted after it."""

    def invalidate(node: str, keys: Any, target: Target, streamed: Position) -> Procedure[Sequence[int]]:
        procedure = _ORIGINAL_INVALIDATE(node, keys, target, streamed)
        try:
            replies = yield procedure.send(None)
            step = procedure.send(replies)
        except StopIteration as stop:
            numbers: Sequence[int] = stop.value
            return numbers
        assert isinstance(step, Flow)
        stripes = set(stripe_keys(target.namespace, target.lineage, target.stripes))
        yield Flow(node, tuple(request for request in step.requests if request.key in stripes))
        return ()

    return _patch(freshness.algorithm.apply, "invalidate", invalidate)


def _pending_left_alone() -> Planted:
    """An append leaves a pending stripe as it finds it."""
    original = MemoryStore._append

    def append(self: MemoryStore, request: Append) -> Reply:
        held = self.peek(request.key)
        is_pending = held is not None and held.value[2:3] == bytes((Kind.PENDING,))
        return Stored() if is_pending else original(self, request)

    return _patch(MemoryStore, "_append", append)


def _chunk_of_the_batch_before() -> Planted:
    original = freshness.algorithm.apply._send

    def send(member: Membership, batch: Batch) -> Procedure[Sequence[int]]:
        return original(member, replace(batch, streamed=batch.before))

    return _patch(freshness.algorithm.apply, "_send", send)


def _shorten_with(write: Callable[[bytes, Item, Stripe], tuple[Any, ...]]) -> Planted:
    """The requests of ``write`` (key, item, stripe) shorten each stripe of more than one chunk."""

    def shorten(node: str, numbers: Any, target: Target, streamed: Position) -> Procedure[None]:
        for number in numbers:
            key = stripe_keys(target.namespace, target.lineage, target.stripes)[number]
            (item,) = yield Flow(node, (Get(key),))
            stripe = find_stripe(item.value, target.life) if isinstance(item, Item) else None
            if stripe is not None and stripe.chunk_count > 1:
                yield Flow(node, write(key, item, stripe))

    return _patch(freshness.algorithm.apply, "shorten", shorten)


def _shortened_to_the_first_chunk() -> Planted:
    """What was appended since is dropped with its chunk."""

    def write(key: bytes, item: Item, _: Stripe) -> tuple[Any, ...]:
        size = 3 + 2 + int.from_bytes(item.value[3:5], "big")
        return (Cas(key, item.value[:size], item.version, 0),)

    return _shorten_with(write)


def _shortened_by_set() -> Planted:
    return _shorten_with(lambda key, _, stripe: (Delete(key), Add(key, stripe.encode(), 0)))


# -- putting stripes back ------------------------------------------------------------------------------

_COMPLETE: Final = Restorer._complete


def _older_heartbeat() -> Planted:
    """A heartbeat counts that was begun before the pending stripe was there."""

    def complete(self: Restorer, record: NodeRecord) -> Procedure[None]:
        self._pending_since = float("-inf")
        yield from _COMPLETE(self, record)

    return _patch(Restorer, "_complete", complete)


def _beat_as(change: Callable[[NodeRecord], dict[str, Any]]) -> Planted:
    """The heartbeat that completes a put-back is taken for another one."""

    def complete(self: Restorer, record: NodeRecord) -> Procedure[None]:
        def ask(step: Any) -> Procedure[Any]:
            answer = yield step
            return replace(answer, **change(record)) if isinstance(answer, Streamed) else answer

        return _relay(_COMPLETE(self, record), ask)

    return _patch(Restorer, "_complete", complete)


def _heartbeat_of_any_primary() -> Planted:
    """A heartbeat counts that was written to another primary than the record follows."""
    return _beat_as(lambda record: {"primary": record.primary})


def _put_back_with_the_floor() -> Planted:
    return _beat_as(lambda record: {"position": record.floor})


def _appended_is_dropped() -> Planted:
    return _patch(PendingStripe, "complete", lambda self, life, position: Stripe(life, position))


def _nonce_ignored() -> Planted:
    original = Restorer._completed

    def completed(self: Restorer, data: bytes, life: bytes, position: Position) -> bytes | None:
        with contextlib.suppress(FormatError):
            self._pending_nonce = PendingStripe.decode(data).nonce
        return original(self, data, life, position)

    return _patch(Restorer, "_completed", completed)


def _put_back_by_set() -> Planted:
    def replace_blindly(
        self: Restorer, record: NodeRecord, numbers: Sequence[int], position: Position
    ) -> Procedure[Sequence[int]]:
        names = stripe_keys(self.policy.namespace, self.policy.lineage, record.stripes)
        for number in numbers:
            (item,) = yield Flow(self.node, (Get(names[number]),))
            data = self._completed(item.value, record.life, position) if isinstance(item, Item) else None
            if data is not None:
                yield Flow(self.node, (Delete(names[number]), Add(names[number], data, 0)))
        return ()

    return _patch(Restorer, "_replace", replace_blindly)


def _put_back_by_add() -> Planted:
    """If the stripe is missing, it is added whole at once."""

    def look(self: Restorer) -> Procedure[None]:
        (item,) = yield Flow(self.node, (Get(record_key(self.policy.namespace, self.policy.lineage)),))
        record = find_record(item, self.node)
        passed = yield ReadStream(0.0)
        if record is None or passed is None or passed.epoch != record.epoch:
            return
        data = Stripe(record.life, passed.position.union(record.progress)).encode()
        for name in stripe_keys(self.policy.namespace, self.policy.lineage, record.stripes):
            (held,) = yield Flow(self.node, (Get(name),))
            if isinstance(held, Item) and find_stripe(held.value, record.life) is None:
                yield Flow(self.node, (Delete(name, held.version),))
            yield Flow(self.node, (Add(name, data, 0),))

    return _patch(Restorer, "look", look)


def _doubt_ignored() -> Planted:
    return _patch(Restorer, "_is_doubtful", lambda *_: False)


def _never_put_back() -> Planted:
    def look(_: Restorer) -> Procedure[None]:
        return
        yield

    return _patch(Restorer, "look", look)


def _before_image_ignored() -> Planted:
    original = freshness.objects.keyfinder._items_of

    def items(definition: Any, table: str, before: Any, after: Any) -> Any:
        return original(definition, table, None if after is not None else before, after)

    return _patch(freshness.objects.keyfinder, "_items_of", items)


# -- publishing ----------------------------------------------------------------------------------------


_ORIGINAL_APPLY: Final = freshness.algorithm.apply.apply_batch


def apply_progress_first(member: Membership, batch: Batch) -> Procedure[None]:
    yield from freshness.algorithm.apply.publish(member, batch)
    member.applied = batch.before
    yield from _ORIGINAL_APPLY(member, batch)


def _progress_first() -> Planted:
    return _patch(freshness.algorithm.applier, "apply_batch", apply_progress_first)


def _previous_not_sent() -> Planted:
    original = ShardInvalidator._place

    def place(self: ShardInvalidator, keys: dict[bytes, Position]) -> Any:
        self.previous = ()
        return original(self, keys)

    return _patch(ShardInvalidator, "_place", place)


def _ring_leaves_at_once() -> Planted:
    """Progress does not wait for readers whose copy of the record names the ring."""

    def serve(*of: Any, **options: Any) -> NodeRecord:
        return replace(serve_record(*of, **options), is_settling=False)

    return _patch(freshness.algorithm.membership, "serve", serve)


def _unknown_ring_published() -> Planted:
    return _patch(freshness.algorithm.membership, "is_of_another_configuration", lambda *_: False)


def _lease_without_heartbeat() -> Planted:
    original = Membership._lease

    def lease(self: Membership, record: NodeRecord, now: float) -> Any:
        wall_us = 0 if self.heartbeat is None else self.heartbeat.wall_us
        self.heartbeat = HeartbeatSeen(now, wall_us, record.primary)
        return original(self, record, now)

    return _patch(Membership, "_lease", lease)


def _foreign_heartbeat() -> Planted:
    def own(self: Applier, beats: Sequence[Heartbeat]) -> HeartbeatSeen | None:
        followed = next((member.joined_record().primary for member in self.joined), "")
        return HeartbeatSeen(self.clock(), beats[-1].min_us, followed) if beats else None

    return _patch(Applier, "find_own_heartbeat", own)


def _one_lease() -> Planted:
    def age_max(self: CacheConfig) -> float:
        return self.max_staleness_seconds - self.lease_seconds - self.node_refresh_seconds

    return _patch(CacheConfig, "heartbeat_age_max_seconds", property(age_max))


def _own_lease() -> Planted:
    """A renewal arrives within the process's own lease, whatever the lease of the previous record."""

    def age(self: Membership, beat: HeartbeatSeen, now: float) -> float:
        return now + self.policy.lease_seconds - beat.written_at

    return _patch(Membership, "_arrival_age", age)


def _node_clock_trusted() -> Planted:
    return _patch(Sightings, "note", lambda *_: None)


def _reordering_replica() -> Planted:
    return _patch(invalidator.replica.server, "_reorders", lambda *_: False)


def _lapse_ignored() -> Planted:
    def reread(self: Membership) -> Procedure[None]:
        read_at = self.clock()
        (reply,) = yield Flow(self.node, (Get(self.record_key, is_bound=True),))
        current = find_record(reply, self.node)
        if current is not None:
            self.adopt(replace(current, progress=self.joined_record().progress), reply, read_at)

    return _patch(Membership, "reread", reread)


def _record_put_back() -> Planted:
    original = Membership.try_store

    def store(self: Membership, record: NodeRecord) -> Procedure[bool]:
        (reply,) = yield Flow(self.node, (Get(self.record_key, is_bound=True),))
        if reply is MISSING:
            yield Flow(self.node, (Add(self.record_key, record.encode(), self.policy.lease_seconds),))
            (item,) = yield Flow(self.node, (Get(self.record_key, is_bound=True),))
            self.version = 0 if item is MISSING else item.version
        return (yield from original(self, record))

    return _patch(Membership, "try_store", store)


def _opened_before_caught_up() -> Planted:
    original = freshness.algorithm.admission._revive

    def revive(member: Membership, resume: NodeRecord) -> Procedure[None]:
        yield from original(member, resume)
        member.target, member.opens_after = None, float("-inf")

    return _patch(freshness.algorithm.admission, "_revive", revive)


def _new_primary_trusted() -> Planted:
    """Records follow any new primary; nobody checks whether anything was lost."""

    def follow(self: Applier, head: Head) -> Procedure[None]:
        members = self.joined
        follows = [member.store(lambda record: replace(record, primary=head.primary)) for member in members]
        self.absences.begin_failed(members, (yield from gather(follows)))

    return _patch(Applier, "_follow_primary", follow)


@contextlib.contextmanager
def _topology_ignored() -> Iterator[None]:
    """By the records and by the heartbeats: either alone is enough, as long as a node keeps its memory."""
    original = HeartbeatWriter.beat

    def beat(self: HeartbeatWriter, sequence: int | None = None) -> int:
        self._deployment["topology"] = 1 << 31
        return original(self, sequence)

    with (
        _patch(freshness.algorithm.membership, "require_topology", lambda *_: None),
        _patch(freshness.algorithm.admission, "require_topology", lambda *_: None),
        _patch(HeartbeatWriter, "beat", beat),
    ):
        yield


def _tenure_ignored() -> Planted:
    def reread(self: Membership) -> Procedure[None]:
        read_at = self.clock()
        (reply,) = yield Flow(self.node, (Get(self.record_key, is_bound=True),))
        mine, current = self.joined_record(), find_record(reply, self.node)
        if current is None or current.life != mine.life:
            raise MembershipLost(f"{self.node}: its life has ended")
        if is_of_another_configuration(current, self.policy):
            raise MembershipLost(f"{self.node}: another configuration")
        self.adopt(current, reply, read_at)

    return _patch(Membership, "reread", reread)


def _second_ring_leaves_at_once() -> Planted:
    """A wait for readers ends as it began, even if another ring leaves before its end."""
    return _patch(freshness.algorithm.apply, "_serves_the_same", lambda *_: True)


def _resume_without_table_floors() -> Planted:
    original = Membership.write_resume

    def write(self: Membership, record: NodeRecord | None = None, *, is_birth: bool = False) -> Procedure[None]:
        bare = replace(record or self.joined_record(), table_floors={})
        yield from original(self, bare, is_birth=is_birth)

    return _patch(Membership, "write_resume", write)


def _readers_not_waited_for() -> Planted:
    return _patch(Membership, "hold_progress", lambda _: None)


def _second_raise_not_waited_for() -> Planted:
    """A raise while readers are waited for is acknowledged at the end of that wait."""
    original = Membership.hold_progress

    def hold(self: Membership) -> None:
        if not self.held:
            original(self)

    return _patch(Membership, "hold_progress", hold)


def _revived_at_the_head() -> Planted:
    original = freshness.algorithm.admission._revive

    def revive(member: Membership, resume: NodeRecord) -> Procedure[None]:
        yield from original(member, resume)
        if member.target is not None:
            member.start_from(member.applied.union(member.target))

    return _patch(freshness.algorithm.admission, "_revive", revive)


def _epoch_ignored() -> Planted:
    """By the rule of fills, by hits and by the joins of nodes."""

    def refusal(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        stripes: Mapping[str, Stripe | None],
        tokens: Mapping[str, EventToken],
    ) -> ReadOutcome | None:
        relabelled = {
            lineage: replace(token, epoch=record.epoch)
            for lineage, token in tokens.items()
            if (record := records.get(lineage)) is not None
        }
        return find_fill_refusal(policy, ring, records, stripes, {**tokens, **relabelled})

    return _patch(freshness.algorithm.fill, "find_fill_refusal", refusal)


def _empty_newborn() -> Planted:
    """Neither the floor nor the objects of a new life begin at the head; each alone suffices."""
    original = Membership.begin_life

    def begin_life(self: Membership) -> Procedure[None]:
        yield from original(self)
        nothing, record = empty_position(self.streamed.flavor), self.joined_record()
        objects = {name: Coverage(each.fingerprint, nothing) for name, each in record.objects.items()}
        self.record = replace(record, floor=nothing, objects=objects)

    return _patch(Membership, "begin_life", begin_life)


# -- own commits ---------------------------------------------------------------------------------------


def _own_commits_ignored_by_hits() -> Planted:
    return _patch(NodeView, "shows", lambda *_: True)


def _own_commits_ignored_by_servers() -> Planted:
    def start(self: ShardDatabase, connection: Any, *_: Any, **__: Any) -> Any:
        return self.read_token(connection)

    return _patch(ShardDatabase, "_read_start", start)


# -- what a miss must show -----------------------------------------------------------------------------


def _requires(change: Callable[[NodeRecord], NodeRecord], *, keeps_stripes: bool = True) -> Planted:
    def required(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        stripes: Mapping[str, Stripe | None],
    ) -> Any:
        seen = {lineage: record and change(record) for lineage, record in records.items()}
        return find_required(policy, ring, seen, stripes if keeps_stripes else {})

    return _patch(freshness.algorithm.fill, "find_required", required)


def _without_progress(record: NodeRecord) -> NodeRecord:
    return replace(record, progress=empty_position(record.progress.flavor))


def _stripe_not_required() -> Planted:
    return _requires(_without_progress, keeps_stripes=False)


def _floor_not_required() -> Planted:
    def without(record: NodeRecord) -> NodeRecord:
        nothing = empty_position(record.floor.flavor)
        starts = {name: replace(one, start=nothing) for name, one in record.objects.items()}
        return replace(record, floor=nothing, objects=starts)

    return _requires(without)


def _ring_start_not_required() -> Planted:
    def without(record: NodeRecord) -> NodeRecord:
        return replace(record, starts=dict.fromkeys(record.starts, empty_position(record.floor.flavor)))

    return _requires(without)


def _table_floors_not_required() -> Planted:
    return _requires(lambda record: replace(record, table_floors={}))


def _absent_requires_nothing() -> Planted:
    return _requires(_without_progress)


def _fresh_without_token() -> Planted:
    return _patch(Pending, "is_shown", lambda self, _: bool(self.required))


# -- reads of the database -----------------------------------------------------------------------------


def _token_of_the_log() -> Planted:
    """A position that is ahead of what a SELECT shows."""
    flavors = dict.fromkeys(("mysql", "mariadb"), "@@global.gtid_binlog_pos")
    return _patch(freshness.stream.heartbeat, "_VISIBLE", flavors)


def _snapshot_first() -> Planted:
    def begin(self: ShardDatabase, connection: Any, address: ServerAddress, *_: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(appclient.database.shard._SNAPSHOT)
        return appclient.database.shard.ShardSnapshot(connection, address, *self.read_token(connection))

    def rows(self: ShardDatabase, table: str, condition: str, params: Sequence[Any], *_: Any) -> Any:
        return self.snapshot(lambda opened: opened.query(f"SELECT * FROM {table} WHERE {condition}", params))

    stack = contextlib.ExitStack()
    stack.enter_context(_patch(ShardDatabase, "_begin", begin))
    stack.enter_context(_patch(ShardDatabase, "rows_with_token", rows))
    return stack


def _any_server() -> Planted:
    """All servers have one name, so a session that was moved is not noticed."""
    return _patch(appclient.database.servers, "NAME_IN_SESSION", dict.fromkeys(("mysql", "mariadb"), "'any'"))


def _token_read_apart() -> Planted:
    """The rows are read again from the next server, and the token is not."""

    def rows(self: ShardDatabase, table: str, condition: str, params: Sequence[Any], *__: Any) -> Any:
        token, _ = self.run(lambda connection, _: self.read_token(connection))
        sql = f"SELECT * FROM {table} WHERE {condition}"
        return self.run(lambda connection, _: LoaderConnection(connection).query(sql, params)), token

    return _patch(ShardDatabase, "rows_with_token", rows)


def _one_domain_for_all() -> Planted:
    """On MariaDB: a reader takes the highest number of any domain for the number of each."""
    original = freshness.stream.heartbeat.parse_token

    def parse(flavor: str, lineage: str, shard: str, rows: Sequence[Sequence[Any]]) -> EventToken | None:
        token = original(flavor, lineage, shard, rows)
        if token is None or flavor != "mariadb":
            return token
        sequences = [last for parts in token.position.intervals().values() for _, last in parts]
        ends = [
            MariadbPosition.of(gtid.domain, gtid.server, max(sequences))
            for gtid in cast(MariadbPosition, token.position).gtids()
        ]
        return replace(token, position=token.position.union_all(ends))

    return _patch(appclient.database.shard, "parse_token", parse)


# -- what others have sent -----------------------------------------------------------------------------


def _failed_part_acknowledged() -> Planted:
    original = Applier.acknowledge

    def acknowledge(self: Applier, raised: Any, before: Any, streamed: Any, beats: Any, permit: Any, _: Any) -> Any:
        yield from original(self, raised, before, streamed, beats, permit, {})

    return _patch(Applier, "acknowledge", acknowledge)


def _holes_acknowledged() -> Planted:
    def ends(lineage: str, parts: Sequence[Part]) -> tuple[Position, Position]:
        first = min((part for part in parts if part.before is not None), key=lambda part: part.first)
        assert first.before is not None
        streamed = [part.streamed for part in parts if part.streamed is not None]
        return first.before, first.before.union_all(streamed)

    return _patch(spark.sink.acknowledger, "require_whole", ends)


# -- keys ----------------------------------------------------------------------------------------------


def _asked_as_text() -> Planted:
    """The database is asked for numbers as they are spelled."""
    parse = KeyColumn.parse

    def parse_others(column: KeyColumn, fine: str) -> object:
        return fine if column.kind in (ColumnKind.INTEGER, ColumnKind.DECIMAL) else parse(column, fine)

    return _patch(KeyColumn, "parse", parse_others)


def _every_key_exact() -> Planted:
    return _patch(KeyColumn, "is_exact", True)


# -- caching nothing -----------------------------------------------------------------------------------


def _only_winners_fill() -> Planted:
    original = freshness.algorithm.read._wait_for_winners

    def wait(context: Any, waiting: Any, demand: Any) -> Procedure[None]:
        yield from original(context, waiting, demand)
        for entry in waiting:
            if entry.is_waiting:
                entry.state = Unstored(ReadOutcome.LOST_RACE)

    def keep(*_: Any) -> Procedure[None]:
        return
        yield

    stack = contextlib.ExitStack()
    stack.enter_context(_patch(freshness.algorithm.read, "_wait_for_winners", wait))
    stack.enter_context(_patch(freshness.algorithm.fill, "_drop_stubs", keep))
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
    "an absent stripe allows": _absent_allows,
    "a pending stripe allows": _pending_allows,
    "a stripe of any life counts": _stripe_of_any_life,
    "stripe read before the stub": _stripe_before_stub,
    "the record of another name is trusted": _name_ignored,
    "life ignored by hits": _life_ignored,
    "table floor ignored by hits": _table_floor_ignored,
    "a view outlives its connection": _view_outlives_connection,
    "a view outlives an interruption": _view_outlives_interruption,
    "a bound of one call is ignored": _own_bound_ignored,
    "the bound of an entry is its position": _bound_is_position,
    "each node has its own progress": _own_progress_alone,
    # Invalidating:
    "delete before stripe": _delete_first,
    "a refused append counts as done": _refused_is_done,
    "keys are not deleted after a refusal": _refused_deletes_once,
    "a pending stripe is not appended to": _pending_left_alone,
    "chunk of the batch before": _chunk_of_the_batch_before,
    "shortened to the first chunk": _shortened_to_the_first_chunk,
    "shortened by set": _shortened_by_set,
    "before-image ignored": _before_image_ignored,
    "numbers are asked for as text": _asked_as_text,
    "every key is taken for exact": _every_key_exact,
    # Putting stripes back:
    "put back with an older heartbeat": _older_heartbeat,
    "put back with another primary's heartbeat": _heartbeat_of_any_primary,
    "put back with the floor alone": _put_back_with_the_floor,
    "what was appended is dropped": _appended_is_dropped,
    "nonce ignored": _nonce_ignored,
    "put back by set": _put_back_by_set,
    "put back by add": _put_back_by_add,
    # Publishing:
    "progress before acknowledge": _progress_first,
    "lease without heartbeat": _lease_without_heartbeat,
    "foreign heartbeat": _foreign_heartbeat,
    "one lease is counted": _one_lease,
    "a longer lease is not counted": _own_lease,
    "the clock of a node is trusted": _node_clock_trusted,
    "a replica that reorders is followed": _reordering_replica,
    "lapse and life ignored": _lapse_ignored,
    "record put back from memory": _record_put_back,
    "opened before it caught up": _opened_before_caught_up,
    "tenure ignored": _tenure_ignored,
    "a new primary is trusted": _new_primary_trusted,
    "topology ignored": _topology_ignored,
    "ring ignored": _ring_ignored,
    "start of a ring ignored by hits": _start_ignored,
    "a previous ring is not sent": _previous_not_sent,
    "start of an object ignored by hits": _object_start_ignored,
    "published while readers are waited for": _published_while_settling,
    "published before the record is covered": _published_uncovered,
    "a ring leaves at once": _ring_leaves_at_once,
    "a second ring leaves at once": _second_ring_leaves_at_once,
    "a ring that is not known is published": _unknown_ring_published,
    "an entry moves at another progress": _moved_as_of_now,
    "object coverage ignored": _coverage_ignored,
    "epoch ignored by fills": _epoch_ignored,
    "resume copy without table floors": _resume_without_table_floors,
    "second raise acknowledged with the first": _second_raise_not_waited_for,
    "table floor acknowledged at once": _readers_not_waited_for,
    "revived without sending again": _revived_at_the_head,
    "floor of a new life is empty": _empty_newborn,
    # Of the sink:
    "a node that failed is acknowledged": _failed_part_acknowledged,
    "a micro-batch with a hole is acknowledged": _holes_acknowledged,
    # With these nothing is cached, and that is found when all faults end (I5):
    "only the holder of a lease may fill": _only_winners_fill,
    "numbers that were never streamed": _hull_of_numbers,
    "a revived node never opens": _target_never_reached,
    "a doubtful stripe is kept": _doubt_ignored,
    "stripes are never put back": _never_put_back,
    "errant transactions in a floor": _nothing,
    # Reads of the database:
    "token of the binlog": _token_of_the_log,
    "snapshot before token": _snapshot_first,
    "a session that was moved is not noticed": _any_server,
    "token and rows are read apart": _token_read_apart,
    "one domain speaks for all": _one_domain_for_all,
    "own commits ignored by hits": _own_commits_ignored_by_hits,
    "own commits ignored by servers": _own_commits_ignored_by_servers,
    "stripe not required of a miss": _stripe_not_required,
    "floor not required of a miss": _floor_not_required,
    "start of a ring not required of a miss": _ring_start_not_required,
    "table floors not required of a miss": _table_floors_not_required,
    "absent stripe requires nothing": _absent_requires_nothing,
    "a miss is fresh without its token": _fresh_without_token,
    # In the world's transport, see `World.bug`:
    "blind set": _nothing,
    "keys move when a node is down": _nothing,
    "timestamps first": _nothing,
    STAYS_OPEN: _nothing,
    BOUND_ANYWHERE: _nothing,
}

KNOWN_SEEDS: Final[dict[str, int]] = {
    "fill without compare": 2,
    "an absent stripe allows": 3,
    "a pending stripe allows": 77,
    "stripe read before the stub": 1,
    "the record of another name is trusted": 1648,
    "life ignored by hits": 10,
    "table floor ignored by hits": 30,
    "a view outlives its connection": 26,
    "a bound of one call is ignored": 35,
    "delete before stripe": 0,
    "a refused append counts as done": 63,
    "a pending stripe is not appended to": 10,
    "chunk of the batch before": 0,
    "shortened to the first chunk": 0,
    "shortened by set": 451,
    "before-image ignored": 34,
    "put back with an older heartbeat": 13,
    "put back with the floor alone": 3,
    "what was appended is dropped": 10,
    "put back by set": 47,
    "put back by add": 14,
    "progress before acknowledge": 0,
    "lapse and life ignored": 22,
    "record put back from memory": 57,
    "opened before it caught up": 433,
    "tenure ignored": 6024,
    "start of a ring ignored by hits": 253,
    "a previous ring is not sent": 41,
    "object coverage ignored": 191,
    "table floor acknowledged at once": 46,
    "revived without sending again": 0,
    "a micro-batch with a hole is acknowledged": 1974,
    "only the holder of a lease may fill": 0,
    "a revived node never opens": 0,
    "stripes are never put back": 0,
    "errant transactions in a floor": 0,
    "blind set": 12,
    "token of the binlog": 2,
    "keys move when a node is down": 581,
    "snapshot before token": 31,
    "a session that was moved is not noticed": 47,
    "own commits ignored by hits": 18,
    "own commits ignored by servers": 31,
    "timestamps first": 2,
    STAYS_OPEN: 294,
    "numbers are asked for as text": 108,
    "stripe not required of a miss": 0,
    "table floors not required of a miss": 30,
    "absent stripe requires nothing": 3,
    "a miss is fresh without its token": 3,
}
"""A seed that catches the bug; ``make sim ARGS=--bugs`` finds new ones when worlds have changed."""

SELDOM_CAUGHT: Final = {
    "nonce ignored": "two invalidators must put back one stripe at once, and a change come between them",
    "foreign heartbeat": "another invalidator must write an old heartbeat while a replica is late by as much",
    "topology ignored": "few worlds change the topology, and the previous one must be back with a record of its own",
    "numbers that were never streamed": "few worlds have numbers that nobody executes, in the floor of a whole table",
    "a view outlives an interruption": "a reader must be interrupted within the second before its node has an "
    "earlier memory again; an exhaustive world finds it",
    BOUND_ANYWHERE: "the memory of a node must be replaced between two requests of an invalidator that revives it",
    "put back with another primary's heartbeat": "two primaries take writes in an exhaustive world alone",
    "every key is taken for exact": "a row must be absent, be asked for by another spelling, and come to be "
    "before the next read",
    "one lease is counted": "a renewal must arrive nearly a lease late, while the stream is stuck and a reader looks",
    "a longer lease is not counted": "as above, and the record before must be of an invalidator with a longer lease",
    "the clock of a node is trusted": "a reader must look within the few seconds that are left of a lease when the "
    "clock goes on; an exhaustive world finds it",
    "a replica that reorders is followed": "few worlds could follow such a replica, and a stripe that is put back "
    "too early shows in few reads",
    "token and rows are read apart": "a session must be lost between the two, and the next one be on a server that "
    "is behind by just what the first one had",
    "one domain speaks for all": "only worlds of MariaDB have domains, and the highest number must be of the domain "
    "that is late",
    "a new primary is trusted": "a reader must have stored just the commit that a failover loses, and ask for it "
    "again before the key changes",
    "a node that failed is acknowledged": "a task of a job must fail on one node alone, and most second attempts "
    "reach it",
    "epoch ignored by fills": "every life of a new epoch has the epoch's own transaction in its floor, which "
    "no server of the previous history shows",
    "a stripe of any life counts": "a new life that keeps the memory of its node is seldom, and its stripes "
    "are put back soon",
    "keys are not deleted after a refusal": "a reader must look within two requests of the invalidator; the "
    "exhaustive world with a refused append finds it",
    "lease without heartbeat": "where the stream is late, so is the heartbeat that puts stripes back",
    "a doubtful stripe is kept": "a failover must lose just what was appended and not acknowledged",
    "floor of a new life is empty": "a stripe that is put back holds all that was streamed, so it holds the "
    "missing floor, too",
    "ring ignored": "few worlds change the ring, and few readers with the previous one still store in them",
    "start of an object ignored by hits": "no world of chance takes a definition back; an exhaustive world does",
    "published while readers are waited for": "the lease must end without a heartbeat, and a reader look just then",
    "published before the record is covered": "a reader must look just then; an exhaustive world finds it",
    "a ring leaves at once": "a reader must look by its copy of the record just then; an exhaustive world finds it",
    "a second ring leaves at once": "as above, and a record must still settle from an earlier change; an exhaustive "
    "world finds it",
    "a ring that is not known is published": "an operator must forget the number of the topology, and both "
    "invalidators go on; an exhaustive world finds it",
    "an entry moves at another progress": "the previous node must be behind the present one; an exhaustive world "
    "finds it",
    "start of a ring not required of a miss": "a replica must lack what was changed while the key was elsewhere, and "
    "its stripe hold none of it",
    "floor not required of a miss": "a stripe that is put back holds a heartbeat from after the floor, and few "
    "replicas apply that first",
    "the bound of an entry is its position": "its reader must read between the engine commit and the batch, and "
    "others before it, a key of the same transaction among them",
    "each node has its own progress": "one node must take a batch, and its key be filled and read, while the "
    "other one does not answer the invalidator and answers readers",
    "second raise acknowledged with the first": "a reader must fill between two raises, and look by its copy of the "
    "record between the ends of their waits",
    "resume copy without table floors": "an entry must outlive a TRUNCATE unread, until its node is revived",
}
"""Why chance cannot show that these defences are needed: another one does the same. A directed schedule shows each.
"""
