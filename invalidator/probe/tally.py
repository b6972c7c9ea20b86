"""The counts of a prober, and how sure they make: nines with a confidence. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from freshness.comparison.comparison import EntryVerdict
from freshness.comparison.share import wilson_bounds

Verdict: TypeAlias = Literal["right", "absent", "lag", "loss", "unknown"]
"""right: the row is served, or a later change was on its way. absent: nothing is served, or no longer. lag: something
else is served, and the node had not acknowledged the change. loss: something else is served, and the node had
acknowledged all that the primary had. unknown: a server did not answer, or nothing was decided."""

VERDICTS: Final = get_args(Verdict)

DropReason: TypeAlias = Literal["merged", "full", "overdue", "suspects"]
"""merged: the key waits for its first comparison already. full: no room in the schedule. overdue: the bound of the
rate let it wait for so long that it says nothing of its scale. suspects: too many entries differ at once."""

SWEEP: Final = "sweep"
"""The scale of comparisons that no change led to."""

ERRORS_MAX: Final = 20

CONFIDENCE_Z: Final = 1.645
"""The bound of one side holds in 95 of 100 cases."""

LAG_BUCKETS_SECONDS: Final = (0.5, 1, 2, 5, 10, 30, 60, 300, 600, math.inf)


def lower_bound(right: int, total: int) -> float:
    """The share of which one can be 95 % sure after ``right`` of ``total`` (Wilson's lower bound); 0 after none."""
    return wilson_bounds(right, total, CONFIDENCE_Z)[0]


def count_nines(share: float) -> float:
    """0.999 has 3 nines. ``share``: below 1."""
    return -math.log10(1.0 - share)


@dataclass(slots=True)
class ProbeTally:
    """All counts of one prober. ``verdicts``: by object, scale and verdict. ``losses``: entries by object, each
    counted once. ``repaired`` and ``not_repaired``: by object. ``lags``: by bucket, the seconds from a change until
    it was seen at the node, of those that were late; ``lag_seconds``: their sum. ``uncomparable``: entries of
    composites. ``waiting`` and ``suspects``: current numbers of comparisons that are to come, and of entries that
    differ. ``findings``: the first poisoned entries, by item and digest."""

    verdicts: Counter[tuple[str, str, Verdict]] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    not_repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    lags: Counter[float] = field(default_factory=Counter)
    lag_seconds: float = 0.0
    changes: int = 0
    sweeps: int = 0
    uncomparable: int = 0
    waiting: int = 0
    suspects: int = 0
    findings: dict[tuple[bytes, str], EntryVerdict] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)

    def note_error(self, error: str) -> None:
        """Why something is unknown. The first ones are kept."""
        if error and len(self.errors) < ERRORS_MAX:
            self.errors[error] = None

    def note_lag(self, seconds: float) -> None:
        self.lags[next(bound for bound in LAG_BUCKETS_SECONDS if seconds <= bound)] += 1
        self.lag_seconds += seconds

    def total(self, verdict: Verdict) -> int:
        return sum(count for (_, _, found), count in self.verdicts.items() if found == verdict)
