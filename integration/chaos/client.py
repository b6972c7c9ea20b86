"""An application of a run: ``python -m integration.chaos.client NAME MODE INDEX COUNT SEED FOLDER FLAVOR``.

Reads at a modest rate, in threads, in tasks of an event loop, or by sessions of SQLAlchemy, and writes the groups of
own (each ``COUNT``-th of those), whose commits it reads again by their token. It writes down what it got, until it
is killed or gets SIGTERM. While ``FOLDER/calm`` is there it writes no row.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from appclient import AsyncCache, Cache, Explanation
from appclient.sqlalchemy import CachedReads
from freshness.errors import FreshnessError
from integration.chaos.journal import Journal, now_us
from integration.chaos.shop import GROUPS, NAMES, NOTES, Writer, find_keys, find_unit, find_version, group_statements

LANES: Final = 2
"""Threads or tasks of a client."""
PAUSE_SECONDS: Final = 0.04
ENDING: Final = threading.Event()
KEYS_MAX: Final = 6
WRITE_SHARE: Final = 0.15
TOGETHER_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """One read. ``own``: by unit, the version that it must have, since the session has committed it."""

    name: str
    keys: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Lane:
    """What one thread or task does."""

    journal: Journal
    chance: random.Random
    writer: Writer
    groups: list[int]
    calm: Path

    def draw(self) -> Plan:
        name = self.chance.choice(NAMES)
        units = [f"note {n}" for n in range(NOTES)] if name == "note" else [f"group {n}" for n in range(GROUPS)]
        chosen = self.chance.sample(units, self.chance.randint(1, KEYS_MAX // 2))
        keys = [key for unit in chosen for key in find_keys(name, unit)]
        return Plan(name, keys, {"together": True} if self.chance.random() < TOGETHER_SHARE else {})

    def write(self) -> tuple[int, int, str] | None:
        """Change a group: its number, its version, the GTIDs of the commit. None: nothing is known to be changed."""
        if self.chance.random() > WRITE_SHARE or self.calm.exists():
            return None
        group, version = self.chance.choice(self.groups), now_us()
        gtids = self.writer.commit({f"group {group}": version}, version, group_statements(group, version))
        return None if gtids is None else (group, version, gtids)

    def plan_own(self, group: int, version: int) -> Plan:
        name = self.chance.choice([each for each in NAMES if each != "note"])
        unit = f"group {group}"
        return Plan(name, find_keys(name, unit), own={unit: version})

    def report(self, plan: Plan, begin: int, found: Mapping[Any, Explanation]) -> None:
        reads = [
            (
                find_unit(plan.name, key),
                find_version(plan.name, each.value),
                each.outcome.name,
                each.node,
                any(server.is_primary for server in each.servers.values()),
            )
            for key, each in found.items()
        ]
        self.tell(plan, begin, reads)

    def tell(self, plan: Plan, begin: int, reads: list[tuple[Any, ...]]) -> None:
        is_together = "together" in plan.options
        fields = {"name": plan.name, "begin": begin, "end": now_us(), "reads": reads, "together": is_together}
        self.journal.write("read", own=plan.own, **fields)

    def refuse(self, plan: Plan, begin: int, error: BaseException) -> None:
        name = type(error).__name__
        is_known = isinstance(error, FreshnessError | sa.exc.SQLAlchemyError)
        shown = {} if is_known else {"unknown": repr(error)}
        self.journal.write("refused", error=name, count=len(plan.keys), begin=begin, end=now_us(), **shown)


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


# -- threads -------------------------------------------------------------------------------------------


def run_threads(folder: Path, lanes: list[Lane]) -> None:
    cache = open_cache(folder / "freshness.toml")

    def read(lane: Lane, plan: Plan, gtids: str = "") -> None:
        begin = now_us()
        try:
            if gtids:
                plan.options["at_least"] = cache.database().commit_token_of(gtids)
                begin = now_us()
            lane.report(plan, begin, cache.get_many(plan.name, plan.keys, explain=True, **plan.options))
        except Exception as error:  # noqa: BLE001 - the judge says which of them may be
            lane.refuse(plan, begin, error)

    def work(lane: Lane) -> None:
        while not ENDING.is_set():
            read(lane, lane.draw())
            if written := lane.write():
                group, version, gtids = written
                read(lane, lane.plan_own(group, version), gtids)
            time.sleep(PAUSE_SECONDS)

    run_lanes(cache, work, lanes)


def run_lanes(cache: Cache, work: Callable[[Lane], None], lanes: list[Lane]) -> None:
    with closing(cache), ThreadPoolExecutor(len(lanes)) as pool:
        for ended in [pool.submit(work, lane) for lane in lanes]:
            ended.result()


# -- tasks ---------------------------------------------------------------------------------------------


async def run_tasks(folder: Path, lanes: list[Lane]) -> None:
    cache = await AsyncCache.open(folder / "freshness.toml")
    cache.loader("profile")(load_profile_in_task)

    async def read(lane: Lane, plan: Plan, gtids: str = "") -> None:
        begin = now_us()
        try:
            if gtids:
                plan.options["at_least"] = await cache.database().commit_token_of(gtids)
                begin = now_us()
            lane.report(plan, begin, await cache.get_many(plan.name, plan.keys, explain=True, **plan.options))
        except Exception as error:  # noqa: BLE001 - the judge says which of them may be
            lane.refuse(plan, begin, error)

    async def work(lane: Lane) -> None:
        while not ENDING.is_set():
            await read(lane, lane.draw())
            if written := await asyncio.to_thread(lane.write):
                group, version, gtids = written
                await read(lane, lane.plan_own(group, version), gtids)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(work(lane) for lane in lanes))
    await cache.close()


# -- sessions of SQLAlchemy ----------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(sa.String(50))
    v: Mapped[int] = mapped_column(sa.BigInteger)


def run_sessions(folder: Path, lanes: list[Lane]) -> None:
    """Rows by key, through an engine on the link to the primary; a session that has written reads its own rows."""
    told = threading.local()
    cache = Cache.open(folder / "freshness.toml", on_read=lambda each: told.seen.append(each))
    [shard] = cache.config.keyspaces["shop"].shards
    host = f"{shard.primary.host}:{shard.primary.port}"
    url = f"mysql+pymysql://app:app@{host}/shop?charset=utf8mb4"
    engine = sa.create_engine(url, connect_args={"ssl_disabled": True, "read_timeout": 15, "connect_timeout": 5})
    make_session = sessionmaker(engine)
    reads = CachedReads(cache, make_session)

    def read(lane: Lane, plan: Plan, gtids: str = "") -> None:
        """A session that the engine must answer has a snapshot, so all of its reads count from its begin."""
        begin = now_us()
        try:
            with make_session() as session:
                if gtids:
                    reads.demand(session, cache.database().commit_token_of(gtids))
                for id in plan.keys:
                    told.seen = []
                    row = session.get(Customer, id)
                    last = told.seen[-1] if told.seen else None
                    outcome, node = (last.outcome.name, last.node) if last else ("ENGINE", "")
                    is_primary = last is None or any(each.is_primary for each in last.servers.values())
                    unit = find_unit("customer", id)
                    lane.tell(plan, begin, [(unit, None if row is None else row.v, outcome, node, is_primary)])
        except Exception as error:  # noqa: BLE001 - the judge says which of them may be
            lane.refuse(plan, begin, error)

    def work(lane: Lane) -> None:
        while not ENDING.is_set():
            units = lane.chance.sample(range(GROUPS), KEYS_MAX // 2)
            read(lane, Plan("customer", [2 * unit + lane.chance.randint(0, 1) for unit in units]))
            if written := lane.write():
                group, version, gtids = written
                read(
                    lane,
                    Plan("customer", find_keys("customer", f"group {group}"), own={f"group {group}": version}),
                    gtids,
                )
            time.sleep(PAUSE_SECONDS)

    run_lanes(cache, work, lanes)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: ENDING.set())
    name, mode, index, count, seed, folder_name, flavor = arguments
    folder = Path(folder_name)
    journal = Journal(folder, name)
    own = [group for group in range(GROUPS) if group % int(count) == int(index)]
    lanes = [
        Lane(
            journal,
            random.Random(f"{seed} {name} {lane}"),
            Writer(folder, flavor, journal),
            own[lane::LANES],
            folder / "calm",
        )
        for lane in range(LANES)
    ]
    if mode == "tasks":
        asyncio.run(run_tasks(folder, lanes))
    else:
        (run_threads if mode == "threads" else run_sessions)(folder, lanes)


if __name__ == "__main__":
    main(sys.argv[1:])
