"""The answer of ``GET /v1/topology``: the configuration without passwords."""

from __future__ import annotations

from typing import Any

from freshness.config.config import Config
from freshness.config.keyspace import Keyspace


def describe_topology(config: Config) -> dict[str, Any]:
    """Nodes, keyspaces with their shards, and objects, ready for JSON."""
    return {
        "topology": config.topology,
        "cache": {
            "backend": config.cache.backend,
            "nodes": list(config.cache.nodes),
            "namespace": config.cache.namespace,
        },
        "keyspaces": {name: _describe_keyspace(each) for name, each in config.keyspaces.items()},
        "objects": {
            name: {"keyspace": each.keyspace, "tables": list(each.tables)} for name, each in config.objects.items()
        },
    }


def _describe_keyspace(keyspace: Keyspace) -> dict[str, Any]:
    sharding = keyspace.sharding
    return {
        "flavor": keyspace.flavor,
        "sharding": None if sharding is None else {"column": sharding.column, "function": sharding.function},
        "shards": [
            {
                "name": shard.name,
                "lineage": shard.lineage,
                "serving": shard.serving,
                "continues": list(shard.continues),
                "primary": str(shard.primary),
                "vtgate": None if shard.vtgate is None else str(shard.vtgate),
                "replicas": [str(replica) for replica in shard.replicas],
            }
            for shard in keyspace.shards
        ],
    }
