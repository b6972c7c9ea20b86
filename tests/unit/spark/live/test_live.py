"""The live audit without Spark: which keys, which entries are hits, and what a difference proves."""

from __future__ import annotations

import io
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from freshness.algorithm.envelope import (
    STUB,
    Coverage,
    Filled,
    NodeRecord,
    Stamp,
    decode_wanted,
    record_key,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.request import Add, Delete, Get, Item, Reply, Request, Stored
from freshness.algorithm.rule import ObjectPolicy
from freshness.config.reader import load_config
from freshness.config.settings import ObjectConfig, ServerAddress
from freshness.errors import ConfigError, FormatError, NodeUnavailable, NodeUnsuitable, SourceUnavailable
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.keyrange import KeyRange
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.registry import ObjectDefinition, ShardFinder
from freshness.position import Position, parse_position
from freshness.values.codec import encode_value
from spark.live import comparison, entry
from spark.live.comparison import Comparison, EntryVerdict
from spark.live.entry import NodeEntry, find_key_values, read_batch
from spark.live.metadump import BUSY_RETRIES_MAX, find_entry_key, open_entry_keys
from spark.live.repair import Condemned, Repair, repair
from spark.live.report import (
    EXAMPLES_MAX,
    AuditSummary,
    Example,
    condense,
    find_condemned,
    print_summary,
)
from spark.scope import AuditScope, PrimaryAddress, load_scope

CHECKOUT: Final = Path(__file__).resolve().parents[4]
NODE: Final = "127.0.0.1:11211"
LINEAGE: Final = "shop/-"
LIFE: Final = b"LIFELIFE"
RING: Final = 7


def at(sequence: int) -> Position:
    return parse_position("mariadb", f"0-1-{sequence}")


def define(name: str, *columns: KeyColumn, table: str | None = "customers") -> ObjectDefinition:
    members = {} if table else {"customers": tuple(column.name for column in columns)}
    return ObjectDefinition(
        ObjectConfig(
            name=name, keyspace="shop", table=table, key=members.get("customers", ()), members=members
        ),
        ObjectPolicy(name, 5, ("customers",), (LINEAGE,), 60),
        KeyBuilder("shop", name, columns),
        {"customers": columns},
    )


ID: Final = KeyColumn("id", ColumnKind.INTEGER)
CUSTOMER: Final = define("customer", ID)
PROFILE: Final = define("profile", ID, table=None)
SCOPE: Final = AuditScope(
    "shop",
    (NODE,),
    RING,
    (LINEAGE,),
    {"customer": CUSTOMER, "profile": PROFILE},
    {LINEAGE: PrimaryAddress(ServerAddress("127.0.0.1", password="secret"), "mariadb")},
)


def test_nodes_that_want_a_login_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    text = (CHECKOUT / "README.md").read_text().partition("```toml\n")[2].partition("```")[0]
    path.write_text(text.replace("[cache]\n", "[cache]\ntls = true\n"))
    with pytest.raises(ConfigError, match="without TLS and without a login"):
        load_scope(load_config(path, {"SHOP_PASSWORD": "x"}))


# -- the dump --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"key=shop%3Acustomer%3A1 exp=0 la=1 cas=2 fetch=no cls=1 size=9", b"shop:customer:1"),
        (b"key=shop%3Acustomer%3A%2541 exp=-1", b"shop:customer:%41"),
        (b"key=shop%3A%21shop/- exp=0", None),
        (b"key=shop%3A!shop%2F-!1f exp=-1", None),
        (b"key=shop%3A%21shop%2F-%21wanted exp=0", None),
        (b"key=shop%3A!shop%2F-!resume exp=0", None),
        (b"key=other%3Acustomer%3A1 exp=0", None),
        (b"key=shopping%3A1 exp=0", None),
        (b"key=shop%3Aa%0Ab exp=0", None),
    ],
)
def test_the_keys_of_entries_are_found_in_the_dump(line: bytes, key: bytes | None) -> None:
    assert find_entry_key(line, NODE, "shop") == key


def test_a_node_that_does_not_dump_is_told() -> None:
    with pytest.raises(NodeUnsuitable, match="lru crawler disabled"):
        find_entry_key(b"CLIENT_ERROR lru crawler disabled", NODE, "shop")


@contextmanager
def dumping(answers: Sequence[bytes]) -> Iterator[str]:
    """A server that gives one answer for each connection, the last one for ever, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = list(answers)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # the test is over
                with connection:
                    connection.recv(1000)
                    connection.sendall(left.pop(0) if len(left) > 1 else left[0])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


WHOLE: Final = b"key=shop%3Ac%3A1 exp=0\nkey=shop%3Ac%3A2 exp=0\r\nEND\r\n"


@pytest.mark.parametrize(
    ("answers", "keys", "waits"),
    [
        ([WHOLE], [b"shop:c:1", b"shop:c:2"], 0),
        ([b"END\r\n"], [], 0),
        ([b"NOTSTARTED no items to crawl\r\n"], [], 0),
        ([b"BUSY currently processing crawler request\r\n", WHOLE], [b"shop:c:1", b"shop:c:2"], 1),
    ],
)
def test_a_dump_is_read(answers: list[bytes], keys: list[bytes], waits: int) -> None:
    slept: list[float] = []
    with dumping(answers) as node, open_entry_keys(node, "shop", slept.append) as found:
        assert list(found) == keys
    assert len(slept) == waits


@pytest.mark.parametrize(
    ("answer", "message"), [(b"key=shop%3Ac%3A1 exp=0\n", "before END"), (b"BUSY x\r\n", "was busy")]
)
def test_a_dump_that_is_cut_or_never_given_is_no_empty_one(answer: bytes, message: str) -> None:
    slept: list[float] = []
    with (
        dumping([answer]) as node,
        pytest.raises(NodeUnavailable, match=message),
        open_entry_keys(node, "shop", slept.append),
    ):
        pass
    assert len(slept) in (0, BUSY_RETRIES_MAX)


# -- a cache and a primary -------------------------------------------------------------------------------


class World:
    """A node and a primary in memory. Each wait of the comparison runs the next of ``while_waiting``."""

    def __init__(self) -> None:
        self.store = MemoryStore(NODE, clock=lambda: 1000.0)
        self.node = MemoryNode(self.store)
        self.rows: dict[int, dict[str, Any]] = {1: {"id": 1, "v": "new"}}
        self.head = at(10)
        self.is_down = False
        self.replicas: dict[str, ShardPrimary] = {}
        self.while_waiting: list[Callable[[], None]] = []
        self.waits = 0
        self.record(10)

    def record(self, progress: int, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "lineage": LINEAGE,
            "life": LIFE,
            "tenure": b"TENURE..",
            "is_open": True,
            "epoch": 1,
            "ring": RING,
            "as_of_us": 0,
            "heartbeat_age_ms": 0,
            "node": NODE,
            "stripes": 64,
            "progress": at(progress),
            "floor": at(1),
            "objects": {"customer": Coverage(5, at(1))},
        }
        record = NodeRecord(**{**fields, **changes})
        self.put(record_key("shop", record.lineage), record.encode())

    def put(self, item: bytes, data: bytes) -> None:
        replies = self.node.perform([Delete(item), Add(item, data, 60)])
        assert isinstance(replies[1], Stored)

    def fill(self, value: Any, *, name: str = "customer", key: int = 1, **changes: Any) -> None:
        stamp = replace(Stamp(LINEAGE, LIFE, 1, at(5)), **changes)
        identity = (5).to_bytes(4, "big") + str(key).encode()
        filled = Filled((stamp,), identity, None if value is None else encode_value(value))
        self.put(f"shop:{name}:{key}".encode(), filled.encode())

    def read(self, *items: str) -> list[NodeEntry]:
        names = items or ("shop:customer:1",)
        return list(read_batch(SCOPE, self.node, [name.encode() for name in names]))

    def compare(self) -> EntryVerdict:
        [verdict] = self.compare_all(self.read())
        return verdict

    def compare_all(self, *batches: list[NodeEntry]) -> list[EntryVerdict]:
        comparison = Comparison(
            SCOPE, lambda _: self.node, lambda _: self, self._wait, find_replicas=lambda _: self.replicas
        )
        return list(comparison.compare(batches))

    def condemn(self) -> Condemned:
        """The poisoned entry of the first key."""
        [condemned] = find_condemned([self.compare()])
        return condemned

    def repair(self, condemned: Condemned) -> Repair:
        return repair(SCOPE, lambda _: self.node, condemned)

    def _wait(self, _: float) -> None:
        self.waits += 1
        if self.while_waiting:
            self.while_waiting.pop(0)()

    def read_rows(
        self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]
    ) -> dict[bytes, dict[str, Any]]:
        if self.is_down:
            raise SourceUnavailable("the primary is down", hint="start it")
        build = definition.builder.build
        return {definition.identity(build(key)): self.rows[key[0]] for key in keys if key[0] in self.rows}

    def read_position(self) -> Position:
        return self.head


@pytest.fixture
def world() -> World:
    return World()


OLD: Final = {"id": 1, "v": "old"}


# -- which entries are hits ------------------------------------------------------------------------------


def test_an_entry_of_this_life_is_live(world: World) -> None:
    world.fill(OLD)
    [found] = world.read()
    assert (found.state, found.object, found.node) == ("live", "customer", NODE)
    assert found.positions == f"{LINEAGE} epoch 1: 0-1-5"
    assert found.value == encode_value(OLD)


def test_why_an_entry_is_no_hit(world: World) -> None:
    world.fill(OLD, life=b"FORMER..")
    assert world.read()[0].state == "dead"
    world.fill(OLD)
    world.record(10, table_floors={"customers": at(6)})
    assert world.read()[0].state == "table_floor"
    for change in ({"is_open": False}, {"ring": RING + 1}, {"node": "another:11211"}):
        world.record(10, **change)
        assert world.read()[0].state == entry.UNTRUSTED
    world.node.perform([Delete(record_key("shop", LINEAGE))])
    [found] = world.read()
    assert found.state == entry.UNTRUSTED
    assert "invalidator status" in found.error


def test_an_entry_under_the_key_of_another_is_no_hit(world: World) -> None:
    filled = Filled((Stamp(LINEAGE, LIFE, 1, at(5)),), b"\0\0\0\x052", encode_value(OLD))
    world.put(b"shop:customer:1", filled.encode())
    assert world.read()[0].state == "identity"


def test_what_is_not_ours_is_no_hit(world: World) -> None:
    world.put(b"shop:customer:1", b"text")
    world.put(b"shop:customer:2", STUB)
    world.put(b"shop:gone:1", b"text")
    states = [
        one.state
        for one in world.read("shop:customer:1", "shop:customer:2", "shop:gone:1", "shop:customer:3")
    ]
    assert states == [entry.FOREIGN, entry.STUBBED, entry.UNCONFIGURED]


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [
        (ID, -7, -7),
        (KeyColumn("k", ColumnKind.STRING, "utf8mb4_bin"), "a:ü~! %41", "a:ü~! %41"),
        (KeyColumn("k", ColumnKind.STRING, "utf8mb4_general_ci"), "AbC  ", "abc"),
        (KeyColumn("k", ColumnKind.BINARY, length=3), b"a\0b", b"a\0b"),
        (KeyColumn("k", ColumnKind.DECIMAL), Decimal("1.50"), Decimal("1.5")),
        (KeyColumn("k", ColumnKind.DATE), "2026-01-31", date(2026, 1, 31)),
        (KeyColumn("k", ColumnKind.DATE), "2026-00-31", "2026-00-31"),
        (
            KeyColumn("k", ColumnKind.DATETIME),
            "2026-01-31 10:00:00.50",
            datetime(2026, 1, 31, 10, 0, 0, 500_000),  # noqa: DTZ001
        ),
    ],
)
def test_an_identity_is_read_back_as_the_key(column: KeyColumn, value: Any, found: Any) -> None:
    definition = define("thing", ID, column)
    key = definition.builder.build((3, value))
    values = find_key_values(definition, definition.identity(key))
    assert values == (3, found)
    assert definition.builder.build((3, found)) == key


@pytest.mark.parametrize(
    "identity", [b"", b"\0\0\0\x05", b"\0\0\0\x05x", b"\0\0\0\x051:2", b"\0\0\0\x061", b"\0\0\0\x05\xff"]
)
def test_an_identity_that_is_no_key_is_none(identity: bytes) -> None:
    assert find_key_values(CUSTOMER, identity) is None


# -- what a difference proves ----------------------------------------------------------------------------


def test_the_row_of_the_primary_is_equal(world: World) -> None:
    world.fill(world.rows[1])
    assert world.compare().verdict == comparison.EQUAL
    assert world.waits == 0


def test_no_row_equals_no_row(world: World) -> None:
    world.rows.clear()
    world.fill(None)
    assert world.compare().verdict == comparison.EQUAL


@pytest.mark.parametrize(("value", "shown"), [(OLD, "'old'"), (None, "no such row")])
def test_a_difference_that_outlives_the_acknowledged_head_is_poisoned(
    world: World, value: Any, shown: str
) -> None:
    world.fill(value)
    verdict = world.compare()
    assert verdict.verdict == comparison.POISONED
    assert world.waits == comparison.RECHECKS_TO_CONDEMN
    assert shown in verdict.cached
    assert "'new'" in verdict.primary


KEY: Final = b"shop:customer:1"
GONE: Final = Repair(NODE, is_gone=True)


def test_what_is_poisoned_is_removed_by_cas(world: World) -> None:
    world.fill(OLD)
    condemned = world.condemn()
    assert world.store.peek(KEY) is not None
    assert world.repair(condemned) == GONE
    assert world.store.peek(KEY) is None


def test_a_task_that_is_started_again_says_what_the_first_one_said(world: World) -> None:
    """Also where somebody has stored the row meanwhile."""
    world.fill(OLD)
    condemned = world.condemn()
    assert world.repair(condemned) == world.repair(condemned) == GONE
    world.fill(world.rows[1])
    assert world.repair(condemned) == GONE
    assert world.store.peek(KEY) is not None


def test_what_took_the_place_of_poison_is_not_removed(world: World) -> None:
    world.fill(OLD)
    condemned = world.condemn()
    world.fill({"id": 1, "v": "new"})
    assert world.repair(condemned) == GONE
    assert world.store.peek(KEY) is not None


class MeddledNode(MemoryNode):
    """Somebody stores a value just before a deletion arrives, or just after."""

    def __init__(self, world: World, value: Any, *, is_before: bool = True) -> None:
        super().__init__(world.store)
        self._world, self._value, self._is_before = world, value, is_before

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        is_removal = any(isinstance(each, Delete) for each in requests)
        if is_removal and self._is_before:
            self._world.fill(self._value)
        replies = super().perform(requests)
        if is_removal and not self._is_before:
            self._world.fill(self._value)
        return replies


def test_what_takes_the_place_of_poison_just_before_it_is_removed_stays(world: World) -> None:
    world.fill(OLD)
    node = MeddledNode(world, {"id": 1, "v": "new"})
    assert repair(SCOPE, lambda _: node, world.condemn()) == GONE
    [now] = world.read()
    assert (now.state, now.value) == (entry.LIVE, encode_value({"id": 1, "v": "new"}))


@pytest.mark.parametrize("is_before", [True, False])
def test_poison_that_is_written_again_while_it_is_removed_is_told(world: World, is_before: bool) -> None:
    world.fill(OLD)
    node = MeddledNode(world, OLD, is_before=is_before)
    outcome = repair(SCOPE, lambda _: node, world.condemn())
    assert not outcome.is_gone
    assert "written again" in outcome.error


def test_a_node_that_does_not_answer_is_not_repaired(world: World) -> None:
    world.fill(OLD)
    condemned = world.condemn()

    def refuse(_: str) -> MemoryNode:
        raise NodeUnavailable("the node is down", hint="start it")

    outcome = repair(SCOPE, refuse, condemned)
    assert (outcome.is_gone, "the node is down" in outcome.error) == (False, True)


NUMBER: Final = stripe_number(b"shop:customer:1", 64)


def test_a_repair_takes_the_stripe_with_it_so_that_no_late_replica_fills_again(world: World) -> None:
    """A value of a replica that is late lacks what the stripe will hold when it is back."""
    stripe, other = (stripe_key("shop", LINEAGE, number) for number in (NUMBER, NUMBER + 1))
    world.put(stripe, b"held")
    world.put(other, b"held")
    world.node.perform([Get(wanted_key("shop", LINEAGE), 60)])  # a restorer looks, and leaves the list
    world.fill(OLD)
    assert world.repair(world.condemn()).is_gone
    assert world.store.peek(stripe) is None
    assert world.store.peek(other) is not None
    [wanted] = world.node.perform([Get(wanted_key("shop", LINEAGE))])
    assert isinstance(wanted, Item)
    assert decode_wanted(wanted.value) == [NUMBER]


def test_without_a_record_nothing_is_repaired(world: World) -> None:
    """Nobody knows then which stripe it is, and an entry alone would come back."""
    world.fill(OLD)
    condemned = world.condemn()
    world.node.perform([Delete(record_key("shop", LINEAGE))])
    outcome = world.repair(condemned)
    assert (outcome.is_gone, "invalidator status" in outcome.error) == (False, True)
    assert world.store.peek(KEY) is not None


def test_a_replica_that_has_the_old_row_is_named(world: World) -> None:
    world.replicas = {"app@r1:1/shop": ShardPrimary(world.rows[1]), "app@r2:1/shop": ShardPrimary(OLD)}
    world.fill(OLD)
    assert world.compare().error == (
        "a replica has the old row too: app@r2:1/shop; one that stays so must be built again"
    )
    world.replicas["app@r1:1/shop"].is_down = True
    assert "perhaps app@r1:1/shop (this shard is down), app@r2:1/shop" in world.compare().error
    world.replicas = {"app@r1:1/shop": ShardPrimary(world.rows[1])}
    assert world.compare().error == ""


def test_a_replica_without_the_row_is_named_where_no_row_is_cached(world: World) -> None:
    world.replicas = {"app@r1:1/shop": ShardPrimary()}
    world.fill(None)
    assert "app@r1:1/shop" in world.compare().error


def test_a_value_of_a_row_that_is_gone_is_poisoned(world: World) -> None:
    world.fill(OLD)
    world.rows.clear()
    assert world.compare().verdict == comparison.POISONED


def test_the_batches_of_a_partition_wait_together(world: World) -> None:
    world.rows = {key: {"id": key, "v": "new"} for key in range(1, 7)}
    for key in world.rows:
        world.fill({"id": key, "v": "old"} if key % 2 else world.rows[key], key=key)
    batches = [world.read(f"shop:customer:{key}") for key in world.rows]
    verdicts = {each.item: each.verdict for each in world.compare_all(*batches)}
    assert sorted(verdicts.values()) == [comparison.EQUAL] * 3 + [comparison.POISONED] * 3
    assert world.waits == comparison.RECHECKS_TO_CONDEMN


def test_the_number_of_those_that_wait_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SUSPECTS_MAX", 2)
    for key in range(1, 6):
        world.fill({"id": key, "v": "old"}, key=key)
    batches = [world.read(f"shop:customer:{key}") for key in range(1, 6)]
    verdicts = [each.verdict for each in world.compare_all(*batches)]
    assert verdicts == [comparison.POISONED] * 5
    assert world.waits == 3 * comparison.RECHECKS_TO_CONDEMN


def test_a_primary_that_is_gone_at_the_second_look_leaves_its_entries_unknown(world: World) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: setattr(world, "is_down", True)]
    verdict = world.compare()
    assert (verdict.verdict, verdict.cached) == (comparison.UNKNOWN, "")
    assert "the primary is down" in verdict.error


def test_one_look_does_not_condemn(world: World) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: None, lambda: world.put(b"shop:customer:1", STUB)]
    assert world.compare().verdict == comparison.IN_FLIGHT


def _forget(world: World) -> None:
    world.node.perform([Delete(b"shop:customer:1")])


@pytest.mark.parametrize(
    "change",
    [
        _forget,
        lambda world: world.fill(OLD, position=at(6)),
        lambda world: world.fill({"id": 1, "v": "new"}),
        lambda world: world.rows.update({1: OLD}),
        lambda world: world.record(11, life=b"ANOTHER."),
        lambda world: world.record(11, table_floors={"customers": at(11)}),
    ],
)
def test_what_goes_or_changes_was_in_flight(world: World, change: Callable[[World], None]) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: change(world)]
    assert world.compare().verdict == comparison.IN_FLIGHT


def test_without_the_head_acknowledged_it_is_unknown(world: World) -> None:
    world.fill(OLD)
    world.head = at(11)
    verdict = world.compare()
    assert verdict.verdict == comparison.UNKNOWN
    assert "0-1-11" in verdict.error
    assert world.waits == comparison.RECHECKS_MAX


def test_an_acknowledgement_that_comes_late_condemns_only_after_it(world: World) -> None:
    world.fill(OLD)
    world.head = at(11)
    world.while_waiting = [lambda: None, lambda: None, lambda: world.record(11)]
    assert world.compare().verdict == comparison.POISONED
    assert world.waits == 4


def test_a_node_that_closes_meanwhile_proves_nothing(world: World) -> None:
    world.fill(OLD)
    world.while_waiting = [lambda: world.record(11, is_open=False)]
    assert world.compare().verdict == comparison.UNKNOWN


def test_silence_is_unknown(world: World) -> None:
    world.fill(OLD)
    entries = world.read()
    world.is_down = True
    [verdict] = world.compare_all(entries)
    assert (verdict.verdict, verdict.error) == (comparison.UNKNOWN, "the primary is down (start it)")
    world.is_down = False
    world.store.down = True
    [verdict] = world.compare_all(entries)
    assert verdict.verdict == comparison.UNKNOWN
    assert NODE in verdict.error


def test_what_is_not_compared_says_why(world: World) -> None:
    world.fill(OLD, name="profile")
    world.fill(OLD, life=b"FORMER..")
    entries = world.read("shop:customer:1", "shop:profile:1")
    world.record(10, is_open=False)
    entries += world.read("shop:profile:1")
    entries.append(NodeEntry(NODE, None, "", b"", entry.UNAVAILABLE, error="silent"))
    verdicts = {(one.object, one.state): one.verdict for one in world.compare_all(entries)}
    assert verdicts == {
        ("customer", "dead"): comparison.NOT_SERVED,
        ("profile", "live"): comparison.NOT_COMPARABLE,
        ("profile", entry.UNTRUSTED): comparison.UNKNOWN,
        ("", entry.UNAVAILABLE): comparison.UNKNOWN,
    }


# -- several shards --------------------------------------------------------------------------------------

SHARDS: Final = {"shop/-80": KeyRange.parse("-80"), "shop/80-": KeyRange.parse("80-")}
LOW, HIGH = SHARDS


class ShardPrimary:
    """Rows of one shard by key; ``asked``: the keys that it was asked for."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = {row["id"]: row for row in rows}
        self.head = at(10)
        self.asked: set[Any] = set()
        self.is_down = False

    def read_rows(
        self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]
    ) -> dict[bytes, dict[str, Any]]:
        if self.is_down:
            raise SourceUnavailable("this shard is down", hint="start it")
        self.asked.update(key[0] for key in keys)
        build = definition.builder.build
        return {definition.identity(build(key)): self.rows[key[0]] for key in keys if key[0] in self.rows}

    def read_position(self) -> Position:
        return self.head


class ShardedWorld(World):
    """Keys below 128 live in the first shard. ``thing``: its key does not tell its shard."""

    def __init__(self, column: KeyColumn = ID, function: str = "numeric") -> None:
        super().__init__()
        policy = ObjectPolicy("customer", 5, ("customers",), tuple(SHARDS), 60)
        own = tuple((held, replace(policy, lineages=(name,))) for name, held in SHARDS.items())

        def keyspace_id(_: str, value: object) -> bytes:
            return bytes((value if isinstance(value, int) else ord(str(value)[0]),))

        customer = replace(
            define("customer", column),
            policy=policy,
            shards=ShardFinder(0, column, function, own, keyspace_id),
        )
        thing = replace(define("thing", ID), policy=replace(policy, name="thing"))
        self.scope = replace(
            SCOPE,
            lineages=tuple(SHARDS),
            definitions={"customer": customer, "thing": thing},
            primaries=dict.fromkeys(SHARDS, SCOPE.primaries[LINEAGE]),
        )
        self.primaries = {
            LOW: ShardPrimary({"id": 1, "v": "new"}),
            HIGH: ShardPrimary({"id": 200, "v": "new"}),
        }

    def record(self, progress: int, **changes: Any) -> None:
        for name in SHARDS:
            super().record(progress, **{"lineage": name, **changes})

    def keep(self, value: Any, *lineages: str, name: str = "customer", key: Any = 200) -> None:
        stamps = tuple(Stamp(lineage, LIFE, 1, at(5)) for lineage in lineages)
        identity = (5).to_bytes(4, "big") + str(key).lower().encode()
        filled = Filled(stamps, identity, None if value is None else encode_value(value))
        self.put(f"shop:{name}:{str(key).lower()}".encode(), filled.encode())

    def judge(self, *items: str) -> list[EntryVerdict]:
        names = items or ("shop:customer:200",)
        entries = list(read_batch(self.scope, self.node, [name.encode() for name in names]))
        found = Comparison(self.scope, lambda _: self.node, self.primaries.__getitem__, self._wait)
        return list(found.compare([entries]))


def test_each_key_is_compared_with_the_shard_that_holds_it() -> None:
    world = ShardedWorld()
    world.primaries[LOW].rows[200] = {"id": 200, "v": "left over from a reshard"}
    world.keep({"id": 200, "v": "new"}, HIGH)
    world.keep({"id": 1, "v": "new"}, LOW, key=1)
    verdicts = world.judge("shop:customer:200", "shop:customer:1")
    assert [each.verdict for each in verdicts] == [comparison.EQUAL] * 2
    assert (world.primaries[LOW].asked, world.primaries[HIGH].asked) == ({1}, {200})


def test_poison_of_the_second_shard_is_found_by_its_own_head() -> None:
    world = ShardedWorld()
    world.primaries[LOW].head = at(99)  # which nobody has acknowledged, and which is not asked for
    world.keep({"id": 200, "v": "old"}, HIGH)
    [verdict] = world.judge()
    assert verdict.verdict == comparison.POISONED
    assert verdict.lineages == (HIGH,)
    world.primaries[HIGH].head = at(11)
    [verdict] = world.judge()
    assert verdict.verdict == comparison.UNKNOWN
    assert f"{HIGH}: 0-1-11" in verdict.error


def test_an_entry_that_was_read_from_another_shard_is_served_to_nobody() -> None:
    world = ShardedWorld()
    world.keep({"id": 200, "v": "old"}, LOW)
    [verdict] = world.judge()
    assert (verdict.state, verdict.verdict) == ("dead", comparison.NOT_SERVED)


def test_a_key_without_a_shard_is_served_to_nobody() -> None:
    world = ShardedWorld()
    finder = world.scope.definitions["customer"].shards
    assert finder is not None

    def refuse(function: str, value: object) -> bytes:
        raise FormatError("no keyspace id", hint="none")

    refusing = replace(world.scope.definitions["customer"], shards=replace(finder, keyspace_id=refuse))
    world.scope = replace(world.scope, definitions={"customer": refusing})
    world.keep({"id": 200, "v": "old"}, HIGH)
    [verdict] = world.judge()
    assert (verdict.state, verdict.verdict) == ("identity", comparison.NOT_SERVED)


def test_a_text_is_compared_with_the_shard_that_it_was_read_from() -> None:
    """The identity says "a", and the row may be that of "A", which has another keyspace id."""
    world = ShardedWorld(KeyColumn("id", ColumnKind.STRING, "utf8mb4_general_ci"))
    world.primaries[HIGH].rows["a"] = {"id": "A", "v": "new"}
    world.keep({"id": "A", "v": "new"}, HIGH, key="a")
    [verdict] = world.judge("shop:customer:a")
    assert (verdict.state, verdict.verdict) == ("live", comparison.EQUAL)
    assert world.primaries[LOW].asked == set()


def test_a_key_that_does_not_tell_its_shard_is_looked_for_in_all() -> None:
    world = ShardedWorld()
    for value, verdict in (({"id": 200, "v": "new"}, comparison.EQUAL), (None, comparison.POISONED)):
        world.keep(value, LOW, HIGH, name="thing")
        [found] = world.judge("shop:thing:200")
        assert found.verdict == verdict
    world.primaries[LOW].head = at(11)
    [found] = world.judge("shop:thing:200")
    assert found.verdict == comparison.UNKNOWN
    assert f"{LOW}: 0-1-11" in found.error


def test_a_row_that_is_in_two_shards_proves_nothing() -> None:
    world = ShardedWorld()
    world.primaries[LOW].rows[200] = {"id": 200, "v": "old"}
    world.keep({"id": 200, "v": "old"}, LOW, HIGH, name="thing")
    [verdict] = world.judge("shop:thing:200")
    assert verdict.verdict == comparison.UNKNOWN
    assert "several of the shards" in verdict.error


def test_one_silent_shard_makes_its_own_entries_unknown() -> None:
    world = ShardedWorld()
    world.keep({"id": 200, "v": "new"}, HIGH)
    world.keep({"id": 1, "v": "new"}, LOW, key=1)
    world.primaries[LOW].is_down = True
    verdicts = {each.item: each.verdict for each in world.judge("shop:customer:200", "shop:customer:1")}
    assert verdicts == {b"shop:customer:200": comparison.EQUAL, b"shop:customer:1": comparison.UNKNOWN}


# -- the result ------------------------------------------------------------------------------------------

CLEAN: Final = AuditSummary(1, 3, 2, 2, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"in_flight": 1}, 0),
        ({"live": 0, "compared": 0}, 0),
        ({"poisoned": 1, "unknown": 1, "unavailable": ("x",)}, 5),
        ({"unknown": 1}, 3),
        ({"unavailable": ("x",)}, 3),
        ({"compared": 0, "not_comparable": 2}, 3),
        ({"compared": 0, "in_flight": 2}, 3),
        ({"compared": 0, "in_flight": 1, "not_comparable": 1}, 3),
    ],
)
def test_the_exit_code(changes: dict[str, Any], code: int) -> None:
    assert replace(CLEAN, **changes).exit_code == code


def test_entries_in_flight_are_not_compared() -> None:
    """Each of them differed, and then changed: nothing was seen to be right."""
    counts = [
        counted("live", comparison.IN_FLIGHT, 34),
        counted("dead", comparison.NOT_SERVED, 2),
        replace(counted(entry.UNAVAILABLE, comparison.UNKNOWN, 1), error="silent"),
    ]
    summary = AuditSummary.of(2, counts)
    assert (summary.entries, summary.live, summary.compared, summary.in_flight) == (36, 34, 0, 34)
    assert (summary.unavailable, summary.exit_code) == (("silent",), 3)
    counts = [*counts[:2], counted("live", comparison.EQUAL, 1)]
    assert AuditSummary.of(2, counts).exit_code == 0


def counted(state: str, verdict: str, count: int) -> EntryVerdict:
    return EntryVerdict("", None, "", state, verdict, count=count)


def of_entry(number: int, verdict: str, **cells: Any) -> EntryVerdict:
    item = f"shop:customer:{number:03}".encode()
    return EntryVerdict(NODE, item, "customer", entry.LIVE, verdict, entry_digest=str(number), **cells)


def test_the_verdicts_of_a_task_become_few_rows() -> None:
    poisoned = [of_entry(number, comparison.POISONED, cached="old") for number in range(100)]
    silent = [of_entry(number, comparison.UNKNOWN, error="silent") for number in range(100, 200)]
    equal = [of_entry(number, comparison.EQUAL) for number in range(200, 300)]
    away = EntryVerdict(NODE, None, "", entry.UNAVAILABLE, comparison.UNKNOWN, error="away")
    rows = list(condense([*equal, *silent, *poisoned, away], 50))
    assert len(rows) == 20 + 50 + 1 + 3
    assert [each.item for each in find_condemned(rows)] == [each.item for each in poisoned[:50]]
    summary = AuditSummary.of(1, rows + rows)
    assert (summary.entries, summary.compared, summary.poisoned, summary.unknown) == (600, 400, 200, 200)
    assert summary.unavailable == ("away", "silent")
    assert {each.cached for each in summary.examples} == {"old"}
    assert len(list(condense(poisoned, 0))) == EXAMPLES_MAX + 1


def test_a_repair_that_was_not_made_is_told() -> None:
    summary = replace(CLEAN, poisoned=9).with_repairs({(True, ""): 5, (False, "node [x] is down"): 3})
    assert (summary.repaired, summary.exit_code) == (5, 5)
    assert [reason.split(":")[0] for reason in summary.not_repaired] == ["1", "3"]
    shown = io.StringIO()
    print_summary(summary, Console(width=160, file=shown))
    assert "not repaired: 3: node [x] is down" in shown.getvalue()
    assert replace(CLEAN, poisoned=5).with_repairs({(True, ""): 5}).not_repaired == ()


@pytest.mark.parametrize(
    ("changes", "conclusion"),
    [
        ({}, "2 of 2 live entries were compared, and all are equal to their rows"),
        ({"live": 3, "in_flight": 1}, "2 of 3 live entries were compared, and all are equal to their rows"),
        ({"live": 0, "compared": 0}, "no entry is live: there was nothing to compare"),
        ({"live": 34, "compared": 0, "in_flight": 34}, "nothing is proved: none of 34 live entries could be"),
        ({"live": 3, "unknown": 1}, "not known: 1 entries are unknown; 2 of 3 live entries are equal"),
        ({"poisoned": 1, "unknown": 1}, "1 poisoned; 2 of 2 live entries were compared"),
    ],
)
def test_the_conclusion_says_how_much_was_proved(changes: dict[str, Any], conclusion: str) -> None:
    summary = replace(CLEAN, **changes)
    assert summary.conclusion.startswith(conclusion)
    assert summary.to_json()["conclusion"] == summary.conclusion
    shown = io.StringIO()
    print_summary(summary, Console(width=300, file=shown))
    assert conclusion in shown.getvalue()


def test_the_report_shows_keys_as_they_are() -> None:
    example = Example(NODE, "shop:c:[red]1", "c", "poisoned", "p", "['old']", "['new']", "")
    shown = io.StringIO()
    summary = replace(CLEAN, poisoned=1, examples=(example,), unavailable=("node [x]",))
    print_summary(summary, Console(width=160, file=shown))
    text = shown.getvalue()
    for part in ("shop:c:[red]1", "['old']", "['new']", "no answer: node [x]", "not comparable"):
        assert part in text


# -- what travels ----------------------------------------------------------------------------------------


def test_a_scope_travels_and_shows_no_password() -> None:
    again = pickle.loads(pickle.dumps(SCOPE))  # noqa: S301
    assert again.primaries == SCOPE.primaries
    assert again.definitions["customer"].builder.build((1,)) == CUSTOMER.builder.build((1,))
    assert "secret" not in repr(SCOPE)
