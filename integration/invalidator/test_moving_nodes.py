"""Nodes come and go on real servers, and the cache stays warm: two memcached, three, and two again.

The invalidator loads each file while it runs. A client of the previous file reads beside one of the present file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from appclient import Cache, ReadOutcome
from integration.harness import System, running_system, wait_for_hits, wait_until
from integration.servers import Memcached, Pair

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
