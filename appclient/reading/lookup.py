"""The configured objects as one process reads them: their keys as lookups, and their loaders."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from appclient.connection.own import OpenedDatabase, OwnConnection, require_one_shard
from appclient.connection.pool import nested_reads
from appclient.database.database import Database
from appclient.reading.loader import LoaderFunction, ObjectLoader, load_together
from freshness.algorithm.driver import running_clock
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.rule import ObjectPolicy
from freshness.algorithm.view import NodeView
from freshness.config.config import Config
from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.database.cluster import CLUSTER_VARIABLES, require_no_cluster
from freshness.database.connection import Connection, read_variables
from freshness.database.schema import key_columns, keyspace_id
from freshness.errors import ConfigError, FormatError, FreshnessError, SourceUnavailable
from freshness.keys.keycolumn import KeyColumn
from freshness.objects.nodepolicy import placements_of
from freshness.objects.registry import KeyColumns, ObjectDefinition, build_registry
from freshness.position.token import EventToken

log = logging.getLogger(__name__)

LOOKUPS_KEPT_MAX: Final = 8192
"""Keys whose node and spelling are cached: computing them is a tenth of a hit, and more of `Cache.get_many`."""

KEPT_TEXT_MAX: Final = 64
"""Characters. Longer keys are not cached."""

AGAIN_SECONDS: Final = 10.0
"""An object's key columns are read again at most once in this time, while the invalidator has other ones."""


class Lookups:
    """The objects by name. Safe for threads. ``find_columns``: in the place of the databases' schemas. The schema of
    a keyspace whose database does not answer at first is read by the first read of one of its objects."""

    def __init__(
        self, config: Config, databases: Mapping[str, Database], find_columns: KeyColumns | None = None
    ) -> None:
        self._config, self._databases = config, databases
        self._columns_of = find_columns or self._find_columns
        self.placement, *self._previous = placements_of(config.cache)
        self._staying: dict[ObjectPolicy, ObjectPolicy] = {}
        self.definitions: dict[str, ObjectDefinition] = {}
        self._doubted: set[str] = set()
        self._read_at: dict[str, float] = {}
        self.loaders: dict[str, ObjectLoader] = {}
        self._functions: dict[str, LoaderFunction] = {}
        self._defining = threading.Lock()
        self._kept = lru_cache(maxsize=LOOKUPS_KEPT_MAX)(self._make)
        for keyspace in config.keyspaces:
            try:
                self._define(config, keyspace)
            except SourceUnavailable as error:
                log.warning("keyspace %s is not read until its database answers: %s", keyspace, error)
        self.lineages = tuple(
            dict.fromkeys(
                shard.lineage
                for entry in config.objects.values()
                for shard in config.keyspaces[entry.keyspace].serving_shards
            )
        )
        """Lineages that objects live in. Shards that do not serve decide over no read."""

    @property
    def previous_ring(self) -> int:
        """The ring by which lookups name a previous node, or the present one."""
        return (self._previous or [self.placement])[0].ring_version

    def entry(self, object_name: str) -> ObjectConfig:
        """Raises `ConfigError` for an unknown object."""
        try:
            return self._config.objects[object_name]
        except KeyError:
            known = ", ".join(sorted(self._config.objects)) or "none"
            raise ConfigError(f"unknown object {object_name!r}", hint=f"freshness.toml defines {known}") from None

    def definition(self, object_name: str) -> ObjectDefinition:
        """Raises `ConfigError` for an unknown object, and what the database raises that its schema is read from."""
        try:
            return self.definitions[object_name]
        except KeyError:
            self._define(self._config, self.entry(object_name).keyspace)
            return self.definitions[object_name]

    def find(self, object_name: str, key: Any) -> Lookup:
        """The item and the node of a key. Raises as `definition`, and `FormatError` for a key of another shape."""
        if self._doubted:
            self._read_again()
        # Neither True and 1.0, which equal 1, nor long texts are cached.
        if type(key) is int or (type(key) is str and len(key) <= KEPT_TEXT_MAX):
            return self._kept(object_name, key)
        return self._make(object_name, key)

    def note(self, view: NodeView) -> None:
        """Note the objects that the invalidator of a node has in another definition: their key columns may have been
        altered."""
        for record in view.records.values():
            for name, coverage in {} if record is None else record.objects.items():
                known = self.definitions.get(name)
                if known is not None and known.policy.fingerprint != coverage.fingerprint:
                    now = running_clock()
                    if now - self._read_at.get(name, float("-inf")) >= AGAIN_SECONDS:
                        self._read_at[name] = now
                        self._doubted.add(name)

    def _read_again(self) -> None:
        """An object that cannot be read now stays as it was: the invalidator does not cover that."""
        try:
            name = self._doubted.pop()
        except KeyError:  # another thread has taken it
            return
        entry = self.entry(name)
        try:
            self._define(replace(self._config, objects={name: entry}), entry.keyspace)
        except FreshnessError as error:
            log.warning("the key columns of %s are not read again: %s", name, error)

    def set_function(self, object_name: str, function: LoaderFunction) -> None:
        """``function`` builds this composite from now on."""
        with self._defining:
            self._functions[object_name] = function
            if object_name in self.definitions:
                self._create_loader(self.definitions[object_name])

    def load(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        """Each value by its object's loader, in the order of the lookups. All are of one object."""
        (name,) = {lookup.policy.name for lookup in lookups}
        with nested_reads():
            return self.loaders[name].load(lookups, at_least)

    def load_together(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        """The same in one snapshot of each shard, also of several objects."""
        with nested_reads():
            return load_together(self.loaders, lookups, at_least)

    def load_on(self, connection: Any, lookups: Sequence[Lookup]) -> list[Loaded]:
        """The same on the application's own connection. All lookups are of one object."""
        for lookup in lookups:
            require_one_shard(lookup.policy.name, lookup.policy.lineages, "a transaction is open on one connection")
        name = lookups[0].policy.name
        opened = OwnConnection(connection)
        try:
            return self.loaders[name].on(OpenedDatabase(opened)).load(lookups)
        finally:
            opened.end()

    def find_heads(self, lookup: Lookup) -> Mapping[str, EventToken]:
        """All that the primaries of a lookup have executed, by lineage."""
        shards = self._databases[self._config.objects[lookup.policy.name].keyspace].shards
        return {lineage: shards[lineage].read_head() for lineage in lookup.policy.lineages}

    def _make(self, object_name: str, key: Any) -> Lookup:
        definition = self.definition(object_name)
        values = _order_key(definition, key)
        cache_key = definition.builder.build(values)
        item, _, is_exact = cache_key
        identity = definition.identity(cache_key)
        node = self.placement.node_for(item)
        asked = definition.builder.parse(cache_key.identity)
        policy, previous_node = definition.policy_for(values), ""
        for placement in self._previous:
            previous_node = placement.node_for(item)
            if previous_node == node:
                staying = replace(policy, previous_rings=(placement.ring_version,))
                policy, previous_node = self._staying.setdefault(policy, staying), ""
        return Lookup(policy, node, item, identity, asked, is_exact, previous_node=previous_node)

    def _define(self, config: Config, keyspace: str) -> None:
        """Read the schema of the objects of a keyspace. Raises what the database raises, and `ConfigError`."""
        definitions = build_registry(config, self._columns_of, keyspace_id, [keyspace])
        with self._defining:
            for name, definition in definitions.items():
                self._create_loader(definition)
                self.definitions[name] = definition
        # Another one, since a thread may still put a lookup of before into the present one
        self._kept = lru_cache(maxsize=LOOKUPS_KEPT_MAX)(self._make)

    def _create_loader(self, definition: ObjectDefinition) -> None:
        entry = definition.config
        database, function = self._databases[entry.keyspace], self._functions.get(entry.name)
        self.loaders[entry.name] = ObjectLoader(definition, database, function)

    def _find_columns(
        self, keyspace: str, table: str, names: tuple[str, ...], is_unique: bool, ordered_by: tuple[str, ...]
    ) -> tuple[KeyColumn, ...]:
        database = self._databases[keyspace]

        def read(connection: Connection, address: ServerAddress) -> tuple[KeyColumn, ...]:
            if database.keyspace.flavor != "vitess":
                require_no_cluster(read_variables(connection, CLUSTER_VARIABLES), address)
            return key_columns(connection, address.database, table, names, is_unique, ordered_by)

        failed: SourceUnavailable | None = None
        for shard in database.keyspace.serving_shards:
            try:
                return database.shards[shard.lineage].run(read)
            except SourceUnavailable as error:
                failed = failed or error
        assert failed is not None, "a keyspace has a serving shard"
        raise failed


def _order_key(definition: ObjectDefinition, key: Any) -> Sequence[object]:
    """The values of a key in the order of its columns. Raises `FormatError` for a mapping with other names."""
    if type(key) is tuple:
        return key
    if not isinstance(key, Mapping):
        return (key,)
    names = [column.name for column in definition.builder.columns]
    if set(key) != set(names):
        raise FormatError(
            f"the key of {definition.config.name} got {', '.join(map(str, key)) or 'no column'}",
            hint=f"expected {', '.join(names)}, each with its value",
        )
    return [key[name] for name in names]
