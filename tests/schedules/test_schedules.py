"""Schedules that once broke the algorithm, each with the hole that it found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch
from freshness.algorithm.envelope import Filled, Stamp, record_key
from freshness.algorithm.membership import HeartbeatSeen
from freshness.algorithm.read import read_through
from freshness.algorithm.request import Add, Cas, Flows, Get, Load, Wait
from freshness.algorithm.rule import ReadOutcome
from freshness.errors import FreshnessError, NodeUnavailable
from tests.schedules.world import (
    CUSTOMER,
    KEY,
    LINEAGE,
    NAMESPACE,
    NODE,
    ORDER,
    START_SECONDS,
    Client,
    Invalidator,
    Reader,
    ReadRows,
    ReadToken,
    World,
    is_fill,
    is_record_write,
    lookup,
    version_of,
)

BOTH = {CUSTOMER.name: CUSTOMER.fingerprint, ORDER.name: ORDER.fingerprint}


def test_table_floor_survives_a_revival_under_a_paused_invalidator() -> None:
    """`reread` adopts a record of the same life that was revived from an older resume copy."""
    world = World()
    one, two = Invalidator(world).join(), Invalidator(world)
    one.apply()
    reader = Reader(world, world.replica())
    assert reader.read() is ReadOutcome.FILLED
    world.commit(raised=["customers"])
    paused = one.raising()
    assert "customers" in world.record().table_floors
    world.sleep(8)
    assert world.find_record() is None
    two.joining().finish()  # revives from the resume copy, and dies
    assert not world.record().is_open
    while not paused.is_done:
        paused.advance()
    if paused.error is not None:
        assert isinstance(paused.error, FreshnessError)
        one.join()
    one.apply(one.batch())
    one.live(20)
    Reader(world, world.replica()).read()
    assert world.broken == []


def test_an_object_added_by_an_invalidator_that_died_is_not_half_covered() -> None:
    """The new release adds an object to the record, readers fill it, it dies before the resume copy says so; the
    old release revives the same life and does not invalidate that object; the new one comes back."""
    world = World()
    old = Invalidator(world).join()
    old.apply()
    new = Invalidator(world, objects=BOTH)
    new.join()
    new.applying().until(is_record_write).advance()
    order = lookup(1, ORDER)
    assert Reader(world, world.replica()).read(order) is ReadOutcome.FILLED
    world.sleep(8)
    old.join()
    old.apply()
    old.live(20)
    world.commit(order.item)
    old.apply()
    old.live(22)
    Reader(world, world.replica()).read(order)
    assert not world.breaks("I1"), "hit although nobody covers the object"
    new.join()
    new.apply()
    new.live(24)
    Reader(world, world.replica()).read(order)
    assert not world.breaks("I1")


def test_a_reader_that_pauses_does_not_judge_by_a_view_that_grew_old() -> None:
    """F58: the age of the view is checked before the request is sent, and not when the answer is judged."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    reader = Reader(world, world.replica())
    assert reader.read() is ReadOutcome.FILLED
    paused = reader.reading().until_kind(Get)
    world.sleep(0.5)
    world.commit(raised=["customers"])
    one.apply()
    one.live(10)
    # a read is linearised at its Get, which happens now
    known = dict(world.acknowledged)
    (read,) = paused.finish()
    if read.outcome is ReadOutcome.HIT and read.payload is not None:
        here = {lineage: at for (_, lineage), at in known.items()}
        assert world.missing_in_hit(lookup(), read.payload, here) == []


def test_two_reads_of_one_context_do_not_take_the_view_from_one_another() -> None:
    """Tasks of one event loop share a context. One sees the node fail, the other's answer is already there."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    reader = Reader(world, world.replica())
    assert reader.read() is ReadOutcome.FILLED
    first, second = reader.reading().until_kind(Get), reader.reading().until_kind(Get)
    second.lose_reply()
    first.advance()
    assert first.error is None
    assert first.result[0].outcome is ReadOutcome.HIT


def test_a_view_that_another_read_fetched_does_not_lend_its_life() -> None:
    """As above; one waits for a slow second node while the first is restarted and admitted. Its CAS number from the
    previous incarnation is then paired with the life of the new one (F8)."""
    world = World(nodes=("n1", "n2"))
    first_node, second_node = Invalidator(world).join(), Invalidator(world, node="n2").join()
    first_node.apply()
    second_node.apply()
    reader = Reader(world, world.replica())
    other = lookup(2, node="n2")
    world.places[other.item] = "n2"
    world.repeat_version(50)
    reader.read(lookup(9), replace(lookup(8), node="n2"))  # the views are there
    slow = reader.reading(lookup(), other).until_kind(Get, key=other.item)
    seen = version_of(world, KEY)
    world.restart()
    first_node.client = Client(world)
    first_node.join()
    first_node.apply()
    reader.client = Client(world)  # the loop's other task has a connection of its own
    reader.read(lookup(9))  # it fetches the records before it fills
    slow.client = reader.client
    slow.until_kind(ReadToken, ReadRows)
    slow.until_kind(ReadRows).until(lambda action: is_fill(action) or isinstance(action, Wait), may_end=True)
    world.commit(KEY)
    first_node.apply()
    world.repeat_version(seen)
    third = Reader(world, world.replica()).reading().until_kind(ReadToken)
    assert version_of(world, KEY) == seen
    assert slow.finish()[0].outcome is ReadOutcome.LIFE
    third.until(lambda _: False, may_end=True)
    Reader(world, world.replica()).read()
    assert not world.breaks("I1")


def test_hits_are_not_staler_than_the_heartbeat_the_lease_and_the_view_allow() -> None:
    """I7: a backend keeps the record up to L + 1 s (F50), which neither the bound nor the view counts."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
    beat = HeartbeatSeen(world.now, int(world.now * 1e6))
    world.commit(KEY)  # after the heartbeat; the stream stalls
    world.sleep(3.999)
    world.now = START_SECONDS + 4.0
    one.apply(replace(Batch({}, {}, one.cursor, one.cursor), heartbeat=beat))
    world.sleep_until(9.95)
    reader = Reader(world, world.replica())
    reader.read()
    world.sleep_until(10.9)
    reader.read()
    assert not world.breaks("I7")


def test_the_staleness_of_a_hit_is_not_underestimated() -> None:
    world = World()
    one = Invalidator(world).join()
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
    world.sleep_until(1.0)
    one.apply()
    world.commit(KEY)
    world.sleep_until(1.99)
    world.max_staleness_seconds = 0.5
    Reader(world, world.replica()).reading(max_staleness_seconds=0.5).finish()
    assert not world.breaks("I7")


def test_a_table_floor_can_be_raised_where_readers_refresh_more_slowly_than_the_lease() -> None:
    """node_refresh_seconds >= lease_seconds passes the configuration's checks, and is never acknowledged."""
    world = World()
    one = Invalidator(world, node_refresh_seconds=10, heartbeat_age_max_seconds=15).join()
    one.apply()
    made = world.commit(raised=["customers"])
    batch = one.batch()
    for _ in range(3):
        try:
            one.apply(batch)
        except FreshnessError:
            one.join()
            batch = one.batch()
    assert world.record().progress.contains(made.position)


def test_a_key_written_often_is_fillable_again_after_a_change_of_epoch() -> None:
    """Nothing of the previous epoch may be demanded for as long as the key is written."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    world.commit(KEY)
    one.apply()
    world.database.epoch = 2
    one.member.leave()
    one.join()
    one.apply()
    for _ in range(4):
        world.commit(KEY)
        one.live(world.now - START_SECONDS + 100)
    replica = world.replica(*world.database.transactions)
    assert Reader(world, replica).read() is ReadOutcome.FILLED


def test_an_ended_life_is_not_written_back_into_the_resume_copy() -> None:
    """One pauses between record and resume copy. The other ends the life, since the log was purged, and dies. The
    paused one would overwrite the resume copy of the new life with its own."""
    world = World()
    one, two = Invalidator(world).join(), Invalidator(world)
    one.apply()
    world.commit(KEY)
    world.sleep(1.0)
    paused = one.applying().until(is_record_write)
    paused.advance()  # the record is stored
    previous = world.record().life
    two.run(join(two.member, two.cursor, is_fresh=True)).finish()
    paused.until(lambda _: False, may_end=True)
    world.sleep(8)
    assert world.find_record() is None
    assert world.resume_copy().life != previous
    three = Invalidator(world).join()
    three.apply()
    assert world.record().life != previous
    three.live(20)
    Reader(world, world.replica()).read()
    assert not world.breaks("I1")


def test_a_read_can_be_abandoned_while_it_loads() -> None:
    """Cancelled tasks and interrupted threads close the generator: it must not yield again."""
    world = World()
    Invalidator(world).join()
    reader = Reader(world, world.replica())
    procedure = read_through(reader.context, [lookup()])
    step = next(procedure)
    while isinstance(step, Flows):
        step = procedure.send(
            [[reader.client.perform(flow.node, request) for request in flow.requests] for flow in step.flows]
        )
    assert isinstance(step, Load)
    procedure.close()


def test_a_revival_refuses_a_record_that_another_configuration_put_there() -> None:
    world = World()
    old = Invalidator(world).join()
    old.apply()
    world.sleep(8)
    reviving = old.joining().until(is_record_write)
    new = Invalidator(world, objects=BOTH).join()
    assert ORDER.name in world.record().objects
    reviving.until(lambda _: False, may_end=True)
    assert isinstance(reviving.error, FreshnessError)
    assert new.member.is_joined


def test_a_revival_refuses_a_record_of_another_epoch() -> None:
    world = World()
    one = Invalidator(world).join()
    one.apply()
    world.sleep(8)
    reviving = one.joining().until(is_record_write)
    world.database.epoch = 2
    reviving.until(lambda _: False, may_end=True)
    assert isinstance(reviving.error, FreshnessError)


def test_serving_stale_keeps_to_what_the_caller_asked() -> None:
    """``max_staleness_seconds`` of the call, with on_stale = "serve" in the configuration."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
    world.sleep(60)
    read = Reader(world, world.replica(), on_stale="serve").read(max_staleness_seconds=2)
    assert read is not ReadOutcome.STALE_SERVED


def test_a_batch_that_leaves_a_gap_is_refused() -> None:
    """I4: progress would claim what lies between ``applied`` and ``before``."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    world.commit(KEY)
    skipped = one.batch()
    world.commit(lookup(2).item)
    with pytest.raises((AssertionError, FreshnessError)):
        one.apply(one.batch())
    assert skipped.keys


def test_a_damaged_position_is_no_error() -> None:
    world = World()
    one = Invalidator(world).join()
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
    record = world.record()
    broken = Filled((Stamp(LINEAGE, record.life, 1, world.database.base),), lookup().identity, b"[]").encode()
    at = broken.index(world.database.base.encode())
    broken = broken[:at] + b"\x77" + broken[at + 1 :]
    world.stores[NODE].answer(Cas(KEY, broken, version_of(world, KEY), 60))
    world.commit(raised=["customers"])
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.FOREIGN


def test_a_version_does_not_outlive_the_connection_it_was_read_on() -> None:
    """Two memberships of one process in one node share its connection. The node restarts; the other membership
    notices, and the connection is reopened; this one's CAS goes out on it, with a version from the previous
    incarnation that a second invalidator's record happens to have again (F8)."""
    world = World(lineages=(LINEAGE, "shop/b"))
    one, sibling = Invalidator(world), Invalidator(world, lineage="shop/b")
    sibling.client = one.client
    world.lineage_of_client[id(one.client)] = LINEAGE
    world.repeat_version(50)
    one.join()
    one.apply()
    world.commit(KEY)
    one.apply()
    held = one.member.version
    world.restart()
    two = Invalidator(world).join()
    two.apply()
    with pytest.raises(NodeUnavailable):
        one.client.perform(NODE, Get(b"the sibling asks"))
    world.repeat_version(held)
    two.apply()
    assert version_of(world, record_key(NAMESPACE, LINEAGE)) == held
    one.applying().until(lambda _: False, may_end=True)
    assert Reader(world, world.replica()).read() is not ReadOutcome.FILLED


def test_one_key_twice_in_a_read_does_not_wait_for_itself() -> None:
    world = World()
    one = Invalidator(world).join()
    one.apply()
    run = Reader(world, world.replica()).reading(lookup(), lookup())
    run.finish()
    assert not any(isinstance(step, Wait) for step in run.steps)


def test_a_client_of_an_old_definition_leaves_the_entries_of_the_new_one_alone() -> None:
    """F44, rolling deploy: it would be refused as OBJECT, and yet it claims, and drops, what others have filled."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
    old = lookup(policy=replace(CUSTOMER, fingerprint=99))
    assert Reader(world, world.replica()).read(old) in (ReadOutcome.OBJECT, ReadOutcome.IDENTITY)
    assert Reader(world, world.replica()).read() is ReadOutcome.HIT


@pytest.mark.parametrize("node_refresh_seconds", [0.7, 2.0, 2.3, 3.1])
@pytest.mark.parametrize("at", [0.0, 0.1, 0.3, 0.7, 1.9])
def test_waiting_for_readers_ends(node_refresh_seconds: float, at: float) -> None:
    """I6: what is left of a wait can be less than a clock can tell."""
    world = World()
    one = Invalidator(world, node_refresh_seconds=node_refresh_seconds, heartbeat_age_max_seconds=30).join()
    one.apply()
    world.sleep(at)
    world.commit(raised=["customers"])
    one.apply()
    assert world.record().progress == world.database.head


def assert_waits_for_a_later_heartbeat(world: World, one: Invalidator, old_beat: HeartbeatSeen) -> None:
    """The record of a node that ``one`` has joined opens by a heartbeat from after that alone."""
    at = one.member.applied
    one.apply(replace(Batch({}, {}, at, at), heartbeat=old_beat))
    assert not world.record().is_open
    one.apply(replace(Batch({}, {}, at, at), heartbeat=HeartbeatSeen(world.now, 0)))
    assert world.record().is_open


def test_a_new_life_does_not_open_on_a_heartbeat_from_before_it() -> None:
    """F57, I10: the node has lost its memory, and neither the primary nor this stream shows yet what another
    invalidator had acknowledged there. A row that lacks it would count as fresh in a life that is open."""
    world = World()
    one, other = Invalidator(world).join(), Invalidator(world)
    one.apply()
    other.join()
    world.commit(KEY)
    one.apply()
    old_beat = HeartbeatSeen(world.now, 0)
    hidden = world.database.transactions.pop()
    world.stores[NODE].flush()
    world.sleep(1)
    other.join()
    world.database.transactions.append(hidden)
    assert_waits_for_a_later_heartbeat(world, other, old_beat)


def test_a_revived_node_does_not_open_on_a_heartbeat_from_before_its_lapse() -> None:
    """F57, F87: the resume copy lacks the last commit that was acknowledged, the primary does not show it yet, and
    the stream brings an own heartbeat again that is older than the lapse: the node must wait for one begun since."""
    world = World()
    one = Invalidator(world).join()
    one.apply()
    world.commit(KEY)
    one.apply()
    old_beat = HeartbeatSeen(world.now, 0)
    hidden = world.database.transactions.pop()
    world.stores[NODE].evict(record_key(NAMESPACE, LINEAGE))
    one.member.leave()
    world.sleep(1)
    one.join()
    world.database.transactions.append(hidden)
    at = one.member.applied
    one.apply(replace(Batch({}, {}, at, at), heartbeat=old_beat))
    assert not world.record().is_open
    one.apply(replace(Batch({}, {}, at, at), heartbeat=HeartbeatSeen(world.now, 0)))
    assert world.record().is_open


@pytest.mark.parametrize("kind", [Add, Get], ids=["revived", "found closed"])
def test_a_record_does_not_open_on_a_heartbeat_from_before_it_was_there(kind: type) -> None:
    """F57, I10: a request of a join is on its way for long. Another invalidator revives the node, opens it and
    acknowledges a commit that the primary does not show yet; then the record is evicted. The heartbeat that the first
    one has begun in between is behind nothing of that."""
    world = World()
    one, other, third = Invalidator(world).join(), Invalidator(world), Invalidator(world)
    one.apply()
    world.stores[NODE].evict(record_key(NAMESPACE, LINEAGE))
    one.member.leave()
    joining = other.joining().until_kind(kind)
    world.sleep(1)
    old_beat = HeartbeatSeen(world.now, 0)
    world.sleep(0.1)
    one.join().apply()
    assert world.record().is_open
    world.commit(KEY)
    one.apply()
    hidden = world.database.transactions.pop()
    world.stores[NODE].evict(record_key(NAMESPACE, LINEAGE))
    if kind is Get:
        third.join()
    joining.finish()
    world.database.transactions.append(hidden)
    assert_waits_for_a_later_heartbeat(world, other, old_beat)
