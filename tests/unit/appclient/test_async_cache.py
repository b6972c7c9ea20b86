"""`AsyncCache` with nodes in memory and no database: what it adds to the cache that it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from appclient import AsyncCache, AsyncLoaderConnection, Explanation, LoaderConnection
from appclient.connection.awaiting import LOOP, await_
from appclient.database.shard import ShardDatabase
from appclient.reading.loader import ObjectLoader
from freshness.algorithm.lookup import Loaded
from freshness.algorithm.rule import ReadOutcome
from freshness.config.config import load_config
from freshness.errors import ConfigError, SourceUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from tests.unit.appclient.test_cache import CONFIG, Nodes

REPORT = """
[objects.report]
key = "id"
members = { reports = "id" }
"""


class Running:
    """How many queries ran at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def run(self, *_: Any) -> list[Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await_(asyncio.sleep(0.001))
        finally:
            self.now -= 1
        return [{"id": self.now}]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    """The queries of loaders, each of which lets the loop go on."""
    running = Running()
    monkeypatch.setattr(LoaderConnection, "_run", running.run)
    monkeypatch.setattr(ShardDatabase, "snapshot", lambda _, load, *__: (load(LoaderConnection(network=LOOP)), None))
    return running


async def open_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = CONFIG, **options: Any) -> AsyncCache:
    """Of a database in which no customer exists."""
    column = (KeyColumn("id", ColumnKind.INTEGER),)

    def run(_: Any, read: Any, **__: Any) -> Any:
        return column if "find_columns" in read.__qualname__ else ([], None)

    monkeypatch.setattr(ShardDatabase, "run", run)
    path = folder / "freshness.toml"
    path.write_text(text)
    return await AsyncCache.create(load_config(path, {}), open_node=Nodes().open, **options)


def test_it_reads_as_the_cache_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Explanation] = []

    async def tell(explanation: Explanation) -> None:
        await asyncio.sleep(0)
        told.append(explanation)

    async def run() -> None:
        async with await open_cache(tmp_path, monkeypatch, on_read=tell) as cache:
            assert await cache.get("customer", 1) is None
            assert await cache.get_many("customer", [1, 2]) == {1: None, 2: None}
            explained = await cache.get("customer", 3, explain=True)
            assert explained.outcome is told[-1].outcome
            with pytest.raises(ConfigError, match="unknown object"):
                await cache.get("costumer", 1)

    asyncio.run(run())
    assert [each.key for each in told] == [1, 1, 2, 3]


def test_another_loop_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections wait on the loop that they were opened on."""
    cache = asyncio.run(open_cache(tmp_path, monkeypatch))
    with pytest.raises(ConfigError, match="another event loop") as refused:
        asyncio.run(cache.get("customer", 1))
    assert "open one for each loop" in refused.value.hint


def test_queries_that_a_loader_starts_side_by_side_run_one_after_the_other(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share one connection."""

    async def run() -> Any:
        cache = await open_cache(tmp_path, monkeypatch, CONFIG + REPORT)

        @cache.loader("report")
        async def load_report(database: AsyncLoaderConnection, key: int) -> Any:
            parts = await asyncio.gather(
                database.query("SELECT 1"), database.query_one("SELECT 2"), database.query("SELECT 3")
            )
            return {"key": key, "parts": len(parts)}

        return await cache.get("report", 7)

    assert asyncio.run(run()) == {"key": 7, "parts": 3}
    assert running.most == 1


def test_more_reads_than_connections_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a loader reads through the cache, or reads are cancelled."""
    running = Running()

    def load(_: Any, lookups: Any, *__: Any) -> list[Loaded]:
        running.run()
        return [Loaded(None, {}, ReadOutcome.NO_TOKEN) for _ in lookups]

    monkeypatch.setattr(ObjectLoader, "load", load)
    text = CONFIG.replace("[keyspaces.shop]", "connections_max = 3\n[keyspaces.shop]", 1)

    async def run() -> int:
        cache = await open_cache(tmp_path, monkeypatch, text)
        tasks = [asyncio.create_task(cache.get("customer", key)) for key in range(30)]
        await asyncio.sleep(0.002)
        for task in tasks[::3]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(cache.get("customer", key) for key in range(10)))
        return sum(answer is None for answer in answers)

    assert 20 <= asyncio.run(run()) <= 30
    assert running.most == 3


def test_a_read_that_waits_for_a_connection_for_too_long_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appclient.connection.pool.WAIT_SECONDS", 0.01)
    text = CONFIG.replace("[keyspaces.shop]", "connections_max = 1\n[keyspaces.shop]", 1)

    def load(_: Any, lookups: Any, *__: Any) -> list[Loaded]:
        await_(asyncio.sleep(0.1))
        return [Loaded(None, {}, ReadOutcome.NO_TOKEN) for _ in lookups]

    monkeypatch.setattr(ObjectLoader, "load", load)

    async def run() -> None:
        cache = await open_cache(tmp_path, monkeypatch, text)
        first = asyncio.create_task(cache.get("customer", 1))
        await asyncio.sleep(0)
        with pytest.raises(SourceUnavailable, match="all 1 connections to cache nodes"):
            await cache.get("customer", 2)
        assert await first is None

    asyncio.run(run())
