"""The tables of docs/testing.md and the sentence of README.md on the runs of ``make chaos``: `RESULTS`."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[1] / "integration" / "chaos" / "results.json"
AUDITS: Final = {None: [], 0: ["audit clean"]}
USUAL_SECONDS: Final = 600
READS_OF_ONE: Final = 3
"""Without a violation in N reads there is less than one in N / 3, at 95 % (the rule of three)."""


def load_runs(*, is_planted: bool = False) -> list[dict[str, Any]]:
    return [run for run in json.loads(RESULTS.read_text()) if bool(run["bug"]) == is_planted]


def runs() -> Iterator[tuple[str, ...]]:
    """One row for all runs on the same servers."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in load_runs():
        semisync = ", semi-synchronous" * run.get("semisync", False)
        groups[f"{run['flavor']}, {run['cache']}{semisync}"].append(run)
    for name, same in sorted(groups.items()):
        counts = [sum(run[key] for run in same) for key in ("reads", "hits", "writes", "violations")]
        counts.insert(3, sum(fault["times"] for run in same for fault in run["faults"]))
        yield name, ", ".join(map(_seed_of, same)), *(f"{count:,}" for count in counts)


def _seed_of(run: dict[str, Any]) -> str:
    """Its seed, and what sets the run apart."""
    apart = [f"{run['seconds']} s"] * (run["seconds"] != USUAL_SECONDS) + AUDITS[run["audit"]]
    return f"{run['seed']} ({', '.join(apart)})" if apart else str(run["seed"])


def faults() -> Iterator[tuple[str, ...]]:
    """Each kind of fault in all runs: the share is of all values, the time is the longest."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in load_runs():
        for fault in run["faults"]:
            kinds[fault["fault"]].append(fault)
    for name, same in sorted(kinds.items()):
        answered = sum(one["answered"] * one["values"] for one in same)
        values = max(1, sum(one["values"] for one in same))
        slowest = max(one["slowest_read_seconds"] for one in same)
        times = sum(one["times"] for one in same)
        yield name, str(times), f"{math.floor(1000 * answered / values) / 10:.1f} %", f"{slowest:.1f}"


def bugs() -> Iterator[tuple[str, ...]]:
    """Those that a run found, then those that none did."""
    found = {run["bug"]: run for run in load_runs(is_planted=True) if run["violations"]}
    for name, run in found.items():
        yield name, str(run["seed"]), f"{run['violations']:,}", ", ".join(run["kinds"])
    missed = sorted({run["bug"] for run in load_runs(is_planted=True)} - found.keys())
    yield "; ".join(missed), "–", "0", ""


def sentence() -> str:
    runs = load_runs()
    reads, commits, wrong = (sum(run[name] for run in runs) for name in ("reads", "writes", "violations"))
    strikes = sum(fault["times"] for run in runs for fault in run["faults"])
    read = f"{reads:,} values were read during {commits:,} commits and {strikes:,} faults"
    if wrong:
        return f"{read}.\nViolations: {wrong:,}.\n"
    rare = f"less than one of {reads // READS_OF_ONE:,} is, at 95 %, if reads are independent"
    return f"{read}, and none was wrong:\n{rare}.\n"
