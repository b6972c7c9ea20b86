"""Reads entries of one node, and decides for each whether it would be a hit. For the prober and the comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from freshness.algorithm.envelope import STUB, Filled, NodeRecord, find_record, record_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.parts import read_value
from freshness.algorithm.request import Get, Reply
from freshness.algorithm.rule import ObjectPolicy, find_hit_refusal, find_record_refusal
from freshness.comparison.scope import ComparisonScope
from freshness.errors import FormatError
from freshness.keys.keycolumn import ColumnKind
from freshness.keys.placement import find_rings
from freshness.objects.registry import ObjectDefinition
from freshness.values.codec import decode_value, encode_value

ENTRIES_PER_BATCH_MAX: Final = 200

LIVE: Final = "live"
STUBBED: Final = "stub"
FOREIGN: Final = "foreign"
UNCONFIGURED: Final = "unconfigured"
UNTRUSTED: Final = "untrusted"
"""The node's record is missing, closed or of another ring: nobody knows whether the entry is a hit."""
PARTS: Final = "parts"
"""The value is in parts, which are not all there, or do not decode."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """``state``: `LIVE`, or why it is not a hit. ``lineages``: lineages of the shards that have a say in it.
    ``value``: encoded value, None for "no such row". ``value_digest`` is of the value as it would be encoded now, ""
    for "no such row"."""

    node: str
    item: bytes
    object: str
    identity: bytes
    state: str
    lineages: Sequence[str] = ()
    entry_digest: str = ""
    value_digest: str = ""
    value: bytes | None = None


def read_items(
    scope: ComparisonScope, node: CacheNode, items: Sequence[bytes]
) -> tuple[dict[str, NodeRecord | None], list[Reply]]:
    """The records first: an entry seen after the progress that it was read with has outlived that progress (I1)."""
    requests = [Get(record_key(scope.namespace, lineage), is_bound=True) for lineage in scope.lineages]
    replies = node.perform([*requests, *map(Get, items)])
    count = len(scope.lineages)
    found = [find_record(reply, node.name) for reply in replies[:count]]
    return dict(zip(scope.lineages, found, strict=True)), replies[count:]


def find_object(scope: ComparisonScope, item: bytes) -> str:
    """The name of the object in an entry's key."""
    return item[len(scope.namespace) + 1 :].split(b":", 1)[0].decode("latin-1")


def judge(
    scope: ComparisonScope, holder: CacheNode, item: bytes, data: bytes, records: Mapping[str, NodeRecord | None]
) -> NodeEntry:
    """Judge the bytes under a key, by the rule that readers go by. The parts of a value are read from the node."""
    node = holder.name
    name = find_object(scope, item)
    definition = scope.definitions.get(name)
    if data == STUB:
        return NodeEntry(node, item, name, b"", STUBBED)
    if definition is None:
        return NodeEntry(node, item, name, b"", UNCONFIGURED)
    state = FOREIGN
    try:
        filled = Filled.decode(data)
        state = PARTS if filled.is_parted else FOREIGN
        payload = read_value(holder, scope.namespace, filled)
        value_digest = "" if payload is None else digest_value(decode_value(payload))
    except FormatError:
        return NodeEntry(node, item, name, b"", state)
    policy, identity = _find_served(definition, item, filled)
    rings = find_rings(scope.placements, item, node)
    state = _find_state(rings, policy, identity, filled, records)
    digest = digest_bytes(data)
    return NodeEntry(node, item, name, filled.identity, state, policy.lineages, digest, value_digest, payload)


def _find_state(
    rings: tuple[int, ...],
    policy: ObjectPolicy,
    identity: bytes,
    filled: Filled,
    records: Mapping[str, NodeRecord | None],
) -> str:
    """``rings``: the rings that place the entry on its node."""
    if any(find_record_refusal(records.get(lineage), rings) for lineage in policy.lineages):
        return UNTRUSTED
    refusal = find_hit_refusal(replace(policy, previous_rings=rings[1:]), identity, filled, records, rings[0])
    return LIVE if refusal is None else refusal.name.lower()


def _find_served(definition: ObjectDefinition, item: bytes, filled: Filled) -> tuple[ObjectPolicy, bytes]:
    """The object in the shard, and the identity, of the one key that could be asked for and answered with this entry.
    The identity is b"" if there is none."""
    values = find_key_values(definition, filled.identity)
    if values is None:
        return definition.policy, b""
    key = definition.builder.build(values)
    try:
        policy = _find_policy(definition, values, filled)
    except FormatError:  # nobody can ask for a key that has no shard
        return definition.policy, b""
    return policy, definition.identity(key) if key.item == item else b""


def _find_policy(definition: ObjectDefinition, values: Sequence[object], filled: Filled) -> ObjectPolicy:
    """Spellings of a text that the identity does not tell apart can have several keyspace ids: then readers of the
    shard that the entry was read from are served it. Raises `FormatError` for a key without a keyspace id."""
    shards = definition.shards
    if shards is None or shards.column.kind is not ColumnKind.STRING:
        return definition.policy_for(values)
    stamped = tuple(stamp.lineage for stamp in filled.stamps)
    return next((policy for _, policy in shards.policies if policy.lineages == stamped), definition.policy)


def find_key_values(definition: ObjectDefinition, identity: bytes) -> tuple[Any, ...] | None:
    """The key that an entry's identity spells, as values for a query; None if it is not a key of the object. The fine
    spelling of a key column equals, for the database, every value that is spelled so."""
    try:
        values = definition.builder.parse(identity[4:])
        if definition.identity(definition.builder.build(values)) != identity:
            return None
    except (ValueError, ArithmeticError):  # FormatError and UnicodeDecodeError are ValueErrors
        return None
    return values


def digest_value(value: object) -> str:
    """The digest of a value that is there. Equal digests are equal values."""
    return digest_bytes(encode_value(value))


def digest_row(value: object) -> str:
    """The same of a row or a list, "" for no such row."""
    return "" if value is None else digest_value(value)


def digest_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
