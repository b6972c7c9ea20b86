"""Compares the entries that the cache serves with the rows of the primary.

A difference alone proves nothing: the invalidation may be on its way. It is **poisoned** when the row differed, then
the primary's head was read, and at two later looks the node had acknowledged all of that head, the entry was still
the same and live, and the row still differed (I1). A node that follows another primary has not acknowledged it. An
entry that went, changed or came to equal the row was **in flight**; an entry that is neither after all tries is
**unknown**, which is never good news.

Rows and head are those of the shard that holds the key, and of all shards if the key does not determine one. The
prober calls the steps one by one.

A repair goes by the content of the node: the condemned entry is there, and is removed by CAS, or it is gone, as was
wanted. So a repair that is done again, or twice at once, says the same, and removes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeVar

from freshness.algorithm.envelope import NodeRecord, encode_wanted, stripe_key, stripe_number, wanted_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Append, Delete, Head, Item, Request
from freshness.comparison.entry import (
    ENTRIES_PER_BATCH_MAX,
    LIVE,
    UNTRUSTED,
    NodeEntry,
    digest_bytes,
    digest_row,
    find_key_values,
    judge,
    read_items,
)
from freshness.comparison.scope import ComparisonScope
from freshness.database.primary import Primary
from freshness.errors import FreshnessError
from freshness.objects.registry import ObjectDefinition
from freshness.values.codec import decode_value

_STAYS: Final = "was written again while it was removed: run the prober again"
_NOBODY_VOUCHES: Final = "the node has no record, so the stripe is not known: see `invalidator status`"


def repair(scope: ComparisonScope, find_node: Callable[[str], CacheNode], condemned: NodeEntry) -> str:
    """Delete the entry's stripes, so that nothing older than now can be stored there, and then the entry by CAS: an
    entry that replaced it stays. Why the condemned entry is still there, "" if it is gone."""
    try:
        return _remove(scope, find_node(condemned.node), condemned)
    except FreshnessError as failure:
        return str(failure)


def _remove(scope: ComparisonScope, node: CacheNode, condemned: NodeEntry) -> str:
    item = condemned.item
    records, [held] = read_items(scope, node, [item])
    if not isinstance(held, Item) or digest_bytes(held.value) != condemned.entry_digest:
        return ""
    stripes: list[Request] = []
    wanted: list[Request] = []
    for lineage in condemned.lineages:
        record = records[lineage]
        if record is None:
            return _NOBODY_VOUCHES
        number = stripe_number(item, record.stripes)
        stripes.append(Delete(stripe_key(scope.namespace, lineage, number)))
        wanted.append(Append(wanted_key(scope.namespace, lineage), encode_wanted([number])))
    node.perform([*stripes, Delete(item, held.version), *wanted])
    _, [now] = read_items(scope, node, [item])
    is_there = isinstance(now, Item) and digest_bytes(now.value) == condemned.entry_digest
    return _STAYS if is_there else ""


RECHECK_WAIT_SECONDS: Final = 1.0
RECHECKS_TO_CONDEMN: Final = 2
SUSPECTS_MAX: Final = 10_000
"""Entries that differ and wait for their next look together."""
SHOWN_CHARACTERS_MAX: Final = 500

EQUAL: Final = "equal"
POISONED: Final = "poisoned"
IN_FLIGHT: Final = "in_flight"
UNKNOWN: Final = "unknown"
NOT_SERVED: Final = "not_served"


@dataclass(frozen=True, slots=True)
class EntryVerdict:
    """``cached`` and ``primary``: values as shown, if the entry is poisoned or undecided."""

    entry: NodeEntry
    verdict: str
    cached: str = ""
    primary: str = ""
    error: str = ""


Member = TypeVar("Member")
DatabaseRow: TypeAlias = dict[str, Any] | list[dict[str, Any]]
"""A row, or all rows of a list."""
RowsFound: TypeAlias = Mapping[bytes, Sequence[DatabaseRow]]
"""By identity. More than one: the row is in several shards, since it moves between them."""


@dataclass(slots=True)
class Suspect:
    """An entry that differed from its row. ``entry`` has no value any more: many are held, and a value can have a
    megabyte. ``cached`` and ``primary``: values as shown. ``heads``: heads of its lineages, read after its row.
    ``looks``: number of looks that speak against it."""

    entry: NodeEntry
    cached: str
    primary: str = ""
    heads: Mapping[str, Head] = field(default_factory=dict)
    looks: int = 0
    is_row_in_several: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares entries. ``find_node`` and ``find_primary`` (by lineage) give open connections,
    ``find_replicas`` those to a lineage's replicas, by name. Writes nothing."""

    scope: ComparisonScope
    find_node: Callable[[str], CacheNode]
    find_primary: Callable[[str], Primary]
    find_replicas: Callable[[str], Mapping[str, Primary]] = lambda _: {}

    def compare_once(self, entries: Sequence[NodeEntry]) -> tuple[list[EntryVerdict], list[Suspect]]:
        """Verdicts of those that are equal or not to be compared, and the others."""
        verdicts: list[EntryVerdict] = []
        suspects: list[Suspect] = []
        open_ones = []
        for entry in entries:
            if entry.state == LIVE:
                open_ones.append(entry)
            else:
                verdicts.append(EntryVerdict(entry, NOT_SERVED))
        for group in _in_groups(open_ones, _object_in_shards):
            try:
                rows = self._read_rows(group)
            except FreshnessError as error:
                verdicts += (EntryVerdict(entry, UNKNOWN, error=str(error)) for entry in group)
                continue
            for entry in group:
                if _differs(entry, rows):
                    cached = _shown(None if entry.value is None else decode_value(entry.value))
                    suspects.append(Suspect(replace(entry, value=None), cached))
                else:
                    verdicts.append(EntryVerdict(entry, EQUAL))
        return verdicts, suspects

    def read_heads(self, suspects: Sequence[Suspect]) -> tuple[list[EntryVerdict], list[Suspect]]:
        """Note the heads of the primaries in the suspects, whose rows were read before: whatever made them differ is
        in these heads. Verdicts of those whose head is not known, and the others."""
        heads: dict[str, Head] = {}
        errors: dict[str, FreshnessError] = {}
        for lineage in sorted({name for each in suspects for name in each.entry.lineages}):
            try:
                heads[lineage] = self.find_primary(lineage).read_head()
            except FreshnessError as error:
                errors[lineage] = error
        verdicts, known = [], []
        for each in suspects:
            failed = [str(errors[name]) for name in each.entry.lineages if name in errors]
            if failed:
                verdicts.append(EntryVerdict(each.entry, UNKNOWN, error=failed[0]))
            else:
                each.heads = {name: heads[name] for name in each.entry.lineages}
                known.append(each)
        return verdicts, known

    def look(self, suspects: Sequence[Suspect]) -> tuple[list[EntryVerdict], list[Suspect]]:
        """Another look at suspects with heads: verdicts of those that are decided, and the others."""
        verdicts: list[EntryVerdict] = []
        undecided: list[Suspect] = []
        for group in _in_groups(suspects, lambda each: (each.entry.node, *_object_in_shards(each.entry))):
            try:
                decided, still = self._look(group)
            except FreshnessError as error:
                verdicts += (EntryVerdict(each.entry, UNKNOWN, error=str(error)) for each in group)
            else:
                verdicts += decided
                undecided += still
        return verdicts, undecided

    def _look(self, suspects: Sequence[Suspect]) -> tuple[list[EntryVerdict], list[Suspect]]:
        """All are of one node, and of one object in the same shards."""
        rows = self._read_rows([each.entry for each in suspects])
        items = [each.entry.item for each in suspects]
        node = self.find_node(suspects[0].entry.node)
        records, replies = read_items(self.scope, node, items)
        verdicts, undecided = [], []
        for each, item, reply in zip(suspects, items, replies, strict=True):
            entry, found = each.entry, rows.get(each.entry.identity, ())
            now = judge(self.scope, node, item, reply.value, records) if isinstance(reply, Item) else None
            if now is None or _is_another(now, entry) or not _differs(entry, rows):
                verdicts.append(EntryVerdict(entry, IN_FLIGHT))
                continue
            each.is_row_in_several = len(found) > 1
            each.primary = _shown(found if len(found) > 1 else found[0] if found else None)
            if now.state == LIVE and not each.is_row_in_several and _have(records, each.heads):
                each.looks += 1
            if each.looks < RECHECKS_TO_CONDEMN:
                undecided.append(each)
            else:
                verdicts.append(_condemned(each, POISONED, self._tell_origin(entry)))
        return verdicts, undecided

    def _read_rows(self, entries: Sequence[NodeEntry]) -> RowsFound:
        """The rows of entries of one object in the same shards."""
        first = entries[0]
        primaries = [self.find_primary(lineage) for lineage in first.lineages]
        return _read_rows(primaries, self.scope.definitions[first.object], entries)

    def _tell_origin(self, entry: NodeEntry) -> str:
        """The replicas that have what the entry has: a repaired entry comes back from there."""
        definition = self.scope.definitions[entry.object]
        have = []
        for lineage in entry.lineages:
            for name, replica in self.find_replicas(lineage).items():
                try:
                    if not _differs(entry, _read_rows([replica], definition, [entry])):
                        have.append(name)
                except FreshnessError as error:
                    have.append(f"perhaps {name} ({error.message})")
        if not have:
            return ""
        return f"a replica has the old row too: {', '.join(have)}; one that stays so must be built again"


def _read_rows(primaries: Iterable[Primary], definition: ObjectDefinition, entries: Sequence[NodeEntry]) -> RowsFound:
    keys = [key for entry in entries if (key := find_key_values(definition, entry.identity)) is not None]
    found: dict[bytes, list[DatabaseRow]] = {}
    for primary in primaries:
        for identity, row in primary.read_rows(definition, keys).items():
            found.setdefault(identity, []).append(row)
    return found


def _differs(entry: NodeEntry, rows: RowsFound) -> bool:
    """True also for a row that is there twice: either could be right."""
    found = rows.get(entry.identity, ())
    return len(found) > 1 or entry.value_digest != digest_row(found[0] if found else None)


def _is_another(now: NodeEntry, entry: NodeEntry) -> bool:
    """The entry was replaced, or is a hit no longer. An untrusted node says nothing of that."""
    return now.entry_digest != entry.entry_digest or now.state not in (LIVE, UNTRUSTED)


def _have(records: Mapping[str, NodeRecord | None], heads: Mapping[str, Head]) -> bool:
    """True if the node has acknowledged all of these heads, of the primaries that it follows."""
    found = [(records.get(lineage), head) for lineage, head in heads.items()]
    return all(
        record is not None and record.primary == head.primary and record.progress.contains(head.position)
        for record, head in found
    )


def give_up(suspect: Suspect) -> EntryVerdict:
    """The verdict on a suspect that is not decided after all looks."""
    told = ", ".join(f"{lineage}: {head.position}" for lineage, head in suspect.heads.items())
    why = f"the node has not acknowledged the primary's head ({told}), follows another primary, or is not open"
    if suspect.is_row_in_several:
        why = f"the row is in several of the shards {', '.join(suspect.heads)}: does it move between them just now?"
    return _condemned(suspect, UNKNOWN, why)


def _condemned(suspect: Suspect, verdict: str, why: str) -> EntryVerdict:
    return EntryVerdict(suspect.entry, verdict, suspect.cached, suspect.primary, why)


def _shown(value: object) -> str:
    text = "no such row" if value is None else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


def _object_in_shards(entry: NodeEntry) -> tuple[str, tuple[str, ...]]:
    return entry.object, tuple(entry.lineages)


def _in_groups(members: Iterable[Member], key: Callable[[Member], Any]) -> Iterator[list[Member]]:
    """Groups with the same key, none larger than one query asks for."""
    for _, group in groupby(sorted(members, key=key), key=key):
        held = list(group)
        for at in range(0, len(held), ENTRIES_PER_BATCH_MAX):
            yield held[at : at + ENTRIES_PER_BATCH_MAX]
