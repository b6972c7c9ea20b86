"""Shadow reads on real servers, with threads and on an event loop: what they serve; lag alone is not reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from appclient import AsyncCache, Cache, PrometheusTelemetry
from integration.harness import System, plant, running_system, wait_until
from integration.servers import Pair

KEYS = range(1, 5)
CACHE = {"shadow": 1.0, "lease_seconds": 20, "max_staleness_seconds": 90}
"""Leases outlive a pause of the invalidator, so old values are still hits during it."""


@dataclass(slots=True)
class Reader:
    """A cache of threads, or of tasks by ``runner``."""

    cache: Any
    registry: CollectorRegistry
    runner: asyncio.Runner | None = None

    def get(self, key: int, **options: Any) -> Any:
        read = self.cache.get("customer", key, **options)
        return read if self.runner is None else self.runner.run(read)

    def count(self, result: str) -> float:
        """Shadow reads with this result."""
        labels = {"namespace": "shop", "object": "customer", "result": result}
        return self.registry.get_sample_value("freshness_client_shadow_reads_total", labels) or 0.0


@contextmanager
def open_reader(kind: str, path: Path) -> Iterator[Reader]:
    registry = CollectorRegistry()
    telemetry = PrometheusTelemetry(registry)
    if kind == "threads":
        with closing(Cache.open(path, telemetry=telemetry)) as cache:
            yield Reader(cache, registry)
        return
    with asyncio.Runner() as runner:
        opened = runner.run(AsyncCache.open(path, telemetry=telemetry))
        try:
            yield Reader(opened, registry, runner)
        finally:
            runner.run(opened.close())


def wait_hits(reader: Reader, system: System) -> None:
    wait_until(lambda: all(reader.get(key, explain=True).is_hit for key in KEYS), "all are hits", system.describe)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_database_is_served_and_lag_is_no_difference(pair: Pair, tmp_path: Path, kind: str) -> None:
    with running_system(pair, tmp_path, cache=CACHE) as system, open_reader(kind, system.config_path) as reader:
        system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n{key}', 0)" for key in KEYS))
        system.settle()
        wait_hits(reader, system)
        equal = reader.count("equal")
        assert reader.get(1) == {"id": 1, "name": "n1", "v": 0}
        assert reader.count("equal") == equal + 1

        # A fault: the right value is served; the wrong one is reported and stays in the cache.
        plant(system.config, system.registry, "customer", 2, lambda value: {**value, "name": "planted"})
        planted = system.find_item("customer", 2)
        wait_until(lambda: reader.get(2)["name"] == "n2" and reader.count("differs"), "it differs", system.describe)
        now = system.find_item("customer", 2)
        assert planted is not None
        assert now is not None
        assert now.value == planted.value
        differs = reader.count("differs")

        # The replica lags: the entry is newer than what a miss would be answered.
        pair.replica.stop_replication()
        try:
            with (
                closing(system.open_cache()) as filler,
                pair.primary.connect("shop") as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("UPDATE customers SET v = 1 WHERE id = 3")
                connection.commit()
                token = filler.database().commit_token(connection)
                wait_until(
                    lambda: filler.get("customer", 3, at_least=token, explain=True).is_hit,
                    "the new row is cached",
                    system.describe,
                )
            wait_until(lambda: reader.get(3)["v"] == 0 and reader.count("lag"), "the replica lags", system.describe)
        finally:
            pair.replica.start_replication()
        assert reader.count("differs") == differs

        # The invalidation lags: the entry is older than the row.
        system.settle()
        wait_hits(reader, system)
        undecided = reader.count("undecided")
        system.invalidator.pause()
        try:
            system.execute("UPDATE customers SET v = 2 WHERE id = 4")
            pair.wait_caught_up()
            wait_until(
                lambda: reader.get(4)["v"] == 2 and reader.count("undecided") > undecided,
                "the invalidation lags",
                system.describe,
            )
        finally:
            system.invalidator.resume()
        system.settle()
        assert reader.count("failed") == 0
        # The planted one was a hit during the pause; the others differ by lag alone.
        for key in (1, 3, 4):
            differs = reader.count("differs")
            reader.get(key)
            assert reader.count("differs") == differs
