"""What a hit costs by `Cache.get`, and by `Cache.get_many` over several nodes, against a bare client.

The bare client reads bytes and knows nothing of their freshness or of rows: its time is what a round trip costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, TypeVar

from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient

from benchmarks.measure import Criterion, Result, interleave, stopwatch
from benchmarks.shop import Shop, open_shop
from freshness.errors import FreshnessError
from freshness.rule import ReadOutcome

Item = TypeVar("Item")

READS: Final = 3000
"""In one round."""

MANY_READS: Final = 60
MANY_KEYS: Final = 100
MANY_NODES: Final = 3
CRITERION: Final = Criterion(at_most=1.6)


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
        reads, bare_reads = _repeated(shop.keys, READS), _repeated(names, READS)

        def ours() -> None:
            for key in reads:
                get("customer", key)

        def baseline() -> None:
            for name in bare_reads:
                get_bare(name)

        timings = interleave(lambda _: _hits(shop, ours), lambda _: stopwatch(baseline), rounds)
        return [timings.microseconds("hit", READS, f"pymemcache get of {len(entry)} bytes", CRITERION)]


def measure_get_many(rounds: int) -> list[Result]:
    """100 keys at once over three nodes; the baseline is pymemcache's own client for several nodes."""
    with open_shop(node_count=MANY_NODES) as shop, closing(HashClient([*shop.nodes], no_delay=True)) as bare:
        wanted = shop.keys[:MANY_KEYS]
        names = [f"bare:{key}" for key in wanted]
        for name in names:
            bare.set(name, shop.entry(), noreply=False)

        def ours() -> None:
            for _ in range(MANY_READS):
                shop.cache.get_many("customer", wanted)

        def baseline() -> None:
            for _ in range(MANY_READS):
                bare.get_many(names)

        timings = interleave(lambda _: _hits(shop, ours), lambda _: stopwatch(baseline), rounds)
        described = f"pymemcache HashClient.get_many({MANY_KEYS}), {MANY_NODES} nodes"
        return [timings.microseconds("get_many", MANY_READS, described)]


def _repeated(items: Sequence[Item], count: int) -> list[Item]:
    return [items[place % len(items)] for place in range(count)]


def _hits(shop: Shop, reads: Callable[[], None]) -> float:
    """Seconds of these reads. Raises `NotAHit` where a key is none any more (nothing is written meanwhile)."""
    seconds = stopwatch(reads)
    outcomes = shop.outcomes()
    if outcomes != {ReadOutcome.HIT}:
        raise NotAHit(
            f"after a round of reads they end as: {', '.join(sorted(each.value for each in outcomes))}",
            hint="the invalidator was held up; run it again on a calmer machine",
        )
    return seconds
