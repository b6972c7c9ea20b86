"""The records and stripes of the cache nodes, and what the cache holds of one key. Reads only.

`read_status` and `inspect` need no running invalidator: the truth is in the nodes, and in the servers that
applications read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from freshness.algorithm.envelope import (
    STUB,
    Filled,
    NodeRecord,
    PendingStripe,
    Stripe,
    find_record,
    find_stripe,
    previous_reader_key,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.node import CacheNode
from freshness.algorithm.parts import read_value
from freshness.algorithm.request import Get, Item, Reply
from freshness.algorithm.rule import (
    ObjectPolicy,
    ReadOutcome,
    find_fill_refusal,
    find_hit_refusal,
    find_record_refusal,
    is_outdated,
)
from freshness.comparison.entry import digest_row
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connected, read_rows
from freshness.database.primary import Primary
from freshness.database.vitess import VitessShard, read_with_token, readable
from freshness.errors import ConfigError, FormatError, FreshnessError, SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import find_rings
from freshness.nodes.open import open_node
from freshness.objects.nodepolicy import placements_of
from freshness.objects.registry import ObjectDefinition
from freshness.position.token import EventToken
from freshness.stream.heartbeat import parse_token, token_sql
from freshness.values.codec import decode_value

SAMPLE_MAX: Final = 1024
"""Maximum number of a node's stripes that its status looks at."""

SHARING_MAX: Final = 0.05
"""More stripes are advised if a larger share of fills is refused for a neighbour's sake."""

LAGGING_MIN: Final = 0.95
"""The server is the problem if the share is larger than this."""

STRIPES_PER_CHANGE: Final = 50
"""Advised stripes for each key that changes while a replica lags: 2 % of the fills are refused then."""


def read_status(config: Config) -> dict[str, Any]:
    """``nodes``: see `read_nodes`. ``servers``: one entry for each server that applications read, with the share of
    fills that it is refused for a neighbour's sake, or with the reason why it gives no token."""
    looks = list(_look_at_nodes(config))
    samples: dict[str, list[Stripe]] = {lineage: [] for lineage in config.lineages}
    for entry, sample in looks:
        samples[entry["lineage"]] += sample
    servers = [
        {"server": f"{server.host}:{server.port}", "lineage": shard.lineage} | found
        for keyspace in config.keyspaces.values()
        for shard in keyspace.serving_shards
        for server in _servers_read(shard)
        if (found := _measure_sharing(keyspace, shard, server, samples[shard.lineage], config.cache.stripes))
    ]
    ring, *previous = (f"{each.ring_version:08x}" for each in placements_of(config.cache))
    return {
        "namespace": config.cache.namespace,
        "ring": ring,
        "previous_ring": "".join(previous),
        "nodes": [entry for entry, _ in looks],
        "servers": servers,
    }


def read_nodes(config: Config) -> list[dict[str, Any]]:
    """One entry per node and lineage, ready for JSON. A node that does not answer says so and hides no other."""
    return [entry for entry, _ in _look_at_nodes(config)]


def _look_at_nodes(config: Config) -> Iterator[tuple[dict[str, Any], list[Stripe]]]:
    """The entries of `read_nodes`, each with the sample of its stripes."""
    for name in config.cache.all_nodes:
        for lineage in config.lineages:
            sample: list[Stripe] = []
            try:
                with closing(open_node(config.cache.access, name)) as node:
                    state, sample = _look_at_node(config, node, lineage)
            except FreshnessError as error:
                state = {"state": "unavailable", "error": str(error)}
            yield {"node": name, "lineage": lineage} | state, sample


def _look_at_node(config: Config, node: CacheNode, lineage: str) -> tuple[dict[str, Any], list[Stripe]]:
    namespace = config.cache.namespace
    keys = record_key(namespace, lineage), resume_key(namespace, lineage)
    reply, resume = node.perform([Get(key, is_bound=True) for key in keys])
    record = find_record(reply, node.name)
    if record is None or not isinstance(reply, Item):
        copy = find_record(resume, node.name)
        state = "unknown" if copy is None else "lapsed"
        return {"state": state, "progress": "" if copy is None else str(copy.progress)}, []
    numbers = range(0, record.stripes, math.ceil(record.stripes / SAMPLE_MAX) or 1)
    held = node.perform([Get(stripe_key(namespace, lineage, number)) for number in numbers])
    sample = [
        stripe
        for each in held
        if isinstance(each, Item) and (stripe := find_stripe(each.value, record.life)) is not None
    ]
    refusal = _find_refusal(config, record)
    previous = record.rings - {record.ring}
    told = node.perform([Get(previous_reader_key(namespace, lineage, ring)) for ring in previous])
    problem = ""
    if record.topology > config.topology:
        problem = f"of topology {record.topology}: an invalidator with this file, of {config.topology}, is not let in"
    return {
        "state": "open" if refusal is None else refusal.name.lower(),
        "topology": record.topology,
        "rings": {f"{ring:08x}": str(record.starts.get(ring, "")) for ring in sorted(record.rings)},
        "previous_readers": [each.value.decode(errors="replace") for each in told if isinstance(each, Item)],
        "problem": problem,
        "primary": record.primary,
        "life": record.life.hex(),
        "epoch": record.epoch,
        "lease_seconds_left": reply.ttl_seconds,
        "heartbeat_age_seconds": round(_now_us() / 1e6 - record.as_of_us / 1e6, 3) if record.as_of_us else None,
        "as_of": datetime.fromtimestamp(record.as_of_us / 1e6, UTC).isoformat(),
        "progress": str(record.progress),
        "floor": str(record.floor),
        "table_floors": {table: str(position) for table, position in record.table_floors.items()},
        "objects": sorted(record.objects),
        "stripes": record.stripes,
        "stripes_there_percent": round(100 * len(sample) / max(1, len(numbers)), 1),
    }, sample


def _now_us() -> int:
    return time.time_ns() // 1000


def _find_refusal(config: Config, record: NodeRecord | None) -> ReadOutcome | None:
    """Why a client on this machine would serve nothing from the node: by the present ring, or by the previous one if
    the present one lacks the node."""
    if record is None:
        return ReadOutcome.NO_RECORD
    named = [each for each in placements_of(config.cache) if record.node in each.nodes]
    refusal = find_record_refusal(record, [each.ring_version for each in named[:1]])
    if refusal is not None:
        return refusal
    age_max = config.cache.max_staleness_seconds + config.cache.clock_skew_seconds
    return ReadOutcome.CLOCK if is_outdated(record, _now_us(), age_max) else None


def _measure_sharing(
    keyspace: Keyspace, shard: Shard, server: ServerAddress, sample: Sequence[Stripe], stripes: int
) -> dict[str, Any]:
    """The share of stripes that hold a change which the server lacks: it is refused a fill of any of their keys.

    With w changed keys a second on a node and a lag of t, that is 1 - exp(-w t / stripes). So the share says what w t
    is, and how many stripes would be enough. Empty without stripes to ask for.
    """
    try:
        position = _read_token(keyspace, shard, server).position
    except FreshnessError as error:
        return {"error": str(error)}
    if not sample:
        return {}
    share = sum(not position.contains(stripe.position) for stripe in sample) / len(sample)
    return {"refused_percent": round(100 * share, 1), "advice": advise_stripes(share, stripes)}


def advise_stripes(share: float, stripes: int) -> str:
    """The remedy if a ``share`` of the fills is refused for a neighbour's sake; "" if none is needed."""
    if share <= SHARING_MAX:
        return ""
    if share > LAGGING_MIN:
        return "the server is so far behind that more stripes would not help"
    wanted = math.ceil(-stripes * math.log(1 - share) * STRIPES_PER_CHANGE)
    return f"set cache.stripes to {1 << (wanted - 1).bit_length()}"


def _servers_read(shard: Shard) -> Sequence[ServerAddress]:
    """The servers that applications read; of Vitess, the vtgate that chooses them."""
    return shard.replicas or (shard.primary,)


def _read_token(keyspace: Keyspace, shard: Shard, server: ServerAddress) -> EventToken:
    """The token that a read from that server would have now. Raises `SourceUnavailable` and `SourceUnsuitable`."""
    with connected(server if shard.vtgate is None else readable(shard), "reading the token") as connection:
        if shard.vtgate is not None:
            token = read_with_token(connection, VitessShard.of(shard), lambda _: None)[1]
        else:
            flavor = keyspace.gtid_flavor
            token = parse_token(flavor, shard.lineage, shard.name, read_rows(connection, token_sql(flavor)))
    if token is None:
        raise SourceUnsuitable(
            f"{server.host}:{server.port} gives no token", hint="no invalidator has prepared its primary yet"
        )
    return token


@dataclass(frozen=True, slots=True)
class LocatedKey:
    """One object of one key, with its node and item. ``policy``: the object as it is in the shard of the key.
    ``ring``: the present one. ``previous_node``: the node that the key moves from, or ""."""

    definition: ObjectDefinition
    policy: ObjectPolicy
    values: tuple[Any, ...]
    node: str
    item: bytes
    identity: bytes
    ring: int
    previous_node: str


def find_definition(config: Config, registry: Mapping[str, ObjectDefinition], name: str) -> ObjectDefinition:
    """The object of a name. Raises `ConfigError` if there is none."""
    try:
        return registry[name]
    except KeyError:
        known = ", ".join(sorted(config.objects))
        raise ConfigError(f"unknown object {name!r}", hint=f"{config.path} defines {known}") from None


def locate_key(config: Config, registry: dict[str, ObjectDefinition], name: str, texts: Sequence[str]) -> LocatedKey:
    """The key that the command line names; keys come as text and are read as the columns' types."""
    definition = find_definition(config, registry, name)
    columns = definition.builder.columns
    if len(texts) != len(columns):
        raise FormatError(
            f"the key of {name} got {len(texts)} values", hint=f"give {', '.join(column.name for column in columns)}"
        )
    values = tuple(_parse_value(column, text) for column, text in zip(columns, texts, strict=True))
    key = definition.builder.build(values)
    placements = placements_of(config.cache)
    node, previous = (each.node_for(key.item) for each in (placements[0], placements[-1]))
    rings = find_rings(placements, key.item, node)
    return LocatedKey(
        definition,
        replace(definition.policy_for(values), previous_rings=rings[1:]),
        definition.builder.parse(key.identity),
        node,
        key.item,
        definition.identity(key),
        placements[0].ring_version,
        previous if previous != node else "",
    )


def _parse_value(column: KeyColumn, text: str) -> str | bytes:
    if column.kind is not ColumnKind.BINARY:
        return text
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise FormatError(f"{text!r} for {column.name}", hint="give binary keys in hexadecimal") from error


def inspect(config: Config, located: LocatedKey, present: Config) -> dict[str, Any]:
    """Entry, stripes and verdict of one key, whether a fill would be stored, and whether the value is the row now of
    the primary in ``present``, which `find_present` found."""
    namespace = config.cache.namespace
    lineages = located.policy.lineages
    with closing(open_node(config.cache.access, located.node)) as node:
        gets = [Get(record_key(namespace, lineage), is_bound=True) for lineage in lineages]
        entry, *replies = node.perform([Get(located.item), *gets])
        found = {lineage: find_record(reply, node.name) for lineage, reply in zip(lineages, replies, strict=True)}
        numbers = {
            lineage: stripe_number(located.item, record.stripes)
            for lineage, record in found.items()
            if record is not None and record.stripes
        }
        keys = {lineage: stripe_key(namespace, lineage, number) for lineage, number in numbers.items()}
        held = dict(zip(keys, node.perform([Get(key) for key in keys.values()]), strict=True))
        filled, payload, error = _read_entry(node, namespace, entry)
    answer: dict[str, Any] = {
        "object": located.definition.config.name,
        "node": located.node,
        "previous_node": located.previous_node,
        "item": located.item.decode(),
        "stripes": [
            {"lineage": lineage, "number": numbers[lineage], "key": key.decode()}
            | _describe_stripe(held[lineage], found[lineage])
            for lineage, key in keys.items()
        ],
        "hits": _tell_hits(config, found.values()),
        "fills": _find_fills(config, located, found, held),
    }
    if not isinstance(entry, Item):
        return answer | {"entry": "absent"}
    if entry.value == STUB:
        return answer | {"entry": "stub", "ttl_seconds": entry.ttl_seconds}
    if filled is None:
        return answer | {"entry": "foreign", "error": str(error)}
    refusal = find_hit_refusal(located.policy, located.identity, filled, found, located.ring)
    if refusal is None and error is not None:
        refusal = ReadOutcome.PARTS
    answer |= {
        "entry": "live" if refusal is None else refusal.name.lower(),
        "ttl_seconds": entry.ttl_seconds,
        "stamps": [
            {"lineage": s.lineage, "life": s.life.hex(), "epoch": s.epoch, "position": str(s.position)}
            | {"until": "unknown" if s.until is None else str(s.until)}
            for s in filled.stamps
        ],
    }
    if error is not None:
        return answer | {"error": str(error)}
    answer["value"] = None if payload is None else decode_value(payload)
    if located.definition.config.table is not None:
        row = _read_row(present, located)
        answer |= {"primary": row, "equals_primary": digest_row(row) == digest_row(answer["value"])}
    return answer


def _read_entry(
    node: CacheNode, namespace: str, reply: Reply
) -> tuple[Filled | None, bytes | None, FormatError | None]:
    """The entry in a reply, its value, and why one of the two is not there."""
    filled = None
    try:
        filled = Filled.decode(reply.value) if isinstance(reply, Item) else None
        return filled, None if filled is None else read_value(node, namespace, filled), None
    except FormatError as error:
        return filled, None, error


def _tell_hits(config: Config, records: Iterable[NodeRecord | None]) -> str:
    """Whether a client on this machine would serve a live entry from the node, and why not."""
    refusals = (_find_refusal(config, record) for record in records)
    return next((refusal.value for refusal in refusals if refusal is not None), "served")


def _describe_stripe(reply: Reply, record: NodeRecord | None) -> dict[str, Any]:
    if not isinstance(reply, Item):
        return {"state": "absent"}
    try:
        stripe = Stripe.decode(reply.value)
    except FormatError as error:
        try:
            PendingStripe.decode(reply.value)
        except FormatError:
            return {"state": "foreign", "error": str(error)}
        return {"state": "pending"}
    is_of_life = record is not None and stripe.life == record.life
    return {
        "state": "there" if is_of_life else "of a previous life",
        "position": str(stripe.position),
        "chunks": stripe.chunk_count,
    }


def _find_fills(
    config: Config, located: LocatedKey, records: Mapping[str, NodeRecord | None], held: Mapping[str, Reply]
) -> list[dict[str, Any]]:
    """For each server that applications read: whether what it shows now would be stored, and why not."""
    keyspace = config.keyspaces[located.definition.config.keyspace]
    fills = []
    for shard in keyspace.serving_shards:
        lineage = shard.lineage
        if lineage not in located.policy.lineages:
            continue
        record, reply = records[lineage], held.get(lineage)
        stripe = None
        if record is not None and isinstance(reply, Item):
            stripe = find_stripe(reply.value, record.life)
        policy = replace(located.policy, lineages=(lineage,))
        for server in _servers_read(shard):
            try:
                token = _read_token(keyspace, shard, server)
            except FreshnessError as error:
                verdict = str(error)
            else:
                refusal = find_fill_refusal(
                    policy, located.ring, {lineage: record}, {lineage: stripe}, {lineage: token}
                )
                verdict = "stored" if refusal is None else refusal.value
            fills.append({"server": f"{server.host}:{server.port}", "lineage": lineage, "verdict": verdict})
    return fills


def _read_row(config: Config, located: LocatedKey) -> Any:
    """The row, None if there is none; all rows of a list."""
    keyspace = config.keyspaces[located.definition.config.keyspace]
    for shard in keyspace.shards:
        if shard.lineage not in located.policy.lineages:
            continue
        with closing(Primary(shard.writable, keyspace.gtid_flavor)) as primary:
            rows = primary.read_rows(located.definition, [located.values])
        if located.identity in rows:
            return rows[located.identity]
    return None
