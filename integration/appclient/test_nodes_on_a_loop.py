"""The contract of a cache node, for connections whose waits are those of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from appclient.connection.awaiting import LOOP, run_awaiting
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Reply, Request
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.redis import RedisNode
from freshness.nodes.servernode import Reach
from integration.freshness.test_nodes import ServerSetup
from integration.servers import Memcached, Redis
from tests.contract.test_backends import BoundContract, Setup


class LoopNode:
    """A node whose methods are run by tasks, one after the other."""

    def __init__(self, node: CacheNode, loop: asyncio.AbstractEventLoop) -> None:
        self.name = node.name
        self._node = node
        self._loop = loop

    def send(self, requests: Sequence[Request]) -> None:
        self._loop.run_until_complete(run_awaiting(self._node.send, requests))

    @property
    def is_connected(self) -> bool:
        return self._node.is_connected

    def connect(self) -> None:
        self._loop.run_until_complete(run_awaiting(self._node.connect))

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        return self._loop.run_until_complete(run_awaiting(self._node.receive, is_late=is_late))

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        return self._loop.run_until_complete(run_awaiting(self._node.perform, requests))

    def find(self, key: bytes) -> bytes | None:
        return self._loop.run_until_complete(run_awaiting(self._node.find, key))

    def close(self) -> None:
        self._node.close()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


class TestMemcachedOnALoop(BoundContract):
    @pytest.fixture
    def setup(self, memcached: Memcached, loop: asyncio.AbstractEventLoop) -> Iterator[Setup]:
        memcached.restart()
        setup = ServerSetup(memcached, lambda: LoopNode(MemcachedNode(memcached.address, Reach(network=LOOP)), loop))
        yield setup
        setup.close()


class TestRedisOnALoop(BoundContract):
    @pytest.fixture
    def setup(self, redis: Redis, loop: asyncio.AbstractEventLoop) -> Iterator[Setup]:
        redis.restart()
        setup = ServerSetup(redis, lambda: LoopNode(RedisNode(redis.address, Reach(network=LOOP)), loop))
        yield setup
        setup.close()
