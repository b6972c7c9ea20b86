"""The result of a live audit as a value, its exit code, and how it is shown. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

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
    """Counts of entries. ``compared``: those with a verdict. ``unknown``: those of which it cannot be said whether
    they are served, or whether what is served is right. ``unavailable``: what did not answer, and why.
    ``repaired``: poisoned entries that were removed."""

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

    @property
    def exit_code(self) -> int:
        """5 with a poisoned entry; 3 where anything is unknown, or nothing of what is live could be compared."""
        if self.poisoned:
            return STALE_DATA
        if self.unavailable or self.unknown or (self.live and not self.compared):
            return NO_ANSWER
        return OK

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


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
        for title in ("verdict", "node", "key", "cached", "primary", "read at"):
            table.add_column(title, overflow="fold")
        for one in summary.examples:
            shown = (one.verdict, one.node, one.item, one.cached, one.primary or one.error, one.positions)
            table.add_row(*map(_escape, shown))
        console.print(table)
    for error in summary.unavailable:
        console.print(f"no answer: {_escape(error)}")


def _escape(text: str) -> str:
    """Keys and values are data: brackets in them are no markup."""
    return text.replace("[", "\\[")
