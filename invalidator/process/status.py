"""The records of the cache nodes, and what the cache holds of one key. Reads only.

`read_status` and `inspect` need no running invalidator: the truth is in the nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from freshness.algorithm.envelope import STUB, Filled, Tombstone, record_key, resume_key
from freshness.algorithm.membership import find_record
from freshness.algorithm.request import Get, Item, Reply
from freshness.algorithm.rule import ObjectPolicy, find_hit_refusal, find_record_refusal
from freshness.config.settings import Config
from freshness.database.connection import connect, quote_name, translated
from freshness.errors import ConfigError, FormatError, FreshnessError
from freshness.keys.cachekey import tombstone_key
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.nodes.open import open_node
from freshness.objects.registry import ObjectDefinition
from freshness.values.codec import decode_value, encode_value


def read_status(config: Config) -> dict[str, Any]:
    """One entry per node and lineage, ready for JSON. A node that does not answer says so and hides no other."""
    placement = Placement(config.cache.nodes, config.cache.namespace)
    nodes = []
    for name in config.cache.nodes:
        for lineage in config.lineages:
            nodes.append({"node": name, "lineage": lineage} | _node_status(config, name, lineage, placement))
    return {"namespace": config.cache.namespace, "ring": f"{placement.ring_version:08x}", "nodes": nodes}


def _node_status(config: Config, name: str, lineage: str, placement: Placement) -> dict[str, Any]:
    node = open_node(config.cache.backend, name)
    try:
        reply, resume = node.perform(
            (
                Get(record_key(config.cache.namespace, lineage)),
                Get(resume_key(config.cache.namespace, lineage)),
            )
        )
    except FreshnessError as error:
        return {"state": "unavailable", "error": str(error)}
    finally:
        node.close()
    record = find_record(reply)
    if record is None or not isinstance(reply, Item):
        copy = find_record(resume)
        state = "unknown" if copy is None else "lapsed"
        return {"state": state, "progress": "" if copy is None else str(copy.progress)}
    refusal = find_record_refusal(record, placement.ring_version)
    return {
        "state": "open" if refusal is None else refusal.name.lower(),
        "life": record.life.hex(),
        "epoch": record.epoch,
        "lease_seconds_left": reply.ttl_seconds,
        "heartbeat_age_seconds": record.heartbeat_age_ms / 1000,
        "as_of": datetime.fromtimestamp(record.as_of_us / 1e6, UTC).isoformat(),
        "progress": str(record.progress),
        "floor": str(record.floor),
        "table_floors": {table: str(position) for table, position in record.table_floors.items()},
        "objects": sorted(record.objects),
    }


@dataclass(frozen=True, slots=True)
class LocatedKey:
    """One object of one key, where it is kept. ``policy``: the object as it is in the shard of the key."""

    definition: ObjectDefinition
    policy: ObjectPolicy
    values: tuple[Any, ...]
    node: str
    item: bytes
    identity: bytes


def locate_key(
    config: Config, registry: dict[str, ObjectDefinition], name: str, texts: Sequence[str]
) -> LocatedKey:
    """The object that the command line names; keys come as text and are read as the columns' types."""
    definition = registry.get(name)
    if definition is None:
        raise ConfigError(
            f"unknown object {name!r}", hint=f"{config.path} defines {', '.join(sorted(registry))}"
        )
    columns = definition.builder.columns
    if len(texts) != len(columns):
        raise FormatError(
            f"the key of {name} got {len(texts)} values",
            hint=f"give {', '.join(column.name for column in columns)}",
        )
    values = tuple(_parse_value(column, text) for column, text in zip(columns, texts, strict=True))
    key = definition.builder.build(values)
    placement = Placement(config.cache.nodes, config.cache.namespace)
    return LocatedKey(
        definition,
        definition.policy_for(values),
        values,
        placement.node_for(key.item),
        key.item,
        definition.identity(key),
    )


def _parse_value(column: KeyColumn, text: str) -> str | bytes:
    if column.kind is not ColumnKind.BINARY:
        return text
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise FormatError(f"{text!r} for {column.name}", hint="give binary keys in hexadecimal") from error


def inspect(config: Config, located: LocatedKey) -> dict[str, Any]:
    """Entry, tombstone and verdict of one key, and whether the value is the primary's row now."""
    namespace = config.cache.namespace
    lineages = located.policy.lineages
    node = open_node(config.cache.backend, located.node)
    try:
        entry, marker, *records = node.perform(
            (
                Get(located.item),
                Get(tombstone_key(located.item)),
                *(Get(record_key(namespace, lineage)) for lineage in lineages),
            )
        )
    finally:
        node.close()
    found = {lineage: find_record(reply) for lineage, reply in zip(lineages, records, strict=True)}
    answer: dict[str, Any] = {
        "object": located.definition.config.name,
        "node": located.node,
        "item": located.item.decode(),
        "tombstone": _describe_tombstone(marker),
    }
    if not isinstance(entry, Item):
        return answer | {"entry": "absent"}
    if entry.value == STUB:
        return answer | {"entry": "stub", "ttl_seconds": entry.ttl_seconds}
    try:
        filled = Filled.decode(entry.value)
    except FormatError as error:
        return answer | {"entry": "foreign", "error": str(error)}
    refusal = find_hit_refusal(located.policy, located.identity, filled, found)
    answer |= {
        "entry": "live" if refusal is None else refusal.name.lower(),
        "ttl_seconds": entry.ttl_seconds,
        "stamps": [
            {"lineage": s.lineage, "life": s.life.hex(), "epoch": s.epoch, "position": str(s.position)}
            for s in filled.stamps
        ],
        "value": None if filled.value is None else decode_value(filled.value),
    }
    if located.definition.config.table is not None:
        row = _read_row(config, located)
        answer |= {"primary": row, "equals_primary": _digest(row) == _digest(answer["value"])}
    return answer


def _describe_tombstone(reply: Reply) -> dict[str, Any] | None:
    if not isinstance(reply, Item):
        return None
    try:
        tombstone = Tombstone.decode(reply.value)
    except FormatError as error:
        return {"error": str(error)}
    positions = {
        f"{lineage} epoch {epoch}": str(position)
        for (lineage, epoch), position in tombstone.positions.items()
    }
    return {"ttl_seconds": reply.ttl_seconds, "positions": positions}


def _read_row(config: Config, located: LocatedKey) -> dict[str, Any] | None:
    from pymysql.cursors import DictCursor

    entry = located.definition.config
    names = [quote_name(column.name) for column in located.definition.builder.columns]
    where = " AND ".join(f"{name} = %s" for name in names)
    for shard in config.keyspaces[entry.keyspace].shards:
        if shard.lineage not in located.policy.lineages:
            continue
        connection = connect(shard.writable)
        try:
            with connection.cursor(DictCursor) as cursor:
                cursor.execute(f"SELECT * FROM {quote_name(str(entry.table))} WHERE {where}", located.values)
                rows = cursor.fetchall()
        except Exception as error:
            raise translated(error, shard.writable, "reading the row") from error
        finally:
            connection.close()
        if rows:
            return dict(rows[0])
    return None


def _digest(value: Any) -> str:
    return "" if value is None else hashlib.blake2b(encode_value(value)).hexdigest()
