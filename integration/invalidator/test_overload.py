"""More than the parts can do at once, on real servers: nothing old is served, and everything recovers.

No speed is asserted. Each test judges what readers got, and bounds what the invalidator holds in memory.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, FreshnessError
from freshness.algorithm.envelope import find_record, record_key
from freshness.database.connection import executed_position
from freshness.position import Position
from integration.chaos.judge import REQUIRED
from integration.configuration import CUSTOMER
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    PATIENT,
    System,
    reading,
    repeating,
    running_system,
    wait_for_hits,
    wait_until,
)
from integration.servers import Pair
from integration.servers.program import InvalidatorProcess

LOGGED: Final = f"{CUSTOMER}fill_from_log = true\n"
ORDER: Final = '[objects.order]\ntable = "orders"\n'
ROWS: Final = 3_000
MEMORY_MB_MAX: Final = 300
"""Of an invalidator, whatever comes: it takes 60 MB at rest."""

HOT_BYTES_MAX: Final = 1_000
"""Of the stripe of a row that changes all the time, and of its entry."""


@dataclass
class Watched:
    """Commits that give all customers the same version, and reads that are judged by what their node had
    acknowledged before they began (I1, I10)."""

    system: System
    commits: list[tuple[Position, int]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    demands: Counter[int] = field(default_factory=Counter)

    def write(self, version: int, sql: str = "UPDATE customers SET v = %s", connection: Any = None) -> None:
        """``connection``: to the primary, or one that is made for it."""
        primary = self.system.pair.primary
        if connection is None:
            with primary.connect("shop", read_timeout=600) as own:
                self.write(version, sql, own)
            return
        with connection.cursor() as cursor:
            cursor.execute(sql, (version,))
        self.commits.append((executed_position(connection, primary.flavor), version))

    def acknowledged(self, node: str) -> int:
        """The version that the node's record names."""
        item = self.system.find_raw(node, record_key("shop", "shop/-"))
        record = None if item is None else find_record(item, node)
        commits = list(self.commits)
        return 0 if record is None else max((v for at, v in commits if record.progress.contains(at)), default=0)

    def check(self, cache: Cache, keys: Sequence[int]) -> None:
        """Settle; then all are hits, and as the last commit has them."""
        self.system.settle()
        found = wait_for_hits(cache, "customer", keys, self.system.describe)
        assert {each.value["v"] for each in found.values()} == {self.commits[-1][1]}

    def read(self, cache: Cache, keys: Sequence[int]) -> None:
        least = {node.address: self.acknowledged(node.address) for node in self.system.nodes}
        for key, each in cache.get_many("customer", keys, explain=True).items():
            self.outcomes[each.outcome.name] += 1
            if each.outcome.name in REQUIRED:
                self.demands[least[each.node]] += 1
                assert each.value["v"] >= least[each.node], (key, each)


def memory_mb(invalidator: InvalidatorProcess) -> int:
    """The most that it has had resident."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{invalidator.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) // 1024


def insert(system: System, table: str, rows: int) -> None:
    lines = ", ".join(f"({number}, 0, 0)" for number in range(rows))
    system.execute(f"INSERT INTO {table} VALUES {lines}")


@contextmanager
def watched_system(pair: Pair, folder: Path, rows: int = ROWS, **settings: Any) -> Iterator[tuple[Watched, Cache]]:
    with running_system(pair, folder, **settings) as system, closing(system.open_cache()) as cache:
        insert(system, "customers", rows)
        system.settle()
        wait_for_hits(cache, "customer", range(rows), system.describe)
        yield Watched(system), cache


@pytest.mark.parametrize("objects", [CUSTOMER, LOGGED], ids=["deleted", "filled from the log"])
def test_writes_beyond_the_invalidator(pair: Pair, tmp_path: Path, objects: str) -> None:
    """The invalidator stands still while bulk changes pile up, and more come while it works on them."""
    with watched_system(pair, tmp_path, objects=objects) as (watched, cache):
        system, keys = watched.system, range(ROWS)
        with repeating(lambda: watched.read(cache, random.sample(keys, 20))):
            system.invalidator.pause()
            for version in range(1, 21):
                watched.write(version)
            behind = [watched.acknowledged(node.address) for node in system.nodes]
            system.invalidator.resume()
            for version in range(21, 41):
                watched.write(version)
            system.wait_covered()
            wait_until(lambda: watched.demands[40], "the last version is demanded of a read", system.describe)
        assert behind == [0, 0], "it was not behind"
        watched.check(cache, keys)
        assert memory_mb(system.invalidator) < MEMORY_MB_MAX


def limit(roots: Sequence[Any], connections: int) -> None:
    for connection in roots:
        with connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL max_connections = {connections}")


def test_readers_beyond_the_database(pair: Pair, tmp_path: Path) -> None:
    """All rows are read at once after a flush, by more readers than there are connections, of the process and of the
    servers: a value is right, or an error says why there is none."""
    few = {"connections_max": 4}
    with watched_system(pair, tmp_path, cache=few) as (watched, _):
        system, errors = watched.system, Counter[str]()

        def read_all(seed: int) -> None:
            chance = random.Random(seed)
            with closing(system.open_cache()) as cache, ThreadPoolExecutor(8) as threads:
                for running in [threads.submit(read, cache, chance.sample(range(ROWS), 50)) for _ in range(40)]:
                    running.result()

        def read(cache: Cache, keys: list[int]) -> None:
            try:
                watched.read(cache, keys)
            except FreshnessError as error:
                errors[type(error).__name__] += 1

        with ExitStack() as held:
            roots = [
                held.enter_context(each.connect(user="root")) for each in (system.pair.primary, system.pair.replica)
            ]
            writer = held.enter_context(system.pair.primary.connect("shop"))
            held.callback(limit, roots, 151)
            limit(roots, 10)
            with ThreadPoolExecutor(6) as processes:
                for node in system.nodes:
                    node.ask("flush_all")
                running = [processes.submit(read_all, seed) for seed in range(6)]
                for version in range(1, 6):
                    watched.write(version, connection=writer)
                for each in running:
                    each.result()
        assert set(errors) <= {"SourceUnavailable", "ConnectionsExhausted"}
        with closing(system.open_cache()) as cache:
            watched.check(cache, range(ROWS))


@pytest.mark.parametrize("objects", [CUSTOMER, LOGGED], ids=["deleted", "filled from the log"])
def test_a_row_that_changes_all_the_time(pair: Pair, tmp_path: Path, objects: str) -> None:
    """As often as one connection can: readers see it rise, and neither its stripe nor its entry grows."""
    count, key = 3_000, 7
    with watched_system(pair, tmp_path, rows=10, objects=objects, cache=PATIENT) as (watched, cache):
        system, node = watched.system, watched.system.subject("customer", key).node
        system.execute(f"""CREATE PROCEDURE heat() BEGIN DECLARE n INT DEFAULT 0;
            WHILE n < {count} DO UPDATE customers SET v = v + 1 WHERE id = {key}; SET n = n + 1; END WHILE; END""")
        sizes: list[int] = []

        def look() -> None:
            least = watched.acknowledged(node)
            for _ in range(20):
                each = cache.get("customer", key, explain=True)
                assert each.outcome.name not in REQUIRED or each.value["v"] >= least, each
            found = (system.find_stripe("customer", key), system.find_item("customer", key))
            sizes.extend(len(item.value) for item in found if item is not None)

        items = sum(int(each.stats()["curr_items"]) for each in system.nodes)
        with repeating(look):
            for turn in range(1, 4):
                system.execute("CALL heat()")
                watched.write(turn * count, f"UPDATE customers SET v = %s WHERE id = {key}")
        watched.check(cache, [key])
        assert max(sizes) < HOT_BYTES_MAX
        assert sum(int(each.stats()["curr_items"]) for each in system.nodes) <= items + 10
        assert memory_mb(system.invalidator) < MEMORY_MB_MAX


LARGE: Final = [
    pytest.param(100_000, CUSTOMER, id="100000"),
    pytest.param(100_000, LOGGED, id="100000 filled from the log"),
    pytest.param(1_000_000, CUSTOMER, id="1000000", marks=pytest.mark.long),
    pytest.param(1_000_000, LOGGED, id="1000000 filled from the log", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("rows", "objects"), LARGE)
def test_one_transaction_of_many_rows(pair: Pair, tmp_path: Path, rows: int, objects: str) -> None:
    """All its rows are invalidated, in bounded memory, and the rows of another table stay hits."""
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    with watched_system(pair, tmp_path, tables=tables, objects=objects + ORDER, cache=PATIENT) as (watched, cache):
        system, keys = watched.system, range(0, rows, rows // 1000)
        insert(system, "orders", 100)
        with system.pair.primary.connect("shop", read_timeout=600) as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM customers")
            cursor.execute("CREATE TABLE digits (d INT PRIMARY KEY)")
            cursor.execute("INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)")
            power = len(str(rows)) - 1
            number = " + ".join(f"{10**place} * d{place}.d" for place in range(power))
            digits = ", ".join(f"digits d{place}" for place in range(power))
            cursor.execute(f"INSERT INTO customers SELECT {number}, 'n', 0 FROM {digits}")
            system.settle()
            wait_for_hits(cache, "customer", keys, system.describe)
            wait_for_hits(cache, "order", range(100), system.describe)
            lives = system.lives()
            with reading(cache, "order", range(100)) as seen:
                watched.write(1)
                system.settle()
        watched.check(cache, keys)
        assert system.lives() == lives
        assert {outcome.name for outcome in seen} == {"HIT"}
        assert memory_mb(system.invalidator) < MEMORY_MB_MAX


MANY: Final = [pytest.param(500, id="500"), pytest.param(10_000, id="10000", marks=pytest.mark.long)]


@pytest.mark.parametrize("count", MANY)
def test_many_tables_and_columns(pair: Pair, tmp_path: Path, count: int) -> None:
    """Each table has an object, and one has a thousand columns. All start, the others stay hits during DDL, and each
    is hit again after it."""
    columns = ", ".join(f"c{number} INT DEFAULT {number}" for number in range(1000))
    with pair.primary.connect("shop", read_timeout=600) as connection, connection.cursor() as cursor:
        for number in range(count):
            cursor.execute(f"CREATE TABLE t{number} (id BIGINT PRIMARY KEY, v INT)")
        cursor.execute(f"CREATE TABLE wide (id BIGINT PRIMARY KEY, v INT, {columns})")
    objects = "".join(f'[objects.o{number}]\ntable = "t{number}"\n' for number in range(count))
    wide = '[objects.wide]\ntable = "wide"\nfill_from_log = true\n'
    with (
        running_system(pair, tmp_path, tables=(), objects=objects + wide, cache=PATIENT) as system,
        closing(system.open_cache()) as cache,
    ):
        names = ["wide", *(f"o{number}" for number in random.sample(range(count), 20))]
        for table in ("wide", *(f"t{name[1:]}" for name in names[1:])):
            system.execute(f"INSERT INTO {table} (id, v) VALUES (1, 0)")
        system.settle()
        for name in names:
            wait_for_hits(cache, name, [1], system.describe)
        lives = system.lives()
        system.execute("UPDATE wide SET v = 1")
        system.execute("ALTER TABLE wide ADD COLUMN more INT")
        system.execute(f"TRUNCATE TABLE t{names[1][1:]}")
        system.settle()
        assert {cache.get(name, 1, explain=True).outcome.name for name in names[2:]} == {"HIT"}
        for name, expected in zip(names, (1, None, *[0] * 19), strict=True):
            [each] = wait_for_hits(cache, name, [1], system.describe).values()
            assert (each.value and each.value["v"]) == expected, name
        assert system.lives() == lives
        assert memory_mb(system.invalidator) < MEMORY_MB_MAX + count // 20  # 50 kB for each object
