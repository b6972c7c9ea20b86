"""What is counted of each strategy, and what counts as stale.

A **stale read** is a hit whose value lacks a change that this strategy had already acknowledged as invalidated
when the read began. A miss that gets an old row is counted apart (``stale_replica_reads``): it comes from the late
replica. A read of a pair of customers is **torn** if one of them shows a transfer between the two, and the other does
not: no moment had these values.

All times are ``time.monotonic()`` in seconds, which on Linux is the same for all processes of a machine.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Row: TypeAlias = tuple[str, int]
"""(table, primary key)"""
ObjectKey: TypeAlias = tuple[str, int]
"""("customer" or "profile", customer id)"""
Versions: TypeAlias = Mapping[Row, int]

CUSTOMER: Final = "customer"
PROFILE: Final = "profile"
ORDER_IDS_PER_CUSTOMER: Final = 100
EXAMPLES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Write:
    """One committed transaction: the rows it changed, at their new versions, and the objects built from them."""

    versions: Versions
    objects: tuple[ObjectKey, ...]
    committed_at: float


@dataclass(frozen=True, slots=True)
class Request:
    """One or several objects that are asked for at once. ``is_pair``: two customers, as of one moment if the strategy
    can do that."""

    objects: tuple[ObjectKey, ...]
    is_pair: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What one strategy returned for one object. ``outcome``: its own word for what happened."""

    key: ObjectKey
    value: Any
    is_hit: bool
    outcome: str


@dataclass(frozen=True, slots=True)
class StaleHit:
    """A hit that was older than what had been acknowledged, as evidence."""

    key: ObjectKey
    row: Row
    returned_version: int
    acknowledged_version: int


def find_versions(key: ObjectKey, value: Any) -> dict[Row, int]:
    """The version of every row inside a value; empty for "no such row"."""
    if value is None:
        return {}
    if key[0] == CUSTOMER:
        return {("customers", value["id"]): value["version"]}
    found = {("orders", order["id"]): order["version"] for order in value["orders"]}
    customer = value["customer"]
    return found if customer is None else {("customers", customer["id"]): customer["version"], **found}


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; 0.0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


@dataclass(slots=True)
class Meter:
    """The counters of one strategy. Safe for several threads."""

    name: str
    reads: int = 0
    hits: int = 0
    stale_hits: int = 0
    stale_replica_reads: int = 0
    pairs: int = 0
    torn_pairs: int = 0
    lags_ms: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    examples: list[StaleHit] = field(default_factory=list)
    writes_begun: int = 0
    _acknowledged: dict[int, dict[Row, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """A write was committed, and this strategy has to invalidate it."""
        with self._lock:
            self.writes_begun += 1

    def acknowledge(self, write: Write, at: float) -> None:
        """All invalidations of ``write`` are acknowledged. A stream can be faster than the commit's own reply:
        then the lag is 0."""
        with self._lock:
            self.lags_ms.append(max(0.0, at - write.committed_at) * 1000)
            for row, version in write.versions.items():
                known = self._acknowledged.setdefault(owner_of(row), {})
                known[row] = max(version, known.get(row, 0))

    @property
    def unacknowledged(self) -> int:
        with self._lock:
            return self.writes_begun - len(self.lags_ms)

    def expect(self, request: Request) -> dict[ObjectKey, Versions]:
        """What a read that begins now must not fall behind."""
        with self._lock:
            expected: dict[ObjectKey, Versions] = {}
            for key in request.objects:
                name, customer_id = key
                known = self._acknowledged.get(customer_id, {})
                expected[key] = {
                    row: version for row, version in known.items() if name == PROFILE or row[0] == "customers"
                }
            return expected

    def count_pair(self, answers: Sequence[Answer]) -> None:
        with self._lock:
            self.pairs += 1
            self.torn_pairs += len({answer.value["transfers"] for answer in answers}) > 1

    def count(self, answers: Sequence[Answer], expected: Mapping[ObjectKey, Versions]) -> None:
        stale = [_find_stale(answer, expected[answer.key]) for answer in answers]
        with self._lock:
            for answer, found in zip(answers, stale, strict=True):
                self.reads += 1
                self.hits += answer.is_hit
                self.outcomes[answer.outcome] += 1
                if found is None:
                    continue
                if not answer.is_hit:
                    self.stale_replica_reads += 1
                    continue
                self.stale_hits += 1
                if len(self.examples) < EXAMPLES_MAX:
                    self.examples.append(found)

    def lag_ms(self, percent: float, *, last: int = 0) -> float:
        """A percentile of commit → acknowledged, of all writes or of the ``last`` ones."""
        with self._lock:
            values = self.lags_ms[-last:]
        return percentile(values, percent)


def owner_of(row: Row) -> int:
    """The customer whose objects the row is in."""
    table, number = row
    return number if table == "customers" else number // ORDER_IDS_PER_CUSTOMER


def _find_stale(answer: Answer, expected: Versions) -> StaleHit | None:
    returned = find_versions(answer.key, answer.value)
    for row, version in expected.items():
        if returned.get(row, 0) < version:
            return StaleHit(answer.key, row, returned.get(row, 0), version)
    return None
