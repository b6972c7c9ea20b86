"""The result of an audit as a value: how fresh what was served was, what was wrong, what is not known."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshness.comparison.share import wilson_bounds
from spark.audit.input.actions import Stock
from spark.audit.input.archive import Archive
from spark.audit.input.evidence import Names, Who
from spark.audit.model import verdict
from spark.audit.model.finding import STALENESS_EDGES_US, PoisonedHits, Rules, Slices, Tally, add_counts
from spark.audit.model.timeline import ALWAYS
from spark.audit.report.markup import format_time

WITHIN_SECONDS: Final = (1, 10, 60, 300)
FRESH_SECONDS: Final = 1
"""Hits over time are counted by this: how many were at most so far out of date."""
TABLES_OVER_TIME_MAX: Final = 12
PLACES_MAX: Final = 3
"""Names of nodes, objects and versions that had the most poison."""
EXAMPLES_PER_KIND: Final = 5
GROUPS_MAX: Final = 200
"""Rows of one table of nines; the worst come first."""
CONFIDENCE_Z: Final = 1.959964
"""The bounds hold for 95 %."""
DIMENSIONS: Final = ("all", "table", "shard", "node", "version")


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its 95 % bounds (Wilson). The bounds are 0 and 1 if nothing was counted: nothing is known."""

    count: int
    of: int
    share: float
    low: float
    high: float

    @classmethod
    def of_counts(cls, count: int, of: int) -> Share:
        if not of:
            return cls(0, 0, 0.0, 0.0, 1.0)
        return cls(count, of, count / of, *wilson_bounds(count, of, CONFIDENCE_Z))

    @property
    def nines(self) -> float:
        """Nines of the lower bound, the share that is sure: 2.0 means 99 %."""
        return -math.log10(max(1 - self.low, 1e-18))


@dataclass(frozen=True, slots=True)
class Nines:
    """Hits of one group. ``within``: share of hits that were at most that much out of date, by seconds."""

    dimension: str
    name: str
    hits: int
    unknown: int
    within: Mapping[str, Share]


@dataclass(frozen=True, slots=True)
class HitsOverTime:
    """Hits of one group in each of `Summary.slices`: how many, how many of them were at most `FRESH_SECONDS` out of
    date, and how many were poison. ``name``: a table, or "" for all hits."""

    name: str
    hits: list[int]
    fresh: list[int]
    poison: list[int]


@dataclass(frozen=True, slots=True)
class Served:
    """How many hits of how many were violations themselves, and when: microseconds since 1970. ``places``: by
    dimension (node, object, version), the names with the most of them."""

    poison: int
    of: int
    first_us: int | None
    last_us: int | None
    places: Mapping[str, Sequence[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class ViolationCount:
    """Violations of one kind and failure mode: how many entries, how many actions, the longest in seconds."""

    kind: str
    failure: str
    entries: int
    actions: int
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Times are microseconds since 1970. ``staleness``, ``delays``: counts up to each of ``edges_seconds``, and more.

    ``audited``: changed items of which the history has actions. ``poisoned``: audited or recorded items with poison.
    ``judged_from_us``: actions up to then were not judged; None for all. ``over_time``: all hits, then the
    tables, the worst first.
    """

    as_of_us: int
    archive_end_us: int
    history_from_us: int | None
    transactions: int
    actions: Mapping[str, int]
    counts: Mapping[str, int]
    edges_seconds: Sequence[float]
    staleness: Sequence[int]
    delays: Sequence[int]
    nines: Sequence[Nines]
    audited: Share
    poisoned: Share
    found: Sequence[ViolationCount]
    unknown: Mapping[str, int]
    wrong_clocks: Sequence[str]
    hot: Sequence[tuple[str, int]]
    examples: Sequence[Mapping[str, Any]]
    judged_from_us: int | None = None
    slices: Slices = Slices()
    over_time: Sequence[HitsOverTime] = ()
    served: Served = Served(0, 0, None, None, {})

    @property
    def exit_code(self) -> int:
        return verdict.find_exit_code({each.kind for each in self.found}, sum(self.unknown.values()))

    def to_json(self) -> dict[str, Any]:
        held = asdict(self)
        held["exit_code"] = self.exit_code
        return held


def summarize(
    violations: pyarrow.Table,
    tally: Tally,
    names: Names,
    archive: Archive,
    stock: Iterable[Stock],
    rules: Rules,
    wrong_clocks: Iterable[int],
    hot: Sequence[tuple[bytes, int]],
) -> Summary:
    """The summary of an audit. ``violations`` as `VIOLATION`; ``hot``: items and their hits."""
    did: Counter[str] = Counter()
    for each in stock:
        did[each.action] += each.actions
    unknown: Counter[str] = Counter()
    for (_, why), count in tally.unknown.items():
        unknown[why] += count
    staleness = [sum(column) for column in zip(*tally.hits.values(), strict=True)] or [0] * len(tally.delays)
    if not sum(staleness) and not tally.counts["fills"] and not unknown:
        unknown[verdict.NO_HISTORY] = 1
    items = tally.counts["items changed"], tally.counts["items recorded"]
    wrong = frozenset(wrong_clocks)
    poison = find_poison(tally, names, wrong)
    return Summary(
        as_of_us=rules.as_of_us,
        archive_end_us=archive.end_us,
        history_from_us=min((each.begin_us for each in stock), default=None),
        judged_from_us=None if rules.from_us == ALWAYS else rules.from_us,
        transactions=sum(row.run.transactions for row in archive.runs),
        actions=dict(sorted(did.items())),
        counts=dict(sorted(tally.counts.items())),
        edges_seconds=[edge / 1e6 for edge in STALENESS_EDGES_US],
        staleness=staleness,
        delays=tally.delays,
        nines=_nines(tally, names),
        audited=Share.of_counts(tally.counts["items changed and recorded"], items[0]),
        poisoned=Share.of_counts(tally.counts["items with poison"], items[1]),
        found=_count(shown := violations.to_pylist()),
        unknown={why: count for why, count in unknown.items() if count},
        wrong_clocks=sorted(names.names.get(client, str(client)) for client in wrong),
        hot=sorted(((_show(item), hits) for item, hits in hot), key=lambda pair: (-pair[1], pair[0])),
        examples=_examples(shown),
        slices=rules.slices,
        over_time=count_over_time(tally, poison, rules.slices),
        served=count_served(poison, sum(staleness)),
    )


def _nines(tally: Tally, names: Names) -> list[Nines]:
    groups: dict[tuple[str, str], list[int]] = {}
    unknown: Counter[tuple[str, str]] = Counter()
    for who, histogram in tally.hits.items():
        for group in _groups(names.whos.get(who)):
            held = groups.setdefault(group, [0] * len(histogram))
            for at, count in enumerate(histogram):
                held[at] += count
    for (who, _), count in tally.unknown.items():
        for group in _groups(names.whos.get(who)) if who else ():
            unknown[group] += count
            groups.setdefault(group, [0] * len(tally.delays))
    found = [
        Nines(dimension, name, sum(histogram), unknown[dimension, name], _within(histogram))
        for (dimension, name), histogram in groups.items()
    ]
    found.sort(key=lambda it: (DIMENSIONS.index(it.dimension), it.within["1"].low, it.name))
    kept: Counter[str] = Counter()
    shown = []
    for each in found:
        kept[each.dimension] += 1
        if kept[each.dimension] <= GROUPS_MAX:
            shown.append(each)
    return shown


def _groups(who: Who | None) -> list[tuple[str, str]]:
    """A hit counts for each of its tables and shards."""
    if who is None:
        return [("all", "")]
    tables = [("table", table) for table in who.tables or (who.object,)]
    shards = [("shard", lineage) for lineage in who.lineages]
    return [("all", ""), *tables, *shards, ("node", who.node), ("version", who.client.rpartition("/")[2])]


def _within(histogram: Sequence[int]) -> dict[str, Share]:
    total = sum(histogram)
    return {
        str(seconds): Share.of_counts(sum(histogram[: STALENESS_EDGES_US.index(seconds * 1_000_000) + 1]), total)
        for seconds in WITHIN_SECONDS
    }


_NOBODY: Final = Who("", "", (), "", ())


def find_poison(tally: Tally, names: Names, wrong_clocks: Collection[int]) -> list[tuple[Who, PoisonedHits]]:
    """The hits that were poison, without those that rest on a wrong clock and prove nothing."""
    return [
        (names.whos.get(who, _NOBODY), hits)
        for (who, other), hits in tally.poison.items()
        if not {other, names.client_of(who)} & set(wrong_clocks)
    ]


def count_over_time(tally: Tally, poison: Iterable[tuple[Who, PoisonedHits]], slices: Slices) -> list[HitsOverTime]:
    """All hits, then the `TABLES_OVER_TIME_MAX` worst tables: those with the most poison, then those with the
    smallest share of fresh hits. Empty for one slice. A hit counts for each of its tables."""
    if slices.count == 1:
        return []
    groups: dict[str, HitsOverTime] = {}

    def held(name: str) -> HitsOverTime:
        zeros = ([0] * slices.count for _ in range(3))
        return groups.setdefault(name, HitsOverTime(name, *zeros))

    buckets, edge = len(STALENESS_EDGES_US) + 1, STALENESS_EDGES_US.index(FRESH_SECONDS * 1_000_000)
    for tables, counts in tally.slices.items():
        histograms = [counts[at : at + buckets] for at in range(0, len(counts), buckets)]
        for name in ("", *tables):
            group = held(name)
            add_counts(group.hits, [sum(each) for each in histograms])
            add_counts(group.fresh, [sum(each[: edge + 1]) for each in histograms])
    for who, hits in poison:
        for name in ("", *who.tables):
            add_counts(held(name).poison, hits.counts)
    worst = [each for name, each in groups.items() if name]
    worst.sort(key=lambda it: (-sum(it.poison), sum(it.fresh) / max(1, sum(it.hits)), it.name))
    return [held(""), *worst[:TABLES_OVER_TIME_MAX]]


def count_served(poison: Collection[tuple[Who, PoisonedHits]], hits: int) -> Served:
    """``hits``: number of hits that were judged."""
    places: dict[str, Counter[str]] = {"node": Counter(), "object": Counter(), "version": Counter()}
    for who, each in poison:
        names = (who.node, who.object, who.client.rpartition("/")[2])
        for counts, name in zip(places.values(), names, strict=True):
            counts[name] += sum(each.counts)
    return Served(
        sum(sum(each.counts) for _, each in poison),
        hits,
        min((each.first_us for _, each in poison), default=None),
        max((each.last_us for _, each in poison), default=None),
        {
            dimension: sorted(counts.items(), key=lambda it: (-it[1], it[0]))[:PLACES_MAX]
            for dimension, counts in places.items()
        },
    )


def _count(violations: Iterable[Mapping[str, Any]]) -> list[ViolationCount]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in violations:
        groups.setdefault((each["kind"], each["failure"]), []).append(each)
    order = list(verdict.KIND_BY_NAME)
    found = [
        ViolationCount(
            kind, failure, len(its), sum(each["count"] for each in its), max(each["longest_us"] for each in its) / 1e6
        )
        for (kind, failure), its in groups.items()
    ]
    return sorted(found, key=lambda it: (order.index(it.kind), it.failure))


def _examples(violations: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The worst of each kind."""
    groups: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in verdict.KIND_BY_NAME}
    for each in violations:
        groups[each["kind"]].append(each)
    shown = []
    for its in groups.values():
        for each in sorted(its, key=_rank)[:EXAMPLES_PER_KIND]:
            item = None if each["item"] is None else _show(each["item"])
            shown.append({**each, "item": item, "evidence": _parse_evidence(each["evidence"])})
    return shown


def _rank(it: Mapping[str, Any]) -> tuple[Any, ...]:
    order = (it["item"] or b"", it["version"] or 0, it["first_us"] or 0, it["clients"], it["evidence"])
    return -it["longest_us"], -it["count"], *order


def _show(item: bytes) -> str:
    return item.decode("ascii", "backslashreplace")


def _parse_evidence(text: str) -> list[Any]:
    records: list[Any] = json.loads(text)
    for record in records:
        if isinstance(record, dict) and isinstance(record.get("record"), str):
            record["record"] = json.loads(record["record"])
    return records


def print_summary(summary: Summary, console: Console) -> None:
    table = Table(title="hits by how far out of date they were at most")
    for title in ("", "", "hits", *(f"{seconds} s" for seconds in WITHIN_SECONDS), "unknown"):
        table.add_column(title, justify="right" if title else "left")
    for each in summary.nines:
        shares = [f"{each.within[str(seconds)].share:.4%}" for seconds in WITHIN_SECONDS]
        table.add_row(each.dimension, escape(each.name), f"{each.hits:,}", *shares, f"{each.unknown:,}")
    console.print(table)
    if summary.found:
        found = Table(title="violations")
        for title in ("kind", "failure mode", "entries", "actions", "longest"):
            found.add_column(title)
        for it in summary.found:
            found.add_row(it.kind, it.failure, f"{it.entries:,}", f"{it.actions:,}", f"{it.longest_seconds:,.1f} s")
        console.print(found)
    for why, count in summary.unknown.items():
        console.print(f"not known: {count:,} × {why}")
    if told := tell_scope(summary):
        console.print(f"judged: {told}", markup=False)
    console.print(conclude(summary))


def tell_scope(summary: Summary) -> str:
    """The time that was judged; "" for all."""
    if summary.judged_from_us is None:
        return ""
    return f"actions later than {format_time(summary.judged_from_us)}, up to {format_time(summary.as_of_us)}"


def conclude(summary: Summary) -> str:
    said = {
        verdict.CLEAN: "clean: nothing was served that must not be",
        verdict.NOT_KNOWN: "not decided: what is not known may hide poison",
        verdict.STALE_DATA: "poison: see the report",
    }
    return said[summary.exit_code]
