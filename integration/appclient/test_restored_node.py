"""F129: a Redis has older data from one moment to the next, sooner than readers look at its records again.

It comes back from its file, or becomes a replica of a server with an older copy, and may be a primary again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis as RedisClient

from appclient import Cache, ReadOutcome
from integration.harness import running_system, wait_for_hits, wait_until
from integration.servers import Pair, Redis

KEYS = range(1, 9)
SERVER = ("--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes")
"""A replica does not wait for others to come."""


def ask(server: Redis) -> RedisClient:
    return RedisClient(port=server.port, decode_responses=True)


def follow(server: Redis, primary: Redis) -> None:
    """Have everything that the primary has now, and no more of it."""
    ask(server).replicaof("127.0.0.1", str(primary.port))
    wait_until(lambda: ask(server).info("replication")["master_link_status"] == "up", "it follows")


class Replaced:
    """``save`` keeps the present data; ``replace`` puts them in the place of the later ones."""

    def __init__(self, node: Redis, other: Redis) -> None:
        self.node, self.other = node, other

    def save(self) -> None:
        assert ask(self.node).save()

    def replace(self) -> None:
        raise NotImplementedError


class Restarted(Replaced):
    """It is killed, and reads its file."""

    def replace(self) -> None:
        self.node.restart()


class Follower(Replaced):
    """A living server becomes a replica of what was its own replica."""

    def save(self) -> None:
        ask(self.other).replicaof("NO", "ONE")

    def replace(self) -> None:
        follow(self.node, self.other)


class Promoted(Follower):
    """And it is a primary again, before anybody has looked."""

    def replace(self) -> None:
        super().replace()
        ask(self.node).replicaof("NO", "ONE")


class Reloaded(Replaced):
    """A living server writes its file and reads it: the same data."""

    def replace(self) -> None:
        ask(self.node).execute_command("DEBUG", "RELOAD")  # type: ignore[no-untyped-call]


@pytest.fixture
def other() -> Iterator[Redis]:
    with Redis(options=SERVER) as server:
        yield server


@pytest.mark.parametrize("way", [Restarted, Follower, Promoted, Reloaded])
def test_its_old_entries_are_no_hits(
    mariadb_pair: Pair, tmp_path: Path, other: Redis, way: Callable[[Redis, Redis], Replaced]
) -> None:
    pair = mariadb_pair
    for name in ("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop"):
        pair.primary.execute(name)
    node = Redis(options=SERVER)
    cache = {"backend": "redis", "node_refresh_seconds": 2}
    with running_system(pair, tmp_path, nodes=[cast(Any, node)], cache=cache) as system:
        replaced = way(node, other)
        if isinstance(replaced, Follower):
            follow(other, node)
        system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        system.settle()
        reader = Cache.open(system.config_path)
        wait_for_hits(reader, "customer", KEYS, system.describe)
        replaced.save()
        system.execute("UPDATE customers SET v = 1")
        system.settle()
        assert reader.get("customer", 9, explain=True).outcome is not ReadOutcome.NODE_DOWN, "a young view"
        replaced.replace()
        found = [reader.get("customer", key) for key in KEYS]
        found += reader.get_many("customer", KEYS).values()
        reader.close()
    assert [row for row in found if row["v"] != 1] == []
