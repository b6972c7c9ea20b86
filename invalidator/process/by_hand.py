"""Invalidates keys that an operator names: after a repair, or where something is suspected.

The stripe of each key is deleted, and then the key. Nothing is stored without its stripe, which comes back with all
that the primary had executed by the time of its deletion (``freshness.algorithm.restore``): afterwards no reader can
store what is older. It asks no database, needs no running invalidator and disturbs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from freshness.algorithm.envelope import encode_wanted, find_record, record_key, stripe_key, stripe_number, wanted_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Append, Delete, Get, Request
from freshness.config.access import NodeAccess
from freshness.config.cache import CacheConfig
from freshness.config.config import Config
from freshness.errors import FormatError
from freshness.nodes.open import open_node
from freshness.objects.registry import ObjectDefinition
from invalidator.process.status import LocatedKey, find_definition, locate_key


def invalidate_keys(
    config: Config,
    registry: dict[str, ObjectDefinition],
    name: str,
    texts: Sequence[str],
    open_connection: Callable[[NodeAccess, str], CacheNode] = open_node,
) -> list[LocatedKey]:
    """Invalidate one key or several of an object; a key of n columns takes n of ``texts``.

    Returns what was invalidated, all of it acknowledged. Raises `ConfigError` and `FormatError` for what was asked;
    `NodeUnavailable` if a key was not acknowledged (those before it were).
    """
    keys = _locate_keys(config, registry, name, texts)
    # Previous nodes first: what a reader finds there afterwards, and moves, is not what is to go
    for names in ([key.previous_node for key in keys], [key.node for key in keys]):
        for node in filter(None, dict.fromkeys(names)):
            with closing(open_connection(config.cache.access, node)) as connection:
                held = [key for key, name in zip(keys, names, strict=True) if name == node]
                _invalidate(connection, config.cache, held)
    return keys


def _invalidate(connection: CacheNode, cache: CacheConfig, keys: Sequence[LocatedKey]) -> None:
    """One lineage after the other: its stripes, then the keys.

    A life that has no record can only be revived with as many stripes as are configured, and a new one begins later
    than now.
    """
    for lineage in {lineage: None for key in keys for lineage in key.policy.lineages}:
        (reply,) = connection.perform([Get(record_key(cache.namespace, lineage), is_bound=True)])
        record = find_record(reply, connection.name)
        stripes = (record.stripes if record is not None else 0) or cache.stripes
        items = [key.item for key in keys if lineage in key.policy.lineages]
        numbers = dict.fromkeys(stripe_number(item, stripes) for item in items)
        requests: list[Request] = [Delete(stripe_key(cache.namespace, lineage, number)) for number in numbers]
        requests += [Delete(item) for item in items]
        requests.append(Append(wanted_key(cache.namespace, lineage), encode_wanted(numbers)))
        connection.perform(requests)


def _locate_keys(
    config: Config, registry: dict[str, ObjectDefinition], name: str, texts: Sequence[str]
) -> list[LocatedKey]:
    columns = find_definition(config, registry, name).builder.columns
    width = len(columns)
    if not texts or len(texts) % width:
        raise FormatError(
            f"keys of {name} got {len(texts)} values",
            hint=f"a key has {width}: " + ", ".join(column.name for column in columns),
        )
    return [locate_key(config, registry, name, texts[place : place + width]) for place in range(0, len(texts), width)]
