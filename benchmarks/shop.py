"""A whole small system to read from: a MariaDB pair, memcached nodes, a running invalidator, and a filled cache.

Used by the benchmarks of reads, so that what is measured is what an application calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pymemcache.client.base import Client

from appclient import Cache
from appclient.cache import Explanation
from benchmarks.cores import settle_node, settle_rest
from freshness.algorithm.rule import ReadOutcome
from integration.configuration import write_config
from integration.servers import Memcached, ServerFailed, database_pair
from integration.servers.database import Pair
from integration.servers.program import InvalidatorProcess

CUSTOMERS: Final = 1000
FILL_SECONDS: Final = 60.0
"""Within this time every customer must have become a hit."""


@dataclass(frozen=True, slots=True)
class Shop:
    """``cache`` answers every one of ``keys`` with a hit. ``nodes``: the addresses of ``servers``, of memcached."""

    pair: Pair
    cache: Cache
    keys: tuple[int, ...]
    nodes: tuple[str, ...]
    servers: tuple[Memcached, ...]
    config_path: Path

    def outcomes(self) -> set[ReadOutcome]:
        """How reading all keys ends."""
        return {each.outcome for each in self.cache.get_many("customer", self.keys, explain=True).values()}

    def visit(self, key: int) -> str:
        """The statement that changes a customer."""
        return f"UPDATE customers SET visits = visits + 1 WHERE id = {key:d}"

    def entry(self) -> bytes:
        """The first customer as it is stored."""
        read: Explanation = self.cache.get("customer", self.keys[0], explain=True)
        with closing(Client(read.node)) as client:
            stored = client.get(read.item)
        assert isinstance(stored, bytes), "the first customer is in the cache"
        return stored


@contextmanager
def open_shop(node_count: int) -> Iterator[Shop]:
    """Raises `ServerFailed` if a server does not start, or the cache is not filled within 60 s."""
    with ExitStack() as stack:
        pair = stack.enter_context(database_pair("mariadb"))
        servers = tuple(stack.enter_context(Memcached()) for _ in range(node_count))
        nodes = tuple(server.address for server in servers)
        keys = tuple(range(1, CUSTOMERS + 1))
        rows = ",".join(f"({key},'Customer {key}','customer{key}@example.org',{key % 90},'London')" for key in keys)
        pair.primary.execute(
            "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50), email VARCHAR(80), visits INT,"
            " city VARCHAR(40))",
            database="shop",
        )
        pair.primary.execute(f"INSERT INTO customers VALUES {rows}", database="shop")
        pair.wait_caught_up()
        folder = Path(stack.enter_context(TemporaryDirectory()))
        path = write_config(folder, "mariadb", pair.primary.url, nodes, replicas=[pair.replica.url], stripes=None)
        invalidator = stack.enter_context(InvalidatorProcess(path))
        for server in servers:
            settle_node(server.pid)
        for process in (pair.primary, pair.replica, invalidator):
            settle_rest(process.pid)
        cache = Cache.open(path)
        stack.callback(cache.close)
        shop = Shop(pair, cache, keys, nodes, servers, path)
        _fill(shop)
        yield shop
        if not invalidator.is_running():
            raise ServerFailed(f"the invalidator ended meanwhile; the end of its log:\n{invalidator.log_tail()}")


def _fill(shop: Shop) -> None:
    deadline = time.monotonic() + FILL_SECONDS
    while (outcomes := shop.outcomes()) != {ReadOutcome.HIT}:
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"after {FILL_SECONDS:.0f} s reads still end as: "
                f"{', '.join(sorted(each.value for each in outcomes))}",
                hint="run: make integration",
            )
        time.sleep(0.1)
