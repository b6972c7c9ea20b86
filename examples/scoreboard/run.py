"""One application under gunicorn with one of the caches, under the load; then the primary judges its rows."""

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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.scoreboard.load import Browser, Ends, Findings, Ledger, browse
from integration.configuration import write_config
from integration.harness import System
from integration.servers import Memcached, Pair
from integration.servers.process import ServerProcess, find_free_port
from integration.servers.program import InvalidatorProcess

ROOT: Final = Path(__file__).resolve().parents[2]
CACHES: Final = ("freshness", "signals", "cachalot", "none")
PRODUCTS: Final = 300
SESSIONS: Final = 8
WORKERS: Final = 2
THREADS: Final = 4
DELAY_SECONDS: Final = 1
"""The replica's delay: commits are shown 1 to 2 s late, or somewhat more on a busy machine."""

READ_ON_SECONDS: Final = 3.0
"""The sessions read on after the last order, until the replica has caught up."""

OBJECTS: Final = """
[objects.category]
table = "django_shop_category"

[objects.product]
table = "django_shop_product"
fill_from_log = true
"""


@dataclass(frozen=True, slots=True)
class Score:
    """Of one run. ``poisoned``: products whose cached row is not the primary's after all is quiet, of ``products``.
    ``selects``: statements that both servers have run meanwhile."""

    cache: str
    flavor: str
    seed: int
    reads: int
    orders: int
    own_past: int
    old: int
    withdrawn: int
    poisoned: int
    products: int
    selects: int
    p50_ms: float
    p99_ms: float
    seconds: float
    disconnected: int
    failures: int


class Gunicorn(ServerProcess):
    """The shop, with workers and threads."""

    technology = "gunicorn"

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.port = find_free_port()
        self._environment = environment

    def command(self) -> list[str]:
        return [
            "/usr/bin/env",
            *(f"{name}={value}" for name, value in self._environment.items()),
            sys.executable,
            "-m",
            "gunicorn",
            f"--workers={WORKERS}",
            f"--threads={THREADS}",
            f"--bind=127.0.0.1:{self.port}",
            "--graceful-timeout=20",
            "examples.django_shop.wsgi:application",
        ]

    def is_ready(self) -> bool:
        return read_page(self.port, "/products/1") is not None

    def restart_workers(self) -> None:
        """Each worker ends after its requests, and another one starts."""
        self._signal(signal.SIGHUP)


def read_page(port: int, path: str) -> dict[str, dict[str, object]] | None:
    """The products of a page, asked for without a session."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    found: dict[str, dict[str, object]] | None = (
        json.loads(text)["products"] if response.status == 200 else None
    )
    return found


def run_shop(pair: Pair, cache: str, folder: Path, *, reads: int, seed: int) -> Score:
    """Run the load until so many rows were read. ``pair``: its database ``shop`` is made anew."""
    with ExitStack() as stack:
        node = stack.enter_context(Memcached())
        path = write_config(
            folder,
            pair.primary.flavor,
            pair.primary.url,
            [node.address],
            replicas=[pair.replica.url],
            objects=OBJECTS,
        )
        environment = {
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "examples.django_shop.settings",
            "SHOP_CACHE": cache,
            "SHOP_SECRET": f"a secret of run {seed}, which guards nothing",
            "SHOP_TOML": str(path),
            "SHOP_NODE": node.address,
            "SHOP_PRIMARY_PORT": str(pair.primary.port),
            "SHOP_REPLICA_PORT": str(pair.replica.port),
        }
        make_tables(pair, environment)
        invalidator = stack.enter_context(InvalidatorProcess(path)) if cache == "freshness" else None
        system = System(pair, [node], path, invalidator) if invalidator else None
        pair.wait_caught_up()
        pair.replica.replicate_from(pair.primary, delay_seconds=DELAY_SECONDS)
        stack.callback(pair.replica.replicate_from, pair.primary)
        server = stack.enter_context(Gunicorn(environment))
        findings, selects, seconds = put_under_load(pair, server, reads, seed)
        pair.replica.replicate_from(pair.primary)
        pair.wait_caught_up()
        if system is not None:
            system.wait_covered()
        poisoned = count_poisoned(pair, server)
        if system is not None:
            poisoned = max(poisoned, len(system.find_stale("product", range(1, PRODUCTS + 1))[1]))
    taken = sorted(findings.seconds)
    return Score(
        cache=cache,
        flavor=pair.primary.flavor,
        seed=seed,
        reads=findings.reads,
        orders=findings.orders,
        own_past=findings.own_past,
        old=findings.old,
        withdrawn=findings.withdrawn,
        poisoned=poisoned,
        products=PRODUCTS,
        selects=selects,
        p50_ms=round(taken[len(taken) // 2] * 1000, 2),
        p99_ms=round(taken[len(taken) * 99 // 100] * 1000, 2),
        seconds=round(seconds, 1),
        disconnected=findings.disconnected,
        failures=sum(number for status, number in findings.statuses.items() if status not in (0, 200)),
    )


def make_tables(pair: Pair, environment: Mapping[str, str]) -> None:
    primary = pair.primary
    primary.execute("DROP DATABASE IF EXISTS shop")
    primary.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
    subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity=0"],
        env={**os.environ, **environment, "SHOP_CACHE": "none", "SHOP_NODE": "127.0.0.1:1"},
        check=True,
    )
    primary.execute("INSERT INTO django_shop_category (name) VALUES ('lamps'), ('chairs')", database="shop")
    rows = ", ".join(f"({1 + key % 2}, 'product {key}', 9.90, 1000, 1, NOW(6), 0)" for key in range(PRODUCTS))
    primary.execute(
        "INSERT INTO django_shop_product (category_id, name, price, stock, is_sold, changed, version) "
        f"VALUES {rows}",
        database="shop",
    )


def put_under_load(pair: Pair, server: Gunicorn, reads: int, seed: int) -> tuple[Findings, int, float]:
    """Findings of the sessions, SELECTs of both servers, and seconds. Half way all workers are replaced."""
    findings, ledger, lock, ends = Findings(), Ledger(), threading.Lock(), Ends()
    before, began = count_selects(pair), time.monotonic()
    with ThreadPoolExecutor(SESSIONS) as pool:
        sessions = [
            pool.submit(
                browse,
                Browser(server.port, ledger, findings, lock),
                random.Random(f"{seed}:{number}"),
                PRODUCTS,
                ends,
            )
            for number in range(SESSIONS)
        ]
        try:
            is_restarted = False
            while findings.reads < reads and not any(session.done() for session in sessions):
                time.sleep(0.05)
                if findings.reads > reads // 2 and not is_restarted:
                    server.restart_workers()
                    is_restarted = True
            ends.orders.set()
            time.sleep(READ_ON_SECONDS)
        finally:
            ends.reads.set()
        for session in sessions:
            session.result()
    return findings, count_selects(pair) - before, time.monotonic() - began


def count_selects(pair: Pair) -> int:
    servers = (pair.primary, pair.replica)
    return sum(int(each.execute("SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1]) for each in servers)


def count_poisoned(pair: Pair, server: Gunicorn) -> int:
    """Products that a page shows otherwise than the primary has them, while nothing is written any more.

    Both pages are asked: a cache of queries has a product under each.
    """
    rows = pair.primary.execute("SELECT id, version, price, stock FROM django_shop_product", database="shop")
    expected = {
        str(key): {"version": version, "price": str(price), "stock": stock}
        for key, version, price, stock in rows
    }
    differing = 0
    for key, row in expected.items():
        shown = [read_page(server.port, path) for path in (f"/products/{key}", f"/basket?keys={key}")]
        differing += any(each is None or each.get(key) != row for each in shown)
    return differing
