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

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache, AsyncDatabase, AsyncLoaderConnection
    from appclient.cache import Cache, Explanation
    from appclient.commits import GtidConnection
    from appclient.database import Database
    from appclient.opentelemetry import OpenTelemetry
    from appclient.own_pool import OwnPool
    from appclient.prometheus import PrometheusTelemetry
    from appclient.query import LoaderConnection, QueryExtras, QueryResult
    from appclient.signed import parse_signed_commit_token, sign_commit_token
    from appclient.typed import TypedObject

_PLACES = {
    "appclient.async_cache": ("async", "AsyncCache", "AsyncDatabase", "AsyncLoaderConnection"),
    "appclient.cache": ("appclient", "Cache", "Explanation"),
    "appclient.commits": ("appclient", "GtidConnection"),
    "appclient.database": ("appclient", "Database"),
    "appclient.opentelemetry": ("opentelemetry", "OpenTelemetry"),
    "appclient.own_pool": ("appclient", "OwnPool"),
    "appclient.prometheus": ("prometheus", "PrometheusTelemetry"),
    "appclient.query": ("appclient", "LoaderConnection", "QueryExtras", "QueryResult"),
    "appclient.signed": ("appclient", "parse_signed_commit_token", "sign_commit_token"),
    "appclient.typed": ("appclient", "TypedObject"),
}
"""Module -> the extra that installs what it needs, and the names that come from it when they are first used.

Importing this package imports no other package: every run of pytest does, for the fixture of appclient.testing."""


def __getattr__(name: str) -> Any:
    for module, (extra, *names) in _PLACES.items():
        if name in names:
            with required_extra(extra):
                globals()[name] = getattr(import_module(module), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
