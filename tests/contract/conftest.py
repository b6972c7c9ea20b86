"""The backends that the contract suite can run over without a server."""

from __future__ import annotations

import time

import fakeredis
import pytest
from redis.connection import AbstractConnection

from freshness.algorithm.node import CacheNode
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.nodes.redis import RedisNode


class MemorySetup:
    """One memory node on a clock that only the test moves."""

    def __init__(self) -> None:
        self.now_seconds = 1_000_000.0
        self.store = MemoryStore("memory:1", clock=lambda: self.now_seconds)

    def connect(self) -> CacheNode:
        return MemoryNode(self.store)

    def pass_time(self, seconds: float) -> None:
        self.now_seconds += seconds

    def kill(self) -> None:
        self.store.down = True

    def restart(self) -> None:
        self.store.restart()
        self.store.down = False


@pytest.fixture
def memory_setup() -> MemorySetup:
    return MemorySetup()


class FakeRedisNode(RedisNode):
    identify = ("ECHO", "master_replid:" + "0" * 40)


class FakeRedisSetup:
    """One Redis in this process, on the real clock. It knows no INFO, so it binds no items."""

    def __init__(self) -> None:
        self.server = fakeredis.FakeServer(server_type="redis", version=(7, 0))

    def connect_fake(self) -> AbstractConnection:
        pool = fakeredis.FakeRedis(server=self.server).connection_pool
        connection: AbstractConnection = pool.make_connection()
        return connection

    def connect(self) -> CacheNode:
        return FakeRedisNode("fakeredis:1", make_connection=self.connect_fake)

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def kill(self) -> None:
        self.server.connected = False

    def restart(self) -> None:
        self.server.connected = True
        fakeredis.FakeRedis(server=self.server).flushall()


@pytest.fixture
def fake_redis_setup() -> FakeRedisSetup:
    return FakeRedisSetup()
