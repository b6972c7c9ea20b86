"""The figures of README.md, from the last whole run of ``make bench``: ``benchmarks/results.json``.

Every figure leans against this project. Of several results of one kind (flavors, placements) the worst one counts;
rates are rounded down, times, sizes and costs up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Final

LINE_CHARACTERS_MAX: Final = 118
RESULTS: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "results.json"


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one run by name. A name stands for the results of all flavors and placements that fit it."""

    results: tuple[dict[str, Any], ...]

    @classmethod
    def load(cls, path: Path = RESULTS) -> Results:
        return cls(tuple(json.loads(path.read_text())["results"]))

    def find(self, name: str, field: str) -> list[float]:
        """Raises `LookupError` where no result fits ``name``, a regular expression without the placement."""
        whole = re.compile(rf"{name}(_same_core|_other_core)?")
        found = [float(each[field]) for each in self.results if whole.fullmatch(each["name"])]
        if not found:
            raise LookupError(f"{RESULTS.name} has no result {name}: run make bench")
        return found


def figures(results: Results) -> str:
    """The list of README's section on speed."""
    singles, thousands = "end_to_end_[a-z]+_singles", "end_to_end_[a-z]+_thousands"
    times = math.floor(min(results.find(singles, "ratio") + results.find(thousands, "ratio")))
    decoded = _millions(results.find("decode_[a-z]+_(varied_|wide_)?rows", "value"))
    fetched = _millions(results.find("stream_[a-z]+_(varied_|wide_)?rows", "baseline_value"))
    whole = "decode_[a-z]+_whole_(wide_)?rows"
    faster = math.floor(min(results.find(whole, "ratio")))
    p50, p99 = (_up(results.find(f"lag_[a-z]+_{name}", "value"), -2) / 1000 for name in ("p50", "p99"))
    hit, many = _up(results.find("hit", "ratio"), 2), _up(results.find("get_many", "ratio"), 2)
    stream, transaction = (_up(results.find(f"memory_{name}", "value"), 0) for name in ("stream", "transaction"))
    lines = (
        f"One process takes {_down(results.find(singles, 'value'))} single-row transactions a second from the log to "
        f"acknowledged invalidations, or {_down(results.find(thousands, 'value'))} rows of large transactions: at "
        f"least {times} times as much as a loop of mysql-replication and pymemcache. Keys are decoded at {decoded} "
        f"million rows a second, by the shape of the rows; the server's own tool fetches a log of row events at "
        f"{fetched} million. Whole rows are decoded at {_down(results.find(whole, 'value'))} rows a second and more, "
        f"{faster} times as fast as by mysql-replication.",
        f"Commit to acknowledged invalidation at 2,000 commits a second: {p50:g} ms, and {p99:g} ms at the 99th "
        "percentile.",
        f"A hit takes {hit:g} times a `get` of pymemcache; `get_many` over four nodes {many:g} of its "
        "`HashClient.get_many`.",
        f"{stream:g} MB of memory, however long the log; {transaction:g} MB for a transaction of a million rows.",
    )
    return "".join(
        fill(line, LINE_CHARACTERS_MAX, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False) + "\n"
        for line in lines
    )


def _down(values: Iterable[float]) -> str:
    """The smallest rate, with two digits that mean something."""
    value = min(values)
    step = 10 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / step) * step:,}"


def _millions(values: list[float]) -> str:
    low, high = (math.floor(each / 1e5) / 10 for each in (min(values), max(values)))
    return f"{low:g} to {high:g}"


def _up(values: Iterable[float], digits: int) -> float:
    """The largest cost, rounded up to so many digits behind the point."""
    step = 10.0**digits
    return math.ceil(max(values) * step) / step
