"""Connections to the servers of a scope, each opened when it is first asked for, and kept. For one thread."""

from __future__ import annotations

from collections.abc import Mapping

from freshness.algorithm.node import CacheNode
from freshness.comparison.scope import ComparisonScope
from freshness.config.server import ServerAddress
from freshness.database.primary import Primary
from freshness.nodes.open import open_node


class Connections:
    """The servers that a `freshness.comparison.comparison.Comparison` asks for."""

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
