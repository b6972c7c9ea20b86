"""F129: a Redis has older data from one moment to the next, sooner than readers look at its records again.

It comes back from its file, or becomes a replica of a server with an older copy, and may be a primary again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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


class Swapped(Replaced):
    """Somebody puts an older copy of all keys in their place, in the same process."""

    def save(self) -> None:
        for key in ask(self.node).scan_iter():
            assert ask(self.node).copy(key, key, destination_db="1")

    def replace(self) -> None:
        assert ask(self.node).swapdb(0, 1)


class Restored(Replaced):
    """Somebody empties the server and puts the keys back from a copy outside of it, in one transaction."""

    def save(self) -> None:
        client = RedisClient(port=self.node.port)
        self.kept = {key: (client.pttl(key), client.dump(key)) for key in client.scan_iter()}

    def replace(self) -> None:
        with RedisClient(port=self.node.port).pipeline() as transaction:
            transaction.flushall()
            for key, (ttl_ms, dumped) in self.kept.items():
                if dumped is not None:
                    transaction.restore(key, max(0, ttl_ms), dumped)
            transaction.execute()


@pytest.fixture
def other() -> Iterator[Redis]:
    with Redis(options=SERVER) as server:
        yield server


@contextmanager
def replaced(pair: Pair, folder: Path, other: Redis, way: Callable[[Redis, Redis], Replaced]) -> Iterator[Cache]:
    """A reader with young records, of a node whose data were replaced by those of before the last change."""
    for name in ("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop"):
        pair.primary.execute(name)
    node = Redis(options=SERVER)
    # A copy that is younger than a lease
    cache = {
        "backend": "redis", "node_refresh_seconds": 2, "lease_seconds": 20, "max_staleness_seconds": 90,
    }  # fmt: skip
    with running_system(pair, folder, nodes=[cast(Any, node)], cache=cache) as system:
        data = way(node, other)
        if isinstance(data, Follower):
            follow(other, node)
        system.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        system.settle()
        with closing(Cache.open(system.config_path)) as reader:
            wait_for_hits(reader, "customer", KEYS, system.describe)
            data.save()
            system.execute("UPDATE customers SET v = 1")
            system.settle()
            outcome = reader.get("customer", 9, explain=True).outcome
            assert outcome is not ReadOutcome.NODE_DOWN, "a young view"
            data.replace()
            yield reader


def find_old(reader: Cache) -> list[Any]:
    found = [reader.get("customer", key) for key in KEYS]
    found += reader.get_many("customer", KEYS).values()
    return [row for row in found if row["v"] != 1]


@pytest.mark.parametrize("way", [Restarted, Follower, Promoted, Reloaded])
def test_its_old_entries_are_no_hits(
    mariadb_pair: Pair, tmp_path: Path, other: Redis, way: Callable[[Redis, Redis], Replaced]
) -> None:
    with replaced(mariadb_pair, tmp_path, other, way) as reader:
        assert find_old(reader) == []


@pytest.mark.parametrize("way", [Swapped, Restored])
def test_a_copy_in_the_place_of_its_data_is_sent_everything_again(
    mariadb_pair: Pair, tmp_path: Path, other: Redis, way: Callable[[Redis, Redis], Replaced]
) -> None:
    """Nothing shows that to a reader. The invalidator finds its own record without what it has published."""
    with replaced(mariadb_pair, tmp_path, other, way) as reader:
        wait_until(lambda: not find_old(reader), "no row is old")
