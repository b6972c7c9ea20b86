"""Nodes come and go on real servers, and the cache stays warm: two memcached, three, and two again; three Redis, two,
and three again, while something is read and written all the time, and processes are killed.

The invalidator loads each file while it runs. A client of the previous file reads beside one of the present file.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import AsyncCache, Cache, ReadOutcome
from integration.harness import System, running_system, wait_for_hits, wait_until
from integration.servers import Memcached, Pair, Redis

KEYS: Final = tuple(range(1, 41))
WARM: Final = {ReadOutcome.HIT, ReadOutcome.MOVED}


def deploy(
    system: System, topology: int, nodes: Sequence[Memcached], previous: Sequence[Memcached] = ()
) -> None:
    """Give the invalidator the next file, and wait until it serves its nodes by that."""
    first, _, rest = system.config_path.read_text().partition("nodes = ")
    first = "[cache]" + first.partition("[cache]")[2]
    lines = [line for line in rest.partition("\n")[2].splitlines() if not line.startswith("previous_nodes")]
    names = [[node.address for node in each] for each in (nodes, previous)]
    text = f"topology = {topology}\n{first}nodes = {names[0]}\nprevious_nodes = {names[1]}\n" + "\n".join(
        lines
    )
    following = system.config_path.with_suffix(".next")
    following.write_text(text.replace("'", '"') + "\n")
    os.replace(following, system.config_path)
    system.nodes[:] = nodes
    system.invalidator.reload(system.config)

    def is_served() -> bool:
        return all(
            each["state"] == "open" and each["topology"] == topology and each["stripes_there_percent"] == 100
            for each in system.status()
        )

    wait_until(is_served, f"all nodes are open by topology {topology}", system.describe)
    system.wait_covered()


def outcomes(cache: Cache) -> dict[int, Any]:
    return {key: each.outcome for key, each in cache.get_many("customer", KEYS, explain=True).items()}


def test_a_node_is_added_and_removed_while_hits_go_on(own_pair: Pair, tmp_path: Path) -> None:
    with running_system(own_pair, tmp_path, nodes=[Memcached(), Memcached()]) as system, Memcached() as third:
        two, three = list(system.nodes), [*system.nodes, third]
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 1)", key)
        with closing(system.open_cache()) as before:
            wait_for_hits(before, "customer", KEYS, system.describe)
            lives = system.lives()
            deploy(system, 2, three, two)
            assert set(outcomes(before).values()) == {ReadOutcome.HIT}, "the previous file goes on"
            with closing(system.open_cache()) as during:
                found = outcomes(during)
                assert set(found.values()) == WARM, "keys of the third node come from the others"
                assert set(outcomes(during).values()) == {ReadOutcome.HIT}
                system.execute("UPDATE customers SET v = 2")
                system.assert_none_stale(during, "customer", KEYS)
                wait_for_hits(before, "customer", KEYS, system.describe)
                assert {row["v"] for row in before.get_many("customer", KEYS).values()} == {2}
        deploy(system, 3, three)
        moved = [key for key, outcome in found.items() if outcome is ReadOutcome.MOVED]
        with closing(system.open_cache()) as after:
            assert set(outcomes(after).values()) == {ReadOutcome.HIT}
            # The first two nodes still have entries of these keys, and are no longer sent what changes them
            system.execute("UPDATE customers SET v = 3")
            system.assert_none_stale(after, "customer", KEYS)
        deploy(system, 4, two, three)
        with closing(system.open_cache()) as again:
            found = outcomes(again)
            assert set(found.values()) == WARM
            assert {found[key] for key in moved} == {ReadOutcome.MOVED}
            assert {row["v"] for row in again.get_many("customer", KEYS).values()} == {3}
            system.execute("UPDATE customers SET v = 4")
            system.assert_none_stale(again, "customer", KEYS)
        assert system.lives() == lives


@contextmanager
def reading(system: System) -> Iterator[Counter[ReadOutcome]]:
    """Read all keys with the present file, again and again; the number of each outcome. Raises what it met."""
    seen: Counter[ReadOutcome] = Counter()
    ending = threading.Event()
    failures: list[Exception] = []

    def read(cache: Cache) -> None:
        try:
            while not ending.is_set():
                seen.update(outcomes(cache).values())
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    with closing(system.open_cache()) as cache:
        thread = threading.Thread(target=read, args=(cache,))
        thread.start()
        try:
            yield seen
        finally:
            ending.set()
            thread.join()
    assert failures == []


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
    backend = {"backend": kind.technology}
    with running_system(own_pair, tmp_path, nodes=[kind(), kind(), kind()], cache=backend) as system:
        three, two = list(system.nodes), system.nodes[:2]
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 1)", key)
        with closing(system.open_cache()) as before:
            wait_for_hits(before, "customer", KEYS, system.describe)
            lives = system.lives()
            with reading(system) as seen:
                deploy(system, 2, two, three)
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
        deploy(system, 3, two)
        system.execute("UPDATE customers SET v = 3")  # the third node is not sent it, and keeps its entries
        with closing(system.open_cache()) as after:
            system.assert_none_stale(after, "customer", KEYS)
        with reading(system):
            deploy(system, 4, three, two)
            found = read_on_a_loop(system)
            assert {value for _, value in found.values()} == {3}
            assert ReadOutcome.MOVED in {outcome for outcome, _ in found.values()}
            assert {outcome for outcome, _ in read_on_a_loop(system).values()} == {ReadOutcome.HIT}
            with closing(system.open_cache()) as again:
                system.execute("UPDATE customers SET v = 4")
                system.assert_none_stale(again, "customer", KEYS)
