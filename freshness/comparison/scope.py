"""The scope of a comparison, as one value that can travel to the executors of Spark: objects, placement, primaries.

It can hold the addresses of the primaries with their passwords, for executors that log in: it must never be printed.
Built by the mains of ``spark.live`` and of the prober.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from freshness.config.access import NodeAccess
from freshness.config.config import Config
from freshness.config.keyspace import GtidFlavor
from freshness.config.server import ServerAddress
from freshness.database.schema import load_registry
from freshness.keys.placement import Placement
from freshness.login import with_passwords
from freshness.objects.registry import ObjectDefinition


@dataclass(frozen=True, slots=True)
class PrimaryAddress:
    """The server that has the truth of one shard, and whose positions it gives. ``replicas``: replicas of the shard
    that are separate servers."""

    address: ServerAddress
    flavor: GtidFlavor
    replicas: tuple[ServerAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparisonScope:
    """``primaries`` of the shards that serve, by lineage; ``definitions`` by object name. Plain dicts: it is
    pickled."""

    namespace: str
    nodes: tuple[str, ...]
    ring_version: int
    lineages: tuple[str, ...]
    definitions: Mapping[str, ObjectDefinition]
    primaries: Mapping[str, PrimaryAddress]
    access: NodeAccess = NodeAccess("memcached")

    @property
    def servers(self) -> list[ServerAddress]:
        """All databases that are logged in to."""
        return [server for each in self.primaries.values() for server in (each.address, *each.replicas)]


def load_scope(config: Config, *, carries_passwords: bool = False) -> ComparisonScope:
    """Read the schema of the primaries. ``carries_passwords``: read the passwords now, for processes that cannot read
    their sources. Raises what the database raises."""
    keyspaces = config.keyspaces.values()
    primaries = {
        shard.lineage: PrimaryAddress(
            shard.writable, keyspace.gtid_flavor, shard.replicas if shard.vtgate is None else ()
        )
        for keyspace in (map(with_passwords, keyspaces) if carries_passwords else keyspaces)
        for shard in keyspace.serving_shards
    }
    return ComparisonScope(
        namespace=config.cache.namespace,
        nodes=config.cache.nodes,
        ring_version=Placement(config.cache.nodes, config.cache.namespace).ring_version,
        lineages=config.lineages,
        definitions={name: each.portable() for name, each in load_registry(config).items()},
        primaries=primaries,
        access=config.cache.access,
    )
