"""The table of docs/testing.md on the last run of ``make soak`` that was kept."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "soak.json"


def rows() -> Iterator[tuple[str, ...]]:
    """Of each process, the means of the second half with the rise of the line through it."""
    processes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for growth in json.loads(RESULTS.read_text())["growths"]:
        processes[growth["process"]].append(growth)
    for process, growths in processes.items():
        yield (
            process,
            *(f"{each['mean']:.1f} ({each['rise']:+.2f})" for each in growths),
            "yes" if all(each["is_flat"] for each in growths) else "no",
        )
