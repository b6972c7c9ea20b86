"""One application with one of the caches under the load; then the primary judges its rows."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from examples.scoreboard.load import Browser, Ends, Findings, Ledger, browse
from examples.scoreboard.shop import OURS, Shop
from examples.scoreboard.tally import read_tally
from integration.configuration import write_config
from integration.harness import System
from integration.servers import Memcached, Pair
from integration.servers.process import ServerProcess, find_free_port
from integration.servers.program import InvalidatorProcess

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCTS: Final = 300
SESSIONS: Final = 8
DELAY_SECONDS: Final = 1
"""The replica's delay: commits are shown 1 to 2 s late, or somewhat more on a busy machine."""

ATTEMPTS: Final = 5
"""Of a page whose connection is reset."""

READ_ON_SECONDS: Final = 3.0
"""The sessions read on after the last order, until the replica has caught up."""


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one run. ``poisoned``: products whose cached row is not the primary's after all is quiet,
    of ``products``.
    ``selects``: number of statements that both servers ran; ``primary_selects``: their number on the primary.
    ``processor_ms``: the workers' processor time for a page, until half way. ``hit_rate``: share of hits that the
    library reports, or that memcached reports for another cache; None without a cache."""

    shop: str
    cache: str
    flavor: str
    seed: int
    reads: int
    orders: int
    own_past: int
    late: int
    old: int
    withdrawn: int
    poisoned: int
    products: int
    selects: int
    primary_selects: int
    hit_rate: float | None
    processor_ms: float
    p50_ms: float
    p99_ms: float
    seconds: float
    disconnected: int
    failures: int

    @property
    def is_right(self) -> bool:
        """Whether nobody saw what was rolled back, and with the library nothing is old either."""
        wrong = self.own_past + self.old + self.poisoned if self.cache in OURS else 0
        return wrong + self.withdrawn == 0


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of a load, as in `Score`."""

    selects: int
    primary_selects: int
    processor_ms: float
    seconds: float


class ShopServer(ServerProcess):
    """The application, with several workers."""

    technology = "shop"

    def __init__(self, shop: Shop, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.port = find_free_port()
        self._shop, self._environment = shop, environment

    def command(self) -> list[str]:
        return [
            "/usr/bin/env",
            *(f"{name}={value}" for name, value in self._environment.items()),
            sys.executable,
            *(each.format(port=self.port) for each in self._shop.serve),
        ]

    def is_ready(self) -> bool:
        return read_page(self.port, "/products/1") is not None

    def processor_seconds(self) -> float:
        """Processor time of the workers so far, in seconds."""
        return sum(sum(child.cpu_times()[:2]) for child in psutil.Process(self.pid).children(recursive=True))

    def restart_workers(self) -> None:
        """Each worker ends after its requests, and another one starts."""
        self._signal(signal.SIGHUP)


def read_page(port: int, path: str) -> dict[str, dict[str, object]] | None:
    """The products of a page, asked for without a session.

    A worker that is replaced may take a connection and end it unanswered. The page is then asked for again, as a
    browser does, and the last attempt raises.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(ConnectionResetError):
            return _read_page(port, path)
    return _read_page(port, path)


def _read_page(port: int, path: str) -> dict[str, dict[str, object]] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    found: dict[str, dict[str, object]] | None = json.loads(text)["products"] if response.status == 200 else None
    return found


@dataclass(frozen=True, slots=True)
class RunningShop:
    """``system``: None with another cache than ours. ``tally``: the folder of the library's own counts."""

    shop: Shop
    cache: str
    pair: Pair
    node: Memcached
    server: ShopServer
    system: System | None
    tally: Path

    def find_hit_rate(self) -> float | None:
        if self.system is not None:
            hits, reads = read_tally(self.tally)
            return hits / reads if reads else None
        stats = self.node.stats()
        hits, misses = int(stats["get_hits"]), int(stats["get_misses"])
        return hits / (hits + misses) if hits + misses else None


@contextmanager
def running_shop(shop: Shop, pair: Pair, cache: str, folder: Path) -> Iterator[RunningShop]:
    """The application on a late replica. ``pair``: servers whose database ``shop`` is created again."""
    with prepared_shop(shop, pair, cache, folder) as (environment, node, system), ExitStack() as stack:
        pair.replica.replicate_from(pair.primary, delay_seconds=DELAY_SECONDS)
        stack.callback(pair.replica.replicate_from, pair.primary)
        server = stack.enter_context(ShopServer(shop, environment))
        yield RunningShop(shop, cache, pair, node, server, system, folder / "tally")


@contextmanager
def prepared_shop(
    shop: Shop, pair: Pair, cache: str, folder: Path
) -> Iterator[tuple[dict[str, str], Memcached, System | None]]:
    """The environment of the application, once its rows and its node are there; with our cache the invalidator."""
    with ExitStack() as stack:
        node = stack.enter_context(Memcached())
        path = write_config(
            folder,
            pair.primary.flavor,
            pair.primary.url,
            [node.address],
            replicas=[pair.replica.url],
            objects=shop.objects,
        )
        tally = folder / "tally"
        tally.mkdir()
        environment = {
            "PYTHONPATH": str(ROOT),
            "PROMETHEUS_MULTIPROC_DIR": str(tally),
            "DJANGO_SETTINGS_MODULE": "examples.django_shop.settings",
            "SHOP_CACHE": cache,
            "SHOP_SECRET": "a secret of the shops, which guards nothing",
            "SHOP_TOML": str(path),
            "SHOP_NODE": node.address,
            "SHOP_PRIMARY_PORT": str(pair.primary.port),
            "SHOP_REPLICA_PORT": str(pair.replica.port),
        }
        make_tables(shop, pair, environment)
        invalidator = stack.enter_context(InvalidatorProcess(path)) if cache in OURS else None
        system = System(pair, [node], path, invalidator) if invalidator else None
        pair.wait_caught_up()
        yield environment, node, system


def run_shop(shop: Shop, pair: Pair, cache: str, folder: Path, *, reads: int, seed: int) -> Score:
    """Run the load until ``reads`` rows were read. ``pair``: servers whose database ``shop`` is created
    again."""
    with running_shop(shop, pair, cache, folder) as running:
        return score_load(running, reads=reads, seed=seed)


def score_load(running: RunningShop, *, reads: int, seed: int) -> Score:
    """Run the load until ``reads`` rows were read, with new workers half way, and judge it."""
    findings, cost = put_under_load(running, reads, seed, half_way=running.server.restart_workers)
    hit_rate = running.find_hit_rate()
    poisoned = count_poisoned(running)
    taken = sorted(findings.seconds)
    return Score(
        shop=running.shop.name,
        cache=running.cache,
        flavor=running.pair.primary.flavor,
        seed=seed,
        reads=findings.reads,
        orders=findings.orders,
        own_past=findings.own_past,
        late=findings.late,
        old=findings.old,
        withdrawn=findings.withdrawn,
        poisoned=poisoned,
        products=PRODUCTS,
        selects=cost.selects,
        primary_selects=cost.primary_selects,
        hit_rate=hit_rate,
        processor_ms=round(cost.processor_ms, 2),
        p50_ms=round(taken[len(taken) // 2] * 1000, 2),
        p99_ms=round(taken[len(taken) * 99 // 100] * 1000, 2),
        seconds=round(cost.seconds, 1),
        disconnected=findings.disconnected,
        failures=sum(number for status, number in findings.statuses.items() if status not in (0, 200)),
    )


def make_tables(shop: Shop, pair: Pair, environment: Mapping[str, str]) -> None:
    primary = pair.primary
    primary.execute("DROP DATABASE IF EXISTS shop")
    primary.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
    subprocess.run(
        [sys.executable, *shop.migrate],
        env={**os.environ, **environment, "SHOP_CACHE": "none", "SHOP_NODE": "127.0.0.1:1"},
        check=True,
    )
    primary.execute(f"INSERT INTO {shop.categories} (name) VALUES ('lamps'), ('chairs')", database="shop")
    rows = ", ".join(f"({1 + key % 2}, 'product {key}', 9.90, 1000, 1, NOW(6), 0)" for key in range(PRODUCTS))
    primary.execute(
        f"INSERT INTO {shop.products} (category_id, name, price, stock, is_sold, changed, version) VALUES {rows}",
        database="shop",
    )


def put_under_load(
    running: RunningShop,
    reads: int,
    seed: int,
    *,
    half_way: Callable[[], None],
    read_on_seconds: float = READ_ON_SECONDS,
) -> tuple[Findings, Cost]:
    """Findings of the sessions, and the costs. ``half_way`` is called once, also if the sessions have read everything
    before this thread runs."""
    findings, ledger, lock, ends = Findings(), Ledger(), threading.Lock(), Ends()
    began, processor_began = time.monotonic(), running.server.processor_seconds()
    selects_began = count_selects(running.pair)
    with ThreadPoolExecutor(SESSIONS) as pool:
        sessions = [
            pool.submit(
                browse,
                Browser(running.server.port, ledger, findings, lock),
                random.Random(f"{seed}:{number}"),
                PRODUCTS,
                ends,
            )
            for number in range(SESSIONS)
        ]

        def read(at_least: int) -> bool:
            """Whether that many rows were read before a session failed."""
            while findings.reads < at_least:
                if any(session.done() for session in sessions):
                    return False
                time.sleep(0.05)
            return True

        processor_seconds, pages = 0.0, 1
        try:
            if read(reads // 2):
                processor_seconds = running.server.processor_seconds() - processor_began
                pages = max(1, len(findings.seconds))
                half_way()
                read(reads)
            ends.orders.set()
            time.sleep(read_on_seconds)
        finally:
            ends.reads.set()
        for session in sessions:
            session.result()
    primary, replica = (now - then for now, then in zip(count_selects(running.pair), selects_began, strict=True))
    processor_ms = 1000 * processor_seconds / pages
    return findings, Cost(primary + replica, primary, processor_ms, time.monotonic() - began)


def count_selects(pair: Pair) -> list[int]:
    """Of the primary and of the replica, since their start."""
    servers = (pair.primary, pair.replica)
    return [int(each.execute("SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1]) for each in servers]


def count_poisoned(running: RunningShop) -> int:
    """Products that a page shows otherwise than the primary has them, now that nothing is written any more.

    Both pages are asked: a cache of queries has a product under each. For our cache, the entries in memcached
    are compared,
    too.
    """
    pair, system = running.pair, running.system
    pair.replica.replicate_from(pair.primary)
    pair.wait_caught_up()
    if system is not None:
        system.wait_covered()
    rows = pair.primary.execute(f"SELECT id, version, price, stock FROM {running.shop.products}", database="shop")
    expected = {
        str(key): {"version": version, "price": str(price), "stock": stock} for key, version, price, stock in rows
    }
    differing = 0
    for key, row in expected.items():
        shown = [read_page(running.server.port, path) for path in (f"/products/{key}", f"/basket?keys={key}")]
        differing += any(each is None or each.get(key) != row for each in shown)
    if system is not None:
        differing = max(differing, len(system.find_stale("product", range(1, PRODUCTS + 1))[1]))
    pair.replica.replicate_from(pair.primary, delay_seconds=DELAY_SECONDS)
    return differing
