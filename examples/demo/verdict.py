"""The verdict at the end: every object that was ever touched, as the caches hold it and as the primary has it.

The writers have stopped, the replica has caught up and every invalidation is acknowledged, so a cached value that
differs from the primary's will be served until its TTL ends: it is **poisoned**. Values are read raw: nothing here
fills, deletes or touches anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from examples.demo.measurement import CUSTOMER, ObjectKey, Row, find_versions
from examples.demo.strategy import EVENT_TOKENS, STRATEGIES, encode_plain, plain_key
from examples.demo.world import World
from freshness.algorithm.envelope import STUB, Filled, find_record, record_key
from freshness.algorithm.request import Get, Item
from freshness.algorithm.rule import find_hit_refusal
from freshness.database.schema import load_registry
from freshness.keys.placement import Placement
from freshness.nodes.open import open_node
from freshness.values.codec import decode_value
from invalidator.process.status import locate_key

NOTHING = object()
"""The cache would not serve anything for this key. (None is a value: "no such row".)"""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A cached value that differs from the primary's, with a row that shows it. Version 0: it is not there."""

    key: ObjectKey
    row: Row
    cached_version: int
    primary_version: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one strategy. ``held``: number of checked keys that it would serve from the cache."""

    checked: int
    held: int
    poisoned: tuple[Poisoned, ...]


def read_verdicts(world: World, touched: Iterable[ObjectKey]) -> dict[str, Verdict]:
    """The verdict on each strategy, over the same keys."""
    keys = sorted(touched)
    truth = _read_primary(world)
    return {
        name: _judge(keys, truth, _token_reader(world) if name == EVENT_TOKENS else _plain_reader(world, name))
        for name in STRATEGIES
    }


def _judge(keys: list[ObjectKey], truth: Callable[[ObjectKey], Any], read: Callable[[ObjectKey], Any]) -> Verdict:
    held, poisoned = 0, []
    for key in keys:
        cached = read(key)
        if cached is NOTHING:
            continue
        held += 1
        found = compare(key, cached, truth(key))
        if found is not None:
            poisoned.append(found)
    return Verdict(len(keys), held, tuple(poisoned))


def compare(key: ObjectKey, cached: Any, primary: Any) -> Poisoned | None:
    """None if the two are the same, whatever the caches' encodings made of decimals."""
    if plain(cached) == plain(primary):
        return None
    old, new = find_versions(key, cached), find_versions(key, primary)
    # The row that is furthest behind; if only columns differ, the object's own row.
    row = max([*new, *old], key=lambda each: abs(new.get(each, 0) - old.get(each, 0)), default=("customers", key[1]))
    return Poisoned(key, row, old.get(row, 0), new.get(row, 0))


def plain(value: Any) -> Any:
    return json.loads(encode_plain(value))


def _read_primary(world: World) -> Callable[[ObjectKey], Any]:
    with (
        pymysql.connect(**world.databases.server_settings(world.databases.primary)) as connection,
        connection.cursor(DictCursor) as cursor,
    ):
        cursor.execute("SELECT * FROM customers")
        customers = {row["id"]: row for row in cursor.fetchall()}
        cursor.execute("SELECT * FROM orders ORDER BY id")
        orders: dict[int, list[Mapping[str, Any]]] = {}
        for row in cursor.fetchall():
            orders.setdefault(row["customer_id"], []).append(row)

    def find(key: ObjectKey) -> Any:
        name, number = key
        if name == CUSTOMER:
            return customers.get(number)
        return {"customer": customers.get(number), "orders": orders.get(number, [])}

    return find


def _plain_reader(world: World, namespace: str) -> Callable[[ObjectKey], Any]:
    client = world.open_client()

    def read(key: ObjectKey) -> Any:
        found = client.get(plain_key(namespace, key))
        return NOTHING if found is None else json.loads(found)

    return read


def _token_reader(world: World) -> Callable[[ObjectKey], Any]:
    """What a `Cache.get` would return as a hit. An entry that it would refuse (its node has begun a new life, say)
    is served to nobody and counts as not held."""
    config, registry = world.config, load_registry(world.config)
    nodes = {name: open_node(config.cache.access, name) for name in config.cache.nodes}
    ring = Placement(config.cache.nodes, config.cache.namespace).ring_version

    def read(key: ObjectKey) -> Any:
        located = locate_key(config, registry, key[0], [str(key[1])])
        policy = located.policy
        entry, *replies = nodes[located.node].perform(
            (
                Get(located.item),
                *(Get(record_key(config.cache.namespace, lineage), is_bound=True) for lineage in policy.lineages),
            )
        )
        if not isinstance(entry, Item) or entry.value == STUB:
            return NOTHING
        filled = Filled.decode(entry.value)
        records = {
            lineage: find_record(reply, located.node) for lineage, reply in zip(policy.lineages, replies, strict=True)
        }
        if find_hit_refusal(policy, located.identity, filled, records, ring) is not None:
            return NOTHING
        return None if filled.value is None else decode_value(filled.value)

    return read
