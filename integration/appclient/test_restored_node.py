"""F129: a Redis that is killed and comes back from its file, sooner than readers look at its records again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from redis import Redis as RedisClient

from appclient import Cache, ReadOutcome
from integration.harness import running_system, wait_for_hits
from integration.servers import Pair, Redis

KEYS = range(1, 9)


def test_its_old_entries_are_no_hits(mariadb_pair: Pair, tmp_path: Path) -> None:
    pair = mariadb_pair
    for name in ("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop"):
        pair.primary.execute(name)
    node = Redis()
    cache = {"backend": "redis", "node_refresh_seconds": 2}
    with running_system(pair, tmp_path, nodes=[cast(Any, node)], cache=cache) as system:
        system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        system.settle()
        reader = Cache.open(system.config_path)
        wait_for_hits(reader, "customer", KEYS, system.describe)
        assert RedisClient(port=node.port).save()
        system.execute("UPDATE customers SET v = 1")
        system.settle()
        assert reader.get("customer", 9, explain=True).outcome is not ReadOutcome.NODE_DOWN, "a young view"
        node.restart()
        found = [reader.get("customer", key) for key in KEYS]
        found += reader.get_many("customer", KEYS).values()
        reader.close()
    assert [row for row in found if row["v"] != 1] == []
