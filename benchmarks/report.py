"""What was measured, on which machine: as JSON, as a table for people, and in docs/performance.md with its curves.

And whether a ratio is worse than the one that was kept.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Result
from benchmarks.plot import draw
from freshness.errors import ConfigError
from integration.servers.process import get_program

START: Final = "<!-- benchmarks -->"
END: Final = "<!-- /benchmarks -->"
PLOTS: Final = "plots"
"""Beside the document."""

TOLERANCE: Final = 0.25
"""By how much a ratio may be worse than in the worst round of the run that was kept."""

COLUMNS: Final = ("benchmark", "result", "baseline", "", "ratio", "rounds from – to", "criterion")
LEFT_OUT: Final = ("", "rounds from – to")
"""Columns that the document leaves out."""
NEW_DOCUMENT: Final = f"""\
# Performance

Measured by `make bench`, which writes the table below. Every number stands beside a baseline that ran in the same
process on the same server, their rounds in turn; both are of the round whose ratio is the median.

{START}
{END}
"""


def describe_machine() -> dict[str, Any]:
    """The machine and its versions. ``load``: average of the last minute before the first benchmark."""
    return {
        "cpu": _find_cpu() or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "memcached": _memcached_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _find_cpu() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except FileNotFoundError:  # not Linux
        return None
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else None


def _memcached_version() -> str:
    answer = subprocess.run(
        [get_program("memcached"), "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return answer.stdout.removeprefix("memcached").strip()


def as_json(machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    return {"machine": dict(machine), "results": [result.as_json() for result in results]}


def table_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row of text for each result, as in `COLUMNS`."""
    return [
        (
            result.name,
            f"{format_number(result.value)} {result.unit}",
            result.baseline,
            f"{format_number(result.baseline_value)} {result.unit}",
            f"{result.ratio:.2f}",
            f"{result.spread[0]:.2f} – {result.spread[1]:.2f}",
            "" if result.criterion is None else f"{result.criterion} {'✓' if result.is_met else '✗ missed'}",
        )
        for result in results
    ]


def format_number(number: float) -> str:
    """At least three digits that mean something, and no more behind the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def as_markdown(machine: Mapping[str, Any], results: Sequence[Result]) -> str:
    """A table of the results with a criterion, without the better placement, and all curves."""
    judged: dict[str, Result] = {}
    for result in results:
        name = result.name.removesuffix("_same_core").removesuffix("_other_core")
        if result.criterion is not None and (name not in judged or _is_worse(result, judged[name])):
            judged[name] = result
    named = table_rows([*judged.values()])
    shown = [index for index, title in enumerate(COLUMNS) if title not in LEFT_OUT]
    rows = [[row[index] for index in shown] for row in (COLUMNS, ("---",) * len(COLUMNS), *named)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    curves = "\n".join(
        f"![{result.name}: {result.unit} by {result.axis}]({PLOTS}/{result.name}.svg)"
        for result in results
        if result.points
    )
    table = f"{table}\n\n{curves}" if curves else table
    return (
        f"{table}\n\n{machine['cpu']}, {machine['cores']} cores, load {machine['load']}, "
        f"Python {machine['python']}, memcached {machine['memcached']}, {machine['date']}."
    )


def _is_worse(result: Result, other: Result) -> bool:
    return result.ratio < other.ratio if result.is_better_high else result.ratio > other.ratio


def replace_section(document: str, section: str) -> str:
    """The document with the section between the two markers. Raises `ConfigError` if they are missing."""
    head, start, rest = document.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise ConfigError(
            f"the document has no section between {START} and {END}", hint="put both markers back into it"
        )
    return f"{head}{START}\n{section}\n{END}{tail}"


def write_document(path: Path, machine: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Bring the table in this document up to date; create the document if it is missing."""
    document = path.read_text() if path.exists() else NEW_DOCUMENT
    path.write_text(replace_section(document, as_markdown(machine, results)))
    for result in results:
        if result.points:
            plot = path.parent / PLOTS / f"{result.name}.svg"
            plot.parent.mkdir(exist_ok=True)
            title = f"{result.unit} by {result.axis}"
            plot.write_text(draw(title, result.axis, result.unit, result.points, result.baseline_points))


def find_regressions(results: Sequence[Result], kept: Mapping[str, Any]) -> list[str]:
    """What is worse than in ``kept``, the content of results.json: by more than `TOLERANCE` below (of times and
    sizes: above) the worst round that is recorded there. Nothing is said of shares and of what was not measured then.
    """
    before = {each["name"]: each for each in kept["results"]}
    found = []
    for result in results:
        if result.name not in before or result.is_share:
            continue
        low, high = before[result.name]["spread"]
        bound = low * (1 - TOLERANCE) if result.is_better_high else high * (1 + TOLERANCE)
        if result.ratio < bound if result.is_better_high else result.ratio > bound:
            found.append(
                f"{result.name}: ratio {result.ratio:.2f}, kept {before[result.name]['ratio']:.2f} "
                f"({low:.2f} to {high:.2f}), allowed {'from' if result.is_better_high else 'up to'} {bound:.2f}"
            )
    return found
