"""How an invalidator joins a node, keeps its record and loses it; what each failure leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from freshness.algorithm import apply
from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, acknowledge
from freshness.algorithm.envelope import Coverage, NodeRecord, record_key, resume_key
from freshness.algorithm.membership import (
    CAS_ATTEMPTS_MAX,
    HeartbeatSeen,
    NodePolicy,
    is_of_another_configuration,
    serve,
)
from freshness.algorithm.request import (
    CONFLICT,
    Add,
    Cas,
    Delete,
    Get,
    ReadHead,
    Refused,
    Reply,
    Request,
    Stored,
    Wait,
)
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.witness import Action
from freshness.errors import FreshnessError, MembershipLost, NodeUnavailable
from freshness.keys.placement import Placement
from freshness.position import MariadbPosition, Position, parse_position
from tests.schedules.world import (
    CUSTOMER,
    KEY,
    L_SECONDS,
    LINEAGE,
    NAMESPACE,
    NODE,
    NODE_REFRESH_SECONDS,
    ORDER,
    RING,
    STRIPES,
    Client,
    Invalidator,
    Reader,
    Run,
    World,
    is_append,
    is_delete,
    is_record_write,
    lookup,
    version_of,
)
from tests.unit.freshness.algorithm.test_witness import Seen

RECORD = record_key(NAMESPACE, LINEAGE)
RESUME = resume_key(NAMESPACE, LINEAGE)
BOTH = {CUSTOMER.name: CUSTOMER.fingerprint, ORDER.name: ORDER.fingerprint}


def start(world: World, **changes: object) -> Invalidator:
    one = Invalidator(world, **changes).join()  # type: ignore[arg-type]
    one.apply()
    assert world.record(one.node, one.lineage).is_open
    return one


def refuse(run: Run[None], error: type[FreshnessError] = MembershipLost) -> FreshnessError:
    with pytest.raises(error) as raised:
        run.finish()
    return raised.value


def put_record(world: World, key: bytes, record: NodeRecord, **changes: object) -> None:
    changed = replace(record, **changes)  # type: ignore[arg-type]
    stored = world.stores[NODE].answer(Cas(key, changed.encode(), version_of(world, key), L_SECONDS - 1))
    assert isinstance(stored, Stored)


def read_lagging(world: World) -> ReadOutcome:
    return Reader(world, world.replica()).read()


# -- a new node ----------------------------------------------------------------------------------------


def test_a_new_node_is_admitted_closed_with_the_primarys_head_as_its_floor() -> None:
    world = World()
    made = world.commit(KEY)
    run = Invalidator(world).joining()
    kinds: list[str] = []
    while run.pending is not None:
        kinds.append(f"{type(run.pending).__name__} {getattr(run.pending, 'key', b'').decode()}".strip())
        run.advance()
    run.finish()
    record = world.record()
    assert not record.is_open
    assert record.floor == record.progress == world.database.head
    assert record.floor.contains(made.position)
    assert (record.ring, record.epoch) == (RING, 1)
    assert (record.node, record.stripes) == (NODE, STRIPES)
    assert {name: at.start for name, at in record.objects.items()} == {CUSTOMER.name: world.database.head}
    assert world.resume_copy() == record
    # the resume copy of the birth, then the record, and only then the head that becomes the floor
    first_record = kinds.index(f"Add {RECORD.decode()}")
    assert kinds.index(f"Add {RESUME.decode()}") < first_record < len(kinds) - 1 - kinds[::-1].index("ReadHead")


def test_two_lives_never_have_one_name() -> None:
    world = World()
    one = start(world)
    first = world.record()
    world.restart()
    one.client = Client(world)
    one.join()
    assert world.record().life != first.life
    assert world.record().tenure != first.tenure


def test_the_head_of_a_newborn_covers_what_was_committed_while_it_was_admitted() -> None:
    world = World()
    run = Invalidator(world).joining().until_kind(Add, key=RECORD)
    made = world.commit(KEY)
    run.finish()
    assert world.record().floor.contains(made.position)


def test_the_floor_covers_what_was_streamed_before_the_primary_shows_it() -> None:
    """F2, F57: under AFTER_SYNC the stream is ahead of the engine."""
    world = World()
    made = world.commit(KEY)
    ahead = world.database.head
    world.database.transactions.clear()
    one = Invalidator(world)
    Run(world, join(one.member, ahead, epoch=1), one.client).finish()
    assert world.record().floor == ahead
    assert world.record().floor.contains(made.position)


def test_the_floor_holds_nothing_of_a_history_that_was_lost() -> None:
    """F28: transactions streamed in the previous epoch never come again, and no read would contain them."""
    world = World()
    made = world.commit(KEY)
    lost = world.database.head
    world.database.transactions.clear()
    world.database.epoch += 1
    one = Invalidator(world)
    Run(world, join(one.member, lost, epoch=1), one.client).finish()
    assert world.record().floor == world.database.head
    assert not world.record().floor.contains(made.position)


def test_an_admission_that_dies_leaves_a_node_that_nobody_revives() -> None:
    """The newborn's copy holds no progress: after its lapse the next one begins another life."""
    world = World()
    run = Invalidator(world).joining().until_kind(Add, key=RECORD)
    run.advance()
    world.sleep(L_SECONDS + 1)
    life = world.resume_copy().life
    start(world)
    assert world.record().life != life


def test_the_copy_of_a_life_that_never_began_is_not_revived() -> None:
    """Its floor is empty: everything could be stored. Its epoch shows this only if epochs do not begin at 0."""
    world = World()
    world.database.epoch = 0
    run = Invalidator(world).joining().until_kind(Add, key=RESUME)
    run.advance()
    assert world.resume_copy().floor.is_empty
    life = world.resume_copy().life
    Invalidator(world).join()
    assert world.record().life != life
    assert world.record().floor == world.database.head


def test_a_copy_without_a_new_object_does_not_stand_for_one_with_it() -> None:
    """F79: the other invalidator wrote it at the same moment."""
    world = World()
    two = start(world)
    run = Invalidator(world, objects=BOTH).join().applying().until_kind(Cas, key=RESUME)
    world.sleep(1.5)
    two.apply()
    run.finish()
    assert world.resume_copy().objects.keys() == BOTH.keys()


def test_an_admission_that_died_halfway_is_taken_over() -> None:
    world = World()
    run = Invalidator(world).joining().until_kind(Add, key=RECORD)
    run.advance()
    one = start(world)
    assert world.record().life == one.member.joined_record().life
    assert world.record().floor == world.database.head


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("is_reply", [False, True])
def test_an_admission_fails_at_any_request_and_succeeds_afterwards(place: int, is_reply: bool) -> None:
    world = World()
    one = Invalidator(world)
    run = one.joining()
    for _ in range(place):
        run.advance()
    if isinstance(run.pending, ReadHead):
        world.is_primary_down = True
        run.advance()
        world.is_primary_down = False
    elif is_reply:
        run.lose_reply()
    else:
        run.lose_request()
    refuse(run, NodeUnavailable)
    assert not one.member.is_joined
    assert one.member.heartbeat is None
    found = world.find_record()
    assert found is None or not found.is_open
    one.join()
    one.apply()
    assert world.record().is_open
    world.commit(KEY)
    one.apply()
    assert read_lagging(world) is ReadOutcome.STRIPE
    assert world.broken == []


def test_of_two_who_admit_a_node_one_goes_on() -> None:
    world = World()
    first, second = Invalidator(world), Invalidator(world)
    slow = first.joining().until_kind(Add, key=RECORD)
    second.join()
    assert isinstance(refuse(slow), MembershipLost)
    assert not first.member.is_joined
    first.join()
    assert first.member.joined_record().life == second.member.joined_record().life
    first.apply()
    second.apply()
    assert world.broken == []


@pytest.mark.parametrize("data", [b"not ours", b"", b"\xfa\x09\x04"])
def test_foreign_bytes_under_the_records_key_are_replaced(data: bytes) -> None:
    world = World()
    for key in (RECORD, RESUME):
        assert isinstance(world.stores[NODE].answer(Add(key, data, 60)), Stored)
    world.find_record = lambda *_: None  # type: ignore[method-assign]
    one = Invalidator(world).join()
    del world.find_record
    one.apply()
    assert world.record().is_open
    assert NodeRecord.decode(world.resume_copy().encode()).life == world.record().life


def test_the_record_and_its_copy_belong_to_the_server_process_that_stores_them() -> None:
    """A server that brings items back after a restart must not bring back a record (see `Add`)."""
    world = World()
    one = Invalidator(world)
    added = []
    for _ in range(2):  # born, and revived
        run = one.joining()
        while run.pending is not None:
            if isinstance(run.pending, Add | Get):
                added.append(run.pending)
            run.advance()
        one.apply()
        world.sleep(60)
        assert world.find_record() is None
    assert {request.key for request in added} == {RECORD, RESUME}
    assert all(request.is_bound for request in added)
    assert sum(isinstance(request, Add) for request in added) >= 3


def test_two_names_of_one_server_never_share_a_record() -> None:
    """P5: a key placed on both would be found under one name although it was invalidated under the other."""
    world = World(nodes=(NODE, "n2"))
    world.stores["n2"] = world.stores[NODE]
    world.check = lambda: None  # type: ignore[method-assign]
    one = start(world)
    life = world.record().life
    start(world, node="n2")
    assert (world.record().node, world.record().life == life) == ("n2", False)
    assert Reader(world, world.replica()).read() is ReadOutcome.NO_RECORD, "a reader knows it as the first"
    refuse(one.applying())
    start(world)
    assert world.record().node == NODE


# -- a live record -------------------------------------------------------------------------------------


def test_an_open_record_is_joined_and_neither_opened_nor_extended() -> None:
    """F71: this process has no heartbeat yet, so it adds not a second to the lease."""
    world = World()
    start(world)
    world.sleep(1)
    before = world.stores[NODE].peek(RECORD)
    two = Invalidator(world).join()
    after = world.stores[NODE].peek(RECORD)
    assert before is not None
    assert after is not None
    assert after.ttl_seconds <= before.ttl_seconds
    assert two.member.applied == world.record().progress
    assert two.member.target is None


def test_a_closed_record_is_joined_and_opens_when_the_head_is_reached() -> None:
    world = World()
    Invalidator(world).join()
    made = world.commit(KEY)
    two = Invalidator(world).join()
    assert not world.record().is_open
    two.apply(Batch({}, {}, two.cursor, two.cursor, HeartbeatSeen(world.now, 0)))
    assert not world.record().is_open, "an old heartbeat is no reason to open before the head is reached"
    two.apply()
    assert world.record().is_open
    assert world.record().progress.contains(made.position)
    assert world.record().floor == world.database.base, "that is where the life began"


def test_another_configuration_waits_until_the_record_has_lapsed() -> None:
    world = World()
    start(world, objects=BOTH)
    one = Invalidator(world)
    error = refuse(one.joining())
    assert "configuration" in error.message
    assert error.hint
    assert not one.member.is_joined
    world.sleep(L_SECONDS)
    life = world.resume_copy().life
    one.join()
    assert world.record().life != life, "what it does not know it cannot go on with"


@pytest.mark.parametrize("is_open", [True, False])
def test_another_ring_or_definition_is_another_configuration(is_open: bool) -> None:
    world = World()
    if is_open:
        start(world)
    else:
        Invalidator(world).join()
    refuse(Invalidator(world, ring=RING + 1).joining())
    refuse(Invalidator(world, objects={CUSTOMER.name: 99}).joining())
    refuse(Invalidator(world, objects={}).joining())


def test_a_life_keeps_its_number_of_stripes() -> None:
    world = World()
    start(world)
    life = world.record().life
    world.stripes += 1
    start(world)
    assert (world.record().life, world.record().stripes) == (life, STRIPES)
    world.restart()
    Invalidator(world).join()
    assert world.record().stripes == STRIPES + 1


def test_a_new_object_is_covered_from_the_progress_on() -> None:
    """F70. The record stays open until the own heartbeat is back, and is covered then."""
    world = World()
    old = start(world)
    world.commit(lookup(1, ORDER).item)
    old.apply()
    two = Invalidator(world, objects=BOTH).join()
    joined = world.record()
    assert joined.is_open
    assert ORDER.name not in joined.objects
    two.apply()
    record = world.record()
    assert record.is_open
    assert record.objects[ORDER.name].start == joined.progress
    assert record.objects[CUSTOMER.name].start == world.database.base
    assert ORDER.name in world.resume_copy().objects, "or another life could forget it (see there)"
    assert Reader(world, world.replica()).read(lookup(1, ORDER)) is ReadOutcome.FLOOR
    assert Reader(world, world.replica().catch_up()).read(lookup(1, ORDER)) is ReadOutcome.FILLED


def test_an_old_invalidator_gives_way_to_one_that_knows_more_objects() -> None:
    world = World()
    old = start(world)
    Invalidator(world, objects=BOTH).join().apply()
    world.commit(KEY)
    error = refuse(old.applying())
    assert "other objects" in error.message
    assert not old.member.is_joined


def test_a_higher_epoch_begins_a_new_life() -> None:
    """F28, F29."""
    world = World()
    one = start(world)
    life = world.record().life
    world.database.epoch = 2
    one.join()
    assert (world.record().epoch, world.record().life == life) == (2, False)


def test_an_older_primary_is_refused() -> None:
    world = World()
    world.database.epoch = 2
    start(world)
    world.database.epoch = 1
    two = Invalidator(world)
    assert "old one" in refuse(two.joining()).hint


def test_another_flavor_begins_a_new_life() -> None:
    world = World()
    start(world)
    life = world.record().life
    other = World(flavor="mariadb")
    world.databases = other.databases
    two = Invalidator(world)
    world.check = lambda: None  # type: ignore[method-assign]
    two.join()
    assert world.record().life != life
    assert isinstance(world.record().progress, MariadbPosition)


def test_a_fresh_join_begins_a_new_life_whatever_is_there() -> None:
    world = World()
    one = start(world)
    life = world.record().life
    Run(world, join(one.member, one.cursor, is_fresh=True), one.client).finish()
    assert world.record().life != life
    assert not world.record().is_open


# -- revival -------------------------------------------------------------------------------------------


def test_a_revived_node_keeps_its_entries_and_gets_everything_again() -> None:
    world = World()
    start(world)
    assert read_lagging(world) is ReadOutcome.FILLED
    kept = lookup(2)
    assert Reader(world, world.replica()).read(kept) is ReadOutcome.FILLED
    life, tenure = world.record().life, world.record().tenure
    world.sleep(60)
    assert world.find_record() is None
    made = world.commit(KEY)
    one = Invalidator(world).join()
    record = world.record()
    assert (record.life, record.is_open) == (life, False)
    assert record.tenure != tenure
    assert read_lagging(world) is ReadOutcome.CLOSED
    one.apply()
    assert world.record().is_open
    assert world.record().progress.contains(made.position)
    assert Reader(world, world.replica()).read(kept) is ReadOutcome.HIT
    assert read_lagging(world) is ReadOutcome.STRIPE
    assert world.broken == []


def test_table_floors_survive_a_revival() -> None:
    world = World()
    one = start(world)
    assert read_lagging(world) is ReadOutcome.FILLED
    world.commit(raised=["customers"])
    one.apply()
    world.sleep(60)
    one.join()
    assert "customers" in world.record().table_floors
    one.apply()
    assert read_lagging(world) is ReadOutcome.TABLE_FLOOR
    assert world.broken == []


def test_a_revived_node_opens_when_its_progress_names_all_from_before_its_lapse() -> None:
    """I10: if a stripe is absent, a row must show the progress. A raise holds that back."""
    world = World()
    start(world)
    world.sleep(60)
    made = world.commit(raised=["customers"])
    one = Invalidator(world).join()
    one.applying().finish()
    assert not world.record().is_open
    world.sleep(NODE_REFRESH_SECONDS)
    one.renewing().finish()
    assert world.record().is_open
    assert world.record().progress.contains(made.position)


def test_a_table_floor_that_the_resume_copy_lacks_is_raised_again_before_the_node_opens() -> None:
    world = World()
    one = start(world)
    assert read_lagging(world) is ReadOutcome.FILLED
    world.commit(raised=["customers"])
    one.applying().finish()
    assert "customers" in world.record().table_floors
    assert "customers" not in world.resume_copy().table_floors
    world.sleep(60)
    two = Invalidator(world).join()
    two.apply()
    assert "customers" in world.record().table_floors
    assert read_lagging(world) is ReadOutcome.TABLE_FLOOR
    assert world.broken == []


def test_without_a_copy_there_is_nothing_to_revive() -> None:
    world = World()
    start(world)
    life = world.record().life
    world.sleep(60)
    world.stores[NODE].evict(RESUME)
    start(world)
    assert world.record().life != life


def test_a_flushed_node_has_lost_its_life() -> None:
    """F7."""
    world = World()
    one = start(world)
    world.commit(KEY)
    one.apply()
    life = world.record().life
    world.stores[NODE].flush()
    world.commit(KEY)
    refuse(one.applying())
    start(world)
    assert world.record().life != life
    assert read_lagging(world) is ReadOutcome.FLOOR


@pytest.mark.parametrize("reason", ["epoch", "objects", "ring", "behind", "node"])
def test_a_life_that_cannot_be_gone_on_with_is_not_revived(reason: str) -> None:
    world = World()
    one = start(world)
    world.commit(KEY)
    one.live(2)
    one.apply()
    life = world.record().life
    world.sleep(60)
    resume = world.resume_copy()
    if reason == "epoch":
        world.database.epoch = 2
    if reason == "behind":
        world.database.transactions.clear()  # the new primary never had it (F28)
        world.acknowledged.clear()
    if reason == "node":  # another name of this server wrote it
        put_record(world, RESUME, resume, node="n2")
    two = Invalidator(
        world, objects={CUSTOMER.name: 99} if reason == "objects" else BOTH, ring=8 if reason == "ring" else RING
    ).join()
    assert world.record().life != life
    two.apply()


def test_two_who_revive_do_not_both_begin_a_tenure() -> None:
    world = World()
    start(world)
    world.sleep(60)
    one, two = Invalidator(world), Invalidator(world)
    slow = one.joining().until_kind(Add)
    two.join()
    refuse(slow)
    one.join()
    one.apply()
    two.apply()
    assert world.record().is_open
    assert world.broken == []


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("is_reply", [False, True])
def test_a_revival_fails_at_any_request_and_succeeds_afterwards(place: int, is_reply: bool) -> None:
    world = World()
    start(world)
    assert read_lagging(world) is ReadOutcome.FILLED
    world.commit(KEY)
    world.sleep(60)
    two = Invalidator(world)
    run = two.joining()
    for _ in range(place):
        run.advance()
    if isinstance(run.pending, ReadHead):
        world.is_primary_down = True
        run.advance()
        world.is_primary_down = False
    elif is_reply:
        run.lose_reply()
    else:
        run.lose_request()
    refuse(run, NodeUnavailable)
    two.join()
    two.apply()
    assert world.record().is_open
    assert read_lagging(world) is not ReadOutcome.HIT
    assert world.broken == []


# -- the lease -----------------------------------------------------------------------------------------


def test_renewing_keeps_the_record_alive_while_the_heartbeat_is_young() -> None:
    world = World()
    one = start(world)
    run = one.renewing()
    run.finish()
    assert run.steps == [], "not more often than three times a lease"
    world.sleep(3)
    one.renewing().finish()
    record = world.stores[NODE].peek(RECORD)
    assert record is not None
    assert record.ttl_seconds == L_SECONDS
    assert world.record().heartbeat_age_ms == 1000 * 2 * L_SECONDS, "at the end of a lease that begins at the latest"
    world.sleep(3)
    one.renewing().finish()
    assert not world.record().is_open


def test_a_lapsed_record_ends_the_membership() -> None:
    world = World()
    one = start(world)
    world.sleep(L_SECONDS)
    assert "lapsed" in refuse(one.renewing()).message
    assert not one.member.is_joined
    assert world.find_record() is None


def test_a_statement_that_this_life_has_acknowledged_is_not_raised_again() -> None:
    """ADR 0009: after a rewind for another node."""
    world = World()
    one = start(world)
    raising = world.commit(raised=["customers"])
    one.apply()
    one.cursor = world.database.base
    made = world.commit(KEY)
    one.applying().finish()
    assert world.record().progress.contains(made.position), "it is not held back"
    assert world.record().table_floors["customers"] == raising.position


def test_the_lease_is_kept_while_readers_copies_age() -> None:
    """They may be trusted for longer than a lease."""
    world = World()
    one = start(world, node_refresh_seconds=2.0 * L_SECONDS)
    tenure = world.record().tenure
    made = world.commit(raised=["customers"])
    one.apply()
    assert world.record().tenure == tenure
    assert world.record().progress.contains(made.position)


def test_a_batch_without_a_heartbeat_extends_the_lease_by_the_last_one() -> None:
    world = World()
    one = start(world)
    world.sleep(2)
    world.commit(KEY)
    one.applying(one.batch(heartbeat=False)).finish()
    item = world.stores[NODE].peek(one.member.record_key)
    assert item is not None
    assert item.ttl_seconds >= L_SECONDS - 1


def test_a_batch_is_published_although_another_invalidator_has_published_something_else() -> None:
    """I4: its record is newer, and lacks this batch."""
    world = World()
    one, two = start(world), start(world)
    first, second = world.commit(KEY), world.commit(lookup(2).item)
    two.applying(two.batch(second)).finish()
    one.applying(one.batch(first)).finish()
    assert world.record().progress.contains(first.position)
    assert world.record().progress.contains(second.position)


def test_the_lease_is_kept_while_a_batch_is_sent_that_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the batch would never be acknowledged, and be sent forever."""
    monkeypatch.setattr(apply, "KEYS_AT_ONCE_MAX", 2)
    world = World()
    one = start(world)
    tenure, began_at = world.record().tenure, world.now
    made = world.commit(*(lookup(number).item for number in range(20)))
    run = one.applying()
    while run.pending is not None:
        if is_delete(run.pending):
            world.sleep(L_SECONDS / 8)
        run.advance()
    run.finish()
    assert world.now - began_at > 2 * L_SECONDS
    assert world.record().tenure == tenure
    assert world.record().progress.contains(made.position)
    assert world.broken == []


def test_an_invalidator_without_a_heartbeat_leaves_the_others_lease_alone() -> None:
    """It writes nothing, and closes the record when its lease is about to end."""
    world = World()
    one = start(world)
    two = Invalidator(world).join()
    made = world.commit(KEY)
    before = version_of(world, RECORD)
    two.apply(two.batch(heartbeat=False))
    two.renewing().finish()
    assert version_of(world, RECORD) == before
    assert two.member.applied.contains(made.position), "what it has sent, it answers for"
    one.live(2)
    two.apply(two.batch(heartbeat=False))
    assert world.record().is_open
    world.sleep(3)
    two.apply(two.batch(heartbeat=False))
    assert not world.record().is_open
    assert world.record().progress.contains(made.position)


@pytest.mark.parametrize("lease_seconds", [2, 3, 4, 5])
def test_a_record_that_is_taken_over_open_is_closed_and_never_lapses(lease_seconds: int) -> None:
    """ADR 0007: by one that has no heartbeat of its own, and that may find it short before its end."""
    for tenths in range(0, 40, 3):
        world = World()
        one = start(world, lease_seconds=lease_seconds)
        world.sleep(lease_seconds / 3 * (tenths % 10) / 10)
        one.renewing().finish()
        world.sleep(min(tenths / 10, lease_seconds - 1.5))
        two = Invalidator(world, lease_seconds=lease_seconds).join()
        for _ in range(8 * lease_seconds):
            world.sleep(0.25)
            two.renewing().finish()
            assert world.find_record() is not None
        assert not world.record().is_open


def test_a_longer_lease_of_another_invalidator_counts() -> None:
    """F104: a renewal can arrive as long as the previous record lives, which is the other invalidator's lease."""
    world = World()
    long = Invalidator(world, lease_seconds=20, heartbeat_age_max_seconds=30).join()
    long.apply()
    short = Invalidator(world, lease_seconds=2).join()
    short.apply()
    assert world.record().is_open
    assert short.member.expires_by == world.now + 20, "it has left the record alone"
    world.sleep(16)
    short.apply()
    assert world.record().is_open
    assert world.record().heartbeat_age_ms == 1000 * (4 + 2)
    item = world.stores[NODE].peek(RECORD)
    assert item is not None
    assert item.ttl_seconds == 2


def test_a_shorter_lease_of_another_invalidator_is_extended_before_it_ends() -> None:
    """ADR 0007: it wrote last, so this one wrote nothing, and then it dies."""
    world = World()
    long = start(world, lease_seconds=60, heartbeat_age_max_seconds=90)
    short = Invalidator(world, lease_seconds=19, heartbeat_age_max_seconds=90).join()
    batch = long.batch()
    world.commit(KEY)
    short.apply()
    tenure, version = world.record().tenure, version_of(world, RECORD)
    long.apply(batch)
    assert version_of(world, RECORD) == version, "it has left the record alone"
    for _ in range(4 * 60):
        world.sleep(0.25)
        long.renewing().finish()
        assert world.record().is_open
    assert world.record().tenure == tenure


def test_two_invalidators_share_one_record() -> None:
    """F48: the chain of CAS lets neither take the other's progress back."""
    world = World()
    one, two = start(world), start(world)
    for number in range(5):
        made = world.commit(lookup(number).item)
        (one if number % 2 else two).apply()
        assert world.record().progress.contains(made.position)
    one.apply()
    two.apply()
    assert world.record().progress == world.database.head
    assert world.broken == []


def test_a_lost_race_is_run_again() -> None:
    world = World()
    one, two = start(world), start(world)
    made = world.commit(KEY)
    run = one.applying().until(is_record_write)
    two.apply()
    run.finish()
    assert world.record().progress.contains(made.position)
    assert one.member.is_joined
    assert two.member.is_joined


def test_a_race_lost_for_ever_ends_the_membership() -> None:
    """I6."""
    world = World()
    one = start(world)
    attempts = 0

    def always_lost(_: str, request: Request) -> Reply | None:
        nonlocal attempts
        if isinstance(request, Cas) and request.key == RECORD:
            attempts += 1
            return CONFLICT
        return None

    world.answer_instead = always_lost
    refuse(one.applying())
    assert attempts == CAS_ATTEMPTS_MAX
    assert not one.member.is_joined


def test_a_record_that_the_node_refuses_ends_the_membership() -> None:
    world = World()
    one = start(world)
    world.answer_instead = lambda _, request: (
        Refused("out of memory") if isinstance(request, Cas) and request.key == RECORD else None
    )
    assert "out of memory" in refuse(one.applying(), NodeUnavailable).message


def test_a_policy_whose_times_do_not_fit_is_refused() -> None:
    def policy(lease_seconds: int) -> NodePolicy:
        return NodePolicy("shop", LINEAGE, 7, {}, STRIPES, lease_seconds, 4.0, 1.0)

    assert policy(2).lease_seconds == 2
    with pytest.raises(AssertionError):
        policy(1)


# -- applying ------------------------------------------------------------------------------------------


def test_a_batch_is_sent_then_published() -> None:
    world = World()
    one = start(world)
    made = world.commit(KEY, lookup(2).item)
    run = one.applying().until(is_record_write)
    stripe = world.find_stripe(KEY)
    assert stripe is not None
    assert stripe.position == made.position
    assert not world.record().progress.contains(made.position)
    assert not one.member.applied.contains(made.position)
    run.finish()
    assert world.record().progress.contains(made.position)
    assert one.member.applied == world.database.head


@pytest.mark.parametrize("is_reply", [False, True])
@pytest.mark.parametrize("has_table", [False, True])
def test_a_batch_fails_at_any_request_and_is_sent_again(is_reply: bool, has_table: bool) -> None:
    """I4: what was not acknowledged is not claimed, and nothing else is lost."""
    failures = 0
    for place in range(100):
        world = World()
        one = start(world)
        assert read_lagging(world) is ReadOutcome.FILLED
        world.sleep(1)
        world.commit(KEY, raised=["customers"] if has_table else [])
        run = one.applying()
        for _ in range(place):
            run.advance()
            if run.is_done:
                break
        if run.is_done:
            break
        if isinstance(run.pending, Wait):
            continue
        if is_reply:
            run.lose_reply()
        else:
            run.lose_request()
        refuse(run, NodeUnavailable)
        failures += 1
        assert not one.member.is_joined
        one.join()
        one.apply()
        assert world.record().progress == world.database.head
        assert read_lagging(world) not in (ReadOutcome.HIT, ReadOutcome.FILLED)
        assert world.broken == []
    assert failures >= 4


def test_what_this_life_has_acknowledged_is_not_sent_again() -> None:
    """Another node needed the stream from further back."""
    world = World()
    one = start(world)
    world.commit(KEY)
    one.apply()
    new = world.commit(lookup(2).item)
    one.cursor = world.database.base
    run = one.applying()
    keys = []
    while run.pending is not None:
        if isinstance(run.pending, Delete):
            keys.append(run.pending.key)
        run.advance()
    run.finish()
    assert keys == [lookup(2).item]
    assert world.record().progress.contains(new.position)


def test_the_floor_is_where_the_life_began_and_never_moves() -> None:
    world = World()
    world.commit(KEY)
    one = start(world)
    floor = world.record().floor
    assert floor == world.database.head
    for _ in range(20):
        world.commit(KEY)
        one.live(world.now - 1000 + 5)
    world.sleep(60)
    start(world)
    assert world.record().floor == world.resume_copy().floor == floor
    assert world.broken == []


def test_a_batch_whose_stripe_is_absent_is_acknowledged_all_the_same() -> None:
    """No fill is allowed without the stripe, and it comes back with the event."""
    world = World()
    one = start(world)
    assert read_lagging(world) is ReadOutcome.FILLED
    world.evict_stripe(KEY)
    made = world.commit(KEY)
    one.applying().finish()
    assert world.record().progress.contains(made.position)
    assert read_lagging(world) is ReadOutcome.STRIPE_ABSENT
    one.apply()
    assert read_lagging(world) is ReadOutcome.STRIPE
    assert Reader(world, world.replica(made)).read() is ReadOutcome.FILLED
    assert world.broken == []


def test_a_stripe_does_not_grow_without_bound() -> None:
    world = World()
    one = start(world)
    counts = []
    for number in range(200):
        world.commit(KEY)
        run = one.applying()
        published = False
        while run.pending is not None:
            published = published or is_record_write(run.pending)
            if isinstance(run.pending, Cas) and run.pending.key == world.stripe_key():
                assert published, "first others are told, then there is time for this"
            run.advance()
        run.finish()
        stripe = world.find_stripe()
        assert stripe is not None
        assert stripe.position.contains(world.database.position_of(11 + number))
        counts.append(stripe.chunk_count)
        world.sleep(0.1)
    assert 1 in counts
    assert max(counts) < 100
    assert world.broken == []


def test_a_shortening_that_fails_leaves_what_was_acknowledged() -> None:
    world = World()
    one = start(world)
    for _ in range(100):
        made = world.commit(KEY)
        run = one.applying().until(
            lambda action: isinstance(action, Cas) and action.key == world.stripe_key(), may_end=True
        )
        if run.pending is not None:
            break
    run.lose_reply()
    refuse(run, NodeUnavailable)
    assert not one.member.is_joined
    assert world.record().progress.contains(made.position)
    one.join()
    world.commit(KEY)
    one.apply()
    assert world.broken == []


def test_what_another_process_has_sent_is_acknowledged_and_not_sent() -> None:
    world = World()
    one = start(world)
    made = world.commit(KEY, raised=["customers"])
    run = one.run(acknowledge(one.member, one.batch()))
    seen: list[object] = []
    while run.pending is not None:
        seen.append(run.pending)
        run.advance()
    run.finish()
    assert not any(is_append(action) or is_delete(action) for action in seen)  # type: ignore[arg-type]
    assert one.member.applied == world.database.head
    assert "customers" in world.record().table_floors
    assert not world.record().progress.contains(made.position), "until no reader trusts an older record"
    world.sleep(NODE_REFRESH_SECONDS)
    one.renewing().finish()
    assert world.record().progress == world.database.head


def test_what_another_process_has_sent_is_not_acknowledged_where_the_record_is_gone() -> None:
    world = World()
    one = start(world)
    world.commit(KEY)
    batch = one.batch()
    world.sleep(L_SECONDS)
    refuse(one.run(acknowledge(one.member, batch)))
    assert not one.member.is_joined


def test_a_raise_stands_before_the_stripes_and_is_published_when_readers_know_it() -> None:
    world = World()
    one = start(world)
    made = world.commit(KEY, raised=["customers"])
    run = one.applying().until(is_append)
    assert world.record().table_floors["customers"].contains(made.position)
    run.finish()
    assert not world.record().progress.contains(made.position)
    world.sleep(NODE_REFRESH_SECONDS)
    one.renewing().finish()
    assert world.record().progress.contains(made.position)


def test_a_raise_holds_up_nothing_but_progress() -> None:
    """The keys of later batches are sent, and their heartbeats renew the lease, while readers still trust a record
    without the raise."""
    world = World()
    one = start(world)
    began_at, before = world.now, world.record().progress
    world.commit(raised=["customers"])
    one.applying().finish()
    made = world.commit(KEY)
    beat = HeartbeatSeen(world.now, 77)
    one.applying(replace(one.batch(), heartbeat=beat)).finish()
    assert world.now == began_at, "nobody waited"
    stripe = world.find_stripe(KEY)
    assert stripe is not None
    assert stripe.position.contains(made.position)
    assert (world.record().as_of_us, world.record().progress) == (77, before)


def test_progress_never_stands_still_under_a_series_of_raises() -> None:
    """I6: it is at most two waits for readers behind, and holds nothing that readers may not know."""
    world = World()
    one = start(world)
    raised: list[tuple[float, Position]] = []
    for _ in range(50):
        raised.append((world.now, world.commit(raised=["customers"]).position))
        one.applying().finish()
        assert len(one.member.held) <= 2
        for at, position in raised:
            age = world.now - at
            assert world.record().progress.contains(position) or age < 2 * NODE_REFRESH_SECONDS
            assert age >= NODE_REFRESH_SECONDS or not world.record().progress.contains(position)
        world.sleep(0.125)


def test_a_membership_that_is_over_holds_nothing() -> None:
    world = World()
    one = start(world)
    world.commit(raised=["customers"])
    one.applying().finish()
    one.member.leave()
    one.join()
    made = world.commit(KEY)
    one.applying(one.batch(made)).finish()
    assert world.record().progress.contains(made.position)


def test_a_table_floor_is_the_events_own_position() -> None:
    """F68: rows read before it are condemned, and a replica needs nothing but the event."""
    world = World()
    one = start(world)
    world.commit(lookup(9).item)
    raising = world.commit(raised=["customers"])
    one.apply()
    assert world.record().table_floors["customers"] == raising.position
    assert Reader(world, world.replica(raising)).read() is ReadOutcome.FILLED


def test_a_table_floor_holds_every_statement_and_stays_short() -> None:
    """F68: gaps are filled with what was streamed, and with nothing else."""
    world = World()
    one = start(world)
    first = world.commit(raised=["customers"])
    one.apply()
    between = world.commit(lookup(9).item)
    second = world.commit(raised=["customers"])
    one.apply()
    expected = first.position.union(between.position).union(second.position)
    assert world.record().table_floors["customers"] == expected
    assert expected.interval_count == 1
    world.database.skipped = 1
    third = world.commit(raised=["customers"])
    one.apply()
    assert world.record().table_floors["customers"] == expected.union(third.position)


def requests_of(run: Run[None]) -> list[object]:
    seen: list[object] = []
    while run.pending is not None:
        seen.append(run.pending)
        run.advance()
    run.finish()
    return seen


# -- two memberships, and the resume copy --------------------------------------------------------------


def test_two_lineages_on_one_node_do_not_concern_one_another() -> None:
    world = World(lineages=(LINEAGE, "shop/b"))
    one, two = start(world), start(world, lineage="shop/b")
    assert world.record().life != world.record(lineage="shop/b").life
    world.databases["shop/b"].commit(KEY)
    two.apply()
    assert world.record(lineage="shop/b").progress == world.databases["shop/b"].head
    assert world.record().progress == world.database.base
    world.sleep(3)
    two.apply()
    world.sleep(2.5)
    assert world.find_record() is None
    assert world.record(lineage="shop/b").is_open
    refuse(one.renewing())


def test_each_lineage_has_stripes_of_its_own() -> None:
    world = World(lineages=(LINEAGE, "shop/b"))
    one, two = start(world), start(world, lineage="shop/b")
    first, second = world.commit(KEY), world.databases["shop/b"].commit(KEY)
    one.apply()
    two.apply()
    for lineage, made in ((LINEAGE, first), ("shop/b", second)):
        stripe = world.find_stripe(KEY, lineage=lineage)
        assert stripe is not None
        assert stripe.position == made.position


def test_the_resume_copy_never_claims_more_than_the_record() -> None:
    world = World()
    one = start(world)
    world.sleep(1.5)
    made = world.commit(KEY)
    run = one.applying().until(is_record_write)
    assert not world.resume_copy().progress.contains(made.position)
    run.advance()
    assert not world.resume_copy().progress.contains(made.position)
    assert world.record().progress.contains(made.position)
    run.finish()
    assert world.resume_copy().progress.contains(made.position)


def test_a_late_resume_copy_takes_nothing_back() -> None:
    world = World()
    one, two = start(world), start(world)
    world.sleep(1.5)
    world.commit(KEY)
    slow = one.applying().until_kind(Cas, Add).until(lambda action: getattr(action, "key", None) == RESUME)
    world.sleep(1.5)
    newer = world.commit(KEY)
    two.apply()
    assert world.resume_copy().progress.contains(newer.position)
    slow.finish()
    assert world.resume_copy().progress.contains(newer.position)


def test_a_resume_copy_that_was_evicted_is_written_again() -> None:
    world = World()
    one = start(world)
    world.stores[NODE].evict(RESUME)
    world.sleep(1.5)
    one.apply()
    assert world.resume_copy().life == world.record().life


# -- leaving -------------------------------------------------------------------------------------------


def test_a_membership_that_ended_is_not_used() -> None:
    world = World()
    one = start(world)
    one.member.leave()
    with pytest.raises(AssertionError, match="before it is joined"):
        one.member.joined_record()
    assert one.member.version == 0
    assert one.member.target is None


def test_mariadb_positions_are_kept_alike() -> None:
    world = World(flavor="mariadb")
    one = start(world)
    assert read_lagging(world) is ReadOutcome.FILLED
    made = world.commit(KEY)
    one.apply()
    assert world.record().progress.contains(made.position)
    assert read_lagging(world) is ReadOutcome.STRIPE
    world.evict_stripe(KEY)
    assert read_lagging(world) is ReadOutcome.STRIPE_ABSENT
    world.sleep(30)
    one.join()
    one.apply()
    assert read_lagging(world) is ReadOutcome.STRIPE
    assert Reader(world, world.replica(made)).read() is ReadOutcome.FILLED
    assert world.broken == []


def test_get_is_the_only_way_to_know_a_record() -> None:
    """Versions never outlive a membership: a join begins by reading."""
    world = World()
    one = start(world)
    one.member.version = 999
    run = one.joining()
    first = run.steps[0]
    assert getattr(first, "requests", ()) == (Get(RECORD, is_bound=True), Get(RESUME, is_bound=True))
    run.finish()


def test_a_heartbeat_vouches_for_the_primary_alone_that_it_was_written_to() -> None:
    """F101."""
    world = World()
    one = start(world)
    primary, now = world.record().primary, world.now
    assert one.member.may_vouch(now, primary)
    assert not one.member.may_vouch(now, primary + " of another network")


# -- rings and objects that come and go ------------------------------------------------------------------


def test_an_object_leaves_with_a_higher_topology_and_comes_back_from_the_progress_on() -> None:
    world = World()
    start(world, objects=BOTH)
    changed = {**BOTH, ORDER.name: 99}
    refuse(Invalidator(world, objects=changed).joining())
    two = start(world, objects=changed, topology=2)
    record = world.record()
    assert record.objects[CUSTOMER.name].start == world.database.base, "the others stay as they are"
    assert record.objects[ORDER.name].fingerprint == 99
    world.commit(KEY)
    two.apply()
    before = world.record().progress
    start(world, objects=BOTH, topology=3)
    again = world.record().objects
    assert again[ORDER.name] == Coverage(ORDER.fingerprint, before)
    assert again[CUSTOMER.name].start == world.database.base


ALTERED = {**BOTH, ORDER.name: 99}
"""The objects once the key columns of one were altered."""
BEFORE = frozenset({(ORDER.name, ORDER.fingerprint)})


def test_an_object_whose_keys_were_altered_begins_again_and_the_others_stay() -> None:
    """It begins with the head, even if the stream has not come so far: rows before have keys of the other type."""
    world = World()
    one = start(world, objects=BOTH)
    world.commit(KEY)
    reader, other, order = Reader(world, world.replica().catch_up()), lookup(2), lookup(1, ORDER)
    assert [reader.read(other), reader.read(order)] == [ReadOutcome.FILLED] * 2
    life, progress, head = world.record().life, world.record().progress, world.database.head
    assert not progress.contains(head)
    refuse(Invalidator(world, objects=ALTERED).joining())
    two = Invalidator(world, objects=ALTERED, altered=BEFORE).join()
    two.renewing().finish()
    assert world.record().objects[ORDER.name].fingerprint == ORDER.fingerprint, "it cannot vouch for the node yet"
    applying = two.applying()
    applying.finish()
    record = world.record()
    assert record.objects == {
        CUSTOMER.name: Coverage(CUSTOMER.fingerprint, world.database.base),
        ORDER.name: Coverage(99, head),
    }
    assert (record.is_open, record.life) == (True, life)
    assert world.resume_copy().objects == record.objects, "or the next one revives the previous definition"
    assert "other objects" in refuse(one.applying()).message
    world.sleep(1.1)
    assert [reader.read(other), reader.read(order)] == [ReadOutcome.HIT, ReadOutcome.OBJECT]
    assert any(isinstance(each, Wait) for each in applying.steps), "readers trust a copy with the previous one"


def test_altered_objects_leave_a_record_that_is_closed_or_has_lapsed() -> None:
    for lapses in (False, True):
        world = World()
        (start if lapses else join_closed)(world, objects=BOTH)
        life = (world.resume_copy() if lapses else world.record()).life
        if lapses:
            world.sleep(L_SECONDS)
        Invalidator(world, objects=ALTERED, altered=BEFORE).join().apply()
        record = world.record()
        assert (record.life, record.is_open, record.objects[ORDER.name].fingerprint) == (life, True, 99)


def join_closed(world: World, **changes: object) -> Invalidator:
    return Invalidator(world, **changes).join()  # type: ignore[arg-type]


def test_an_altered_object_that_comes_back_is_not_published_by_who_does_not_send_it() -> None:
    world = World()
    start(world, objects=BOTH)
    two = start(world, objects=ALTERED, altered=BEFORE)
    three = start(world, objects=BOTH, altered=frozenset({(ORDER.name, 99)}))
    made = world.commit(KEY)
    assert "other objects" in refuse(two.applying()).message
    assert not world.record().progress.contains(made.position)
    three.apply()
    assert world.record().progress.contains(made.position)


def test_a_witness_knows_the_starts_of_a_record_before_readers_do() -> None:
    """Also if the answer to the write is lost, and the life ends before it is written again."""
    world = World()
    start(world, objects=BOTH)
    world.commit(KEY)
    two = Invalidator(world, objects={**BOTH, ORDER.name: 99}, topology=2)
    told: list[tuple[Action, NodeRecord]] = []

    class Early(Seen):
        def tell(self, action: Action) -> None:
            told.append((action, world.record()))

    two.member.witness = Early()
    two.join().apply()
    action, record = next(each for each in told if each[0].kind == "publish")
    assert record.objects[ORDER.name].fingerprint == ORDER.fingerprint
    assert action.traces[LINEAGE].floor == record.progress
    assert world.record().objects[ORDER.name].fingerprint == 99


def test_a_ring_is_served_from_the_progress_on_or_as_one_that_brings_the_same_keys() -> None:
    two, three, other = (Placement(nodes) for nodes in (("a", "b"), ("a", "b", "c"), ("a", "d")))

    def policy(*placements: Placement, topology: int = 1) -> NodePolicy:
        known = {each.ring_version: each for each in placements}
        return NodePolicy("shop", LINEAGE, next(iter(known)), {}, STRIPES, 5, 4.0, 1.0, True, topology, known)

    source = "00000000-0000-0000-0000-000000000001"
    nothing, floor, progress = (parse_position("mysql", f"{source}:1-{n}" if n else "") for n in (0, 5, 9))
    life = b"LIFELIFE"
    began = NodeRecord(LINEAGE, life, life, True, 1, two.ring_version, 0, 0, "a", STRIPES, progress, floor)
    grown = serve(began, policy(three, two))
    assert (grown.rings, grown.is_settling) == ({two.ring_version, three.ring_version}, False)
    assert grown.find_start([three.ring_version]) == nothing, "other nodes were added"
    changed = serve(began, policy(other, two))
    assert changed.find_start([other.ring_version]) == progress
    assert changed.find_start([other.ring_version, two.ring_version]) == nothing
    assert is_of_another_configuration(changed, policy(other)), "a ring leaves with a higher number alone"
    assert not is_of_another_configuration(changed, policy(other, topology=2))
    left = serve(changed, policy(other, topology=2))
    assert (left.rings, left.is_settling) == ({other.ring_version}, True)
    assert left.find_start([other.ring_version]) == progress
    assert left.find_start([two.ring_version]) is None
    again = serve(left, policy(two, other, topology=3))
    assert (again.find_start([two.ring_version]), again.is_settling) == (progress, True)
    assert NodeRecord.decode(left.encode()) == left
