"""The source of a shard of Vitess, for those to whom Vitess is one of several databases.

grpcio and protobuf are an extra, so ``invalidator.vstream.source`` is imported only if a keyspace of Vitess is
configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from freshness.config.keyspace import Shard
from freshness.database.vitess import read_purged
from freshness.errors import ConfigError
from freshness.stream.tables import MatchedTables

if TYPE_CHECKING:
    from invalidator.vstream.source import VStreamSource


def make_source(shard: Shard, tables: Mapping[str, Iterable[str]] | MatchedTables, **options: Any) -> VStreamSource:
    """A source that is not open yet. ``tables``, ``options``: arguments of `VStreamSource`. Raises `ConfigError` if
    grpcio is missing."""
    try:
        from invalidator.vstream.source import VStreamSource
    except ImportError as error:
        raise ConfigError(
            f"a keyspace of flavor vitess needs a package that is not installed: {error}",
            hint="pip install 'freshness[vitess]'",
        ) from error
    assert shard.vtgate is not None, "this is for keyspaces of Vitess"
    return VStreamSource(shard.vtgate, shard.name, tables, read_purged=partial(read_purged, shard), **options)
