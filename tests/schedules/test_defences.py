"""One directed schedule for each defence, and the proof that it needs it.

Each schedule leads into a dangerous situation and returns how the algorithm handled it. It is played twice: with the
code as it is, where every invariant must hold and the danger must really have been reached; and with exactly one
defence taken out, when an invariant must break. A test whose plant breaks nothing would be worthless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from unittest.mock import ANY

import pytest

from freshness.algorithm import admission, apply, envelope, fill, membership, rule
from freshness.algorithm.envelope import (
    Coverage,
    Filled,
    NodeRecord,
    Stamp,
    Stripe,
    record_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.request import (
    DONE,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Flow,
    Get,
    Item,
    Procedure,
    Reply,
    Request,
    Stored,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.view import NodeView
from freshness.errors import FormatError, FreshnessError
from freshness.keys.placement import Placement
from freshness.position import MysqlGtidSet, Position, empty_position
from freshness.position.token import EventToken
from tests.schedules.world import (
    KEY,
    L_SECONDS,
    LINEAGE,
    NAMESPACE,
    NODE,
    NODE_REFRESH_SECONDS,
    ORDER,
    STRIPES,
    Client,
    Invalidator,
    Reader,
    ReadRows,
    ReadToken,
    Replica,
    Run,
    World,
    is_append,
    is_delete,
    is_fill,
    is_record_write,
    lookup,
    version_of,
)

Schedule: TypeAlias = Callable[[World], object]
Plant: TypeAlias = Callable[[World, pytest.MonkeyPatch], None]
STRIPE_KEY = stripe_key(NAMESPACE, LINEAGE, stripe_number(KEY, STRIPES))


def prove(
    schedule: Schedule, danger: object, plant: Plant, invariant: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """``danger``: the schedule's result when it reached the danger and was refused."""
    sound = World(**options)
    assert schedule(sound) == danger
    assert sound.broken == []
    flawed = World(**options)
    plant(flawed, monkeypatch)
    schedule(flawed)
    assert flawed.breaks(invariant), f"the plant broke only {flawed.broken}"


def go_on(run: Run[Any]) -> bool:
    """To the end, whichever it is. Whether it succeeded."""
    run.until(lambda _: False, may_end=True)
    assert run.error is None or isinstance(run.error, FreshnessError)
    return run.error is None


def start(world: World, **changes: Any) -> Invalidator:
    """An invalidator with an open node, whose stripes are all there."""
    one = Invalidator(world, **changes).join()
    one.apply()
    assert world.record(one.node, one.lineage).is_open
    assert one.restorer.is_complete
    return one


def read_lagging(world: World) -> ReadOutcome:
    """A reader whose replica has nothing of what was committed; whatever it stores is then read by another."""
    outcome = Reader(world, world.replica()).read()
    Reader(world, world.replica()).read()
    return outcome


def is_entry(key: bytes) -> bool:
    return not key.startswith(b"shop:!") and not key.endswith(b"!")


RuleOfFills: TypeAlias = Callable[
    [ObjectPolicy, int, Mapping[str, NodeRecord | None], Mapping[str, Stripe | None], Mapping[str, EventToken]],
    ReadOutcome | None,
]


def with_records(change: Callable[[NodeRecord, ObjectPolicy], NodeRecord]) -> RuleOfFills:
    """The rule of fills, which sees other records than the node has."""

    def find(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        stripes: Mapping[str, Stripe | None],
        tokens: Mapping[str, EventToken],
    ) -> ReadOutcome | None:
        changed = {name: record and change(record, policy) for name, record in records.items()}
        return rule.find_fill_refusal(policy, ring, changed, stripes, tokens)

    return find


def without_floor(record: NodeRecord, policy: ObjectPolicy) -> NodeRecord:
    """A record that has forgotten its floor, and the position from which on it covers the object."""
    nothing = empty_position(record.floor.flavor)
    return replace(record, floor=nothing, objects={policy.name: Coverage(policy.fingerprint, nothing)})


def coverage_of_all(record: NodeRecord, _: str, fingerprint: int) -> Coverage:
    """In the place of `NodeRecord.find_coverage`: everything is covered, since ever."""
    return Coverage(fingerprint, empty_position(record.floor.flavor))


# -- the fill ------------------------------------------------------------------------------------------


def test_fill_is_by_cas(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1, F58: a reader is paused between its read and its fill, and the row is changed and invalidated."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        paused = Reader(world, world.replica()).reading().until(is_fill)
        world.commit(KEY)
        one.apply()
        outcome = paused.finish()[0].outcome
        read_lagging(world)
        return outcome

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def blind_set(node: str, request: Request) -> Reply | None:
            if not isinstance(request, Cas) or not is_entry(request.key):
                return None
            world.stores[node].answer(Delete(request.key))
            return world.stores[node].answer(Add(request.key, request.value, request.ttl_seconds))

        world.answer_instead = blind_set

    prove(schedule, ReadOutcome.LOST_RACE, plant, "I1", monkeypatch)


def test_containment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """F3, F4, F16: a long transaction carries the time of its first statement, and commits after a short one that
    began later. A replica that has only the short one gives a token with the later time."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.database.commit(KEY, timestamp_us=100)
        one.apply()
        replica = world.replica()
        replica.timestamp_us = 200
        outcome = Reader(world, replica).read()
        read_lagging(world)
        return outcome

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        def by_time(*arguments: Any) -> ReadOutcome | None:
            refusal = rule.find_fill_refusal(*arguments)
            latest = max(made.timestamp_us for made in world.database.transactions)
            if arguments[4][LINEAGE].timestamp_us > latest and refusal is ReadOutcome.STRIPE:
                return None
            return refusal

        patch.setattr(fill, "find_fill_refusal", by_time)

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_the_floor_holds_what_was_before_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """F6, F16: stripes say nothing of events that are older than the life. A replica still lacks one. (A new life
    covers its objects from the same position on, so the plant forgets both.)"""

    def schedule(world: World) -> ReadOutcome:
        world.commit(KEY)
        start(world)
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "find_fill_refusal", with_records(without_floor))

    prove(schedule, ReadOutcome.FLOOR, plant, "I1", monkeypatch)


def test_the_append_comes_before_the_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: a whole lagging read takes place between the two requests of an invalidation."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        half = one.applying().until_kind(Append, Delete)
        half.advance()
        outcome = read_lagging(world)
        half.finish()
        Reader(world, world.replica()).read()
        return outcome

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def delete_first(requests: Sequence[Request]) -> Sequence[int]:
            return sorted(range(len(requests)), key=lambda index: not is_delete(requests[index]))

        world.order = delete_first

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_stripes_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """F48: of two invalidators the one that is behind sends last, and has streamed less."""

    def schedule(world: World) -> ReadOutcome:
        one, two = start(world), start(world)
        first = world.commit(KEY)
        late = two.applying().until(is_append)
        world.commit(KEY)
        one.apply()
        go_on(late)
        outcome = Reader(world, world.replica(first)).read()
        Reader(world, world.replica()).read()
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def the_last(position: Position, life: bytes, chunks: Any) -> Position:
            return next((at for name, at in reversed(list(chunks)) if name == life), position)

        patch.setattr(envelope, "_unite", the_last)

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_a_later_event_does_not_imply_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """F56: a replica that commits out of order has the second event of a key, and not the first."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        second = world.commit(KEY)
        one.apply()
        outcome = Reader(world, world.replica(second)).read()
        Reader(world, world.replica()).read()
        return outcome

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        def of_the_last(data: bytes, life: bytes) -> Stripe | None:
            found, made = envelope.find_stripe(data, life), world.database.transactions[-1]
            return found and replace(found, position=made.position)

        patch.setattr(fill, "find_stripe", of_the_last)

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_the_stripe_is_read_after_the_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/algorithm.md#reading: the fill is held against the stripe as it is once the stub is there. A copy of
    the stripe, as hits have one of the record, would be of a time at which nothing had been deleted yet."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        return read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        copies: list[Item] = []

        def a_copy(node: str, request: Request) -> Reply | None:
            if not isinstance(request, Get) or request.key != STRIPE_KEY:
                return None
            if not copies and world.find_stripe() is not None:
                copies.append(world.stores[node].peek(STRIPE_KEY) or Item(b"", 0))
            return copies[0] if copies else None

        def remember(requests: Sequence[Request]) -> Sequence[int]:
            a_copy(NODE, Get(STRIPE_KEY))
            return range(len(requests))

        world.answer_instead, world.order = a_copy, remember

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_token_is_read_before_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """F17: a replica applies the event between the two halves of a load."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        replica = world.replica()
        world.commit(KEY)
        one.apply()
        paused = Reader(world, replica).reading().until_kind(ReadRows)
        replica.catch_up()
        outcome = paused.finish()[0].outcome
        Reader(world, replica).read()
        return outcome

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        world.reads_rows_first = True

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_token_is_what_a_server_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: the log is ahead of what a SELECT sees. A token of the log would label old rows as new."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        return read_lagging(world)

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        token = Replica.token

        def of_the_log(self: Replica) -> EventToken:
            return replace(token(self), position=world.database.head)

        patch.setattr(Replica, "token", of_the_log)

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_a_key_does_not_move_when_its_node_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: invalidations go only to the node to which the key belongs."""

    def schedule(world: World) -> ReadOutcome:
        ring = Placement(tuple(world.stores))
        home = world.places[KEY] = ring.node_for(KEY)
        start(world, node=home)
        second = start(world, node=next(node for node in world.stores if node != home))
        world.stores[home].down = True
        outcome = Reader(world, world.replica()).read(lookup(node=ring.node_for(KEY)))
        world.commit(KEY)
        second.apply()
        Reader(world, world.replica()).read(lookup(node=ring.node_for(KEY)))
        return outcome

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        node_for = Placement.node_for

        def elsewhere(self: Placement, key: bytes) -> str:
            home = node_for(self, key)
            return next(node for node in self.nodes if node != home) if world.stores[home].down else home

        patch.setattr(Placement, "node_for", elsewhere)

    prove(schedule, ReadOutcome.NODE_DOWN, plant, "I1", monkeypatch, nodes=("n1", "n2"))


# -- lives ---------------------------------------------------------------------------------------------


def test_life_of_a_restarted_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """F7, F8, F9: a node restarts between a reader's guards and its fill, and is admitted again; a stub of another
    reader has the very version. The fill succeeds as an entry of the previous life, which is garbage."""

    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome]:
        world.repeat_version(60)
        one = start(world)
        paused = Reader(world, world.replica()).reading().until(is_fill)
        seen = version_of(world, KEY)
        world.restart()
        world.commit(KEY)
        paused.client = one.client = Client(world)
        one.join()
        one.apply()
        world.repeat_version(seen)
        Reader(world, world.replica()).reading().until_kind(ReadToken)
        assert version_of(world, KEY) == seen
        return paused.finish()[0].outcome, read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def judge(
            _: NodeView, __: ObjectPolicy, identity: bytes, data: bytes
        ) -> tuple[ReadOutcome | None, bytes | None]:
            entry = Filled.decode(data)
            return (None, entry.value) if entry.identity == identity else (ReadOutcome.IDENTITY, None)

        patch.setattr(NodeView, "judge", judge)

    prove(schedule, (ReadOutcome.FILLED, ReadOutcome.FLOOR), plant, "I1", monkeypatch)


def test_life_before_and_after_the_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """F8: a node restarts between a reader's stub and its guards. The reader's version is from the previous
    incarnation, and would match a stub that is younger than its guards."""

    def schedule(world: World) -> ReadOutcome:
        world.repeat_version(60)
        one = start(world)
        paused = Reader(world, world.replica()).reading().until_kind(Get, key=STRIPE_KEY)
        seen = version_of(world, KEY)
        world.restart()
        paused.client = one.client = Client(world)
        one.join()
        one.apply()
        paused.until_kind(ReadRows).advance()
        world.commit(KEY)
        one.apply()
        world.repeat_version(seen)
        Reader(world, world.replica()).reading().until_kind(ReadToken)
        assert version_of(world, KEY) == seen
        outcome = paused.finish()[0].outcome
        Reader(world, world.replica()).read()
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "_life_of", lambda *_: ANY)  # equal to every life

    prove(schedule, ReadOutcome.LIFE, plant, "I1", monkeypatch)


# -- progress, floor, lease ----------------------------------------------------------------------------


def test_progress_follows_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: the invalidations are lost on the way and the process dies; the next one resumes from the record."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        made = world.commit(KEY)
        run = one.applying().until(is_append)
        run.lose_request()
        assert not go_on(run)
        is_claimed = world.record().progress.contains(made.position)
        start(world)
        return is_claimed, read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        send = apply._send

        def eager(member: membership.Membership, batch: apply.Batch) -> Procedure[Sequence[int]]:
            yield from apply.publish(member, batch)
            return (yield from send(member, batch))

        patch.setattr(apply, "_send", eager)

    prove(schedule, (False, ReadOutcome.STRIPE), plant, "I1", monkeypatch)


def test_record_is_never_put_back_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: a lease is decided, and the process paused for two minutes before it is stored."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        world.sleep(0.9)
        paused = one.applying().until(is_record_write)
        world.commit(KEY)
        world.sleep(60)
        return go_on(paused), Reader(world, world.replica()).read()

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def add_again(node: str, request: Request) -> Reply | None:
            if not is_record_write(request) or not isinstance(request, Cas):
                return None
            reply = world.stores[node].answer(request)
            if reply is not MISSING:
                return reply
            world.stores[node].answer(Add(request.key, request.value, request.ttl_seconds))
            return Stored(version_of(world, request.key, node))

        world.answer_instead = add_again

    prove(schedule, (False, ReadOutcome.NO_RECORD), plant, "I7", monkeypatch)


def test_a_lapsed_record_is_not_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: as above, but the record is put back before the lease is decided."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        world.sleep(0.9)
        paused = one.applying().until_kind(Get, Cas, key=record_key(NAMESPACE, LINEAGE))
        world.commit(KEY)
        world.sleep(60)
        while paused.pending is not None:
            paused.advance()
            outcome = Reader(world, world.replica()).read()
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        store = membership.Membership.try_store

        def put_back(member: membership.Membership, record: NodeRecord) -> Procedure[bool]:
            (reply,) = yield Flow(member.node, (Get(member.record_key),))
            if reply is MISSING:
                yield Flow(member.node, (Add(member.record_key, record.encode(), 4),))
                (item,) = yield Flow(member.node, (Get(member.record_key),))
                member.version = item.version
            return (yield from store(member, record))

        patch.setattr(membership.Membership, "try_store", put_back)

    prove(schedule, ReadOutcome.NO_RECORD, plant, "I7", monkeypatch)


def test_a_duplicate_deletes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """F48, F74: the first sender died between append and delete."""

    def schedule(world: World) -> ReadOutcome:
        one, two = start(world), start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        made = world.commit(KEY)
        one.applying().until(is_delete)
        stripe = world.find_stripe()
        assert stripe is not None
        assert stripe.position.contains(made.position)
        two.apply()
        return read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        is_new = False

        def delete_only_behind_a_new_chunk(node: str, request: Request) -> Reply | None:
            nonlocal is_new
            if isinstance(request, Append) and request.key == STRIPE_KEY:
                held = world.stores[node].peek(request.key)
                assert held is not None
                is_new = request.value not in held.value
            elif isinstance(request, Delete) and request.key == KEY and is_delete(request):
                return None if is_new else DONE
            return None

        world.answer_instead = delete_only_behind_a_new_chunk

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


def test_lease_follows_the_own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """F13, F71, I7: the stream stands still, and the invalidator lives and renews."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        world.commit(KEY)
        while world.now < 1040:
            world.sleep(1.5)
            go_on(one.renewing())
        return Reader(world, world.replica()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        lease = membership.Membership._lease

        def always_open(member: membership.Membership, record: NodeRecord, now: float) -> tuple[NodeRecord, int]:
            wall_us = 0 if member.heartbeat is None else member.heartbeat.wall_us
            member.heartbeat = membership.HeartbeatSeen(now, wall_us)
            return lease(member, record, now)

        patch.setattr(membership.Membership, "_lease", always_open)

    prove(schedule, ReadOutcome.CLOSED, plant, "I7", monkeypatch)


# -- tables, objects, rings ----------------------------------------------------------------------------


def test_table_floor_is_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """F21, F68: rows are read from a replica that has not seen a TRUNCATE, after the table floor was raised. A
    number of the generation would label them as read after it."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(raised=["customers"])
        one.apply()
        return read_lagging(world)

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        def labelled_when_stored(lineage: str, life: bytes, epoch: int, position: Position, _: object) -> Stamp:
            for floor in world.record().table_floors.values():
                position = position.union(floor)
            return Stamp(lineage, life, epoch, position)

        def without_table_floors(record: NodeRecord, _: ObjectPolicy) -> NodeRecord:
            return replace(record, table_floors={})

        patch.setattr(fill, "Stamp", labelled_when_stored)
        patch.setattr(fill, "find_fill_refusal", with_records(without_table_floors))

    prove(schedule, ReadOutcome.TABLE_FLOOR, plant, "I1", monkeypatch)


def test_table_floor_condemns_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """F21: nobody knows the keys that a TRUNCATE concerns, so hits are held against the table floor."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        world.commit(raised=["customers"])
        one.apply()
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(NodeView, "_is_covered", lambda *_: True)

    prove(schedule, ReadOutcome.TABLE_FLOOR, plant, "I1", monkeypatch)


def test_a_raise_is_acknowledged_after_views_have_aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """F21: hits trust a copy of the record for ``node_refresh_seconds``."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        reader = Reader(world, world.replica())
        assert reader.read() is ReadOutcome.FILLED
        world.commit(raised=["customers"])
        one.apply()
        return reader.read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(membership.Membership, "hold_progress", lambda _: None)

    prove(schedule, ReadOutcome.TABLE_FLOOR, plant, "I1", monkeypatch)


def test_a_raise_is_not_acknowledged_with_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """F21: a second raise while progress is held for the first one. A reader's entry and its copy of the record are
    of the time between the two."""

    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        one = start(world)
        world.commit(raised=["customers"])
        one.applying().finish()
        world.sleep(NODE_REFRESH_SECONDS / 2)
        reader = Reader(world, world.replica().catch_up())
        assert reader.read() is ReadOutcome.FILLED
        second = world.commit(raised=["customers"])
        one.applying().finish()
        world.sleep(NODE_REFRESH_SECONDS / 2)
        one.renewing().finish()
        return reader.read(), world.record().progress.contains(second.position)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        hold = membership.Membership.hold_progress

        def hold_once(self: membership.Membership) -> None:
            if not self.held:
                hold(self)

        patch.setattr(membership.Membership, "hold_progress", hold_once)

    prove(schedule, (ReadOutcome.HIT, False), plant, "I1", monkeypatch)


def test_an_object_that_is_not_covered_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """F70: the application is deployed before the invalidator."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        order = lookup(1, ORDER)
        outcome = Reader(world, world.replica()).read(order)
        world.commit(order.item)
        one.apply()
        Reader(world, world.replica()).read(order)
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(NodeRecord, "find_coverage", coverage_of_all)

    prove(schedule, ReadOutcome.OBJECT, plant, "I1", monkeypatch)


def test_another_ring_neither_fills_nor_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """F10, F69: a node is added, the key moves to it, and a client of the old ring goes on as before."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        world.sleep(6)
        first, second = (start(world, node=node, ring=8) for node in world.stores)
        world.places[KEY] = second.node
        old = Reader(world, world.replica())
        outcome = old.read()
        world.commit(KEY)
        first.apply()
        second.apply()
        old.read()
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        find_start = NodeRecord.find_start
        patch.setattr(NodeRecord, "find_start", lambda record, _: find_start(record, record.rings))

    prove(schedule, ReadOutcome.RING, plant, "I1", monkeypatch, nodes=("n1", "n2"))


def test_a_source_closes_before_its_keys_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 0017: a key moves to a shard with its own history, and is written there. A reader that still has the old
    shards reads the source, whose history and stripes do not show that."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        target = start(world, lineage="shop/80-")
        source = Invalidator(world, is_serving=False).join()
        source.apply()
        world.databases["shop/80-"].commit(KEY)
        for _ in range(2 * L_SECONDS):
            target.apply()
            source.apply()
            world.sleep(1)
        return Reader(world, [Replica(database) for database in world.databases.values()]).read()

    lineages = LINEAGE, "shop/80-"
    assert schedule(World(lineages=lineages)) is ReadOutcome.CLOSED
    lease = membership.Membership._lease

    def stay_open(member: membership.Membership, record: NodeRecord, now: float) -> Any:
        member.policy = replace(member.policy, is_serving=True)
        return lease(member, record, now)

    monkeypatch.setattr(membership.Membership, "_lease", stay_open)
    assert schedule(World(lineages=lineages)) is ReadOutcome.FILLED


def read_the_source(world: World) -> ReadOutcome:
    """By a reader that does not know yet that the keys have moved."""
    return Reader(world, [Replica(database) for database in world.databases.values()]).read()


def test_a_previous_topology_opens_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 0025: an invalidator of the old topology stands still, or restarts with the old file, while the source is
    closed and its keys move. Its own heartbeat is young as soon as it goes on."""

    def schedule(pause_seconds: float) -> ReadOutcome:
        world = World(lineages=(LINEAGE, "shop/80-"))
        previous = start(world)
        source = Invalidator(world, is_serving=False, topology=2).join()
        source.apply()
        world.databases["shop/80-"].commit(KEY)
        world.sleep(pause_seconds)
        for _ in range(3):
            run = previous.applying() if previous.member.is_joined else previous.joining()
            run.until(lambda _: False, may_end=True)
        previous.look()
        return read_the_source(world)

    # After the second pause the record has lapsed, and only its copy names the number
    pauses = {1.0: ReadOutcome.CLOSED, 2.0 * L_SECONDS: ReadOutcome.NO_RECORD}
    assert {pause: schedule(pause) for pause in pauses} == pauses
    monkeypatch.setattr(membership, "require_topology", lambda *_: None)
    monkeypatch.setattr(admission, "require_topology", lambda *_: None)
    assert {schedule(pause) for pause in pauses} == {ReadOutcome.FILLED}


def test_the_number_of_a_topology_is_in_the_resume_copy_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invalidator that closed the source dies at once, and the record lapses."""

    def schedule(world: World) -> bool:
        previous = start(world)
        previous.live(2)  # its resume copy is there
        closing = Invalidator(world, is_serving=False, topology=2).joining()
        closing.until(lambda action: is_record_write(action))
        closing.advance()
        world.sleep(2 * L_SECONDS)
        previous.member.leave()
        previous.joining().until(lambda _: False, may_end=True)
        return previous.member.is_joined

    assert not schedule(World())
    write_resume = membership.Membership.write_resume

    def write_late(member: membership.Membership, record: NodeRecord | None = None, *, is_birth: bool = False) -> Any:
        if record is None or record.topology == 1:
            yield from write_resume(member, record, is_birth=is_birth)

    monkeypatch.setattr(membership.Membership, "write_resume", write_late)
    assert schedule(World())


def test_a_key_moved_by_its_definition_is_not_trusted_under_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """F44, F70: the record covers an object of that name, in another definition."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        changed = lookup(1, replace(lookup().policy, fingerprint=99))
        outcome = Reader(world, world.replica()).read(changed)
        assert one.member.is_joined
        return outcome

    world = World()
    assert schedule(world) is ReadOutcome.OBJECT
    monkeypatch.setattr(NodeRecord, "find_coverage", coverage_of_all)
    assert schedule(World()) is ReadOutcome.FILLED


def test_foreign_bytes_in_a_stripe_are_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger overwrites a stripe: doubt never fills."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.evict_stripe()
        world.stores[NODE].answer(Add(STRIPE_KEY, b"somebody else's", 60))
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def lenient(data: bytes, life: bytes) -> Stripe | None:
            try:
                return Stripe.decode(data)
            except FormatError:
                return Stripe(life, MysqlGtidSet())

        patch.setattr(fill, "find_stripe", lenient)

    prove(schedule, ReadOutcome.STRIPE_ABSENT, plant, "I1", monkeypatch)
