"""`AsyncCache`: the same cache for tasks of an event loop.

It runs `Cache` itself, by connection/awaiting.py: every procedure, query and check is that of threads.
Needs greenlet. For asyncio, and for anyio on asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from freshness.config.config import Config, load_config
from freshness.config.keyspace import GtidFlavor
from freshness.errors import ConfigError, required_extra
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

with required_extra("async"):
    from appclient.cache import Cache, Explanation
    from appclient.connection.awaiting import LOOP, await_, run_awaiting
    from appclient.connection.own_pool import Pools
    from appclient.connection.query import LoaderConnection, Params, QueryResult, Row
    from appclient.database.atleast import AtLeast
    from appclient.database.database import Database
    from appclient.telemetry.observer import TelemetryOption
    from appclient.together import AsyncView
    from appclient.typed import AsyncTypedObject, ManyReadOptions, Model, ReadOptions

AsyncFunction = TypeVar("AsyncFunction", bound=Callable[..., Awaitable[Any]])


class AsyncLoaderConnection:
    """See `LoaderConnection`. Queries that a loader starts side by side run one after the other."""

    def __init__(self, connection: LoaderConnection) -> None:
        self._connection = connection

    async def query(self, sql: str, params: Params = None) -> list[Row]:
        """See `LoaderConnection.query`."""
        return await run_awaiting(self._connection.query, sql, params)

    async def query_one(self, sql: str, params: Params = None) -> Row | None:
        """See `LoaderConnection.query_one`."""
        return await run_awaiting(self._connection.query_one, sql, params)


class AsyncDatabase:
    """See `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def query(
        self,
        sql: str,
        params: Params = None,
        *,
        shard: str | None = None,
        include_event_token: bool = False,
        compare_event_token: EventToken | str | None = None,
        at_least: AtLeast = None,
    ) -> QueryResult:
        """See `Database.query`."""
        return await run_awaiting(
            self._database.query,
            sql,
            params,
            shard=shard,
            include_event_token=include_event_token,
            compare_event_token=compare_event_token,
            at_least=at_least,
        )

    @property
    def gtid_flavor(self) -> GtidFlavor:
        """Which GTIDs its servers have."""
        return self._database.keyspace.gtid_flavor

    async def commit_token_of(self, gtids: str, *, shard: str | None = None) -> CommitToken | None:
        """See `Database.commit_token_of`."""
        return await run_awaiting(self._database.commit_token_of, gtids, shard=shard)


class AsyncCache:
    """Cached reads of the objects in ``freshness.toml``, for one event loop: its connections belong to that loop.
    ``async with await AsyncCache.open(...) as cache`` closes them at the end."""

    def __init__(self, blocking: Cache) -> None:
        """See `open`."""
        self.blocking = blocking
        """The cache that this one runs. Only a function of `run_awaiting` may read by it."""
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        path: str | PathLike[str] = "freshness.toml",
        *,
        on_read: Callable[[Explanation], Any] | None = None,
        pools: Pools | None = None,
        telemetry: TelemetryOption = None,
    ) -> Self:
        """See `Cache.open`. ``on_read`` may be a coroutine function; an engine of ``pools`` is an ``AsyncEngine``."""
        config = await asyncio.to_thread(load_config, Path(path), is_application=True)
        return await cls.create(config, on_read=on_read, pools=pools, telemetry=telemetry)

    @classmethod
    async def create(
        cls, config: Config, *, on_read: Callable[[Explanation], Any] | None = None, **options: Any
    ) -> Self:
        """As `Cache` with the same arguments."""

        def tell(explanation: Explanation) -> None:
            assert on_read is not None
            _settle(on_read(explanation))

        options = {"network": LOOP, **options, "on_read": None if on_read is None else tell}
        return cls(await run_awaiting(Cache, config, **options))

    async def get(self, object_name: str, key: Any, *, explain: bool = False, **options: Unpack[ReadOptions]) -> Any:
        """See `Cache.get`."""
        return await self._run(self.blocking.get, object_name, key, explain=explain, **options)

    async def get_many(
        self, object_name: str, keys: Iterable[Hashable], *, explain: bool = False, **options: Unpack[ManyReadOptions]
    ) -> dict[Any, Any]:
        """See `Cache.get_many`."""
        found: dict[Any, Any] = await self._run(self.blocking.get_many, object_name, keys, explain=explain, **options)
        return found

    @contextmanager
    def together(self, **options: Unpack[ReadOptions]) -> Iterator[AsyncView]:
        """See `Cache.together`: ``with cache.together() as view: await view.get("order", 7)``."""
        with self.blocking.together(**options) as view:
            yield AsyncView(view, self._run)

    def loader(self, object_name: str) -> Callable[[AsyncFunction], AsyncFunction]:
        """Decorator: this coroutine function builds the composite object from its key, as `Cache.loader`. It is
        called with an `AsyncLoaderConnection`."""

        def register(function: AsyncFunction) -> AsyncFunction:
            def load(connection: LoaderConnection, *values: Any) -> Any:
                return _settle(function(AsyncLoaderConnection(connection), *values))

            self.blocking.loader(object_name)(load)
            return function

        return register

    def of(self, object_name: str, model: type[Model]) -> AsyncTypedObject[Model]:
        """See `Cache.of`."""
        return AsyncTypedObject(self, self.blocking.of(object_name, model).name, model)

    def database(self, keyspace: str | None = None) -> AsyncDatabase:
        """See `Cache.database`."""
        return AsyncDatabase(self.blocking.database(keyspace))

    async def key_columns(self, object_name: str) -> tuple[str, ...]:
        """See `Cache.key_columns`."""
        found: tuple[str, ...] = await self._run(self.blocking.key_columns, object_name)
        return found

    async def column_types(self, lineage: str, table: str) -> Mapping[str, str]:
        """See `Cache.column_types`."""
        found: Mapping[str, str] = await self._run(self.blocking.column_types, lineage, table)
        return found

    async def close(self) -> None:
        """See `Cache.close`."""
        await self._run(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                "an AsyncCache was used on another event loop than the one that it was opened on",
                hint="open one for each loop, for example where the application starts on it",
            )
        return await run_awaiting(function, *arguments, **options)


def _settle(answer: Any) -> Any:
    return await_(answer) if inspect.isawaitable(answer) else answer
