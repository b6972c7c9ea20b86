"""What one simulated world is like. Everything follows from the seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

FAULTS: Final = (
    "lose_request",  # lost before the effect
    "lose_reply",  # lost after it
    "delay_request",  # carried out later, when its sender has long given up
    "pause",  # a process stands still, up to minutes
    "crash",  # an invalidator dies and starts again
    "evict",  # memcached drops items, where it may
    "lose_tombstone",  # it drops what it must not, and counts it (F67)
    "restart",  # a node comes back empty, its versions start again
    "cut",  # a node is not reachable for a while and comes back with what it had
    "flush",  # a stranger flushes a node
    "jump",  # time passes and nothing happens: leases lapse, tombstones expire
    "truncate",  # a table changes as a whole
    "move",  # a row changes its key
    "stop_replica",  # a replica stops applying
    "failover",  # a new primary, without the last commits
)


@dataclass(frozen=True, slots=True)
class Options:
    """``tombstone_ttl_seconds`` D, ``lease_seconds`` L; W follows. Small, so that expiry is never far away."""

    seed: int
    steps: int = 400
    shards: int = 1
    keys: int = 2
    nodes: int = 1
    readers: int = 2
    invalidators: int = 1
    replicas: int = 1
    keeps_tombstones: bool = True
    is_out_of_order: bool = False
    on_stale_serve: bool = False
    think_seconds: float = 0.0  # about how long a reader rests between two reads
    lag_seconds: float = 0.0  # what the first replica keeps behind on purpose
    quiet_seconds: float = 0.3  # about how long the writer rests between two commits
    faults: frozenset[str] = frozenset()
    fault_share: float = 0.03
    tombstone_ttl_seconds: int = 20
    lease_seconds: int = 3
    max_staleness_seconds: float = 8.0
    node_refresh_seconds: float = 1.0
    heartbeat_seconds: float = 1.0

    @property
    def trail_seconds(self) -> float:
        return self.tombstone_ttl_seconds - 2 * self.lease_seconds - 2

    @property
    def heartbeat_age_max_seconds(self) -> float:
        return self.max_staleness_seconds - self.lease_seconds - self.node_refresh_seconds

    @classmethod
    def of_seed(cls, seed: int) -> Options:
        """A world of every kind: small ones often, every fault sometimes, often only a few at once."""
        random = Random(f"options {seed}")
        share = random.choice((0.0, 0.1, 0.2, 0.5))
        faults = frozenset(fault for fault in FAULTS if random.random() < share)
        return cls(
            seed=seed,
            shards=random.choice((1, 1, 1, 2)),
            keys=random.choice((1, 1, 2, 3)),
            nodes=random.choice((1, 1, 2)),
            readers=random.choice((1, 2, 2, 3)),
            invalidators=random.choice((1, 1, 2)),
            replicas=random.choice((1, 2)),
            keeps_tombstones=random.random() < 0.8,
            is_out_of_order=random.random() < 0.3,
            on_stale_serve=random.random() < 0.1,
            think_seconds=random.choice((0.0, 0.1, 0.5, 2.0)),
            lag_seconds=random.choice((0.0, 0.0, 1.0, 5.0, 25.0, 60.0)),
            quiet_seconds=random.choice((0.1, 0.5, 3.0, 15.0)),
            faults=faults,
            fault_share=random.choice((0.003, 0.01, 0.03)),
        )

    def without(self, fault: str) -> Options:
        return replace(self, faults=self.faults - {fault})
