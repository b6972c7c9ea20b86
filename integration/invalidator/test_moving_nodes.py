"""Nodes come and go on real servers, and the cache stays warm: two memcached, three, and two again; three Redis, two,
and three again, while something is read and written all the time, and processes are killed.

The invalidator loads each file while it runs. A client of the previous file reads beside one of the present file.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import AsyncCache, Cache, ReadOutcome
from freshness.algorithm import state
from integration.harness import (
    PATIENT,
    System,
    call_cli,
    deploy,
    find_step,
    reading,
    running_system,
    wait_for_hits,
    wait_until,
)
from integration.servers import Memcached, Pair, Redis

KEYS: Final = tuple(range(1, 41))
WARM: Final = {ReadOutcome.HIT, ReadOutcome.MOVED}


@pytest.fixture(autouse=True)
def names_expire_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "PREVIOUS_READER_SECONDS", 2)


def outcomes(cache: Cache) -> dict[int, Any]:
    return {key: each.outcome for key, each in cache.get_many("customer", KEYS, explain=True).items()}


def test_a_node_is_added_and_removed_while_hits_go_on(own_pair: Pair, tmp_path: Path) -> None:
    with (
        running_system(own_pair, tmp_path, nodes=[Memcached(), Memcached()], cache=PATIENT) as system,
        Memcached() as third,
    ):
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 1)", key)
        with closing(system.open_cache()) as before:
            wait_for_hits(before, "customer", KEYS, system.describe)
            lives = system.lives()
            with reading(before, "customer", KEYS) as seen:
                deploy(system, "add", third.address)
            assert set(seen) == {ReadOutcome.HIT}, "the previous file goes on all the time"

            def is_named() -> bool:
                outcomes(before)
                return f":{os.getpid()} still reads by the previous nodes" in str(find_step(system))

            wait_until(is_named, "a reader of the previous file is named", system.describe)
            with closing(system.open_cache()) as during:
                found = outcomes(during)
                assert set(found.values()) == WARM, "keys of the third node come from the others"
                assert set(outcomes(during).values()) == {ReadOutcome.HIT}
                system.execute("UPDATE customers SET v = 2")
                system.assert_none_stale(during, "customer", KEYS)
                wait_for_hits(before, "customer", KEYS, system.describe)
                assert {row["v"] for row in before.get_many("customer", KEYS).values()} == {2}
        deploy(system, "finish")
        moved = [key for key, outcome in found.items() if outcome is ReadOutcome.MOVED]
        with closing(system.open_cache()) as after:
            assert set(outcomes(after).values()) == {ReadOutcome.HIT}
            # The first two nodes still have entries of these keys, and are no longer sent what changes them
            system.execute("UPDATE customers SET v = 3")
            system.assert_none_stale(after, "customer", KEYS)
        deploy(system, "remove", third.address)
        with closing(system.open_cache()) as again:
            found = outcomes(again)
            assert set(found.values()) == WARM
            assert {found[key] for key in moved} == {ReadOutcome.MOVED}
            assert {row["v"] for row in again.get_many("customer", KEYS).values()} == {3}
            system.execute("UPDATE customers SET v = 4")
            system.assert_none_stale(again, "customer", KEYS)
        assert find_step(system)["name"] == "expire"
        assert call_cli("nodes", "finish", "-c", system.config_path).returncode == 4
        deploy(system, "finish", "--after-ttl")
        assert system.lives() == lives


def test_the_number_of_stripes_is_changed_node_by_node(own_pair: Pair, tmp_path: Path) -> None:
    with running_system(own_pair, tmp_path, cache={"stripes": 64}) as system:
        lives = system.lives()
        text = system.config_path.read_text()
        system.config_path.write_text(text.replace("stripes = 64", "stripes = 128"))
        system.invalidator.reload(system.config)
        for node in system.nodes:
            wait_until(lambda: find_step(system)["name"] == "renew", "a node can be renewed", system.describe)
            assert call_cli("nodes", "renew", node.address, "-c", system.config_path).returncode == 0
            system.wait_new_life(node, lives[node.address])
        wait_until(lambda: find_step(system)["name"] == "none", "all have the number", system.describe)
        assert {each["stripes"] for each in system.status()} == {128}


def read_on_a_loop(system: System) -> dict[int, Any]:
    async def read() -> dict[int, Any]:
        async with await AsyncCache.open(system.config_path) as cache:
            found = await cache.get_many("customer", KEYS, explain=True)
            return {key: (each.outcome, each.value["v"]) for key, each in found.items()}

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Memcached, Redis])
def test_nodes_come_and_go_under_load_while_processes_are_killed(
    own_pair: Pair, tmp_path: Path, kind: type[Any]
) -> None:
    backend = {**PATIENT, "backend": kind.technology}
    with running_system(own_pair, tmp_path, nodes=[kind(), kind(), kind()], cache=backend) as system:
        two, third = system.nodes[:2], system.nodes.pop()
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 1)", key)
        with closing(system.open_cache()) as before:
            wait_for_hits(before, "customer", KEYS, system.describe)
            lives = system.lives()
            with closing(system.open_cache()) as present, reading(present, "customer", KEYS) as seen:
                deploy(system, "remove", third.address)
                system.invalidator.kill()
                system.execute("UPDATE customers SET v = 2 WHERE id % 2")
                system.invalidator.start()
                system.wait_open()
                wait_for_hits(before, "customer", KEYS, system.describe)
                with closing(system.open_cache()) as during:
                    assert ReadOutcome.MOVED in outcomes(during).values()
                    system.assert_none_stale(during, "customer", KEYS)
                assert system.lives() == {node.address: lives[node.address] for node in two}
                two[0].restart()
                system.wait_new_life(two[0], lives[two[0].address])
                with closing(system.open_cache()) as during:
                    system.assert_none_stale(during, "customer", KEYS)
            assert seen[ReadOutcome.HIT] > len(KEYS)
        deploy(system, "finish", "--after-ttl")
        system.execute("UPDATE customers SET v = 3")  # the third node is not sent it, and keeps its entries
        with closing(system.open_cache()) as after:
            system.assert_none_stale(after, "customer", KEYS)
        with closing(system.open_cache()) as present, reading(present, "customer", KEYS):
            deploy(system, "add", third.address)
            found = read_on_a_loop(system)
            assert {value for _, value in found.values()} == {3}
            assert ReadOutcome.MOVED in {outcome for outcome, _ in found.values()}
            assert {outcome for outcome, _ in read_on_a_loop(system).values()} == {ReadOutcome.HIT}
            with closing(system.open_cache()) as again:
                system.execute("UPDATE customers SET v = 4")
                system.assert_none_stale(again, "customer", KEYS)
