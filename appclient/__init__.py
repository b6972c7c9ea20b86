"""The library in the application: cached reads of MySQL data that are never poisoned.

    from appclient import Cache

    cache = Cache.open("freshness.toml")
    cache.get("customer", 42)

See docs/quickstart.md. Everything the application touches is exported here.
"""

from importlib import import_module
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
    required_extra,
)
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

with required_extra("appclient"):
    from appclient.cache import Cache, Explanation
    from appclient.commits import GtidConnection
    from appclient.database import Database
    from appclient.own_pool import OwnPool
    from appclient.query import LoaderConnection, QueryExtras, QueryResult
    from appclient.signed import parse_signed_commit_token, sign_commit_token
    from appclient.typed import TypedObject


def __getattr__(name: str) -> Any:
    """The classes that need a package which others do not, imported where they are used."""
    if name not in _OPTIONAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _OPTIONAL[name]
    with required_extra(extra):
        return getattr(import_module(module), name)


_OPTIONAL = {
    "AsyncCache": ("appclient.async_cache", "async"),
    "AsyncDatabase": ("appclient.async_cache", "async"),
    "AsyncLoaderConnection": ("appclient.async_cache", "async"),
    "OpenTelemetry": ("appclient.opentelemetry", "opentelemetry"),
    "PrometheusTelemetry": ("appclient.prometheus", "prometheus"),
}
"""Name -> its module, and the extra that installs what the module needs."""

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache, AsyncDatabase, AsyncLoaderConnection
    from appclient.opentelemetry import OpenTelemetry
    from appclient.prometheus import PrometheusTelemetry

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
    "OpenTelemetry",
    "Overloaded",
    "OwnPool",
    "PrometheusTelemetry",
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
