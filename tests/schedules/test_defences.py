"""One directed schedule for each defence, and the proof that it needs it.

Each schedule leads into a dangerous situation and says what the algorithm made of it. It is played twice: as the
code stands, where every invariant must hold and the danger must really have been reached; and with exactly one
defence planted out, where an invariant must break. A test whose plant breaks nothing would be worthless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from freshness.algorithm import admission, apply, membership, read, rule, view
from freshness.algorithm.envelope import Coverage, Filled, NodeRecord, Stamp, Tombstone, record_key
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.request import (
    DONE,
    MISSING,
    Add,
    Cas,
    Delete,
    Flow,
    Get,
    InspectStorage,
    Item,
    Procedure,
    Reply,
    Request,
    Stored,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.view import NodeView
from freshness.errors import FormatError, FreshnessError
from freshness.keys.cachekey import tombstone_key
from freshness.position import Position, empty_position
from freshness.position.token import EventToken
from tests.schedules.world import (
    KEY,
    LINEAGE,
    NAMESPACE,
    NODE,
    ORDER,
    Client,
    Invalidator,
    Reader,
    ReadRows,
    ReadToken,
    Replica,
    Run,
    World,
    is_delete,
    is_fill,
    is_record_write,
    lookup,
    version_of,
)

Schedule: TypeAlias = Callable[[World], object]
Plant: TypeAlias = Callable[[World, pytest.MonkeyPatch], None]
MARKER = tombstone_key(KEY)


def prove(
    schedule: Schedule,
    danger: object,
    plant: Plant,
    invariant: str,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> None:
    """``danger``: what the schedule returns when it got where it wanted and was refused."""
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
    """An invalidator with an open node."""
    one = Invalidator(world, **changes).join()
    one.apply()
    assert world.record(one.node, one.lineage).is_open
    return one


def read_lagging(world: World) -> ReadOutcome:
    """A reader whose replica has nothing of what was committed; whatever it stores is then read by another."""
    outcome = Reader(world, world.replica()).read()
    Reader(world, world.replica()).read()
    return outcome


def is_entry(key: bytes) -> bool:
    return not key.startswith(b"shop:!") and not key.endswith(b"!")


RuleOfFills: TypeAlias = Callable[
    [ObjectPolicy, int, Mapping[str, NodeRecord | None], Tombstone | None, Mapping[str, EventToken]],
    ReadOutcome | None,
]


def with_records(change: Callable[[NodeRecord, ObjectPolicy], NodeRecord]) -> RuleOfFills:
    """The rule of fills, which sees other records than the node has."""

    def find(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        tombstone: Tombstone | None,
        tokens: Mapping[str, EventToken],
    ) -> ReadOutcome | None:
        changed = {name: record and change(record, policy) for name, record in records.items()}
        return rule.find_fill_refusal(policy, ring, changed, tombstone, tokens)

    return find


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
            if arguments[4][LINEAGE].timestamp_us > latest and refusal is ReadOutcome.TOMBSTONE:
                return None
            return refusal

        patch.setattr(read, "find_fill_refusal", by_time)

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


def test_floor_outlives_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5, F6: the tombstone has expired, and a replica still lacks the event."""

    def schedule(world: World) -> tuple[object, ReadOutcome]:
        one = start(world)
        world.commit(KEY)
        one.live(125)
        return world.find_tombstone(KEY), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def without_floor(record: NodeRecord, _: ObjectPolicy) -> NodeRecord:
            return replace(record, floor=empty_position(record.floor.flavor))

        patch.setattr(read, "find_fill_refusal", with_records(without_floor))

    prove(schedule, (None, ReadOutcome.FLOOR), plant, "I1", monkeypatch)


def test_tombstone_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """F63: an up-to-date reader fills, the entry is evicted, and a lagging reader finds nothing."""

    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome]:
        one = start(world)
        made = world.commit(KEY)
        one.apply()
        first = Reader(world, world.replica(made)).read()
        world.stores[NODE].evict(KEY)
        return first, read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def fill_takes_tombstone(node: str, request: Request) -> Reply | None:
            if isinstance(request, Cas) and is_entry(request.key):
                world.stores[node].evict(tombstone_key(request.key))
            return None

        world.answer_instead = fill_takes_tombstone

    prove(schedule, (ReadOutcome.FILLED, ReadOutcome.TOMBSTONE), plant, "I1", monkeypatch)


def test_tombstone_comes_before_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: a whole lagging read takes place between the two requests of an invalidation."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        half = one.applying().until_kind(Add, Delete)
        half.advance()
        outcome = read_lagging(world)
        half.finish()
        Reader(world, world.replica()).read()
        return outcome

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def delete_first(requests: Sequence[Request]) -> Sequence[int]:
            return sorted(range(len(requests)), key=lambda index: not is_delete(requests[index]))

        world.order = delete_first

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


def test_tombstones_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
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

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def replaced(_: Tombstone, lineage: str, epoch: int, position: Position) -> Tombstone:
            return Tombstone.of(lineage, epoch, position)

        patch.setattr(Tombstone, "union", replaced)

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


def test_tombstone_is_read_before_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/algorithm.md#reading: paused between the two, the tombstone expires and the floor takes over. The other
    order sees the record of before and the tombstone of after."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        one.live(5.5)
        world.commit(KEY)
        one.live(113)
        reader = Reader(world, world.replica())
        reader.context.fill_lease_ttl_seconds = 60
        paused = reader.reading()
        while len(paused.steps) < 2:
            paused.advance()
        paused.advance()  # the first of the guards
        one.live(128)
        assert world.find_tombstone(KEY) is None
        outcome = paused.finish()[0].outcome
        read_lagging(world)
        return outcome

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def record_first(requests: Sequence[Request]) -> Sequence[int]:
            return sorted(
                range(len(requests)), key=lambda index: getattr(requests[index], "key", b"") == MARKER
            )

        world.order = record_first

    prove(schedule, ReadOutcome.FLOOR, plant, "I1", monkeypatch)


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

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


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

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


def test_a_key_does_not_move_when_its_node_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: invalidations go where the key belongs. Nobody tells another node."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        second = start(world, node="n2")
        world.stores[NODE].down = True
        outcome = Reader(world, world.replica()).read()
        world.commit(KEY)
        second.apply()
        Reader(world, world.replica()).read()
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        reading = Reader.reading

        def elsewhere(self: Reader, *lookups: Lookup, max_staleness_seconds: float | None = None) -> Any:
            moved = [replace(each, node="n2") for each in lookups or (lookup(),)]
            return reading(self, *moved, max_staleness_seconds=max_staleness_seconds)

        patch.setattr(Reader, "reading", elsewhere)

    prove(schedule, ReadOutcome.NODE_DOWN, plant, "I1", monkeypatch, nodes=("n1", "n2"))


# -- lives ---------------------------------------------------------------------------------------------


def test_life_of_a_restarted_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """F7, F8, F9: a node restarts between a reader's guards and its fill, and is admitted again; a stub of another
    reader has the very version. The fill succeeds, as an entry of the former life: garbage."""

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
    """F8: a node restarts between a reader's stub and its guards. The version it holds is of the former
    incarnation, and would match a stub that is younger than its guards."""

    def schedule(world: World) -> ReadOutcome:
        world.repeat_version(60)
        one = start(world)
        paused = Reader(world, world.replica()).reading().until_kind(Get, key=MARKER)
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
        class Lifeless(NodeView):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.lives = {}

        patch.setattr(read, "NodeView", Lifeless)

    prove(schedule, ReadOutcome.LIFE, plant, "I1", monkeypatch)


def test_lost_tombstones_end_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """F51, F67: a node drops what it must not evict, and only a counter tells."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.sleep(0.5)
        world.stores[NODE].losses += 1
        world.sleep(0.6)
        one.apply()
        world.stores[NODE].evict(MARKER)
        one.apply()
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def trusting(_: object) -> Procedure[None]:
            return
            yield

        patch.setattr(apply, "_inspect", trusting)

    prove(schedule, ReadOutcome.FLOOR, plant, "I1", monkeypatch)


def test_who_joins_counts_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """F67: a tombstone is lost and the old value stored, and the invalidator dies before it looks. The next one joins
    the record, whose losses are those of before."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.lose_tombstone(KEY)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        start(world)
        return Reader(world, world.replica()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(admission, "_may_have_lost_tombstones", lambda *_: False)

    monkeypatch.setattr(World, "_check_protection", lambda *_: None)
    prove(schedule, ReadOutcome.FLOOR, plant, "I1", monkeypatch)


# -- progress, floor, lease ----------------------------------------------------------------------------


def test_progress_follows_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: the invalidations are lost on the way and the process dies; the next one resumes from the record."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        made = world.commit(KEY)
        run = one.applying().until_kind(Add)
        run.lose_request()
        assert not go_on(run)
        is_claimed = world.record().progress.contains(made.position)
        start(world)
        return is_claimed, read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def eager(member: membership.Membership, batch: apply.Batch) -> Procedure[None]:
            before = member.applied
            yield from apply.publish(member, apply._Sent(member.clock(), batch))
            member.applied = before
            yield from apply._send(member, batch)

        patch.setattr("tests.schedules.world.apply_batch", eager)

    prove(schedule, (False, ReadOutcome.TOMBSTONE), plant, "I1", monkeypatch)


def test_events_enter_progress_while_their_tombstone_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """F65: one invalidator sends a tombstone and is paused; another, whose stream stands still, keeps the lease
    open without that event for two minutes; then the first goes on. (Its floor takes in what is older than W by the
    same CAS, so the age counts in two places; the plant forgets the age in both.)"""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        patient = {"heartbeat_age_max_seconds": 290.0}
        one, two = start(world, **patient), start(world, **patient)
        world.sleep_until(1)
        made = world.commit(KEY)
        paused = one.applying().until(is_delete)
        while world.now < 1118:
            world.sleep(1.5)
            go_on(two.renewing())
        is_claimed = world.record().progress.contains(made.position)
        go_on(paused)
        world.sleep(4)
        return is_claimed, read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        send = apply._send

        def send_and_forget_when(member: membership.Membership, batch: apply.Batch) -> Procedure[apply._Sent]:
            yield from send(member, batch)
            if member.recent:
                member.recent[-1] = (member.clock(), batch.streamed)
            return apply._Sent(member.clock(), batch)

        patch.setattr(apply, "_send", send_and_forget_when)

    prove(schedule, (False, ReadOutcome.FLOOR), plant, "I1", monkeypatch)


def test_what_has_unknown_age_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: an invalidator takes over a live record. When its progress was sent, nobody knows."""

    def schedule(world: World) -> tuple[object, ReadOutcome]:
        one = start(world)
        world.commit(KEY)
        one.live(100)
        two = Invalidator(world).join()
        two.live(130)
        return world.find_tombstone(KEY), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def dated_from_now(
            member: membership.Membership, record: NodeRecord, item: Item, read_at: float
        ) -> None:
            member.start_from(record.progress)
            member.old = empty_position(record.progress.flavor)
            member.adopt(record, item, read_at)

        patch.setattr(admission, "_start_from", dated_from_now)

    prove(schedule, (None, ReadOutcome.FLOOR), plant, "I1", monkeypatch)


def test_what_the_other_one_sent_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64, ADR 0016: one invalidator acknowledges an event and dies. The other, whose stream stands still, keeps the
    record, and has not sent that event."""

    def schedule(world: World) -> tuple[object, ReadOutcome]:
        one, two = (start(world, heartbeat_age_max_seconds=290.0) for _ in range(2))
        world.commit(KEY)
        one.apply()
        while world.now < 1125:
            world.sleep(1.5)
            two.renewing().finish()
        return world.find_tombstone(KEY), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def forget(member: membership.Membership) -> None:
            if member.foreign is not None:
                member.known, member.foreign = member.known.union(member.foreign), None

        patch.setattr(membership.Membership, "take_foreign_for_old", forget)

    prove(schedule, (None, ReadOutcome.FLOOR), plant, "I1", monkeypatch)


def test_record_is_never_put_back_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: a floor is computed, and the process paused for longer than any tombstone lives."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.sleep(0.9)
        paused = one.applying().until(is_record_write)
        world.sleep(125)
        is_stored = go_on(paused)
        if not is_stored:
            start(world)
        return is_stored, read_lagging(world)

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

    prove(schedule, (False, ReadOutcome.FLOOR), plant, "I1", monkeypatch)


def test_a_lapsed_record_is_not_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: as above, and whoever puts the record back does it before the floor is computed anew."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.sleep(0.9)
        paused = one.applying().until_kind(Get, Cas, key=record_key(NAMESPACE, LINEAGE))
        world.sleep(125)
        while paused.pending is not None:
            paused.advance()
            read_lagging(world)
        start(world)
        return read_lagging(world)

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

    prove(schedule, ReadOutcome.FLOOR, plant, "I1", monkeypatch)


def test_a_duplicate_renews_the_tombstone(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: the first sender of an event died unacknowledged 20 s before the second sends it. The second counts
    its age from its own sending, so the tombstone must, too."""

    def schedule(world: World) -> ReadOutcome:
        one, two = (start(world, heartbeat_age_max_seconds=24.0) for _ in range(2))
        made = world.commit(KEY)
        one.applying().until(is_delete).advance()
        while world.now < 1019:
            world.sleep(1.5)
            go_on(two.renewing())
        assert not world.record().progress.contains(made.position)
        two.live(123)
        assert not world.record().floor.contains(made.position)
        return read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def keep_age(node: str, request: Request) -> Reply | None:
            held = world.stores[node].peek(request.key) if isinstance(request, Cas) else None
            if isinstance(request, Cas) and held is not None and request.value == held.value:
                return Stored(held.version) if request.key.endswith(b"!") else None
            return None

        world.answer_instead = keep_age

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


def test_a_duplicate_deletes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """F48: the first sender died between tombstone and delete."""

    def schedule(world: World) -> ReadOutcome:
        one, two = start(world), start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        world.commit(KEY)
        one.applying().until(is_delete)
        assert world.find_tombstone(KEY) is not None
        two.apply()
        return read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        stored: dict[bytes, bool] = {}

        def delete_only_behind_a_store(node: str, request: Request) -> Reply | None:
            if isinstance(request, Add | Cas) and request.key.endswith(b"!"):
                held = world.stores[node].peek(request.key)
                reply = world.stores[node].answer(request)
                is_new = held is None or (isinstance(request, Cas) and request.value != held.value)
                stored[request.key] = isinstance(reply, Stored) and is_new
                return reply
            if isinstance(request, Delete) and is_delete(request):
                return None if stored.get(tombstone_key(request.key), True) else DONE
            return None

        world.answer_instead = delete_only_behind_a_store

    prove(schedule, ReadOutcome.TOMBSTONE, plant, "I1", monkeypatch)


def test_lease_follows_the_own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """F13, F71, I7: the stream stands still, and the invalidator lives and renews."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        world.commit(KEY)
        while world.now < 1060:
            world.sleep(1.5)
            go_on(one.renewing())
        return Reader(world, world.replica()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def always_open(
            member: membership.Membership, record: NodeRecord, now: float
        ) -> tuple[NodeRecord, int]:
            return replace(record, is_open=True), member.policy.lease_seconds - 1

        patch.setattr(membership.Membership, "_lease", always_open)

    prove(schedule, ReadOutcome.CLOSED, plant, "I7", monkeypatch)


def test_head_mode_raises_the_floor_before_the_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: a node that may evict tombstones does so at once."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        sending = one.applying().until(is_delete)
        sending.advance()
        world.stores[NODE].evict(MARKER)
        outcome = read_lagging(world)
        sending.finish()
        Reader(world, world.replica()).read()
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def later(*_: object) -> Procedure[None]:
            return
            yield

        patch.setattr(apply, "_raise_floors", later)

    prove(schedule, ReadOutcome.FLOOR, plant, "I1", monkeypatch, is_head_mode=True)


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
        def labelled_when_stored(lineage: str, life: bytes, epoch: int, position: Position) -> Stamp:
            for floor in world.record().table_floors.values():
                position = position.union(floor)
            return Stamp(lineage, life, epoch, position)

        def without_table_floors(record: NodeRecord, _: ObjectPolicy) -> NodeRecord:
            return replace(record, table_floors={})

        patch.setattr(read, "Stamp", labelled_when_stored)
        patch.setattr(read, "find_fill_refusal", with_records(without_table_floors))

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
        patch.setattr(apply, "_wait_for_readers", lambda _: iter(()))

    prove(schedule, ReadOutcome.TABLE_FLOOR, plant, "I1", monkeypatch)


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
        def all_covered(record: NodeRecord, policy: ObjectPolicy) -> NodeRecord:
            start_position = empty_position(record.floor.flavor)
            return replace(record, objects={policy.name: Coverage(policy.fingerprint, start_position)})

        patch.setattr(read, "find_fill_refusal", with_records(all_covered))

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
        def any_ring(record: NodeRecord | None, _: int) -> ReadOutcome | None:
            return rule_of_records(record, record.ring if record else 0)

        rule_of_records = rule.find_record_refusal
        patch.setattr(rule, "find_record_refusal", any_ring)
        patch.setattr(view, "find_record_refusal", any_ring)

    prove(schedule, ReadOutcome.RING, plant, "I1", monkeypatch, nodes=("n1", "n2"))


def test_a_source_closes_before_its_keys_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 0017: a key moves to a shard with a history of its own, and is written there. When the tombstone has
    expired, a reader of the former shards reads the source, whose history says nothing of that."""

    def schedule(world: World) -> tuple[object, ReadOutcome]:
        start(world)
        target = start(world, lineage="shop/80-")
        source = Invalidator(world, is_serving=False).join()
        source.apply()
        world.databases["shop/80-"].commit(KEY)
        while world.now < 1125:
            target.apply()
            source.apply()
            world.sleep(1)
        replicas = [Replica(database) for database in world.databases.values()]
        return world.find_tombstone(KEY), Reader(world, replicas).read()

    danger = None, ReadOutcome.CLOSED
    lineages = LINEAGE, "shop/80-"
    assert schedule(World(lineages=lineages)) == danger
    lease = membership.Membership._lease

    def stay_open(member: membership.Membership, record: NodeRecord, now: float) -> Any:
        member.policy = replace(member.policy, is_serving=True)
        return lease(member, record, now)

    monkeypatch.setattr(membership.Membership, "_lease", stay_open)
    assert schedule(World(lineages=lineages)) == (None, ReadOutcome.FILLED)


def test_a_key_moved_by_its_definition_is_not_trusted_under_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F44, F70: the record covers an object of that name, in another definition."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        changed = lookup(1, replace(lookup().policy, fingerprint=99))
        outcome = Reader(world, world.replica()).read(changed)
        assert one.member.is_joined
        return outcome

    world = World()
    assert schedule(world) is ReadOutcome.OBJECT
    monkeypatch.setattr(
        read,
        "find_fill_refusal",
        with_records(
            lambda record, policy: replace(
                record,
                objects={name: replace(at, fingerprint=99) for name, at in record.objects.items()},
            )
        ),
    )
    assert schedule(World()) is ReadOutcome.FILLED


def test_foreign_bytes_in_a_tombstone_are_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger overwrites a tombstone: doubt never fills."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.stores[NODE].evict(MARKER)
        world.stores[NODE].answer(Add(MARKER, b"somebody else's", 60))
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        decode = Tombstone.decode

        def lenient(data: bytes) -> Tombstone:
            try:
                return decode(data)
            except FormatError:
                return Tombstone({})

        patch.setattr(Tombstone, "decode", staticmethod(lenient))

    sound = World()
    monkeypatch.setattr(World, "_check_protection", lambda *_: None)
    assert schedule(sound) is ReadOutcome.FOREIGN
    assert not sound.breaks("I1")
    flawed = World()
    plant(flawed, monkeypatch)
    schedule(flawed)
    assert flawed.breaks("I1")


def test_storage_is_inspected_before_it_is_trusted() -> None:
    """F5: a node whose settings do not keep tombstones is run in head mode from the first record on."""
    world = World(is_head_mode=True)
    run = Invalidator(world).joining()
    assert isinstance(run.pending, InspectStorage)
    run.finish()
    one = start(world)
    world.commit(KEY)
    one.apply()
    assert world.record().floor == world.database.head
