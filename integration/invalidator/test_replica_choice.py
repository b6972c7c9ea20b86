"""The invalidator reads the binlog of a replica: heartbeats come back, entries fill, changes arrive; and a replica
that stops is left for the primary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.configuration import write_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, System, wait_for_hits, wait_until
from integration.servers import Memcached, Pair
from integration.servers.program import InvalidatorProcess

KEYS = list(range(1, 21))


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    pair.primary.execute(
        "INSERT INTO customers VALUES " + ",".join(f"({key}, 'c{key}', 0)" for key in KEYS), database="shop"
    )
    pair.wait_caught_up()
    with Memcached() as node:
        path = write_config(
            tmp_path,
            pair.primary.flavor,
            pair.primary.url,
            [node.address],
            replicas=[pair.replica.url],
            cache=CACHE,
            stream={**STREAM, "replica_choice": "freshest"},
        )
        with InvalidatorProcess(path) as invalidator:
            yield System(pair, [node], path, invalidator)


def test_a_replica_is_read_and_left_when_it_stops(system: System) -> None:
    cache = system.open_cache()
    try:
        wait_for_hits(cache, "customer", KEYS, system.describe)
        system.execute("UPDATE customers SET v = 1")
        system.assert_none_stale(cache, "customer", KEYS)
        # Who read the log of a replica that applies nothing would hear of nothing more
        system.pair.replica.stop_replication()
        system.execute("UPDATE customers SET v = 2")
        wait_until(lambda: "is left" in system.invalidator.log(), "the replica is left", system.describe)
        system.wait_covered()
        assert cache.get("customer", 1, explain=True).is_hit is False
        system.pair.replica.start_replication()
        system.assert_none_stale(cache, "customer", KEYS)
    finally:
        cache.close()
