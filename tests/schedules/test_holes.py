"""Defences whose lack poisons: of failures from elsewhere, and of the holes that this project found in itself.

Continues test_defences.py, by the same rule: each schedule is played with the code as it is, and again with one
defence taken out, when the named invariant must break. docs/failure-modes.md describes the holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from freshness.algorithm import apply, fill, hit, read, view
from freshness.algorithm.envelope import Coverage, NodeRecord, find_record
from freshness.algorithm.gather import gather
from freshness.algorithm.invalidate import invalidate
from freshness.algorithm.membership import HeartbeatSeen, Membership
from freshness.algorithm.request import DONE, STORED, Delete, Flow, Get, Procedure
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome, find_fill_refusal
from freshness.algorithm.view import NodeView, Sightings
from freshness.config.cache import CacheConfig
from freshness.errors import NodeUnavailable
from freshness.position import Position
from freshness.position.mariadb import MariadbPosition
from freshness.position.token import EventToken
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable
from invalidator.binlog.transaction import Subscription, TransactionAssembler
from invalidator.binlog.wire.event import GroupStart
from invalidator.replica import server
from invalidator.statement import Xid
from tests.schedules.test_defences import coverage_of_all, go_on, prove, read_lagging, start
from tests.schedules.world import (
    CUSTOMER,
    KEY,
    LINEAGE,
    MAX_STALENESS_SECONDS,
    NODE,
    ORDER,
    START_SECONDS,
    Database,
    Invalidator,
    Reader,
    ReadToken,
    Replica,
    Run,
    World,
    is_append,
    is_record_write,
    look_up_with_the_record_behind,
    lookup,
    version_of,
)

OTHER = "shop/b"
PAIR = ObjectPolicy("pair", 9, ("pairs",), (LINEAGE, OTHER), 3600)
BOTH = {CUSTOMER.name: CUSTOMER.fingerprint, ORDER.name: ORDER.fingerprint}


def read_anew(world: World) -> ReadOutcome:
    """A hit is held against what was acknowledged; a lagging replica answers a miss."""
    return Reader(world, world.replica()).read()


# -- failures of requests ------------------------------------------------------------------------------


def lose_an_invalidation(world: World) -> tuple[bool, bool]:
    """Whether it counts as done, and whether progress claims it."""
    one = start(world)
    assert read_anew(world) is ReadOutcome.FILLED
    made = world.commit(KEY)
    run = one.applying().until(is_append)
    run.lose_request()
    is_done = go_on(run)
    is_claimed = world.record().progress.contains(made.position)
    read_anew(world)
    return is_done, is_claimed


def test_no_answer_is_never_a_default_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """F11: the client library makes up an answer if the node did not send one."""

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def answer_by_default(self: Run[Any], place: int, _: str) -> None:
            for at, index, request in self._todo:
                if at == place:
                    default = DONE if isinstance(request, Delete) else STORED
                    self._replies[place][index] = default
            self._todo = [entry for entry in self._todo if entry[0] != place]

        patch.setattr(Run, "_fail", answer_by_default)

    prove(lose_an_invalidation, (False, False), plant, "I1", monkeypatch)


def test_an_invalidation_that_failed_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """F12: the error is there, and the batch goes on."""

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def careless(*arguments: Any) -> Procedure[Sequence[int]]:
            yield from gather([invalidate(*arguments)])
            return ()

        patch.setattr(apply, "invalidate", careless)

    prove(lose_an_invalidation, (False, False), plant, "I1", monkeypatch)


def test_a_stub_is_never_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """F42: a plain get sees a stub as an empty value."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        Reader(world, world.replica()).reading().until(lambda action: isinstance(action, ReadToken), may_end=True)
        return read_anew(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(hit, "STUB", b"another empty value")
        patch.setattr(NodeView, "judge", lambda *_: (None, b"[]"))

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


# -- histories -----------------------------------------------------------------------------------------


class PreviousReplica(Replica):
    """Of a history that was lost: under the numbers that it has, the new primary commits something else."""

    def __init__(self, database: Database, position: Position | None = None) -> None:
        super().__init__(database)
        self.catch_up()
        self._token = self.token_now() if position is None else replace(self.token_now(), position=position)

    def token_now(self) -> EventToken:
        return super().token()

    def token(self) -> EventToken:
        return self._token

    def value(self, _: Any) -> list[int]:
        return []


def test_positions_of_two_epochs_do_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """F28, F29: a failover loses a transaction, and its number is given again. A replica that still has the lost
    one contains, by its numbers, everything."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        previous = PreviousReplica(world.database)
        world.database.transactions.clear()
        world.database.epoch = 2
        one.cursor = type(one.cursor)()
        one.join()
        world.commit(KEY)
        one.apply()
        outcome = Reader(world, previous).read()
        read_anew(world)
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def of_any_epoch(policy: Any, ring: int, records: Any, stripes: Any, tokens: Any) -> Any:
            same = {name: replace(token, epoch=records[name].epoch) for name, token in tokens.items()}
            return find_fill_refusal(policy, ring, records, stripes, same)

        patch.setattr(fill, "find_fill_refusal", of_any_epoch)

    prove(schedule, ReadOutcome.EPOCH, plant, "I1", monkeypatch)


def test_one_number_of_two_mariadb_servers_is_two_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """F59: 0-1-11 and 0-9-11 are different histories."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        outcome = Reader(world, PreviousReplica(world.database, MariadbPosition.of(0, 9, 11))).read()
        read_anew(world)
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def by_number(self: MariadbPosition, other: Position) -> bool:
            assert isinstance(other, MariadbPosition)
            mine = {domain: head.sequence for domain, head in self._heads.items()}
            return all(mine.get(domain, 0) >= head.sequence for domain, head in other._heads.items())

        patch.setattr(MariadbPosition, "contains", by_number)

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch, flavor="mariadb")


def test_a_prepared_transaction_is_invalidated_at_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """F54: XA logs the rows at PREPARE, under one GTID, and shows them at COMMIT, under another without rows. A
    replica that has executed the PREPARE contains the rows' own GTID and shows the rows of before."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        log = TransactionAssembler(Subscription("mysql", "shop", frozenset({"customers"}), "heartbeats"))
        xid, table = Xid(b"a", b"b", 1), MappedTable("shop", "customers", True, b"")
        prepared = world.commit()
        log.start_group(GroupStart(prepared.position, 0, True))
        log.add_rows(ChangedRows(table, "update", True, items=[KEY]))
        assert not log.prepare(xid).items
        committed = world.commit(KEY)
        log.start_group(GroupStart(committed.position, 0, False))
        ended = log.add_query("XA COMMIT X'61',X'62',1", "shop")
        assert ended is not None
        one.apply(replace(one.batch(), keys=dict.fromkeys(ended.items, committed.position)))
        outcome = Reader(world, world.replica(prepared)).read()
        read_anew(world)
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(TransactionAssembler, "_commit_prepared", lambda *_: None)

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch)


# -- two lineages --------------------------------------------------------------------------------------


def read_pair(world: World, lagging: Replica) -> ReadOutcome:
    """A composite of both lineages, of which the second is changed and invalidated."""
    pair = lookup(1, PAIR)
    _, two = (start(world, lineage=name, objects={PAIR.name: PAIR.fingerprint}) for name in (LINEAGE, OTHER))
    world.databases[OTHER].commit(pair.item)
    two.apply()
    first = Replica(world.databases[LINEAGE])
    outcome = Reader(world, [first, lagging]).read(pair)
    Reader(world, [first, lagging]).read(pair)
    return outcome


def test_every_lineage_of_a_key_is_held_to_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """F31: a row comes from another shard. The one shard's replica is fresh, the other's is not."""

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def first_only(policy: Any, ring: int, records: Any, stripes: Any, tokens: Any) -> Any:
            policy = replace(policy, lineages=policy.lineages[:1])
            return find_fill_refusal(policy, ring, records, stripes, tokens)

        patch.setattr(fill, "find_fill_refusal", first_only)

    def schedule(world: World) -> ReadOutcome:
        return read_pair(world, Replica(world.databases[OTHER]))

    prove(schedule, ReadOutcome.STRIPE, plant, "I1", monkeypatch, lineages=(LINEAGE, OTHER))


def test_what_does_not_compare_is_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """F30: the second shard's server gives no position. The first one's, however new, says nothing of it."""

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def of_what_is_known(policy: Any, ring: int, records: Any, stripes: Any, tokens: Any) -> Any:
            known = tuple(name for name in policy.lineages if name in tokens)
            return find_fill_refusal(replace(policy, lineages=known), ring, records, stripes, tokens)

        def fill_with_the_other(context: Any, fills: Any) -> Procedure[None]:
            lent = [dict.fromkeys((LINEAGE, OTHER), each.row.tokens[LINEAGE]) for each in fills]
            rows = [replace(each.row, tokens=tokens) for each, tokens in zip(fills, lent, strict=True)]
            yield from original(context, [replace(each, row=row) for each, row in zip(fills, rows, strict=True)])

        original = fill._fill
        patch.setattr(fill, "find_fill_refusal", of_what_is_known)
        patch.setattr(fill, "_fill", fill_with_the_other)
        patch.setattr(NodeRecord, "find_coverage", coverage_of_all)  # or hits lack the start of the object

    def schedule(world: World) -> ReadOutcome:
        silent = Replica(world.databases[OTHER])
        silent.gives_token = False
        return read_pair(world, silent)

    prove(schedule, ReadOutcome.NO_TOKEN, plant, "I1", monkeypatch, lineages=(LINEAGE, OTHER))


# -- tenures, lives and the resume copy ------------------------------------------------------------------


def adopt_whatever_is_there(self: Membership) -> Procedure[None]:
    """In the place of `Membership.reread`: after a lost race go on with the record that is there now."""
    read_at = self.clock()
    (reply,) = yield Flow(self.node, (Get(self.record_key),))
    current = find_record(reply, self.node)
    assert current is not None
    self.adopt(current, reply, read_at)


def plant_adoption(_: World, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "reread", adopt_whatever_is_there)


def test_acknowledgements_of_a_previous_life_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F66: a node restarts, and another invalidator admits it and puts its stripes back. This one has not noticed:
    it appends to the previous life."""

    def schedule(world: World) -> tuple[bool, bool]:
        one = start(world)
        world.restart()
        start(world)
        with pytest.raises(NodeUnavailable):
            one.client.perform(NODE, Get(b"the connection is opened anew for somebody else"))
        made = world.commit(KEY)
        is_published = go_on(one.applying())
        is_claimed = world.record().progress.contains(made.position)
        read_lagging(world)
        return is_published, is_claimed

    prove(schedule, (False, False), plant_adoption, "I1", monkeypatch)


def test_a_lapse_of_the_record_is_noticed_by_who_slept_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """F76: the record lapses and is added again from an older resume copy, in the same life; a paused member's
    raised table floor is not in it, and its progress would claim the raise."""

    def schedule(world: World) -> bool:
        one, two = start(world), Invalidator(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(raised=["customers"])
        paused = one.raising()
        world.sleep(8)
        two.joining().finish()
        is_published = go_on(paused)
        start(world)
        read_anew(world)
        return is_published

    prove(schedule, False, plant_adoption, "I1", monkeypatch)


def test_a_version_is_of_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """F75: two memberships share a connection. The node restarts, the other one hears of it, and this one's
    version of before fits the record of the new incarnation by chance: it would end the life that has begun."""

    def schedule(world: World) -> tuple[bool, bool]:
        world.repeat_version(50)
        one = start(world)
        world.commit(KEY)
        one.apply()
        held = one.member.version
        world.restart()
        two = start(world)
        with pytest.raises(NodeUnavailable):
            one.client.perform(NODE, Get(b"somebody else asks on it"))
        world.repeat_version(held)
        two.apply()
        assert version_of(world, one.member.record_key) == held
        life = world.record().life
        return go_on(one.applying()), world.record().life == life

    sound = World()
    assert schedule(sound) == (False, True)
    assert sound.broken == []
    monkeypatch.setattr("tests.schedules.world.VERSIONS_PER_CONNECTION", 0)
    assert schedule(World()) == (True, False)


def without_start(record: NodeRecord, name: str, fingerprint: int) -> Coverage | None:
    """In the place of `NodeRecord.find_coverage`."""
    return coverage_of_all(record, name, fingerprint) if name in record.objects else None


def test_an_object_that_a_revival_forgot_is_covered_from_there_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """F79: the new release covers an object, readers fill it, and it dies. The old release revives the life
    without it, passes over its changes, and gives way to the new one again. Two defences: the resume copy has the
    object first, and entries from before it is covered again are not hits."""

    def schedule(world: World) -> ReadOutcome:
        old = start(world)
        new = Invalidator(world, objects=BOTH).join()
        new.applying().until(is_record_write).advance()
        order = lookup(1, ORDER)
        assert Reader(world, world.replica()).read(order) is ReadOutcome.FILLED
        world.sleep(8)
        old.join()
        old.live(20)
        world.commit(order.item)
        old.live(22)
        outcome = Reader(world, world.replica()).read(order)
        world.sleep(8)
        Invalidator(world, objects=BOTH).join().live(40)
        Reader(world, world.replica()).read(order)
        return outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        write = Membership.write_resume

        def afterwards(
            self: Membership, record: NodeRecord | None = None, *, is_birth: bool = False
        ) -> Procedure[None]:
            if record is None or is_birth:
                yield from write(self, record, is_birth=is_birth)

        patch.setattr(Membership, "write_resume", afterwards)
        patch.setattr(NodeRecord, "find_coverage", without_start)

    prove(schedule, ReadOutcome.OBJECT, plant, "I1", monkeypatch)


def test_the_resume_copy_is_a_whole_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """F84: a revived node must have its table floors again, since progress claims them."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(raised=["customers"])
        one.apply()
        one.live(4)
        world.sleep(8)
        Invalidator(world).join().live(20)
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        write = Membership.write_resume

        def life_and_progress(
            self: Membership, record: NodeRecord | None = None, *, is_birth: bool = False
        ) -> Procedure[None]:
            bare = replace(record or self.joined_record(), table_floors={})
            yield from write(self, bare, is_birth=is_birth)

        patch.setattr(Membership, "write_resume", life_and_progress)

    prove(schedule, ReadOutcome.TABLE_FLOOR, plant, "I1", monkeypatch)


# -- views ---------------------------------------------------------------------------------------------


def test_an_entry_is_judged_by_a_view_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """F82: a reader looks whether its view is young enough, sleeps, and then asks for the entry."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        reader = Reader(world, world.replica())
        assert reader.read() is ReadOutcome.FILLED
        paused = reader.reading().until_kind(Get)
        world.sleep(0.5)
        world.commit(raised=["customers"])
        one.apply()
        one.live(10)
        known = {lineage: at for (_, lineage), at in world.acknowledged.items()}
        (found,) = paused.finish()
        if found.outcome is ReadOutcome.HIT and found.payload is not None:
            world.check_hit(lookup(), found.payload, known)
        return found.outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def from_the_future(node: str, lineages: Any, replies: Any, at: float, ring: int) -> NodeView:
            return NodeView(node, lineages, replies, at + 1000, ring)

        patch.setattr(hit, "NodeView", from_the_future)
        patch.setattr(fill, "NodeView", from_the_future)

    prove(schedule, ReadOutcome.NO_RECORD, plant, "I1", monkeypatch)


def test_a_record_is_read_before_the_entry_that_it_vouches_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """F89: the record lapsed ten minutes ago, and the entry has been there since. Between the two requests of a
    reader the node is revived, gets what it missed, and opens: a record that is read then is of the entry's life."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.sleep(10)
        world.commit(KEY)
        world.sleep(590)
        reading = Reader(world, world.replica()).reading().until_kind(Get)
        reading.advance()  # the first of its two requests
        two = Invalidator(world).join()
        two.apply()
        assert world.record().is_open
        (found,) = reading.finish()
        return found.outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(read, "look_up", look_up_with_the_record_behind)

    prove(schedule, ReadOutcome.NO_RECORD, plant, "I7", monkeypatch)


def test_the_second_that_a_node_gives_on_top_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """F50: nodes count whole seconds and keep items up to one longer. The TTL of a record gives its age."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.sleep_until(1.0)
        one.apply()
        world.commit(KEY)
        world.sleep_until(2.7)
        renewal = one.renewing()
        world.sleep_until(5.99)
        renewal.finish()
        world.max_staleness_seconds = 4.5
        return Reader(world, world.replica()).reading(max_staleness_seconds=4.5).finish()[0].outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("freshness.algorithm.view.TTL_SLACK_SECONDS", -1)

    prove(schedule, ReadOutcome.STALE, plant, "I7", monkeypatch)


def test_no_clock_of_a_client_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """F36: the reader's clock is an hour behind. The bound on a hit's staleness does not depend on it."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(KEY)
        world.sleep(4)
        world.max_staleness_seconds = 2
        reader = Reader(world, world.replica())
        reader.context.clock = lambda: world.now - 3600
        return reader.read(max_staleness_seconds=2)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def by_clocks(self: NodeView, policy: ObjectPolicy, now: float) -> float:
            as_of = (record.as_of_us for record in self.records.values() if record is not None)
            return now - min(as_of) / 1e6

        patch.setattr(NodeView, "staleness_seconds", by_clocks)

    prove(schedule, ReadOutcome.STALE, plant, "I7", monkeypatch)


# -- the bound of staleness ----------------------------------------------------------------------------


def renewing(one: Invalidator) -> Run[None]:
    return one.run(apply.publish(one.member, None))


def test_a_renewal_that_arrives_late_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """F104: the lease is decided with a heartbeat that is just young enough. Its CAS arrives when the previous record
    is about to expire, and the lease begins only then."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(KEY)
        for at in (3, 6, 8):
            world.sleep_until(at)
            renewing(one).finish()
        world.sleep_until(8.9)
        late = renewing(one)
        world.sleep_until(12.99)
        go_on(late)
        world.sleep_until(16.9)
        return read_anew(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        one_lease = property(lambda self: self.max_staleness_seconds - self.lease_seconds - self.node_refresh_seconds)
        patch.setattr(CacheConfig, "heartbeat_age_max_seconds", one_lease)

    prove(schedule, ReadOutcome.CLOSED, plant, "I7", monkeypatch)


def test_what_a_late_renewal_says_of_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """F104: as above, and a caller who wants no more than 7 s is answered by the record."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(KEY)
        world.sleep_until(3)
        renewing(one).finish()
        world.sleep_until(3.9)
        late = renewing(one)
        world.sleep_until(7.99)
        late.finish()
        world.sleep_until(8)
        world.max_staleness_seconds = 7
        return Reader(world, world.replica()).read(max_staleness_seconds=7)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Membership, "_arrival_age", lambda _, beat, now: now - beat.written_at)

    prove(schedule, ReadOutcome.STALE, plant, "I7", monkeypatch)


def test_a_renewal_can_wait_for_the_longer_lease_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """F104: the previous record is of an invalidator whose lease is longer, so the CAS can arrive later still."""

    def schedule(world: World) -> ReadOutcome:
        short = start(world, lease_seconds=2, heartbeat_age_max_seconds=10.0)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(KEY)
        for halves in range(1, 17):
            world.sleep_until(halves / 2)
            renewing(short).finish()
        long = Invalidator(world, lease_seconds=6, heartbeat_age_max_seconds=2.0).join()
        for at in (8, 9):
            world.sleep_until(at)
            renewing(long).finish()
        assert not world.record().is_open, "it has no heartbeat of its own"
        world.sleep_until(9.9)
        short.run(short.member.reread()).finish()
        late = renewing(short)
        world.sleep_until(14.99)
        go_on(late)
        world.sleep_until(15.9)
        return read_anew(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def by_its_own(self: Membership, beat: HeartbeatSeen, now: float) -> float:
            return now + self.policy.lease_seconds - beat.written_at

        patch.setattr(Membership, "_arrival_age", by_its_own)

    prove(schedule, ReadOutcome.CLOSED, plant, "I7", monkeypatch)


def test_a_heartbeat_that_was_seen_for_too_long_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """F105: the node's machine is suspended, and its leases go on afterwards. The reader knows the heartbeat."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        reader = Reader(world, world.replica())
        assert reader.read() is ReadOutcome.FILLED
        world.commit(KEY)
        world.stores[NODE].clock = lambda: START_SECONDS
        world.sleep(MAX_STALENESS_SECONDS + 1)
        return reader.read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Sightings, "note", lambda *_: None)

    prove(schedule, ReadOutcome.CLOCK, plant, "I7", monkeypatch)


def test_a_heartbeat_that_is_too_old_by_the_wall_clock_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """F105: as above, and the reader has never seen this heartbeat."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(KEY)
        world.stores[NODE].clock = lambda: START_SECONDS
        world.sleep(600)
        return read_anew(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(view, "is_outdated", lambda *_: False)

    prove(schedule, ReadOutcome.CLOCK, plant, "I7", monkeypatch)


def test_the_log_of_a_replica_that_commits_out_of_order_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """F92: a change is stuck in one applier of the replica, and heartbeats overtake it. The invalidator asks the
    replica's settings, and follows the primary."""
    variables = {"replica_preserve_commit_order": "OFF", "replica_parallel_workers": "4"}

    def schedule(world: World) -> bool:
        one = start(world)
        assert read_anew(world) is ReadOutcome.FILLED
        world.commit(KEY)
        is_refused = server._reorders(variables, [{"Parallel_Mode": ""}])
        while world.now < START_SECONDS + MAX_STALENESS_SECONDS + 1:
            if is_refused:
                one.apply()
            else:
                now = world.now
                beat = HeartbeatSeen(now, int(now * 1e6))
                one.apply(replace(apply.Batch({}, {}, one.cursor, one.cursor), heartbeat=beat))
            world.sleep(1)
        read_anew(world)
        return is_refused

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(server, "_reorders", lambda *_: False)

    prove(schedule, True, plant, "I7", monkeypatch)
