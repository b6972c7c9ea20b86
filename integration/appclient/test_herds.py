"""Two hundred readers of one key that was just invalidated: at most two of them read the database (F40)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import AsyncCache, Cache, LoaderConnection
from appclient.reading import flights
from freshness.algorithm.lookup import Loaded
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, running_system, wait_for_hits, wait_until
from integration.servers import Pair

READERS: Final = 200
PROCESSES: Final = 8
LOAD_SECONDS: Final = 0.5
"""Longer than readers wait for another one's fill: those of a process share a load."""

PATIENCE_SECONDS: Final = 120.0
"""Limit of the time until all readers of a process have asked, and of their wait for the load of another one."""

SHORT_LOAD_SECONDS: Final = 0.1
PATIENT: Final = "fill_wait_ms = 9000"
"""Processes wait for the fill, however busy the machine is."""


class Counted:
    """A loader that says in a file when it ran, for whatever process. It ends once ``expected`` readers of its own
    process have asked for the value, of which ``asked`` have."""

    def __init__(self, path: Path, seconds: float = LOAD_SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self.asked, self.expected = 0, 0

    def reset(self, expected: int = 0) -> None:
        self.path.write_bytes(b"")
        self.asked, self.expected = 0, expected

    def load(self, database: LoaderConnection, customer_id: int) -> Any:
        self._note()
        time.sleep(self.seconds)
        wait_until(lambda: self.asked >= self.expected, "all readers have asked", seconds=PATIENCE_SECONDS)
        return database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))

    async def load_on_loop(self, database: Any, customer_id: int) -> Any:
        self._note()
        await asyncio.sleep(self.seconds)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.asked < self.expected:
                await asyncio.sleep(0.01)
        return await database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))

    def _note(self) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)

    @property
    def count(self) -> int:
        return len(self.path.read_bytes())


@pytest.fixture(scope="module")
def system(mariadb_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    folder = tmp_path_factory.mktemp("herds")
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    # Nobody shares a load while no lease runs: one that does not lapse on a busy machine
    cache = {"lease_seconds": 90, "max_staleness_seconds": 300, "connections_max": 2 * READERS}
    objects = CUSTOMER + PROFILE
    with running_system(mariadb_pair, folder, tables=tables, objects=objects, cache=cache) as running:
        yield running


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted, load, lock = Counted(tmp_path / "loads"), flights.Flights.load, threading.Lock()
    counted.reset()

    def count_and_load(self: flights.Flights, *arguments: Any) -> list[Loaded]:
        with lock:
            counted.asked += 1
        return load(self, *arguments)

    monkeypatch.setattr(flights.Flights, "load", count_and_load)
    monkeypatch.setattr(flights, "WAIT_SECONDS", PATIENCE_SECONDS)
    return counted


def invalidate(system: System, cache: Cache, key: int, counted: Counted) -> int:
    """Make the key one that was filled and is gone. Returns the value that it has from now on."""
    counted.reset()
    system.execute("INSERT IGNORE INTO customers VALUES (%s, 'n', 0)", key)
    system.settle()
    wait_for_hits(cache, "profile", [key], system.describe)
    system.execute("UPDATE customers SET v = v + 1 WHERE id = %s", key)
    system.settle()
    counted.reset(READERS)
    [(value,)] = system.execute("SELECT v FROM customers WHERE id = %s", key)
    return int(value)


def test_a_herd_of_threads(system: System, counted: Counted) -> None:
    cache = system.open_cache()
    cache.loader("profile")(counted.load)
    for key in (1, 2):
        value = invalidate(system, cache, key, counted)
        together = threading.Barrier(READERS)

        def read(key: int = key, together: threading.Barrier = together) -> Any:
            together.wait()
            return cache.get("profile", key)["v"]

        with ThreadPoolExecutor(READERS) as pool:
            answers = [pool.submit(read) for _ in range(READERS)]
        assert {answer.result() for answer in answers} == {value}
        assert 1 <= counted.count <= 2
    cache.close()


def test_a_herd_of_tasks(system: System, counted: Counted) -> None:
    blocking = system.open_cache()
    blocking.loader("profile")(counted.load)

    async def run() -> None:
        async with await AsyncCache.open(system.config_path) as cache:
            cache.loader("profile")(counted.load_on_loop)
            for key in (11, 12):
                value = await asyncio.to_thread(invalidate, system, blocking, key, counted)
                found = await asyncio.gather(*(cache.get("profile", key) for _ in range(READERS)))
                assert {each["v"] for each in found} == {value}
                assert 1 <= counted.count <= 2

    asyncio.run(run())
    blocking.close()


def read_in_process(path: Path, loads: Path, key: int, readers: int, together: Barrier, answers: Any) -> None:
    counted = Counted(loads, SHORT_LOAD_SECONDS)
    cache = Cache.open(path)
    cache.loader("profile")(counted.load)
    cache.get("customer", key)  # connections are open, records are known
    with ThreadPoolExecutor(readers) as pool:
        together.wait()
        for answer in [pool.submit(cache.get, "profile", key) for _ in range(readers)]:
            answers.put(answer.result()["v"])
    cache.close()


def test_a_herd_of_processes(system: System, counted: Counted) -> None:
    blocking = system.open_cache()
    blocking.loader("profile")(counted.load)
    value = invalidate(system, blocking, 21, counted)
    path = system.config_path.with_name("patient.toml")
    path.write_text(system.config_path.read_text().replace("[cache]", f"[cache]\n{PATIENT}", 1))
    context = get_context("fork")
    together, answers = context.Barrier(PROCESSES), context.Queue()
    readers = READERS // PROCESSES
    arguments = (path, counted.path, 21, readers, together, answers)
    processes = [context.Process(target=read_in_process, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=PATIENCE_SECONDS) for _ in range(readers * PROCESSES)]
    for process in processes:
        process.join(PATIENCE_SECONDS)
    assert set(found) == {value}
    assert 1 <= counted.count <= 2
    blocking.close()
