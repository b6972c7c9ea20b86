"""Shards are split and merged under readers and writers, and the cache holds the past of none of them.

Two shards become one and two again by copies, with new GTIDs; by replication, which keeps them, they do so in
``test_merged_stream``. The steps are those of docs/topology.md. All the while rows are written, and read through the
cache by clients that load each topology at different moments; some readers keep the previous one for a while. After
each reshard everything settles, and every live entry is compared with the rows. A key that changes all the time is
cached between its changes, whichever shards serve.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import pytest

from appclient import Cache, Explanation
from freshness.algorithm.envelope import STUB, Filled, find_record, record_key
from freshness.algorithm.request import Get, Item
from freshness.algorithm.rule import find_hit_refusal, find_record_refusal
from freshness.config.config import Config, load_config
from freshness.database.schema import load_registry
from freshness.database.sharding import keyspace_id
from freshness.errors import SourceUnavailable
from freshness.keys.keyrange import KeyRange
from freshness.keys.placement import Placement
from freshness.nodes.memcached import MemcachedNode
from freshness.position import parse_position
from freshness.values.codec import decode_value
from integration.configuration import write_sharded_config
from integration.harness import CACHE, STREAM, wait_covered, wait_for_hits, wait_until
from integration.servers import Flavor, Memcached
from integration.servers.program import InvalidatorProcess
from integration.shards import (
    BREATH_SECONDS,
    FUNCTION,
    TABLES,
    Cluster,
    Reshard,
    Shard,
    ShardedTable,
    ShardRouter,
    Writer,
    catch_up,
    prepare_copied,
    prepare_replicated,
    promote,
    start_shards,
    stop_writes,
    switch,
    writing,
)
from invalidator.process.status import locate_key, read_nodes

OBJECTS: Final = """[objects.customer]
table = "customers"
[objects.order]
table = "orders"
[objects.profile]
key = "customer_id"
members = { customers = "customer_id", orders = "customer_id" }
"""
CUSTOMERS: Final = tuple(range(1, 61))
LOW_CUSTOMERS: Final = tuple(key for key in CUSTOMERS if KeyRange.parse("-40").contains(keyspace_id(FUNCTION, key)))
"""Those of one shard under each topology of one, two and four shards: a moment is a shard's."""
SOME: Final = 60
"""Writes between two steps."""

READS_MAX: Final = 100_000
BUSY: Final = CUSTOMERS[-1] + 1
CHANGE_SECONDS: Final = 1.0
CHANGES_MAX: Final = 10_000
CACHED_CHANGES: Final = 4
"""The number of states of the busy row that must be hits."""

Step: TypeAlias = Literal["prepared", "swapped", "switched"]
"""Of a reshard: the destinations follow; they serve, and nobody writes yet; they are written to."""


def lineage_of(shard: Shard) -> str:
    return f"shop/{shard.name}/{shard.number}"


def open_cache(path: Path) -> Cache:
    cache = Cache.open(path)

    @cache.loader("profile")
    def load_profile(db: Any, customer_id: int) -> dict[str, Any]:
        orders = db.query("SELECT id, total FROM orders WHERE customer_id = %s ORDER BY id", (customer_id,))
        customer = db.query_one("SELECT name, v FROM customers WHERE customer_id = %s", (customer_id,))
        return {"customer": customer, "orders": orders}

    return cache


class Reader(threading.Thread):
    """Reads all objects through a cache of the topology that it was made with, until it is stopped.

    ``is_patient``: count a read that no server answers instead of failing, in tests that kill replicas.
    """

    def __init__(self, path: Path, writer: Writer, *, is_patient: bool = False) -> None:
        super().__init__(name="reader", daemon=True)
        self.hits = self.reads = self.failures = 0
        self.error: BaseException | None = None
        self._cache = open_cache(path)
        self._writer = writer
        self._is_patient = is_patient
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            for _ in range(READS_MAX):
                if self._ending.is_set():
                    return
                orders = sorted(self._writer.expected["orders"].copy())[-40:]
                for name, keys in (("customer", CUSTOMERS), ("profile", CUSTOMERS[:20]), ("order", orders)):
                    self._read(name, keys)
                self._judge(self._read("customer", LOW_CUSTOMERS, together=True))
                self._ending.wait(BREATH_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error
        finally:
            self._cache.close()

    def _read(self, name: str, keys: Sequence[int], *, together: bool = False) -> dict[int, Explanation]:
        try:
            found = self._cache.get_many(name, keys, explain=True, together=together)
        except SourceUnavailable:
            if not self._is_patient:
                raise
            self.failures += 1
            return {}
        self.reads += len(found)
        self.hits += sum(each.is_hit for each in found.values())
        return found

    def _judge(self, found: dict[int, Explanation]) -> None:
        """I11: some moment had all these rows."""
        versions = {key: each.value["v"] for key, each in found.items() if each.value is not None}
        later = [n for key, v in versions.items() for n in self._writer.changed[key].copy() if n > v]
        assert max(versions.values(), default=-1) < min(later, default=sys.maxsize), found

    def wait_hit(self) -> None:
        """A cache that was never hit proves nothing."""
        wait_until(lambda: self.hits > 0 or not self.is_alive(), "the reader has hit")
        self._raise()

    def stop(self) -> None:
        self._ending.set()
        wait_until(lambda: not self.is_alive(), "the reader has stopped")
        self._raise()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


class BusyRow(threading.Thread):
    """Changes a row that nobody else writes, about every second, until it is stopped. ``v`` counts the changes."""

    def __init__(self, router: ShardRouter) -> None:
        super().__init__(name="busy row", daemon=True)
        self.changes = 0
        self.error: BaseException | None = None
        self._router = router
        self._ending = threading.Event()
        router.execute(BUSY, "INSERT INTO customers VALUES (%s, 'busy', 0)", BUSY)

    def run(self) -> None:
        try:
            for change in range(1, CHANGES_MAX):
                if self._ending.wait(CHANGE_SECONDS):
                    return
                self._router.execute(BUSY, "UPDATE customers SET v = %s WHERE customer_id = %s", change, BUSY)
                self.changes = change
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error

    def wait_cached(self, path: Path, describe: Callable[[], str]) -> None:
        """Return when several states of the row, each written from now on, were hits of a cache of this topology."""
        before, states, outcomes = self.changes, set[int](), Counter[str]()
        cache = open_cache(path)

        def is_cached() -> bool:
            explanation = cache.get("customer", BUSY, explain=True)
            outcomes[explanation.outcome.name] += 1
            if explanation.is_hit and explanation.value["v"] > before:
                states.add(explanation.value["v"])
            return len(states) >= CACHED_CHANGES

        try:
            wait_until(is_cached, "the busy row is cached between its changes", lambda: f"{outcomes}\n{describe()}")
        finally:
            cache.close()

    def stop(self) -> None:
        self._ending.set()
        wait_until(lambda: not self.is_alive(), "the busy row is left alone")
        if self.error is not None:
            raise self.error


@contextmanager
def changing(router: ShardRouter) -> Iterator[BusyRow]:
    """The busy row is changed, until the end."""
    busy = BusyRow(router)
    busy.start()
    try:
        yield busy
    finally:
        busy.stop()


@dataclass(slots=True)
class Deployment:
    """The current configuration, and the processes that use it.

    ``continues``, by the number of a shard: the lineages whose GTIDs its log holds too. ``topology``: the number of
    the file. ``column``: the sharding column.
    """

    cluster: Cluster
    nodes: list[Memcached]
    folder: Path
    stream: Mapping[str, Any] = field(default_factory=lambda: STREAM)
    sections: str = ""
    continues: dict[int, tuple[str, ...]] = field(default_factory=dict)
    invalidator: InvalidatorProcess | None = None
    topology: int = 0
    column: str = "customer_id"
    objects: str = OBJECTS
    cache: Mapping[str, Any] = field(default_factory=dict)
    config: Config = field(init=False)

    @property
    def path(self) -> Path:
        return self.config.path

    def configure(self, serving: Sequence[Shard], waiting: Sequence[Shard] = ()) -> Config:
        """Write the file with this topology."""
        shards = [
            {
                "name": shard.name,
                "lineage": lineage_of(shard),
                "continues": self.continues.get(shard.number, ()),
                "serving": shard in serving,
                "primary": shard.primary.url,
                "replicas": [replica.url for replica in shard.replicas],
            }
            for shard in (*serving, *waiting)
        ]
        self.topology += 1
        path = write_sharded_config(
            self.folder,
            self.cluster.flavor,
            shards,
            [node.address for node in self.nodes],
            column=self.column,
            topology=self.topology,
            objects=self.objects + self.sections,
            cache={**CACHE, **self.cache},
            stream=self.stream,
        )
        self.config = load_config(path)
        return self.config

    def reload(self, serving: Sequence[Shard], waiting: Sequence[Shard] = ()) -> None:
        """The invalidator goes over to this topology; returns when its shards are open, and no others."""
        assert self.invalidator is not None
        self.invalidator.reload(self.configure(serving, waiting))
        wait_until(self.invalidator.is_ready, "all nodes are open for the shards that serve", self.describe)

    def describe(self) -> str:
        assert self.invalidator is not None
        states = "\n".join(map(str, read_nodes(self.config)))
        return f"{states}\n{self.invalidator.log()[-6000:]}"

    def wait_covered(self, shards: Sequence[Shard]) -> None:
        """Return when every node has acknowledged what these primaries have executed by now."""
        heads = {
            lineage_of(shard): parse_position(shard.primary.flavor, shard.primary.executed()) for shard in shards
        }
        wait_covered(self.config, heads, self.describe)

    def assert_none_stale(self, serving: Sequence[Shard], writer: Writer) -> int:
        """Return the number of live entries, each equal to its rows. Nothing is written during the check."""
        for shard in serving:
            shard.wait_caught_up()
        self.wait_covered(serving)
        config = self.config
        customers = {
            key: {"customer_id": key, "name": n, "v": v} for key, n, v in writer.expected["customers"].values()
        }
        orders = {key: {"id": key, "customer_id": c, "total": t} for key, c, t in writer.expected["orders"].values()}

        def profile(key: int) -> dict[str, Any]:
            row = customers.get(key)
            return {
                "customer": None if row is None else {"name": row["name"], "v": row["v"]},
                "orders": [
                    {"id": order["id"], "total": order["total"]}
                    for order in sorted(orders.values(), key=lambda each: each["id"])
                    if order["customer_id"] == key
                ],
            }

        find: dict[str, Callable[[int], Any]] = {"customer": customers.get, "order": orders.get, "profile": profile}
        keys = {"customer": CUSTOMERS, "profile": CUSTOMERS, "order": range(1, writer.writes + 2)}
        live, stale = 0, []
        for name, key, value in live_entries(config, keys):
            live += 1
            if value != find[name](key):
                stale.append(f"{name} {key}: cached {value}, the shards have {find[name](key)}")
        assert not stale, "\n".join([*stale[:20], self.describe()])
        return live


def live_entries(config: Config, keys: dict[str, Sequence[int]]) -> Iterator[tuple[str, int, Any]]:
    """(object, key, value) of every entry that a reader of this topology would serve, read in raw."""
    registry = load_registry(config)
    ring = Placement(config.cache.nodes, config.cache.namespace).ring_version
    connections = {node: MemcachedNode(node) for node in config.cache.nodes}
    try:
        for name in keys:
            for key in keys[name]:
                located = locate_key(config, registry, name, [str(key)])
                lineages = located.policy.lineages
                reply, *records = connections[located.node].perform(
                    [Get(located.item), *(Get(record_key("shop", lineage)) for lineage in lineages)]
                )
                if not isinstance(reply, Item) or reply.value == STUB:
                    continue
                found = {
                    lineage: find_record(record, located.node)
                    for lineage, record in zip(lineages, records, strict=True)
                }
                entry = Filled.decode(reply.value)
                if any(find_record_refusal(record, (ring,)) for record in found.values()):
                    continue  # also if a lease has run out, as on a machine that is too busy
                if find_hit_refusal(located.policy, located.identity, entry, found, ring) is None:
                    yield name, key, None if entry.value is None else decode_value(entry.value)
    finally:
        for node in connections.values():
            node.close()


@contextmanager
def deployment(
    flavor: Flavor,
    folder: Path,
    names: Sequence[str],
    *,
    stream: Mapping[str, Any] = STREAM,
    sections: str = "",
    replicas: int = 1,
    tables: Sequence[ShardedTable] = TABLES,
    objects: str = OBJECTS,
    cache: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[tuple[Deployment, ShardRouter]]:
    """Shards, two cache nodes and an invalidator, all open. ``sections`` are appended to its file, ``objects`` are
    those of the tables."""
    with start_shards(flavor, names, replicas=replicas, tables=tables) as cluster, ExitStack() as stack:
        nodes = [stack.enter_context(Memcached()) for _ in range(2)]
        made = Deployment(
            cluster, nodes, folder, stream, sections, column=tables[0].column, objects=objects, cache=cache
        )
        made.configure(cluster.shards)
        made.invalidator = stack.enter_context(InvalidatorProcess(made.path))
        yield made, ShardRouter(cluster.shards)


def reshard_under_load(
    made: Deployment,
    router: ShardRouter,
    writer: Writer,
    names: Sequence[str],
    *,
    keeps_gtids: bool,
    disturb: Callable[[Step, Reshard], None] = lambda *_: None,
    is_patient: bool = False,
) -> None:
    """The procedure of docs/topology.md, with readers of the previous and of the new topology. ``disturb`` is called
    after each step."""
    previous = router.shards
    old = Reader(made.path, writer, is_patient=is_patient)
    old.start()
    # 1. The destinations exist and are followed, and nothing is cached from them
    prepare = prepare_replicated if keeps_gtids else prepare_copied
    reshard: Reshard = prepare(made.cluster, previous, names)
    if keeps_gtids:
        for shard in reshard.destinations:
            made.continues[shard.number] = tuple(map(lineage_of, reshard.sources_of(shard)))
    made.reload(previous, reshard.destinations)
    writer.wait_for(SOME)
    old.wait_hit()
    disturb("prepared", reshard)
    # 2. Nobody writes to the sources any more, and the destinations have everything
    stop_writes(reshard)
    catch_up(reshard)
    promote(reshard)
    # 3. Nothing is cached from the sources any more; only then do writes move
    made.reload(reshard.destinations, previous)
    disturb("swapped", reshard)
    switch(reshard, router)
    # 4. Applications follow, each when it likes
    young = Reader(made.path, writer, is_patient=is_patient)
    young.start()
    writer.wait_for(SOME)
    disturb("switched", reshard)
    old.stop()
    # 5. The sources are gone
    made.reload(reshard.destinations)
    writer.wait_for(SOME)
    young.stop()
    assert young.reads > 0
    made.cluster.stop(previous)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_two_shards_become_one_and_two_again_by_copies(flavor: Flavor, tmp_path: Path) -> None:
    with deployment(flavor, tmp_path, ["-80", "80-"]) as (made, router), writing(router) as writer:
        writer.wait_for(SOME)
        for names in (["-"], ["-80", "80-"]):
            reshard_under_load(made, router, writer, names, keeps_gtids=False)
            with writer.paused():
                made.assert_none_stale(router.shards, writer)
        writer.stop()
        made.assert_none_stale(router.shards, writer)
        cache = open_cache(made.path)
        try:
            for name in ("customer", "profile"):
                wait_for_hits(cache, name, CUSTOMERS, made.describe)
        finally:
            cache.close()
        wait_until(
            lambda: made.assert_none_stale(router.shards, writer) >= 2 * len(CUSTOMERS),
            "all are there and may be served",
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_a_row_that_is_changed_all_the_time_is_cached_under_each_topology(flavor: Flavor, tmp_path: Path) -> None:
    """F96: the demands of a replaced shard end with it, even if they are renewed every second."""
    with deployment(flavor, tmp_path, ["-"]) as (made, router), writing(router) as writer, changing(router) as busy:
        busy.wait_cached(made.path, made.describe)
        for names in (["-80", "80-"], ["-"]):
            reshard_under_load(made, router, writer, names, keeps_gtids=False)
            busy.wait_cached(made.path, made.describe)
