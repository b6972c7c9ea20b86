"""Cached reads for an application of SQLAlchemy 2: see docs/sqlalchemy.md. Needs the extra ``sqlalchemy``.

from appclient import Cache
from appclient.sqlalchemy import CachedReads

reads = CachedReads(Cache.open("freshness.toml"), Session)
"""

from freshness.errors import missing_package

try:
    from appclient.sqlalchemy.composite import CachedSelect
    from appclient.sqlalchemy.reads import CachedReads
except ModuleNotFoundError as error:
    missing = missing_package(error, "sqlalchemy")
    if missing is None:
        raise
    raise ModuleNotFoundError(str(missing), name=error.name) from error

__all__ = ["CachedReads", "CachedSelect"]
