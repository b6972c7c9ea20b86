"""A cache whose reads run on an event loop, behind the methods of `Cache`: the same tests hold for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from appclient import AsyncCache, QueryResult
from appclient.connection.awaiting import await_

Result = TypeVar("Result")


class LoopDatabase:
    """See `Database`."""

    def __init__(self, cache: LoopCache, keyspace: str | None) -> None:
        self._cache = cache
        self._database = cache.inner.database(keyspace)

    def query(self, *arguments: Any, **options: Any) -> QueryResult:
        return self._cache.run(self._database.query(*arguments, **options))


class LoopCache:
    """An `AsyncCache` on a loop in a thread of its own. Each call waits for its task."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True)
        self._thread.start()
        self.inner = self.run(AsyncCache.open(path, **options))

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if threading.current_thread() is self._thread:  # by a loader, inside another read
            return await_(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def get(self, *arguments: Any, **options: Any) -> Any:
        return self.run(self.inner.get(*arguments, **options))

    def get_many(self, *arguments: Any, **options: Any) -> dict[Any, Any]:
        return self.run(self.inner.get_many(*arguments, **options))

    @contextmanager
    def together(self) -> Iterator[Any]:
        with self.inner.together() as view:
            yield SimpleNamespace(
                get=lambda *asked, **how: self.run(view.get(*asked, **how)),
                get_all=lambda *asked, **how: self.run(view.get_all(*asked, **how)),
            )

    def loader(self, object_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """For loaders of threads: such a function works on a loop as well."""
        return self.inner.blocking.loader(object_name)

    def database(self, keyspace: str | None = None) -> LoopDatabase:
        return LoopDatabase(self, keyspace)

    def close(self) -> None:
        self.run(self.inner.close())

    def end(self) -> None:
        """Close all, and stop the loop."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def loop_cache(path: Path, **options: Any) -> Iterator[LoopCache]:
    cache = LoopCache(path, **options)
    try:
        yield cache
    finally:
        cache.end()
