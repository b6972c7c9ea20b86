"""The invalidator as a process, on real servers: crashes, pauses, restarts of everything. Nothing is poisoned.

Each disturbance works on keys of its own, which nobody changes afterwards: a poisoned entry would stay and be
found at the end, both in the raw bytes and through the cache. Readers fill all the time.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appclient import Cache, Explanation, LoaderConnection, ReadOutcome, SourceUnavailable
from integration.configuration import CUSTOMER
from integration.harness import (
    LEASE_SECONDS,
    MAX_STALENESS_SECONDS,
    REPLICAS_ALONE,
    WAIT_SECONDS,
    System,
    running_system,
    wait_for_hits,
    wait_for_outcome,
    wait_until,
)
from integration.servers import DatabaseServer, Memcached, Pair
from integration.servers.program import InvalidatorProcess

KILLS = 20
KEYS_PER_ROUND = 8
REPLICA_STOP_SECONDS = 5
ONE_FLAVOR = ("mariadb",)
"""For tests that wait long, on what has nothing to do with the database."""

LAPSED = frozenset((ReadOutcome.NO_RECORD, ReadOutcome.CLOSED))
"""Outcomes of reads if a lease has lapsed on a slow machine."""


class Load:
    """A writer that changes the keys of the current round, and readers that fill keys of all rounds so far."""

    def __init__(self, system: System, seed: int, *, readers: int = 2) -> None:
        self._system = system
        self._random = random.Random(seed)
        self._round = 0
        self._stopping = threading.Event()
        self.writes = 0
        self.reads = 0
        self._failures: list[BaseException] = []
        threads = [threading.Thread(target=self._guard, args=(self._write,))]
        threads += [
            threading.Thread(target=self._guard, args=(lambda s=s: self._read(random.Random(seed + s)),))
            for s in range(1, readers + 1)
        ]
        self._threads = threads

    @property
    def keys(self) -> list[int]:
        """All that were written so far."""
        return list(range((self._round + 1) * KEYS_PER_ROUND))

    def next_round(self) -> None:
        self._round += 1

    def wait_writes(self, count: int) -> None:
        """Return after that many more writes: in the middle of the burst."""
        target = self.writes + count
        wait_until(lambda: self._failures or self.writes >= target, f"{count} rows are written")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _guard(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that joins
            self._failures.append(error)

    def _write(self) -> None:
        with self._system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                if self._stopping.is_set():
                    return
                key = self._round * KEYS_PER_ROUND + self._random.randrange(KEYS_PER_ROUND)
                if self._random.random() < 0.1:
                    cursor.execute("DELETE FROM customers WHERE id = %s", (key,))
                else:
                    cursor.execute(
                        "INSERT INTO customers VALUES (%s, 'n', %s) ON DUPLICATE KEY UPDATE v = %s",
                        (key, number, number),
                    )
                self.writes += 1
                time.sleep(0.004)

    def _read(self, choose: random.Random) -> None:
        cache = self._system.open_cache()
        while not self._stopping.is_set():
            first = max(0, self._round - choose.randrange(4)) * KEYS_PER_ROUND
            cache.get_many("customer", range(first, first + KEYS_PER_ROUND))
            cache.get("customer", first + choose.randrange(KEYS_PER_ROUND))
            self.reads += KEYS_PER_ROUND + 1
            time.sleep(0.003)  # the other processes need the machine, too
        cache.close()


@contextmanager
def system_with_cache(pair: Pair, folder: Path, **settings: Any) -> Iterator[tuple[System, Cache]]:
    with running_system(pair, folder, cache=settings) as system:
        cache = system.open_cache()
        yield system, cache
        cache.close()


def insert_customers(system: System, count: int) -> list[int]:
    rows = ", ".join(f"({key}, 'n{key}', 0)" for key in range(count))
    system.execute(f"INSERT INTO customers VALUES {rows}")
    system.settle()
    return list(range(count))


def purge_logs(server: DatabaseServer) -> bool:
    """Whether only the last log is left. The server keeps one as long as a reader, even a dead one, is at it."""
    [*_, last] = server.execute("SHOW BINARY LOGS")
    server.execute(f"PURGE BINARY LOGS TO '{last[0]}'")
    return len(server.execute("SHOW BINARY LOGS")) == 1


def read_anew(system: System, keys: Sequence[int]) -> dict[int, Explanation]:
    """Read as another process would, without a copy of the nodes' records; retry if a lease had lapsed."""
    cache = system.open_cache()
    read: dict[int, Explanation] = {}

    def read_the_rest() -> bool:
        rest = cache.get_many("customer", [key for key in keys if key not in read], explain=True)
        read.update((key, each) for key, each in rest.items() if each.outcome not in LAPSED)
        return len(read) == len(keys)

    wait_until(read_the_rest, "the nodes are open", system.describe)
    cache.close()
    return read


# -- kill -9 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_kill_9_twenty_times(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache):
        chance = random.Random(20)
        with Load(system, seed=1) as load:
            for _ in range(KILLS):
                wait_until(system.invalidator.is_streaming, "the invalidator streams", system.describe)
                load.wait_writes(chance.randrange(5, 40))
                system.invalidator.kill()
                system.invalidator.launch()
                load.next_round()
        assert load.reads
        system.assert_none_stale(cache, "customer", load.keys)


def test_a_kill_longer_than_the_lease_costs_no_cache(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 20)
        wait_for_hits(cache, "customer", keys, system.describe)
        system.wait_resumable()
        lives = system.lives()
        system.invalidator.kill()
        wait_until(lambda: all(node["state"] == "lapsed" for node in system.status()), "the leases have run out")
        # Nobody vouches for what is cached, so it is not served, and nobody fills.
        refused = cache.get_many("customer", keys, explain=True)
        assert {each.outcome for each in refused.values()} == {ReadOutcome.NO_RECORD}
        system.execute("UPDATE customers SET v = 1 WHERE id < 5")
        system.invalidator.start()
        system.settle()
        assert system.lives() == lives
        after = read_anew(system, keys)
        assert {key for key, each in after.items() if not each.is_hit} == set(range(5))
        assert all(each.value["v"] == (1 if key < 5 else 0) for key, each in after.items())


def test_sigterm_ends_with_0_and_the_next_start_goes_on_with_the_same_lives(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 20)
        wait_for_hits(cache, "customer", keys, system.describe)
        lives = system.lives()
        assert system.invalidator.terminate() == 0
        assert "Traceback" not in system.invalidator.log()
        system.execute("UPDATE customers SET v = 1 WHERE id = 3")
        system.invalidator.start()
        system.settle()
        assert system.lives() == lives
        after = read_anew(system, keys)
        assert {key for key, each in after.items() if not each.is_hit} == {3}
        assert after[3].value["v"] == 1


# -- cache nodes ---------------------------------------------------------------------------------------


def test_memcached_restarted_in_the_middle(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache):
        with Load(system, seed=2) as load:
            for node in (system.nodes[0], system.nodes[1], system.nodes[0]):
                load.wait_writes(60)
                previous = system.lives()[node.address]
                node.restart()
                load.wait_writes(60)
                system.wait_new_life(node, previous)
                load.next_round()
        assert load.reads
        system.assert_none_stale(cache, "customer", load.keys)


def test_memcached_paused_in_the_middle(pair: Pair, tmp_path: Path) -> None:
    """Its connections stay open and nothing answers, for longer than the lease and the time-outs."""
    with system_with_cache(pair, tmp_path) as (system, cache):
        with Load(system, seed=3) as load:
            load.wait_writes(60)
            system.nodes[0].pause()
            started_at = time.monotonic()
            while time.monotonic() - started_at < LEASE_SECONDS + 1.5:
                load.wait_writes(10)
            system.nodes[0].resume()
            load.next_round()
            load.wait_writes(60)
        system.assert_none_stale(cache, "customer", load.keys)


def test_memcached_flushed_by_a_stranger(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache):
        address = system.nodes[0].address

        def has_joined(times: int) -> bool:
            return system.invalidator.log().count(f"node {address} joined: ") >= times

        with Load(system, seed=4) as load:
            for number in range(1, 4):
                load.wait_writes(60)
                assert system.nodes[0].ask("flush_all") == "OK\r\n"
                # In a new life, or in the same one if the record's copy was written just after the flush
                wait_until(partial(has_joined, 1 + number), "the node is joined again", system.describe)
                assert address in system.lives(), "it is open"
                load.next_round()
        system.assert_none_stale(cache, "customer", load.keys)


def make_room(system: System, sizes: Iterable[int]) -> None:
    """A program that shares the node pushes out the items whose values are of these sizes."""
    [node] = system.nodes
    with socket.create_connection(("127.0.0.1", node.port), WAIT_SECONDS) as connection:
        for size in sizes:
            # Keys as long as those of stripes, since the size of the whole item counts
            junk = (b"set %016d 0 0 %d noreply\r\n%b\r\n" % (n, size, b"j" * size) for n in range(50_000))
            connection.sendall(b"".join(junk))
        connection.sendall(b"version\r\n")
        assert connection.recv(100).startswith(b"VERSION")


@contextmanager
def crowded_system(pair: Pair, folder: Path) -> Iterator[tuple[System, Cache]]:
    """One node with hardly any memory and one plain list of what was used last."""
    node = Memcached(memory_mb=6, options=("-o", "no_modern"))
    with running_system(pair, folder, nodes=[node], cache=REPLICAS_ALONE) as system:
        cache = system.open_cache()
        yield system, cache
        cache.close()


def test_evicted_stripes_refuse_and_come_back_with_what_they_had(pair: Pair, tmp_path: Path) -> None:
    with crowded_system(pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 20)
        wait_for_hits(cache, "customer", keys, system.describe)
        lives = system.lives()
        pair.replica.stop_replication()
        try:
            system.execute("UPDATE customers SET v = 1")
            system.wait_covered()

            def read_without_stripes() -> bool:
                """Whether the invalidator had not put all stripes back when the reads ended."""
                held = [system.find_stripe("customer", key) for key in keys]
                make_room(system, {len(stripe.value) for stripe in held if stripe is not None})
                reads = cache.get_many("customer", keys, explain=True)
                assert {each.value["v"] for each in reads.values()} == {0}
                outcomes = {each.outcome for each in reads.values()}
                assert outcomes <= {ReadOutcome.BOUNDED, *LAPSED}
                return ReadOutcome.BOUNDED in outcomes and any(
                    system.find_stripe("customer", key) is None for key in keys
                )

            wait_until(read_without_stripes, "a read finds no stripe", system.describe)
            # The replica lacks the change all the while, and the stripes that come back have it.
            for key in keys:
                wait_until(partial(system.find_stripe, "customer", key), "its stripe is back", system.describe)
                wait_for_outcome(cache, "customer", key, [ReadOutcome.BOUNDED], system.describe)
            assert system.find_stale("customer", keys) == (0, [])
        finally:
            pair.replica.start_replication()
        system.assert_none_stale(cache, "customer", keys)
        assert system.lives() == lives, "an eviction ends no life"


def test_memcached_evicts_stripes_in_the_middle(pair: Pair, tmp_path: Path) -> None:
    with crowded_system(pair, tmp_path) as (system, cache):
        with Load(system, seed=6) as load:
            for _ in range(4):
                load.wait_writes(60)
                make_room(system, range(20, 150, 20))
                load.wait_writes(20)
                load.next_round()
        assert load.reads
        system.assert_none_stale(cache, "customer", load.keys)


def test_a_flushed_node_refuses_what_was_read_before_its_new_life(pair: Pair, tmp_path: Path) -> None:
    with crowded_system(pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 20)
        wait_for_hits(cache, "customer", keys, system.describe)
        [node] = system.nodes
        previous = system.lives()[node.address]
        pair.replica.stop_replication()
        try:
            system.execute("UPDATE customers SET v = 1")
            system.wait_covered()

            def is_flushed() -> bool:
                """The life stays the same if the record's copy was written just after the flush."""
                assert node.ask("flush_all") == "OK\r\n"
                system.wait_open()
                return system.lives()[node.address] != previous

            wait_until(is_flushed, "the flushed node has another life", system.describe)
            system.wait_open()
            assert find_outcomes(cache, keys) == {ReadOutcome.BOUNDED}
            assert system.find_stale("customer", keys) == (0, [])
        finally:
            pair.replica.start_replication()
        system.assert_none_stale(cache, "customer", keys)


# -- the databases -------------------------------------------------------------------------------------


def find_outcomes(cache: Cache, keys: Sequence[int]) -> set[ReadOutcome]:
    """The outcomes of reads while all nodes are open."""

    def ask() -> set[ReadOutcome] | None:
        found = {each.outcome for each in cache.get_many("customer", keys, explain=True).values()}
        return None if found & LAPSED else found

    return wait_until(ask, "the nodes are open")


@pytest.mark.parametrize("stop_seconds", [REPLICA_STOP_SECONDS])
def test_replica_stopped_for_ten_seconds(pair: Pair, tmp_path: Path, stop_seconds: float) -> None:
    with system_with_cache(pair, tmp_path, **REPLICAS_ALONE) as (system, cache):
        keys = insert_customers(system, 20)
        changed = keys[:10]
        wait_for_hits(cache, "customer", keys, system.describe)
        system.pair.replica.stop_applying()
        try:
            stopped_at = time.monotonic()
            number = 0
            while time.monotonic() - stopped_at < stop_seconds:
                number += 1
                system.execute("UPDATE customers SET v = %s WHERE id < 10", number)
                system.execute("INSERT INTO customers VALUES (%s, 'new', 0)", 100 + number)
                system.wait_covered()
                assert find_outcomes(cache, changed) == {ReadOutcome.BOUNDED}
                assert find_outcomes(cache, [100 + number]) == {ReadOutcome.BOUNDED}
                assert system.find_stale("customer", [*changed, 100 + number]) == (0, [])
                # What did not change is served and stays.
                assert find_outcomes(cache, keys[10:]) == {ReadOutcome.HIT}
        finally:
            system.pair.replica.start_replication()
        system.assert_none_stale(cache, "customer", [*keys, *range(101, 101 + number)])


def change_and_purge(system: System, v: int, *servers: DatabaseServer) -> None:
    """While no invalidator runs: every customer changes, and these servers forget how."""
    system.invalidator.kill()
    system.execute("UPDATE customers SET v = %s", v)
    system.pair.wait_caught_up()
    for server in servers:
        server.execute("FLUSH BINARY LOGS")
        wait_until(lambda server=server: purge_logs(server), "all but the last log are purged")  # type: ignore[misc]
    system.invalidator.start()


def test_a_replica_still_has_the_log_that_the_primary_has_purged(own_pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(own_pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 10)
        wait_for_hits(cache, "customer", keys, system.describe)
        lives = system.lives()
        change_and_purge(system, 1, own_pair.primary)
        system.assert_none_stale(cache, "customer", keys)
        assert {row["v"] for row in cache.get_many("customer", keys).values()} == {1}
        assert system.lives() == lives


def test_the_log_that_is_needed_is_purged_everywhere(own_pair: Pair, tmp_path: Path) -> None:
    """F15: the lives end, since invalidations are missing; nothing old is served and all is cacheable again."""
    with system_with_cache(own_pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 10)
        wait_for_hits(cache, "customer", keys, system.describe)
        lives = system.lives()
        change_and_purge(system, 1, own_pair.primary, own_pair.replica)
        for node in system.nodes:
            system.wait_new_life(node, lives[node.address])
        # The history is the same, and so is the epoch.
        assert {node["epoch"] for node in system.status()} == {1}
        system.assert_none_stale(cache, "customer", keys)
        assert {row["v"] for row in cache.get_many("customer", keys).values()} == {1}


def test_primary_and_replica_killed_and_started_again(own_pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(own_pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 20)
        wait_for_hits(cache, "customer", keys, system.describe)
        lives = system.lives()
        own_pair.primary.kill()
        assert cache.get("customer", 1, explain=True).is_hit
        wait_until(lambda: "heartbeat not written" in system.invalidator.log(), "the invalidator misses it")
        own_pair.primary.start()
        system.execute("UPDATE customers SET v = 1 WHERE id < 10")
        system.assert_none_stale(cache, "customer", keys)
        assert system.lives() == lives, "an outage of the database costs no cache"

        own_pair.replica.kill()
        assert cache.get("customer", 1, explain=True).is_hit
        system.execute("UPDATE customers SET v = 2 WHERE id < 10")
        system.wait_covered()
        # The primary stands in, and what it shows is stored by the same rule.
        assert cache.get("customer", 1)["v"] == 2
        wait_for_hits(cache, "customer", keys, system.describe)
        own_pair.primary.kill()
        assert cache.get("customer", 1, explain=True).is_hit
        assert cache.get("customer", 15, explain=True).is_hit
        with pytest.raises(SourceUnavailable, match="no server of shop/- answers"):
            cache.get("customer", 999)
        own_pair.primary.start()
        own_pair.replica.start()
        own_pair.replica.start_replication()
        system.assert_none_stale(cache, "customer", keys)


# -- paused invalidators -------------------------------------------------------------------------------


@pytest.mark.parametrize("flavor", ONE_FLAVOR)
def test_every_line_of_a_log_in_json_is_an_object(pair: Pair, tmp_path: Path) -> None:
    with (
        system_with_cache(pair, tmp_path) as (system, _),
        InvalidatorProcess(system.config_path, "--log-format", "json") as second,
    ):
        wait_until(second.is_streaming, "it streams", second.log_tail)
        config, right = system.config, system.config_path.read_text()
        system.config_path.write_text(right + "\n[nonsense]\n")
        second.reload(config)
        wait_until(lambda: "stays as it was" in second.log(), "it has refused the file", second.log_tail)
        system.config_path.write_text(right)
        assert second.terminate() == 0
        lines = [json.loads(line) for line in second.log().splitlines()]
        assert {"time", "level", "logger", "message", "thread"} <= set.intersection(*map(set, lines))
        (refused,) = [line for line in lines if "stays as it was" in line["message"]]
        assert (refused["level"], refused["error"]) == ("ERROR", "ConfigError")
        assert refused["hint"]


@pytest.mark.parametrize("flavor", ONE_FLAVOR)
def test_two_invalidators_one_paused_longer_than_the_lease(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache), InvalidatorProcess(system.config_path) as second:
        wait_until(second.is_streaming, "the second streams", second.log_tail)
        with Load(system, seed=5) as load:
            load.wait_writes(60)
            for paused in (system.invalidator, second):
                paused.pause()
                paused_at = time.monotonic()
                while time.monotonic() - paused_at < LEASE_SECONDS + 1.5:
                    load.wait_writes(10)
                # The other one keeps the cache going.
                system.wait_open()
                load.next_round()
                load.wait_writes(20)
                paused.resume()
                load.wait_writes(60)
                load.next_round()
        assert system.invalidator.is_running()
        assert second.is_running()
        system.assert_none_stale(cache, "customer", load.keys)


def test_the_only_invalidator_paused_hits_end_within_max_staleness(pair: Pair, tmp_path: Path) -> None:
    with system_with_cache(pair, tmp_path) as (system, cache):
        keys = insert_customers(system, 10)
        wait_for_hits(cache, "customer", keys, system.describe)
        system.invalidator.pause()
        try:
            system.execute("UPDATE customers SET v = 1")
            changed_at = time.monotonic()
            has_hit = False
            # Read on past the bound, not just until the first read without a hit: a renewal that the invalidator sent
            # before it was paused may still bring hits back.
            while (asked_at := time.monotonic()) - changed_at <= MAX_STALENESS_SECONDS + 1:
                reads = cache.get_many("customer", keys, explain=True).values()
                hits = [each for each in reads if each.is_hit]
                has_hit = has_hit or bool(hits)
                assert {each.value["v"] for each in hits} <= {0}
                assert not hits or asked_at - changed_at <= MAX_STALENESS_SECONDS, (
                    "I7: a hit beyond max_staleness_seconds"
                )
            assert has_hit
            wait_for_outcome(cache, "customer", 1, [ReadOutcome.NO_RECORD], system.describe)
            system.pair.wait_caught_up()
            assert {each["v"] for each in cache.get_many("customer", keys).values()} == {1}
        finally:
            system.invalidator.resume()
        system.assert_none_stale(cache, "customer", keys)


@pytest.mark.parametrize("flavor", ONE_FLAVOR)
def test_a_composite_of_cached_parts_has_none_from_a_node_that_is_behind(pair: Pair, tmp_path: Path) -> None:
    """Two processes serve a node each. That of the part's node stands still, and the composite's node has the change:
    the part would be old, and nothing would ever invalidate the composite again (F18)."""
    objects = CUSTOMER + '[objects.card]\nkey = "id"\nmembers = { customers = "id" }\n'
    with running_system(pair, tmp_path, objects=objects) as system, closing(system.open_cache()) as cache:
        keys = insert_customers(system, 60)
        nodes = {key: system.subject("customer", key).node for key in keys}
        apart = iter([key for key in keys if system.subject("card", key).node != nodes[key]])

        @cache.loader("card")
        def load_card(database: LoaderConnection, customer_id: int) -> dict[str, Any]:
            database.query_one("SELECT 1 FROM customers WHERE id = %s", (customer_id,))
            return {"customer": cache.get("customer", customer_id)}

        def read_while_the_part_is_old(key: int, late: InvalidatorProcess) -> bool:
            """Whether the part was an old hit when the composite was read. A machine can be too slow for that."""
            wait_for_hits(cache, "customer", [key], system.describe)
            late.pause()
            try:
                system.execute("UPDATE customers SET v = 1 WHERE id = %s", key)
                system.pair.wait_caught_up()
                composite = system.subject("card", key)
                wait_until(lambda: system.has_acknowledged(composite.node), "its node has the change")
                is_old: bool = cache.get("customer", key)["v"] == 0
                cache.get("card", key)
            finally:
                late.resume()
            system.settle()
            return is_old

        system.invalidator.terminate()
        with ExitStack() as stack:
            processes = {
                node.address: stack.enter_context(
                    InvalidatorProcess(system.config_path, "--node", node.address, needs_stripes=False)
                )
                for node in system.nodes
            }
            system.wait_open()
            for key in apart:
                was_old = read_while_the_part_is_old(key, processes[nodes[key]])
                assert cache.get("card", key)["customer"]["v"] == 1, "poisoned"
                if was_old:
                    return
        pytest.fail("no part was ever an old hit: the lease is over before the composite is read")
