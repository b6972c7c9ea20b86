"""Compares the entries that the cache serves with the rows of the primary. Runs on executors.

A difference alone proves nothing: the invalidation may be on its way. It is **poisoned** when the row differed, then
the primary's head was read, and at two later looks the node had acknowledged all of that head, the entry was still
the same and live, and the row still differed (I1). An entry that went, changed or came to equal the row was **in
flight**; an entry that is neither after all tries is **unknown**, which is never good news.

Rows and head are those of the shard that holds the key, and of all shards if the key does not determine one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Protocol, TypeAlias

from freshness.algorithm.envelope import NodeRecord, encode_wanted, stripe_key, stripe_number, wanted_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import DONE, Append, Delete, Item, Request
from freshness.errors import FreshnessError
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.values.codec import decode_value
from spark.live.entry import (
    LIVE,
    UNAVAILABLE,
    UNTRUSTED,
    NodeEntry,
    digest_bytes,
    digest_value,
    find_key_values,
    judge,
    read_items,
)
from spark.scope import AuditScope

RECHECK_WAIT_SECONDS: Final = 1.0
RECHECKS_MAX: Final = 6
RECHECKS_TO_CONDEMN: Final = 2
SHOWN_CHARACTERS_MAX: Final = 500

EQUAL: Final = "equal"
POISONED: Final = "poisoned"
IN_FLIGHT: Final = "in_flight"
UNKNOWN: Final = "unknown"
NOT_COMPARABLE: Final = "not_comparable"
NOT_SERVED: Final = "not_served"


@dataclass(frozen=True, slots=True)
class EntryVerdict:
    """A row of `spark.schema.VERDICT`."""

    node: str
    item: bytes | None
    object: str
    state: str
    verdict: str
    positions: str = ""
    cached: str = ""
    primary: str = ""
    error: str = ""
    repaired: bool = False


DatabaseRow: TypeAlias = dict[str, Any]
RowsFound: TypeAlias = Mapping[bytes, Sequence[DatabaseRow]]
"""By identity. More than one: the row is in several shards, since it moves between them."""


class PrimaryReader(Protocol):
    """The reads that a comparison needs of a primary; see `freshness.database.primary.Primary`."""

    def read_rows(
        self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]
    ) -> dict[bytes, DatabaseRow]: ...

    def read_position(self) -> Position: ...


class Comparison:
    """Compares batches of entries. ``find_node`` and ``find_primary`` (by lineage) give open connections,
    ``find_replicas`` those to a lineage's replicas, by name. ``repairs``: whether poisoned entries are removed."""

    def __init__(
        self,
        scope: AuditScope,
        find_node: Callable[[str], CacheNode],
        find_primary: Callable[[str], PrimaryReader],
        sleep: Callable[[float], None] = time.sleep,
        *,
        find_replicas: Callable[[str], Mapping[str, PrimaryReader]] = lambda _: {},
        repairs: bool = False,
    ) -> None:
        self._scope = scope
        self._find_node = find_node
        self._find_primary = find_primary
        self._find_replicas = find_replicas
        self._sleep = sleep
        self._repairs = repairs

    def compare(self, entries: Sequence[NodeEntry]) -> list[EntryVerdict]:
        """One verdict for each entry, in any order. A database or node that fails makes its entries unknown."""
        verdicts = [_verdict(entry, _find_early_verdict(self._scope, entry)) for entry in entries]
        open_ones = [entry for entry in entries if not _find_early_verdict(self._scope, entry)]
        verdicts = [verdict for verdict in verdicts if verdict.verdict]
        for (name, lineages), group in groupby(
            sorted(open_ones, key=_object_in_shards), key=_object_in_shards
        ):
            of_object = list(group)
            try:
                verdicts += self._compare_rows(self._scope.definitions[name], lineages, of_object)
            except FreshnessError as error:
                verdicts += [_verdict(entry, UNKNOWN, error=str(error)) for entry in of_object]
        return verdicts

    def _compare_rows(
        self, definition: ObjectDefinition, lineages: Sequence[str], entries: Sequence[NodeEntry]
    ) -> list[EntryVerdict]:
        primaries = {lineage: self._find_primary(lineage) for lineage in lineages}
        rows = _read_rows(primaries.values(), definition, entries)
        differing = [entry for entry in entries if _differs(entry, rows)]
        equal = [_verdict(entry, EQUAL) for entry in entries if not _differs(entry, rows)]
        if not differing:
            return equal
        # After the rows: whatever made them differ is in these heads.
        heads = {lineage: primary.read_position() for lineage, primary in primaries.items()}
        return equal + self._look_again(primaries.values(), definition, differing, heads)

    def _look_again(
        self,
        primaries: Iterable[PrimaryReader],
        definition: ObjectDefinition,
        entries: Sequence[NodeEntry],
        heads: Mapping[str, Position],
    ) -> list[EntryVerdict]:
        verdicts: list[EntryVerdict] = []
        looks = dict.fromkeys((_place(entry) for entry in entries), 0)
        left: list[NodeEntry] = list(entries)
        rows: RowsFound = {}
        for _ in range(RECHECKS_MAX):
            self._sleep(RECHECK_WAIT_SECONDS)
            rows = _read_rows(primaries, definition, left)
            undecided: list[NodeEntry] = []
            for entry, (now, records) in zip(left, self._read_again(left), strict=True):
                if _is_another(now, entry) or not _differs(entry, rows):
                    verdicts.append(_verdict(entry, IN_FLIGHT))
                    continue
                is_sure = now is not None and now.state == LIVE and len(rows.get(entry.identity, ())) <= 1
                if is_sure and _have(records, heads):
                    looks[_place(entry)] += 1
                if looks[_place(entry)] < RECHECKS_TO_CONDEMN:
                    undecided.append(entry)
                else:
                    why = self._tell_origin(definition, entry)
                    is_removed = self._repairs and self._remove(entry)
                    verdicts.append(replace(_condemned(entry, POISONED, rows, why), repaired=is_removed))
            left = undecided
            if not left:
                break
        return verdicts + [
            _condemned(entry, UNKNOWN, rows, _why_unknown(entry, rows, heads)) for entry in left
        ]

    def _tell_origin(self, definition: ObjectDefinition, entry: NodeEntry) -> str:
        """The replicas that have what the entry has: a repaired entry comes back from there."""
        have = []
        for lineage in entry.lineages:
            for name, replica in self._find_replicas(lineage).items():
                try:
                    if not _differs(entry, _read_rows([replica], definition, [entry])):
                        have.append(name)
                except FreshnessError as error:
                    have.append(f"perhaps {name} ({error.message})")
        if not have:
            return ""
        return f"a replica has the old row too: {', '.join(have)}; one that stays so must be built again"

    def _remove(self, entry: NodeEntry) -> bool:
        """Delete the entry's stripes, so that nothing older than now can be stored there, and then the entry by CAS:
        what took its place meanwhile, or was written again, stays. False: it was not there, or nobody vouches for
        the node any more."""
        name, item = _place(entry)
        node = self._find_node(name)
        records, [held] = read_items(self._scope, node, [item])
        if not isinstance(held, Item) or digest_bytes(held.value) != entry.entry_digest:
            return False
        stripes: list[Request] = []
        wanted: list[Request] = []
        for lineage in entry.lineages:
            record = records[lineage]
            if record is None:
                return False
            number = stripe_number(item, record.stripes)
            stripes.append(Delete(stripe_key(self._scope.namespace, lineage, number)))
            wanted.append(Append(wanted_key(self._scope.namespace, lineage), encode_wanted([number])))
        replies = node.perform([*stripes, Delete(item, held.version), *wanted])
        return replies[len(stripes)] is DONE

    def _read_again(
        self, entries: Sequence[NodeEntry]
    ) -> list[tuple[NodeEntry | None, Mapping[str, NodeRecord | None]]]:
        """The entries under the keys now, None for an absent one, and the records of their node, read before them."""
        answers: dict[tuple[str, bytes], tuple[NodeEntry | None, Mapping[str, NodeRecord | None]]] = {}
        for name, group in groupby(sorted(entries, key=_node), key=_node):
            items = [_place(entry)[1] for entry in group]
            records, replies = read_items(self._scope, self._find_node(name), items)
            for item, reply in zip(items, replies, strict=True):
                now = (
                    judge(self._scope, name, item, reply.value, records) if isinstance(reply, Item) else None
                )
                answers[name, item] = now, records
        return [answers[_place(entry)] for entry in entries]


def _find_early_verdict(scope: AuditScope, entry: NodeEntry) -> str:
    """The verdict that needs no database, "" for an entry that is to be compared."""
    if entry.state in (UNAVAILABLE, UNTRUSTED):
        return UNKNOWN
    if entry.state != LIVE:
        return NOT_SERVED
    return NOT_COMPARABLE if scope.definitions[entry.object].config.is_composite else ""


def _read_rows(
    primaries: Iterable[PrimaryReader], definition: ObjectDefinition, entries: Sequence[NodeEntry]
) -> RowsFound:
    keys = [key for entry in entries if (key := find_key_values(definition, entry.identity)) is not None]
    found: dict[bytes, list[DatabaseRow]] = {}
    for primary in primaries:
        for identity, row in primary.read_rows(definition, keys).items():
            found.setdefault(identity, []).append(row)
    return found


def _differs(entry: NodeEntry, rows: RowsFound) -> bool:
    """Also where the row is there twice: which of them is right cannot be told."""
    found = rows.get(entry.identity, ())
    return len(found) > 1 or entry.value_digest != (digest_value(found[0]) if found else "")


def _is_another(now: NodeEntry | None, entry: NodeEntry) -> bool:
    """The entry went, or was replaced, or is a hit no longer. An untrusted node says nothing of that."""
    return now is None or now.entry_digest != entry.entry_digest or now.state not in (LIVE, UNTRUSTED)


def _have(records: Mapping[str, NodeRecord | None], heads: Mapping[str, Position]) -> bool:
    """True if the node has acknowledged all of these heads."""
    found = {lineage: records.get(lineage) for lineage in heads}
    return all(record is not None and record.progress.contains(heads[name]) for name, record in found.items())


def _why_unknown(entry: NodeEntry, rows: RowsFound, heads: Mapping[str, Position]) -> str:
    if len(rows.get(entry.identity, ())) > 1:
        return f"the row is in several of the shards {', '.join(heads)}: does it move between them just now?"
    told = ", ".join(f"{lineage}: {head}" for lineage, head in heads.items())
    return f"the node did not acknowledge the primary's head ({told}) in {RECHECKS_MAX} looks"


def _verdict(entry: NodeEntry, verdict: str, *, error: str = "") -> EntryVerdict:
    return EntryVerdict(
        entry.node,
        entry.item,
        entry.object,
        entry.state,
        verdict,
        entry.positions,
        error=error or entry.error,
    )


def _condemned(entry: NodeEntry, verdict: str, rows: RowsFound, why: str = "") -> EntryVerdict:
    found = rows.get(entry.identity, ())
    return EntryVerdict(
        entry.node,
        entry.item,
        entry.object,
        entry.state,
        verdict,
        entry.positions,
        _shown(None if entry.value is None else decode_value(entry.value)),
        _shown(found if len(found) > 1 else found[0] if found else None),
        why,
    )


def _shown(value: object) -> str:
    text = "no such row" if value is None else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


def _place(entry: NodeEntry) -> tuple[str, bytes]:
    assert entry.item is not None, "an entry to compare has a key"
    return entry.node, entry.item


def _node(entry: NodeEntry) -> str:
    return entry.node


def _object_in_shards(entry: NodeEntry) -> tuple[str, tuple[str, ...]]:
    return entry.object, tuple(entry.lineages)
