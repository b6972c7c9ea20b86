"""From row changes to cache keys, and one shard's memberships: nodes join, leave, are rewound, and start over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from freshness.algorithm.absence import REJOIN_MAX_SECONDS, REJOIN_MIN_SECONDS
from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import BlockingDriver, drive
from freshness.algorithm.envelope import NodeRecord, Stripe, find_stripe, record_key, stripe_key, stripe_number
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.refill import LoggedRow
from freshness.algorithm.request import Add, Head
from freshness.config.cache import CacheConfig
from freshness.config.config import Config
from freshness.config.http import HttpConfig
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.config.stream import ArchiveConfig, HistoryConfig
from freshness.config.stream import StreamConfig as Stream
from freshness.database.schema import keyspace_id
from freshness.errors import HistoryPurged, SourceUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.nodepolicy import node_policy
from freshness.objects.registry import build_registry
from freshness.position import MysqlGtidSet, Position, empty_position
from freshness.stream.source import UNREADABLE, Heartbeat, Operation, RowChange, Transaction
from invalidator.loop import shard as shard_module
from invalidator.loop.loop import LoopObserver, LoopStep, OpenStream, Poll, RaiseEpoch, run_loop
from invalidator.loop.shard import ShardInvalidator

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NODES = ("n1:1", "n2:1")
LINEAGE = "shop/-"
COLUMNS: dict[tuple[str, tuple[str, ...]], tuple[KeyColumn, ...]] = {
    ("customers", ()): (KeyColumn("id", ColumnKind.INTEGER),),
    ("customers", ("id",)): (KeyColumn("id", ColumnKind.INTEGER),),
    ("orders", ("customer_id",)): (KeyColumn("customer_id", ColumnKind.INTEGER),),
    ("pages", ("tenant", "slug")): (
        KeyColumn("tenant", ColumnKind.INTEGER),
        KeyColumn("slug", ColumnKind.STRING, "utf8mb4_bin"),
    ),
    ("blocks", ("tenant", "slug")): (
        KeyColumn("tenant", ColumnKind.INTEGER),
        KeyColumn("slug", ColumnKind.STRING, "utf8mb4_bin"),
    ),
    ("seats", ()): (KeyColumn("hall", ColumnKind.DECIMAL), KeyColumn("seat", ColumnKind.BINARY, length=4)),
}


def config() -> Config:
    address = ServerAddress("127.0.0.1", 1, "app", "", "shop")
    objects = {
        "customer": ObjectConfig(name="customer", keyspace="shop", table="customers"),
        "seat": ObjectConfig(name="seat", keyspace="shop", table="seats"),
        "profile": ObjectConfig(
            name="profile",
            keyspace="shop",
            key=("customer_id",),
            members={"customers": ("id",), "orders": ("customer_id",)},
        ),
        "page": ObjectConfig(
            name="page",
            keyspace="shop",
            key=("tenant", "slug"),
            members={"pages": ("tenant", "slug"), "blocks": ("tenant", "slug")},
        ),
    }
    return Config(
        cache=CacheConfig(nodes=NODES, namespace="shop"),
        keyspaces={"shop": Keyspace(name="shop", flavor="mysql", shards=(Shard(primary=address, lineage=LINEAGE),))},
        objects=objects,
        stream=Stream(),
        http=HttpConfig(),
        archive=ArchiveConfig(),
        history=HistoryConfig(),
        path=None,  # type: ignore[arg-type]  # no file
    )


REGISTRY = build_registry(config(), lambda _, table, names, *__: COLUMNS[table, names], keyspace_id)


def up_to(number: int) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:1-{number}")


def transaction(number: int, *changes: RowChange, **extras: Any) -> Transaction:
    return Transaction(MysqlGtidSet.of(SOURCE, number), 0, changes, **extras)


def change(table: str, op: Operation, before: dict[str, object] | None, after: dict[str, object] | None) -> RowChange:
    return RowChange(table, op, before, after)


def customer(number: int, key: int) -> Transaction:
    return transaction(number, change("customers", "insert", None, {"id": key, "v": 1}))


def find(*changes: RowChange, **extras: Any) -> tuple[set[bytes], dict[str, str]]:
    items, raised = KeyFinder(REGISTRY).find(transaction(1, *changes, **extras))
    return set(items), raised


# -- keys ----------------------------------------------------------------------------------------------


def test_an_insert_and_a_delete_have_one_image() -> None:
    expected = {b"shop:customer:5", b"shop:profile:5"}
    assert find(change("customers", "insert", None, {"id": 5})) == (expected, {})
    assert find(change("customers", "delete", {"id": 5}, None)) == (expected, {})


def test_both_images_of_an_update_give_keys() -> None:
    items, raised = find(change("customers", "update", {"id": 5}, {"id": 6}))
    assert items == {b"shop:customer:5", b"shop:customer:6", b"shop:profile:5", b"shop:profile:6"}
    assert not raised


def test_a_member_that_moves_invalidates_both_owners() -> None:
    before: dict[str, object] = {"id": 1, "customer_id": 5}
    items, raised = find(change("orders", "update", before, {"id": 1, "customer_id": 6}))
    assert (items, raised) == ({b"shop:profile:5", b"shop:profile:6"}, {})


def test_null_is_no_key_and_hides_no_other() -> None:
    before: dict[str, object] = {"id": 1, "customer_id": 5}
    assert find(change("orders", "update", before, {"id": 1, "customer_id": None})) == ({b"shop:profile:5"}, {})
    assert find(change("orders", "insert", None, {"id": 1, "customer_id": None})) == (set(), {})


@pytest.mark.parametrize("column", ["tenant", "slug"])
def test_a_member_that_moves_by_one_column_of_its_key_invalidates_both_owners(column: str) -> None:
    before: dict[str, object] = {"tenant": 7, "slug": "a"}
    moved = before | {column: {"tenant": 8, "slug": "b"}[column]}
    owners = {f"shop:page:{row['tenant']}:{row['slug']}".encode() for row in (before, moved)}
    assert len(owners) == 2
    assert find(change("blocks", "update", before, moved)) == (owners, {})
    # A MINIMAL after-image has the column that changed.
    assert find(change("blocks", "update", before, {column: moved[column]})) == (owners, {})


@pytest.mark.parametrize("column", ["tenant", "slug"])
def test_null_in_any_column_of_a_key_is_no_owner(column: str) -> None:
    whole: dict[str, object] = {"tenant": 7, "slug": "a"}
    apart = whole | {column: None}
    for before, after in ((whole, apart), (apart, whole), (None, whole), (whole, None)):
        assert find(change("blocks", "update", before, after)) == ({b"shop:page:7:a"}, {})
    assert find(change("blocks", "insert", None, apart)) == (set(), {})


def test_a_minimal_after_image_is_completed_from_the_one_before() -> None:
    items, raised = find(change("customers", "update", {"id": 5}, {"v": 2}))
    assert (items, raised) == ({b"shop:customer:5", b"shop:profile:5"}, {})


@pytest.mark.parametrize(
    "row",
    [{"v": 1}, {"id": UNREADABLE}, {"id": 1.5}, {"id": b"\x01"}],
    ids=["absent", "unreadable", "float", "bytes"],
)
def test_a_row_that_gives_no_key_raises_its_table(row: dict[str, object]) -> None:
    known = change("customers", "insert", None, {"id": 7})
    items, raised = find(change("customers", "insert", None, row), known)
    assert set(raised) == {"customers"}
    assert "a row gives no key for object" in raised["customers"]
    # The rows that do give keys are invalidated all the same.
    assert items == {b"shop:customer:7", b"shop:profile:7"}


def test_one_unreadable_image_does_not_hide_the_other() -> None:
    items, raised = find(change("customers", "update", {"id": 5}, {"id": UNREADABLE}))
    assert items <= {b"shop:customer:5", b"shop:profile:5"}
    assert set(raised) == {"customers"}


def test_binary_is_padded_as_the_table_holds_it() -> None:
    stripped, _ = find(change("seats", "insert", None, {"hall": Decimal("3.50"), "seat": b"A1"}))
    whole = REGISTRY["seat"].builder.build((Decimal("3.5"), b"A1\0\0")).item
    assert stripped == {whole}


def test_raised_tables_keep_their_reason_and_only_ours_count() -> None:
    assert find(raised_tables=frozenset(("customers", "other")), reasons=("TRUNCATE",)) == (
        set(),
        {"customers": "TRUNCATE"},
    )
    assert find(change("other", "insert", None, {"id": 1})) == (set(), {})
    assert find(raised_tables=frozenset(("seats",)))[1]["seats"]
    assert KeyFinder(REGISTRY).tables == {"customers", "orders", "pages", "blocks", "seats"}


# -- memberships ---------------------------------------------------------------------------------------


@dataclass
class Shop:
    """Two nodes in memory, one invalidator, a primary that is a number."""

    now: float = 1000.0
    head: int = 10
    epoch: int = 1
    lives: Iterator[bytes] = field(default_factory=lambda: (bytes([n] * 8) for n in range(1, 100)))
    written: dict[int, float] = field(default_factory=dict)
    is_primary_down: bool = False
    is_serving: bool = True
    mine: tuple[str, ...] = NODES
    stores: dict[str, MemoryStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = self.stores or {node: MemoryStore(node, clock=lambda: self.now) for node in NODES}
        self.placement = Placement(NODES, "shop")
        nodes = {node: MemoryNode(store) for node, store in self.stores.items()}
        self.driver = BlockingDriver(nodes, self.sleep, read_head=self.read_head)
        self.shard = ShardInvalidator(
            members=create_members(
                self.mine,
                node_policy(config().cache, LINEAGE, REGISTRY, topology=1, is_serving=self.is_serving),
                lambda: self.now,
                lambda: next(self.lives),
                empty_position("mysql"),
            ),
            instance="me",
            clock=lambda: self.now,
            find_heartbeat=self.written.get,
            streamed=empty_position("mysql"),
            placement=self.placement,
            finder=KeyFinder(REGISTRY),
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read_head(self) -> Head:
        if self.is_primary_down:
            raise SourceUnavailable("the primary is down")
        return Head(up_to(self.head), self.epoch)

    def join(self) -> None:
        self.driver.run(self.shard.join_missing())

    def open(self) -> None:
        """Join what can be joined, and open the stream as the loop does."""
        self.join()
        start = self.shard.start_position()
        assert start is not None
        self.shard.opened(start)

    def apply(self, *transactions: Transaction) -> None:
        self.head = max([self.head, *(self.number_of(each) for each in transactions)])
        self.driver.run(self.shard.apply(transactions))

    def beat(self, number: int, *, instance: str = "me", epoch: int = 1) -> Transaction:
        self.written[number] = self.now
        beat = Heartbeat(instance, number, 5_000_000, 5_000_001, epoch)
        return transaction(number, heartbeats=(beat,))

    @staticmethod
    def number_of(each: Transaction) -> int:
        return int(str(each.position).rsplit(":", 1)[1])

    def record(self, node: str) -> NodeRecord:
        item = self.stores[node].peek(record_key("shop", LINEAGE))
        assert item is not None, f"{node} has no record"
        return NodeRecord.decode(item.value)

    def put_stripe(self, key: int) -> None:
        """Give the customer's node a stripe for it, in the node's life."""
        node, name = self.place_of(key)
        stripe = Stripe(self.record(node).life, empty_position("mysql"))
        MemoryNode(self.stores[node]).perform([Add(name, stripe.encode(), 0)])

    def stripe(self, key: int) -> Position | None:
        """The position that a fill of the customer must contain; None if nothing may be filled."""
        node, name = self.place_of(key)
        found = self.stores[node].peek(name)
        stripe = None if found is None else find_stripe(found.value, self.record(node).life)
        return None if stripe is None else stripe.position

    def place_of(self, key: int) -> tuple[str, bytes]:
        """The node of a customer, and the key of its stripe there."""
        item = b"shop:customer:%d" % key
        number = stripe_number(item, config().cache.stripes)
        return self.placement.node_for(item), stripe_key("shop", LINEAGE, number)

    def key_of(self, node: str) -> int:
        """A customer that lives on the node."""
        return next(k for k in range(1000) if self.placement.node_for(b"shop:customer:%d" % k) == node)


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    made.open()
    return made


def test_new_nodes_start_at_the_head(shop: Shop) -> None:
    assert [member.node for member in shop.shard.joined] == list(NODES)
    assert shop.shard.start_position() == up_to(10)
    assert not shop.shard.needs_rewind
    for node in NODES:
        record = shop.record(node)
        assert (record.progress, record.floor, record.is_open) == (up_to(10), up_to(10), False)
    assert len({shop.record(node).life for node in NODES}) == 2


def test_a_key_is_invalidated_where_it_lives_and_all_nodes_acknowledge(shop: Shop) -> None:
    keys = [shop.key_of(node) for node in NODES]
    for node, key in zip(NODES, keys, strict=True):
        filled = b"shop:customer:%d" % key
        MemoryNode(shop.stores[node]).perform([Add(filled, b"old", 60)])
        shop.put_stripe(key)
    shop.apply(customer(11, keys[0]), customer(12, keys[1]), customer(13, keys[0]))
    for node, key in zip(NODES, keys, strict=True):
        assert shop.stores[node].peek(b"shop:customer:%d" % key) is None
        assert shop.record(node).progress == up_to(13)
    # All that was streamed in this life, which began at 10, be it the key's own event or another.
    assert [shop.stripe(key) for key in keys] == [MysqlGtidSet.parse(f"{SOURCE}:11-13")] * 2
    assert shop.shard.keys_total >= 2


def test_a_key_concerns_no_other_node(shop: Shop) -> None:
    key = shop.key_of(NODES[0])
    elsewhere = MemoryNode(shop.stores[NODES[1]])
    elsewhere.perform([Add(b"shop:customer:%d" % key, b"of nobody", 60)])
    shop.apply(customer(11, key))
    assert shop.stores[NODES[1]].peek(b"shop:customer:%d" % key) is not None


def test_a_key_that_changes_twice_in_a_batch_has_both_events(shop: Shop) -> None:
    keys, _, _ = shop.driver.run(shop.shard._collect([customer(11, 5), customer(13, 5)]))
    assert keys[b"shop:customer:5"] == MysqlGtidSet.parse(f"{SOURCE}:11:13")


@pytest.mark.parametrize("transactions", [1, 20])
def test_rows_that_take_long_to_look_at_let_no_lease_lapse(
    shop: Shop, transactions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they come again, take as long, and the cache stays closed (I6)."""
    monkeypatch.setattr(shard_module, "ROWS_AT_ONCE_MAX", 10)
    count, tenures = 200, [shop.record(node).tenure for node in NODES]

    class SlowFinder(KeyFinder):
        def find(self, transaction: Transaction) -> tuple[dict[bytes, None], dict[str, str]]:
            shop.now += config().cache.lease_seconds * len(transaction.changes) / 40
            return KeyFinder.find(self, transaction)

    shop.shard.finder = SlowFinder(REGISTRY)
    changes = [change("customers", "insert", None, {"id": key}) for key in range(count)]
    size = count // transactions
    shop.apply(*(transaction(11 + n, *changes[n * size : (n + 1) * size]) for n in range(transactions)))
    for node, tenure in zip(NODES, tenures, strict=True):
        assert shop.record(node).progress == up_to(10 + transactions)
        assert shop.record(node).tenure == tenure
    assert shop.shard.keys_total == 2 * count


def test_two_statements_on_one_table_are_both_in_its_floor(shop: Shop) -> None:
    """F22."""
    shop.apply(*(transaction(number, raised_tables=frozenset(("seats",))) for number in (11, 13)))
    for node in NODES:
        assert shop.record(node).table_floors == {"seats": MysqlGtidSet.parse(f"{SOURCE}:11:13")}


def test_only_an_own_heartbeat_opens_a_node(shop: Shop) -> None:
    shop.apply(shop.beat(11, instance="another"))
    assert not any(shop.record(node).is_open for node in NODES)
    shop.apply(shop.beat(12))
    assert all(shop.record(node).is_open for node in NODES)
    assert {shop.record(node).as_of_us for node in NODES} == {5_000_000}


def test_a_heartbeat_that_nobody_remembers_opens_nothing(shop: Shop) -> None:
    beat = shop.beat(11)
    shop.written.clear()
    shop.apply(beat)
    assert not any(shop.record(node).is_open for node in NODES)


def test_a_table_floor_is_the_events_own_position(shop: Shop) -> None:
    started_at = shop.now
    shop.apply(customer(11, 1), transaction(12, raised_tables=frozenset(("seats",)), reasons=("TRUNCATE",)))
    for node in NODES:
        assert shop.record(node).table_floors == {"seats": MysqlGtidSet.of(SOURCE, 12)}
    assert shop.record(NODES[0]).progress == up_to(10)
    shop.driver.run(shop.shard.finish())
    assert shop.record(NODES[0]).progress == up_to(12)
    # Acknowledged only when no copy of the record is as old any more that hits trust.
    assert shop.now - started_at >= config().cache.node_refresh_seconds


def test_a_node_that_fails_leaves_and_is_rewound_when_it_is_back(shop: Shop) -> None:
    up, down = NODES
    of_up, of_down = shop.key_of(up), shop.key_of(down)
    shop.put_stripe(of_up)
    shop.put_stripe(of_down)
    shop.stores[down].down = True
    shop.apply(customer(11, of_up), customer(12, of_down))
    assert [member.node for member in shop.shard.joined] == [up]
    assert shop.record(up).progress == up_to(12)
    assert shop.record(down).progress == up_to(10)
    assert shop.stripe(of_down) == empty_position("mysql")
    # Not before its pause is over.
    shop.stores[down].down = False
    shop.join()
    assert [member.node for member in shop.shard.joined] == [up]
    shop.now += REJOIN_MIN_SECONDS
    shop.join()
    assert [member.node for member in shop.shard.joined] == list(NODES)
    # It kept its life: the stream is opened again from what it has acknowledged.
    assert shop.shard.needs_rewind
    start = shop.shard.start_position()
    assert start == up_to(10)
    shop.shard.opened(start)
    item = shop.stores[up].peek(shop.place_of(of_up)[1])
    shop.apply(customer(11, of_up), customer(12, of_down))
    assert not shop.shard.needs_rewind
    assert shop.record(down).progress == up_to(12)
    assert shop.stripe(of_down) == MysqlGtidSet.parse(f"{SOURCE}:11-12")
    assert shop.stores[up].peek(shop.place_of(of_up)[1]) == item, "not sent twice"


def test_a_restarted_node_begins_a_new_life(shop: Shop) -> None:
    node = NODES[0]
    previous = shop.record(node).life
    shop.stores[node].restart()
    shop.apply(customer(11, shop.key_of(node)))
    assert [member.node for member in shop.shard.joined] == [NODES[1]]
    shop.now += REJOIN_MIN_SECONDS
    shop.join()
    assert shop.record(node).life != previous
    assert shop.record(node).floor == up_to(11)
    assert not shop.shard.needs_rewind


def test_the_pause_before_the_next_try_doubles_up_to_its_bound(shop: Shop) -> None:
    shop.stores[NODES[0]].down = True
    shop.apply(customer(11, 1), shop.beat(12))
    pauses = []
    for _ in range(8):
        waited = 0.0
        tries = shop.shard.absences.rejoins[NODES[0]].at
        while shop.shard.absences.rejoins[NODES[0]].at == tries:
            shop.now += 0.1
            waited += 0.1
            shop.join()
        pauses.append(round(waited, 1))
    assert pauses[0] == pytest.approx(REJOIN_MIN_SECONDS, abs=0.11)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(REJOIN_MAX_SECONDS, abs=0.11)
    shop.stores[NODES[0]].down = False
    shop.now += REJOIN_MAX_SECONDS
    shop.join()
    assert len(shop.shard.joined) == 2
    assert shop.shard.absences.rejoins[NODES[0]].pause_seconds == REJOIN_MIN_SECONDS


def test_no_node_is_joined_while_the_primary_cannot_be_asked() -> None:
    shop = Shop(is_primary_down=True)
    shop.join()
    assert shop.shard.start_position() is None
    shop.is_primary_down = False
    shop.now += REJOIN_MIN_SECONDS
    shop.join()
    assert len(shop.shard.joined) == 2


def test_end_lives_begins_anew_everywhere_without_the_previous_history(shop: Shop) -> None:
    shop.apply(customer(11, 1), customer(12, 2))
    lives = {shop.record(node).life for node in NODES}
    shop.head, shop.epoch = 5, 2  # the primary lost transactions
    shop.shard.end_lives()
    assert shop.shard.start_position() is None
    shop.open()
    for node in NODES:
        record = shop.record(node)
        assert record.life not in lives
        assert (record.epoch, record.floor, record.progress) == (2, up_to(5), up_to(5))
    assert shop.shard.epoch == 2
    # Once is enough: the next join goes on with the new life.
    lives = {shop.record(node).life for node in NODES}
    shop.shard.leave_all()
    shop.join()
    assert {shop.record(node).life for node in NODES} == lives


def test_end_lives_behind_spares_those_that_are_ahead(shop: Shop) -> None:
    ahead, behind = NODES
    shop.stores[behind].down = True
    shop.apply(customer(11, shop.key_of(ahead)))
    shop.stores[behind].down = False
    shop.now += REJOIN_MIN_SECONDS
    shop.join()
    lives = {node: shop.record(node).life for node in NODES}
    shop.shard.end_lives_behind()
    assert [member.node for member in shop.shard.joined] == [ahead]
    shop.join()
    assert shop.record(ahead).life == lives[ahead]
    assert shop.record(behind).life != lives[behind]
    assert not shop.shard.needs_rewind
    # If all are equally far, nobody can go on.
    shop.shard.end_lives_behind()
    assert not shop.shard.joined
    shop.join()
    assert all(shop.record(node).life != life for node, life in lives.items())


def test_a_node_that_has_acknowledged_a_raise_keeps_its_lease_while_another_one_waits(shop: Shop) -> None:
    """Readers refresh more slowly than a lease lasts."""
    _, behind = NODES
    for member in shop.shard.members.values():
        member.policy = replace(member.policy, node_refresh_seconds=2.0 * member.policy.lease_seconds)
    raising = transaction(11, raised_tables=frozenset({"customers"}))
    shop.stores[behind].down = True
    shop.apply(raising)
    shop.stores[behind].down = False
    shop.now += REJOIN_MIN_SECONDS
    shop.open()
    assert shop.shard.start_position() == up_to(10)
    tenures = {node: shop.record(node).tenure for node in NODES}
    shop.apply(raising)
    shop.driver.run(shop.shard.finish())
    assert {node: shop.record(node).tenure for node in NODES} == tenures
    assert {node: shop.record(node).progress for node in NODES} == {node: up_to(11) for node in NODES}


def test_a_series_of_raises_keeps_the_nodes_open_with_the_shortest_times_that_are_accepted(shop: Shop) -> None:
    """lease_seconds = 2, max_staleness_seconds = 6, heartbeat_seconds = 0.5: a heartbeat may be 1 s old."""
    for member in shop.shard.members.values():
        member.policy = replace(member.policy, lease_seconds=2, heartbeat_age_max_seconds=1.0)
    shop.apply(shop.beat(11))
    for number in range(12, 52, 2):
        shop.sleep(0.5)
        shop.apply(shop.beat(number), transaction(number + 1, raised_tables=frozenset(("seats",))))
        assert all(shop.record(node).is_open for node in NODES)
        assert shop.now == 1000 + 0.25 * (number - 10), "nobody waited"


def test_a_raised_epoch_in_the_stream_makes_all_look_again(shop: Shop) -> None:
    shop.apply(shop.beat(11))
    lives = {shop.record(node).life for node in NODES}
    shop.epoch = 2
    shop.apply(shop.beat(12, instance="another", epoch=2))
    assert not shop.shard.joined
    shop.join()
    assert len(shop.shard.joined) == 2
    assert not lives & {shop.record(node).life for node in NODES}
    assert {shop.record(node).epoch for node in NODES} == {2}


def test_finish_leaves_the_resume_copies_up_to_date(shop: Shop) -> None:
    shop.apply(customer(11, 1))
    shop.driver.run(shop.shard.finish())
    shop.now += 60  # the leases run out, the copies stay
    again = Shop(now=shop.now, head=shop.head)
    again.stores.update(shop.stores)
    again.driver = BlockingDriver(
        {node: MemoryNode(store) for node, store in shop.stores.items()}, again.sleep, read_head=again.read_head
    )
    for store in shop.stores.values():
        store.clock = lambda: again.now
    again.open()
    assert again.shard.start_position() == up_to(11)
    assert {again.record(node).life for node in NODES} == {
        member.joined_record().life for member in again.shard.joined
    }


def test_leases_are_kept_while_the_stream_is_silent(shop: Shop) -> None:
    shop.apply(shop.beat(11))
    lease = config().cache.lease_seconds
    for number in range(12, 30):
        shop.now += lease / 2
        if number % 2:
            shop.apply(shop.beat(number - 1), shop.beat(number))
        shop.driver.run(shop.shard.renew())
        assert [shop.record(node).lineage for node in NODES] == [LINEAGE, LINEAGE], "none has lapsed"
    assert len(shop.shard.joined) == 2


# -- shards that do not serve --------------------------------------------------------------------------


def test_a_shard_that_serves_no_more_closes_its_records_at_once(shop: Shop) -> None:
    shop.open()
    shop.apply(shop.beat(11))
    assert all(shop.record(node).is_open for node in NODES)
    successor = Shop(stores=shop.stores, is_serving=False)
    successor.now, successor.head = shop.now + 1, shop.head
    successor.open()
    successor.apply(successor.beat(12))
    assert [shop.record(node).is_open for node in NODES] == [False, False]
    assert [shop.record(node).progress.contains(up_to(12)) for node in NODES] == [True, True]


def test_a_shard_that_does_not_serve_yet_is_followed_and_never_open() -> None:
    shop = Shop(is_serving=False)
    shop.open()
    shop.put_stripe(7)
    for number in range(11, 15):
        shop.now += 1
        shop.apply(shop.beat(number), customer(20 + number, 7))
    assert [shop.record(node).is_open for node in NODES] == [False, False]
    assert shop.stripe(7) == MysqlGtidSet.parse(f"{SOURCE}:11-14:31-34")


# -- some of the nodes ---------------------------------------------------------------------------------


def test_a_process_that_looks_after_one_node_leaves_the_others_alone() -> None:
    shop = Shop(mine=NODES[1:])
    shop.open()
    here, there = shop.key_of(NODES[1]), shop.key_of(NODES[0])
    shop.put_stripe(here)
    shop.apply(shop.beat(11), customer(12, here), customer(13, there))
    assert shop.record(NODES[1]).is_open
    assert shop.stripe(here) == MysqlGtidSet.parse(f"{SOURCE}:11-13")
    assert shop.stores[NODES[0]].peek(shop.place_of(there)[1]) is None
    assert shop.stores[NODES[0]].peek(record_key("shop", LINEAGE)) is None


# -- again ---------------------------------------------------------------------------------------------


def reopen(shop: Shop) -> Shop:
    """Another process, on the same nodes, that is to send everything after 12 again."""
    again = Shop(now=shop.now, head=shop.head, stores=shop.stores)
    again.shard.repeat_since(up_to(12))
    return again


def put_entry(shop: Shop, key: int) -> bytes:
    item = b"shop:customer:%d" % key
    MemoryNode(shop.stores[shop.placement.node_for(item)]).perform([Add(item, b"old", 60)])
    return item


def has(shop: Shop, item: bytes) -> bool:
    return shop.stores[shop.placement.node_for(item)].peek(item) is not None


def acknowledge_up_to(shop: Shop, last: int) -> None:
    shop.apply(*(customer(number, number) for number in range(shop.head + 1, last + 1)))
    shop.driver.run(shop.shard.finish())


def test_nodes_are_sent_again_what_they_have_acknowledged(shop: Shop) -> None:
    acknowledge_up_to(shop, 15)
    missed = [put_entry(shop, key) for key in (13, 14, 15)]
    plain = Shop(now=shop.now, head=15, stores=shop.stores)
    plain.open()
    assert plain.shard.start_position() == up_to(15)
    plain.shard.opened(up_to(12))
    plain.apply(customer(13, 13))
    assert has(plain, missed[0]), "by itself nothing is sent twice"

    again = reopen(shop)
    again.open()
    assert again.shard.streamed == up_to(12)
    assert not again.shard.needs_rewind
    raised = transaction(14, raised_tables=frozenset(("seats",)))
    again.apply(customer(13, 13), raised)
    assert [has(again, item) for item in missed] == [False, True, True]
    for node in NODES:
        assert again.record(node).progress == up_to(15), "progress neither shrinks nor is claimed further"
        assert again.record(node).table_floors == {"seats": MysqlGtidSet.of(SOURCE, 14)}
    assert again.shard.is_repeating
    again.apply(customer(15, 15), customer(16, 16))
    assert [has(again, item) for item in missed] == [False, True, False]
    assert (again.shard.is_repeating, again.shard.unrepeated) == (False, set())
    assert again.shard.start_position() == up_to(16)
    assert all(again.record(node).life == shop.record(node).life for node in NODES)


def test_a_node_that_fails_meanwhile_is_sent_everything_again(shop: Shop) -> None:
    acknowledge_up_to(shop, 15)
    again = reopen(shop)
    again.open()
    again.apply(customer(13, 13))
    shop.stores[NODES[0]].down = True
    again.apply(customer(14, 14))
    again.apply(customer(15, 15))
    assert again.shard.unrepeated == {NODES[0]}
    assert again.shard.start_position() == up_to(15), "it waits for nobody"
    shop.stores[NODES[0]].down = False
    again.now += REJOIN_MAX_SECONDS
    again.join()
    assert again.shard.needs_rewind
    assert again.shard.start_position() == up_to(12)


def test_a_time_behind_the_progress_leaves_no_gap(shop: Shop) -> None:
    acknowledge_up_to(shop, 11)
    again = reopen(shop)
    again.open()
    assert again.shard.streamed == up_to(11)


def test_a_log_that_is_gone_ends_no_life_while_it_is_to_be_sent_again(shop: Shop) -> None:
    acknowledge_up_to(shop, 15)
    lives = [shop.record(node).life for node in NODES]
    again = reopen(shop)

    def answer(step: LoopStep) -> Any:
        if isinstance(step, OpenStream):
            assert step.start == up_to(12)
            raise HistoryPurged("the log is gone")
        assert not isinstance(step, Poll | RaiseEpoch), "nothing is streamed"
        return again.driver.answer(step)

    loop = run_loop(again.shard, transactions_max=9, is_stopping=lambda: False, observer=LoopObserver())
    with pytest.raises(HistoryPurged):
        drive(loop, answer)
    again.join()
    assert [again.record(node).life for node in NODES] == lives


# -- rows of the log -------------------------------------------------------------------------------------


def logged(key: int, payload: str) -> dict[bytes, LoggedRow]:
    item = b"shop:customer:%d" % key
    policy = REGISTRY["customer"].policy
    return {item: LoggedRow(Lookup(policy, "", item, b"%d" % key, (key,)), payload.encode())}


def rows_after(*transactions: tuple[Transaction, dict[bytes, LoggedRow]]) -> dict[bytes, bytes | None]:
    """The payloads that a batch may store, by item."""
    told = {id(each): rows for each, rows in transactions}
    invalidator = ShardInvalidator(
        members=create_members(
            NODES,
            node_policy(config().cache, LINEAGE, REGISTRY, topology=1),
            lambda: 0.0,
            lambda: b"NONCE..!",
            MysqlGtidSet(),
        ),
        instance="me",
        clock=lambda: 0.0,
        find_heartbeat=lambda _: None,
        find_rows=lambda each: told[id(each)],
        streamed=MysqlGtidSet(),
        placement=Placement(NODES, "shop"),
        finder=KeyFinder(REGISTRY),
    )
    driver = BlockingDriver({}, lambda _: None)
    _, _, rows = driver.run(invalidator._collect([each for each, _ in transactions]))
    return {item: row.payload for item, row in rows.items()}


def test_the_last_row_of_a_batch_counts() -> None:
    rows = rows_after(
        (customer(1, 5), logged(5, "a")), (customer(2, 6), logged(6, "b")), (customer(3, 5), logged(5, "c"))
    )
    assert rows == {b"shop:customer:5": b"c", b"shop:customer:6": b"b"}


def test_a_later_change_without_a_row_leaves_none() -> None:
    assert rows_after((customer(1, 5), logged(5, "a")), (customer(2, 5), {})) == {}
    keyed = transaction(2, items=(b"shop:customer:5",))
    assert rows_after((customer(1, 5), logged(5, "a")), (keyed, {})) == {}


def test_a_raise_leaves_no_row_of_before_and_those_of_after() -> None:
    raised = transaction(2, raised_tables=frozenset({"customers"}))
    rows = rows_after(
        (customer(1, 5), logged(5, "a")), (raised, logged(6, "of the same")), (customer(3, 7), logged(7, "c"))
    )
    assert rows == {b"shop:customer:7": b"c"}
    unreadable = transaction(2, change("seats", "insert", None, {"hall": UNREADABLE, "seat": b"1"}))
    assert rows_after((customer(1, 5), logged(5, "a")), (unreadable, {})) == {}


def test_a_large_transaction_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes too long, and no reader waits for all of these."""
    monkeypatch.setattr(shard_module, "ROWS_AT_ONCE_MAX", 1)
    changes = [change("customers", "insert", None, {"id": key, "v": 1}) for key in (5, 6)]
    large = transaction(1, *changes)
    assert rows_after((large, logged(5, "a") | logged(6, "b")), (customer(2, 6), logged(6, "c"))) == {
        b"shop:customer:6": b"c"
    }


@pytest.mark.parametrize("part", [{"is_last": False}, {"first_row": 1}])
def test_a_piece_of_a_transaction_has_no_rows(part: dict[str, Any]) -> None:
    piece = transaction(2, change("customers", "insert", None, {"id": 5, "v": 1}), **part)
    assert rows_after((customer(1, 5), logged(5, "a")), (piece, logged(5, "b"))) == {}
