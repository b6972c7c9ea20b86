"""The result of a live audit as a value, its exit code, and how it is shown. Knows nothing of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshness.comparison.comparison import EQUAL, IN_FLIGHT, NOT_COMPARABLE, POISONED, UNKNOWN, EntryVerdict
from freshness.comparison.entry import LIVE, UNAVAILABLE
from freshness.comparison.repair import Condemned

OK: Final = 0
NO_ANSWER: Final = 3
STALE_DATA: Final = 5

EXAMPLES_MAX: Final = 20
ERRORS_MAX: Final = 20

_SINGLE: Final = (POISONED, UNKNOWN)
"""Verdicts of which single entries are shown."""


def condense(verdicts: Iterable[EntryVerdict], repairs_max: int) -> Iterator[EntryVerdict]:
    """The verdicts of a task as few rows: examples, servers that did not answer, at most ``repairs_max`` poisoned
    entries that are to be removed, and counts of all others. The counts of the rows make the number of verdicts."""
    counts: Counter[tuple[str, str]] = Counter()
    shown: Counter[str] = Counter()
    errors: set[str] = set()
    poisoned = 0
    for each in verdicts:
        poisoned += each.verdict == POISONED
        is_example = each.verdict in _SINGLE and each.item is not None and shown[each.verdict] < EXAMPLES_MAX
        is_new_error = _is_no_answer(each) and each.error not in errors and len(errors) < ERRORS_MAX
        if is_example or is_new_error:
            shown[each.verdict] += is_example
            if is_new_error:
                errors.add(each.error)
            yield each
        elif each.verdict == POISONED and poisoned <= repairs_max:
            yield replace(each, positions="", cached="", primary="", error="")
        else:
            counts[each.state, each.verdict] += 1
    for (state, verdict), count in counts.items():
        yield EntryVerdict("", None, "", state, verdict, count=count)


def _is_no_answer(verdict: EntryVerdict) -> bool:
    is_silent = verdict.verdict == UNKNOWN and verdict.state == LIVE and not verdict.cached
    return bool(verdict.error) and (verdict.state == UNAVAILABLE or is_silent)


def find_condemned(verdicts: Iterable[EntryVerdict]) -> list[Condemned]:
    """The poisoned entries among these rows."""
    return [
        Condemned(each.node, each.item, each.entry_digest, each.lineages)
        for each in verdicts
        if each.verdict == POISONED and each.item is not None
    ]


@dataclass(frozen=True, slots=True)
class Example:
    """One entry that is not as it should be, or of which that is not known."""

    node: str
    item: str
    object: str
    verdict: str
    positions: str
    cached: str
    primary: str
    error: str

    @classmethod
    def of(cls, verdict: EntryVerdict) -> Example:
        cells = {name: getattr(verdict, name) for name in (field.name for field in fields(cls))}
        return cls(**{**cells, "item": (verdict.item or b"").decode("ascii", "backslashreplace")})


def _rank(verdict: EntryVerdict) -> tuple[bool, str, bytes]:
    """The poisoned ones first."""
    return verdict.verdict != POISONED, verdict.node, verdict.item or b""


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Counts of entries. ``compared``: entries found equal or poisoned. ``in_flight``: entries that changed during
    the comparison, which says neither. ``unknown``: entries of which it cannot be said whether they are served, or
    whether what is served is right. ``unavailable``: nodes and databases that did not answer, and why. ``repaired``:
    poisoned ones that are gone. ``not_repaired``: why others are still there, if they were to be removed."""

    nodes: int
    entries: int
    live: int
    compared: int
    poisoned: int
    in_flight: int
    unknown: int
    not_comparable: int
    repaired: int = 0
    not_repaired: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()

    @classmethod
    def of(cls, nodes: int, verdicts: Sequence[EntryVerdict]) -> AuditSummary:
        """``verdicts``: verdicts of all tasks, as `condense` gives them."""

        def total(*wanted: str) -> int:
            return sum(each.count for each in entries if each.verdict in wanted)

        entries = [each for each in verdicts if each.state != UNAVAILABLE]
        # A poisoned entry without its value is there to be removed, not to be shown.
        single = [
            each
            for each in entries
            if each.item is not None
            and (each.verdict == UNKNOWN or (each.verdict == POISONED and each.cached))
        ]
        return cls(
            nodes=nodes,
            entries=sum(each.count for each in entries),
            live=sum(each.count for each in entries if each.state == LIVE),
            compared=total(EQUAL, POISONED),
            poisoned=total(POISONED),
            in_flight=total(IN_FLIGHT),
            unknown=total(UNKNOWN),
            not_comparable=total(NOT_COMPARABLE),
            unavailable=tuple(sorted({each.error for each in verdicts if _is_no_answer(each)})[:ERRORS_MAX]),
            examples=tuple(Example.of(each) for each in sorted(single, key=_rank)[:EXAMPLES_MAX]),
        )

    def with_repairs(self, outcomes: Mapping[tuple[bool, str], int]) -> AuditSummary:
        """``outcomes``: the number of `Repair`, by ``is_gone`` and ``error``."""
        repaired = sum(count for (is_gone, _), count in outcomes.items() if is_gone)
        reasons = [f"{count:,}: {error}" for (is_gone, error), count in outcomes.items() if not is_gone]
        untried = self.poisoned - sum(outcomes.values())
        if untried:
            reasons.append(f"{untried:,}: a run removes a bounded number of entries; run the job again")
        return replace(self, repaired=repaired, not_repaired=tuple(sorted(reasons)[:ERRORS_MAX]))

    @property
    def exit_code(self) -> int:
        """5 with a poisoned entry; 3 where anything is unknown, or nothing of what is live could be compared."""
        if self.poisoned:
            return STALE_DATA
        if self.unavailable or self.unknown or (self.live and not self.compared):
            return NO_ANSWER
        return OK

    @property
    def conclusion(self) -> str:
        """One sentence for the exit code."""
        of_live = f"{self.compared:,} of {self.live:,} live entries"
        if self.poisoned:
            return f"{self.poisoned:,} poisoned; {of_live} were compared"
        if self.live and not self.compared:
            return (
                f"nothing is proved: none of {self.live:,} live entries could be compared ({self.in_flight:,} in"
                f" flight, {self.not_comparable:,} not comparable, {self.unknown:,} unknown); of those in flight, ask"
                " again while fewer rows change"
            )
        if self.unavailable or self.unknown:
            return f"not known: {self.unknown:,} entries are unknown; {of_live} are equal to their rows"
        if not self.live:
            return "no entry is live: there was nothing to compare"
        return f"{of_live} were compared, and all are equal to their rows"

    def to_json(self) -> Mapping[str, Any]:
        return {**asdict(self), "conclusion": self.conclusion}


def print_summary(summary: AuditSummary, console: Console) -> None:
    counts = Table(title="live audit")
    counts.add_column("what")
    counts.add_column("count", justify="right")
    for name, count in summary.to_json().items():
        if isinstance(count, int):
            counts.add_row(name.replace("_", " "), f"{count:,}")
    console.print(counts)
    if summary.examples:
        table = Table(title="examples")
        for title in ("verdict", "node", "key", "cached", "primary", "why", "read at"):
            table.add_column(title, overflow="fold")
        for one in summary.examples:
            shown = (one.verdict, one.node, one.item, one.cached, one.primary, one.error, one.positions)
            table.add_row(*map(escape, shown))
        console.print(table)
    for error in summary.unavailable:
        console.print(f"no answer: {escape(error)}")
    for reason in summary.not_repaired:
        console.print(f"not repaired: {escape(reason)}")
    console.print(summary.conclusion)
