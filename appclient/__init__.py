"""The library in the application: cached reads of MySQL data that are never poisoned.

    from appclient import Cache

    cache = Cache.open("freshness.toml")
    cache.get("customer", 42)

See docs/quickstart.md. Everything the application touches is exported here.
"""

from typing import TYPE_CHECKING, Any

from freshness.algorithm.rule import ReadOutcome
from freshness.errors import (
    ConfigError,
    ConnectionsExhausted,
    FormatError,
    FreshnessError,
    NodeUnavailable,
    NodeUnsuitable,
    Overloaded,
    QueryTimedOut,
    SourceUnavailable,
    SourceUnsuitable,
    missing_package,
)
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

try:
    from appclient.cache import Cache, Explanation
    from appclient.commits import GtidConnection
    from appclient.database import Database
    from appclient.own_pool import OwnPool
    from appclient.query import LoaderConnection, QueryExtras, QueryResult
    from appclient.signed import parse_signed_commit_token, sign_commit_token
    from appclient.typed import TypedObject
except ModuleNotFoundError as error:
    missing = missing_package(error, "appclient")
    if missing is None:
        raise
    raise ModuleNotFoundError(str(missing), name=error.name) from error


def __getattr__(name: str) -> Any:
    """The classes for event loops, imported where they are used: they alone need greenlet."""
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from appclient import async_cache
    except ModuleNotFoundError as error:
        missing = missing_package(error, "async")
        if missing is None:
            raise
        raise ModuleNotFoundError(str(missing), name=error.name) from error
    return getattr(async_cache, name)


_ASYNC = frozenset(("AsyncCache", "AsyncDatabase", "AsyncLoaderConnection"))

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache, AsyncDatabase, AsyncLoaderConnection

__all__ = [
    "AsyncCache",
    "AsyncDatabase",
    "AsyncLoaderConnection",
    "Cache",
    "CommitToken",
    "ConfigError",
    "ConnectionsExhausted",
    "Database",
    "EventToken",
    "Explanation",
    "FormatError",
    "FreshnessError",
    "GtidConnection",
    "LoaderConnection",
    "NodeUnavailable",
    "NodeUnsuitable",
    "Overloaded",
    "OwnPool",
    "QueryExtras",
    "QueryResult",
    "QueryTimedOut",
    "ReadOutcome",
    "SourceUnavailable",
    "SourceUnsuitable",
    "TypedObject",
    "parse_signed_commit_token",
    "sign_commit_token",
]
