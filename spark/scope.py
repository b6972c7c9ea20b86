"""The scope of a live audit, as one value that travels to the executors: objects, placement, primaries.

It holds the addresses of the primaries with their passwords, since the executors log in: it must never be printed.
Built by the mains, read by everything that runs on executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from freshness.config.access import NodeLogin
from freshness.config.settings import Config, GtidFlavor, ServerAddress
from freshness.database.schema import load_registry
from freshness.errors import ConfigError
from freshness.keys.placement import Placement
from freshness.login import with_passwords
from freshness.objects.registry import ObjectDefinition


@dataclass(frozen=True, slots=True)
class PrimaryAddress:
    """The server that has the truth of one shard, and whose positions it gives. ``replicas``: those of the shard that
    are servers of their own."""

    address: ServerAddress
    flavor: GtidFlavor
    replicas: tuple[ServerAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditScope:
    """``primaries`` of the shards that serve, by lineage; ``definitions`` by object name. Plain dicts: it is
    pickled."""

    namespace: str
    nodes: tuple[str, ...]
    ring_version: int
    lineages: tuple[str, ...]
    definitions: Mapping[str, ObjectDefinition]
    primaries: Mapping[str, PrimaryAddress]

    @property
    def servers(self) -> list[ServerAddress]:
        """All databases that executors log in to."""
        return [server for each in self.primaries.values() for server in (each.address, *each.replicas)]


def load_scope(config: Config) -> AuditScope:
    """Read the schema of the primaries. Raises `ConfigError` for another backend than memcached, and what the
    database raises."""
    if config.cache.backend != "memcached":
        raise ConfigError(
            f'cache.backend = "{config.cache.backend}" cannot be audited live',
            hint="only memcached lists its keys in the way this audit reads them",
        )
    if config.cache.login != NodeLogin():
        raise ConfigError(
            "the live audit reads cache nodes without TLS and without a login, and the configuration has one",
            hint="`spark.audit` audits a recorded history instead, and opens no node",
        )
    primaries = {
        shard.lineage: PrimaryAddress(
            shard.writable, keyspace.gtid_flavor, shard.replicas if shard.vtgate is None else ()
        )
        for keyspace in map(with_passwords, config.keyspaces.values())
        for shard in keyspace.serving_shards
    }
    definitions = load_registry(config)
    return AuditScope(
        namespace=config.cache.namespace,
        nodes=config.cache.nodes,
        ring_version=Placement(config.cache.nodes, config.cache.namespace).ring_version,
        lineages=config.lineages,
        definitions={name: portable(definition) for name, definition in definitions.items()},
        primaries=primaries,
    )


def portable(definition: ObjectDefinition) -> ObjectDefinition:
    """With dicts in the place of read-only views, which cannot be pickled."""
    return replace(
        definition,
        config=replace(definition.config, members=dict(definition.config.members)),
        columns_by_table=dict(definition.columns_by_table),
    )
