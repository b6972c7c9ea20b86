"""What a hit and a miss cost by `Cache.get`, and hits by `Cache.get_many` over several nodes, against bare clients.

The bare clients read bytes and know nothing of their freshness or of rows: their time is what a round trip costs.
meta-memcache speaks the meta protocol as we do, and reads its replies in compiled code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Final, TypeVar

from meta_memcache.cache_client import CacheClient
from meta_memcache.configuration import ServerAddress, connection_pool_factory_builder
from meta_memcache.interfaces.cache_api import CacheApi
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry
from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient

from appclient import Cache, OpenTelemetry, PrometheusTelemetry
from appclient.telemetry.observer import Telemetry
from benchmarks.measure import Criterion, Result, Timings, interleave, stopwatch
from benchmarks.shop import CUSTOMERS, Shop, open_shop
from freshness.algorithm.rule import ReadOutcome
from freshness.errors import FreshnessError

Item = TypeVar("Item")

READS: Final = 3000
"""In one round."""

TOKEN: Final = "SELECT @@global.gtid_slave_pos, id, epoch, watermark, min_us FROM freshness_heartbeat"
"""Which a miss reads in front of its row."""

MANY_READS: Final = 60
MANY_KEYS: Final = 100
MANY_NODES: Final = 4
VALUE_TTL_SECONDS: Final = 3600
CRITERION: Final = Criterion(at_most=1.25)
MANY_CRITERION: Final = Criterion(at_most=0.5)


class NotAHit(FreshnessError):
    """A read that was to be measured as a hit was none: the numbers would mean something else."""


def measure_hit(rounds: int) -> list[Result]:
    """One key by `Cache.get`, a value of the same size by pymemcache, from the same memcached."""
    with open_shop(node_count=1) as shop, closing(Client(shop.nodes[0], no_delay=True)) as bare:
        entry = shop.entry()
        names = [f"bare:{key}" for key in shop.keys]
        for name in names:
            bare.set(name, entry, noreply=False)
        get, get_bare = shop.cache.get, bare.get
        reads, bare_reads = repeated(shop.keys, READS), repeated(names, READS)

        def ours() -> None:
            for key in reads:
                get("customer", key)

        def baseline() -> None:
            for name in bare_reads:
                get_bare(name)

        timings = interleave(lambda _: require_hits(shop, ours), lambda _: stopwatch(baseline), rounds)
        return [timings.microseconds("hit", READS, f"pymemcache get of {len(entry)} bytes", CRITERION)]


def measure_miss(rounds: int) -> list[Result]:
    """One key that is not there by `Cache.get`, against a get, a SELECT by a connection that is kept, and a set; and
    against as many requests as ours."""
    with ExitStack() as stack:
        shop = stack.enter_context(open_shop(node_count=1))
        bare = stack.enter_context(closing(Client(shop.nodes[0], no_delay=True)))
        replica = stack.enter_context(closing(shop.pair.replica.connect("shop")))
        cursor = stack.enter_context(replica.cursor())
        items = {shop.cache.get("customer", key, explain=True).item: key for key in shop.keys}
        names = {f"bare:{key}": key for key in shop.keys}

        def ours() -> None:
            for key in items.values():
                shop.cache.get("customer", key)

        def by_clients(is_whole: bool) -> None:
            for name, key in names.items():
                if bare.get(name) is None:
                    if is_whole:
                        bare.get_many(("record", "stripe"))
                        cursor.execute(TOKEN)
                        cursor.fetchall()
                    cursor.execute("SELECT * FROM customers WHERE id = %s", (key,))
                    bare.set(name, json.dumps(cursor.fetchone()), noreply=False)

        def missing(keys: Iterable[str | bytes], measure: Callable[[], float]) -> float:
            bare.delete_many(list(keys), noreply=False)
            return measure()

        def compare(is_whole: bool) -> Timings:
            return interleave(
                lambda _: missing(items, lambda: require_hits(shop, ours)),
                lambda _: missing(names, lambda: stopwatch(partial(by_clients, is_whole))),
                rounds,
            )

        return [
            compare(is_whole=False).microseconds("miss", CUSTOMERS, "pymemcache get, SELECT and set"),
            compare(is_whole=True).microseconds("miss_bare", CUSTOMERS, "our requests by bare clients"),
        ]


def measure_hit_telemetry(rounds: int) -> list[Result]:
    """CPU of one key by `Cache.get` of a cache with telemetry, against one without, from the same memcached."""
    meters = MeterProvider([InMemoryMetricReader()])
    kinds: dict[str, Telemetry] = {
        "prometheus": PrometheusTelemetry(CollectorRegistry()),
        "metrics_by_opentelemetry": OpenTelemetry(meter_provider=meters, tracer_provider=NoOpTracerProvider()),
        "spans_by_opentelemetry": OpenTelemetry(meter_provider=NoOpMeterProvider(), tracer_provider=TracerProvider()),
    }
    results = []
    with open_shop(node_count=1) as shop:
        reads = repeated(shop.keys, READS)
        for name, telemetry in kinds.items():
            with closing(Cache(shop.cache.config, telemetry=telemetry)) as observed:
                timings = interleave(
                    partial(cpu_seconds, shop, observed, reads), partial(cpu_seconds, shop, shop.cache, reads), rounds
                )
            results.append(timings.microseconds(f"hit_{name}", READS, "CPU of a hit without telemetry"))
    return results


def cpu_seconds(shop: Shop, cache: Cache, keys: Sequence[int], _: int) -> float:
    """Of this thread, for hits. Raises `NotAHit`."""
    spent: list[float] = []

    def read() -> None:
        get, begun = cache.get, time.thread_time()
        for key in keys:
            get("customer", key)
        spent.append(time.thread_time() - begun)

    require_hits(shop, read)
    return spent[0]


def measure_get_many(rounds: int) -> list[Result]:
    """100 keys at once over four nodes, against pymemcache's own client for several nodes and meta-memcache's."""
    with open_shop(node_count=MANY_NODES) as shop, closing(HashClient([*shop.nodes], no_delay=True)) as bare:
        wanted = shop.keys[:MANY_KEYS]
        names = [f"bare:{key}" for key in wanted]
        meta_names = [f"meta:{key}" for key in wanted]
        meta = open_meta(shop.nodes)
        entry = shop.entry()
        for name, meta_name in zip(names, meta_names, strict=True):
            bare.set(name, entry, noreply=False)
            meta.set(meta_name, entry, ttl=VALUE_TTL_SECONDS)
        require_all(bare.get_many(names).values(), "HashClient")
        require_all(meta.multi_get(meta_names).values(), "meta-memcache")

        def ours() -> None:
            for _ in range(MANY_READS):
                shop.cache.get_many("customer", wanted)

        def by_hash_client() -> None:
            for _ in range(MANY_READS):
                bare.get_many(names)

        def by_meta() -> None:
            for _ in range(MANY_READS):
                meta.multi_get(meta_names)

        against_hash = interleave(lambda _: require_hits(shop, ours), lambda _: stopwatch(by_hash_client), rounds)
        against_meta = interleave(lambda _: require_hits(shop, ours), lambda _: stopwatch(by_meta), rounds)
        what = f"({MANY_KEYS}), {MANY_NODES} nodes"
        return [
            against_hash.microseconds(
                "get_many", MANY_READS, f"pymemcache HashClient.get_many{what}", MANY_CRITERION
            ),
            against_meta.microseconds("get_many_meta", MANY_READS, f"meta-memcache multi_get{what}"),
        ]


def open_meta(nodes: Sequence[str]) -> CacheApi:
    addresses = [ServerAddress(host, int(port)) for host, _, port in (node.rpartition(":") for node in nodes)]
    return CacheClient.cache_client_from_servers(addresses, connection_pool_factory_builder())


def require_all(values: Iterable[object], client: str) -> None:
    if not all(isinstance(value, bytes) for value in values):
        raise NotAHit(f"{client} does not find what it stored", hint="are the nodes full?")


def repeated(items: Sequence[Item], count: int) -> list[Item]:
    return [items[place % len(items)] for place in range(count)]


def require_hits(shop: Shop, reads: Callable[[], object]) -> float:
    """Seconds of these reads, without writes. Raises `NotAHit` if a key is no longer a hit."""
    seconds = stopwatch(reads)
    outcomes = shop.outcomes()
    if outcomes != {ReadOutcome.HIT}:
        raise NotAHit(
            f"after a round of reads they end as: {', '.join(sorted(each.value for each in outcomes))}",
            hint="the invalidator was held up; run it again on a calmer machine",
        )
    return seconds
