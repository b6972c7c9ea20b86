"""The simulator's command line: ``make sim``, ``python -m tests.simulation --help``.

Exit code 0: everything holds and every planted bug was caught; 1: a violation; 2: usage.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.bugs import PLANTED, SELDOM_CAUGHT
from tests.simulation.campaign import (
    Caught,
    Finding,
    Tally,
    be_silent,
    catch_all,
    is_lively,
    run_range,
    run_seed,
)
from tests.simulation.report import find_history, tell_bugs, tell_costs, tell_finding
from tests.simulation.shrink import shrink

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEDULE_FILES: Final = ("tests/unit/test_defences.py", "tests/unit/test_schedules.py")
SHOWN_MAX: Final = 3
"""How many violations are made small and printed; the others are listed."""


@dataclass(slots=True)
class Summary:
    """What ``--json`` prints, alone on stdout."""

    seeds: int = 0
    schedules: int = 0
    exhaustive_worlds: int = 0
    states: int = 0
    violations: int = 0
    planted_bugs_caught: int = 0
    planted_bugs: int = 0


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    be_silent()
    if options.seed is not None:
        return _show_seed(options.seed, options.bug, is_traced=options.trace, is_shrunk=False)
    if options.shrink is not None:
        return _show_seed(options.shrink, options.bug, is_traced=options.trace, is_shrunk=True)
    console = Console(stderr=True)
    if options.bugs:
        caught = _catch_all(console, is_search=True)
        print(tell_bugs(caught))  # noqa: T201
        return 0 if all(each.finding is not None for each in caught) else 1
    return _run(options.seeds, console, is_json=options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make sim ARGS=…", description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default=range(20_000), metavar="A:B", help="the worlds to run (0:20000)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, alone on stdout")
    parser.add_argument(
        "--bugs", action="store_true", help="search for the first seed that catches each planted bug"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="run one world and tell what happened")
    parser.add_argument("--shrink", type=int, metavar="N", help="make the violation of a seed small")
    parser.add_argument("--trace", action="store_true", help="with --seed or --shrink: the whole history")
    parser.add_argument(
        "--bug",
        default="",
        choices=("", *PLANTED),
        metavar="NAME",
        help="with --seed or --shrink: plant this bug",
    )
    return parser


def _seeds(text: str) -> range:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B with A < B, as in 0:20000")
    return range(int(match[1]), int(match[2]))


# -- one seed ------------------------------------------------------------------------------------------


def _show_seed(seed: int, bug: str, *, is_traced: bool, is_shrunk: bool) -> int:
    lines: list[str] = []
    finding = run_seed(seed, bug, trace=lines.append)
    if finding is None:
        if is_traced:
            print("\n".join(lines))  # noqa: T201
        print(f"seed {seed}: no violation")  # noqa: T201
        return 0
    if is_shrunk:
        finding = shrink(finding, is_lively=_needs_calm(finding), bug=bug)
        lines = find_history(finding, is_lively=_needs_calm(finding), bug=bug)
    print(tell_finding(finding, lines, len(lines) if is_traced else 120))  # noqa: T201
    return 1


def _needs_calm(finding: Finding) -> bool:
    """Whether it shows only after the world has taken its steps, when faults are off."""
    return is_lively(finding.options.seed) and finding.steps > finding.options.steps


# -- the whole run -------------------------------------------------------------------------------------


def _run(seeds: range, console: Console, *, is_json: bool) -> int:
    summary = Summary(planted_bugs=len(PLANTED))
    complaints: list[str] = []
    summary.schedules, failed = _run_schedules()
    complaints += failed
    tally = _run_seeds(seeds, console)
    summary.seeds = tally.seeds
    for number, finding in enumerate(sorted(tally.findings, key=lambda each: each.options.seed)):
        complaints.append(_explain(finding, console) if number < SHOWN_MAX else f"also {finding.message}")
    caught = _catch_all(console)
    summary.planted_bugs_caught = sum(each.finding is not None for each in caught)
    complaints += [
        f"PLANTED BUG NOT CAUGHT: {each.bug}; the checkers see less than they did"
        for each in caught
        if each.finding is None
    ]
    explored = _explore(console)
    summary.exhaustive_worlds, summary.states = len(explored), sum(each.states for each in explored)
    for each in explored:
        if each.violation:
            complaints.append("\n".join([f"VIOLATION in {each.name}: {each.violation}", *each.history]))
    summary.violations = len(complaints)
    if is_json:
        print(json.dumps(asdict(summary)))  # noqa: T201
    out = Console(stderr=is_json, soft_wrap=True, markup=False, highlight=False)
    if not is_json:
        out.print(tell_costs(tally))
        out.print("\n" + " · ".join(f"{name} {value}" for name, value in asdict(summary).items()))
    for complaint in complaints:
        out.print("\n" + complaint)
    return 1 if complaints else 0


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _run_seeds(seeds: range, console: Console) -> Tally:
    tally = Tally()
    with _progress(console) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for part in run_range(seeds):
            tally.add(part)
            progress.update(task, completed=tally.seeds)
    return tally


def _catch_all(console: Console, *, is_search: bool = False) -> list[Caught]:
    caught = []
    with _progress(console) as progress:
        task = progress.add_task("planted bugs", total=len(PLANTED))
        bugs = [bug for bug in PLANTED if is_search or bug not in SELDOM_CAUGHT]
        for each in catch_all(bugs, is_search=is_search):
            caught.append(each)
            progress.advance(task)
    order = list(PLANTED)
    return sorted(caught, key=lambda each: order.index(each.bug))


def _explain(finding: Finding, console: Console) -> str:
    with console.status(f"making the violation of seed {finding.options.seed} small"):
        small = shrink(finding, is_lively=_needs_calm(finding))
    history = find_history(small, is_lively=_needs_calm(small))
    return f"{finding.message}\n{tell_finding(small, history)}"


def _run_schedules() -> tuple[int, list[str]]:
    """The directed schedules of the unit tests: (how many hold, what does not)."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SCHEDULE_FILES]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", run.stdout)
    count = int(passed[1]) if passed is not None else 0
    return count, [] if run.returncode == 0 else [f"DIRECTED SCHEDULES FAILED\n{run.stdout}{run.stderr}"]


def _explore(console: Console) -> list[Any]:
    """The exhaustive worlds, where there are any."""
    if not (Path(__file__).parent / "explore.py").exists():
        return []
    with console.status("exhaustive worlds"):
        results: list[Any] = importlib.import_module("tests.simulation.explore").run_all()
    return results


if __name__ == "__main__":
    sys.exit(main())
