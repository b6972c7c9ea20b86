"""How a number is taken: rounds of the baseline and of the candidate in turn, and the median of them.

A B A B in one process, so that whatever else the machine does hits both. The median is that of the ratios, and
both values come from its round: a machine that changes its pace on the way (a round trip on loopback takes 15 or
45 µs, depending on the core that the scheduler chooses) would else pair the one pace with the other.
The module does not depend on the measured work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from freshness.errors import ConfigError

ROUNDS: Final = 5
ROUNDS_MIN: Final = 5

Work = Callable[[int], float]
"""Does the work of one round, given its number, and returns its seconds (see `stopwatch`)."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """The bound that a ratio must keep. Exactly one of the two is given."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        assert (self.at_least is None) != (self.at_most is None), "a criterion has one bound"

    def holds(self, ratio: float) -> bool:
        if self.at_least is not None:
            return ratio >= self.at_least
        return self.at_most is None or ratio <= self.at_most

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """One comparison. ``ratio`` is value / baseline_value. ``spread``: the lowest and the highest ratio of all
    rounds. ``points``: of a curve, (what grows, value); ``axis``: what grows; ``baseline_points``: the baseline's own
    curve, if any. ``is_share``: it is one of a whole, and neither more nor less is better."""

    name: str
    value: float
    unit: str
    baseline: str
    baseline_value: float
    spread: tuple[float, float]
    criterion: Criterion | None = None
    points: tuple[tuple[float, float], ...] = ()
    axis: str = ""
    baseline_points: tuple[tuple[float, float], ...] = ()
    is_share: bool = False

    @property
    def is_better_high(self) -> bool:
        """Whether more is better: of rates. Less is better of times and sizes."""
        return self.unit.endswith("/s")

    @property
    def ratio(self) -> float:
        return self.value / self.baseline_value

    @property
    def is_met(self) -> bool:
        """Whether the ratio meets the criterion; True without a criterion."""
        return self.criterion is None or self.criterion.holds(self.ratio)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "baseline": self.baseline,
            "baseline_value": _rounded(self.baseline_value),
            "ratio": round(self.ratio, 3),
            "spread": [round(ratio, 3) for ratio in self.spread],
            "criterion": None if self.criterion is None else str(self.criterion),
            "is_met": self.is_met,
            **{
                name: [[x, _rounded(y)] for x, y in points]
                for name, points in (("points", self.points), ("baseline_points", self.baseline_points))
                if points
            },
        }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of every round, the candidate's right after the baseline's of the same place."""

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]

    def per_second(
        self, name: str, count: int, unit: str, baseline: str, criterion: Criterion | None = None
    ) -> Result:
        """As a rate, of ``count`` pieces of work in a round."""
        return self._result(name, lambda seconds: count / seconds, unit, baseline, criterion)

    def microseconds(self, name: str, count: int, baseline: str, criterion: Criterion | None = None) -> Result:
        """As the time of one of ``count`` pieces of work in a round."""
        return self._result(name, lambda seconds: seconds / count * 1e6, "µs", baseline, criterion)

    def _result(
        self, name: str, convert: Callable[[float], float], unit: str, baseline: str, criterion: Criterion | None
    ) -> Result:
        pairs = [(convert(ours), convert(theirs)) for ours, theirs in zip(self.candidate, self.baseline, strict=True)]
        pairs.sort(key=lambda pair: pair[0] / pair[1])
        value, baseline_value = pairs[(len(pairs) - 1) // 2]
        spread = pairs[0][0] / pairs[0][1], pairs[-1][0] / pairs[-1][1]
        return Result(name, value, unit, baseline, baseline_value, spread, criterion)


def interleave(candidate: Work, baseline: Work, rounds: int) -> Timings:
    """Run both ``rounds`` times in turn, the baseline first, after one unmeasured round (number 0) of each.

    Raises `ConfigError` for fewer rounds than make a median.
    """
    if rounds < ROUNDS_MIN:
        raise ConfigError(
            f"{rounds} rounds of a benchmark", hint=f"at least {ROUNDS_MIN}: the result is their median"
        )
    baseline(0)
    candidate(0)
    candidate_seconds, baseline_seconds = [], []
    for number in range(1, rounds + 1):
        baseline_seconds.append(baseline(number))
        candidate_seconds.append(candidate(number))
    return Timings(tuple(candidate_seconds), tuple(baseline_seconds))


def stopwatch(work: Callable[[], object]) -> float:
    """Seconds that ``work`` took. Callers prepare its input before and check its results after."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def paced(work: Callable[[], object], rate: float) -> Iterator[None]:
    """Call ``work`` so often a second in a thread. Raises the error of a call."""
    ending = threading.Event()

    def run() -> None:
        begun, number = time.monotonic(), 0
        while not ending.wait(begun + number / rate - time.monotonic()):
            work()
            number += 1

    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(run)
        try:
            yield
        finally:
            ending.set()
        calls.result()
