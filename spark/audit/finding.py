"""What a replay is told, what it finds in an item, and what it counts.

Written by `spark.audit.replay`, which judges, and read by what merges and shows it. Plain Python: knows nothing of
Spark.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from spark.audit.timeline import Lineage

STALENESS_EDGES_US: Final = (
    0,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    60_000_000,
    300_000_000,
    3_600_000_000,
)
"""Hits are counted by staleness: up to each of these, and beyond the last."""
HOT_ITEMS: Final = 20

Evidence: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""(role, client or lineage, sequence or ordinal, row of the change or -1): which records show it."""


class Life(NamedTuple):
    """What was published of one life of a node for a lineage. Ordinals; times in microseconds."""

    life: int
    first_begin_us: int
    first_end_us: int
    floor: int
    progress: int


@dataclass(frozen=True, slots=True)
class Rules:
    """``as_of_us``: later actions are not judged. ``clock_error_us``: what two clocks may differ; ``clock_wrong_us``:
    from where on a clock is wrong. ``missed_after_us``: how late an invalidation may be. ``tombstone_ttl_us``: how
    long tombstones live. ``view_us``: how long readers trust a copy of the node's record."""

    as_of_us: int
    clock_error_us: int = 500_000
    clock_wrong_us: int = 60_000_000
    missed_after_us: int = 60_000_000
    tombstone_ttl_us: int = 120_000_000
    view_us: int = 2_000_000


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known beside the item's own rows. Keys are hashes of names.

    ``raises``: by (lineage, table), the ordinals at which the whole table changed; ``raise_acks``: by (node, lineage,
    life, ordinal), when the node acknowledged that. ``tables``: by `who`, the object's tables. ``lost``: lineages of
    which actions are missing. ``history_from_us``: by lineage, since when actions were recorded.
    """

    lineages: Mapping[int, Lineage]
    lives: Mapping[tuple[int, int], Sequence[Life]] = field(default_factory=dict)
    raises: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    raise_acks: Mapping[tuple[int, int, int, int], int] = field(default_factory=dict)
    tables: Mapping[int, Sequence[str]] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    history_from_us: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Finding:
    """A violation, or of one cause all of an entry. ``clients``: whose clocks it rests on; empty: on no clock."""

    kind: str
    failure: str
    node: int
    version: int
    lineage: int
    clients: tuple[int, ...]
    who: int
    count: int
    first_us: int
    last_us: int
    longest_us: int
    evidence: Evidence


@dataclass(slots=True)
class Tally:
    """Counts of a partition. ``hits``: by `who`, how many up to each of `STALENESS_EDGES_US`."""

    hits: dict[int, list[int]] = field(default_factory=dict)
    unknown: Counter[tuple[int, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    delays: list[int] = field(default_factory=lambda: [0] * (len(STALENESS_EDGES_US) + 1))
    hot: list[tuple[int, int, int]] = field(default_factory=list)

    def staleness(self, who: int) -> list[int]:
        held = self.hits.get(who)
        if held is None:
            held = self.hits[who] = [0] * (len(STALENESS_EDGES_US) + 1)
        return held

    def add_hot(self, hits: int, h1: int, h2: int) -> None:
        if len(self.hot) < HOT_ITEMS:
            heapq.heappush(self.hot, (hits, h1, h2))
        elif hits > self.hot[0][0]:
            heapq.heapreplace(self.hot, (hits, h1, h2))


def format_evidence(evidence: Evidence) -> str:
    return json.dumps(evidence, separators=(",", ":"))


def format_tally(tally: Tally) -> str:
    """As JSON; `merge_tally` reads it."""
    return json.dumps(
        {
            "hits": list(tally.hits.items()),
            "unknown": [[who, why, count] for (who, why), count in tally.unknown.items() if count],
            "counts": dict(tally.counts),
            "delays": tally.delays,
            "hot": tally.hot,
        }
    )


def merge_tally(into: Tally, text: str) -> None:
    """Add what another partition counted."""
    other = json.loads(text)
    for who, histogram in other["hits"]:
        mine = into.staleness(who)
        for at, count in enumerate(histogram):
            mine[at] += count
    for who, why, count in other["unknown"]:
        into.unknown[who, why] += count
    into.counts.update(other["counts"])
    into.delays = [mine + theirs for mine, theirs in zip(into.delays, other["delays"], strict=True)]
    for hits, h1, h2 in other["hot"]:
        into.add_hot(hits, h1, h2)
