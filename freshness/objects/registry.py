"""The objects that are cached, as both sides understand them: table columns, keys, rule.

Built once at the start by the invalidator and by the application, from the same ``freshness.toml`` and the database's
own schema, so that the keys that are read and the keys that are invalidated are the same. The fingerprint of a
definition is in every entry and in the node record: two definitions of one name never share entries (F70).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date

from freshness.algorithm.rule import ObjectPolicy
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace
from freshness.config.object import ObjectConfig
from freshness.errors import ConfigError
from freshness.keys.cachekey import CacheKey, KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.keyrange import KeyRange

log = logging.getLogger(__name__)

_NUMBERS = (ColumnKind.INTEGER, ColumnKind.DECIMAL)

KeyspaceId = Callable[[str, object], bytes]
"""(sharding function, value of the sharding column) → keyspace id. Raises `FormatError`."""


@dataclass(frozen=True, slots=True)
class ShardFinder:
    """Finds the shard of a key. ``place``: index of the sharding column among the key's columns. ``policies``: the
    object's policy in each serving shard, by key range."""

    place: int
    column: KeyColumn
    function: str
    policies: tuple[tuple[KeyRange, ObjectPolicy], ...]
    keyspace_id: KeyspaceId

    def find(self, values: Sequence[object]) -> ObjectPolicy:
        """Raises `FormatError` for a value that has no keyspace id."""
        value = values[self.place]
        if self.column.kind in _NUMBERS:
            value = self.column.parse(self.column.spell(value)[1])
        elif isinstance(value, date):
            value = str(value)
        place = self.keyspace_id(self.function, value)
        return next(policy for key_range, policy in self.policies if key_range.contains(place))


@dataclass(frozen=True, slots=True)
class ObjectDefinition:
    """One object. ``columns_by_table``: in each table, the columns that hold its key, in key order. ``policy`` is of
    the object in all serving shards. ``shards`` is None if the key does not name the shard, or if there is one shard:
    then each entry depends on every serving shard."""

    config: ObjectConfig
    policy: ObjectPolicy
    builder: KeyBuilder
    columns_by_table: Mapping[str, tuple[KeyColumn, ...]]
    shards: ShardFinder | None = None
    order: tuple[tuple[str, bool], ...] = ()
    """Columns that order a list, each with whether its highest value comes first. They end with the primary key: all
    readers have one order."""

    def policy_for(self, values: Sequence[object]) -> ObjectPolicy:
        """The policy of the object in the shard that holds this key."""
        return self.policy if self.shards is None else self.shards.find(values)

    def identity(self, key: CacheKey) -> bytes:
        """The identity of an entry: the definition and the key as spelled."""
        return self.policy.fingerprint.to_bytes(4, "big") + key.identity

    def closed(self, reason: str) -> ObjectDefinition:
        """The same keys under a fingerprint that no reader has, so that nothing of it is stored or served."""
        fingerprint = zlib.crc32(f"{self.config.name}\n{reason}".encode())
        return replace(self, policy=replace(self.policy, fingerprint=fingerprint))

    def portable(self) -> ObjectDefinition:
        """With dicts in the place of read-only views, which cannot be pickled."""
        return replace(
            self,
            config=replace(self.config, members=dict(self.config.members)),
            columns_by_table=dict(self.columns_by_table),
        )


KeyColumns = Callable[[str, str, tuple[str, ...], bool, tuple[str, ...]], tuple[KeyColumn, ...]]
"""(keyspace, table, columns, whether they must find one row, columns that order a list of rows) → these columns, in
this order; the primary key in key order if none is named. Raises `ConfigError` if they must find one row and several
rows can have the same values, NULL left out."""


def build_registry(
    config: Config,
    find_columns: KeyColumns,
    keyspace_id: KeyspaceId,
    keyspaces: Collection[str] | None = None,
    previous: Mapping[str, ObjectDefinition] = {},
    tables: Set[str] = frozenset(),
) -> dict[str, ObjectDefinition]:
    """All objects of the configuration, or of those keyspaces. Raises `ConfigError` naming the object, table and
    column at fault, if the object is not among the ``previous`` ones: that is closed. A previous one that has none
    of ``tables``, if there are any, stays as it is."""

    def define(entry: ObjectConfig) -> ObjectDefinition:
        try:
            return _define(config, entry, find_columns, keyspace_id)
        except ConfigError as error:
            if entry.name not in previous:
                raise
            log.error("object %s is not cached: %s", entry.name, error)
            return previous[entry.name].closed(str(error))

    return {
        name: define(entry) if not tables or name not in previous or tables & {*entry.tables} else previous[name]
        for name, entry in config.objects.items()
        if keyspaces is None or entry.keyspace in keyspaces
    }


def _define(
    config: Config, entry: ObjectConfig, find_columns: KeyColumns, keyspace_id: KeyspaceId
) -> ObjectDefinition:
    order: tuple[tuple[str, bool], ...] = ()
    if entry.table is not None:
        names = tuple(name for name, _ in entry.order)
        columns = find_columns(entry.keyspace, entry.table, entry.key, not entry.is_list, names)
        by_table = {entry.table: columns}
        if entry.is_list:
            for column in columns:
                _common_column(entry, column.name, {entry.table: column})
            primary = find_columns(entry.keyspace, entry.table, (), True, ())
            # In the direction of the last column, so that one index can give the whole order.
            direction = entry.order[-1][1]
            order = (*entry.order, *((each.name, direction) for each in primary if each.name not in names))
    else:
        by_table = {
            table: find_columns(entry.keyspace, table, names, False, ()) for table, names in entry.members.items()
        }
        columns = tuple(
            _common_column(entry, name, {table: of_table[place] for table, of_table in by_table.items()})
            for place, name in enumerate(entry.key)
        )
    builder = KeyBuilder(config.cache.namespace, entry.name, columns)
    keyspace = config.keyspaces[entry.keyspace]
    policy = ObjectPolicy(
        name=entry.name,
        fingerprint=_fingerprint(entry, by_table, order),
        tables=entry.tables,
        lineages=tuple(shard.lineage for shard in keyspace.serving_shards),
        value_ttl_seconds=config.cache.value_ttl_seconds,
    )
    shards = _find_shards(keyspace, columns, by_table, policy, keyspace_id)
    if entry.table is not None and entry.key and keyspace.sharding is not None and shards is None:
        _refuse_several_shards(entry, keyspace.sharding.column, columns)
    return ObjectDefinition(entry, policy, builder, by_table, shards, order)


def _find_shards(
    keyspace: Keyspace,
    columns: Sequence[KeyColumn],
    by_table: Mapping[str, Sequence[KeyColumn]],
    policy: ObjectPolicy,
    keyspace_id: KeyspaceId,
) -> ShardFinder | None:
    """None if there is one shard, or if a row of the object can be in any: the sharding column is not in the
    key of each of its tables, at the same place."""
    sharding = keyspace.sharding
    if sharding is None:
        return None
    names = [[column.name for column in of_table] for of_table in by_table.values()]
    if not all(sharding.column in of_table for of_table in names):
        return None
    places = {of_table.index(sharding.column) for of_table in names}
    if len(places) > 1:
        return None
    place = places.pop()
    policies = tuple(
        (KeyRange.parse(shard.name), replace(policy, lineages=(shard.lineage,))) for shard in keyspace.serving_shards
    )
    return ShardFinder(place, columns[place], sharding.function, policies, keyspace_id)


def _refuse_several_shards(entry: ObjectConfig, sharding_column: str, columns: Sequence[KeyColumn]) -> None:
    """A list would have to be merged in the order of each collation. A unique index is of one shard: a row in another
    one may have an equal key under another item, and would come without an invalidation of this one."""
    if entry.is_list:
        raise ConfigError(
            f"objects.{entry.name}: its rows can be in several shards, and a list is read from one",
            hint=f"add {sharding_column} to its key, or give it a loader",
        )
    loose = [column.name for column in columns if not column.is_exact]
    if loose:
        raise ConfigError(
            f"objects.{entry.name}: {entry.table} is unique in each shard alone, and equal values of "
            f"{', '.join(loose)} have several spellings",
            hint=f"add {sharding_column} to its key, or give {', '.join(loose)} a _bin collation",
        )


def _common_column(entry: ObjectConfig, name: str, members: Mapping[str, KeyColumn]) -> KeyColumn:
    """A column of a composite's key, which each member has under a name of its own. All must spell it alike, or a
    change would name another key (F24)."""
    kinds = {column.kind for column in members.values()}
    described = ", ".join(f"{table}.{column.name} is {column.kind.value}" for table, column in members.items())
    if len(kinds) > 1:
        raise ConfigError(
            f"objects.{entry.name}: {name} in its key has several types: {described}",
            hint="give the columns of all members one type",
        )
    if not all(column.is_exact for column in members.values()):
        raise ConfigError(
            f"objects.{entry.name}: rows can share {name} in its key in several spellings: {described}",
            hint="a composite or a list needs integer, binary, decimal or date columns, or columns with a _bin "
            "collation, which in cp932 and tis620 is not enough",
        )
    if len({(column.length, column.scale) for column in members.values()}) > 1:
        raise ConfigError(
            f"objects.{entry.name}: {name} in its key has several lengths: {described}",
            hint="in all members BINARY(n) must have one n, DECIMAL and DATETIME as many digits after the point",
        )
    return replace(next(iter(members.values())), name=name)


def _fingerprint(
    entry: ObjectConfig, by_table: Mapping[str, Sequence[KeyColumn]], order: Sequence[tuple[str, bool]]
) -> int:
    # No name of a column or table has a slash. The primary key is spelled None, as in every release.
    parts = [entry.name, "/".join(entry.key) or "None"]
    if entry.is_list:
        parts += [f"list/{entry.limit}", *(f"{name}/{is_descending}" for name, is_descending in order)]
    elif entry.table is not None and entry.key:
        parts.append("row/")
    for table, columns in sorted(by_table.items()):
        parts += [table, *(f"{c.name} {c.kind.value} {c.collation} {c.length}" for c in columns)]
    return zlib.crc32("\n".join(parts).encode())
