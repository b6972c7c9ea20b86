"""The sink on a cluster whose executors, processes of tasks and drivers are killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from appclient import Cache
from integration.configuration import CUSTOMER, write_config
from integration.harness import CACHE, STREAM, System, running_system, wait_for_hits, wait_until
from integration.servers import Pair, ServerFailed
from integration.servers.process import find_free_port
from integration.servers.sink import SinkProcess
from integration.servers.spark import SparkMaster
from integration.spark.cluster import LOST_EXECUTOR, Cluster
from integration.spark.test_sink import find_lacking, head_of, read_events, wait_acknowledged


@pytest.fixture
def flavor() -> str:
    """One flavor is enough: positions and rows of the other are under test elsewhere."""
    return "mariadb"


SINK: Final = "sink"
"""Namespace of the sink, on the nodes that the invalidator looks after too."""

KEYS: Final = range(1, 201)
BATCHES_SECONDS: Final = 240.0


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    sections = f'[http]\nlisten = "127.0.0.1:{port}"\n[archive]\npath = "archive"\nrotate_seconds = 1\n'
    with running_system(pair, tmp_path, extra=sections) as started:
        yield started


@pytest.fixture
def sunk(system: System, tmp_path: Path) -> System:
    """The same servers as the sink's own configuration sees them."""
    folder = tmp_path / SINK
    folder.mkdir()
    path = write_config(
        folder,
        system.pair.primary.flavor,
        system.pair.primary.url,
        [node.address for node in system.nodes],
        replicas=[system.pair.replica.url],
        objects=CUSTOMER,
        cache={**CACHE, "namespace": SINK, "lease_seconds": 5, "max_staleness_seconds": 40},
        stream=STREAM,
    )
    return System(system.pair, system.nodes, path, system.invalidator)


class Traffic:
    """Writers and readers in threads of their own, until the block ends. ``rounds``: the writer's rounds so far."""

    def __init__(self, system: System) -> None:
        self.rounds = self.hits = 0
        self._system = system
        self._stopping = threading.Event()
        self._failures: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._write, self._read)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        for failure in self._failures:
            raise failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self._failures.append(error)

    def _write(self) -> None:
        chance = random.Random(1)
        while not self._stopping.wait(0.01):
            key, kind = chance.choice(KEYS), chance.random()
            if kind < 0.1:
                self._system.execute("DELETE FROM customers WHERE id = %s", key)
            elif kind < 0.15:
                self._system.execute("UPDATE customers SET v = v + 1 WHERE id %% 10 = %s", key % 10)
            else:
                statement = "INSERT INTO customers VALUES (%s, 'n', 1) ON DUPLICATE KEY UPDATE v = v + 1"
                self._system.execute(statement, key)
            self.rounds += 1

    def _read(self) -> None:
        cache: Cache = self._system.open_cache()
        try:
            while not self._stopping.wait(0.01):
                found = cache.get_many("customer", list(KEYS), explain=True)
                self.hits += sum(each.is_hit for each in found.values())
        finally:
            cache.close()


def count_commits(checkpoint: Path) -> int:
    """The number of the last micro-batch that Spark has committed."""
    return max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_entry_is_poisoned_by_a_sink_whose_processes_are_killed(
    system: System, sunk: System, cluster: Cluster, port: int, tmp_path: Path
) -> None:
    """Executors, processes of tasks and the driver die among micro-batches, while rows are written and read."""
    checkpoint = tmp_path / "checkpoint"
    metrics = find_free_port()
    options = ("--url", f"http://127.0.0.1:{port}", "--metrics-listen", f"127.0.0.1:{metrics}")
    sink = SinkProcess(sunk.config_path, *options, checkpoint=checkpoint, master=cluster.address)
    one, two = cluster.workers

    def goes_on(batches: int, traffic: Traffic) -> None:
        wanted, rounds = count_commits(checkpoint) + batches, traffic.rounds + 50

        def has_committed() -> bool:
            traffic.check()
            if not sink.is_running():
                raise ServerFailed(f"the sink has ended\n{sink.log_tail()}")
            return count_commits(checkpoint) >= wanted and traffic.rounds >= rounds

        wait_until(has_committed, "micro-batches are committed", sink.log, seconds=BATCHES_SECONDS)

    with ExitStack() as stack:
        sink.launch()
        stack.callback(sink.stop)
        wait_until(sink.is_ready, "the sink's nodes are open", sink.log, seconds=BATCHES_SECONDS)
        with Traffic(sunk) as traffic:
            goes_on(3, traffic)
            wait_until(one.kill_executor, "an executor is killed at work", sink.log)
            goes_on(5, traffic)
            wait_until(two.signal_python, "the process of a task is killed", sink.log)
            goes_on(5, traffic)
            sink.kill()
            sink.launch()
            goes_on(5, traffic)
            wait_until(two.kill_executor, "the other executor is killed at work", sink.log)
            sink.kill()
            sink.launch()
            goes_on(5, traffic)
            hits = traffic.hits
        assert LOST_EXECUTOR in sink.log()
        assert hits > 0
        head = head_of(system)
        wait_acknowledged(system, SINK, head)
        wait_until(lambda: count_commits(checkpoint) and not find_lost(system, tmp_path), "no event is lost")
        live, stale = sunk.find_stale("customer", KEYS)
        assert (stale, live > 0) == ([], True), "\n".join(stale)
        sunk.pair.wait_caught_up()
        cache = sunk.open_cache()
        stack.callback(cache.close)
        wait_for_hits(cache, "customer", list(KEYS), sink.log)
        assert sunk.find_stale("customer", KEYS) == (len(KEYS), [])
        told = scrape(metrics)
        assert "freshness_sink_stand_in 0.0" in told
        assert float(told.split("\nfreshness_query_rows_total ")[1].split()[0]) > 0
        assert f'freshness_sink_nodes_open{{lineage="{sunk.config.lineages[0]}"}} 2.0' in told
        assert sink.terminate() == 0


def scrape(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        found: str = answer.read().decode()
    return found


def find_lost(system: System, folder: Path) -> list[bytes]:
    """The items of the sink whose stripes lack an event that the archive has."""
    return find_lacking(system, read_events(system, folder, SINK), SINK)


def test_the_driver_stands_in_where_no_executor_comes(
    system: System, sunk: System, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    checkpoint = tmp_path / "checkpoint"
    with ExitStack() as stack:
        master = stack.enter_context(SparkMaster())
        url = f"http://127.0.0.1:{port}"
        metrics = find_free_port()
        options = ("--url", url, "--metrics-listen", f"127.0.0.1:{metrics}")
        sink = SinkProcess(sunk.config_path, *options, checkpoint=checkpoint, master=master.address)
        sink.launch()
        stack.callback(sink.stop)
        cache = sunk.open_cache()
        stack.callback(cache.close)
        system.execute("INSERT INTO customers VALUES (1, 'n', 0), (2, 'n', 0)")
        wait_until(sink.is_ready, "the sink's nodes are open", sink.log, seconds=BATCHES_SECONDS)
        wait_for_hits(cache, "customer", [1, 2, 3], sink.log)
        system.execute("UPDATE customers SET v = 7 WHERE id = 2")
        system.execute("INSERT INTO customers VALUES (3, 'n', 8)")
        wait_acknowledged(system, SINK, head_of(system))
        assert sunk.find_stale("customer", [1, 2, 3])[1] == []
        found = wait_for_hits(cache, "customer", [1, 2, 3], sink.log)
        assert [found[key].value["v"] for key in (1, 2, 3)] == [0, 7, 8]
        assert count_commits(checkpoint) == -1
        assert "freshness_sink_stand_in 1.0" in scrape(metrics)
