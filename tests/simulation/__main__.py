"""The simulator's command line: ``make sim``, ``python -m tests.simulation --help``.

Exit code 0: everything holds and every planted bug was caught; 1: a violation; 2: usage.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.bugs import PLANTED, SELDOM_CAUGHT
from tests.simulation.campaign import (
    Caught,
    Finding,
    Tally,
    Task,
    catch,
    chunks_of,
    is_lively,
    run_seed,
    run_seeds,
    run_tasks,
    search,
)
from tests.simulation.directed import SCHEDULE_FILES, Schedules, run_schedules
from tests.simulation.explore import WORLDS, Result, explore
from tests.simulation.quick import be_silent
from tests.simulation.report import find_history, tell_bugs, tell_costs, tell_finding
from tests.simulation.shrink import shrink

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
        caught = _search_all(console)
        print(tell_bugs(caught))  # noqa: T201
        return 0 if all(each.finding is not None or each.bug in SELDOM_CAUGHT for each in caught) else 1
    return _run(options.seeds, console, is_json=options.json, is_seeds_only=options.seeds_only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make sim ARGS=…", description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default=range(20_000), metavar="A:B", help="the worlds to run (0:20000)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, alone on stdout")
    parser.add_argument("--seeds-only", action="store_true", help="leave out schedules, bugs, exhaustive worlds")
    parser.add_argument("--bugs", action="store_true", help="search for the first seed that catches each planted bug")
    parser.add_argument("--seed", type=int, metavar="N", help="run one world and tell what happened")
    parser.add_argument("--shrink", type=int, metavar="N", help="make the violation of a seed small")
    parser.add_argument("--trace", action="store_true", help="with --seed or --shrink: the whole history")
    parser.add_argument(
        "--bug", default="", choices=("", *PLANTED), metavar="NAME", help="with --seed or --shrink: plant this bug"
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


@dataclass(slots=True)
class Results:
    """What the tasks of a run came to."""

    tally: Tally = field(default_factory=Tally)
    schedules: list[Schedules] = field(default_factory=list)
    caught: list[Caught] = field(default_factory=list)
    explored: list[Result] = field(default_factory=list)

    def add(self, result: Any) -> None:
        match result:
            case Tally():
                self.tally.add(result)
            case Schedules():
                self.schedules.append(result)
            case Caught():
                self.caught.append(result)
            case Result():
                self.explored.append(result)
            case _:
                raise AssertionError(result)

    @property
    def complaints(self) -> list[str]:
        """All that must not be, apart from the violations of seeds."""
        return [
            *(
                f"DIRECTED SCHEDULES FAILED: {each.file}\n{each.complaint}"
                for each in self.schedules
                if each.complaint
            ),
            *(
                f"PLANTED BUG NOT CAUGHT: {each.bug}; the checkers see less than they did"
                for each in self.caught
                if each.finding is None
            ),
            *(
                "\n".join([f"VIOLATION in {each.name}: {each.violation}", *each.history])
                for each in self.explored
                if each.violation
            ),
        ]

    def sum_up(self) -> Summary:
        return Summary(
            seeds=self.tally.seeds,
            schedules=sum(each.passed for each in self.schedules),
            exhaustive_worlds=len(self.explored),
            states=sum(each.states for each in self.explored),
            violations=len(self.complaints) + len(self.tally.findings),
            planted_bugs_caught=sum(each.finding is not None for each in self.caught),
            planted_bugs=len(PLANTED),
        )


def _run(seeds: range, console: Console, *, is_json: bool, is_seeds_only: bool) -> int:
    tasks: list[Task] = []
    if not is_seeds_only:
        tasks += [(explore, world) for world in WORLDS]  # the longest first
        tasks += [(run_schedules, file) for file in SCHEDULE_FILES]
        tasks += [(catch, bug) for bug in PLANTED if bug not in SELDOM_CAUGHT]
    tasks += [(run_seeds, chunk) for chunk in chunks_of(seeds)]
    results = Results()
    with _progress(console) as progress:
        shown = progress.add_task("worlds and schedules", total=len(tasks))
        for result in run_tasks(tasks):
            results.add(result)
            progress.advance(shown)
    summary, complaints = results.sum_up(), results.complaints
    for number, finding in enumerate(sorted(results.tally.findings, key=lambda each: each.options.seed)):
        complaints.append(_explain(finding, console) if number < SHOWN_MAX else f"also {finding.message}")
    out = Console(stderr=is_json, soft_wrap=True, markup=False, highlight=False)
    if is_json:
        print(json.dumps(asdict(summary)))  # noqa: T201
    else:
        out.print(tell_costs(results.tally))
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


def _search_all(console: Console) -> list[Caught]:
    caught = []
    with _progress(console) as progress:
        shown = progress.add_task("planted bugs", total=len(PLANTED))
        for each in run_tasks([(search, bug) for bug in PLANTED]):
            caught.append(each)
            progress.advance(shown)
    order = list(PLANTED)
    return sorted(caught, key=lambda each: order.index(each.bug))


def _explain(finding: Finding, console: Console) -> str:
    with console.status(f"making the violation of seed {finding.options.seed} small"):
        small = shrink(finding, is_lively=_needs_calm(finding))
    history = find_history(small, is_lively=_needs_calm(small))
    return f"{finding.message}\n{tell_finding(small, history)}"


if __name__ == "__main__":
    sys.exit(main())
