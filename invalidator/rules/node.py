"""Whether a cache node suits the configuration, by what it says of itself. Pure: facts in, findings out.

Answers that no server at hand gives, such as those of managed services, are tested as they are documented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from freshness.algorithm.envelope import NodeRecord
from freshness.config.cache import CacheConfig
from freshness.config.config import Config
from freshness.objects.nodepolicy import placements_of
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule

STRIPE_BYTES: Final = 100
ENTRY_BYTES_MORE: Final = 48_000
"""The rest of an item besides its part of a value: key and positions, see `CacheConfig.part_bytes`."""

MEMORY_SHARE_MAX: Final = 0.5
"""Stripes that need more of a node's memory leave too little for values."""

CONNECTIONS_SHARE_MAX: Final = 0.8

_SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    "Dragonfly": ("dragonfly_version", "it was not tested; a snapshot of it is data that came back, see the caveats"),
    "KeyDB": ("mvcc_depth", "it was not tested; active replicas would bring old values back: use none"),
}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """``told``: answers of the node about itself, by command; see `DescribedNode`. ``clock_ahead_seconds``: certain
    lead of its clock over this machine's, in seconds, below 0 if behind."""

    name: str
    backend: str
    told: Mapping[str, Mapping[str, str]]
    clock_ahead_seconds: float = 0.0

    def check(self, config: Config) -> Iterator[CheckFinding]:
        lineages = len(config.lineages)
        if self.backend == "memcached":
            yield from _check_memcached(self, config.cache, lineages)
        else:
            yield from _check_redis(self, config.cache, lineages)
        evicted = self.number("stats", "evictions") or self.number("INFO", "evicted_keys")
        if evicted:
            yield self.find(Rule.EVICTIONS, f"it has evicted {evicted} items since it started")
        ahead = self.clock_ahead_seconds
        if abs(ahead) > config.cache.clock_skew_seconds:
            side = "ahead of" if ahead > 0 else "behind"
            yield self.find(Rule.CLOCK, f"its clock is {abs(ahead):.1f} s {side} this machine's")

    def text(self, command: str, name: str) -> str:
        """ "" if the node did not report it."""
        return self.told.get(command, {}).get(name, "")

    def number(self, command: str, name: str) -> int:
        """0 if the node did not report it, or it is not a number."""
        text = self.text(command, name)
        return int(text) if text.isdecimal() else 0

    def find(self, rule: Rule, message: str, hint: str = "") -> CheckFinding:
        return CheckFinding(rule, f"{self.name}: {message}", hint, self.name)


def _check_memcached(node: NodeFacts, cache: CacheConfig, lineages: int) -> Iterator[CheckFinding]:
    if node.text("stats settings", "evictions") == "off":
        yield node.find(Rule.NO_EVICTION, "it may not evict (-M): once it is full, nothing is stored")
    largest = node.number("stats settings", "item_size_max")
    if largest and largest < cache.part_bytes + ENTRY_BYTES_MORE:
        yield node.find(
            Rule.SMALL_ITEMS,
            f"it takes items of {largest} bytes, and parts of values have {cache.part_bytes + ENTRY_BYTES_MORE}"
            " (cache.part_bytes and 48 kB)",
        )
    yield from _check_memory(node, node.number("stats", "limit_maxbytes"), cache, lineages)
    most = node.number("stats settings", "maxconns") or node.number("stats", "max_connections")
    yield from _check_connections(node, most, node.number("stats", "curr_connections"), "-c", cache)
    refused = node.number("stats", "listen_disabled_num") + node.number("stats", "rejected_connections")
    if refused:
        yield node.find(Rule.NODE_CONNECTIONS, f"it has refused connections {refused} times", "raise -c of memcached")
    idle = node.number("stats settings", "idle_timeout")
    if idle:
        yield node.find(Rule.IDLE_TIMEOUT, f"it ends connections that are idle for {idle} s (idle_timeout)")


def _check_redis(node: NodeFacts, cache: CacheConfig, lineages: int) -> Iterator[CheckFinding]:
    for name, (sign, meaning) in _SERVICES.items():
        if node.text("INFO", sign):
            yield node.find(Rule.OTHER_CACHE, f"it is {name}: {meaning}")
    if node.text("INFO", "role") not in ("", "master"):
        yield node.find(Rule.REDIS_REPLICA, "it is a replica, which takes no writes")
    if node.text("INFO", "cluster_enabled") == "1":
        yield node.find(Rule.REDIS_CLUSTER, "it is part of a Redis cluster")
    memory = node.number("INFO", "maxmemory")
    policy = node.text("INFO", "maxmemory_policy")
    if policy and not memory:
        yield node.find(Rule.NO_MEMORY_BOUND, "maxmemory is 0: it grows until the machine has no memory")
    elif policy == "noeviction":
        yield node.find(
            Rule.NO_EVICTION,
            "maxmemory-policy is noeviction: once it is full, nothing is stored",
            "CONFIG SET maxmemory-policy allkeys-lru, also in its configuration file",
        )
    yield from _check_memory(node, memory, cache, lineages)
    if "CONFIG" in node.told and not node.told["CONFIG"]:
        yield node.find(
            Rule.CONFIG_HIDDEN, "it does not tell its configuration: time-outs and persistence were not looked at"
        )
    if node.text("CONFIG", "save") or node.text("INFO", "aof_enabled") == "1":
        yield node.find(Rule.PERSISTENT, "it keeps its data on disk (save, appendonly)")
    idle = node.number("CONFIG", "timeout")
    if idle:
        yield node.find(
            Rule.IDLE_TIMEOUT, f"it ends connections that are idle for {idle} s (timeout)", "CONFIG SET timeout 0"
        )
    most = node.number("INFO", "maxclients")
    yield from _check_connections(node, most, node.number("INFO", "connected_clients"), "maxclients", cache)
    refused = node.number("INFO", "rejected_connections")
    if refused:
        yield node.find(Rule.NODE_CONNECTIONS, f"it has refused {refused} connections", "raise maxclients of Redis")


def check_record(
    name: str, record: NodeRecord | None, resume: NodeRecord | None, lineage: str, primary: str, config: Config
) -> Iterator[CheckFinding]:
    """Whether those who keep the record of a node have this file, and follow the server that is the primary now.
    ``resume``: its resume copy; ``primary``: the identity of that server, "" if it is not known."""
    followed, present = record or resume, config.topology
    if primary and followed is not None and followed.primary not in ("", primary):
        told = f"{name}: its record of {lineage} follows the primary {followed.primary}, which is {primary} now"
        yield CheckFinding(Rule.PRIMARY_CHANGED, told, where=name)
    if record is None:
        return
    if record.topology > present:
        told = f"topology {record.topology} of {lineage} is in force, this configuration is topology {present}"
        yield CheckFinding(Rule.TOPOLOGY, f"{name}: {told}", where=name)
        return
    rings = {each.ring_version for each in placements_of(config.cache)}
    told = f"{name}: an invalidator keeps its record of {lineage} with other cache.nodes or"
    if not rings & record.rings:
        yield CheckFinding(Rule.RING, f"{told} another cache.namespace", where=name)
    elif record.topology == present and record.rings != rings:
        told += f" cache.previous_nodes under the same topology {present}"
        hint = "raise topology with each change of the nodes: docs/operations.md#adding-and-removing-nodes"
        yield CheckFinding(Rule.RING, told, hint, name)


def _check_memory(node: NodeFacts, limit: int, cache: CacheConfig, lineages: int) -> Iterator[CheckFinding]:
    needed = STRIPE_BYTES * cache.stripes * lineages
    if limit and needed > MEMORY_SHARE_MAX * limit:
        yield node.find(
            Rule.SMALL_NODE,
            f"it has {limit >> 20} MiB, and the stripes of {lineages} shards need about {max(1, needed >> 20)} MiB",
        )


def _check_connections(
    node: NodeFacts, most: int, present: int, option: str, cache: CacheConfig
) -> Iterator[CheckFinding]:
    if not most:
        return
    if present > CONNECTIONS_SHARE_MAX * most:
        yield node.find(Rule.NODE_CONNECTIONS, f"{present} of at most {most} connections are open", f"raise {option}")
    elif cache.connections_max >= most:
        yield node.find(
            Rule.NODE_CONNECTIONS,
            f"it takes {most} connections, and one process of an application may open {cache.connections_max}",
            f"raise {option}, or lower cache.connections_max",
        )
