"""The sink without Spark: executors send, the driver acknowledges; the nodes hold what one process would write."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from freshness.algorithm.admission import join
from freshness.algorithm.applier import HISTORY_CONFIRM_SECONDS, create_members
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.envelope import (
    NodeRecord,
    PendingStripe,
    Stripe,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.membership import Membership, NodePolicy
from freshness.algorithm.request import Add, Get, Head, Item, Reply, Request
from freshness.algorithm.restore import Restorer
from freshness.config.access import NodeAccess
from freshness.errors import FormatError, HistoryLost, NodeUnavailable, StreamStopped
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.position import MysqlGtidSet, Position
from freshness.stream.source import Heartbeat, RowChange, Transaction
from invalidator.loop.shard import ShardInvalidator
from spark.sink.acknowledger import Acknowledger
from spark.sink.sender import Part, Sender, SinkPlan, Ticket
from tests.simulation.sink import Row
from tests.simulation.sink import rows_of as make_rows
from tests.unit.invalidator.archive.archive_world import NODES, SOURCE, make_config, make_registry

LINEAGE: Final = "shop/-"
ME: Final = "me"
FIRST: Final = 10
STRIPES: Final = 1024


def upto(number: int) -> MysqlGtidSet:
    return MysqlGtidSet.parse(f"{SOURCE}:1-{number}")


def transaction(number: int, *changes: RowChange, **options: Any) -> Transaction:
    return Transaction(MysqlGtidSet.of(SOURCE, number), number, changes, **options)


def update(key: int, new: int | None = None, table: str = "customers") -> RowChange:
    column = "id" if table == "customers" else "customer_id"
    before = {"id": 900 + key, column: key, "v": "a"}
    return RowChange(table, "update", before, {**before, column: new or key, "v": "b"})


def beat(number: int, sequence: int, epoch: int = 1) -> Transaction:
    return transaction(number, heartbeats=(Heartbeat(ME, sequence, number, number, epoch),))


STREAM: Final = (
    transaction(11, update(1), update(2)),
    transaction(12, update(3, 4)),
    transaction(13, raised_tables=frozenset(("orders",)), reasons=("TRUNCATE",)),
    transaction(14),
    transaction(15, update(1, 1, "orders"), update(9, 8, "orders")),
    transaction(16, RowChange("customers", "update", {"v": "x"}, {"v": "y"})),
    transaction(17, update(1)),
)
ITEMS: Final = [f"shop:{name}:{key}".encode() for name in ("customer", "profile") for key in range(1, 12)]


def rows_of(transactions: Sequence[Transaction], before: int, *, first: int = 0) -> list[Row]:
    """As the source delivers them, with the rows that begin and end a partition."""
    return list(make_rows("shop", LINEAGE, transactions, upto(before), first))


class FlakyNode(MemoryNode):
    """Does not answer while its world says so."""

    def __init__(self, store: MemoryStore, down: set[str]) -> None:
        super().__init__(store)
        self._down = down

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self.send(requests)
        return self.receive()

    def send(self, requests: Sequence[Request]) -> None:
        if self.name in self._down:
            raise NodeUnavailable(f"{self.name} is down")
        super().send(requests)


class World:
    """Two nodes, the sink's acknowledger of them, and a clock that only tests move."""

    def __init__(self, folder: Path) -> None:
        config = make_config(folder)
        self.registry = make_registry(config)
        self.now = 1000.0
        self.down: set[str] = set()
        self.head: Position = upto(FIRST)
        self.epoch = 1
        self.begun: dict[int, float] = {}
        self.stores = {name: MemoryStore(name, clock=lambda: self.now) for name in NODES}
        self.plan = SinkPlan("shop", NodeAccess("memory"), NODES, {LINEAGE: "mysql"}, {"shop": self.registry})
        self.policy = NodePolicy(
            namespace="shop",
            lineage=LINEAGE,
            ring=Placement(NODES, "shop").ring_version,
            objects={name: each.policy.fingerprint for name, each in self.registry.items()},
            stripes=STRIPES,
            lease_seconds=5,
            heartbeat_age_max_seconds=10,
            node_refresh_seconds=0.5,
        )
        self.placement = Placement(NODES, "shop")
        self.nonces = 0
        self.start()

    def start(self) -> None:
        """An acknowledger that knows nothing, as after a restart of the driver."""
        self.acknowledger = Acknowledger(
            members=create_members(NODES, self.policy, lambda: self.now, self.nonce, MysqlGtidSet()),
            instance=ME,
            clock=lambda: self.now,
            find_heartbeat=self.begun.get,
            streamed=MysqlGtidSet(),
            is_sender=False,
            lineage=self.policy.lineage,
        )
        self.connect()

    def connect(self) -> None:
        self.driver = BlockingDriver(self.open_nodes(), self.sleep, read_head=self.read_head)

    def open_nodes(self) -> dict[str, FlakyNode]:
        return {name: FlakyNode(store, self.down) for name, store in self.stores.items()}

    def nonce(self) -> bytes:
        self.nonces += 1
        return self.nonces.to_bytes(8, "big")

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read_head(self) -> Head:
        return Head(self.head, self.epoch)

    def begin(self) -> Ticket:
        permit = self.driver.run(self.acknowledger.begin())
        ticket: Ticket = pickle.loads(  # noqa: S301 - as Spark hands it to the executors
            pickle.dumps(Ticket(1, {LINEAGE: permit}))
        )
        return ticket

    def send(self, ticket: Ticket, rows: Sequence[Row]) -> list[Part]:
        """One task."""
        sender, driver = Sender(self.plan, ticket), BlockingDriver(self.open_nodes(), self.sleep)
        driver.run(sender.take(rows))
        driver.run(sender.flush())
        parts: list[Part] = pickle.loads(pickle.dumps(list(sender.parts.values())))  # noqa: S301
        return parts

    def run(self, transactions: Sequence[Transaction], before: int) -> None:
        """One micro-batch in one task."""
        ticket = self.begin()
        self.commit(ticket, self.send(ticket, rows_of(transactions, before)))

    def commit(self, ticket: Ticket, parts: Sequence[Part]) -> None:
        self.driver.run(self.acknowledger.commit(parts, ticket.permits[LINEAGE]))

    def renew(self) -> None:
        self.driver.run(self.acknowledger.renew())

    def beat(self, number: int, sequence: int) -> Transaction:
        self.begun[sequence] = self.now
        self.head = self.head.union(MysqlGtidSet.of(SOURCE, number))
        return beat(number, sequence)

    def read(self, node: str, key: bytes) -> Reply:
        [reply] = MemoryNode(self.stores[node]).perform([Get(key)])
        return reply

    def record(self, node: str, *, is_copy: bool = False) -> NodeRecord:
        found = self.read(node, (resume_key if is_copy else record_key)("shop", LINEAGE))
        assert isinstance(found, Item)
        return NodeRecord.decode(found.value)

    def furnish(self) -> None:
        """Join the nodes, and give them all of their stripes and an entry under each key."""
        self.begin()
        for node in NODES:
            whole = Stripe(self.record(node).life, MysqlGtidSet()).encode()
            names = [stripe_key("shop", LINEAGE, number) for number in range(STRIPES)]
            MemoryNode(self.stores[node]).perform([Add(name, whole, 0) for name in names])
        for item in ITEMS:
            MemoryNode(self.stores[self.placement.node_for(item)]).perform([Add(item, b"entry", 0)])

    def stripe(self, item: bytes) -> Stripe:
        name = stripe_key("shop", LINEAGE, stripe_number(item, STRIPES))
        reply = self.read(self.placement.node_for(item), name)
        assert isinstance(reply, Item)
        return Stripe.decode(reply.value)

    def touched(self) -> set[tuple[str, int]]:
        """The stripes with an event."""
        return {
            (node, number)
            for node in NODES
            for number in range(STRIPES)
            if isinstance(reply := self.read(node, stripe_key("shop", LINEAGE, number)), Item)
            and not Stripe.decode(reply.value).position.is_empty
        }

    def entries(self) -> set[bytes]:
        return {item for item in ITEMS if isinstance(self.read(self.placement.node_for(item), item), Item)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "sink")
    made.head = upto(FIRST)
    return made


def apply_in_one_process(folder: Path) -> World:
    """The same stream through the invalidator's own class."""
    other = World(folder)
    shard = ShardInvalidator(
        members=create_members(NODES, other.policy, lambda: other.now, other.nonce, MysqlGtidSet()),
        instance="other",
        clock=lambda: other.now,
        find_heartbeat=lambda _: None,
        streamed=MysqlGtidSet(),
        placement=Placement(NODES, "shop"),
        finder=KeyFinder(other.registry),
    )
    driver = BlockingDriver(other.open_nodes(), other.sleep, read_head=other.read_head)
    other.furnish()
    driver.run(shard.join_missing())
    shard.opened(upto(FIRST))
    driver.run(shard.apply(STREAM))
    driver.run(shard.finish())
    return other


def assert_like_one_process(world: World, folder: Path) -> None:
    other = apply_in_one_process(folder)
    assert world.touched() == other.touched()
    assert world.entries() == other.entries() < set(ITEMS)
    finder = KeyFinder(world.registry)
    for each in STREAM:
        for item in finder.find(each)[0]:
            position = world.stripe(item).position
            assert position.contains(each.position)
            assert upto(17).contains(position)
    for node in NODES:
        mine, theirs = world.record(node), other.record(node)
        assert mine.progress == theirs.progress == upto(17)
        assert mine.table_floors == theirs.table_floors
        assert set(mine.table_floors) == {"orders", "customers"}
        assert mine.floor == theirs.floor


def test_the_nodes_hold_what_one_process_writes(world: World, tmp_path: Path) -> None:
    world.furnish()
    world.run(STREAM, FIRST)
    assert_like_one_process(world, tmp_path / "one")


def test_the_end_of_a_partition_counts_though_it_has_the_number_of_its_last_transaction(world: World) -> None:
    """Transactions of no table of the stream have no row; the end names them."""
    ticket = world.begin()
    rows = rows_of(STREAM[:2], FIRST)
    assert rows[-1]["ordinal"] == rows[-2]["ordinal"]
    world.commit(ticket, world.send(ticket, [*rows[:-1], {**rows[-1], "gtid": str(upto(15))}]))
    assert {world.record(node).progress for node in NODES} == {upto(15)}


def test_many_tasks_in_any_order_and_twice_are_the_same(world: World, tmp_path: Path) -> None:
    world.furnish()
    ticket = world.begin()
    second = world.send(ticket, rows_of(STREAM[4:], 14, first=4))
    world.send(ticket, rows_of(STREAM[4:], 14, first=4))  # an attempt whose answer was lost
    first = world.send(ticket, rows_of(STREAM[:4], FIRST))
    world.commit(ticket, [*second, *first])
    assert_like_one_process(world, tmp_path / "one")


def test_a_batch_that_runs_again_after_a_crash_changes_nothing(world: World, tmp_path: Path) -> None:
    world.furnish()
    world.run(STREAM, FIRST)
    before = world.record(NODES[0])
    world.start()
    world.head = upto(17)
    world.run(STREAM, FIRST)
    assert world.record(NODES[0]).life == before.life
    assert_like_one_process(world, tmp_path / "one")


def test_a_task_without_the_beginning_of_its_partition_appends_the_events_of_its_rows(world: World) -> None:
    """The rows were spread over other tasks on the way to the sink."""
    world.furnish()
    begin, *rows = rows_of(STREAM[:2], FIRST)
    ticket = world.begin()
    [part] = world.send(ticket, rows[:2])
    assert part.before is None
    assert world.stripe(b"shop:customer:1").position == MysqlGtidSet.of(SOURCE, 11)
    world.commit(ticket, [part, *world.send(ticket, [begin, *rows[2:]])])
    assert world.stripe(b"shop:customer:4").position.contains(MysqlGtidSet.of(SOURCE, 12))
    assert world.record(NODES[0]).progress == upto(12)


def test_a_stripe_that_many_batches_change_stays_short(world: World) -> None:
    world.furnish()
    chunks = []
    for number in range(11, 75):
        world.head = upto(number)
        world.run((transaction(number, update(1)),), number - 1)
        chunks.append(world.stripe(b"shop:customer:1").chunk_count)
    assert max(chunks) < len(chunks) / 2
    assert world.stripe(b"shop:customer:1").position == upto(74).subtract(upto(FIRST))


def test_a_missing_stripe_is_put_back_after_an_own_heartbeat_that_a_micro_batch_brought(world: World) -> None:
    world.begin()
    world.run((world.beat(11, 1),), FIRST)
    item = b"shop:customer:1"
    node, key = world.placement.node_for(item), stripe_key("shop", LINEAGE, stripe_number(item, STRIPES))
    restorer = Restorer(node, world.policy, lambda: world.now, world.nonce)
    driver = BlockingDriver(
        world.open_nodes(), world.sleep, read_stream=lambda since: world.acknowledger.read_stream(since)
    )
    world.now += 1
    driver.run(restorer.look())
    world.run((transaction(12, update(1)),), 11)
    driver.run(restorer.look())
    pending = world.read(node, key)
    assert isinstance(pending, Item)
    assert PendingStripe.decode(pending.value).chunks, "the micro-batch appended to it"
    world.run((world.beat(13, 2),), 12)
    driver.run(restorer.look())
    assert world.stripe(item).position == MysqlGtidSet.parse(f"{SOURCE}:11-13")


def test_nothing_is_acknowledged_before_the_commit(world: World) -> None:
    ticket = world.begin()
    world.send(ticket, rows_of(STREAM, FIRST))
    assert world.record(NODES[0]).progress == upto(FIRST)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_batch_that_lacks_a_transaction_is_not_acknowledged(missing: int, world: World) -> None:
    ticket = world.begin()
    rows = [row for row in rows_of(STREAM, FIRST) if row["ordinal"] != missing]
    with pytest.raises(StreamStopped, match="lacks transactions"):
        world.commit(ticket, world.send(ticket, rows))
    with pytest.raises(StreamStopped, match="does not say where"):
        world.commit(ticket, world.send(ticket, rows_of(STREAM, FIRST)[1:]))
    assert world.record(NODES[0]).progress == upto(FIRST)


def test_a_node_that_took_not_all_of_it_begins_a_new_life(world: World) -> None:
    world.run(STREAM[:1], FIRST)
    lives = {node: world.record(node).life for node in NODES}
    ticket = world.begin()
    world.down.add(NODES[1])
    parts = world.send(ticket, rows_of(STREAM[1:], 11, first=1))
    assert set(parts[0].failed) == {NODES[1]}
    world.down.clear()
    world.commit(ticket, parts)
    assert world.record(NODES[0]).progress == upto(17)
    assert world.record(NODES[1]).progress == upto(11), "not acknowledged"
    world.head = upto(17)
    world.run((transaction(18, update(5)),), 17)
    assert world.record(NODES[0]).life == lives[NODES[0]]
    assert world.record(NODES[1]).life != lives[NODES[1]]
    assert world.record(NODES[1]).floor.contains(upto(17)), "what it missed is in its floor"
    assert world.record(NODES[1]).progress.contains(upto(18))


@pytest.mark.parametrize("order", [1, -1])
def test_a_node_that_failed_in_one_of_two_tasks_is_not_acknowledged(order: int, world: World) -> None:
    ticket = world.begin()
    world.down.add(NODES[1])
    [first] = world.send(ticket, rows_of(STREAM[:4], FIRST))
    world.down.clear()
    [second] = world.send(ticket, rows_of(STREAM[4:], 14, first=4))
    assert (set(first.failed), set(second.failed)) == ({NODES[1]}, set())
    world.commit(ticket, [first, second][::order])
    assert [world.record(node).progress for node in NODES] == [upto(17), upto(FIRST)]


def test_a_node_that_failed_is_left_alone_for_the_rest_of_the_part(world: World) -> None:
    world.furnish()
    ticket, rows = world.begin(), rows_of(STREAM, FIRST)
    sender, driver = Sender(world.plan, ticket), BlockingDriver(world.open_nodes(), world.sleep)
    world.down.add(NODES[1])
    driver.run(sender.take(rows[:3]))
    driver.run(sender.flush())
    assert set(sender.parts[LINEAGE].failed) == {NODES[1]}
    world.down.clear()
    driver.run(sender.take(rows[3:]))
    driver.run(sender.flush())
    assert {node for node, _ in world.touched()} == {NODES[0]}
    world.send(ticket, rows[3:])
    assert {node for node, _ in world.touched()} == set(NODES), "another attempt has rows for both"


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_that_two_tasks_raise_has_both_statements_in_its_floor(order: int, world: World) -> None:
    raised: dict[str, Any] = {"raised_tables": frozenset(("orders",)), "reasons": ("TRUNCATE",)}
    ticket = world.begin()
    parts = [
        *world.send(ticket, rows_of([transaction(11, **raised)], FIRST)),
        *world.send(ticket, rows_of([transaction(12), transaction(13, **raised)], 11, first=1)),
    ]
    world.commit(ticket, parts[::order])
    for node in NODES:
        floor = world.record(node).table_floors["orders"]
        assert floor.contains(MysqlGtidSet.parse(f"{SOURCE}:11:13"))


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_of_two_beginnings_counts_that_one_task_has(order: int, world: World) -> None:
    ticket = world.begin()
    partitions = [rows_of(STREAM[:4], FIRST), rows_of(STREAM[4:], 14, first=4)]
    [part] = world.send(ticket, [row for rows in partitions[::order] for row in rows])
    assert (part.before, part.first) == (upto(FIRST), 0)
    world.commit(ticket, [part])
    assert world.record(NODES[0]).progress == upto(17)


@pytest.mark.parametrize("order", [1, -1])
def test_the_last_of_several_heartbeats_in_a_task_counts(order: int, world: World) -> None:
    ticket = world.begin()
    begin, *beats, end = rows_of([beat(11, 1), beat(12, 2)], FIRST)
    [part] = world.send(ticket, [begin, *beats[::order], end])
    assert part.heartbeats[ME].sequence == 2


def test_a_node_whose_progress_the_stream_does_not_reach_begins_a_new_life(world: World) -> None:
    world.run(STREAM[:1], FIRST)
    life = world.record(NODES[0]).life
    world.start()
    world.head = upto(15)
    world.run((transaction(16, update(1)),), 15)  # 12 to 15 never came
    assert world.record(NODES[0]).progress == upto(11)
    world.head = upto(16)
    world.run((transaction(17, update(1)),), 16)
    assert world.record(NODES[0]).life != life
    assert world.record(NODES[0]).floor.contains(upto(16))


def test_a_record_that_was_lost_during_the_batch_is_not_acknowledged(world: World) -> None:
    ticket = world.begin()
    parts = world.send(ticket, rows_of(STREAM, FIRST))
    life = world.record(NODES[0]).life
    world.stores[NODES[0]] = MemoryStore(NODES[0], clock=lambda: world.now)  # restarted, empty
    world.connect()
    world.commit(ticket, parts)
    world.head = upto(17)
    world.run((transaction(18, update(5)),), 17)
    assert world.record(NODES[0]).life != life
    assert world.record(NODES[0]).floor.contains(upto(17))
    assert world.record(NODES[1]).progress == upto(18)


def test_a_batch_may_take_as_long_as_the_record_is_kept(world: World) -> None:
    ticket = world.begin()
    parts = world.send(ticket, rows_of(STREAM, FIRST))
    for _ in range(40):
        world.now += 3
        world.renew()
    world.commit(ticket, parts)
    assert world.record(NODES[0]).progress == upto(17)


def test_a_record_that_lapsed_during_the_batch_is_not_acknowledged(world: World) -> None:
    ticket = world.begin()
    parts = world.send(ticket, rows_of(STREAM, FIRST))
    world.now += 10
    world.renew()  # finds that it has lapsed
    world.begin()  # revives the life, in another tenure
    world.commit(ticket, parts)
    assert world.record(NODES[0]).progress == upto(FIRST)


def test_nodes_open_on_an_own_heartbeat_alone_and_close_without(world: World) -> None:
    world.run((transaction(11, update(1)),), FIRST)
    assert not world.record(NODES[0]).is_open, "nothing of our own came back"
    world.run((beat(12, 1)._replace(heartbeats=(Heartbeat("another", 1, 1, 1, 1),)),), 11)
    assert not world.record(NODES[0]).is_open, "another's says nothing of this stream"
    world.run((world.beat(13, 1),), 12)
    assert world.record(NODES[0]).is_open
    for _ in range(16):
        world.now += 0.5
        world.renew()
    assert world.record(NODES[0]).is_open, "kept between batches"
    for _ in range(40):
        world.now += 0.5
        world.renew()
    assert not world.record(NODES[0]).is_open, "the heartbeat is too old"


def test_a_raised_epoch_begins_new_lives(world: World) -> None:
    world.run(STREAM[:1], FIRST)
    life = world.record(NODES[0]).life
    world.epoch, world.head = 2, upto(12)
    world.run((beat(12, 1, epoch=2),), 11)
    world.run((transaction(13, update(5)),), 12)
    assert world.record(NODES[0]).life != life
    assert world.record(NODES[0]).epoch == 2


def test_a_primary_that_stays_behind_what_was_acknowledged_stops_the_job(world: World) -> None:
    world.head = upto(17)
    world.run(STREAM, FIRST)
    life = world.record(NODES[0]).life
    world.start()
    world.head = upto(12)
    began = world.now
    with pytest.raises(HistoryLost, match="never executed"):
        world.begin()
    assert world.now - began >= HISTORY_CONFIRM_SECONDS
    assert world.record(NODES[0]).life == life, "no life was ended over it"


def test_what_the_sink_does_not_know_stops_it(world: World) -> None:
    ticket = world.begin()
    row = rows_of(STREAM, FIRST)[1]
    with pytest.raises(FormatError, match="not known to this version"):
        world.send(ticket, [{**row, "op": "merge"}])
    with pytest.raises(FormatError, match="not configured"):
        world.send(ticket, [{**row, "lineage": "shop/80-"}])
    with pytest.raises(FormatError, match="no JSON"):
        world.send(ticket, [{**row, "after": "{"}])


def test_an_outsider_who_joins_finds_the_life_of_the_job(world: World) -> None:
    """An invalidator that takes over goes on with the same life."""
    world.head = upto(17)
    world.run(STREAM, FIRST)
    member = Membership(NODES[0], world.policy, lambda: world.now, world.nonce, MysqlGtidSet())
    driver = BlockingDriver(world.open_nodes(), world.sleep, read_head=world.read_head)
    driver.run(join(member, MysqlGtidSet()))
    assert member.applied == upto(17)
    assert member.joined_record().life == world.record(NODES[0]).life
