"""An application of a run: ``python -m integration.chaos.client NAME MODE INDEX COUNT SEED FOLDER FLAVOR``.

Reads at a modest rate, in threads, in tasks of an event loop, or by sessions of SQLAlchemy, and writes groups of its
own (each ``COUNT``-th), whose commits it reads again by their token. It writes down what it got, until it is killed
or gets SIGTERM. While ``FOLDER/calm`` is there it writes no row.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from appclient import AsyncCache, Cache, CommitToken, Explanation, ReadOutcome
from appclient.sqlalchemy import CachedReads
from freshness.algorithm.lookup import ReadServer
from freshness.errors import FreshnessError
from integration.chaos.journal import Journal, now_us
from integration.chaos.shop import GROUPS, NAMES, NOTES, Writer, find_keys, find_unit, find_version, group_statements

LANES: Final = 3
"""Threads or tasks of a client."""
PAUSE_SECONDS: Final = 0.04
UNITS_MAX: Final = 40
"""Of a page: up to 80 keys. Pages are short as often as they are long."""
WRITE_SHARE: Final = 0.15
TOGETHER_SHARE: Final = 0.2
ENDING: Final = threading.Event()


def load_profile(db: Any, customer_id: int) -> dict[str, Any]:
    customer = db.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))
    return {"customer": customer, "orders": db.query("SELECT * FROM orders WHERE customer_id = %s", (customer_id,))}


async def load_profile_in_task(db: Any, customer_id: int) -> dict[str, Any]:
    customer = await db.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))
    rows = await db.query("SELECT * FROM orders WHERE customer_id = %s", (customer_id,))
    return {"customer": customer, "orders": rows}


def open_cache(path: Path) -> Cache:
    cache = Cache.open(path)
    cache.loader("profile")(load_profile)
    return cache


class Threads:
    """The cache of threads, with the methods of `AsyncCache`."""

    names: Sequence[str] = NAMES
    units_max = UNITS_MAX

    def __init__(self, path: Path) -> None:
        self.cache = open_cache(path)

    async def get_many(self, name: str, keys: Sequence[Any], **options: Any) -> dict[Any, Explanation]:
        return self.cache.get_many(name, keys, explain=True, **options)

    async def make_token(self, gtids: str) -> CommitToken | None:
        return self.cache.database().commit_token_of(gtids)


class Tasks:
    names: Sequence[str] = NAMES
    units_max = UNITS_MAX

    def __init__(self, cache: AsyncCache) -> None:
        self.cache = cache

    async def get_many(self, name: str, keys: Sequence[Any], **options: Any) -> dict[Any, Explanation]:
        return await self.cache.get_many(name, keys, explain=True, **options)

    async def make_token(self, gtids: str) -> CommitToken | None:
        return await self.cache.database().commit_token_of(gtids)


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(sa.String(50))
    v: Mapped[int] = mapped_column(sa.BigInteger)


class Sessions(Threads):
    """Sessions of an engine on the link to the primary, which read rows by key."""

    names = ("customer",)
    units_max = 3  # they read one key after the other

    def __init__(self, path: Path) -> None:
        self._told = threading.local()
        self.cache = Cache.open(path, on_read=lambda each: self._told.seen.append(each))
        [shard] = self.cache.config.keyspaces["shop"].shards
        self._primary = ReadServer(f"{shard.primary.host}:{shard.primary.port}", is_primary=True)
        url = f"mysql+pymysql://app:app@{self._primary.name}/shop?charset=utf8mb4"
        arguments = {"ssl_disabled": True, "read_timeout": 15, "connect_timeout": 5}
        self._make_session = sessionmaker(sa.create_engine(url, connect_args=arguments))
        self._reads = CachedReads(self.cache, self._make_session)

    async def get_many(self, name: str, keys: Sequence[Any], **options: Any) -> dict[Any, Explanation]:
        found = {}
        with self._make_session() as session:
            self._reads.demand(session, options.get("at_least"))
            for key in keys:
                self._told.seen = []
                row = session.get(Customer, key)
                value = None if row is None else {"v": row.v}
                by_engine = Explanation(
                    value, ReadOutcome.OWN_TRANSACTION, name, key, "", b"", {}, {"": self._primary}
                )
                found[key] = replace(self._told.seen[-1], value=value) if self._told.seen else by_engine
        return found


@dataclass(slots=True)
class Lane:
    """What one thread or task does."""

    cache: Threads | Tasks
    journal: Journal
    chance: random.Random
    writer: Writer
    groups: list[int]
    calm: Path

    async def work(self) -> None:
        while not ENDING.is_set():
            name = self.chance.choice(self.cache.names)
            kind, count = ("note", NOTES) if name == "note" else ("group", GROUPS)
            units = [
                f"{kind} {n}" for n in self.chance.sample(range(count), self.chance.randint(1, self.cache.units_max))
            ]
            is_together = len(self.cache.names) > 1 and self.chance.random() < TOGETHER_SHARE
            await self.read(name, units, {"together": True} if is_together else {})
            if self.chance.random() < WRITE_SHARE and not self.calm.exists():
                await self.write()
            await asyncio.sleep(PAUSE_SECONDS)

    async def write(self) -> None:
        """Change a group, and read it as who has changed it."""
        group, version = self.chance.choice(self.groups), now_us()
        statements, unit = group_statements(group, version), f"group {group}"
        gtids = await asyncio.to_thread(self.writer.commit, {unit: version}, version, statements)
        name = self.chance.choice([each for each in self.cache.names if each != "note"])
        if gtids is not None:
            await self.read(name, [unit], {}, {unit: version}, gtids)

    async def read(
        self, name: str, units: Sequence[str], options: dict[str, Any], own: Mapping[str, int] = {}, gtids: str = ""
    ) -> None:
        """``own``: by unit, the version that it must have, since this session has committed it with ``gtids``."""
        keys, begin = [key for unit in units for key in find_keys(name, unit)], now_us()
        try:
            if gtids:
                options["at_least"] = await self.cache.make_token(gtids)
                begin = now_us()
            found = await self.cache.get_many(name, keys, **options)
        except Exception as error:  # noqa: BLE001 - the judge says which of them may be
            is_known = isinstance(error, FreshnessError | sa.exc.SQLAlchemyError)
            shown = {"error": type(error).__name__} | ({} if is_known else {"unknown": repr(error)})
            self.journal.write("refused", begin=begin, end=now_us(), count=len(keys), **shown)
        else:
            write_reads(self.journal, name, begin, found, own=own, together="together" in options)


def write_reads(journal: Journal, name: str, begin: int, found: Mapping[Any, Explanation], **fields: Any) -> None:
    end, reads = now_us(), defaultdict[Any, list[Any]](list)
    for key, each in found.items():
        is_primary = any(server.is_primary for server in each.servers.values())
        shown = find_unit(name, key), find_version(name, each.value)
        reads[each.outcome.name, each.node, is_primary].append(shown)
    journal.write(
        "read", name=name, begin=begin, end=end, reads=[(*how, shown) for how, shown in reads.items()], **fields
    )


async def run_tasks(path: Path, make_lanes: Callable[[Threads | Tasks], list[Lane]]) -> None:
    async with await AsyncCache.open(path) as cache:
        cache.loader("profile")(load_profile_in_task)
        await asyncio.gather(*(lane.work() for lane in make_lanes(Tasks(cache))))


def main(name: str, mode: str, index: int, count: int, seed: str, folder: Path, flavor: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: ENDING.set())
    path, journal = folder / "freshness.toml", Journal(folder, name)
    own = [group for group in range(GROUPS) if group % count == index]

    def make_lanes(cache: Threads | Tasks) -> list[Lane]:
        return [
            Lane(
                cache,
                journal,
                random.Random(f"{seed} {name} {number}"),
                Writer(folder, flavor, journal),
                own[number::LANES],
                folder / "calm",
            )
            for number in range(LANES)
        ]

    if mode == "tasks":
        asyncio.run(run_tasks(path, make_lanes))
        return
    cache = (Threads if mode == "threads" else Sessions)(path)
    with closing(cache.cache), ThreadPoolExecutor(LANES) as pool:
        for running in [pool.submit(asyncio.run, lane.work()) for lane in make_lanes(cache)]:
            running.result()


if __name__ == "__main__":
    _, name, mode, index, count, seed, folder, flavor = sys.argv
    main(name, mode, int(index), int(count), seed, Path(folder), flavor)
