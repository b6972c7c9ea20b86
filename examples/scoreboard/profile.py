"""The processor time of an application's pages, in one process, by the part whose code runs.

``python -m examples.scoreboard.profile`` prints a table with a line for each shop and cache. The time is that of
the process without a profiler, the median of rounds that all caches have in turn; the parts are their shares of
cProfile's time, which makes calls dearer than they are.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from wsgiref.util import setup_testing_defaults

from appclient import Cache
from examples.scoreboard.load import BASKET
from examples.scoreboard.run import PRODUCTS, prepared_shop
from examples.scoreboard.shop import SHOPS, Shop
from integration.servers import Pair, database_pair

KEPT: Final = "kept"
"""The adapter of the ORM, see `keep_rows`."""

PAGES: Final = 100
ROUNDS: Final = 15

PARTS: Final = (
    ("sockets", ("_socket.socket'", "select.epoll", "loop.py")),
    ("ORM", ("/sqlalchemy/", "/django/db/", "greenlet")),
    ("driver", ("/pymysql/", "/MySQLdb/", "/asyncmy/", "_mysql", "asyncmy.")),
    ("adapter", ("/appclient/sqlalchemy/", "/appclient/django/", "/appclient/flask", "/appclient/starlette")),
    (
        "cache",
        ("/appclient/", "/freshness/", "/msgspec", "msgspec.", "/aiocache/", "/dogpile/", "/pymemcache/", "pickle"),
    ),
    (
        "framework",
        ("/flask/", "/werkzeug/", "/django/", "/fastapi/", "/starlette/", "/pydantic", "/asgiref/", "/itsdangerous/"),
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
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    inbox.put_nowait({"type": "lifespan.startup"})

    async def start() -> asyncio.Task[None]:
        started = asyncio.Event()

        async def send(message: dict[str, str]) -> None:
            assert message["type"] != "lifespan.startup.failed", message
            started.set()

        task = asyncio.create_task(application({"type": "lifespan", "state": state}, inbox.get, send))
        await started.wait()
        return task

    lifespan = loop.run_until_complete(start())

    @atexit.register
    def end() -> None:
        inbox.put_nowait({"type": "lifespan.shutdown"})
        loop.run_until_complete(lifespan)

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


def answer(page: Page) -> None:
    """Answer each line of the input by one of JSON: "time" with the processor time of a page in microseconds, "parts"
    with the share of each."""
    chance = random.Random(5)
    paths = [
        f"/products/{chance.randrange(1, PRODUCTS)}"
        if chance.random() < 0.45
        else f"/basket?keys={','.join(map(str, chance.sample(range(1, PRODUCTS), BASKET)))}"
        for _ in range(PAGES)
    ]

    def pages() -> None:
        for path in paths:
            page(path)

    for key in range(1, PRODUCTS + 1):
        page(f"/products/{key}")
    for line in sys.stdin:
        if line.strip() == "time":
            began = time.process_time()
            pages()
            print((time.process_time() - began) / PAGES * 1e6, flush=True)
            continue
        profiler = cProfile.Profile(time.process_time)
        profiler.runcall(pages)
        spent: Counter[str] = Counter()
        for (file, _, name), (_, _, own, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
            place = name if file == "~" else file
            fitting = (part for part, marks in PARTS if any(mark in place for mark in marks))
            spent[next(fitting, "Python")] += own
        print(json.dumps({part: own / spent.total() for part, own in spent.items()}), flush=True)


def keep_rows() -> None:
    """Have `Cache` answer by the rows that it has read once, so that a page has the ORM's part alone."""
    kept: dict[Any, Any] = {}
    read = Cache.get_many

    def get_many(self: Cache, name: str, keys: Iterable[Any], **options: Any) -> dict[Any, Any]:
        wanted = list(keys)
        missing = [key for key in wanted if (name, key) not in kept]
        if missing:
            kept.update({(name, key): row for key, row in read(self, name, missing, **options).items()})
        return {key: kept[name, key] for key in wanted}

    def get(self: Cache, name: str, key: Any, **options: Any) -> Any:
        return get_many(self, name, [key], **options)[key]

    Cache.get, Cache.get_many = get, get_many  # type: ignore[method-assign, assignment]


class Child:
    """The shop's application in a process of its own, on the first core."""

    def __init__(self, shop: Shop, cache: str, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "examples.scoreboard.profile", "--inside", shop.name]
        self.process = subprocess.Popen(
            [*command, "--keep"] if cache == KEPT else command,
            env={**os.environ, **environment, "SHOP_CACHE": "freshness" if cache == KEPT else cache},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(self.process.pid, [min(os.sched_getaffinity(0))])

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@dataclass(frozen=True, slots=True)
class PageCost:
    """Processor time of a page, its ratio to that of the page without a cache, and the share of each part."""

    milliseconds: float
    ratio: float
    parts: Mapping[str, float]


def profile_shop(shop: Shop, pair: Pair, folder: Path) -> Iterator[tuple[str, PageCost]]:
    """By the name of each cache. All are asked in turn."""
    names = {**shop.caches, KEPT: f"{shop.caches['freshness']}, rows kept in the process"}
    with prepared_shop(shop, pair, "freshness", folder) as (environment, _, _), ExitStack() as stack:
        del environment["PROMETHEUS_MULTIPROC_DIR"]  # the page of each cache without a count of its reads
        children = {cache: stack.enter_context(closing(Child(shop, cache, environment))) for cache in names}
        taken = [{cache: child.ask("time") for cache, child in children.items()} for _ in range(ROUNDS)]
        for cache, name in names.items():
            milliseconds = median(each[cache] for each in taken) / 1000
            ratio = median(each[cache] / each["none"] for each in taken)
            yield name, PageCost(milliseconds, ratio, children[cache].ask("parts"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.scoreboard.profile", description=__doc__)
    parser.add_argument("--flavor", choices=["mariadb", "mysql"], default="mariadb")
    parser.add_argument("--shop", choices=SHOPS, action="append", help="all by default")
    parser.add_argument("--inside", metavar="SHOP", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        if options.keep:
            keep_rows()
        place = "wsgi" if options.inside == "django" else "app"
        served = importlib.import_module(f"examples.{options.inside}_shop.{place}")
        answer((open_asgi if options.inside == "fastapi" else open_wsgi)(served.application))
        return
    parts = [*(part for part, _ in PARTS), "Python"]
    heads = ["shop", "cache", "processor time of a page, ms", "beside no cache", *parts]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for shop in map(SHOPS.__getitem__, options.shop or SHOPS):
        with database_pair(options.flavor) as pair, tempfile.TemporaryDirectory() as folder:
            for name, cost in profile_shop(shop, pair, Path(folder)):
                shares = [f"{100 * cost.parts.get(part, 0):.0f} %" for part in parts]
                cells = [shop.name, name, f"{cost.milliseconds:.2f}", f"{cost.ratio:.2f}", *shares]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
