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
    StateChanged,
    required_extra,
)
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache, AsyncDatabase, AsyncLoaderConnection
    from appclient.cache import Cache, Explanation
    from appclient.connection.commits import GtidConnection
    from appclient.connection.own_pool import OwnPool
    from appclient.connection.query import LoaderConnection, QueryExtras, QueryResult
    from appclient.database.database import Database
    from appclient.telemetry.opentelemetry import OpenTelemetry
    from appclient.telemetry.prometheus import PrometheusTelemetry
    from appclient.together import AsyncView, View
    from appclient.typed import TypedObject
    from appclient.web.signed import parse_signed_commit_token, sign_commit_token

_PLACES = {
    "appclient.async_cache": ("async", "AsyncCache", "AsyncDatabase", "AsyncLoaderConnection"),
    "appclient.cache": ("appclient", "Cache", "Explanation"),
    "appclient.connection.commits": ("appclient", "GtidConnection"),
    "appclient.database.database": ("appclient", "Database"),
    "appclient.telemetry.opentelemetry": ("opentelemetry", "OpenTelemetry"),
    "appclient.connection.own_pool": ("appclient", "OwnPool"),
    "appclient.telemetry.prometheus": ("prometheus", "PrometheusTelemetry"),
    "appclient.connection.query": ("appclient", "LoaderConnection", "QueryExtras", "QueryResult"),
    "appclient.web.signed": ("appclient", "parse_signed_commit_token", "sign_commit_token"),
    "appclient.together": ("appclient", "AsyncView", "View"),
    "appclient.typed": ("appclient", "TypedObject"),
}
"""Module -> the extra that installs what it needs, and the names that come from it when they are first used.

Importing this package imports no other package: every run of pytest does, for the fixture of appclient.testing."""


if not TYPE_CHECKING:  # else each name that is not there would pass a check of types

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
    "AsyncView",
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
    "StateChanged",
    "TypedObject",
    "View",
    "parse_signed_commit_token",
    "sign_commit_token",
]
