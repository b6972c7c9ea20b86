"""Hits beside other clients: compiled ones, those of an event loop, and eight threads or tasks at once.

The others read bytes and know nothing of their freshness or of rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import emcache
import pylibmc
from pymemcache.client.base import Client

from appclient import AsyncCache
from benchmarks.hit import (
    MANY_KEYS,
    MANY_NODES,
    MANY_READS,
    READS,
    VALUE_TTL_SECONDS,
    NotAHit,
    open_meta,
    repeated,
    require_all,
    require_hits,
)
from benchmarks.measure import Result, interleave, stopwatch
from benchmarks.shop import Shop, open_shop

THREADS: Final = 8


def measure_clients(rounds: int) -> list[Result]:
    """`Cache.get` and `AsyncCache.get` on one node, and `Cache.get_many` over four."""
    with open_shop(node_count=1) as shop:
        results = [*_compiled(shop, rounds), *_threads(shop, rounds), *_tasks(shop, rounds)]
    with open_shop(node_count=MANY_NODES) as shop:
        return [*results, *_many(shop, rounds)]


def _compiled(shop: Shop, rounds: int) -> list[Result]:
    entry, names = shop.entry(), _names(shop)
    client = pylibmc.Client([shop.nodes[0]], behaviors={"tcp_nodelay": True})
    for name in names:
        client.set(name, entry)
    reads, bare = repeated(shop.keys, READS), repeated(names, READS)

    def ours() -> None:
        for key in reads:
            shop.cache.get("customer", key)

    def theirs() -> None:
        for name in bare:
            client.get(name)

    require_all(client.get_multi(names).values(), "pylibmc")
    timings = interleave(lambda _: require_hits(shop, ours), lambda _: stopwatch(theirs), rounds)
    return [timings.microseconds("hit_pylibmc", READS, f"pylibmc get of {len(entry)} bytes")]


def _threads(shop: Shop, rounds: int) -> list[Result]:
    """The time of one read of all that eight threads make."""
    entry, names = shop.entry(), _names(shop)
    clients = [Client(shop.nodes[0], no_delay=True) for _ in range(THREADS)]
    for name in names:
        clients[0].set(name, entry, noreply=False)
    share = READS // THREADS
    reads, bare = repeated(shop.keys, share), repeated(names, share)

    def ours(_: int) -> None:
        for key in reads:
            shop.cache.get("customer", key)

    def theirs(number: int) -> None:
        get = clients[number].get
        for name in bare:
            get(name)

    with ThreadPoolExecutor(THREADS) as pool:

        def run(work: Callable[[int], None]) -> Callable[[], object]:
            return lambda: list(pool.map(work, range(THREADS)))

        timings = interleave(lambda _: require_hits(shop, run(ours)), lambda _: stopwatch(run(theirs)), rounds)
    for client in clients:
        client.close()
    baseline = f"pymemcache get, {THREADS} threads with a client each"
    return [timings.microseconds("hit_threads", share * THREADS, baseline)]


def _tasks(shop: Shop, rounds: int) -> list[Result]:
    """By one task, and by eight at once, of one event loop."""
    entry, names = shop.entry(), _names(shop)
    host, _, port = shop.nodes[0].rpartition(":")
    results = []
    with asyncio.Runner() as runner:
        cache = runner.run(AsyncCache.create(shop.cache.config))
        client = runner.run(_open_emcache(host, int(port)))
        runner.run(_fill_emcache(client, names, entry))
        for count in (1, THREADS):
            share = READS // count
            reads, bare = repeated(shop.keys, share), [name.encode() for name in repeated(names, share)]

            async def ours(reads: Sequence[int] = reads, count: int = count) -> None:
                async def one() -> None:
                    for key in reads:
                        await cache.get("customer", key)

                await asyncio.gather(*(one() for _ in range(count)))

            async def theirs(bare: Sequence[bytes] = bare, count: int = count) -> None:
                async def one() -> None:
                    for name in bare:
                        await client.get(name)

                await asyncio.gather(*(one() for _ in range(count)))

            timings = interleave(
                lambda _, work=ours: require_hits(shop, lambda: runner.run(work())),  # type: ignore[misc]
                lambda _, work=theirs: stopwatch(lambda: runner.run(work())),  # type: ignore[misc]
                rounds,
            )
            name = "hit_task" if count == 1 else "hit_tasks"
            results.append(timings.microseconds(name, share * count, f"emcache get, tasks: {count}"))
        runner.run(client.close())
        runner.run(cache.close())
    return results


async def _open_emcache(host: str, port: int) -> Any:
    return await emcache.create_client([emcache.MemcachedHostAddress(host, port)], timeout=5.0)


async def _fill_emcache(client: Any, names: Sequence[str], entry: bytes) -> None:
    for name in names:
        await client.set(name.encode(), entry)
    found = [await client.get(name.encode()) for name in names]
    if any(item is None or item.value != entry for item in found):
        raise NotAHit("emcache does not find what it stored", hint="are the nodes full?")


def _many(shop: Shop, rounds: int) -> list[Result]:
    """100 keys at once: by pylibmc, and by eight threads beside meta-memcache."""
    wanted, entry = shop.keys[:MANY_KEYS], shop.entry()
    names = [f"bare:{key}" for key in wanted]
    client, meta = pylibmc.Client([*shop.nodes], behaviors={"tcp_nodelay": True}), open_meta(shop.nodes)
    for name in names:
        client.set(name, entry)
        meta.set(f"meta:{name}", entry, ttl=VALUE_TTL_SECONDS)
    meta_names = [f"meta:{name}" for name in names]
    require_all(client.get_multi(names).values(), "pylibmc")
    require_all(meta.multi_get(meta_names).values(), "meta-memcache")

    def ours(count: int) -> None:
        for _ in range(count):
            shop.cache.get_many("customer", wanted)

    def theirs() -> None:
        for _ in range(MANY_READS):
            client.get_multi(names)

    def by_meta(count: int) -> None:
        for _ in range(count):
            meta.multi_get(meta_names)

    compiled = interleave(lambda _: require_hits(shop, lambda: ours(MANY_READS)), lambda _: stopwatch(theirs), rounds)
    share = MANY_READS // THREADS
    with ThreadPoolExecutor(THREADS) as pool:

        def run(work: Callable[[int], None]) -> Callable[[], object]:
            return lambda: list(pool.map(work, [share] * THREADS))

        threads = interleave(lambda _: require_hits(shop, run(ours)), lambda _: stopwatch(run(by_meta)), rounds)
    what = f"({MANY_KEYS}), {MANY_NODES} nodes"
    return [
        compiled.microseconds("get_many_pylibmc", MANY_READS, f"pylibmc get_multi{what}"),
        threads.microseconds(
            "get_many_threads", share * THREADS, f"meta-memcache multi_get{what}, {THREADS} threads"
        ),
    ]


def _names(shop: Shop) -> list[str]:
    return [f"bare:{key}" for key in shop.keys]
