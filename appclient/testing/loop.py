"""The testing kit on an event loop: a cache whose waits let other tasks run, and a connection as aiomysql gives one.

Nothing here reads or fills: an `AsyncCache` runs the system's own `Cache` on this network. Needs greenlet. Used by
``appclient.testing.system``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

from freshness.errors import required_extra

with required_extra("async"):
    import pymysql
    from pymysql.constants import ER
    from pymysql.cursors import DictCursor

    from appclient.async_cache import AsyncCache
    from appclient.connection.awaiting import LoopNetwork, await_, run_awaiting
    from appclient.testing.server import FakeConnection, FakeCursor

Result = TypeVar("Result")

TURNS_MAX: Final = 1000
"""Turns of other tasks that a statement waits for their locks; then it fails as on a deadlock."""


class FakeLoop(LoopNetwork):
    """Waits are time that goes on, and a turn of other tasks."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep

    def sleep(self, seconds: float) -> None:
        self._sleep(seconds)
        self.give_way()

    def give_way(self) -> None:
        """Let other tasks run."""
        await_(asyncio.sleep(0))

    def settle(self, answer: Any) -> Any:
        """The result of a function, or of a coroutine function, by what it has returned."""
        return await_(answer) if inspect.isawaitable(answer) else answer


def run_apart(cache: AsyncCache, function: Callable[[], Result]) -> Result:
    """The result of ``function``, which reads by ``cache``, on a loop of its own: the cache's may have ended."""

    async def run() -> Result:
        previous, cache._loop = cache._loop, asyncio.get_running_loop()
        try:
            return await run_awaiting(function)
        finally:
            cache._loop = previous

    with ThreadPoolExecutor(1, "a loop of its own") as thread:
        return thread.submit(asyncio.run, run()).result()


class FakeAsyncConnection:
    """As much of a connection of aiomysql and asyncmy as applications and SQLAlchemy use. Other tasks run before each
    statement."""

    def __init__(self, connection: FakeConnection) -> None:
        self._connection = connection
        connection.wait_for_locks(0)

    def __getattr__(self, name: str) -> Any:
        """Attributes and methods that do not wait, such as ``open`` and ``close``."""
        return getattr(self._connection, name)

    @property
    def closed(self) -> bool:
        """The opposite of `open`."""
        return not self._connection.open

    def cursor(self, *kinds: Any, cursor: Any = None) -> FakeAsyncCursor:
        """A new cursor; its rows are dictionaries if a kind is a ``DictCursor``, else tuples."""
        has_dicts = any("Dict" in kind.__name__ for kind in (*kinds, cursor) if kind is not None)
        return FakeAsyncCursor(self._connection.cursor(DictCursor if has_dicts else None))

    async def begin(self) -> None:
        """Commit, and begin a transaction."""
        self._connection.begin()

    async def commit(self) -> None:
        """Commit after a turn of other tasks."""
        await asyncio.sleep(0)
        self._connection.commit()

    async def rollback(self) -> None:
        """Undo the open transaction, if any."""
        self._connection.rollback()

    async def autocommit(self, value: bool) -> None:
        """Choose whether each statement commits."""
        self._connection.autocommit(value)

    async def ping(self, reconnect: bool = True) -> None:
        """It is here."""

    async def ensure_closed(self) -> None:
        """As `close`."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()


class FakeAsyncCursor:
    def __init__(self, cursor: FakeCursor) -> None:
        self._cursor = cursor
        self.arraysize = 1

    def __await__(self) -> Generator[Any, None, Self]:
        """With aiomysql some write ``await connection.cursor()``."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cursor.close()

    def __getattr__(self, name: str) -> Any:
        """``description``, ``rowcount``, ``lastrowid``."""
        return getattr(self._cursor, name)

    async def execute(self, sql: str, parameters: Any = None) -> int:
        """Run a statement, and return `rowcount`. Raises a deadlock after `TURNS_MAX` turns."""
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            try:
                return self._cursor.execute(sql, parameters)
            except pymysql.OperationalError as error:
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise
        return self._cursor.execute(sql, parameters)

    async def executemany(self, sql: str, many: Iterable[Any]) -> int:
        """Run a statement with each of ``many``, and return the sum of the row counts."""
        return sum([await self.execute(sql, parameters) for parameters in many])

    async def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return self._cursor.fetchall()

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """At most ``size`` rows, or ``arraysize``."""
        return self._cursor.fetchmany(self.arraysize if size is None else size)

    async def fetchone(self) -> Any:
        """The next row, or None."""
        return self._cursor.fetchone()

    async def close(self) -> None:
        """Close the cursor."""
        self._cursor.close()
