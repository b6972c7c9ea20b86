"""Invalidates keys that an operator names: after a repair, or where something is suspected.

As for an event of the stream, with all that the primary has executed by now as the event: afterwards no reader can
store what is older than that. It needs no running invalidator and disturbs none. Called by the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.invalidate import Event, invalidate
from freshness.algorithm.node import CacheNode
from freshness.config.settings import Config, Keyspace
from freshness.errors import FormatError
from freshness.nodes.open import open_node
from freshness.objects.registry import ObjectDefinition
from freshness.position.token import EventToken
from invalidator.process.status import LocatedKey, locate_key

ReadToken = Callable[[str, str], EventToken]
"""Keyspace and shard name → all that the primary has executed by now."""


def invalidate_keys(
    config: Config,
    registry: dict[str, ObjectDefinition],
    name: str,
    texts: Sequence[str],
    read_token: ReadToken,
    open_connection: Callable[[str, str], CacheNode] = open_node,
) -> list[LocatedKey]:
    """Invalidate one key or several of an object; a key of n columns takes n of ``texts``.

    Returns what was invalidated, all of it acknowledged. Raises `ConfigError` and `FormatError` for what was asked;
    `NodeUnavailable` or `InvalidationFailed` where a key was not acknowledged (those before it were), and what
    ``read_token`` raises.
    """
    keys = _locate_keys(config, registry, name, texts)
    keyspace = config.keyspaces[keys[0].definition.config.keyspace]
    heads = _read_heads(keyspace, {lineage for each in keys for lineage in each.policy.lineages}, read_token)
    names = dict.fromkeys(each.node for each in keys)
    nodes = {node: open_connection(config.cache.backend, node) for node in names}
    driver = BlockingDriver(nodes, time.sleep)
    try:
        for key in keys:
            for lineage in key.policy.lineages:
                head = heads[lineage]
                event = Event(lineage, head.epoch, head.position, head.position)
                ttl_seconds = config.cache.tombstone_ttl_seconds
                driver.run(invalidate(key.node, {key.item: event}, ttl_seconds))
    finally:
        for node in nodes.values():
            node.close()
    return keys


def _locate_keys(
    config: Config, registry: dict[str, ObjectDefinition], name: str, texts: Sequence[str]
) -> list[LocatedKey]:
    width = len(registry[name].builder.columns) if name in registry else len(texts)
    if len(texts) % width:
        raise FormatError(
            f"keys of {name} got {len(texts)} values",
            hint=f"a key has {width}: " + ", ".join(column.name for column in registry[name].builder.columns),
        )
    return [
        locate_key(config, registry, name, texts[place : place + width])
        for place in range(0, len(texts), width)
    ]


def _read_heads(keyspace: Keyspace, lineages: set[str], read_token: ReadToken) -> Mapping[str, EventToken]:
    return {
        shard.lineage: read_token(keyspace.name, shard.name)
        for shard in keyspace.serving_shards
        if shard.lineage in lineages
    }
