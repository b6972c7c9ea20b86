"""The judge of a run: was any value that a client got older than it may be, as a user would state it?

It knows what the clients wrote down, and no token, stripe or entry of the product. The versions of a unit are those
that its only writer committed, in their order, each with the interval in which it was committed; one whose writer saw
no answer may be there or not. Only one word of the product is used: what a node says that it has acknowledged.

* I1, I10: a value is not older than what its node had acknowledged before the read began.
* I7: a hit is not older than the bound: what was committed so long before the read began is in it.
* I9: a session that has committed a version gets that one or a later one.
* I1, I9 and I10 do not hold from a promotion that loses commits until the nodes' records show that it was noticed.
* I11: what was read together, and the parts of one value, are of one version.
* The primary's own answer has all that was committed before the read began. No value was never written.
* I5: at the end each key becomes a hit, and every read, and every hit, is what the primary has.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from freshness.position import parse_position
from integration.chaos.shop import LOCAL_COPY_SECONDS

HITS: Final = {"HIT", "LOCAL_HIT", "MOVED"}
REQUIRED: Final = {
    *("HIT", "MOVED", "FILLED", "LOST_RACE", "STRIPE", "STRIPE_ABSENT", "FLOOR", "TABLE_FLOOR", "PARTS"),
    *("DEAD", "BEHIND", "IDENTITY"),
}
"""Outcomes of reads whose node said what they must show. Others tell their reader that it did not (I10)."""

STORED: Final = HITS | {"FILLED"}

NOTICED_SECONDS: Final = 2.0
"""A reader asks once a second which history there is."""

SECOND: Final = 1_000_000

Rising = Sequence[tuple[float, int]]
"""(time, the latest version that was there by then), by time."""

Demand = tuple[str, Mapping[str, Rising], float]
"""A rule, a history of each unit, and the time at which it says which version is the least."""


@dataclass(slots=True)
class Version:
    """``order``: the time at which its writer began. ``end``: when its commit was answered; infinite if it never
    was. ``acknowledged``: by node, when it was first seen in a record, and could no longer be missed."""

    order: int
    value: int | None
    begin: float
    end: float = math.inf
    gtids: str | None = None
    is_lost: bool = False
    acknowledged: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bounds:
    """``staleness`` bounds hits, in seconds. Readers trust a copy of a record for ``refresh`` seconds.
    ``is_semisynchronous``: the log has a commit before the primary shows it to anybody."""

    flavor: str
    staleness: float
    refresh: float
    is_semisynchronous: bool = False


@dataclass(slots=True)
class Verdict:
    """``violations`` begin with the invariant. ``judged`` counts values by what was demanded of them."""

    reads: int = 0
    hits: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    violations: list[str] = field(default_factory=list)


class Judge:
    """Judges lines of journals, see `integration.chaos.journal`."""

    def __init__(self, lines: Iterable[Mapping[str, Any]], bounds: Bounds) -> None:
        self._bounds = bounds
        self._kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for line in lines:
            self._kinds[line["kind"]].append(line)
        self._units: dict[str, list[Version]] = defaultdict(list)
        self._unnoticed: list[tuple[float, float]] = []
        self._find_versions()
        self._lose()
        self._acknowledge()
        self._orders = {unit: [each.order for each in versions] for unit, versions in self._units.items()}
        self._done = {unit: _rising(versions, lambda each: each.end) for unit, versions in self._units.items()}
        nodes = {line["node"] for line in self._kinds["record"]}
        self._told = {
            node: {
                unit: _rising(versions, lambda each, node=node: each.acknowledged.get(node, math.inf))
                for unit, versions in self._units.items()
            }
            for node in nodes
        }

    def judge(self) -> Verdict:
        verdict = Verdict(writes=len(self._kinds["commit"]))
        for line in self._kinds["read"]:
            self._judge_read(line, verdict)
        verdict.violations += [f"I5: not all keys of {line['name']} are hits" for line in self._kinds["cold"]]
        for kind in ("refused", "refused write"):
            for line in self._kinds[kind]:
                verdict.refusals[f"{line['error']}{' of a write' * (kind == 'refused write')}"] += line.get(
                    "count", 1
                )
                if "unknown" in line:
                    verdict.violations.append(f"I8: a read raised {line['unknown']}")
        return verdict

    # -- what was written ------------------------------------------------------------------------------

    def _find_versions(self) -> None:
        ends = {line["version"]: line for line in self._kinds["commit"]}
        for line in self._kinds["intent"]:
            end = ends.get(line["version"], {})
            for unit, value in line["units"].items():
                version = Version(line["version"], value, line["begin"], end.get("end", math.inf), end.get("gtids"))
                self._units[unit].append(version)
        for line in self._kinds["initial"]:
            for unit, value in line["units"].items():
                self._units[unit].append(Version(0, value, 0, 0))
        for versions in self._units.values():
            versions.sort(key=lambda each: each.order)

    def _lose(self) -> None:
        """A promotion loses what its new primary does not have. A log is in order: a unit that does not say what was
        kept has lost what began after the answer to a lost commit, and nothing that was answered before a kept one
        began. Nobody knows of its other versions."""
        for line in self._kinds["promotion"]:
            kept, at = line["kept"], line["at"]
            lost = [each for unit, order in kept.items() for each in self._units[unit] if order < each.order < at]
            for version in lost:
                version.is_lost = True
            first = min((version.end for version in lost), default=math.inf)
            if first == math.inf:
                continue
            for version in (each for unit in self._units.keys() - kept for each in self._units[unit]):
                version.is_lost |= first < version.begin < at
                if max(kept.values()) < version.end and version.begin <= first:
                    version.end, version.gtids = math.inf, None

    def _acknowledge(self) -> None:
        flavor, grace = self._bounds.flavor, self._bounds.refresh * SECOND
        records: dict[str, list[Any]] = defaultdict(list)
        for line in sorted(self._kinds["record"], key=lambda line: line["at"]):
            of_node = records[line["node"]]
            is_new = bool(of_node) and of_node[-1][2] != line["life"]
            at = line["at"] + grace * is_new
            of_node.append((at, parse_position(flavor, line["progress"]), line["life"], line["primary"]))
        for line in self._kinds["promotion"]:
            if any(
                each.is_lost and each.order < line["at"] for versions in self._units.values() for each in versions
            ):
                self._notice(line["at"], records)
        for versions in self._units.values():
            for version in versions:
                if version.gtids is None or version.is_lost:
                    continue
                position = parse_position(flavor, version.gtids)
                # The numbers of a lost history are given again, and a record of that history says nothing of them
                least = max((end for at, end in self._unnoticed if at < version.order), default=0.0)
                for node, of_node in records.items():
                    found = bisect_left(of_node, True, key=lambda one: one[0] >= least and one[1].contains(position))
                    if found < len(of_node):
                        # A DELETE of nothing has the GTIDs of the commit before it
                        version.acknowledged[node] = max(of_node[found][0], version.begin)

    def _notice(self, at: float, records: Mapping[str, Sequence[Any]]) -> None:
        """A loss is noticed when the record of each node follows another primary."""
        noticed = at
        for of_node in records.values():
            known = [(one[0], one[3]) for one in of_node if one[3]]
            last = next((primary for seen, primary in reversed(known) if seen < at), "")
            noticed = max(noticed, next((seen for seen, primary in known if seen > at and primary != last), math.inf))
        self._unnoticed.append((at, noticed + NOTICED_SECONDS * SECOND))

    # -- what was read ---------------------------------------------------------------------------------

    def _judge_read(self, line: Mapping[str, Any], verdict: Verdict) -> None:
        together: dict[str, set[Any]] = defaultdict(set)
        when = f"read {line['begin']} to {line['end']}"
        for outcome, node, is_primary, values in line["reads"]:
            verdict.reads += len(values)
            verdict.hits += len(values) * (outcome in HITS)
            verdict.outcomes[outcome] += len(values)
            demands = list(self._demands(line, outcome, node, is_primary))
            for unit, value in values:
                together[unit].add(value)
                verdict.violations += [
                    f"{rule}: {line['name']} {unit}, {outcome} of {node}, {when}: {why}"
                    for rule, why in self._judge_value(line, unit, value, outcome in HITS, demands, verdict.judged)
                ]
        if line["together"]:
            verdict.judged["I11"] += len(together)
            verdict.violations += [
                f"I11: {line['name']} {unit} {when}: {sorted(map(str, values))}"
                for unit, values in together.items()
                if len(values - self._find_hidden_losses(line, unit)) > 1
            ]

    def _judge_value(
        self,
        line: Mapping[str, Any],
        unit: str,
        value: Any,
        is_hit: bool,
        demands: Sequence[Demand],
        judged: Counter[str],
    ) -> Iterator[tuple[str, str]]:
        """What is wrong with it: the rule and why."""
        if isinstance(value, str):
            yield "I11", f"the value is {value}"
            return
        found = self._find_shown(unit, value, line["end"])
        shown = next(found, None)
        if shown is None:
            yield "value", f"{value} was never written by then"
            return
        if shown.is_lost and is_hit and self._is_over(line["begin"]):
            shown = next((each for each in found if not each.is_lost), shown)
            if shown.is_lost:
                yield "I7", f"{value} was lost by a promotion"
        if line.get("final"):
            [rows] = self._kinds["rows"]
            judged["end"] += 1
            if value != rows["units"][unit]:
                yield "end", f"{value}, and the primary has {rows['units'][unit]}"
        least = [(rule, _last(rising[unit], at)) for rule, rising, at in demands]
        if (
            unit in line["own"]
            and self._is_noticed(line["begin"], line["end"])
            and not self._is_lost(unit, line["own"][unit])
        ):
            least.append(("I9", line["own"][unit]))
        for rule, order in least:
            judged[rule] += 1
            if shown.order < order:
                yield rule, f"{shown.order} where {order} was demanded"

    def _demands(self, line: Mapping[str, Any], outcome: str, node: str, is_primary: bool) -> Iterator[Demand]:
        """The values must be as new as these histories at these times, by rule."""
        begin = line["begin"] - LOCAL_COPY_SECONDS * SECOND * (outcome == "LOCAL_HIT")
        if outcome in HITS:
            yield "I7", self._done, begin - self._bounds.staleness * SECOND
        says_bounded = outcome in STORED or not is_primary or self._bounds.flavor == "mysql"
        is_due = outcome in REQUIRED and (
            says_bounded or (not self._bounds.is_semisynchronous and self._is_primary(begin, line["end"]))
        )
        if is_due and self._is_noticed(begin, line["end"]) and node in self._told:
            yield "I1" if outcome in HITS else "I10", self._told[node], begin
        if is_primary and self._is_primary(begin, line["end"]):
            yield "primary", self._done, begin

    def _is_noticed(self, begin: float, end: float) -> bool:
        """Whether readers know by now of each loss."""
        return not any(at <= end and begin <= until for at, until in self._unnoticed)

    def _find_hidden_losses(self, line: Mapping[str, Any], unit: str) -> set[Any]:
        """Values that a promotion lost, which nobody can see yet: on MariaDB the numbers of the new primary's GTIDs
        include those of the lost ones."""
        if self._bounds.flavor != "mariadb" or self._is_noticed(line["begin"], line["end"]):
            return set()
        return {each.value for each in self._units[unit] if each.is_lost}

    def _find_shown(self, unit: str, value: int | None, end: float) -> Iterator[Version]:
        """The versions that the value can be, the latest first."""
        versions = self._units[unit]
        if value is not None and unit in self._orders:
            place = bisect_left(self._orders[unit], value)
            found = versions[place : place + 1]
        else:
            found = versions[bisect_right(self._orders[unit], end) - 1 :: -1] if versions else []
        return (each for each in found if each.value == value and each.begin <= end)

    def _is_lost(self, unit: str, order: int) -> bool:
        return self._units[unit][bisect_left(self._orders[unit], order)].is_lost

    def _is_primary(self, begin: float, end: float) -> bool:
        """Whether the server that readers know as the primary is it."""
        promotions, named = self._kinds["promotion"], self._kinds["named"]
        return all(
            end < line["begin"] or any(line["begin"] < each["at"] < begin for each in named) for line in promotions
        )

    def _is_over(self, begin: float) -> bool:
        """Whether the last promotion was longer ago than a hit may be old."""
        last: float = max(line["at"] for line in self._kinds["promotion"])
        return begin > last + self._bounds.staleness * SECOND


def _rising(versions: Sequence[Version], find: Any) -> Rising:
    points = sorted((find(each), each.order) for each in versions if not each.is_lost and find(each) < math.inf)
    latest, rising = 0, []
    for at, order in points:
        latest = max(latest, order)
        rising.append((at, latest))
    return rising


def _last(rising: Rising, at: float) -> int:
    """The latest version of before ``at``."""
    place = bisect_left(rising, (at, -1))
    return rising[place - 1][1] if place else 0
