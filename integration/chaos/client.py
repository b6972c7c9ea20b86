"""An application of a run: ``python -m integration.chaos.client NAME MODE INDEX COUNT SEED FOLDER FLAVOR``.

Reads pages of keys, in threads, in tasks of an event loop, by sessions of SQLAlchemy or by models of Django, and
writes groups of its own (each ``COUNT``-th), whose commits it reads again by their token. It writes down what it got,
until it is killed or gets SIGTERM. While ``FOLDER/calm`` is there it writes no row.
"""

from __future__ import annotations

import asyncio
import os
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

import django
import django.apps
import django.db
import pymysql
import sqlalchemy as sa
from django.conf import settings
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker

from appclient import AsyncCache, Cache, CommitToken, Explanation, ReadOutcome
from appclient.django import get_cache
from appclient.django.session import Session, serving
from appclient.sqlalchemy import CachedReads
from freshness.algorithm.lookup import ReadServer
from freshness.config.config import load_config
from freshness.errors import FreshnessError
from integration.chaos.journal import Journal, now_us
from integration.chaos.shop import GROUPS, NAMES, NOTES, Writer, find_keys, find_unit, find_version, group_statements

LANES: Final = 3
"""Threads or tasks of a client."""
PAUSE_SECONDS: Final = 0.04
UNITS_MAX: Final = 40
"""Of a page: up to 80 keys."""
WRITE_SHARE: Final = 0.15
TOGETHER_SHARE: Final = 0.2
TOGETHER_MAX: Final = 3
"""Units: few enough that often all are hits. One miss, and the whole page is of a snapshot of the database."""
TOKEN_SECONDS: Final = 60.0
CONNECTING: Final = {"ssl_disabled": True, "read_timeout": 15, "connect_timeout": 5}
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
    errors: tuple[type[Exception], ...] = (FreshnessError,)

    def __init__(self, path: Path) -> None:
        self.cache = open_cache(path)

    async def get_many(self, name: str, keys: Sequence[Any], **options: Any) -> dict[Any, Explanation]:
        return self.cache.get_many(name, keys, explain=True, **options)

    async def make_token(self, gtids: str) -> CommitToken | None:
        return self.cache.database().commit_token_of(gtids)


class Tasks:
    names: Sequence[str] = NAMES
    units_max = UNITS_MAX
    errors: tuple[type[Exception], ...] = (FreshnessError,)

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
    id: sa.orm.Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    name: sa.orm.Mapped[str] = mapped_column(sa.String(50))
    v: sa.orm.Mapped[int] = mapped_column(sa.BigInteger)


class Mapped(Threads):
    """Reads of an object-relational mapper on the link to the primary: of rows, by their keys. Rows that its adapter
    does not get from the cache are the primary's."""

    names = ("customer",)

    def __init__(self, path: Path) -> None:
        self.told = threading.local()
        [shard] = load_config(path).keyspaces["shop"].shards
        self.host, self.port = shard.primary.host, shard.primary.port
        self._primary = ReadServer(f"{self.host}:{self.port}", is_primary=True)

    def note(self, each: Explanation) -> None:
        self.told.seen[each.key] = each

    def explain(self, key: Any, row: Any) -> Explanation:
        value, told = None if row is None else {"v": row.v}, self.told.seen.get(key)
        by_engine = Explanation(value, ReadOutcome.OWN_TRANSACTION, "customer", key, "", b"", {}, {"": self._primary})
        return by_engine if told is None else replace(told, value=value)


class Sessions(Mapped):
    """Sessions of SQLAlchemy."""

    units_max = 3  # they read one key after the other
    errors = (FreshnessError, sa.exc.SQLAlchemyError)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.cache = Cache.open(path, on_read=self.note)
        url = f"mysql+pymysql://app:app@{self.host}:{self.port}/shop?charset=utf8mb4"
        self._make_session = sessionmaker(sa.create_engine(url, connect_args=CONNECTING))
        self._reads = CachedReads(self.cache, self._make_session)

    async def get_many(self, name: str, keys: Sequence[Any], **options: Any) -> dict[Any, Explanation]:
        found, self.told.seen = {}, {}
        with self._make_session() as session:
            self._reads.demand(session, options.get("at_least"))
            for key in keys:
                found[key] = self.explain(key, session.get(Customer, key))
        return found


class Models(Mapped):
    """Models of Django, which are read as in requests."""

    errors = (FreshnessError, django.db.Error)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        pymysql.install_as_MySQLdb()
        database = {"HOST": self.host, "PORT": self.port, "NAME": "shop", "USER": "app", "PASSWORD": "app"}
        engine = {"ENGINE": "django.db.backends.mysql", "OPTIONS": CONNECTING, "CONN_MAX_AGE": None}
        settings.configure(
            INSTALLED_APPS=["appclient.django", "integration.chaos"],
            DATABASES={"default": database | engine},
            FRESHNESS={"CONFIG": path, "ON_READ": self.note},
        )
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # a lane has a thread of its own
        django.setup()
        self.cache = get_cache()
        self._model: Any = django.apps.apps.get_model("chaos", "Customer")

    async def get_many(self, name: str, keys: Sequence[Any], **options: Any) -> dict[Any, Explanation]:
        self.told.seen, session = {}, Session()
        if (token := options.get("at_least")) is not None:
            session.add(token, TOKEN_SECONDS)
        django.db.close_old_connections()
        with serving(session):
            rows = self._model.objects.in_bulk(keys)
        return {key: self.explain(key, rows.get(key)) for key in keys}


KINDS: Final = {"threads": Threads, "sessions": Sessions, "models": Models}


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
            is_together = len(self.cache.names) > 1 and self.chance.random() < TOGETHER_SHARE
            kind, count = ("note", NOTES) if name == "note" else ("group", GROUPS)
            size = self.chance.randint(1, TOGETHER_MAX if is_together else self.cache.units_max)
            units = [f"{kind} {n}" for n in self.chance.sample(range(count), size)]
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
            is_known = isinstance(error, self.cache.errors)
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
    path, journal = folder / f"{name}.toml", Journal(folder, name)
    path.write_bytes((folder / "freshness.toml").read_bytes())  # it changes while this process starts
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
    cache = KINDS[mode](path)
    with closing(cache.cache), ThreadPoolExecutor(LANES) as pool:
        for running in [pool.submit(asyncio.run, lane.work()) for lane in make_lanes(cache)]:
            running.result()


if __name__ == "__main__":
    _, name, mode, index, count, seed, folder, flavor = sys.argv
    main(name, mode, int(index), int(count), seed, Path(folder), flavor)
