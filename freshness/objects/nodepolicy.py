"""The policy of a lineage's cache nodes, from the configuration and the objects, for all processes that apply a
stream."""

from __future__ import annotations

from collections.abc import Mapping, Set

from freshness.algorithm.membership import NodePolicy
from freshness.config.cache import CacheConfig
from freshness.keys.placement import Placement
from freshness.objects.registry import ObjectDefinition


def placements_of(cache: CacheConfig) -> tuple[Placement, ...]:
    """The present ring, and the previous one if it is still served."""
    rings = dict.fromkeys((cache.nodes, cache.previous_nodes or cache.nodes))
    return tuple(Placement(nodes, cache.namespace) for nodes in rings)


def node_policy(
    cache: CacheConfig,
    lineage: str,
    definitions: Mapping[str, ObjectDefinition],
    *,
    topology: int,
    is_serving: bool = True,
    altered: Set[tuple[str, int]] = frozenset(),
) -> NodePolicy:
    """``definitions``: the objects of the lineage's keyspace. ``topology`` and what follows: see `NodePolicy`."""
    placements = placements_of(cache)
    return NodePolicy(
        namespace=cache.namespace,
        lineage=lineage,
        ring=placements[0].ring_version,
        objects={name: definition.policy.fingerprint for name, definition in definitions.items()},
        stripes=cache.stripes,
        lease_seconds=cache.lease_seconds,
        heartbeat_age_max_seconds=cache.heartbeat_age_max_seconds,
        node_refresh_seconds=cache.trust_seconds,
        is_serving=is_serving,
        topology=topology,
        placements={each.ring_version: each for each in placements} if cache.previous_nodes else {},
        altered=altered,
    )
