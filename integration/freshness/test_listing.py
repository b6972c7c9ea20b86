"""Listing a real node returns all its keys, whatever happens to it during the listing, or fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from redis import Redis as RedisClient

from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Add, Delete, Get, Item, Stored
from freshness.config.access import NodeAccess, NodeLogin, Tls
from freshness.errors import NodeUnavailable
from freshness.nodes.listing import open_entry_keys
from freshness.nodes.open import open_node
from freshness.nodes.redis import RIGHTS
from integration.servers import Memcached
from integration.servers.certificates import Authority
from integration.servers.guarded import USER, GuardedMemcached, GuardedRedis
from integration.servers.redis import Redis

SECRET: Final = "correct-horse-47"
KEYS: Final = [b"shop:customer:%d" % number for number in range(4000)]
OTHERS: Final = [b"shop:!shop/-!1f", b"shop:!shop/-", b"shopping:customer:1", b"other:customer:1", b"shop*:x:1"]
Server = Memcached | Redis


@pytest.fixture(params=[Memcached, Redis])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as started:
        yield started


def open_server(server: Server, login: NodeLogin = NodeLogin()) -> CacheNode:  # noqa: B008 - it is frozen
    return open_node(NodeAccess(server.technology, login), server.address, timeout_seconds=10)


def add(node: CacheNode, keys: list[bytes]) -> None:
    assert all(isinstance(reply, Stored) for reply in node.perform([Add(key, b"x", 0) for key in keys]))


def list_keys(server: Server, login: NodeLogin = NodeLogin()) -> list[bytes]:  # noqa: B008 - it is frozen
    with open_entry_keys(NodeAccess(server.technology, login), server.address, "shop") as found:
        return list(found)


def test_all_keys_are_listed_while_others_come_and_go(server: Server) -> None:
    """A read moves an item between memcached's lists: a walk over those listed two of five keys. Redis moves its
    items to a larger table, and to a smaller one."""
    access = NodeAccess(server.technology)
    is_over = threading.Event()

    def read() -> None:
        with closing(open_server(server)) as node:
            while not is_over.is_set():
                node.perform(list(map(Get, KEYS)))

    def write() -> None:
        with closing(open_server(server)) as node:
            while not is_over.is_set():
                keys = [b"shop:other:%d" % number for number in range(20_000)]
                add(node, keys)
                held = node.perform(list(map(Get, keys)))
                versions = [each.version for each in held if isinstance(each, Item)]
                node.perform([Delete(key, version) for key, version in zip(keys, versions, strict=True)])

    with closing(open_server(server)) as node, ThreadPoolExecutor(2) as pool:
        with open_entry_keys(access, server.address, "shop") as none:
            assert list(none) == []
        add(node, [*KEYS, *OTHERS])
        works = [pool.submit(read), pool.submit(write)]
        try:
            for _ in range(20):
                found = set(list_keys(server))
                assert found >= set(KEYS)
                assert {key for key in found if not key.startswith(b"shop:other:")} == set(KEYS)
        finally:
            is_over.set()
        for each in works:
            each.result()


def test_a_list_that_is_cut_is_an_error(server: Server) -> None:
    with closing(open_server(server)) as node:
        add(node, KEYS)
    access = NodeAccess(server.technology)
    with open_entry_keys(access, server.address, "shop") as found:
        assert next(found) in KEYS
        server.kill()
        if server.technology == "redis":
            with pytest.raises(NodeUnavailable, match="broke the connection"):
                list(found)
        else:  # the dump was taken before the first key came
            assert len(list(found)) == len(KEYS) - 1
    with pytest.raises(NodeUnavailable, match="cannot be reached"):
        list_keys(server)


@pytest.mark.parametrize("kind", [GuardedMemcached, GuardedRedis])
def test_a_node_that_wants_a_login_lists_its_keys_over_tls(
    kind: type[GuardedMemcached | GuardedRedis], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    login = NodeLogin(USER, SECRET, Tls(authority.ca))
    with kind(authority.certify(), SECRET) as server:
        with closing(open_server(server, login)) as node:
            add(node, KEYS[:10])
        assert sorted(list_keys(server, login)) == sorted(KEYS[:10])
        with pytest.raises(NodeUnavailable):
            list_keys(server, NodeLogin(USER, SECRET))


def test_a_user_without_the_right_is_told_what_to_give() -> None:
    with Redis() as server:
        with closing(RedisClient(port=server.port)) as client:
            client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-scan")  # type: ignore[no-untyped-call]
        with pytest.raises(NodeUnavailable, match="refused SCAN") as caught:
            list_keys(server, NodeLogin("reader", "secret"))
        assert RIGHTS in caught.value.hint
