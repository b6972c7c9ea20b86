"""``invalidator run --since``: an entry that was wrongly kept, repaired from the log, on real servers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from freshness.algorithm.request import Add, Item
from freshness.nodes.memcached import MemcachedNode
from integration.harness import System, running_system, wait_for_hits, wait_until
from integration.servers import Pair
from integration.servers.program import InvalidatorProcess

KEYS = [1, 2, 3]


def put_back(system: System, key: int, previous: Item) -> None:
    """As if the invalidation of the key had never been sent."""
    subject = system.subject("customer", key)
    node = MemcachedNode(subject.node)
    node.perform([Add(subject.item, previous.value, 3600)])
    node.close()
    found = system.find_item("customer", key)
    assert found is not None
    assert found.value == previous.value


def read_value(system: System, key: int) -> tuple[bool, int]:
    cache = system.open_cache()
    found = cache.get("customer", key, explain=True)
    cache.close()
    return found.is_hit, found.value["v"]


def test_what_the_nodes_have_acknowledged_is_sent_again(pair: Pair, tmp_path: Path) -> None:
    with running_system(pair, tmp_path) as system:
        system.execute("INSERT INTO customers VALUES (1, 'n', 0), (2, 'n', 0), (3, 'n', 0)")
        system.settle()
        cache = system.open_cache()
        wait_for_hits(cache, "customer", KEYS, system.describe)
        cache.close()
        previous = system.find_item("customer", 2)
        assert previous is not None
        since = datetime.now(UTC).isoformat()
        system.execute("UPDATE customers SET v = 7 WHERE id = 2")
        system.settle()
        put_back(system, 2, previous)
        assert read_value(system, 2) == (True, 0), "the entry is old"
        system.wait_resumable()
        lives = system.lives()
        assert system.invalidator.terminate() == 0

        with InvalidatorProcess(system.config_path, "--since", since) as again:
            system.invalidator = again
            wait_until(
                lambda: again.log().count("was sent everything") == len(system.nodes),
                "all nodes were sent everything again",
                system.describe,
            )
            system.settle()
            assert read_value(system, 2) == (False, 7)
            assert system.lives() == lives
