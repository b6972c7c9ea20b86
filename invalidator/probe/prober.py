"""Compares sampled entries with their rows: at each scale after a change, and those that a sweep finds.

A change is followed by comparisons at 1 s, 10 s, 1 min and 5 min, by the prober's own clock since the change came out
of its stream. An entry that differs is not yet an alarm (F52): it is a suspect, and `Comparison` decides about it by
what the node has acknowledged. So lag, however long, is never taken for a loss.

No thread and no socket of its own: the process (``invalidator.probe.process``) calls it with changes and keys, and
`run_due` in between. Writes nothing, unless repairs are asked for: then a poisoned entry is removed by CAS.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, groupby
from typing import Final, Generic, TypeVar

from freshness.algorithm.envelope import NodeRecord
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Item
from freshness.comparison.comparison import (
    EQUAL,
    IN_FLIGHT,
    NOT_SERVED,
    POISONED,
    RECHECK_WAIT_SECONDS,
    SUSPECTS_MAX,
    Comparison,
    EntryVerdict,
    Suspect,
    give_up,
    repair,
)
from freshness.comparison.entry import ENTRIES_PER_BATCH_MAX, NodeEntry, find_object, judge, read_items
from freshness.comparison.scope import ComparisonScope
from freshness.errors import FreshnessError
from freshness.position import Position
from invalidator.probe.tally import SWEEP, ProbeTally, Verdict

SCALES_SECONDS: Final = (1.0, 10.0, 60.0, 300.0)
PROBES_MAX: Final = 50_000
"""Comparisons that wait for their time."""

LOOK_WAIT_SECONDS_MAX: Final = 30.0
FOLLOW_SECONDS: Final = 600.0
"""How long a suspect is followed before it counts as unknown."""

FINDINGS_MAX: Final = 1_000
"""Poisoned entries that are remembered, so that each is reported once."""

OVERDUE_SECONDS: Final = 1.0

_HASH_END: Final = 1 << 64

log = logging.getLogger(__name__)

Work = TypeVar("Work")


class Schedule(Generic[Work]):
    """Work by the time at which it is due. Work that finds no room is refused, and never silently dropped."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._heap: list[tuple[float, int, Work]] = []
        self._numbers = count()

    def add(self, due: float, work: Work) -> bool:
        """False if it is full."""
        if len(self._heap) >= self._size_max:
            return False
        heapq.heappush(self._heap, (due, next(self._numbers), work))
        return True

    def take(self, now: float, count_max: int) -> list[tuple[float, Work]]:
        """Take the work that is due, the oldest first, each with its time."""
        taken: list[tuple[float, Work]] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < count_max:
            due, _, work = heapq.heappop(self._heap)
            taken.append((due, work))
        return taken

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class Budget:
    """``per_second`` units a second, and as many at once as a second gives. ``now``: time of the first call, in
    seconds."""

    per_second: float
    now: float
    _left: float = field(default=0.0)

    def available(self, now: float) -> int:
        """How many may be spent now."""
        self._left = min(max(1.0, self.per_second), self._left + (now - self.now) * self.per_second)
        self.now = now
        return int(self._left)

    def spend(self, count: int) -> None:
        """No more than are available."""
        self._left -= count


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """``share``: fraction of the keys that are sampled, always the same ones. ``rate``: comparisons after changes,
    and as many in sweeps, per second."""

    share: float = 0.01
    scales_seconds: tuple[float, ...] = SCALES_SECONDS
    rate: float = 100.0
    sweep_seconds: float = 60.0
    repairs: bool = False

    def samples(self, item: bytes) -> bool:
        """Whether the item is among the sampled ones, by a hash that has nothing to do with placement or stripes."""
        number = int.from_bytes(blake2b(item, digest_size=8, person=b"probe").digest(), "big")
        return number < self.share * _HASH_END


@dataclass(frozen=True, slots=True)
class Probe:
    """One comparison that is to come. ``position``: position of the change that it follows, in ``lineage``; None in a
    sweep. ``place``: index of its scale."""

    item: bytes
    lineage: str = ""
    position: Position | None = None
    changed_at: float = 0.0
    place: int = 0


@dataclass(slots=True)
class Followed:
    """A suspect and the probes that found it. ``late``: probes of changes that the node had not acknowledged; they
    are counted already."""

    suspect: Suspect
    since: float
    wait_seconds: float = RECHECK_WAIT_SECONDS
    probes: list[Probe] = field(default_factory=list)
    late: list[Probe] = field(default_factory=list)


class Prober:
    """See the module. ``clock``: seconds that only grow."""

    def __init__(
        self,
        scope: ComparisonScope,
        comparison: Comparison,
        find_node: Callable[[str], CacheNode],
        plan: ProbePlan,
        clock: Callable[[], float],
        tally: ProbeTally,
        *,
        probes_max: int = PROBES_MAX,
    ) -> None:
        self.plan = plan
        self.tally = tally
        self._scope = scope
        self._comparison = comparison
        self._find_node = find_node
        self._clock = clock
        self._node_for = scope.placements[0].node_for
        self._probes: Schedule[Probe] = Schedule(probes_max)
        self._looks: Schedule[tuple[bytes, str]] = Schedule(SUSPECTS_MAX)
        self._fresh: set[bytes] = set()
        self._followed: dict[tuple[bytes, str], Followed] = {}
        self._budget = Budget(plan.rate, clock())
        for name, definition in scope.definitions.items():
            if not definition.config.is_composite:
                tally.losses[name] += 0  # a counter that begins at 1 has not increased

    def note_change(self, items: Iterable[bytes], lineage: str, position: Position) -> None:
        """A change of these items has come out of the stream."""
        now = self._clock()
        for item in items:
            if not self.plan.samples(item) or not self._is_comparable(item):
                continue
            self.tally.changes += 1
            if item in self._fresh:
                self.tally.dropped["merged"] += 1
            elif self._probes.add(now + self.plan.scales_seconds[0], Probe(item, lineage, position, changed_at=now)):
                self._fresh.add(item)
            else:
                self.tally.dropped["full"] += 1

    def compare_now(self, items: Sequence[bytes]) -> None:
        """Compare items that a sweep has found; those that are not sampled have been left out."""
        self._compare([Probe(item) for item in items if self._is_comparable(item)])

    def run_due(self) -> None:
        """Do what is due by now, as far as the rate allows."""
        now = self._clock()
        self.look_again()
        due = self._probes.take(now, min(self._budget.available(now), ENTRIES_PER_BATCH_MAX))
        self._budget.spend(len(due))
        ready = []
        for at, probe in due:
            self._fresh.discard(probe.item)
            scale = self.plan.scales_seconds[probe.place]
            if now - at > max(OVERDUE_SECONDS, scale):
                self.tally.dropped["overdue"] += 1
            else:
                ready.append(probe)
            if probe.place + 1 < len(self.plan.scales_seconds):
                following = Probe(probe.item, probe.lineage, probe.position, probe.changed_at, probe.place + 1)
                later = probe.changed_at + self.plan.scales_seconds[following.place]
                is_added = self._probes.add(later, following)
                assert is_added, "one was taken out of the same schedule"
        self._compare(ready)
        self.tally.waiting, self.tally.suspects = len(self._probes), len(self._followed)

    def look_again(self) -> None:
        """Look at the suspects whose time has come."""
        taken = self._looks.take(self._clock(), ENTRIES_PER_BATCH_MAX)
        if taken:
            self._look([self._followed[key] for _, key in taken])

    @property
    def is_settled(self) -> bool:
        """Whether no suspect waits for its verdict."""
        return not self._followed

    def give_up(self) -> None:
        """No more looks: every suspect that is left is unknown."""
        for followed in list(self._followed.values()):
            self._finish(followed, give_up(followed.suspect))

    def _compare(self, probes: Sequence[Probe]) -> None:
        by_item: dict[bytes, list[Probe]] = {}
        for probe in probes:
            by_item.setdefault(probe.item, []).append(probe)
        for name, items in groupby(sorted(by_item, key=self._node_for), key=self._node_for):
            held = list(items)
            try:
                node = self._find_node(name)
                records, replies = read_items(self._scope, node, held)
                entries = {
                    item: judge(self._scope, node, item, reply.value, records)
                    for item, reply in zip(held, replies, strict=True)
                    if isinstance(reply, Item)
                }
            except FreshnessError as error:
                self.tally.note_error(str(error))
                for item in held:
                    self._count(by_item[item], "unknown")
                continue
            for item in held:
                if item not in entries:
                    self._count(by_item[item], "absent")
            verdicts, suspects = self._comparison.compare_once(list(entries.values()))
            for verdict in verdicts:
                self._count_verdict(verdict, by_item)
            self._follow(suspects, by_item, records)

    def _follow(
        self, suspects: Sequence[Suspect], by_item: dict[bytes, list[Probe]], records: dict[str, NodeRecord | None]
    ) -> None:
        new = []
        for suspect in suspects:
            key = _key_of(suspect.entry)
            followed = self._followed.get(key)
            if followed is None:
                new.append(suspect)
            else:
                self._attach(followed, by_item[key[0]], records)
        verdicts, known = self._comparison.read_heads(new)
        for verdict in verdicts:
            self._count_verdict(verdict, by_item)
        now = self._clock()
        for suspect in known:
            key = _key_of(suspect.entry)
            if not self._looks.add(now + RECHECK_WAIT_SECONDS, key):
                self.tally.dropped["suspects"] += 1
                self._count(by_item[key[0]], "unknown")
                continue
            self._followed[key] = Followed(suspect, now)
            self._attach(self._followed[key], by_item[key[0]], records)

    def _attach(self, followed: Followed, probes: Iterable[Probe], records: dict[str, NodeRecord | None]) -> None:
        """A probe whose change the node has not acknowledged has found lag; the others wait for the verdict."""
        for probe in probes:
            record = records.get(probe.lineage)
            if probe.position is None or (record is not None and record.progress.contains(probe.position)):
                followed.probes.append(probe)
            else:
                self._count([probe], "lag")
                followed.late.append(probe)

    def _look(self, group: Sequence[Followed]) -> None:
        by_key = {_key_of(each.suspect.entry): each for each in group}
        verdicts, undecided = self._comparison.look([each.suspect for each in group])
        now = self._clock()
        for suspect in undecided:
            followed = by_key.pop(_key_of(suspect.entry))
            if now - followed.since > FOLLOW_SECONDS:
                self._finish(followed, give_up(suspect))
                continue
            followed.wait_seconds = min(2 * followed.wait_seconds, LOOK_WAIT_SECONDS_MAX)
            is_added = self._looks.add(now + followed.wait_seconds, _key_of(suspect.entry))
            assert is_added, "it was taken out of the same schedule"
        for verdict in verdicts:
            self._finish(by_key[_key_of(verdict.entry)], verdict)

    def _finish(self, followed: Followed, verdict: EntryVerdict) -> None:
        del self._followed[_key_of(verdict.entry)]
        if verdict.verdict == POISONED:
            self._count(followed.probes, "loss")
            self._tell_loss(verdict)
        elif verdict.verdict == IN_FLIGHT:
            for probe in followed.probes:
                # A change that was acknowledged: a later one was on its way. A sweep has seen nothing that was right.
                self._count([probe], "absent" if probe.position is None else "right")
            now = self._clock()
            for probe in followed.late:
                self.tally.note_lag(now - probe.changed_at)
        else:
            self._count(followed.probes, "unknown")
            self.tally.note_error(verdict.error)

    def _tell_loss(self, verdict: EntryVerdict) -> None:
        entry = verdict.entry
        name, key = entry.object, _key_of(entry)
        if key not in self.tally.findings:
            self.tally.losses[name] += 1
            log.error(
                "%s on %s is poisoned: it is not the primary's row, and the node has acknowledged all changes%s",
                key[0].decode("ascii", "backslashreplace"),
                entry.node,
                f"; {verdict.error}" if verdict.error else "",
            )
            if len(self.tally.findings) < FINDINGS_MAX:
                self.tally.findings[key] = verdict
        if self.plan.repairs:
            error = repair(self._scope, self._find_node, entry)
            (self.tally.not_repaired if error else self.tally.repaired)[name] += 1
            if error:
                self.tally.note_error(f"not repaired: {error}")

    def _count_verdict(self, verdict: EntryVerdict, by_item: dict[bytes, list[Probe]]) -> None:
        probes = by_item[verdict.entry.item]
        if verdict.verdict == EQUAL:
            self._count(probes, "right")
        elif verdict.verdict == NOT_SERVED:
            self._count(probes, "absent")
        else:
            self._count(probes, "unknown")
            self.tally.note_error(verdict.error)

    def _count(self, probes: Iterable[Probe], verdict: Verdict) -> None:
        for probe in probes:
            scale = SWEEP if probe.position is None else f"{self.plan.scales_seconds[probe.place]:g}"
            self.tally.verdicts[find_object(self._scope, probe.item), scale, verdict] += 1

    def _is_comparable(self, item: bytes) -> bool:
        definition = self._scope.definitions.get(find_object(self._scope, item))
        if definition is not None and definition.config.is_composite:
            self.tally.uncomparable += 1
            return False
        return True


def _key_of(entry: NodeEntry) -> tuple[bytes, str]:
    return entry.item, entry.entry_digest
