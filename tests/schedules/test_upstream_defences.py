"""Defences on the database's side, each planted out: the invalidator's loop with a scripted source, and the
application's reads with scripted servers.

Continues test_defences.py. The loop is the production one; only what answers its steps is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pymysql
import pytest

from appclient.connection.query import LoaderConnection
from appclient.database import servers
from appclient.database.database import Database
from appclient.database.shard import ShardDatabase
from appclient.reading.loader import ObjectLoader
from freshness.algorithm import applier
from freshness.algorithm.admission import join
from freshness.algorithm.applier import Applier, create_members
from freshness.algorithm.apply import renew
from freshness.algorithm.envelope import Filled
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.request import ConfirmSuccession, Flow, Flows, Head, ReadHead, Wait
from freshness.algorithm.restore import Restorer
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.errors import FreshnessError, HistoryLost, HistoryPurged, NodeUnavailable, SourceUnavailable
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.objects import keyfinder
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet, Position, empty_position, parse_position
from freshness.position.token import EventToken
from freshness.stream import heartbeat
from freshness.stream.heartbeat import EPOCH_ROW, parse_token
from freshness.stream.source import Heartbeat, Operation, RowChange, Transaction
from invalidator.loop.loop import LoopObserver, OpenStream, Poll, RaiseEpoch, run_loop
from invalidator.loop.shard import ShardInvalidator
from tests.schedules.session import Session, kind_of
from tests.schedules.world import (
    CONFIG,
    CUSTOMER,
    L_SECONDS,
    LINEAGE,
    MAX_STALENESS_SECONDS,
    NAMESPACE,
    NODE,
    NODE_REFRESH_SECONDS,
    RING,
    START_SECONDS,
    Client,
    Invalidator,
    Reader,
    Replica,
    Run,
    World,
    lookup,
)

KEY: Final = lookup(1).item
STEPS_MAX: Final = 5_000
POLICY: Final = replace(CUSTOMER, tables=("customers", "orders"))


def define(policy: ObjectPolicy = POLICY) -> ObjectDefinition:
    """A customer with its orders, under the customer's number."""
    number = KeyColumn("id", ColumnKind.INTEGER)
    config = ObjectConfig(name=policy.name, keyspace="shop", table="customers")
    columns = {"customers": (number,), "orders": (KeyColumn("customer_id", ColumnKind.INTEGER),)}
    return ObjectDefinition(config, policy, KeyBuilder(NAMESPACE, policy.name, (number,)), columns)


class ProcessDied(Exception):
    """The process dies at this step."""


class Scene:
    """One invalidator process, its loop, and a primary whose log can be cut at both ends.

    ``purged``: the positions that the log no longer holds. ``hidden``: the number of last commits that the primary
    has logged and hides before ``shown_at``. ``suspended_seconds``: the length of the process's next pause.
    ``delay_seconds``: the time until the log reaches the loop; ``head_seconds``: the time that the primary takes to
    return its head. ``dies_in_wait``: the process ends in its next pause. Every second that the loop polls, the
    stripes are looked at and a heartbeat is written. ``primary``: the identity of the primary;
    ``is_succession_certain``: servers or the operator say that it has all that readers saw of the previous one.
    ``in_stream``: calls made while the stream is open, which stays open.
    """

    def __init__(self, world: World, lease_seconds: int = L_SECONDS) -> None:
        self.world = world
        self.lease_seconds = lease_seconds
        self.client = Client(world)
        self.log: list[Transaction] = []
        self.purged: Position = MysqlGtidSet()
        self.hidden = 0
        self.shown_at = float("inf")
        self.suspended_seconds = 0.0
        self.is_stream_broken = False
        self.dies_in_wait = False
        self.lost_when_opened = 0
        self.delay_seconds = self.head_seconds = 0.0
        self.taken = 0
        self.opened_at: Position | None = None
        self.begun: dict[int, float] = {}
        self.beaten_on: dict[int, str] = {}
        self.primary = "first"
        self.is_succession_certain = False
        self.in_stream: list[Callable[[], None]] = []
        self.start()

    def start(self) -> None:
        """A new process: it knows nothing but what the node holds."""
        policy = NodePolicy(
            NAMESPACE,
            LINEAGE,
            RING,
            {POLICY.name: POLICY.fingerprint},
            self.world.stripes,
            self.lease_seconds,
            CONFIG.heartbeat_age_max_seconds,
            NODE_REFRESH_SECONDS,
        )
        self.beaten_at = self.world.now
        self.shard = ShardInvalidator(
            members=create_members(
                list(self.world.stores), policy, self.world.clock, self.world.nonce, MysqlGtidSet()
            ),
            instance="me",
            clock=self.world.clock,
            find_heartbeat=self.begun.get,
            find_primary=lambda number: self.beaten_on[number],
            streamed=MysqlGtidSet(),
            placement=Placement(list(self.world.stores), NAMESPACE),
            finder=KeyFinder({POLICY.name: define()}),
        )
        self.dies_in_wait = False
        self.restorers = [Restorer(node, policy, self.world.moment, self.world.nonce) for node in self.world.stores]
        self.restoring_client = Client(self.world)

    # -- the primary -----------------------------------------------------------------------------------

    def commit(
        self, before: Mapping[str, object] | None, after: Mapping[str, object] | None, table: str = "customers"
    ) -> Transaction:
        op: Operation = "insert" if before is None else "delete" if after is None else "update"
        images = [image for image in (before, after) if image is not None]
        items = {lookup(int(str(image.get("customer_id", image["id"])))).item for image in images}
        made = self.world.commit(*items)
        change = RowChange(table, op, before, after)
        self.log.append(Transaction(made.position, made.timestamp_us, (change,)))
        return self.log[-1]

    def change(self, key: int = 1) -> Transaction:
        return self.commit({"id": key}, {"id": key})

    def truncate(self) -> Transaction:
        made = self.world.commit(raised=["customers"])
        self.log.append(Transaction(made.position, made.timestamp_us, raised_tables=frozenset(("customers",))))
        return self.log[-1]

    def beat(self) -> None:
        number = len(self.begun) + 1
        self.begun[number], self.beaten_at = self.world.moment(), self.world.now
        self.beaten_on[number] = self.primary
        made = self.world.commit()
        beats = (Heartbeat("me", number, int(self.world.now * 1e6), 0, self.world.database.epoch),)
        self.log.append(Transaction(made.position, made.timestamp_us, heartbeats=beats))

    @property
    def shown(self) -> Position:
        transactions = self.world.database.transactions
        hidden = self.hidden if self.world.now < self.shown_at else 0
        return self.world.database.position_with(made.number for made in transactions[: len(transactions) - hidden])

    def fail_over(self, lost: int) -> None:
        """To a primary that never had the last transactions. Their numbers will be given again."""
        del self.world.database.transactions[-lost:]
        del self.log[-lost:]
        self.is_stream_broken = True

    def promote(self, lost: int) -> None:
        """Another server becomes the primary, which never had the last transactions, and gives other numbers."""
        self.primary = "second"
        del self.world.database.transactions[len(self.world.database.transactions) - lost :]
        del self.log[len(self.log) - lost :]
        self.world.database.skipped += lost

    # -- the loop --------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let the process live for so long, and end it in order."""
        until = self.world.now + seconds
        procedure = run_loop(
            self.shard, transactions_max=10, is_stopping=lambda: self.world.now >= until, observer=LoopObserver()
        )
        answer: Any = None
        for _ in range(STEPS_MAX):
            is_error = isinstance(answer, FreshnessError)
            try:
                step = procedure.throw(answer) if is_error else procedure.send(answer)
            except StopIteration:
                return
            try:
                answer = self._answer(step)
            except FreshnessError as error:
                answer = error
        raise AssertionError(f"no end after {STEPS_MAX} steps")

    def _answer(self, step: Any) -> Any:
        match step:
            case Flow():
                return [self.client.perform(step.node, request) for request in step.requests]
            case Flows():
                return [self._attempt(flow) for flow in step.flows]
            case Wait() if self.dies_in_wait:
                raise ProcessDied
            case Wait():
                suspended, self.suspended_seconds = self.suspended_seconds, 0.0
                return self.world.sleep(step.seconds + suspended)
            case ReadHead():
                self.world.sleep(self.head_seconds)
                return Head(self.shown, self.world.database.epoch, self.primary)
            case ConfirmSuccession():
                assert {step.previous, step.present} == {"first", "second"}
                return self.is_succession_certain
            case OpenStream():
                return self._open(step.start)
            case Poll():
                return self._poll(step)
            case RaiseEpoch():
                self.world.database.epoch += 1
                return self.world.database.epoch
        raise AssertionError(step)

    def _attempt(self, flow: Flow) -> Any:
        try:
            return self._answer(flow)
        except NodeUnavailable as error:
            return error

    def _open(self, start: Position) -> None:
        """As `invalidator.replica.server.check_start` says."""
        self.world.sleep(self.head_seconds)
        if self.lost_when_opened:
            self.fail_over(self.lost_when_opened)
            self.lost_when_opened = 0
        if not self.shown.contains(start):
            raise HistoryLost("the primary has never executed all of it")
        if not start.contains(self.purged):
            raise HistoryPurged("the log is gone")
        self.is_stream_broken, self.opened_at, self.taken = False, start, 0

    def _poll(self, step: Poll) -> list[Transaction]:
        assert self.opened_at is not None
        if self.is_stream_broken:
            raise SourceUnavailable("the stream is broken")
        while self.in_stream:
            self.in_stream.pop()()
        if self.world.now - self.beaten_at >= 1:
            self.look()
            self.beat()
        until_us = (self.world.now - self.delay_seconds) * 1e6
        arrived = [each for each in self.log[self.taken :] if each.timestamp_us <= until_us]
        new = [each for each in arrived if not self.opened_at.contains(each.position)]
        self.taken += len(arrived)
        if not new:
            self.world.sleep(step.timeout_seconds)
        return new

    def look(self) -> None:
        """At the stripes of each node: what is missing becomes pending, what is pending whole."""
        for restorer in self.restorers:
            run = Run(self.world, restorer.look(), self.restoring_client, read_stream=lambda: self.shard.passed)
            run.until(lambda _: False, may_end=True)
            assert run.error is None or isinstance(run.error, NodeUnavailable)


def read_key(world: World, replica: Replica | None = None) -> ReadOutcome:
    """By a replica that has all of what was committed, or by this one."""
    return Reader(world, replica or world.replica().catch_up()).read(lookup(1, POLICY))


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plants below end with a hit that lacks an event (I1); the world's look at I2 only says so earlier."""
    monkeypatch.setattr(World, "_check_protection", lambda *_: None)


def prove(
    schedule: Callable[[World], object],
    danger: object,
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    invariant: str | None = "I1",
) -> None:
    """Once as the code stands, once with the plant: then the invariant breaks, or without one the result differs."""
    sound = World()
    assert schedule(sound) == danger
    assert sound.broken == []
    plant(monkeypatch)
    flawed = World()
    result = schedule(flawed)
    assert flawed.breaks(invariant) if invariant is not None else result != danger


# -- the loop --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("calm")
def test_a_purged_log_ends_the_lives_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: the invalidator is down, and the log is gone when it comes back."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        scene = Scene(world)
        scene.run(3)
        replica = world.replica().catch_up()
        assert read_key(world, replica) is ReadOutcome.FILLED
        life = world.record().life
        world.sleep(20)
        lost = scene.change()
        scene.purged = lost.position
        scene.log.clear()
        scene.start()
        scene.run(5)
        return world.record().life == life, read_key(world, replica)

    def plant(patch: pytest.MonkeyPatch) -> None:
        def begin_where_the_log_begins(self: Applier) -> None:
            for member in self.joined:
                assert member.target is not None
                member.start_from(member.applied.union(member.target))

        patch.setattr(Applier, "end_lives_behind", begin_where_the_log_begins)

    prove(schedule, (False, ReadOutcome.FLOOR), plant, monkeypatch)


@pytest.mark.usefixtures("calm")
def test_a_position_that_the_primary_lacks_ends_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """F28, F29: streamed transactions are lost with the primary. Their numbers are given again later, and an
    invalidator that only waits for them takes the new ones for the old."""

    def schedule(world: World) -> tuple[int, bool]:
        scene = Scene(world)
        scene.run(3)
        life = world.record().life
        replica = world.replica().catch_up()
        assert read_key(world, replica) is ReadOutcome.FILLED
        scene.change(2)
        scene.run(0.5)
        scene.fail_over(1)
        scene.run(3)
        scene.change(1)
        scene.run(5)
        read_key(world, replica)
        return world.database.epoch, world.record().life == life

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(applier, "HISTORY_CONFIRM_SECONDS", float("inf"))

    monkeypatch.setattr(applier, "HISTORY_CONFIRM_SECONDS", 1.0)  # before the lease is over, which ends much, too
    prove(schedule, (2, False), plant, monkeypatch)


def test_a_floor_that_names_a_lost_event_ends_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table floor is raised before the event is acknowledged. If the process dies in between, and the failover
    loses the event, only the floor names it: no server would ever show it, and no fill would ever succeed again."""

    def schedule(world: World) -> tuple[int, ReadOutcome]:
        scene = Scene(world)
        scene.run(3)
        for _ in range(59):
            scene.change(2)
        raised = scene.truncate()
        scene.dies_in_wait = True
        with pytest.raises(ProcessDied):
            scene.run(0.5)
        assert not world.record().progress.contains(raised.position), "the floor alone names it"
        scene.fail_over(60)  # more than there are heartbeats below, which are given the same numbers
        scene.start()
        scene.run(applier.HISTORY_CONFIRM_SECONDS + 20)
        return world.database.epoch, read_key(world)

    def plant(patch: pytest.MonkeyPatch) -> None:
        def look_at_progress_alone(_: Applier) -> Any:
            yield ReadHead()

        patch.setattr(Applier, "check_history", look_at_progress_alone)

    sound = World()
    assert schedule(sound) == (2, ReadOutcome.FILLED)
    assert sound.broken == []
    plant(monkeypatch)
    assert schedule(World()) == (1, ReadOutcome.TABLE_FLOOR)


def test_another_identity_of_the_primary_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each look finds it again until the epoch is raised. A second time is logged again."""
    world = World()
    scene = Scene(world)
    scene.run(3)
    for primary in ("second", "first"):
        scene.change(1)
        caplog.clear()
        scene.primary = primary
        scene.is_stream_broken = True
        scene.run(applier.HISTORY_CONFIRM_SECONDS + 20)
        told = [each.getMessage() for each in caplog.records if "the primary was" in each.getMessage()]
        assert [each.levelname for each in caplog.records if "the primary was" in each.getMessage()] == [
            "WARNING",
            "ERROR",
        ], told
    assert world.database.epoch == 3


def test_a_failover_while_the_stream_is_opened_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is revived waits for all that the primary has executed. A failover loses some of it before the
    stream is open: an invalidator that compared histories before that would never compare them again."""

    def schedule(world: World) -> tuple[int, bool]:
        scene = Scene(world)
        scene.run(3)
        for _ in range(60):
            scene.change(2)
        world.sleep(2 * L_SECONDS)
        scene.start()
        scene.lost_when_opened = 60  # more than there are heartbeats below, which are given the same numbers
        scene.run(applier.HISTORY_CONFIRM_SECONDS + 20)
        return world.database.epoch, world.record().is_open

    def plant(patch: pytest.MonkeyPatch) -> None:
        def look_too_early(_: Applier) -> Any:
            yield ReadHead()

        patch.setattr(Applier, "check_history", look_too_early)

    prove(schedule, (2, True), plant, monkeypatch, invariant=None)


def lose_what_a_reader_saw(world: World, *, has_open_stream: bool = False) -> Scene:
    """A commit reaches a reader's server and no stream; a primary without it is promoted.

    ``has_open_stream``: the stream goes on, as that of a replica does.
    """
    scene = Scene(world)
    scene.run(3)

    def lose() -> None:
        scene.change()
        assert read_key(world) is ReadOutcome.FILLED
        scene.promote(1)
        scene.is_stream_broken = not has_open_stream

    scene.in_stream.append(lose)
    return scene


def follow_whoever_is_primary(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether anything was lost."""

    def follow(self: Applier, head: Head) -> Any:
        for member in self.joined:
            yield from member.store(lambda record: replace(record, primary=head.primary))

    patch.setattr(Applier, "_follow_primary", follow)


def play_a_lossy_failover(world: World, *, has_open_stream: bool) -> tuple[int, bool]:
    scene = lose_what_a_reader_saw(world, has_open_stream=has_open_stream)
    life = world.record().life
    scene.run(MAX_STALENESS_SECONDS)
    assert read_key(world) is not ReadOutcome.HIT, "by now nobody vouches for what the previous primary showed"
    scene.run(applier.HISTORY_CONFIRM_SECONDS)
    assert read_key(world) is ReadOutcome.FILLED
    return world.database.epoch, world.record().life == life


def test_a_commit_that_only_a_reader_saw_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record has heard of it, so no position shows that it is gone: the entry was a hit until its TTL."""
    for has_open_stream in (False, True):
        sound = World()
        assert play_a_lossy_failover(sound, has_open_stream=has_open_stream) == (2, False)
        assert sound.broken == []
    follow_whoever_is_primary(monkeypatch)
    for has_open_stream in (False, True):
        with pytest.raises(AssertionError, match="by now nobody vouches"):
            play_a_lossy_failover(World(), has_open_stream=has_open_stream)


@pytest.mark.parametrize("has_open_stream", [False, True])
def test_a_planned_switchover_keeps_what_is_cached(monkeypatch: pytest.MonkeyPatch, has_open_stream: bool) -> None:
    """The servers, or the operator, say that nothing is lost."""

    def schedule(world: World) -> tuple[int, str, ReadOutcome]:
        scene = Scene(world)
        scene.is_succession_certain = True
        scene.run(3)
        assert read_key(world) is ReadOutcome.FILLED

        def switch() -> None:
            scene.promote(0)
            scene.is_stream_broken = not has_open_stream

        scene.in_stream.append(switch)
        scene.run(MAX_STALENESS_SECONDS)
        return world.database.epoch, world.record().primary, read_key(world)

    def plant(patch: pytest.MonkeyPatch) -> None:
        def never_follow(self: Applier, head: Head) -> Any:
            if any(member.joined_record().primary != head.primary for member in self.joined):
                raise HistoryLost("it is another primary")
            return
            yield

        patch.setattr(Applier, "_follow_primary", never_follow)

    prove(schedule, (1, "second", ReadOutcome.HIT), plant, monkeypatch, invariant=None)


def test_a_heartbeat_of_another_primary_renews_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream outlasts the failover, as that of a replica does; the heartbeats in it come from the new primary."""

    def schedule(world: World) -> ReadOutcome:
        scene = lose_what_a_reader_saw(world, has_open_stream=True)
        scene.run(MAX_STALENESS_SECONDS)
        return read_key(world)

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = Membership.may_vouch

        def by_any_heartbeat(self: Membership, now: float, _: str) -> bool:
            return self.heartbeat is not None and original(self, now, self.heartbeat.primary)

        patch.setattr(Membership, "may_vouch", by_any_heartbeat)
        patch.setattr(Applier, "_note_beats", lambda *_: None)

    sound = World()
    assert schedule(sound) is ReadOutcome.CLOSED
    assert sound.broken == []
    plant(monkeypatch)
    assert schedule(World()) is ReadOutcome.HIT


def test_the_shortest_lease_outlasts_the_pauses_of_a_lost_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that lapsed in a pause took its node out, the others went on, and nobody saw any more for how long
    the history had been lost: with two nodes, one of them closed, that never ended."""

    def schedule(world: World) -> bool:
        scene = Scene(world, lease_seconds=2)
        scene.run(3)
        tenure = world.record().tenure
        scene.change(2)
        scene.run(0.5)
        scene.fail_over(1)
        scene.head_seconds = 0.3
        scene.run(applier.HISTORY_CONFIRM_SECONDS - 2)
        return world.record().tenure == tenure

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(applier, "RENEW_SECONDS", applier.RETRY_SECONDS)

    prove(schedule, True, plant, monkeypatch, invariant=None)


def test_what_is_only_not_shown_yet_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """F57: with semi-synchronous replication a transaction is streamed seconds before the primary shows it. A
    stream that is opened again just then must not cost the whole cache."""

    def schedule(world: World) -> tuple[int, bool]:
        scene = Scene(world)
        scene.run(3)
        life = world.record().life
        scene.change()
        scene.run(0.5)
        scene.hidden, scene.is_stream_broken = 1, True
        scene.run(4)
        scene.hidden = 0
        scene.run(4)
        return world.database.epoch, world.record().life == life

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(applier, "HISTORY_CONFIRM_SECONDS", 0.0)

    prove(schedule, (1, True), plant, monkeypatch, invariant=None)


def test_who_was_suspended_has_not_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """F28, F57: the two looks between which a process stood still are no more than two."""

    def schedule(world: World) -> int:
        scene = Scene(world)
        scene.run(3)
        scene.change()
        scene.run(0.5)
        scene.hidden, scene.is_stream_broken = 1, True
        scene.suspended_seconds = 4 * applier.HISTORY_CONFIRM_SECONDS
        scene.shown_at = world.now + scene.suspended_seconds + 5
        scene.run(scene.suspended_seconds + 20)
        return world.database.epoch

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(applier, "HISTORY_CONFIRM_SECONDS", applier.RETRY_SECONDS)

    prove(schedule, 1, plant, monkeypatch, invariant=None)


def test_a_node_that_was_away_gets_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F85: one node is cut off while the stream goes on for the other. Without the rewind its first batch after
    its return leaves a gap, which is refused loudly: the second line of this defence."""

    def schedule() -> bool:
        world = World(nodes=(NODE, "n2"))
        scene = Scene(world)
        scene.run(2)
        key = next(k for k in range(99) if scene.shard.placement.node_for(lookup(k).item) == "n2")
        world.places[lookup(key).item] = "n2"
        world.stores["n2"].down = True
        missed = scene.change(key)
        scene.run(3)
        world.stores["n2"].down = False
        scene.run(8)
        assert world.broken == []
        stripe = world.find_stripe(lookup(key).item, "n2")
        return stripe is not None and stripe.position.contains(missed.position)

    assert schedule()
    monkeypatch.setattr(Applier, "needs_rewind", False)
    with pytest.raises(AssertionError, match="leaves a gap"):
        schedule()


def test_a_heartbeat_is_as_old_as_its_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F71, I7: a stream that is 25 s late is full of heartbeats. When they were written counts, and by whom."""

    def schedule(world: World) -> ReadOutcome:
        scene = Scene(world)
        scene.delay_seconds = 25
        scene.run(30)
        replica = world.replica().catch_up()
        outcome = read_key(world, replica)
        scene.change()
        scene.run(20)
        read_key(world, replica)
        return outcome

    def plant(patch: pytest.MonkeyPatch) -> None:
        def of_anybody(self: Applier, beats: Sequence[Heartbeat]) -> HeartbeatSeen | None:
            primary = self.joined[0].joined_record().primary
            return HeartbeatSeen(self.clock(), int(self.clock() * 1e6), primary) if beats else None

        patch.setattr(Applier, "find_own_heartbeat", of_anybody)

    prove(schedule, ReadOutcome.CLOSED, plant, monkeypatch, "I7")


@pytest.mark.usefixtures("calm")
def test_both_images_of_a_change_are_invalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    """F35: an order moves from one customer to another; the value of the first one still shows it."""

    def schedule(world: World) -> ReadOutcome:
        scene = Scene(world)
        scene.run(3)
        replica = world.replica().catch_up()
        assert read_key(world, replica) is ReadOutcome.FILLED
        scene.commit({"id": 7, "customer_id": 1}, {"id": 7, "customer_id": 2}, "orders")
        scene.run(1)
        return read_key(world, replica)

    def plant(patch: pytest.MonkeyPatch) -> None:
        items_of = keyfinder._items_of

        def of_the_last_image(definition: Any, table: str, before: Any, after: Any) -> Iterable[bytes]:
            return items_of(definition, table, None if after is not None else before, after)

        patch.setattr(keyfinder, "_items_of", of_the_last_image)

    prove(schedule, ReadOutcome.STRIPE, plant, monkeypatch)


@pytest.mark.usefixtures("calm")
def test_an_insert_invalidates_that_there_was_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """F43: "no such row" is cached, and then there is one."""

    def schedule(world: World) -> ReadOutcome:
        scene = Scene(world)
        scene.run(3)
        world.absent = {KEY}
        replica = world.replica().catch_up()
        assert read_key(world, replica) is ReadOutcome.FILLED
        item = world.stores[NODE].peek(KEY)
        assert item is not None
        assert Filled.decode(item.value).value is None
        world.absent.clear()
        scene.commit(None, {"id": 1})
        scene.run(1)
        return read_key(world, replica)

    def plant(patch: pytest.MonkeyPatch) -> None:
        items_of = keyfinder._items_of

        def of_rows_that_were(definition: Any, table: str, before: Any, after: Any) -> Iterable[bytes]:
            return [] if before is None else items_of(definition, table, before, after)

        patch.setattr(keyfinder, "_items_of", of_rows_that_were)

    prove(schedule, ReadOutcome.STRIPE, plant, monkeypatch, invariant=None)


# -- reads of the database -------------------------------------------------------------------------------


class Server:
    """A replica with two rows, each of which has the number of the transaction that changed it last.

    ``commits_after``: the statements behind which another transaction is replicated. ``dies_at``: the statement that
    it does not answer. ``answers_for``: the key whose row it returns for every key. ``logged``: the transactions that
    its binary log has beyond those that it shows.
    """

    def __init__(self, executed: int = 10, name: str = "one", logged: int = 0) -> None:
        self.executed, self.logged = executed, logged
        self.name = name
        self.commits_after: set[str] = set()
        self.dies_at = ""
        self.answers_for: int | None = None

    def variable(self, name: str) -> str:
        shown = self.executed + (self.logged if "binlog" in name else 0)
        return f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{shown}"

    def heartbeats(self) -> list[tuple[str, int, str, int]]:
        return [(EPOCH_ROW, 1, "", 0)]

    def version(self, _: tuple[str, int]) -> int:
        return self.executed

    def freeze(self) -> Server:
        return Server(self.executed, self.name)


class ScriptedSession(Session):
    """``places``: the servers to which a proxy sends the statements, in turn, staying with the last one."""

    def __init__(self, *places: Server) -> None:
        super().__init__(self.next_server)
        self._places = list(places)
        self.asked: list[str] = []

    def next_server(self, kind: str) -> Server:
        server = self._places[0] if len(self._places) == 1 or kind == "set" else self._places.pop(0)
        self.asked.append(kind)
        if kind == server.dies_at:
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")
        self.present = server
        return server

    def answer(self, sql: str, keys: Sequence[int]) -> tuple[list[str], list[tuple[Any, ...]]]:
        names, rows = super().answer(sql, keys)
        if kind_of(sql) in self.present.commits_after:
            self.present.executed += 1
        if kind_of(sql) == "rows" and self.present.answers_for is not None:
            place = names.index("id")
            rows = [(*row[:place], self.present.answers_for, *row[place + 1 :]) for row in rows]
        return names, rows


CONNECT: Final = "appclient.database.servers.connect"


def open_database(servers: Sequence[Server], monkeypatch: pytest.MonkeyPatch) -> Database:
    addresses = [ServerAddress(f"replica{number}") for number in range(len(servers))]
    by_host = {address.host: server for address, server in zip(addresses, servers, strict=True)}
    monkeypatch.setattr(CONNECT, lambda address, **_: ScriptedSession(by_host[address.host]))
    topology = Shard(primary=ServerAddress("primary"), replicas=tuple(addresses), lineage=LINEAGE)
    database = Database(Keyspace(name="shop", flavor="mysql", shards=(topology,)))
    read_in_order(database)
    return database


def read_in_order(database: Database) -> None:
    """No chance: the replicas are read in the order of the file."""
    for shard in database.shards.values():
        shard._choice._below = lambda _: 0


def open_shard(servers: Sequence[Server], monkeypatch: pytest.MonkeyPatch) -> ShardDatabase:
    return open_database(servers, monkeypatch).find_shard(None)


def is_ahead(rows: Sequence[Mapping[str, Any]], token: EventToken | None) -> bool:
    """Whether the token names a transaction that the rows do not show: what must never be."""
    assert token is not None
    shown = MysqlGtidSet.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{rows[0]['version']}")
    return not shown.contains(token.position)


def test_token_and_rows_are_of_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """F17: the server that gave the token dies before the rows; the next one lags behind it."""

    def read() -> bool:
        ahead, behind = Server(12), Server(10)
        ahead.dies_at = "rows"
        return is_ahead(*open_shard([ahead, behind], monkeypatch).rows_with_token("`customers`", "`id` = %s", (1,)))

    assert not read()

    def apart(self: ShardDatabase, table: str, _: str, params: Sequence[Any]) -> Any:
        token, _server = self.run(lambda connection, _: self.read_token(connection))
        sql = f"SELECT * FROM {table} WHERE id = %s"
        return self.run(lambda connection, _: LoaderConnection(connection).query(sql, params)), token

    monkeypatch.setattr(ShardDatabase, "rows_with_token", apart)
    assert read()


def test_the_token_is_of_what_is_shown_and_not_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: the binary log has two transactions that a SELECT does not show yet."""

    def read() -> bool:
        return is_ahead(*open_shard([Server(10, logged=2)], monkeypatch).rows_with_token(*ROWS))

    assert not read()
    monkeypatch.setattr(heartbeat, "_VISIBLE", {"mysql": "@@global.gtid_binlog_pos"})
    assert read()


class Proxied:
    """A shard behind a proxy. ``sessions``: one for each connection, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sessions: ScriptedSession) -> None:
        self.sessions = list(sessions)
        monkeypatch.setattr(CONNECT, lambda address, **_: self.sessions.pop(0))
        topology = Shard(primary=ServerAddress("proxy"), lineage=LINEAGE)
        self.database = Database(Keyspace(name="shop", flavor="mysql", shards=(topology,)))
        self.shard = self.database.find_shard(None)


ROWS: Final = ("`customers`", "`id` = %s", (1,))


def test_a_proxy_that_answers_from_two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """F107: the token comes from a replica that is ahead, the rows from one that is behind. They are the caller's,
    and have no token to be stored with."""

    def read(*places: Server) -> tuple[list[dict[str, Any]], EventToken | None]:
        return Proxied(monkeypatch, ScriptedSession(*places)).shard.rows_with_token(*ROWS)

    ahead, behind = Server(12, "ahead"), Server(10, "behind")
    rows, token = read(ahead, behind)
    assert (rows, token) == ([{"id": 1, "version": 10}], None)
    rows, token = read(behind, behind, ahead)
    assert token is not None
    assert not is_ahead(rows, token)
    monkeypatch.setattr(servers, "NAME_IN_SESSION", {"mysql": "'any'"})
    assert is_ahead(*read(ahead, behind))


def test_a_proxy_that_moves_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """F107: the statements of a loader, and those of a read with a token, are of the server that gave the token."""

    def read(*places: Server) -> tuple[list[dict[str, Any]], EventToken | None]:
        return Proxied(monkeypatch, ScriptedSession(*places)).shard.snapshot(load_two_rows)

    ahead, behind = Server(12, "ahead"), Server(10, "behind")
    for at in range(1, 5):
        rows, token = read(*[ahead] * at, behind)
        assert token is None, "the last statement of the read says who answers"
        assert [row["id"] for row in rows] == [1, 2]
    rows, token = read(behind)
    assert not is_ahead(rows, token)
    monkeypatch.setattr(servers, "NAME_IN_SESSION", {"mysql": "'any'"})
    assert is_ahead(*read(ahead, behind))


def test_a_query_behind_a_proxy_says_nothing_of_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, behind = Server(12, "ahead"), Server(10, "behind")
    sql = "SELECT * FROM customers WHERE id = %s"
    (token,) = [
        Proxied(monkeypatch, ScriptedSession(behind)).database.query(sql, (1,), include_event_token=True).extras
    ]
    assert token.event_token is not None
    split = Proxied(monkeypatch, ScriptedSession(ahead, ahead, behind)).database
    result = split.query(sql, (1,), include_event_token=True, compare_event_token=token.event_token)
    assert [row["version"] for row in result.rows] == [10]
    assert (result.extras.event_token, result.extras.fresher) == (None, None)


def test_round_trips_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's name rides with the position and the rows. A snapshot takes three more: none that ends a
    transaction returns anything, and the next loader's session is as a new one, also after a query."""
    session = ScriptedSession(Server())
    proxied = Proxied(monkeypatch, session)
    proxied.shard.rows_with_token(*ROWS)
    assert session.asked == ["set", "token", "rows"]
    session.asked.clear()
    proxied.shard.snapshot(load_two_rows)
    assert session.asked == ["token", "start", "rows", "rows", "server", "reset", "set"]
    session.asked.clear()
    proxied.database.query("SELECT * FROM customers WHERE id = %s", (1,))
    assert session.asked == ["rows"]
    session.asked.clear()
    proxied.shard.snapshot(load_two_rows)
    assert session.asked[:3] == ["reset", "set", "token"]
    session.asked.clear()
    proxied.shard.snapshot(load_two_rows)
    assert session.asked[:1] == ["token"]


def test_a_connection_that_is_lost_behind_the_rows_costs_the_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """F107: the rows are right, and nobody says whose they are."""
    server = Server()
    server.dies_at = "server"
    session = ScriptedSession(server)
    rows, token = Proxied(monkeypatch, session).shard.snapshot(load_two_rows)
    assert ([row["id"] for row in rows], token) == ([1, 2], None)
    assert not session.open


def test_over_shards_each_token_is_of_the_server_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """F107, for a value that is read from several shards."""
    sessions = {
        "10.0.0.1": ScriptedSession(Server(12, "ahead"), Server(12, "ahead"), Server(10, "behind")),
        "10.0.0.2": ScriptedSession(Server(11, "other")),
    }
    monkeypatch.setattr(CONNECT, lambda address, **_: sessions[address.host])
    shards = tuple(
        Shard(name=name, primary=ServerAddress(host), lineage=f"shop/{name}")
        for name, host in zip(("-80", "80-"), sessions, strict=True)
    )
    database = Database(Keyspace(name="shop", flavor="mysql", shards=shards))
    rows, tokens = database.snapshot(("shop/-80", "shop/80-"), load_two_rows)
    assert [row["version"] for row in rows] == [10, 11, 10, 11]
    assert [token is None for token in tokens] == [True, False]
    assert all(session.open for session in sessions.values())


def load_two_rows(connection: LoaderConnection) -> list[dict[str, Any]]:
    sql = "SELECT * FROM customers WHERE id = %s"
    return connection.query(sql, (1,)) + connection.query(sql, (2,))


def test_the_token_is_not_younger_than_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """F2, F18: a transaction arrives between any two statements."""

    def read() -> bool:
        server = Server()
        server.commits_after = {"token", "start", "rows"}
        return is_ahead(*open_shard([server], monkeypatch).snapshot(load_two_rows))

    assert not read()

    def snapshot_first(self: ShardDatabase, load: Callable[[LoaderConnection], Any]) -> Any:
        def within(connection: Any, _: ServerAddress) -> Any:
            with connection.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                token, _server = self.read_token(connection)
                return load(LoaderConnection(connection)), token

        return self.run(within)

    monkeypatch.setattr(ShardDatabase, "snapshot", snapshot_first)
    assert read()


def test_a_composite_is_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """F33: a transaction changes both rows between the two statements of a loader."""

    def read() -> set[int]:
        server = Server()
        server.commits_after = {"rows"}
        rows, _ = open_shard([server], monkeypatch).snapshot(load_two_rows)
        return {row["version"] for row in rows}

    assert len(read()) == 1

    def without(self: ShardDatabase, load: Callable[[LoaderConnection], Any]) -> Any:
        return self.run(lambda connection, _: (load(LoaderConnection(connection)), self.read_token(connection)[0]))

    monkeypatch.setattr(ShardDatabase, "snapshot", without)
    assert len(read()) == 2


def test_a_row_of_another_key_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """F46: the driver hands out the answer to a query that was cancelled."""
    server = Server()
    server.answers_for = 2
    definition = replace(define(), columns_by_table={"customers": define().builder.columns})
    key = definition.builder.build((1,))
    wanted = Lookup(definition.policy, NODE, key.item, definition.identity(key), (1,))

    def load() -> Loaded:
        (loaded,) = ObjectLoader(definition, open_database([server], monkeypatch), None).load([wanted])
        assert loaded.value == {"id": 2, "version": 10}
        return loaded

    assert load().refusal is ReadOutcome.KEY
    monkeypatch.setattr(ObjectLoader, "_loaded", lambda _, __, row, tokens, ___: Loaded(row, tokens))
    assert load().refusal is None


def test_a_number_is_asked_for_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """F116: MySQL compares a DECIMAL with text as floating point, by which these two are equal."""
    builder = KeyBuilder(NAMESPACE, POLICY.name, (KeyColumn("price", ColumnKind.DECIMAL),))
    stored = [Decimal("1152921504606846976.50"), Decimal("1152921504606846977.50")]

    def is_named_as_asked() -> bool:
        key = builder.build((str(stored[1]),))
        (asked,) = builder.parse(key.identity)
        equal = (
            each for each in stored if (float(each) == float(asked) if isinstance(asked, str) else each == asked)
        )
        return builder.build((next(equal),)).item == key.item

    assert is_named_as_asked()
    monkeypatch.setattr(KeyColumn, "parse", lambda _, fine: fine)
    assert not is_named_as_asked()


def test_no_row_is_not_stored_where_equal_keys_have_several_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    """F24, F116: for the collation s is ß. The row that appears is invalidated as ß, which is another item."""
    builder = KeyBuilder(NAMESPACE, "word", (KeyColumn("word", ColumnKind.STRING, "utf8mb4_general_ci"),))
    assert builder.build(("s",)).item != builder.build(("ß",)).item

    def schedule(world: World) -> ReadOutcome:
        Scene(world).run(3)
        world.absent = {KEY}
        is_exact = KeyBuilder(NAMESPACE, "word", builder.columns).build(("s",)).is_exact
        replica = world.replica().catch_up()
        return Reader(world, replica).read(lookup(1, POLICY, is_exact=is_exact))

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(KeyColumn, "is_exact", True)

    prove(schedule, ReadOutcome.KEY, plant, monkeypatch, invariant=None)


def test_a_row_under_another_key_is_not_taken_for_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """F116: a server takes two keys for equal that are not. Nobody can tell for which of many keys the row is."""
    server = Server()
    server.answers_for = 2
    definition = replace(define(), columns_by_table={"customers": define().builder.columns})

    def wanted(number: int) -> Lookup:
        key = definition.builder.build((number,))
        return Lookup(definition.policy, NODE, key.item, definition.identity(key), (number,))

    loader = ObjectLoader(definition, open_database([server], monkeypatch), None)
    for loaded in loader.load([wanted(1), wanted(3)]):
        assert (loaded.value, loaded.refusal) == ({"id": 2, "version": 10}, ReadOutcome.KEY)


class TwoDomains(Server):
    """A replica of MariaDB that applies its second domain late."""

    def variable(self, _: str) -> str:
        return "0-1-9,1-1-3"


def test_the_token_of_a_domain_says_nothing_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """F110: numbers of one domain are compared with those of no other."""
    monkeypatch.setattr(CONNECT, lambda address, **_: ScriptedSession(TwoDomains()))
    shard = ShardDatabase("mariadb", Shard(primary=ServerAddress("replica"), lineage=LINEAGE))
    _, token = shard.rows_with_token(*ROWS)
    assert token is not None
    assert token.position.contains(parse_position("mariadb", "0-1-9,1-1-3"))
    assert not token.position.contains(parse_position("mariadb", "1-1-4"))
    assert not token.position.contains(parse_position("mariadb", "2-1-1"))


def test_a_heartbeat_of_a_previous_epoch_lends_no_watermark() -> None:
    """F81: on MariaDB the numbers of a lost history can be above those of the present one."""
    floor = parse_position("mariadb", "0-2-12")
    rows = [
        ("0-2-11", EPOCH_ROW, 2, "", 0),
        ("0-2-11", "an invalidator that is gone", 1, "0-1-50", 0),
        ("0-2-11", "the present one", 2, "0-2-11", 0),
    ]

    def token(of: Sequence[tuple[str, str, int, str, int]]) -> EventToken:
        found = parse_token("mariadb", LINEAGE, "-", of)
        assert found is not None
        return found

    assert (token(rows).epoch, token(rows).position.contains(floor)) == (2, False)
    of_any_epoch = [(at, name, 2, watermark, time) for at, name, _, watermark, time in rows]
    assert token(of_any_epoch).position.contains(floor)


def test_a_node_opens_again_after_history_was_lost_under_two_invalidators() -> None:
    """I5: A notices the loss, raises the epoch and begins the new life. B, whose write is refused, joins that life
    while it is closed, and its target is the new head united with the lost history that B has streamed: no stream
    ever brings that. A dies; B keeps the node closed forever."""
    world = World()
    one, two = Invalidator(world).join(), Invalidator(world).join()
    world.commit(KEY)
    one.apply()
    two.apply()
    world.database.transactions.clear()
    world.database._server = 9  # another primary, with an identity of its own
    world.database.epoch = 2
    nothing = empty_position("mysql")
    Run(world, join(one.member, nothing, is_fresh=True), one.client).finish()
    world.sleep(2)
    two.run(renew(two.member)).until(lambda _: False, may_end=True)
    assert not two.member.is_joined
    two.join()
    two.live(world.now - START_SECONDS + 30)
    assert world.record().is_open


def test_a_record_is_closed_and_not_lost_while_the_stream_cannot_be_opened() -> None:
    """ADR 0007: without a young heartbeat the record stays, closed. `renew` waits L/3 between two writes, and
    `_lease` gives the last open record only the one or two seconds that are left of its lease: it lapses between
    two looks, the membership is lost, and the node is joined again by way of a revival, which needs the primary."""
    world = World()
    scene = Scene(world)
    scene.run(3)
    member = next(iter(scene.shard.members.values()))
    tenure = member.joined_record().tenure
    scene.change()
    scene.run(0.5)
    scene.is_stream_broken, scene.hidden = True, 1
    scene.run(12)
    assert member.is_joined
    assert member.joined_record().tenure == tenure


def test_a_record_is_closed_and_not_lost_while_no_heartbeat_can_be_written() -> None:
    """As above, while the stream runs and only the heartbeats fail."""
    world = World()
    scene = Scene(world)
    scene.run(3)
    member = next(iter(scene.shard.members.values()))
    tenure = member.joined_record().tenure
    scene.beaten_at = float("inf")
    for _ in range(60):
        scene.run(0.25)
        assert world.find_record() is not None, f"lapsed at {world.now - START_SECONDS} s"
    assert member.joined_record().tenure == tenure
