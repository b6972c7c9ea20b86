"""The library in the application: cached reads of MySQL data that are never poisoned.

    from appclient import Cache

    cache = Cache.open("freshness.toml")
    cache.get("customer", 42)

See docs/quickstart.md. Everything the application touches is exported here.
"""

from freshness.algorithm.rule import ReadOutcome
from freshness.errors import (
    ConfigError,
    FormatError,
    FreshnessError,
    NodeUnavailable,
    NodeUnsuitable,
    QueryTimedOut,
    SourceUnavailable,
    SourceUnsuitable,
    missing_package,
)
from freshness.position.token import EventToken

try:
    from appclient.cache import Cache, Explanation
    from appclient.database import Database, LoaderConnection, QueryExtras, QueryResult
except ModuleNotFoundError as error:
    missing = missing_package(error, "appclient")
    if missing is None:
        raise
    raise ModuleNotFoundError(str(missing), name=error.name) from error

__all__ = [
    "Cache",
    "ConfigError",
    "Database",
    "EventToken",
    "Explanation",
    "FormatError",
    "FreshnessError",
    "LoaderConnection",
    "NodeUnavailable",
    "NodeUnsuitable",
    "QueryExtras",
    "QueryResult",
    "QueryTimedOut",
    "ReadOutcome",
    "SourceUnavailable",
    "SourceUnsuitable",
]
