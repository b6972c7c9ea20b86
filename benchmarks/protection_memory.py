"""What a node needs for the protection of changed keys: stripes, and beside them a tombstone for each key.

A tombstone stays as long as a replica may lag, two minutes, and must not be evicted before: a node holds one
for each key that changed in that time. Stripes are as many as are configured, whatever changes, and any of
them may be
evicted. Both are stored on a real memcached, two minutes of changes of new keys in batches of 10 ms, and what its
slabs hold of them is counted. Stripes grow by appending and are shortened: before the measurement, changes
pass until both are in balance, as on a node that has been in use for long.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks.invalidation import MARKER_BYTES, MARKER_SUFFIX
from benchmarks.measure import Result
from benchmarks.pipeline import LIFE, STRIPES, put_stripes
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.invalidate import SHORTEN_SHARE, Target, invalidate, shorten
from freshness.algorithm.request import Add
from freshness.nodes.memcached import MemcachedNode
from freshness.position import MariadbPosition
from integration.servers import Memcached

RATES: Final = (100, 1_000, 10_000)
"""Changed keys a second."""

TOMBSTONE_SECONDS: Final = 120
BATCHES_A_SECOND: Final = 100
EARLIER_BATCHES: Final = 8 * SHORTEN_SHARE
EARLIER_KEYS: Final = STRIPES // 4
"""Together they change each stripe 14 times, and shorten it nearly twice."""

MEMORY_MB: Final = 1024
NAMESPACE: Final = "bench"
LINEAGE: Final = "shop/-"
START: Final = MariadbPosition.of(0, 1, 1)
AXIS: Final = "changed keys a second"


def measure_protection_memory(_: int) -> list[Result]:
    """Once each: memory has no rounds. The last result has the curves of all."""
    results: list[Result] = []
    stripes, tombstones = [], []
    for rate in RATES:
        batches = _batches(rate)
        stripes.append((float(rate), _measure_stripes(batches)))
        tombstones.append((float(rate), _measure_tombstones(batches)))
        ours, theirs = stripes[-1][1], tombstones[-1][1]
        is_last = rate == RATES[-1]
        results.append(
            Result(
                f"protection_memory_{rate}",
                ours,
                "MB",
                f"tombstones of {TOMBSTONE_SECONDS} s, {rate:,} {AXIS}",
                theirs,
                (ours / theirs, ours / theirs),
                points=tuple(stripes) if is_last else (),
                axis=AXIS,
                baseline_points=tuple(tombstones) if is_last else (),
            )
        )
    return results


def _batches(rate: int) -> list[list[bytes]]:
    size = rate // BATCHES_A_SECOND
    return [
        [b"%b:small:%d" % (NAMESPACE.encode(), number * size + place) for place in range(size)]
        for number in range(TOMBSTONE_SECONDS * BATCHES_A_SECOND)
    ]


def _measure_stripes(batches: list[list[bytes]]) -> float:
    """MB."""
    with Memcached(memory_mb=MEMORY_MB) as server:
        node = MemcachedNode(server.address)
        driver = BlockingDriver({server.address: node}, time.sleep)
        target = Target(NAMESPACE, LINEAGE, LIFE, STRIPES, START)
        before = _used_mb(server)
        put_stripes(node, NAMESPACE, LINEAGE, MariadbPosition())
        long_before = [
            [b"long-before:%d:%d" % (number, place) for place in range(EARLIER_KEYS)]
            for number in range(EARLIER_BATCHES)
        ]
        for number, keys in enumerate([*long_before, *batches], 2):
            streamed = MariadbPosition.of(0, 1, number)
            numbers = driver.run(invalidate(server.address, keys, target, streamed))
            driver.run(shorten(server.address, numbers, target, streamed))
        node.close()
        assert int(server.stats()["evictions"]) == 0, "all are there"
        return _used_mb(server) - before


def _measure_tombstones(batches: list[list[bytes]]) -> float:
    """MB."""
    with Memcached(memory_mb=MEMORY_MB) as server:
        node = MemcachedNode(server.address)
        before = _used_mb(server)
        data = bytes(MARKER_BYTES)
        for keys in batches:
            # Their time is not what is measured: none may be gone before the last is there
            node.perform(tuple([Add(key + MARKER_SUFFIX, data, 10 * TOMBSTONE_SECONDS) for key in keys]))
        node.close()
        assert int(server.stats()["curr_items"]) == sum(map(len, batches)), "all are there"
        return _used_mb(server) - before


def _used_mb(server: Memcached) -> float:
    """What items take of the slabs, with what is left over behind each."""
    slabs = server.stats("slabs")
    return sum(
        int(count) * int(slabs[name.replace("used_chunks", "chunk_size")])
        for name, count in slabs.items()
        if name.endswith(":used_chunks")
    ) / (1 << 20)
