"""Puts names and records to what the replay found, and finds what is missing in the evidence itself.

The replay speaks in hashes and references; here they become items, nodes, clients and the very records of the
history. The joins are done for findings alone, so a clean audit pays nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy
import pyarrow

from freshness.errors import FormatError
from spark.audit.engine.step import Engine, ScanPart, Told
from spark.audit.input.actions import Stock
from spark.audit.input.archive import Archive, Damage
from spark.audit.input.checksum import PRIME, has_each_once
from spark.audit.input.published import Hole
from spark.audit.input.recording import RecordedFiles, RowPart
from spark.audit.model import verdict
from spark.audit.model.finding import NO_ROW, Evidence, Finding, Reference
from spark.audit.model.hashing import hash_items, hash_name, hash_names
from spark.audit.model.row import NO_NUMBER
from spark.audit.model.schema import VIOLATION, to_table
from spark.audit.model.timeline import NEVER, NOTHING, Lineage, find_holes

HOLES_MAX: Final = 10_000
"""Numbers left out in one archive that are looked for in the positions of the history."""


class Who(NamedTuple):
    """Whom and what hits are counted by."""

    client: str
    object: str
    tables: tuple[str, ...]
    node: str
    lineages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """By their hashes: clients, nodes and lineages (``names``), and what a `who` stands for."""

    names: Mapping[int, str]
    whos: Mapping[int, Who]
    clients: Mapping[int, int]

    @classmethod
    def of(cls, archive: Archive, stock: Iterable[Stock], previous: Names | None) -> Names:
        """``previous``: names of the audit that this one continues."""
        before = previous or cls({}, {}, {})
        names, whos, clients = dict(before.names), dict(before.whos), dict(before.clients)
        names.update((number, lineage.name) for number, lineage in archive.lineages.items())
        for each in stock:
            client = hash_name(each.client)
            names[client], names[hash_name(each.node)] = each.client, each.node
            whos[each.who] = Who(each.client, each.object, each.tables, each.node, each.lineages)
            clients[each.who] = client
        return cls(names, whos, clients)

    def client_of(self, who: int) -> int:
        return self.clients.get(who, 0)


class Recorded(NamedTuple):
    """``lost_until_us``: by lineage, until when actions are missing; `NEVER` if their time is not known.
    ``sequences``: by client, the last number seen."""

    damages: list[Damage]
    lost_until_us: dict[int, int]
    sequences: dict[str, int]


def find_recorder_gaps(
    stock: Iterable[Stock], lineages: Mapping[str, Lineage], before: Mapping[str, int], unfinished: Iterable[str] = ()
) -> Recorded:
    """Clients whose sequences have gaps, or that recorded that they dropped actions. ``before``: the last sequence
    number of each client that a previous audit saw. ``unfinished``: names of files that cannot be read: each
    has the last actions of a client. A client that is new and does not begin with 1 has earlier actions that nobody
    reads: deleting old files is not damage, but other actions may rest on them."""
    sequences = dict(before)
    by_client: dict[str, list[Stock]] = {}
    for each in stock:
        by_client.setdefault(each.client, []).append(each)
    everyone = {lineage.number for lineage in lineages.values()}
    damages: list[Damage] = []
    lost: set[int] = set()
    begins_us: list[int] = []
    for client, its in sorted(by_client.items()):
        first = sequences.get(client, min(each.first for each in its) - 1) + 1
        last = max(each.last for each in its)
        count = sum(each.actions for each in its)
        missing = last - first + 1 - count
        total, squares = (
            sum(sums) % PRIME for sums in zip(*((each.total, each.squares) for each in its), strict=True)
        )
        is_whole = has_each_once(first, last, count, total, squares)
        dropped = sum(each.lost for each in its)
        if client not in sequences and first > 1:
            begins_us.append(min(each.end_us for each in its))
        sequences[client] = max(last, sequences.get(client, 0))
        if is_whole and not dropped:
            continue
        mine = {lineages[name].number for each in its for name in each.lineages if name in lineages}
        lost |= mine or everyone
        evidence: Evidence = (
            Reference("action", hash_name(client), first),
            Reference("action", hash_name(client), last),
        )
        begin_us = min(each.begin_us for each in its)
        told = f"{max(missing, dropped) if missing >= 0 else -missing}"
        if not missing and not is_whole:
            told = "some, with as many others twice,"
        source = f"{client}: {told} of {last - first + 1}"
        damages.append(Damage(verdict.RECORDER_GAP, "I8", client, 0, source, first, last, begin_us, evidence))
    for name in unfinished:
        lost |= everyone
        damages.append(Damage(verdict.RECORDER_GAP, "I8", "", 0, name, 0, 0, NOTHING, ()))
    lost_until_us = dict.fromkeys(everyone, max(begins_us)) if begins_us else {}
    return Recorded(damages, lost_until_us | dict.fromkeys(lost, NEVER), sequences)


def find_archive_holes(archive: Archive, told: frozenset[tuple[int, str, int]]) -> list[Hole]:
    """Numbers that the archive leaves out, without those that were ``told`` before. Raises `FormatError` for more
    than `HOLES_MAX`."""
    holes = [
        Hole(number, lineage.flavor, lineage.name, source, first, last, ordinal)
        for number, lineage in archive.lineages.items()
        for source, first, last, ordinal in find_holes(
            [run for chains in lineage.chains.values() for chain in chains for run in chain.runs]
        )
        if (number, source, first) not in told
    ]
    if len(holes) > HOLES_MAX:
        raise FormatError(
            f"the archive leaves out the numbers of transactions in more than {HOLES_MAX:,} places",
            hint="audit a shorter span",
        )
    return holes


def find_gtid_gaps(holes: Sequence[Hole], held: Mapping[int, tuple[int, int, int]]) -> list[Damage]:
    """Holes of which some server had executed a number: nothing was invalidated for those changes. Numbers that no
    position names were never executed (Group Replication hands out blocks). ``held``: by hole, when a position that
    holds a number of it was first recorded, by which client, in which action."""
    damages = []
    for at, (begin_us, client, sequence) in sorted(held.items()):
        hole = holes[at]
        evidence = (Reference("change", hole.number, hole.ordinal, 0), Reference("action", client, sequence))
        place = hole.lineage, hole.number, hole.source, hole.first, hole.last
        damages.append(Damage(verdict.GTID_GAP, "F27", *place, begin_us, evidence))
    return damages


Key = tuple[int, int, int]
"""Source, sequence and row of a reference."""


class HistoryRecord(NamedTuple):
    """A record of the history, as JSON, and the items that it names."""

    items: tuple[bytes, ...]
    text: str


def name_violations(
    findings: Iterable[Finding],
    damages: Iterable[Damage],
    names: Names,
    records: Mapping[Key, HistoryRecord],
    items: Mapping[tuple[int, int], bytes],
) -> pyarrow.Table:
    """Findings and damages as `VIOLATION`, with the records that show them. ``items``: items that an earlier audit
    left open, whose records may be in its history only."""
    rows = [_name_finding(each, names, records, items) for each in findings]
    rows += [_name_damage(each, names, records) for each in damages]
    rows.sort(key=lambda row: (row[0], row[1], row[2] or b"", row[9] or 0, row[7] or 0, row[12]))
    return to_table(rows, VIOLATION)


def _name_finding(
    it: Finding, names: Names, records: Mapping[Key, HistoryRecord], items: Mapping[tuple[int, int], bytes]
) -> tuple[Any, ...]:
    who = names.whos.get(it.who)
    return (
        it.kind,
        it.failure,
        _find_item(it, records) or items.get((it.h1, it.h2)),
        None if who is None else who.object,
        names.names.get(it.node),
        names.names.get(it.lineage),
        sorted(names.names.get(client, str(client)) for client in it.clients),
        None if it.version == NO_NUMBER else it.version,
        it.count,
        _time(it.first_us),
        _time(it.last_us),
        it.longest_us,
        _tell_evidence(it.evidence, names, records),
    )


def _name_damage(it: Damage, names: Names, records: Mapping[Key, HistoryRecord]) -> tuple[Any, ...]:
    """Damages concern no item, and carry their first number as the version."""
    at_us, evidence = _time(it.at_us), _tell_evidence(it.evidence, names, records)
    lineage = names.names.get(it.number)
    count, subject = it.last - it.first + 1, it.source or it.lineage
    return it.kind, it.failure, None, subject, None, lineage, [], it.first, count, at_us, at_us, 0, evidence


def _time(at_us: int) -> int | None:
    return None if at_us == NOTHING else at_us


def _find_item(it: Finding, records: Mapping[Key, HistoryRecord]) -> bytes | None:
    if not it.h1:
        return None
    found = {item for each in it.evidence if (record := records.get(each[1:])) for item in record.items}
    for item in sorted(found):
        h1, h2 = hash_items(pyarrow.array([item], pyarrow.binary()))
        if (h1[0], h2[0]) == (it.h1, it.h2):
            return item
    return None


def _tell_evidence(evidence: Evidence, names: Names, records: Mapping[Key, HistoryRecord]) -> str:
    told = []
    for each in evidence:
        it = {"role": each.role, "name": names.names.get(each.source, str(each.source)), "sequence": each.sequence}
        record = records.get(each[1:])
        told.append(it if record is None else {**it, "record": record.text})
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


_ACTION_KEYS: Final = ("client", "sequence")
_ACTION_FIELDS: Final = (
    *("item", "action", "outcome", "node", "lineages", "epochs", "positions", "floors"),
    *("is_absent", "version", "observed", "begin_us", "end_us", "digest"),
)
_CHANGE_KEYS: Final = ("lineage", "ordinal", "row")
_CHANGE_FIELDS: Final = (
    *("items", "gtid", "timestamp_us", "received_us", "op", "table", "key", "before_digest"),
    "after_digest",
)
_RECORD: Final = pyarrow.schema(
    [
        *((name, pyarrow.int64()) for name in ("source", "sequence", "row")),
        ("items", pyarrow.list_(pyarrow.binary())),
        ("text", pyarrow.string()),
    ]
)


def read_records(
    engine: Engine, changes: RecordedFiles, actions: RecordedFiles, references: Iterable[Reference]
) -> dict[Key, HistoryRecord]:
    """The records that are referred to. A clean audit refers to few, and reads few columns of its history here."""
    wanted = {each[1:] for each in references}
    found: dict[Key, HistoryRecord] = {}
    for what, recording, columns, fields, keys in (
        ("actions", actions, _ACTION_KEYS, _ACTION_FIELDS, [key for key in wanted if key[2] == NO_ROW]),
        ("changes", changes, _CHANGE_KEYS, _CHANGE_FIELDS, [key for key in wanted if key[2] != NO_ROW]),
    ):
        if keys:
            step = partial(find_records, columns, fields, numpy.array(sorted(keys), numpy.int64))
            told = engine.scan(f"evidence in {what}", recording.parts, step)
            for row in told["records"].to_pylist() if "records" in told else ():
                key = row["source"], row["sequence"], row["row"]
                found.setdefault(key, HistoryRecord(tuple(row["items"]), row["text"]))
    return found


def find_records(
    names: tuple[str, ...], fields: tuple[str, ...], wanted: numpy.ndarray[Any, Any], parts: Iterable[ScanPart]
) -> Iterator[Told]:
    """A step: ``records`` (`_RECORD`). ``names``: the columns of a source, its number and, of changes, the row;
    ``fields``: the columns of a record. ``wanted``: (n, 3), keys."""
    for part in parts:
        assert isinstance(part, RowPart)
        found, base = dict[int, Key](), 0
        for batch in part.read_batches(names):
            name, number, *row = (batch.column(each) for each in names)
            sequence = number.to_numpy()
            at = numpy.flatnonzero(numpy.isin(sequence, wanted[:, 1]))
            source = hash_names(name.take(pyarrow.array(at)))
            # A transaction without rows has the row -1.
            rows = numpy.maximum(row[0].to_numpy()[at], 0) if row else numpy.full(len(at), NO_ROW)
            keys = zip(source.tolist(), sequence[at].tolist(), rows.tolist(), strict=True)
            found.update(zip((base + at).tolist(), keys, strict=True))
            base += len(sequence)
        yield from _tell(part, wanted, found, fields)


def _tell(
    part: RowPart, wanted: numpy.ndarray[Any, Any], found: Mapping[int, Key], fields: Sequence[str]
) -> Iterator[Told]:
    """The records of the part that are wanted. ``found``: keys of rows that may be."""
    keys = set(map(tuple, wanted.tolist()))
    held = {place: key for place, key in found.items() if key in keys}
    if not held:
        return
    places, base, told = numpy.array(sorted(held), numpy.int64), 0, list[tuple[Any, ...]]()
    for batch in part.read_batches(fields):
        mine = places[(places >= base) & (places < base + batch.num_rows)]
        records = batch.take(pyarrow.array(mine - base)).to_pylist()
        told += [(*held[place], *_read_record(record)) for place, record in zip(mine.tolist(), records, strict=True)]
        base += batch.num_rows
    yield "records", to_table(told, _RECORD)


def _read_record(record: dict[str, Any]) -> tuple[list[bytes], str]:
    """(items, the rest as JSON), without what is null."""
    item = record.pop("item", None)
    items = record.pop("items", None) or ([] if item is None else [item])
    told = {
        name: value.hex().upper() if isinstance(value, bytes) else value
        for name, value in record.items()
        if value is not None
    }
    return items, json.dumps(told, ensure_ascii=False, separators=(",", ":"))
