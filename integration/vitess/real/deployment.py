"""The cache before a real Vitess under a writer and readers, and the checker that judges what they read.

Each row has a version, which one thread raises through vtgate, whatever happens to its tablets. A version counts as
written when its commit returned, as possible when it was sent. `Checker` knows both times; so it can say of any value
at any time whether it may be read, without knowing anything of tokens.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from appclient import Cache
from freshness.config.config import Config, load_config
from freshness.database.connection import Connection, connect
from freshness.errors import FreshnessError
from integration.configuration import write_sharded_config
from integration.harness import CACHE, MAX_STALENESS_SECONDS, STREAM, wait_covered, wait_for_hits, wait_until
from integration.invalidator.test_reshard import live_entries
from integration.servers import Memcached
from integration.servers.program import InvalidatorProcess
from integration.servers.vitess import Vitess
from integration.vitess.real.following import executed
from invalidator.archive.writer import find_resume
from invalidator.process.status import read_nodes

CUSTOMERS: Final = range(1, 81)
TABLE: Final = "CREATE TABLE customers (customer_id BIGINT PRIMARY KEY, v BIGINT)"
VSCHEMA: Final[Mapping[str, Any]] = {
    "sharded": True,
    "vindexes": {"xxhash": {"type": "xxhash"}},
    "tables": {
        "customers": {"column_vindexes": [{"column": "customer_id", "name": "xxhash"}]},
        "freshness_heartbeat": {"type": "reference"},
    },
}
OBJECTS: Final = '[objects.customer]\ntable = "customers"\n'
WRITE_SECONDS: Final = 0.02
WRITES_MAX: Final = 1_000_000
ATTEMPTS_MAX: Final = 10_000
RETRY_SECONDS: Final = 0.1
BREATH_SECONDS: Final = 0.05
"""Between two reads of one reader: room for the writer, in the same process."""

BATCH: Final = 40
SHOWN_MAX: Final = 20
SETTLES_SECONDS: Final = 120.0


class Checker:
    """``sent``, ``written``: by key and version, when; the index is the version."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.sent: dict[int, list[float]] = {key: [] for key in keys}
        self.written: dict[int, list[float]] = {key: [] for key in keys}
        self.reads = self.hits = 0
        self.violations: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def judge(self, key: int, version: int | None, begun: float, outcome: str, *, is_hit: bool) -> None:
        """A hit may be no older than the bound; and nothing is read that was not sent before the read ended."""
        oldest = bisect_right(self.written[key], begun - MAX_STALENESS_SECONDS) - 1
        newest = len(self.sent[key]) - 1
        with self._lock:
            self.reads += 1
            self.hits += is_hit
            self.outcomes[outcome] += 1
            if version is None or version > newest or (is_hit and version < oldest):
                self.violations.append(f"customer {key}: {outcome} of version {version}, from {oldest} to {newest}")


class Writer(threading.Thread):
    """Raises the version of a random customer, one after the other, until it is stopped."""

    def __init__(self, cluster: Vitess, checker: Checker, seed: int = 1) -> None:
        super().__init__(name="writer", daemon=True)
        self.failures: Counter[str] = Counter()
        self.writes = 0
        self.error: BaseException | None = None
        self._cluster = cluster
        self._checker = checker
        self._random = random.Random(seed)
        self._connection: Connection | None = None
        self._ending = threading.Event()
        self._pause = threading.Lock()

    def insert_all(self) -> None:
        for key in CUSTOMERS:
            self._write(key, "INSERT IGNORE INTO customers (customer_id, v) VALUES ({key}, {version})")

    def run(self) -> None:
        try:
            while not self._ending.wait(WRITE_SECONDS) and self.writes < WRITES_MAX:
                with self._pause:
                    key = self._random.choice(CUSTOMERS)
                    self._write(key, "UPDATE customers SET v = {version} WHERE customer_id = {key}")
                    self.writes += 1
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error

    def _write(self, key: int, sql: str) -> None:
        """Until it is known to be committed. One version may be sent several times: the statement is idempotent."""
        sent, written = self._checker.sent[key], self._checker.written[key]
        version = len(sent)
        sent.append(time.monotonic())
        for _ in range(ATTEMPTS_MAX):
            try:
                if self._connection is None:
                    self._connection = connect(self._cluster.mysql_address(), timeout_seconds=10)
                with self._connection.cursor() as cursor:
                    cursor.execute(sql.format(key=key, version=version))
                self._connection.commit()
                break
            except Exception as error:  # noqa: BLE001 - tablets are killed on purpose: the same again
                self.failures[str(error)[:90]] += 1
                self._disconnect()
                time.sleep(RETRY_SECONDS)
        else:
            raise AssertionError(f"customer {key} cannot be written: {self.failures}")
        written.append(time.monotonic())

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is dead
                connection.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._pause:
            yield

    def wait_for(self, writes: int) -> None:
        target = self.writes + writes
        wait_until(
            lambda: self.writes >= target or self.error is not None,
            f"{writes} more writes",
            lambda: f"{self.failures}",
            seconds=SETTLES_SECONDS,
        )
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._ending.set()
        self.join(SETTLES_SECONDS)
        self._disconnect()
        self.check()


class Reader(threading.Thread):
    """Reads customers through a cache of its own, until it is stopped. A read that no server answers is counted."""

    def __init__(self, path: Path, checker: Checker, seed: int) -> None:
        super().__init__(name=f"reader {seed}", daemon=True)
        self.failures: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._cache = Cache.open(path)
        self._checker = checker
        self._random = random.Random(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._read(self._random.sample(CUSTOMERS, BATCH))
                self._ending.wait(BREATH_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error
        finally:
            self._cache.close()

    def _read(self, keys: Sequence[int]) -> None:
        begun = time.monotonic()
        try:
            found = self._cache.get_many("customer", keys, explain=True)
        except FreshnessError as error:
            self.failures[str(error)[:120]] += 1
            self._ending.wait(RETRY_SECONDS)
            return
        for key, each in found.items():
            version = None if each.value is None else each.value["v"]
            self._checker.judge(key, version, begun, each.outcome.name, is_hit=each.is_hit)

    def stop(self) -> None:
        self._ending.set()
        self.join(SETTLES_SECONDS)
        if self.error is not None:
            raise self.error


@dataclass
class Deployment:
    """A sharded keyspace, two cache nodes, an invalidator. ``serving``, ``waiting``: the shards of the file, by name
    their lineages."""

    cluster: Vitess
    nodes: list[Memcached]
    folder: Path
    checker: Checker
    sections: str = ""
    serving: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    topology: int = 0
    invalidator: InvalidatorProcess | None = None
    config: Config = field(init=False)

    @property
    def path(self) -> Path:
        return self.config.path

    def configure(self, serving: Mapping[str, str], waiting: Mapping[str, str] = {}) -> Config:
        """Write the file with these shards under the next number."""
        self.topology += 1
        self.serving, self.waiting = dict(serving), dict(waiting)
        vtgate = self.cluster.vtgate
        shards = [
            {
                "name": name,
                "lineage": lineage,
                "serving": name in serving,
                "primary": f"mysql://root@127.0.0.1:{vtgate.mysql_port}/{self.cluster.keyspace}",
                "vtgate": f"vitess://127.0.0.1:{vtgate.grpc_port}/{self.cluster.keyspace}?tablet_type=replica",
            }
            for name, lineage in {**serving, **waiting}.items()
        ]
        path = write_sharded_config(
            self.folder,
            "vitess",
            shards,
            [node.address for node in self.nodes],
            column="customer_id",
            function="xxhash",
            topology=self.topology,
            objects=OBJECTS + self.sections,
            cache=CACHE,
            stream=STREAM,
        )
        self.config = load_config(path)
        return self.config

    def reload(self, serving: Mapping[str, str], waiting: Mapping[str, str] = {}) -> None:
        assert self.invalidator is not None
        self.invalidator.reload(self.configure(serving, waiting))
        self.wait_ready()

    def wait_ready(self) -> None:
        assert self.invalidator is not None
        wait_until(
            self.invalidator.is_ready, "the shards that serve are open", self.describe, seconds=SETTLES_SECONDS
        )

    def wait_recorded(self) -> None:
        """Return when the archive, if the file has one, has a start in each shard that serves. It has its own stream,
        so nodes may be open before it."""
        if self.config.archive.path is None:
            return
        folder = self.folder / self.config.archive.path
        wait_until(
            lambda: set(self.serving.values()) <= set(find_resume(folder, self.cluster.keyspace)),
            "the archive has begun",
            self.describe,
            seconds=SETTLES_SECONDS,
        )

    def describe(self) -> str:
        assert self.invalidator is not None
        states = "\n".join(map(str, read_nodes(self.config)))
        return f"{states}\n{self.invalidator.log()[-5000:]}"

    def assert_none_stale(self) -> int:
        """Return the number of live entries, each equal to its row. Nothing is written during the check."""
        for shard in self.serving:
            self.cluster.wait_caught_up(shard)
        heads = {lineage: executed(self.cluster.primary(shard)) for shard, lineage in self.serving.items()}
        wait_covered(self.config, heads, self.describe, seconds=SETTLES_SECONDS)
        live, stale = 0, []
        for name, key, value in live_entries(self.config, {"customer": CUSTOMERS}):
            live += 1
            version = len(self.checker.written[key]) - 1
            if (value["customer_id"], value["v"]) != (key, version):
                stale.append(f"{name} {key}: {value}, and the row has version {version}")
        assert not stale, "\n".join([*stale[:SHOWN_MAX], self.describe()])
        return live

    def wait_cacheable(self) -> None:
        """Return when all customers are hits of a new cache. Nothing is written during the wait."""
        cache = Cache.open(self.path)
        try:
            deadline = time.monotonic() + SETTLES_SECONDS
            while True:
                try:
                    wait_for_hits(cache, "customer", CUSTOMERS, self.describe)
                    return
                except FreshnessError:
                    if time.monotonic() > deadline:
                        raise
        finally:
            cache.close()


@contextmanager
def deployment(
    folder: Path, shards: Sequence[str] = ("-80", "80-"), *, replicas: int = 2, sections: str = ""
) -> Iterator[tuple[Deployment, Writer]]:
    """A deployment with all nodes open and a writer at work. ``sections``: additional sections of the file."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Vitess(shards, replicas=replicas, vschema=VSCHEMA))
        cluster.control("ApplySchema", "--sql", TABLE, cluster.keyspace)
        nodes = [stack.enter_context(Memcached()) for _ in range(2)]
        made = Deployment(cluster, nodes, folder, Checker(CUSTOMERS), sections)
        writer = Writer(cluster, made.checker)
        writer.insert_all()
        made.configure({shard: f"shop/{shard}/0" for shard in shards})
        made.invalidator = stack.enter_context(InvalidatorProcess(made.path))
        made.wait_recorded()
        writer.start()
        stack.callback(writer.stop)
        yield made, writer


@contextmanager
def reading(made: Deployment, count: int = 2) -> Iterator[list[Reader]]:
    """Readers of the file as it is now. They are stopped at the end."""
    readers = [Reader(made.path, made.checker, seed) for seed in range(count)]
    for reader in readers:
        reader.start()
    try:
        yield readers
    finally:
        for reader in readers:
            reader.stop()
