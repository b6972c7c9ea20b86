"""`View`: reads of several objects that are one state of the database; see `Cache.together`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from appclient.typed import AsyncTypedObject, Model, TypedObject
from freshness.errors import ConfigError

Wanted = Sequence[tuple[str, Any]]
"""Objects by name and key."""


class View:
    """All that is read by it is of one state of each shard. Each method raises what `Cache.get_many` raises with
    ``together``, and `StateChanged` if a value that was read before has changed, and no state has it and the new ones
    in it. For one thread or task: what it wants at once, it asks `get_all` for."""

    def __init__(self, read: Callable[[Wanted, bool], list[Any]]) -> None:
        """See `Cache.together`."""
        self._read = read
        self._reading = threading.Lock()

    def get(self, object_name: str, key: Any, *, explain: bool = False) -> Any:
        """See `Cache.get`."""
        (value,) = self.get_all([(object_name, key)], explain=explain)
        return value

    def get_many(self, object_name: str, keys: Iterable[Hashable], *, explain: bool = False) -> dict[Any, Any]:
        """See `Cache.get_many`."""
        wanted = distinct_keys(keys)
        return dict(zip(wanted, self.get_all([(object_name, key) for key in wanted], explain=explain), strict=True))

    def get_all(self, wanted: Wanted, *, explain: bool = False) -> list[Any]:
        """The values of ``wanted``, ``[(object name, key), …]``, in this order, with one request per node for the
        hits. ``explain``: see `Cache.get`. Raises `ConfigError` if the view is read by somebody else at this
        moment."""
        if not self._reading.acquire(blocking=False):
            raise ConfigError(
                "a view of cache.together is read twice at the same time",
                hint="read what you want at once by one get_all of the view",
            )
        try:
            return self._read(wanted, explain) if wanted else []
        finally:
            self._reading.release()

    def of(self, object_name: str, model: type[Model]) -> TypedObject[Model]:
        """See `Cache.of`."""
        return TypedObject(self, object_name, model)


class AsyncView:
    """See `View`."""

    def __init__(self, blocking: View, run: Callable[..., Awaitable[Any]]) -> None:
        self._blocking, self._run = blocking, run

    async def get(self, object_name: str, key: Any, *, explain: bool = False) -> Any:
        """See `View.get`."""
        return await self._run(self._blocking.get, object_name, key, explain=explain)

    async def get_many(self, object_name: str, keys: Iterable[Hashable], *, explain: bool = False) -> dict[Any, Any]:
        """See `View.get_many`."""
        found: dict[Any, Any] = await self._run(self._blocking.get_many, object_name, keys, explain=explain)
        return found

    async def get_all(self, wanted: Wanted, *, explain: bool = False) -> list[Any]:
        """See `View.get_all`."""
        found: list[Any] = await self._run(self._blocking.get_all, wanted, explain=explain)
        return found

    def of(self, object_name: str, model: type[Model]) -> AsyncTypedObject[Model]:
        """See `View.of`."""
        return AsyncTypedObject(self, object_name, model)


def distinct_keys(keys: Iterable[Hashable]) -> list[Any]:
    """Each key once. Raises `ConfigError` for a single key."""
    if isinstance(keys, (str, bytes, Mapping)):
        raise ConfigError(
            f"get_many got one {type(keys).__name__} as its keys", hint="expected a list of keys, or use get"
        )
    return list(dict.fromkeys(keys))
