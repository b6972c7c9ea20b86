"""Directed schedules of the Spark sink: executors send, the driver acknowledges. The procedures are the production
ones; Spark, the nodes and the primary are made here.

`Job.start` restarts a job, as after a crash of its driver. The stream begins at the position that all joined nodes
have acknowledged, as without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pytest

from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import Head, Reply, Request
from freshness.algorithm.restore import Restorer
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.config.access import NodeAccess
from freshness.config.object import ObjectConfig
from freshness.errors import HistoryLost, NodeUnavailable, StreamStopped
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet, Position
from freshness.stream.source import Heartbeat, RowChange
from freshness.stream.source import Transaction as StreamTransaction
from spark.sink.acknowledger import Acknowledger
from spark.sink.sender import Part, Sender, SinkPlan, Ticket
from tests.schedules.world import (
    CONFIG,
    CUSTOMER,
    L_SECONDS,
    LINEAGE,
    NAMESPACE,
    NODE,
    NODE_REFRESH_SECONDS,
    ORDER,
    RING,
    Client,
    Reader,
    Run,
    Transaction,
    World,
    lookup,
)
from tests.simulation.sink import Row, rows_of

KEY: Final = lookup(1).item
LOST: Final = 60
"""How many transactions a failover loses: more than there are later ones, which are given the same numbers."""


class DriverDied(Exception):
    """The driver's process dies at this step."""


class Node:
    """A node of the world, on the connections of one process."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name
        self._requests: Sequence[Request] = ()

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        return [self._client.perform(self.name, request) for request in requests]

    def send(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    is_connected = True

    def connect(self) -> None: ...

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        return self.perform(self._requests)

    def find(self, key: bytes) -> bytes | None:
        raise NotImplementedError("nobody reads here")

    def close(self) -> None: ...


def define(policy: ObjectPolicy) -> ObjectDefinition:
    column = KeyColumn("id", ColumnKind.INTEGER)
    config = ObjectConfig(name=policy.name, keyspace="shop", table=policy.tables[0])
    return ObjectDefinition(
        config, policy, KeyBuilder(NAMESPACE, policy.name, (column,)), {policy.tables[0]: (column,)}
    )


class Job:
    """One job on a cluster, and the primary that it follows.

    ``dies_in_wait``: the driver's process ends in its next pause.
    """

    def __init__(self, world: World, objects: Sequence[ObjectPolicy] = (CUSTOMER,), instance: str = "me") -> None:
        self.world = world
        self.objects = objects
        self.instance = instance
        self.begun: dict[int, float] = {}
        self.beats: dict[int, int] = {}
        self.dies_in_wait = False
        self.start()

    def start(self) -> None:
        """A new driver: it knows nothing but what the nodes hold."""
        self.dies_in_wait = False
        names = tuple(self.world.stores)
        self.plan = SinkPlan(
            NAMESPACE,
            NodeAccess("memory"),
            names,
            {LINEAGE: "mysql"},
            {"shop": {each.name: define(each) for each in self.objects}},
        )
        policy = NodePolicy(
            NAMESPACE,
            LINEAGE,
            RING,
            {each.name: each.fingerprint for each in self.objects},
            self.world.stripes,
            L_SECONDS,
            CONFIG.heartbeat_age_max_seconds,
            NODE_REFRESH_SECONDS,
        )
        self.driver = BlockingDriver(self.open_nodes(), self.wait, read_head=self.read_head)
        self.acknowledger = Acknowledger(
            members=create_members(names, policy, self.world.clock, self.world.nonce, MysqlGtidSet()),
            instance=self.instance,
            clock=self.world.clock,
            find_heartbeat=self.begun.get,
            streamed=MysqlGtidSet(),
            is_sender=False,
            lineage=policy.lineage,
        )
        self.restorers = [Restorer(name, policy, self.world.moment, self.world.nonce) for name in self.world.stores]
        self.restoring_client = Client(self.world)
        self.streamed: Position | None = None

    def open_nodes(self) -> dict[str, Node]:
        client = Client(self.world)
        return {name: Node(client, name) for name in self.world.stores}

    def wait(self, seconds: float) -> None:
        if self.dies_in_wait:
            raise DriverDied
        self.world.sleep(seconds)

    # -- the primary -----------------------------------------------------------------------------------

    def read_head(self) -> Head:
        return self.world.read_head(LINEAGE)

    def beat(self, *, epoch: int = 0) -> None:
        number = len(self.begun) + 1
        self.begun[number] = self.world.moment()
        made = self.world.commit()
        self.beats[made.number] = number

    def fail_over(self, lost: int) -> None:
        del self.world.database.transactions[-lost:]

    def raise_epoch(self) -> None:
        """As the operator does after a lost history, with `invalidator run`."""
        self.world.database.epoch += 1

    # -- micro-batches ---------------------------------------------------------------------------------

    def begin(self) -> Ticket:
        permit = self.driver.run(self.acknowledger.begin())
        if self.streamed is None:
            start = self.acknowledger.start_position()
            self.streamed = self.read_head().position if start is None else start
        return Ticket(1, {LINEAGE: permit})

    def send(self, ticket: Ticket, rows: Sequence[Row]) -> list[Part]:
        """One task."""
        sender, driver = Sender(self.plan, ticket), BlockingDriver(self.open_nodes(), self.world.sleep)
        driver.run(sender.take(rows))
        driver.run(sender.flush())
        return list(sender.parts.values())

    def commit(self, ticket: Ticket, parts: Sequence[Part]) -> None:
        self.driver.run(self.acknowledger.commit(parts, ticket.permits[LINEAGE]))

    def renew(self) -> None:
        self.driver.run(self.acknowledger.renew())

    def run_batch(self) -> None:
        """All that was committed since the last micro-batch, in one task for each transaction."""
        ticket = self.begin()
        tasks = self.plan_tasks()
        self.commit(ticket, [part for rows in tasks for part in self.send(ticket, rows)])

    def live(self, seconds: float) -> None:
        """A look at the stripes, a heartbeat and a micro-batch every second."""
        for _ in range(round(seconds)):
            self.look()
            self.beat()
            self.run_batch()
            self.world.sleep(1.0)

    def look(self) -> None:
        """At the stripes of each node: what is missing becomes pending, what is pending whole."""
        for restorer in self.restorers:
            run = Run(
                self.world, restorer.look(), self.restoring_client, read_stream=lambda: self.acknowledger.passed
            )
            run.until(lambda _: False, may_end=True)
            assert run.error is None or isinstance(run.error, NodeUnavailable)

    def plan_tasks(self) -> list[list[Row]]:
        """The rows of the update stream, a partition for each transaction."""
        streamed = self.streamed
        assert streamed is not None, "begin comes first"
        tasks: list[list[Row]] = []
        for made in self.world.database.transactions:
            if not streamed.contains(made.position):
                tasks.append(list(rows_of("shop", LINEAGE, [self._change(made)], streamed, len(tasks))))
                streamed = streamed.union(made.position)
        self.streamed = streamed
        return tasks or [list(rows_of("shop", LINEAGE, [], streamed))]

    def _change(self, made: Transaction) -> StreamTransaction:
        changes = []
        for item in sorted(made.keys):
            _, name, key = item.decode().split(":")
            (table,) = [each.tables[0] for each in (CUSTOMER, ORDER) if each.name == name]
            changes.append(RowChange(table, "update", {"id": int(key)}, {"id": int(key)}))
        sequence = self.beats.get(made.number)
        beat = Heartbeat(self.instance, sequence or 0, int(self.world.now * 1e6), 0, self.world.database.epoch)
        beats = () if sequence is None else (beat,)
        return StreamTransaction(made.position, made.timestamp_us, tuple(changes), made.raised, beats)


def read_fresh(world: World, number: int = 1, policy: ObjectPolicy = CUSTOMER, node: str = NODE) -> ReadOutcome:
    """By a replica that has everything."""
    return Reader(world, world.replica().catch_up()).read(lookup(number, policy, node))


# -- micro-batches ---------------------------------------------------------------------------------------


def test_a_node_that_failed_in_a_micro_batch_is_not_acknowledged() -> None:
    """The executor cannot reach the node, the driver can. Nothing on the node says that the event happened."""
    world = World()
    job = Job(world)
    job.live(3)
    event = world.commit(KEY)
    ticket = job.begin()
    tasks = job.plan_tasks()
    world.stores[NODE].down = True
    parts = [part for rows in tasks for part in job.send(ticket, rows)]
    world.stores[NODE].down = False
    life = world.record().life
    job.commit(ticket, parts)
    assert not world.record().progress.contains(event.position)
    job.live(3)
    assert world.record().life != life
    assert world.record().floor.contains(event.position)
    assert world.broken == []


def test_a_micro_batch_with_a_hole_is_not_acknowledged() -> None:
    """The rows of one transaction were filtered out on the way to the sink."""
    world = World()
    job = Job(world)
    job.live(3)
    world.commit(lookup(2).item)
    event = world.commit(KEY)
    world.commit(lookup(3).item)
    ticket = job.begin()
    first, _, last = job.plan_tasks()
    with suppress(StreamStopped):
        job.commit(ticket, [*job.send(ticket, first), *job.send(ticket, last)])
    assert not world.record().progress.contains(event.position)
    assert world.broken == []


def test_two_jobs_do_not_end_the_lives_that_the_other_one_began() -> None:
    """Two jobs follow one lineage. The node restarts, and one of them begins its new life while a micro-batch of the
    other one is under way. That batch is not acknowledged; the next one goes on with the new life, which has it."""
    world = World()
    jobs = [Job(world, instance="one"), Job(world, instance="two")]
    for job in jobs:
        job.live(2)
    world.restart()
    lives = []
    for _ in range(8):
        under_way = []
        for job in jobs:
            job.look()
            job.beat()
            ticket = job.begin()
            under_way.append((job, ticket, [part for rows in job.plan_tasks() for part in job.send(ticket, rows)]))
        for job, ticket, parts in under_way:
            job.commit(ticket, parts)
        record = world.find_record()
        lives.append(b"" if record is None else record.life)
        world.sleep(1.0)
    assert len(set(lives[3:])) == 1, "each ends the life that the other one has begun"
    assert read_fresh(world) is ReadOutcome.FILLED
    assert world.broken == []


# -- lost history ----------------------------------------------------------------------------------------


def demand_by_table_floor(world: World) -> Job:
    """The driver dies between the floor of a truncated table and the progress."""
    job = Job(world)
    job.live(3)
    for _ in range(LOST - 1):
        world.commit()
    world.commit(raised=("customers",))
    job.dies_in_wait = True
    with pytest.raises(DriverDied):
        job.run_batch()
    assert "customers" in world.record().table_floors
    return job


def test_a_demand_that_names_a_lost_event_ends_the_history_of_the_sink() -> None:
    """A failover loses what a node's record demands of a read and its progress does not hold. A sink that goes on
    with such a node keeps one on which no server of this history can ever let a fill through."""
    world = World()
    job = demand_by_table_floor(world)
    policy = job.objects[-1]
    job.fail_over(LOST)
    job.start()
    with pytest.raises(HistoryLost, match="demands"):
        job.live(3)
    job.raise_epoch()
    job.start()
    job.live(5)
    assert read_fresh(world, policy=policy) is ReadOutcome.FILLED
    assert world.broken == []


def test_a_node_that_joins_after_its_epoch_was_raised_demands_nothing_of_the_previous_history() -> None:
    """A node is away while the others begin new lives. Events that the job streamed before were lost, and no server
    of the present history can show them: they must not be in the floor of the node that comes back."""
    world = World(nodes=(NODE, "n2"))
    job = Job(world)
    job.live(3)
    for _ in range(LOST):
        world.commit()
    job.run_batch()
    job.fail_over(LOST)
    world.stores["n2"].down = True
    job.raise_epoch()
    job.streamed = job.read_head().position
    job.live(3)
    world.stores["n2"].down = False
    world.sleep(5)
    job.live(3)
    for node in world.stores:
        assert job.read_head().position.contains(world.record(node).floor), f"{node} demands what was lost"
