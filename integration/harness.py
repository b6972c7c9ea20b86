"""A whole system on private servers: database pair, cache nodes, the invalidator as a process, `freshness.toml`.

For the tests of the release criteria, which kill, pause and restart its parts. Waits are polls with a bound, and a
wait that fails shows the nodes' state and the invalidator's log. Never touches a process that it did not start.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

from pymysql.cursors import DictCursor

from appclient import Cache, Explanation, ReadOutcome
from freshness.algorithm.envelope import STUB, Filled, find_record, record_key, resume_key, stripe_key, stripe_number
from freshness.algorithm.request import Cas, Get, Item, Stored
from freshness.algorithm.rule import find_hit_refusal
from freshness.config.config import Config, load_config
from freshness.database.connection import executed_position
from freshness.database.schema import load_registry
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.open import open_node
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, parse_position
from freshness.values.codec import decode_value, encode_value
from integration.configuration import CUSTOMER, write_config
from integration.servers import Memcached, Pair, ServerFailed
from integration.servers.program import InvalidatorProcess
from invalidator import cli
from invalidator.process.status import LocatedKey, locate_key, read_nodes

WAIT_SECONDS: Final = 180.0
"""The bound of every wait. Far above what is usual: only a failure takes as long."""

POLL_SECONDS: Final = 0.03
LOG_TAIL_CHARACTERS: Final = 6_000

LEASE_SECONDS: Final = 4
MAX_STALENESS_SECONDS: Final = 12
NODE_REFRESH_SECONDS: Final = 0.2
CACHE: Final[Mapping[str, Any]] = {
    "lease_seconds": LEASE_SECONDS,
    "max_staleness_seconds": MAX_STALENESS_SECONDS,
    "node_refresh_seconds": NODE_REFRESH_SECONDS,
    # A machine that runs tests can hold a node up for longer than the default allows
    "node_timeout_ms": 1500,
    "node_connect_timeout_ms": 1500,
}
PATIENT: Final[Mapping[str, Any]] = {
    "lease_seconds": 60,
    "max_staleness_seconds": 300,
    "node_timeout_ms": 60_000,
    "node_connect_timeout_ms": 60_000,
}
"""Settings of a cache that serves all the time, however busy the machine is."""

REPLICAS_ALONE: Final[Mapping[str, Any]] = {"primary_reads_per_second": 0}
"""Settings of a cache whose misses are of a replica, however late it is."""

STREAM: Final[Mapping[str, Any]] = {"heartbeat_seconds": 0.2}
"""Short times, so that leases run out while a test looks on, and not so short that they do on a busy machine."""

CUSTOMERS_TABLE: Final = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50), v INT)"
ORDERS_TABLE: Final = "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT, total INT)"

Answer = TypeVar("Answer")


def wait_until(
    ask: Callable[[], Answer | None], what: str, describe: Callable[[], str] = str, *, seconds: float = 0
) -> Answer:
    """Poll until the answer is true, and return it. Raises `ServerFailed` with ``describe()`` after the bound."""
    deadline = time.monotonic() + (seconds or WAIT_SECONDS)
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {seconds or WAIT_SECONDS:.0f} s in vain until {what}\n{describe()}")
        time.sleep(POLL_SECONDS)


def wait_covered(
    config: Config, heads: Mapping[str, Position], describe: Callable[[], str] = str, *, seconds: float = 0
) -> None:
    """Return when every node has acknowledged these positions, by lineage."""

    def is_covered() -> bool:
        return all(
            parse_position(head.flavor, node.get("progress", "")).contains(head)
            for node in read_nodes(config)
            if (head := heads.get(node["lineage"])) is not None
        )

    wait_until(is_covered, "all nodes have acknowledged the heads", describe, seconds=seconds)


def run_cli(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of the invalidator to its end, as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "invalidator.cli", *map(str, arguments)],
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def call_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The same inside this process, which is a second quicker: for verbs that end without a signal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: int | str | None = 0
    with (
        mock.patch.object(sys, "argv", ["invalidator", *map(str, arguments)]),
        mock.patch.dict(os.environ, COLUMNS="200"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int), f"exit code {code!r}"
    return subprocess.CompletedProcess(sys.argv, code, _all_of(out), _all_of(err))


def _all_of(text: io.TextIOWrapper) -> str:
    text.seek(0)
    return text.read()


@dataclass(slots=True)
class System:
    """The parts, and questions that need several of them."""

    pair: Pair
    nodes: list[Memcached]
    config_path: Path
    invalidator: InvalidatorProcess
    registry: dict[str, ObjectDefinition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry = load_registry(self.config)

    @property
    def config(self) -> Config:
        return load_config(self.config_path)

    @property
    def namespace(self) -> str:
        return self.config.cache.namespace

    def execute(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """One statement on the primary."""
        return self.pair.primary.execute(sql, *arguments, database="shop")

    def open_cache(self) -> Cache:
        return Cache.open(self.config_path)

    # -- the nodes' state --------------------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        return read_nodes(self.config)

    def describe(self) -> str:
        states = "\n".join(map(str, self.status()))
        return f"{states}\n{self.invalidator.log()[-LOG_TAIL_CHARACTERS:]}"

    def lives(self) -> dict[str, str]:
        """By node. On a slow machine a lease may lapse; a node reports its life again once it is open."""

        def find() -> dict[str, str] | None:
            known = {node["node"]: node["life"] for node in self.status() if "life" in node}
            found = {node.address: known.get(node.address, "") for node in self.nodes}
            return found if all(found.values()) else None

        return wait_until(find, "all nodes tell their life", self.describe)

    def wait_open(self, count: int | None = None) -> None:
        """Return when all nodes, or ``count`` of them, are open and have their stripes."""
        wanted = len(self.nodes) if count is None else count

        def is_open() -> bool:
            ready = [n for n in self.status() if n["state"] == "open" and n["stripes_there_percent"] == 100]
            return len(ready) >= wanted

        wait_until(is_open, f"{wanted} nodes are open", self.describe)

    def wait_new_life(self, node: Memcached, previous: str) -> None:
        """Return when the node is open in another life."""

        def is_reborn() -> bool:
            states = {each["node"]: (each["state"], each.get("life")) for each in self.status()}
            state, life = states[node.address]
            return state == "open" and life != previous

        wait_until(is_reborn, f"{node.address} lives anew", self.describe)

    def wait_covered(self) -> None:
        """Return when every node is open and has acknowledged what the primary has executed by now."""
        primary = self.pair.primary
        with primary.connect() as connection:
            head = executed_position(connection, primary.flavor)

        def is_covered() -> bool:
            return all(self._has_acknowledged(node, head) for node in self.status())

        wait_until(is_covered, f"all nodes have acknowledged {head}", self.describe)

    def has_acknowledged(self, address: str) -> bool:
        """Whether this node is open and has what the primary has executed by now."""
        with self.pair.primary.connect() as connection:
            head = executed_position(connection, self.pair.primary.flavor)
        return any(self._has_acknowledged(node, head) for node in self.status() if node["node"] == address)

    def _has_acknowledged(self, node: Mapping[str, Any], head: Position) -> bool:
        return node["state"] == "open" and parse_position(self.pair.primary.flavor, node["progress"]).contains(head)

    def wait_resumable(self) -> None:
        """Return when the resume copies, which are written every second, have the primary's current head."""
        primary = self.pair.primary
        with primary.connect() as connection:
            head = executed_position(connection, primary.flavor)
        lineage = self.config.keyspaces["shop"].shards[0].lineage

        def is_resumable() -> bool:
            for node in self.nodes:
                copy = self.find_raw(node.address, resume_key(self.namespace, lineage))
                record = find_record(copy, node.address) if copy is not None else None
                if record is None or not record.progress.contains(head):
                    return False
            return True

        wait_until(is_resumable, f"all resume copies have {head}", self.describe)

    def settle(self) -> None:
        """Nothing is written any more: replica and nodes catch up with the primary."""
        self.pair.wait_caught_up()
        self.wait_covered()

    # -- what the cache holds ----------------------------------------------------------------------------

    def subject(self, name: str, *key: Any) -> LocatedKey:
        return locate_key(self.config, self.registry, name, [str(part) for part in key])

    def find_item(self, name: str, *key: Any) -> Item | None:
        """The item under an entry's key, without the reading procedure; None if there is none."""
        subject = self.subject(name, *key)
        return self.find_raw(subject.node, subject.item)

    def find_stripe(self, name: str, *key: Any) -> Item | None:
        """The same for its stripe."""
        return self.find_raw(self.subject(name, *key).node, self.stripe_of(name, *key))

    def stripe_of(self, name: str, *key: Any) -> bytes:
        """The key of its stripe, of an object that lives in one lineage."""
        subject = self.subject(name, *key)
        (lineage,) = subject.policy.lineages
        return stripe_key(self.namespace, lineage, stripe_number(subject.item, self.config.cache.stripes))

    def find_raw(self, address: str, key: bytes) -> Item | None:
        with closing(open_node(self.config.cache.access, address)) as node:
            [reply] = node.perform([Get(key)])
        return reply if isinstance(reply, Item) else None

    def find_stale(self, name: str, keys: Iterable[Any]) -> tuple[int, list[str]]:
        """Raw inspection: how many live entries there are, and those that differ from the primary.

        For single-row objects with one key column, while nothing is written and progress covers the head.
        """
        definition = self.registry[name]
        table, column = definition.config.table, definition.builder.columns[0].name
        with self.pair.primary.connect("shop") as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            rows = {row[column]: row for row in cursor.fetchall()}
        cache = self.config.cache
        connections = {name: open_node(cache.access, name) for name in cache.nodes}
        live, stale, namespace = 0, [], self.namespace
        try:
            for key in keys:
                subject = self.subject(name, key)
                lineages = subject.policy.lineages
                requests = [Get(record_key(namespace, lineage), is_bound=True) for lineage in lineages]
                reply, *records = connections[subject.node].perform([Get(subject.item), *requests])
                if not isinstance(reply, Item) or reply.value == STUB:
                    continue
                entry = Filled.decode(reply.value)
                found = {
                    lineage: find_record(record, subject.node)
                    for lineage, record in zip(lineages, records, strict=True)
                }
                if find_hit_refusal(subject.policy, subject.identity, entry, found, subject.ring) is not None:
                    continue
                live += 1
                value = None if entry.value is None else decode_value(entry.value)
                if value != rows.get(key):
                    stale.append(f"{name} {key}: cached {value}, the primary has {rows.get(key)}, {entry.stamps}")
        finally:
            for node in connections.values():
                node.close()
        return live, stale

    def assert_none_stale(self, cache: Cache, name: str, keys: Sequence[Any]) -> None:
        """Settle; then every key, in raw and through the cache, is what the primary has, and cacheable."""
        self.settle()
        _, stale = self.find_stale(name, keys)
        assert not stale, "\n".join(stale)
        wait_for_hits(cache, name, keys, self.describe)
        live, stale = self.find_stale(name, keys)
        assert not stale, "\n".join(stale)
        assert live == len(keys)
        column = self.registry[name].builder.columns[0].name
        table = self.registry[name].config.table
        rows = {row[column]: row for row in self._rows(f"SELECT * FROM {table}")}
        assert cache.get_many(name, keys) == {key: rows.get(key) for key in keys}

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        with self.pair.primary.connect("shop") as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


def plant(
    config: Config, registry: dict[str, ObjectDefinition], name: str, key: Any, change: Callable[[Any], Any]
) -> str:
    """Put another value under a live entry, with the evidence of the right one; return the item's key."""
    subject = locate_key(config, registry, name, [str(key)])
    node = MemcachedNode(subject.node)
    try:
        [found] = node.perform([Get(subject.item)])
        assert isinstance(found, Item)
        entry = Filled.decode(found.value)
        assert entry.value is not None
        wrong = replace(entry, value=encode_value(change(decode_value(entry.value))))
        [stored] = node.perform([Cas(subject.item, wrong.encode(), found.version, found.ttl_seconds)])
        assert isinstance(stored, Stored)
    finally:
        node.close()
    return subject.item.decode()


def wait_for_hits(
    cache: Cache, name: str, keys: Sequence[Any], describe: Callable[[], str] = str
) -> dict[Any, Explanation]:
    """Read until every key is a hit (I5)."""
    last: dict[Any, Explanation] = {}

    def all_hit() -> dict[Any, Explanation] | None:
        last.update(cache.get_many(name, keys, explain=True))
        return last if all(each.is_hit for each in last.values()) else None

    return wait_until(
        all_hit,
        f"all of {name} are hits",
        lambda: f"{[(k, e.outcome.name) for k, e in last.items() if not e.is_hit][:20]}\n{describe()}",
    )


def wait_for_outcome(
    cache: Cache, name: str, key: Any, outcomes: Iterable[ReadOutcome], describe: Callable[[], str] = str
) -> Explanation:
    """Read until the outcome is one of those."""
    wanted = frozenset(outcomes)
    last: list[Explanation] = []

    def read() -> Explanation | None:
        explanation: Explanation = cache.get(name, key, explain=True)
        last[:] = [explanation]
        return explanation if explanation.outcome in wanted else None

    return wait_until(read, f"{name} {key} is {wanted}", lambda: f"{last}\n{describe()}")


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Do the work again and again, in a thread. Raises what it has raised."""
    ending = threading.Event()

    def run() -> None:
        while not ending.is_set():
            work()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            ending.set()
        running.result()


@contextmanager
def reading(cache: Cache, name: str, keys: Sequence[int]) -> Iterator[Counter[ReadOutcome]]:
    """Read the keys again and again; the number of each outcome."""
    seen: Counter[ReadOutcome] = Counter()

    def read() -> None:
        found = cache.get_many(name, keys, explain=True)
        seen.update(each.outcome for each in found.values())

    with repeating(read):
        yield seen


def find_step(system: System) -> dict[str, Any]:
    """The due step of a change of nodes."""
    answer: dict[str, Any] = json.loads(call_cli("nodes", "--json", "-c", system.config_path).stdout)
    return answer


def deploy(system: System, *arguments: str, disturb: Callable[[], object] = bool) -> None:
    """Write the next file, give it to the invalidator, and wait until it serves its nodes by that. ``disturb`` is
    called while the invalidator loads it."""

    def is_written() -> bool:
        return call_cli("nodes", *arguments, "-c", system.config_path).returncode == 0

    wait_until(is_written, f"nodes {arguments} is done", lambda: str(find_step(system)))
    system.invalidator.reload(system.config)
    disturb()
    wait_until(lambda: find_step(system)["name"] != "load", "all nodes are served", system.describe)
    system.wait_covered()


@contextmanager
def running_system(
    pair: Pair,
    folder: Path,
    *,
    nodes: Sequence[Memcached] | None = None,
    tables: Sequence[str] = (CUSTOMERS_TABLE,),
    has_replica: bool = True,
    objects: str = CUSTOMER,
    cache: Mapping[str, Any] = {},
    stream: Mapping[str, Any] = {},
    extra: str = "",
) -> Iterator[System]:
    """A system whose nodes are all open. ``nodes``: not started ones; two ordinary ones by default."""
    for table in tables:
        pair.primary.execute(table, database="shop")
    pair.wait_caught_up()
    with ExitStack() as stack:
        started = [stack.enter_context(node) for node in (nodes or (Memcached(), Memcached()))]
        path = write_config(
            folder,
            pair.primary.flavor,
            pair.primary.url,
            [node.address for node in started],
            replicas=[pair.replica.url] if has_replica else [],
            objects=objects,
            cache={**CACHE, **cache},
            stream={**STREAM, **stream},
            extra=extra,
        )
        invalidator = stack.enter_context(InvalidatorProcess(path))
        yield System(pair, started, path, invalidator)
