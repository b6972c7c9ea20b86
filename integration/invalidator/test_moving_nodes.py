"""Nodes come and go on real servers, and the cache stays warm: two, three, and two again; three, two, and three
again, while rows are read and written all the time, processes are killed, and each read is judged.

The invalidator loads each file while it runs. A client of the previous file reads beside one of the present file.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, closing
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
from integration.judge import ALL_SHOWN, Judge, judged_client, judging
from integration.servers import Memcached, Pair, Redis

KEYS: Final = tuple(range(1, 41))
WRITES: Final = 10
"""While no invalidator runs."""

HITS: Final = 100
"""Of each node between two faults."""

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
            return {key: each.outcome for key, each in found.items()}

    return asyncio.run(read())


def move(system: System, judge: Judge, change: str, third: Any) -> None:
    """A node comes or goes, under clients of either file. The invalidator is killed while it loads the file, and
    later a node that stays loses its memory. All the time the replica stands still."""

    def crash() -> None:
        system.invalidator.kill()
        judge.wait_writes(WRITES)
        system.invalidator.start()

    stays = system.nodes[0]
    with ExitStack() as clients:
        clients.enter_context(judged_client(system, judge))
        judge.wait_judged(HITS)
        system.pair.replica.stop_applying()
        deploy(system, change, third.address, disturb=crash)
        assert ReadOutcome.MOVED in read_on_a_loop(system).values()
        clients.enter_context(judged_client(system, judge))
        judge.wait_judged(HITS)
        life = next(each["life"] for each in system.status() if each["node"] == stays.address)
        stays.restart()
        system.wait_new_life(stays, life)
        judge.wait_judged(HITS)
        system.pair.replica.start_replication()
    with judged_client(system, judge):
        deploy(system, "finish", *["--after-ttl"][: change == "remove"])
        judge.wait_judged(HITS)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [("add", "remove"), ("remove", "add")], ids="-".join)
@pytest.mark.parametrize("kind", [Memcached, Redis])
def test_nodes_come_and_go_under_load_while_processes_are_killed(
    own_pair: Pair, tmp_path: Path, kind: type[Any], changes: tuple[str, str]
) -> None:
    backend = {**PATIENT, **ALL_SHOWN, "backend": kind.technology}
    nodes = [kind(), kind(), kind()]
    first, third = nodes[: 2 if changes[0] == "add" else 3], nodes[2]
    with running_system(own_pair, tmp_path, nodes=first, cache=backend) as system, ExitStack() as stack:
        if third not in first:
            stack.enter_context(third)
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 0)", key)
        with judging(system, [node.address for node in nodes], KEYS) as judge:
            for change in changes:
                move(system, judge, change, third)
        assert judge.together[ReadOutcome.HIT], judge.together
        with closing(system.open_cache()) as cache:
            system.assert_none_stale(cache, "customer", KEYS)
