"""Compares the entries that the cache serves with the rows of the primary. Runs on executors.

A difference alone proves nothing: the invalidation may be on its way. It is **poisoned** when the row differed, then
the primary's head was read, and at two later looks the node had acknowledged all of that head, the entry was still
the same and live, and the row still differed (I1). An entry that went, changed or came to equal the row was **in
flight**; an entry that is neither after all tries is **unknown**, which is never good news.

Rows and head are those of the shard that holds the key, and of all shards if the key does not determine one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from freshness.algorithm.envelope import NodeRecord
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Item
from freshness.errors import FreshnessError
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.values.codec import decode_value
from spark.live.entry import (
    ENTRIES_PER_BATCH_MAX,
    LIVE,
    UNAVAILABLE,
    UNTRUSTED,
    NodeEntry,
    digest_value,
    find_key_values,
    judge,
    read_items,
)
from spark.scope import AuditScope

RECHECK_WAIT_SECONDS: Final = 1.0
RECHECKS_MAX: Final = 6
RECHECKS_TO_CONDEMN: Final = 2
SUSPECTS_MAX: Final = 10_000
"""Entries that differ and wait for their next look together."""
SHOWN_CHARACTERS_MAX: Final = 500

EQUAL: Final = "equal"
POISONED: Final = "poisoned"
IN_FLIGHT: Final = "in_flight"
UNKNOWN: Final = "unknown"
NOT_COMPARABLE: Final = "not_comparable"
NOT_SERVED: Final = "not_served"


@dataclass(frozen=True, slots=True)
class EntryVerdict:
    """A row of `spark.schema.VERDICT`. ``lineages`` and ``entry_digest`` are those of the entry, where it is poisoned
    or unknown. ``count``: of entries that the row stands for (see `spark.live.report.condense`)."""

    node: str
    item: bytes | None
    object: str
    state: str
    verdict: str
    positions: str = ""
    cached: str = ""
    primary: str = ""
    error: str = ""
    lineages: Sequence[str] = ()
    entry_digest: str = ""
    count: int = 1


Member = TypeVar("Member")
DatabaseRow: TypeAlias = dict[str, Any] | list[dict[str, Any]]
"""A row, or all rows of a list."""
RowsFound: TypeAlias = Mapping[bytes, Sequence[DatabaseRow]]
"""By identity. More than one: the row is in several shards, since it moves between them."""


class PrimaryReader(Protocol):
    """The reads that a comparison needs of a primary; see `freshness.database.primary.Primary`."""

    def read_rows(
        self, definition: ObjectDefinition, keys: Sequence[tuple[Any, ...]]
    ) -> Mapping[bytes, DatabaseRow]: ...

    def read_position(self) -> Position: ...


@dataclass(slots=True)
class Suspect:
    """An entry that differed from its row. ``entry`` has no value any more: many are held, and a value can have a
    megabyte. ``cached`` and ``primary``: as they are shown. ``looks``: those that speak against it."""

    entry: NodeEntry
    cached: str
    primary: str = ""
    looks: int = 0
    is_row_in_several: bool = False


class Comparison:
    """Compares the entries of a partition. ``find_node`` and ``find_primary`` (by lineage) give open connections,
    ``find_replicas`` those to a lineage's replicas, by name. Writes nothing."""

    def __init__(
        self,
        scope: AuditScope,
        find_node: Callable[[str], CacheNode],
        find_primary: Callable[[str], PrimaryReader],
        sleep: Callable[[float], None] = time.sleep,
        *,
        find_replicas: Callable[[str], Mapping[str, PrimaryReader]] = lambda _: {},
    ) -> None:
        self._scope = scope
        self._find_node = find_node
        self._find_primary = find_primary
        self._find_replicas = find_replicas
        self._sleep = sleep

    def compare(self, batches: Iterable[Sequence[NodeEntry]]) -> Iterator[EntryVerdict]:
        """One verdict for each entry, in any order. A database or node that fails makes its entries unknown.

        Entries that differ wait for each other, so a partition waits as one, whatever its number of batches.
        """
        suspects: list[Suspect] = []
        for entries in batches:
            yield from self._compare_once(entries, suspects)
            if len(suspects) >= SUSPECTS_MAX:
                yield from self._look_again(suspects)
                suspects = []
        yield from self._look_again(suspects)

    def _compare_once(self, entries: Sequence[NodeEntry], suspects: list[Suspect]) -> Iterator[EntryVerdict]:
        """Verdicts of those that are equal or not to be compared; the others become suspects."""
        open_ones = []
        for entry in entries:
            early = _find_early_verdict(self._scope, entry)
            if early:
                yield _verdict(entry, early)
            else:
                open_ones.append(entry)
        for group in _in_groups(open_ones, _object_in_shards):
            try:
                rows = self._read_rows(group)
            except FreshnessError as error:
                yield from (_verdict(entry, UNKNOWN, error=str(error)) for entry in group)
                continue
            for entry in group:
                if _differs(entry, rows):
                    cached = _shown(None if entry.value is None else decode_value(entry.value))
                    suspects.append(Suspect(replace(entry, value=None), cached))
                else:
                    yield _verdict(entry, EQUAL)

    def _look_again(self, suspects: Sequence[Suspect]) -> Iterator[EntryVerdict]:
        # After the rows: whatever made them differ is in these heads.
        heads = self._read_heads(suspects)
        left = suspects
        for _ in range(RECHECKS_MAX if suspects else 0):
            self._sleep(RECHECK_WAIT_SECONDS)
            undecided: list[Suspect] = []
            for group in _in_groups(left, lambda each: (each.entry.node, *_object_in_shards(each.entry))):
                try:
                    verdicts, still = self._look(group, heads)
                except FreshnessError as error:
                    yield from (_verdict(each.entry, UNKNOWN, error=str(error)) for each in group)
                else:
                    yield from verdicts
                    undecided += still
            left = undecided
            if not left:
                return
        yield from (_condemned(each, UNKNOWN, _why_unknown(each, heads)) for each in left)

    def _read_heads(self, suspects: Iterable[Suspect]) -> dict[str, Position | FreshnessError]:
        """By lineage: the head of its primary, or why it is not known."""
        heads: dict[str, Position | FreshnessError] = {}
        for lineage in sorted({name for each in suspects for name in each.entry.lineages}):
            try:
                heads[lineage] = self._find_primary(lineage).read_position()
            except FreshnessError as error:
                heads[lineage] = error
        return heads

    def _look(
        self, suspects: Sequence[Suspect], heads: Mapping[str, Position | FreshnessError]
    ) -> tuple[list[EntryVerdict], list[Suspect]]:
        """Verdicts of those that are decided, and the others. All are of one node, and of one object in the same
        shards."""
        first = suspects[0].entry
        found_heads = _require_known(heads, first.lineages)
        rows = self._read_rows([each.entry for each in suspects])
        items = [_item(each.entry) for each in suspects]
        node = self._find_node(first.node)
        records, replies = read_items(self._scope, node, items)
        has_acknowledged = _have(records, found_heads)
        verdicts, undecided = [], []
        for each, item, reply in zip(suspects, items, replies, strict=True):
            entry, found = each.entry, rows.get(each.entry.identity, ())
            now = judge(self._scope, node, item, reply.value, records) if isinstance(reply, Item) else None
            if now is None or _is_another(now, entry) or not _differs(entry, rows):
                verdicts.append(_verdict(entry, IN_FLIGHT))
                continue
            each.is_row_in_several = len(found) > 1
            each.primary = _shown(found if len(found) > 1 else found[0] if found else None)
            if now.state == LIVE and not each.is_row_in_several and has_acknowledged:
                each.looks += 1
            if each.looks < RECHECKS_TO_CONDEMN:
                undecided.append(each)
            else:
                verdicts.append(_condemned(each, POISONED, self._tell_origin(entry)))
        return verdicts, undecided

    def _read_rows(self, entries: Sequence[NodeEntry]) -> RowsFound:
        """The rows of entries of one object in the same shards."""
        first = entries[0]
        primaries = [self._find_primary(lineage) for lineage in first.lineages]
        return _read_rows(primaries, self._scope.definitions[first.object], entries)

    def _tell_origin(self, entry: NodeEntry) -> str:
        """The replicas that have what the entry has: a repaired entry comes back from there."""
        definition = self._scope.definitions[entry.object]
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


def _is_another(now: NodeEntry, entry: NodeEntry) -> bool:
    """The entry was replaced, or is a hit no longer. An untrusted node says nothing of that."""
    return now.entry_digest != entry.entry_digest or now.state not in (LIVE, UNTRUSTED)


def _require_known(
    heads: Mapping[str, Position | FreshnessError], lineages: Iterable[str]
) -> dict[str, Position]:
    """Raises the error of a head that is not known."""
    known = {}
    for lineage in lineages:
        head = heads[lineage]
        if isinstance(head, FreshnessError):
            raise head
        known[lineage] = head
    return known


def _have(records: Mapping[str, NodeRecord | None], heads: Mapping[str, Position]) -> bool:
    """True if the node has acknowledged all of these heads."""
    found = {lineage: records.get(lineage) for lineage in heads}
    return all(record is not None and record.progress.contains(heads[name]) for name, record in found.items())


def _why_unknown(suspect: Suspect, heads: Mapping[str, Position | FreshnessError]) -> str:
    of_entry = {lineage: heads[lineage] for lineage in suspect.entry.lineages}
    if suspect.is_row_in_several:
        return (
            f"the row is in several of the shards {', '.join(of_entry)}: does it move between them just now?"
        )
    told = ", ".join(f"{lineage}: {head}" for lineage, head in of_entry.items())
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


def _condemned(suspect: Suspect, verdict: str, why: str) -> EntryVerdict:
    entry = suspect.entry
    return replace(
        _verdict(entry, verdict),
        cached=suspect.cached,
        primary=suspect.primary,
        error=why,
        lineages=entry.lineages,
        entry_digest=entry.entry_digest,
    )


def _shown(value: object) -> str:
    text = "no such row" if value is None else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


def _item(entry: NodeEntry) -> bytes:
    assert entry.item is not None, "an entry to compare has a key"
    return entry.item


def _object_in_shards(entry: NodeEntry) -> tuple[str, tuple[str, ...]]:
    return entry.object, tuple(entry.lineages)


def _in_groups(members: Iterable[Member], key: Callable[[Member], Any]) -> Iterator[list[Member]]:
    """Groups with the same key, none larger than one query asks for."""
    for _, group in groupby(sorted(members, key=key), key=key):
        held = list(group)
        for at in range(0, len(held), ENTRIES_PER_BATCH_MAX):
            yield held[at : at + ENTRIES_PER_BATCH_MAX]
