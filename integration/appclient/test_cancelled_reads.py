"""Reads that are cancelled while they wait, on real servers: no connection ever lags one answer behind (F46)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import AsyncCache, AsyncLoaderConnection
from appclient.connection import awaiting
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, running_system
from integration.servers import Pair

READS: Final = 10_000
TASKS: Final = 20
KEYS: Final = range(50)
WAITS_MEAN: Final = 5.0
"""A hit waits once; a composite that is read on new connections and stored waits about twenty times."""

left: ContextVar[list[int]] = ContextVar("left")
"""How often the read of this task may still wait before it is cancelled."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """At which wait reads were cancelled. A task is cancelled in the middle of that wait, or when its answer has
    come and it does not run yet."""
    cancelled: Counter[int] = Counter()
    await_ = awaiting.await_

    def wait(awaitable: Any) -> Any:
        budget = left.get([0, 0])
        budget[0] -= 1
        if budget[0] == 0:
            cancelled[budget[1]] += 1
            task = asyncio.current_task()
            assert task is not None
            if isinstance(awaitable, asyncio.Future) and cancelled[budget[1]] % 2:
                awaitable.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        return await_(awaitable)

    monkeypatch.setattr(awaiting, "await_", wait)
    return cancelled


async def read_one(cache: AsyncCache, draw: random.Random) -> bool:
    """Whether a read of some kind ended, with the right answer."""
    key = draw.choice(KEYS)
    kind = draw.randrange(4)
    fresh = 0.0 if draw.random() < 0.5 else None  # refuses every hit
    if kind == 0:
        profile = await cache.get("profile", key, max_staleness_seconds=fresh)
        assert (profile["customer"]["id"], profile["orders"]) == (key, [{"id": key + 1000}])
    elif kind == 1:
        keys = draw.sample(KEYS, 10)
        for found, row in (await cache.get_many("customer", keys, max_staleness_seconds=fresh)).items():
            assert row["id"] == found
    elif kind == 2:
        rows = (await cache.database().query("SELECT %s AS asked", (key,), include_event_token=True)).rows
        assert rows == [{"asked": key}]
    else:
        assert (await cache.get("customer", key, max_staleness_seconds=fresh))["id"] == key
    return True


async def read_and_cancel(cache: AsyncCache, seed: int) -> Counter[bool]:
    """Whether reads ended, or were cancelled."""
    draw = random.Random(seed)
    ended: Counter[bool] = Counter()
    for _ in range(READS // TASKS):
        allowed = 1 + int(draw.expovariate(1 / WAITS_MEAN))

        async def read(allowed: int = allowed) -> bool:
            left.set([allowed, allowed])
            return await read_one(cache, draw)

        try:
            ended[await asyncio.create_task(read())] += 1
        except asyncio.CancelledError:
            ended[False] += 1
    return ended


def test_a_cancelled_read_never_gives_its_answer_to_another_one(
    pair: Pair, tmp_path: Path, waits: Counter[int]
) -> None:
    pair.primary.execute("DROP DATABASE IF EXISTS shop")
    pair.primary.execute("CREATE DATABASE shop")
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + PROFILE) as system:
        system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        system.execute(
            "INSERT INTO orders (id, customer_id, total) VALUES "
            + ", ".join(f"({key + 1000}, {key}, 1)" for key in KEYS)
        )
        system.settle()

        async def run() -> Counter[bool]:
            async with await AsyncCache.open(system.config_path) as cache:

                @cache.loader("profile")
                async def load_profile(database: AsyncLoaderConnection, key: int) -> dict[str, Any]:
                    return {
                        "customer": await database.query_one("SELECT * FROM customers WHERE id = %s", (key,)),
                        "orders": await database.query("SELECT id FROM orders WHERE customer_id = %s", (key,)),
                    }

                parts = await asyncio.gather(*(read_and_cancel(cache, seed) for seed in range(TASKS)))
                draw = random.Random(0)
                for _ in range(500):  # on all connections that are kept
                    assert await read_one(cache, draw)
                return sum(parts, Counter())

        ended = asyncio.run(run())
        assert ended[True] > READS // 10
        assert ended[False] > READS // 10
        assert set(range(1, 11)) <= set(waits), f"at the first wait, and at late ones: {waits}"
        system.settle()
        cache = system.open_cache()
        system.assert_none_stale(cache, "customer", KEYS)
        cache.close()
