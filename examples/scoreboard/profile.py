"""The processor time of an application's pages, in one process, by the part whose code runs.

``python -m examples.scoreboard.profile`` writes the table of docs/performance.md, a line for each shop and cache. The
time is that of the process without a profiler; the parts are their shares of cProfile's time, which makes calls
dearer than they are.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import io
import json
import os
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from wsgiref.util import setup_testing_defaults

from examples.scoreboard.load import BASKET
from examples.scoreboard.run import PRODUCTS, prepared_shop
from examples.scoreboard.shop import SHOPS, Shop
from integration.servers import Pair, database_pair

PAGES: Final = 200
ROUNDS: Final = 5

PARTS: Final = (
    ("sockets", ("_socket.socket'", "select.epoll", "loop.py")),
    ("ORM", ("/sqlalchemy/", "/django/db/", "greenlet")),
    ("driver", ("/pymysql/", "/MySQLdb/", "/asyncmy/", "_mysql", "asyncmy.")),
    ("adapter", ("/appclient/sqlalchemy/", "/appclient/django/", "/appclient/flask", "/appclient/starlette")),
    (
        "cache",
        (
            "/appclient/",
            "/freshness/",
            "/msgspec",
            "msgspec.",
            "/aiocache/",
            "/dogpile/",
            "/pymemcache/",
            "pickle",
        ),
    ),
    (
        "framework",
        (
            "/flask/",
            "/werkzeug/",
            "/django/",
            "/fastapi/",
            "/starlette/",
            "/pydantic",
            "/asgiref/",
            "/itsdangerous/",
        ),
    ),
)
"""A part, and what the place of its functions has; the first that fits. Everything else is "Python"."""

Page = Callable[[str], None]


def open_wsgi(application: Any) -> Page:
    def page(path: str) -> None:
        name, _, query = path.partition("?")
        environment = {"PATH_INFO": name, "QUERY_STRING": query, "wsgi.input": io.BytesIO()}
        setup_testing_defaults(environment)
        statuses: list[str] = []
        answer = application(environment, lambda status, headers: statuses.append(status))
        b"".join(answer)
        answer.close()
        assert statuses == ["200 OK"], statuses

    return page


def open_asgi(application: Any) -> Page:
    """Also starts the application's lifespan, which ends with the process."""
    loop = asyncio.new_event_loop()
    state: dict[str, Any] = {}

    async def start() -> asyncio.Task[None]:
        started = asyncio.Event()
        inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        inbox.put_nowait({"type": "lifespan.startup"})

        async def send(message: dict[str, str]) -> None:
            assert message["type"] != "lifespan.startup.failed", message
            started.set()

        task = asyncio.create_task(application({"type": "lifespan", "state": state}, inbox.get, send))
        await started.wait()
        return task

    lifespan = loop.run_until_complete(start())

    async def ask(path: str) -> None:
        name, _, query = path.partition("?")
        scope = {"type": "http", "method": "GET", "path": name, "query_string": query.encode(), "headers": []}
        statuses = []

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status"))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        await application({**scope, "state": dict(state)}, receive, send)
        assert statuses[0] == 200, statuses

    def page(path: str) -> None:
        assert not lifespan.done()
        loop.run_until_complete(ask(path))

    return page


def measure(page: Page) -> dict[str, Any]:
    """Processor time of a page in the fastest round without a profiler, in microseconds; the share of each part."""
    chance = random.Random(5)
    paths = [
        f"/products/{chance.randrange(1, PRODUCTS)}"
        if chance.random() < 0.45
        else f"/basket?keys={','.join(str(chance.randrange(1, PRODUCTS)) for _ in range(BASKET))}"
        for _ in range(PAGES)
    ]

    def pages() -> None:
        for path in paths:
            page(path)

    for key in range(1, PRODUCTS + 1):
        page(f"/products/{key}")
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        pages()
        taken.append((time.process_time() - began) / PAGES * 1e6)
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(pages)
    spent: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        place = name if file == "~" else file
        spent[next((part for part, marks in PARTS if any(mark in place for mark in marks)), "Python")] += own
    total = sum(spent.values())
    return {
        "microseconds": round(min(taken)),
        "parts": {part: round(own / total, 3) for part, own in spent.items()},
    }


def profile_shop(shop: Shop, pair: Pair, cache: str, folder: Path) -> dict[str, Any]:
    """As `measure`, in a process of its own."""
    command = [sys.executable, "-m", "examples.scoreboard.profile", "--inside", shop.name]
    with prepared_shop(shop, pair, cache, folder) as (environment, _, _):
        del environment["PROMETHEUS_MULTIPROC_DIR"]  # the page of each cache without a count of its reads
        ran = subprocess.run(
            command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True
        )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.scoreboard.profile", description=__doc__)
    parser.add_argument("--flavor", choices=["mariadb", "mysql"], default="mariadb")
    parser.add_argument("--shop", choices=SHOPS, action="append", help="all by default")
    parser.add_argument("--inside", metavar="SHOP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        place = "wsgi" if options.inside == "django" else "app"
        served = importlib.import_module(f"examples.{options.inside}_shop.{place}")
        opened = open_asgi if options.inside == "fastapi" else open_wsgi
        print(json.dumps(measure(opened(served.application))))
        return
    parts = [*(part for part, _ in PARTS), "Python"]
    print(
        f"| shop | cache | processor time of a page, ms | {' | '.join(parts)} |\n|{'---|' * (3 + len(parts))}"
    )
    for shop in map(SHOPS.__getitem__, options.shop or SHOPS):
        for cache in shop.caches:
            with database_pair(options.flavor) as pair, tempfile.TemporaryDirectory() as folder:
                found = profile_shop(shop, pair, cache, Path(folder))
            cells = [f"{100 * found['parts'].get(part, 0):.0f} %" for part in parts]
            milliseconds = f"{found['microseconds'] / 1000:.2f}"
            print(f"| {' | '.join((shop.name, shop.caches[cache], milliseconds, *cells))} |", flush=True)


if __name__ == "__main__":
    main()
