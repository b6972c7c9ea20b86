"""The invalidator of a `FakeSystem`: production's algorithm, node by node, on the commits of the primary.

Used by ``appclient.testing.system``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appclient.testing.databases import FakeDatabases
from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, apply_batch
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.request import Head, Streamed
from freshness.algorithm.restore import Restorer
from freshness.config.config import Config
from freshness.errors import FreshnessError
from freshness.keys.placement import find_rings
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.nodepolicy import node_policy, placements_of
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.stream.source import RowChange, Transaction


@dataclass(slots=True, eq=False)
class _Follower:
    """The state of one node in it."""

    member: Membership
    restorer: Restorer
    driver: BlockingDriver
    streamed: Position
    passed: list[Streamed] = field(default_factory=list)


@dataclass(eq=False)
class FakeInvalidator:
    """``stores``: the nodes. ``clock``: the time in seconds. ``wait``: lets time pass, in seconds."""

    config: Config
    databases: FakeDatabases
    definitions: Mapping[str, ObjectDefinition]
    stores: Mapping[str, MemoryStore]
    clock: Callable[[], float]
    wait: Callable[[float], None]
    _followers: list[_Follower] = field(default_factory=list, init=False)
    _nonces: int = field(default=0, init=False)
    _moments: int = field(default=0, init=False)

    @property
    def is_running(self) -> bool:
        """Whether it follows the nodes."""
        return bool(self._followers)

    def start(self) -> None:
        """Follow each node; `work` joins them."""
        lineage = self.databases.shard.lineage
        policy = node_policy(self.config.cache, lineage, self.definitions, topology=self.config.topology)
        self._followers = [self._follow(node, policy) for node in self.stores]

    def crash(self) -> None:
        """Stop without a word to the nodes."""
        self._followers = []

    def work(self) -> None:
        """Do what is to be done now."""
        for follower in self._followers:
            try:
                self._work(follower)
            except FreshnessError:
                follower.member.leave()  # the node does not answer: it is joined again when time goes on

    def _follow(self, node: str, policy: NodePolicy) -> _Follower:
        nothing = self.databases.nothing
        passed: list[Streamed] = []
        driver = BlockingDriver(
            {node: MemoryNode(self.stores[node])},
            self.wait,
            read_head=lambda: Head(self.databases.head, 1),
            read_stream=lambda _: passed[-1] if passed else None,
        )
        member = Membership(node, policy, self.clock, self._nonce, nothing)
        return _Follower(member, Restorer(node, policy, self._moment, self._nonce), driver, nothing, passed)

    def _work(self, follower: _Follower) -> None:
        member = follower.member
        if not member.is_joined:
            follower.driver.run(join(member, follower.streamed))
            follower.streamed = member.applied
        follower.driver.run(follower.restorer.look())
        follower.driver.run(apply_batch(member, self._batch(follower)))
        follower.driver.run(follower.restorer.look())

    def _batch(self, follower: _Follower) -> Batch:
        finder = KeyFinder(self.definitions)
        placements = placements_of(self.config.cache)
        before = follower.streamed
        keys: dict[bytes, Position] = {}
        for commit in self.databases.log:
            if before.contains(commit.position):
                continue
            follower.streamed = follower.streamed.union(commit.position)
            changes = tuple(RowChange(table, _operation(old, new), old, new) for table, _, old, new in commit.changes)
            items, _ = finder.find(Transaction(commit.position, 0, changes))
            for item in items:
                if find_rings(placements, item, follower.member.node):
                    keys[item] = keys[item].union(commit.position) if item in keys else commit.position
        now = self.clock()
        follower.passed.append(Streamed(follower.streamed, 1, self._moment()))
        return Batch(keys, {}, before, follower.streamed, HeartbeatSeen(now, time.time_ns() // 1000))

    def _moment(self) -> float:
        """No two are at one time: put-backs of stripes wait for a later heartbeat."""
        self._moments += 1
        return self.clock() + self._moments * 1e-9

    def _nonce(self) -> bytes:
        self._nonces += 1
        return self._nonces.to_bytes(8, "big")


def _operation(before: Any, after: Any) -> Any:
    return "insert" if before is None else "delete" if after is None else "update"
