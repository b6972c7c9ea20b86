"""The application of a soak: ``python -m benchmarks.soak_application CONFIG KIND``, ``threads`` or ``tasks``.

It reads all kinds of objects at a steady pace, among them keys that were never read before, and prints each second
how many values it has read, how many were hits, and how many reads were refused.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from appclient import AsyncCache, Cache, Explanation, FreshnessError, ReadOutcome
from integration.chaos.client import load_profile, load_profile_in_task

ROWS: Final = 10_000
"""Of which each is read; rows above are added all the time."""

LANES: Final = 4
KEYS_AT_ONCE: Final = 500
PAUSE_SECONDS: Final = 0.02
NAMES: Final = ("customer", "logged", "copied", "orders_of", "profile")
ALL: Final = [(name, range(first, first + KEYS_AT_ONCE)) for name in NAMES for first in range(0, ROWS, KEYS_AT_ONCE)]
"""Read once before anything is counted: whatever a process keeps of keys, as much as it may, it has then."""

HITS: Final = frozenset((ReadOutcome.HIT, ReadOutcome.LOCAL_HIT))


class Load:
    """What each lane reads next, and what all have read. ``ending`` is set by SIGTERM."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self._new = itertools.count(ROWS)
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        signal.signal(signal.SIGTERM, lambda *_: self.ending.set())

    def choose(self) -> tuple[str, list[int], dict[str, Any]]:
        """Mostly keys that others read, too, and now and then one that nobody has read."""
        name = random.choice(NAMES)
        keys = [int(ROWS * random.random() ** 4) for _ in range(random.choice((1, 1, 5, 20)))]
        if random.random() < 0.1:
            keys.append(next(self._new))
        return name, list(dict.fromkeys(keys)), {"together": random.random() < 0.1}

    def count(self, found: Mapping[Any, Explanation]) -> None:
        with self._lock:
            self._seen["read"] += len(found)
            self._seen["hits"] += sum(each.outcome in HITS for each in found.values())

    def refuse(self) -> None:
        """A busy machine can hold a server up for longer than a read waits."""
        with self._lock:
            self._seen["refused"] += 1

    def report(self) -> None:
        while not self.ending.wait(1):
            with self._lock:
                print(*(self._seen[name] for name in ("read", "hits", "refused")), flush=True)


def run_threads(path: Path, load: Load) -> None:
    def work() -> None:
        while not load.ending.is_set():
            name, keys, options = load.choose()
            try:
                load.count(cache.get_many(name, keys, explain=True, **options))
            except FreshnessError:
                load.refuse()
            time.sleep(PAUSE_SECONDS)

    with closing(Cache.open(path)) as cache, ThreadPoolExecutor(LANES) as pool:
        cache.loader("profile")(load_profile)
        for name, keys in ALL:
            cache.get_many(name, keys)
        threading.Thread(target=load.report, daemon=True).start()
        for lane in [pool.submit(work) for _ in range(LANES)]:
            lane.result()


async def run_tasks(path: Path, load: Load) -> None:
    async with await AsyncCache.open(path) as cache:
        cache.loader("profile")(load_profile_in_task)
        for name, keys in ALL:
            await cache.get_many(name, keys)

        async def work() -> None:
            while not load.ending.is_set():
                name, keys, options = load.choose()
                try:
                    # A task of its own for each read, as a web server has
                    load.count(await asyncio.create_task(cache.get_many(name, keys, explain=True, **options)))
                except FreshnessError:
                    load.refuse()
                await asyncio.sleep(PAUSE_SECONDS)

        threading.Thread(target=load.report, daemon=True).start()
        await asyncio.gather(*(work() for _ in range(LANES)))


def main(path: str, kind: str) -> None:
    load = Load()
    if kind == "threads":
        run_threads(Path(path), load)
    else:
        asyncio.run(run_tasks(Path(path), load))


if __name__ == "__main__":
    main(*sys.argv[1:])
