"""A primary is replaced: what its readers alone had seen is served no more, and a planned switchover keeps the cache.

The invalidator is stopped while the primary changes, so that the lost commit reaches a reader and no stream. Leases
are long: nothing here depends on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, ReadOutcome
from freshness.algorithm.request import Delete
from freshness.nodes.memcached import MemcachedNode
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, STREAM, wait_until
from integration.servers import DatabaseServer, Memcached, Pair
from integration.servers.program import InvalidatorProcess
from invalidator.process.status import read_nodes

CACHE: Final = {"lease_seconds": 30, "max_staleness_seconds": 90}
LOSSLESS: Final = {"lossless_failover": True}


class Scene:
    """A pair, a node, and one configuration after another."""

    def __init__(self, pair: Pair, node: Memcached, folder: Path) -> None:
        self.pair, self.node, self.folder = pair, node, folder
        self.previous, self.present = pair.primary, pair.replica
        self.previous.execute(CUSTOMERS_TABLE, database="shop")
        self.previous.execute("INSERT INTO customers VALUES (1, 'a', 1)", database="shop")
        self.configure(self.previous)

    def configure(self, primary: DatabaseServer, *replicas: DatabaseServer, shard: Mapping[str, Any] = {}) -> None:
        urls = [replica.url for replica in replicas]
        self.path = write_config(
            self.folder,
            primary.flavor,
            primary.url,
            [self.node.address],
            replicas=urls,
            shard=shard,
            cache=CACHE,
            stream=STREAM,
        )

    def read(self) -> tuple[ReadOutcome, int]:
        """The outcome, and the row's ``v``."""
        cache = Cache.open(self.path)
        try:
            explanation = cache.get("customer", 1, explain=True)
        finally:
            cache.close()
        return explanation.outcome, explanation.value["v"]

    def fill(self) -> None:
        wait_until(lambda: self.read()[0] is ReadOutcome.HIT, "the row is a hit")

    def evict(self) -> None:
        node = MemcachedNode(self.node.address)
        node.perform([Delete(b"shop:customer:1")])
        node.close()

    def life(self) -> str:
        with InvalidatorProcess(self.path) as invalidator:
            wait_until(invalidator.is_streaming, "it streams", invalidator.log)
            [state] = read_nodes(invalidator._config)
        return str(state["life"])


@pytest.mark.parametrize("shard", [{}, LOSSLESS], ids=["by default", "stated to be lossless"])
def test_a_commit_that_only_a_reader_saw(
    own_pair: Pair, memcached: Memcached, tmp_path: Path, shard: Mapping[str, Any]
) -> None:
    """Stated wrongly, `lossless_failover` shows what becomes of the entry without the look at the primary's name."""
    scene = Scene(own_pair, memcached, tmp_path)
    scene.pair.wait_caught_up()
    with InvalidatorProcess(scene.path) as invalidator:
        life = read_nodes(invalidator._config)[0]["life"]
        scene.fill()  # from here on the primary shows all that the stripe demands
        own_pair.wait_caught_up()
        invalidator.kill()
    scene.present.stop_replication()
    scene.evict()
    scene.previous.execute("UPDATE customers SET v = 2", database="shop")
    assert scene.read() == (ReadOutcome.FILLED, 2)
    scene.previous.kill()
    scene.present.remove_sources()
    scene.configure(scene.present, shard=shard)
    assert (scene.life() == life) == bool(shard)
    outcome, v = scene.read()
    assert v == (2 if shard else 1)
    assert (outcome is ReadOutcome.HIT) == bool(shard)


def test_a_planned_switchover(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    scene = Scene(own_pair, memcached, tmp_path)
    with InvalidatorProcess(scene.path) as invalidator:
        life = read_nodes(invalidator._config)[0]["life"]
        scene.fill()
        invalidator.kill()
    own_pair.wait_caught_up()
    scene.present.remove_sources()
    if scene.previous.flavor == "mariadb":
        scene.previous.execute("SET GLOBAL gtid_slave_pos = @@global.gtid_binlog_pos")
    scene.previous.replicate_from(scene.present)
    scene.configure(scene.present, scene.previous)
    assert scene.life() == life
    assert scene.read() == (ReadOutcome.HIT, 1)
