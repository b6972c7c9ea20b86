"""``make bench``: measure, print, and keep the numbers.

``--json`` prints them alone on standard output, ``--check`` holds them against those that were kept, and both write
nothing. Otherwise a table is printed, and after a run of all benchmarks ``benchmarks/results.json`` and
docs/performance.md are brought up to date.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.clients import measure_clients
from benchmarks.codec import measure_codec
from benchmarks.cores import Placement, name_of, placed
from benchmarks.decode import measure_decode
from benchmarks.end_to_end import measure_end_to_end
from benchmarks.growth import measure_growth
from benchmarks.hit import measure_get_many, measure_hit, measure_hit_telemetry, measure_miss
from benchmarks.invalidation import measure_invalidation
from benchmarks.lag import measure_lag
from benchmarks.lock import measure_lock
from benchmarks.measure import ROUNDS, Result
from benchmarks.memory import measure_memory
from benchmarks.moving import measure_moving
from benchmarks.orm import measure_orm
from benchmarks.profile import measure_profile
from benchmarks.protection_memory import measure_protection_memory
from benchmarks.recovery import measure_recovery
from benchmarks.report import COLUMNS, as_json, describe_machine, find_regressions, table_rows, write_document
from benchmarks.seek import measure_seek
from benchmarks.together import measure_together
from freshness.errors import ConfigError, FreshnessError
from integration.servers import Redis

Benchmark = Callable[[int], list[Result]]


def in_both_placements(benchmark: Benchmark) -> Benchmark:
    """The benchmark with its cache nodes on the client's core, and once more with them on another one."""

    def measure(rounds: int) -> list[Result]:
        results: list[Result] = []
        for placement in Placement:
            with placed(placement):
                results += (name_of(result, placement) for result in benchmark(rounds))
        return results

    return measure


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "decode": measure_decode,
    "invalidation": in_both_placements(measure_invalidation),
    "end_to_end": in_both_placements(measure_end_to_end),
    "lag": in_both_placements(measure_lag),
    "lock": measure_lock,
    "memory": measure_memory,
    "protection_memory": measure_protection_memory,
    "moving": measure_moving,
    "moving_mysql": partial(measure_moving, suffix="_mysql", flavor="mysql"),
    "moving_redis": partial(measure_moving, suffix="_redis", node=Redis),
    "moving_back": partial(measure_moving, suffix="_back", size=3),
    "moving_invalidator": partial(measure_moving, suffix="_invalidator", victim="invalidator"),
    "moving_node": partial(measure_moving, suffix="_node", victim="node"),
    "together": measure_together,
    "together_mysql": partial(measure_together, suffix="_mysql", flavor="mysql"),
    "together_400": partial(measure_together, suffix="_400", rate=400),
    "together_many": partial(measure_together, suffix="_many", rate=400, size=50),
    "together_many_mysql": partial(measure_together, suffix="_many_mysql", flavor="mysql", rate=400, size=50),
    "together_log": partial(measure_together, suffix="_log", rate=400, is_logged=True),
    "together_log_mysql": partial(measure_together, suffix="_log_mysql", flavor="mysql", rate=400, is_logged=True),
    "recovery": measure_recovery,
    "recovery_mysql": partial(measure_recovery, flavor="mysql"),
    "profile": measure_profile,
    "growth": measure_growth,
    "seek": measure_seek,
    "hit": in_both_placements(measure_hit),
    "miss": in_both_placements(measure_miss),
    "telemetry": measure_hit_telemetry,
    "get_many": in_both_placements(measure_get_many),
    "orm": in_both_placements(measure_orm),
    "clients": in_both_placements(measure_clients),
    "codec": measure_codec,
}
HERE: Final = Path(__file__).resolve().parent
RESULTS_PATH: Final = HERE / "results.json"
DOCUMENT_PATH: Final = HERE.parent / "docs" / "performance.md"
WORSE_EXIT_CODE: Final = 1
TABLE_COLUMNS: Final = 150
"""Width of tables if the output is not a terminal, in characters."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 for a ratio that has become worse under ``--check``, else that of the error."""
    options = _parser().parse_args(arguments)
    try:
        chosen = choose(options.only)
        kept = _read_kept() if options.check else {"results": []}
        machine = describe_machine()
        results: list[Result] = []
        for name, benchmark in chosen.items():
            print(f"{name}: {options.rounds} rounds", file=sys.stderr)
            results += benchmark(options.rounds)
    except FreshnessError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(as_json(machine, results), indent=2))
    else:
        _print_table(results)
        if len(chosen) == len(BENCHMARKS) and not options.check:
            RESULTS_PATH.write_text(json.dumps(as_json(machine, results), indent=2) + "\n")
            write_document(DOCUMENT_PATH, machine, results)
    missed = [result for result in results if not result.is_met]
    for result in missed:
        print(f"missed: {result.name} has ratio {result.ratio:.2f}, expected {result.criterion}", file=sys.stderr)
    worse = find_regressions(results, kept)
    for line in worse:
        print(f"worse: {line}", file=sys.stderr)
    return WORSE_EXIT_CODE if worse else 0


def _read_kept() -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(RESULTS_PATH.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {RESULTS_PATH.name} to hold the ratios against", hint="run make bench once, without --check"
        ) from None
    return kept


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure, against named baselines.")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help=f"one of {', '.join(BENCHMARKS)}; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and write no file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a ratio is worse than in results.json")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each side, by default {ROUNDS}")
    return parser


def choose(names: Sequence[str] | None) -> dict[str, Benchmark]:
    """The benchmarks of these names, or all if none is named. Raises `ConfigError` for an unknown one."""
    for name in names or ():
        if name not in BENCHMARKS:
            near = difflib.get_close_matches(name, BENCHMARKS, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(BENCHMARKS)}"
            raise ConfigError(f"there is no benchmark {name!r}", hint=hint)
    return {name: benchmark for name, benchmark in BENCHMARKS.items() if not names or name in names}


def _print_table(results: Sequence[Result]) -> None:
    table = Table(*COLUMNS)
    for row in table_rows(results):
        table.add_row(*row)
    console = Console()
    console.print(table, width=None if console.is_terminal else TABLE_COLUMNS)


if __name__ == "__main__":
    sys.exit(main())
