"""A cache node that hangs under load: who waits for it, what its keys cost, and when they are hits again (F106)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, cast

import pytest

from appclient import Cache, ReadOutcome
from appclient.connection.breaker import Breakers
from freshness.algorithm.request import Reply
from freshness.errors import NodeTimedOut
from freshness.nodes.memcached import MemcachedNode
from integration.appclient.tasks import loop_cache
from integration.harness import System, running_system, wait_for_hits, wait_until
from integration.servers import Memcached, Pair

KEYS: Final = range(60)
THREADS: Final = 6


@pytest.fixture(scope="module")
def system(mariadb_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    nodes = [Memcached() for _ in range(4)]
    # The invalidator waits for nodes that hang, and leases of the others outlast it
    lasting = {"lease_seconds": 60, "max_staleness_seconds": 300}
    with running_system(mariadb_pair, tmp_path_factory.mktemp("hung"), nodes=nodes, cache=lasting) as made:
        made.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        made.settle()
        yield made


@pytest.fixture(params=["threads", "tasks"])
def cache(system: System, request: pytest.FixtureRequest) -> Iterator[Cache]:
    if request.param == "tasks":
        with loop_cache(system.config_path) as on_loop:
            yield cast(Cache, on_loop)
    else:
        cache = system.open_cache()
        yield cache
        cache.close()


@pytest.fixture
def timed_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which somebody waited for a node in vain."""
    waits: list[str] = []
    fail = MemcachedNode._fail

    def note(node: MemcachedNode, error: BaseException) -> None:
        try:
            fail(node, error)
        except NodeTimedOut:
            waits.append(threading.current_thread().name)
            raise

    monkeypatch.setattr(MemcachedNode, "_fail", note)
    return waits


def read_all(cache: Cache, outcomes: list[ReadOutcome]) -> None:
    for found in cache.get_many("customer", KEYS, explain=True).values():
        assert found.value["id"] == found.key
        outcomes.append(found.outcome)
    for key in KEYS:
        found = cache.get("customer", key, explain=True)
        assert found.value["id"] == key
        outcomes.append(found.outcome)


def read_in_threads(cache: Cache) -> list[ReadOutcome]:
    outcomes: list[ReadOutcome] = []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            read_all(cache, outcomes)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=read, name=f"reader {number}") for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return outcomes


def test_a_node_that_hangs_is_waited_for_by_nobody_but_those_who_found_out(
    system: System, cache: Cache, timed_out: list[str]
) -> None:
    wait_for_hits(cache, "customer", KEYS, system.describe)
    read_in_threads(cache)
    node = system.nodes[0]
    own = {key for key in KEYS if system.subject("customer", key).node == node.address}
    assert 0 < len(own) < len(KEYS)
    node.pause()
    try:
        outcomes = read_in_threads(cache)
        readers = [name for name in timed_out if name != "cache node probe"]
        assert 0 < len(readers) <= THREADS, f"at most once for each read that was under way: {readers}"
        assert outcomes.count(ReadOutcome.NODE_DOWN) > 0
        # Those that stood still for so long do not trust their copies of records, of other nodes either
        assert {ReadOutcome.HIT, ReadOutcome.NODE_DOWN, ReadOutcome.NO_RECORD} >= set(outcomes)
        timed_out.clear()
        outcomes = read_in_threads(cache)
        assert set(timed_out) <= {"cache node probe"}
        assert outcomes.count(ReadOutcome.NODE_DOWN) == 2 * THREADS * len(own)
        assert outcomes.count(ReadOutcome.HIT) == 2 * THREADS * (len(KEYS) - len(own))
    finally:
        node.resume()
    wait_until(
        lambda: cache.get("customer", min(own), explain=True).outcome is not ReadOutcome.NODE_DOWN,
        "the node is asked again",
        system.describe,
    )
    wait_for_hits(cache, "customer", KEYS, system.describe)
    system.assert_none_stale(cache, "customer", KEYS)


def test_three_nodes_that_hang_are_waited_for_together(
    system: System, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_hits(cache, "customer", KEYS, system.describe)
    waits: list[bool] = []
    receive = MemcachedNode.receive

    def note(node: MemcachedNode, *, is_late: bool = False) -> list[Reply]:
        try:
            return receive(node, is_late=is_late)
        except NodeTimedOut:
            waits.append(is_late)
            raise

    monkeypatch.setattr(MemcachedNode, "receive", note)
    monkeypatch.setattr(Breakers, "_run", lambda _: None)
    for node in system.nodes[:3]:
        node.pause()
    try:
        found = cache.get_many("customer", KEYS, explain=True)
        assert sorted(waits) == [False, True, True]
        assert {each.value["id"] for each in found.values()} == set(KEYS)
    finally:
        for node in system.nodes[:3]:
            node.resume()


def test_without_a_breaker_every_read_waits(
    system: System, timed_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defence, planted out."""
    monkeypatch.setattr(Breakers, "trip", lambda *_: None)
    cache = system.open_cache()
    wait_for_hits(cache, "customer", KEYS, system.describe)
    node = system.nodes[0]
    own = [key for key in KEYS if system.subject("customer", key).node == node.address]
    node.pause()
    try:
        for key in own[:3]:
            assert cache.get("customer", key, explain=True).outcome is ReadOutcome.NODE_DOWN
        assert len(timed_out) >= len(own[:3])
    finally:
        node.resume()
        cache.close()
