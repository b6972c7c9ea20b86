"""A node and primaries in memory, for tests of what a comparison finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from freshness.algorithm.envelope import Coverage, Filled, NodeRecord, Stamp, record_key
from freshness.algorithm.request import Add, Delete, Head, Item, Reply, Request, Stored
from freshness.algorithm.rule import ObjectPolicy
from freshness.comparison.comparison import POISONED, Comparison, EntryVerdict, give_up, repair
from freshness.comparison.entry import NodeEntry, judge, read_items
from freshness.comparison.scope import ComparisonScope, PrimaryAddress
from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnavailable
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.keyrange import KeyRange
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.registry import ObjectDefinition, ShardFinder
from freshness.position import Position, parse_position
from freshness.values.codec import encode_value

NODE: Final = "127.0.0.1:11211"
LINEAGE: Final = "shop/-"
LIFE: Final = b"LIFELIFE"
PLACEMENT: Final = Placement((NODE,), "shop")
RING: Final = PLACEMENT.ring_version
LOOKS_MAX: Final = 6


def at(sequence: int) -> Position:
    return parse_position("mariadb", f"0-1-{sequence}")


def define(name: str, *columns: KeyColumn, table: str | None = "customers") -> ObjectDefinition:
    members = {} if table else {"customers": tuple(column.name for column in columns)}
    return ObjectDefinition(
        ObjectConfig(name=name, keyspace="shop", table=table, key=members.get("customers", ()), members=members),
        ObjectPolicy(name, 5, ("customers",), (LINEAGE,), 60),
        KeyBuilder("shop", name, columns),
        {"customers": columns},
    )


ID: Final = KeyColumn("id", ColumnKind.INTEGER)
CUSTOMER: Final = define("customer", ID)
PROFILE: Final = define("profile", ID, table=None)
SCOPE: Final = ComparisonScope(
    "shop",
    (PLACEMENT,),
    (LINEAGE,),
    {"customer": CUSTOMER, "profile": PROFILE},
    {LINEAGE: PrimaryAddress(ServerAddress("127.0.0.1", password="secret"), "mariadb")},
)


PRIMARY: Final = "5f0d1f3e-0000-0000-0000-000000000001"
"""Its identity."""


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
            "primary": PRIMARY,
            "objects": {name: Coverage(5, at(1)) for name in ("customer", "thing")},
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
        return self.read_scope(SCOPE, *(items or ("shop:customer:1",)))

    def read_scope(self, scope: ComparisonScope, *items: str) -> list[NodeEntry]:
        """The entries that are there."""
        names = [name.encode() for name in items]
        records, replies = read_items(scope, self.node, names)
        return [
            judge(scope, self.node, item, reply.value, records)
            for item, reply in zip(names, replies, strict=True)
            if isinstance(reply, Item)
        ]

    def compare(self) -> EntryVerdict:
        [verdict] = self.compare_all(self.read())
        return verdict

    def compare_all(self, entries: list[NodeEntry]) -> list[EntryVerdict]:
        primaries, replicas = cast(Any, lambda _: self), cast(Any, lambda _: self.replicas)
        comparison = Comparison(SCOPE, lambda _: self.node, primaries, replicas)
        return self.run(comparison, entries)

    def run(self, comparison: Comparison, entries: list[NodeEntry]) -> list[EntryVerdict]:
        """The steps of the prober, with a wait before each look."""
        verdicts, suspects = comparison.compare_once(entries)
        unknown, left = comparison.read_heads(suspects)
        verdicts += unknown
        for _ in range(LOOKS_MAX):
            if left:
                self.waits += 1
                if self.while_waiting:
                    self.while_waiting.pop(0)()
                decided, left = comparison.look(left)
                verdicts += decided
        return [*verdicts, *map(give_up, left)]

    def condemn(self) -> NodeEntry:
        """The poisoned entry of the first key."""
        found = self.compare()
        assert found.verdict == POISONED
        return found.entry

    def repair(self, condemned: NodeEntry) -> str:
        return repair(SCOPE, lambda _: self.node, condemned)

    def read_rows(self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]) -> dict[bytes, dict[str, Any]]:
        if self.is_down:
            raise SourceUnavailable("the primary is down", hint="start it")
        build = definition.builder.build
        return {definition.identity(build(key)): self.rows[key[0]] for key in keys if key[0] in self.rows}

    def read_head(self) -> Head:
        return Head(self.head, 0, PRIMARY)


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


OLD: Final = {"id": 1, "v": "old"}


SHARDS: Final = {"shop/-80": KeyRange.parse("-80"), "shop/80-": KeyRange.parse("80-")}
LOW, HIGH = SHARDS


class ShardPrimary:
    """Rows of one shard by key; ``asked``: the keys that it was asked for."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = {row["id"]: row for row in rows}
        self.head = at(10)
        self.asked: set[Any] = set()
        self.is_down = False

    def read_rows(self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]) -> dict[bytes, dict[str, Any]]:
        if self.is_down:
            raise SourceUnavailable("this shard is down", hint="start it")
        self.asked.update(key[0] for key in keys)
        build = definition.builder.build
        return {definition.identity(build(key)): self.rows[key[0]] for key in keys if key[0] in self.rows}

    def read_head(self) -> Head:
        return Head(self.head, 0, PRIMARY)


class ShardedWorld(World):
    """Keys below 128 live in the first shard. ``thing``: its key does not tell its shard."""

    def __init__(self, column: KeyColumn = ID, function: str = "numeric") -> None:
        super().__init__()
        policy = ObjectPolicy("customer", 5, ("customers",), tuple(SHARDS), 60)
        own = tuple((held, replace(policy, lineages=(name,))) for name, held in SHARDS.items())

        def keyspace_id(_: str, value: object) -> bytes:
            return bytes((value if isinstance(value, int) else ord(str(value)[0]),))

        customer = replace(
            define("customer", column), policy=policy, shards=ShardFinder(0, column, function, own, keyspace_id)
        )
        thing = replace(define("thing", ID), policy=replace(policy, name="thing"))
        self.scope = replace(
            SCOPE,
            lineages=tuple(SHARDS),
            definitions={"customer": customer, "thing": thing},
            primaries=dict.fromkeys(SHARDS, SCOPE.primaries[LINEAGE]),
        )
        self.primaries = {LOW: ShardPrimary({"id": 1, "v": "new"}), HIGH: ShardPrimary({"id": 200, "v": "new"})}

    def record(self, progress: int, **changes: Any) -> None:
        for name in SHARDS:
            super().record(progress, **{"lineage": name, **changes})

    def keep(self, value: Any, *lineages: str, name: str = "customer", key: Any = 200) -> None:
        stamps = tuple(Stamp(lineage, LIFE, 1, at(5)) for lineage in lineages)
        identity = (5).to_bytes(4, "big") + str(key).lower().encode()
        filled = Filled(stamps, identity, None if value is None else encode_value(value))
        self.put(f"shop:{name}:{str(key).lower()}".encode(), filled.encode())

    def judge(self, *items: str) -> list[EntryVerdict]:
        entries = self.read_scope(self.scope, *(items or ("shop:customer:200",)))
        primaries = cast(Any, self.primaries.__getitem__)
        return self.run(Comparison(self.scope, lambda _: self.node, primaries), entries)
