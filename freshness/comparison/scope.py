"""The scope of a comparison: objects, placement, primaries. Built by the process of the prober."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from freshness.algorithm.node import CacheNode
from freshness.config.access import NodeAccess
from freshness.config.config import Config
from freshness.config.keyspace import GtidFlavor
from freshness.config.server import ServerAddress
from freshness.database.primary import Primary
from freshness.database.schema import load_registry
from freshness.keys.placement import Placement
from freshness.nodes.open import open_node
from freshness.objects.nodepolicy import placements_of
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
    """``placements``: the ring of the present nodes, and of the previous ones if these are served. ``primaries`` of
    the shards that serve, by lineage; ``definitions`` by object name."""

    namespace: str
    placements: tuple[Placement, ...]
    lineages: tuple[str, ...]
    definitions: Mapping[str, ObjectDefinition]
    primaries: Mapping[str, PrimaryAddress]
    access: NodeAccess = NodeAccess("memcached")


def load_scope(config: Config) -> ComparisonScope:
    """Read the schema of the primaries. Raises what the database raises."""
    primaries = {
        shard.lineage: PrimaryAddress(
            shard.writable, keyspace.gtid_flavor, shard.replicas if shard.vtgate is None else ()
        )
        for keyspace in config.keyspaces.values()
        for shard in keyspace.serving_shards
    }
    return ComparisonScope(
        namespace=config.cache.namespace,
        placements=placements_of(config.cache),
        lineages=config.lineages,
        definitions=load_registry(config),
        primaries=primaries,
        access=config.cache.access,
    )


class Connections:
    """The servers of a scope, each connected when it is first asked for, and kept. For one thread."""

    def __init__(self, scope: ComparisonScope) -> None:
        self._scope = scope
        self._nodes: dict[str, CacheNode] = {}
        self._servers: dict[ServerAddress, Primary] = {}

    def find_node(self, name: str) -> CacheNode:
        if name not in self._nodes:
            self._nodes[name] = open_node(self._scope.access, name)
        return self._nodes[name]

    def find_primary(self, lineage: str) -> Primary:
        server = self._scope.primaries[lineage]
        return self._open(server.address, server.flavor)

    def find_replicas(self, lineage: str) -> Mapping[str, Primary]:
        """By name."""
        server = self._scope.primaries[lineage]
        return {str(address): self._open(address, server.flavor) for address in server.replicas}

    def _open(self, address: ServerAddress, flavor: str) -> Primary:
        if address not in self._servers:
            self._servers[address] = Primary(address, flavor)
        return self._servers[address]

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        for server in self._servers.values():
            server.close()
