"""The result of a prober as a value, its exit code, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from invalidator.probe.tally import SWEEP, VERDICTS, ProbeTally, count_nines, lower_bound

OK: Final = 0
NO_ANSWER: Final = 3
STALE_DATA: Final = 5

EXAMPLES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """One object at one scale. ``scale``: seconds after a change, or "sweep". The numbers are of comparisons, by
    verdict. ``nines``: at least, with 95 % confidence, of the share of served entries that were right; cut to tenths.
    """

    object: str
    scale: str
    right: int
    absent: int
    lag: int
    loss: int
    unknown: int
    nines: float

    @property
    def served(self) -> int:
        """Comparisons that found something served, and say whether it was right."""
        return self.right + self.lag + self.loss


@dataclass(frozen=True, slots=True)
class ProbeExample:
    """A poisoned entry. ``cached`` and ``primary``: values as they are shown."""

    node: str
    item: str
    object: str
    cached: str
    primary: str
    error: str


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """``losses``: poisoned entries. ``dropped``: comparisons that were not made, by reason. ``late``: comparisons
    that found lag; ``lag_seconds_mean``: mean time from the change until its invalidation was seen, in seconds."""

    results: tuple[ScaleResult, ...]
    losses: int
    repaired: int
    not_repaired: int
    changes: int
    sweeps: int
    late: int
    lag_seconds_mean: float | None
    dropped: Mapping[str, int]
    uncomparable: int
    errors: tuple[str, ...]
    examples: tuple[ProbeExample, ...]

    @classmethod
    def of(cls, tally: ProbeTally) -> ProbeSummary:
        measured = sum(tally.lags.values())
        return cls(
            results=tuple(
                _result(tally, name, scale) for name, scale in sorted({key[:2] for key in tally.verdicts}, key=_rank)
            ),
            losses=sum(tally.losses.values()),
            repaired=sum(tally.repaired.values()),
            not_repaired=sum(tally.not_repaired.values()),
            changes=tally.changes,
            sweeps=tally.sweeps,
            late=tally.total("lag"),
            lag_seconds_mean=round(tally.lag_seconds / measured, 3) if measured else None,
            dropped={str(reason): count for reason, count in sorted(tally.dropped.items())},
            uncomparable=tally.uncomparable,
            errors=tuple(tally.errors),
            examples=tuple(
                ProbeExample(
                    each.entry.node,
                    each.entry.item.decode("ascii", "backslashreplace"),
                    each.entry.object,
                    each.cached,
                    each.primary,
                    each.error,
                )
                for each in list(tally.findings.values())[:EXAMPLES_MAX]
            ),
        )

    @property
    def unknown(self) -> int:
        return sum(each.unknown for each in self.results)

    @property
    def right(self) -> int:
        return sum(each.right for each in self.results)

    @property
    def exit_code(self) -> int:
        """5 with a loss; 3 where anything is unknown, or no served entry was seen to be right."""
        if self.losses:
            return STALE_DATA
        return NO_ANSWER if self.unknown or self.errors or not self.right else OK

    @property
    def conclusion(self) -> str:
        """One sentence for the exit code."""
        served = sum(each.served for each in self.results)
        if self.losses:
            return f"{self.losses:,} poisoned, {self.repaired:,} removed; {served:,} served entries were compared"
        if self.unknown or self.errors:
            return f"not known: {self.unknown:,} comparisons are undecided; {self.right:,} of {served:,} were right"
        if not self.right:
            return "nothing is proved: no served entry was seen to be right"
        return f"{self.right:,} of {served:,} served entries were right, {self.late:,} late, and no loss was found"

    def to_json(self) -> Mapping[str, Any]:
        return {**asdict(self), "conclusion": self.conclusion}


def _rank(key: tuple[str, str]) -> tuple[str, float]:
    name, scale = key
    return name, math.inf if scale == SWEEP else float(scale)


def _result(tally: ProbeTally, name: str, scale: str) -> ScaleResult:
    right, absent, lag, loss, unknown = (tally.verdicts[name, scale, verdict] for verdict in VERDICTS)
    share = lower_bound(right, right + lag + loss)
    return ScaleResult(name, scale, right, absent, lag, loss, unknown, math.floor(10 * count_nines(share)) / 10)


def print_summary(summary: ProbeSummary, console: Console) -> None:
    table = Table(title="probes")
    for title in ("object", "within", "nines", *VERDICTS):
        table.add_column(title, justify="left" if title == "object" else "right")
    for each in summary.results:
        within = each.scale if each.scale == SWEEP else f"{each.scale} s"
        counts = (f"{getattr(each, verdict):,}" for verdict in VERDICTS)
        table.add_row(escape(each.object), within, f"{each.nines:.1f}", *counts)
    console.print(table)
    if summary.examples:
        examples = Table(title="poisoned entries")
        for title in ("node", "key", "cached", "primary", "why"):
            examples.add_column(title, overflow="fold")
        for one in summary.examples:
            examples.add_row(*map(escape, (one.node, one.item, one.cached, one.primary, one.error)))
        console.print(examples)
    for reason, count in summary.dropped.items():
        console.print(f"not compared: {count:,} ({reason})")
    for error in summary.errors:
        console.print(f"no answer: {escape(error)}")
    console.print(summary.conclusion)
