"""The objects that are cached, as both sides understand them: table columns, keys, rule.

Built once at the start by the invalidator and by the application, from the same ``freshness.toml`` and the
database's own schema, so that what the one reads and the other invalidates cannot drift apart. The fingerprint of
a definition is in every entry and in the node record: two definitions of one name never share entries (F70).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from freshness.cachekey import CacheKey, KeyBuilder
from freshness.config import Config, ObjectConfig
from freshness.errors import ConfigError
from freshness.keycolumn import KeyColumn
from freshness.rule import ObjectPolicy


@dataclass(frozen=True, slots=True)
class ObjectDefinition:
    """One object. ``columns_by_table``: in each table, the columns that hold its key, in key order."""

    config: ObjectConfig
    policy: ObjectPolicy
    builder: KeyBuilder
    columns_by_table: Mapping[str, tuple[KeyColumn, ...]]

    def identity(self, key: CacheKey) -> bytes:
        """What an entry says it is: the definition and the key as spelled."""
        return self.policy.fingerprint.to_bytes(4, "big") + key.identity


KeyColumns = Callable[[str, str, str | None], tuple[KeyColumn, ...]]
"""(keyspace, table, column) → that column, or the primary key in key order where the column is None."""


def build_registry(config: Config, find_columns: KeyColumns) -> dict[str, ObjectDefinition]:
    """All objects of the configuration. Raises `ConfigError` naming the object, table and column at fault."""
    return {name: _define(config, entry, find_columns) for name, entry in config.objects.items()}


def _define(config: Config, entry: ObjectConfig, find_columns: KeyColumns) -> ObjectDefinition:
    if entry.table is not None:
        columns = find_columns(entry.keyspace, entry.table, None)
        by_table = {entry.table: columns}
    else:
        by_table = {
            table: find_columns(entry.keyspace, table, column) for table, column in entry.members.items()
        }
        columns = (_common_key(entry, by_table),)
    builder = KeyBuilder(config.cache.namespace, entry.name, columns)
    policy = ObjectPolicy(
        name=entry.name,
        fingerprint=_fingerprint(entry, by_table),
        tables=entry.tables,
        lineages=tuple(shard.lineage for shard in config.keyspaces[entry.keyspace].shards),
        value_ttl_seconds=config.cache.value_ttl_seconds,
    )
    return ObjectDefinition(entry, policy, builder, by_table)


def _common_key(entry: ObjectConfig, by_table: Mapping[str, Sequence[KeyColumn]]) -> KeyColumn:
    """The key of a composite. All members must spell it alike, or a change would name another key (F24)."""
    members = {table: columns[0] for table, columns in by_table.items()}
    kinds = {column.kind for column in members.values()}
    described = ", ".join(
        f"{table}.{column.name} is {column.kind.value}" for table, column in members.items()
    )
    if len(kinds) > 1:
        raise ConfigError(
            f"objects.{entry.name}: its key has several types: {described}",
            hint="give the columns of all members one type",
        )
    if not all(column.is_exact for column in members.values()):
        raise ConfigError(
            f"objects.{entry.name}: rows can share its key in several spellings: {described}",
            hint="a composite needs an integer, binary, decimal or date key, or a column with a _bin collation",
        )
    if len({column.length for column in members.values()}) > 1:
        raise ConfigError(
            f"objects.{entry.name}: its key has several lengths: {described}",
            hint="BINARY(n) must have one n in all members",
        )
    return replace(next(iter(members.values())), name=str(entry.key))


def _fingerprint(entry: ObjectConfig, by_table: Mapping[str, Sequence[KeyColumn]]) -> int:
    parts = [entry.name, str(entry.key)]
    for table, columns in sorted(by_table.items()):
        parts += [table, *(f"{c.name} {c.kind.value} {c.collation} {c.length}" for c in columns)]
    return zlib.crc32("\n".join(parts).encode())
