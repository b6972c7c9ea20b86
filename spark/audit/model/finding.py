"""The inputs of a replay, its findings about an item, and its counts.

Written by `spark.audit.judge`, and read by what merges and shows it. Plain Python: knows nothing of Spark.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from spark.audit.model.timeline import ALWAYS, Lineage

STALENESS_EDGES_US: Final = (0, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 300_000_000, 3_600_000_000)
"""Hits are counted by staleness: up to each of these, and beyond the last."""
HOT_ITEMS: Final = 20

SLICES_MAX: Final = 60
SLICE_WIDTHS_US: Final = tuple(
    seconds * 1_000_000
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)
)

NO_ROW: Final = -1


class Reference(NamedTuple):
    """A record of the history that shows a finding, and its role in that. An action is named by the hash of its
    client and its sequence; a change by the hash of its lineage, its ordinal and its row."""

    role: str
    source: int
    sequence: int
    row: int = NO_ROW


Evidence: TypeAlias = tuple[Reference, ...]


class Life(NamedTuple):
    """The publishes of one life of a node for a lineage: its first times, highest floor and highest progress.
    ``since_us``: when that floor was first published; it rises with another list of nodes, and with the objects.
    ``left_us``: when some of them left last. Times are microseconds, floor and progress are ordinals."""

    life: int
    first_begin_us: int
    first_end_us: int
    floor: int
    progress: int
    since_us: int
    left_us: int = ALWAYS

    def join(self, other: Life) -> Life:
        """All publishes of both."""
        highest = max(self, other, key=lambda life: (life.floor, -life.since_us))
        return Life(
            self.life,
            min(self.first_begin_us, other.first_begin_us),
            min(self.first_end_us, other.first_end_us),
            highest.floor,
            max(self.progress, other.progress),
            highest.since_us,
            max(self.left_us, other.left_us),
        )


@dataclass(frozen=True, slots=True)
class Slices:
    """The time of a history in slices of equal width, times in microseconds. An action before the first slice or
    after the last one counts in that one. By default one slice has everything."""

    begin_us: int = 0
    width_us: int = 1 << 62
    count: int = 1

    @classmethod
    def of(cls, begin_us: int, end_us: int) -> Slices:
        """At most `SLICES_MAX` slices and one more, of a round width, at round times (UTC)."""
        room_us = max(1, end_us - begin_us) / SLICES_MAX
        day_us = SLICE_WIDTHS_US[-1]
        width_us = next((each for each in SLICE_WIDTHS_US if each >= room_us), ceil(room_us / day_us) * day_us)
        first = begin_us // width_us
        return cls(first * width_us, width_us, max(0, end_us // width_us - first) + 1)

    def find(self, at_us: int) -> int:
        """The number of the slice that a time counts in."""
        return min(max((at_us - self.begin_us) // self.width_us, 0), self.count - 1)


@dataclass(frozen=True, slots=True)
class Rules:
    """``as_of_us``: later actions are not judged. ``from_us``: actions up to then are evidence alone.
    ``clock_error_us``: difference that two clocks may have; ``clock_wrong_us``: difference from which on a clock is
    wrong. ``missed_after_us``: time that an invalidation may take. ``view_us``: time for which readers trust a copy
    of the node's record. ``slices``: slices of time by which hits are counted."""

    as_of_us: int
    from_us: int = ALWAYS
    clock_error_us: int = 500_000
    clock_wrong_us: int = 60_000_000
    missed_after_us: int = 60_000_000
    view_us: int = 2_000_000
    slices: Slices = Slices()


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that a replay needs beside the item's own rows. Keys are hashes of names.

    ``raises``: by (lineage, table), the ordinals at which the whole table changed; ``raise_acks``: by (node, lineage,
    life, ordinal), when the node acknowledged that. ``tables``: by `who`, the object's tables. ``history_from_us``:
    by lineage, since when actions were recorded; ``lost_until_us``: until when some of them are missing.
    """

    lineages: Mapping[int, Lineage]
    lives: Mapping[tuple[int, int], Sequence[Life]] = field(default_factory=dict)
    raises: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    raise_acks: Mapping[tuple[int, int, int, int], int] = field(default_factory=dict)
    tables: Mapping[int, Sequence[str]] = field(default_factory=dict)
    history_from_us: Mapping[int, int] = field(default_factory=dict)
    lost_until_us: Mapping[int, int] = field(default_factory=dict)

    def tables_of(self, who: int) -> tuple[str, ...]:
        return tuple(self.tables.get(who, ()))


@dataclass(slots=True)
class Finding:
    """A violation, or all violations of one entry by one cause; a row of `spark.audit.model.schema.FINDING`. ``h1``,
    ``h2``: hashes of the item. ``clients``: the clients whose clocks it rests on, none for an order by positions."""

    kind: str
    failure: str
    h1: int
    h2: int
    node: int
    version: int
    lineage: int
    who: int
    clients: tuple[int, ...]
    count: int
    first_us: int
    last_us: int
    longest_us: int
    evidence: Evidence

    def add(self, count: int, first_us: int, last_us: int, longest_us: int, evidence: Evidence, who: int) -> None:
        """Add more violations by this cause. The earliest one is the evidence."""
        self.count += count
        self.last_us = max(self.last_us, last_us)
        self.longest_us = max(self.longest_us, longest_us)
        if (first_us, evidence) < (self.first_us, self.evidence):
            self.first_us, self.evidence, self.who = first_us, evidence, who


class PendingChange(NamedTuple):
    """A change of an item that cannot be judged yet; a row of `spark.audit.model.schema.PENDING`."""

    h1: int
    h2: int
    lineage: int
    ordinal: int


class TallyRow(NamedTuple):
    """A `Tally` as it travels, a row of `TALLY`. Dictionaries are lists of their keys and values."""

    hits: Sequence[tuple[int, Sequence[int]]]
    slices: Sequence[tuple[Sequence[str], Sequence[int]]]
    poison: Sequence[tuple[int, int, int, int, Sequence[int]]]
    unknown: Sequence[tuple[int, str, int]]
    counts: Sequence[tuple[str, int]]
    delays: Sequence[int]
    hot: Sequence[tuple[int, int, int, int, int]]


@dataclass(slots=True)
class PoisonedHits:
    """How many hits of each slice were poison, when the first one began, and when the last one ended."""

    first_us: int
    last_us: int
    counts: list[int]


@dataclass(slots=True)
class Tally:
    """Counts of a partition.

    ``hits``: by `who`, how many up to each of `STALENESS_EDGES_US`. ``slices``: the same by an object's tables, one
    such histogram after the other for each of `Rules.slices`. ``poison``: hits that are violations themselves, by
    `who` and the other client whose clock that rests on, 0 for none. ``hot``: the items with the most hits, as
    (hits, h1, h2, client, sequence), the last two of any of its hits.
    """

    hits: dict[int, list[int]] = field(default_factory=dict)
    slices: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    poison: dict[tuple[int, int], PoisonedHits] = field(default_factory=dict)
    unknown: Counter[tuple[int, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    delays: list[int] = field(default_factory=lambda: [0] * (len(STALENESS_EDGES_US) + 1))
    hot: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def staleness(self, who: int) -> list[int]:
        held = self.hits.get(who)
        if held is None:
            held = self.hits[who] = [0] * (len(STALENESS_EDGES_US) + 1)
        return held

    def count_hit(self, who: int, tables: Sequence[str], slices: Slices, at_us: int, staleness_us: int) -> None:
        bucket, buckets = bisect_left(STALENESS_EDGES_US, staleness_us), len(STALENESS_EDGES_US) + 1
        self.staleness(who)[bucket] += 1
        self.staleness_by_slice(tables, slices.count * buckets)[slices.find(at_us) * buckets + bucket] += 1

    def staleness_by_slice(self, tables: Sequence[str], size: int) -> list[int]:
        return self.slices.setdefault(tuple(tables), [0] * size)

    def add_poison(self, who: int, other: int, first_us: int, last_us: int, counts: Sequence[int]) -> None:
        held = self.poison.setdefault((who, other), PoisonedHits(first_us, last_us, [0] * len(counts)))
        held.first_us, held.last_us = min(held.first_us, first_us), max(held.last_us, last_us)
        add_counts(held.counts, counts)

    def add_hot(self, hits: int, h1: int, h2: int, client: int, sequence: int) -> None:
        item = hits, h1, h2, client, sequence
        if len(self.hot) < HOT_ITEMS:
            heapq.heappush(self.hot, item)
        elif item > self.hot[0]:
            heapq.heapreplace(self.hot, item)

    def to_row(self) -> TallyRow:
        return TallyRow(
            list(self.hits.items()),
            list(self.slices.items()),
            [(*key, each.first_us, each.last_us, each.counts) for key, each in self.poison.items()],
            [(who, why, count) for (who, why), count in self.unknown.items() if count],
            list(self.counts.items()),
            self.delays,
            self.hot,
        )

    def add(self, other: TallyRow) -> None:
        """Add what another partition counted."""
        for who, histogram in other.hits:
            add_counts(self.staleness(who), histogram)
        for tables, counts in other.slices:
            add_counts(self.staleness_by_slice(tables, len(counts)), counts)
        for poison in other.poison:
            self.add_poison(*poison)
        for who, why, count in other.unknown:
            self.unknown[who, why] += count
        for name, count in other.counts:
            self.counts[name] += count
        add_counts(self.delays, other.delays)
        for item in other.hot:
            self.add_hot(*item)


def add_counts(mine: list[int], more: Sequence[int]) -> None:
    """Add to ``mine``, place by place."""
    mine[:] = [one + other for one, other in zip(mine, more, strict=True)]
