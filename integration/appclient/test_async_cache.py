"""`AsyncCache` on real servers."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appclient import ReadOutcome
from appclient.async_cache import AsyncCache, AsyncLoaderConnection
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, running_system
from integration.servers import Flavor, Pair


@pytest.fixture
def system(request: pytest.FixtureRequest, flavor: Flavor, tmp_path: Path) -> Iterator[System]:
    pair: Pair = request.getfixturevalue(f"{flavor}_pair")
    pair.primary.execute("DROP DATABASE IF EXISTS shop")
    pair.primary.execute("CREATE DATABASE shop")
    with running_system(pair, tmp_path, tables=(CUSTOMERS_TABLE, ORDERS_TABLE), objects=CUSTOMER + PROFILE) as s:
        yield s


def test_smoke(system: System) -> None:
    system.execute("INSERT INTO customers VALUES (1,'n',0),(2,'n',0),(3,'n',0)")
    system.settle()

    async def run() -> None:
        async with await AsyncCache.open(system.config.path) as cache:
            @cache.loader("profile")
            async def load(db: AsyncLoaderConnection, key: int) -> Any:
                a, b = await asyncio.gather(db.query("SELECT * FROM customers WHERE id=%s", (key,)), db.query("SELECT id FROM orders WHERE customer_id=%s", (key,)))
                return {"c": a, "o": b}
            for _ in range(40):
                print(await cache.get("customer", 1, explain=True))
                got = await asyncio.gather(*(cache.get("customer", k % 3 + 1, explain=True) for k in range(50)))
                print({g.outcome for g in got})
                print((await cache.get("profile", 1, explain=True)).outcome)
                await asyncio.sleep(0.05)
            import time
            t=time.perf_counter()
            for _ in range(5000): await cache.get("customer", 1)
            d=time.perf_counter()-t
            print("us/hit", d/5000*1e6)
            t=time.perf_counter()
            for _ in range(500): await asyncio.gather(*(cache.get("customer", 1) for _ in range(10)))
            d=time.perf_counter()-t
            print("us/hit x10", d/5000*1e6)
        sync = system.open_cache()
        for _ in range(50):
            sync.get("customer", 1)
        t=time.perf_counter()
        for _ in range(5000): sync.get("customer", 1)
        d=time.perf_counter()-t
        print("sync us/hit", d/5000*1e6)
    asyncio.run(run())
