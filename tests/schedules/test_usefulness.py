"""Defences of usefulness (I5): what keeps a safe cache from being one that never fills, each shown to be needed.

As in test_defences.py every schedule is played twice. Here nothing is poisoned when the defence is planted out:
the cache only does less than it could, so what is compared is what the schedule says of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

import pytest

from freshness.algorithm import fill, hit, read, shortway
from freshness.algorithm.envelope import Filled, NodeRecord
from freshness.algorithm.membership import Membership
from freshness.algorithm.request import Get, Head, Item, Load, Procedure, Reply, Request, Wait
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome, find_fill_refusal
from freshness.algorithm.state import Demand, Pending, Read, ReadContext, Unstored
from freshness.algorithm.view import NodeView
from freshness.position import MysqlGtidSet, Position
from tests.schedules.test_defences import coverage_of_all, is_entry, start
from tests.schedules.world import CUSTOMER, KEY, LINEAGE, NODE, Reader, ReadToken, World, lookup

Schedule: TypeAlias = Callable[[World], object]
Plant: TypeAlias = Callable[[World, pytest.MonkeyPatch], None]
RuleOfFills: TypeAlias = Callable[..., ReadOutcome | None]


def prove_use(schedule: Schedule, expected: object, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """``expected``: the schedule's result with the code as it is; with the plant the result must differ."""
    sound = World()
    assert schedule(sound) == expected
    assert sound.broken == []
    flawed = World()
    plant(flawed, monkeypatch)
    assert schedule(flawed) != expected


def and_refuse(when: Callable[[Any, Any], bool]) -> RuleOfFills:
    """The rule of fills, which also refuses when this is so of the stripe and the read's token."""

    def find(policy: Any, ring: Any, records: Any, stripes: Any, tokens: Any) -> ReadOutcome | None:
        if when(stripes[LINEAGE], tokens[LINEAGE]):
            return ReadOutcome.STRIPE
        return find_fill_refusal(policy, ring, records, stripes, tokens)

    return find


# -- positions -----------------------------------------------------------------------------------------


def test_a_time_in_the_future_blocks_no_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """F37: a session has set its timestamp to 2037. Its change is a GTID like any other."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.database.commit(KEY, timestamp_us=2**51)
        one.apply()
        return Reader(world, world.replica().catch_up()).read()

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        def is_earlier(_: object, token: Any) -> bool:
            return any(token.timestamp_us < made.timestamp_us for made in world.database.transactions)

        patch.setattr(fill, "find_fill_refusal", and_refuse(is_earlier))

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_on_an_idle_shard_equal_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """F38: after the last change nothing moves any more. A read with exactly that position may be stored."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        return Reader(world, world.replica().catch_up()).read()

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "find_fill_refusal", and_refuse(lambda _, token: token.position == world.database.head))

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_a_key_that_is_written_all_the_time_is_stored_between_the_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """F39: ten changes a second, each on the replica at once. Seconds would tell none of them from the last."""

    def schedule(world: World) -> list[ReadOutcome]:
        one, replica, outcomes = start(world), world.replica(), []
        for _ in range(5):
            world.sleep(0.1)
            world.commit(KEY)
            one.apply()
            replica.catch_up().timestamp_us = int(world.now * 1e6)
            outcomes.append(Reader(world, replica).read())
        return outcomes

    def plant(world: World, patch: pytest.MonkeyPatch) -> None:
        def is_of_the_same_second(_: object, token: Any) -> bool:
            last = world.database.transactions[-1]
            return bool(token.timestamp_us // 1_000_000 <= last.timestamp_us // 1_000_000)

        patch.setattr(fill, "find_fill_refusal", and_refuse(is_of_the_same_second))

    prove_use(schedule, [ReadOutcome.FILLED] * 5, plant, monkeypatch)


def test_numbers_that_nobody_executes_are_in_no_table_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/algorithm.md#invalidating: Group Replication gives out numbers in blocks. A table floor is shortened with
    what was streamed and nothing else."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        for _ in range(12):
            world.database.skipped += 1
            world.commit(raised=["customers"])
            one.apply()
        return Reader(world, world.replica().catch_up()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def hull(self: MysqlGtidSet, streamed: MysqlGtidSet) -> MysqlGtidSet:
            borders = next(iter(self._borders.values()))
            return MysqlGtidSet.parse(f"{next(iter(self._borders))}:{borders[0]}-{borders[-1] - 1}")

        patch.setattr(MysqlGtidSet, "fill_gaps", hull)

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_private_gtids_of_a_replica_are_in_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """F53: somebody wrote to one replica. No other server will ever have that GTID."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        return Reader(world, world.replica().catch_up()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        errant, everything = MysqlGtidSet.of("aaaaaaaa-71ca-11e1-9e33-c80aa9429562", 1), Membership.everything

        def and_of_the_replica(self: Membership, head: Head) -> Position:
            return everything(self, head).union(errant)

        patch.setattr(Membership, "everything", and_of_the_replica)

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


# -- leases --------------------------------------------------------------------------------------------


def test_of_many_who_miss_one_reads_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """F40: a popular key is invalidated, and everybody comes at once."""

    def schedule(world: World) -> int:
        start(world)
        readers = [Reader(world, world.replica()) for _ in range(6)]
        runs = [reader.reading().until_kind(ReadToken, Wait) for reader in readers]
        for run in runs:
            run.finish()
        return sum(isinstance(step, Load) for run in runs for step in run.steps)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def without_lease(node: str, request: Request) -> Reply | None:
            if not isinstance(request, Get) or not is_entry(request.key):
                return None
            reply = world.stores[node].answer(request)
            return replace(reply, won=False, lease=False) if isinstance(reply, Item) else reply

        world.answer_instead = without_lease

    prove_use(schedule, 1, plant, monkeypatch)


def test_nobody_depends_on_the_holder_of_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """F41, F72: the winner dies. memcached never gives the win again, so every reader that waited may store, too."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        Reader(world, world.replica()).reading().until_kind(ReadToken)
        return Reader(world, world.replica()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        wait = read._wait_for_winners

        def leave_it_to_the_winner(context: ReadContext, waiting: list[Pending], demand: Demand) -> Procedure[None]:
            yield from wait(context, waiting, demand)
            for entry in waiting:
                if not isinstance(entry.state, Read):
                    entry.state = Unstored(ReadOutcome.LOST_RACE)

        patch.setattr(read, "_wait_for_winners", leave_it_to_the_winner)

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_a_winner_that_is_refused_makes_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """F72: its replica lags. The next reader, of a better replica, does not wait for it."""

    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome, bool]:
        one = start(world)
        world.commit(KEY)
        one.apply()
        refused = Reader(world, world.replica()).read()
        run = Reader(world, world.replica().catch_up()).reading()
        outcome = run.finish()[0].outcome
        return refused, outcome, any(isinstance(step, Wait) for step in run.steps)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def keep_stub(*_: object) -> Procedure[None]:
            return
            yield

        patch.setattr(fill, "_drop_stubs", keep_stub)

    prove_use(schedule, (ReadOutcome.STRIPE, ReadOutcome.FILLED, False), plant, monkeypatch)


def test_what_was_stored_together_does_not_expire_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """F47: twenty keys are filled in one moment, as after a deploy."""

    def schedule(world: World) -> bool:
        start(world)
        reader = Reader(world, world.replica())
        set_jitter(reader)
        ttls = set()
        for number in range(20):
            one = lookup(number)
            assert reader.read(one) is ReadOutcome.FILLED
            item = world.stores[NODE].peek(one.item)
            assert item is not None
            assert 0.9 * CUSTOMER.value_ttl_seconds - 2 <= item.ttl_seconds <= CUSTOMER.value_ttl_seconds + 1
            ttls.add(item.ttl_seconds)
        return len(ttls) > 15

    def set_jitter(reader: Reader) -> None:
        reader.context.jitter = Random(5).random

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        original = fill._fill

        def all_alike(context: ReadContext, fills: Any) -> Procedure[None]:
            context.jitter = lambda: 0.0
            yield from original(context, fills)

        patch.setattr(fill, "_fill", all_alike)

    prove_use(schedule, True, plant, monkeypatch)


# -- copies of the records -----------------------------------------------------------------------------


def test_a_copy_does_not_end_between_question_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """F58: in a busy thread one read of each refresh is on its way when the copy of the records reaches its bound."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        reader = Reader(world, world.replica())
        assert reader.read() is ReadOutcome.FILLED
        age_max = reader.context.node_refresh_seconds
        world.sleep(0.95 * age_max)
        run = reader.reading().until_kind(Get, key=KEY)
        world.sleep(0.1 * age_max)
        return run.finish()[0].outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(hit, "REFRESH_SHARE", 1)
        patch.setattr(shortway, "REFRESH_SHARE", 1)

    prove_use(schedule, ReadOutcome.HIT, plant, monkeypatch)


# -- entries of others ---------------------------------------------------------------------------------


def test_two_keys_in_one_place_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """F45: the digests of two long keys are equal. The stored entry does not answer the other key."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        return Reader(world, world.replica()).read(replace(lookup(), identity=b"another key"))

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def judge(_: NodeView, __: ObjectPolicy, ___: bytes, data: bytes) -> tuple[None, bytes | None]:
            return None, Filled.decode(data).value

        patch.setattr(NodeView, "judge", judge)

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_a_client_of_an_old_definition_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F83: it cannot store under the record's definition, and yet it could push out what others have stored."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        start(world)
        assert Reader(world, world.replica()).read() is ReadOutcome.FILLED
        of_old = replace(lookup(policy=replace(CUSTOMER, fingerprint=99)), identity=b"old")
        old = Reader(world, world.replica()).read(of_old)
        return old in (ReadOutcome.OBJECT, ReadOutcome.IDENTITY), Reader(world, world.replica()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(NodeRecord, "find_coverage", coverage_of_all)

    prove_use(schedule, (True, ReadOutcome.HIT), plant, monkeypatch)
