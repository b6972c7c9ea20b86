"""The result of a live audit as a value, its exit code, and how it is shown. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from spark.live.comparison import EQUAL, IN_FLIGHT, NOT_COMPARABLE, POISONED, UNKNOWN
from spark.live.entry import LIVE, UNAVAILABLE

OK: Final = 0
NO_ANSWER: Final = 3
STALE_DATA: Final = 5


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


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Counts of entries. ``compared``: those found equal or poisoned. ``in_flight``: those that changed meanwhile,
    which says neither. ``unknown``: those of which it cannot be said whether they are served, or whether what is
    served is right. ``unavailable``: what did not answer, and why. ``repaired``: poisoned ones that were removed."""

    nodes: int
    entries: int
    live: int
    compared: int
    poisoned: int
    in_flight: int
    unknown: int
    not_comparable: int
    repaired: int = 0
    unavailable: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()

    @classmethod
    def of(
        cls,
        nodes: int,
        counts: Mapping[tuple[str, str], int],
        repaired: int,
        unavailable: tuple[str, ...],
        examples: tuple[Example, ...],
    ) -> AuditSummary:
        """``counts``: by state and verdict, with a row for each server that did not answer."""

        def total(*wanted: str) -> int:
            return sum(
                count
                for (state, verdict), count in counts.items()
                if verdict in wanted and state != UNAVAILABLE
            )

        return cls(
            nodes=nodes,
            entries=sum(count for (state, _), count in counts.items() if state != UNAVAILABLE),
            live=sum(count for (state, _), count in counts.items() if state == LIVE),
            compared=total(EQUAL, POISONED),
            poisoned=total(POISONED),
            in_flight=total(IN_FLIGHT),
            unknown=total(UNKNOWN),
            not_comparable=total(NOT_COMPARABLE),
            repaired=repaired,
            unavailable=unavailable,
            examples=examples,
        )

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
    """For a person."""
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
            table.add_row(*map(_escape, shown))
        console.print(table)
    for error in summary.unavailable:
        console.print(f"no answer: {_escape(error)}")
    console.print(summary.conclusion)


def _escape(text: str) -> str:
    """Keys and values are data: brackets in them are no markup."""
    return text.replace("[", "\\[")
