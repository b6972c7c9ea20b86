"""Cached reads for an application of SQLAlchemy 2: see docs/sqlalchemy.md. Needs the extra ``sqlalchemy``.

from appclient import Cache
from appclient.sqlalchemy import CachedReads

reads = CachedReads(Cache.open("freshness.toml"), Session)
"""

from freshness.errors import required_extra

with required_extra("sqlalchemy"):
    from appclient.sqlalchemy.composite import CachedSelect
    from appclient.sqlalchemy.reads import CachedReads

__all__ = ["CachedReads", "CachedSelect"]
