"""What the simulator found, for a person: violations as histories, planted bugs as a table, what safety costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields

from freshness.algorithm.rule import ReadOutcome
from tests.simulation.bugs import SELDOM_CAUGHT, Planting
from tests.simulation.campaign import Caught, Finding, Tally, run_world
from tests.simulation.directed import DIRECTED
from tests.simulation.options import Options

HISTORY_LINES: int = 120
"""The end of a history that is printed; ``--trace`` prints all of it."""


def tell_options(options: Options) -> str:
    """The settings that differ from the usual ones."""
    usual = Options(seed=options.seed)
    parts = [f"seed={options.seed}"]
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name != "seed" and value != getattr(usual, each.name):
            parts.append(f"{each.name}={sorted(value) if isinstance(value, frozenset) else value!r}".replace("'", ""))
    return ", ".join(parts)


def find_history(finding: Finding, *, is_lively: bool, bug: str = "") -> list[str]:
    """Everything that happened in the world of a violation, run again."""
    lines: list[str] = []
    with Planting(bug):
        run_world(finding.options, is_lively=is_lively, bug=bug, trace=lines.append)
    return lines


def tell_finding(finding: Finding, history: list[str], lines_max: int = HISTORY_LINES) -> str:
    """A violation with its seed, its world and the end of its history."""
    cut = history[-lines_max:]
    omitted = len(history) - len(cut)
    return "\n".join(
        [
            f"VIOLATION of seed {finding.options.seed}: {finding.message}",
            f"  world: {tell_options(finding.options)}; after {finding.steps} steps",
            *([f"  … {omitted} lines before (--trace prints them)"] if omitted else []),
            *cut,
        ]
    )


def tell_bugs(caught: Iterable[Caught]) -> str:
    """A table: the planted bug, how many sound seeds it took, the invariant that breaks, the directed schedule."""
    lines = ["| planted bug | seeds | breaks | directed schedule |", "|---|---|---|---|"]
    for each in caught:
        schedule = f"`{DIRECTED[each.bug].partition('::')[2]}`"
        if each.finding is None or each.seed is None:
            lines.append(f"| {each.bug} | – | {SELDOM_CAUGHT.get(each.bug, 'not caught')} | {schedule} |")
        else:
            lines.append(f"| {each.bug} | {each.seed + 1} | {each.finding.invariant} | {schedule} |")
    return "\n".join(lines)


def tell_costs(tally: Tally) -> str:
    """What became of all reads, by cause: the price of safety in these (hostile) worlds."""
    total = sum(tally.outcomes.values())
    if not total:
        return "no reads"
    lines = [
        f"{total} reads in {tally.seconds / 3600:.1f} h of {tally.seeds} worlds; "
        f"{tally.lively} of them calmed down in the end and recovered within "
        f"{tally.slowest_recovery_seconds:.0f} s (I5)",
        "",
        "| outcome | all worlds | no faults but one | what it means |",
        "|---|---|---|---|",
    ]
    steady = tally.profiles.get("steady", Counter())
    steady_total = max(1, sum(steady.values()))
    for name, count in tally.outcomes.most_common():
        shares = f"{100 * count / total:.1f} % | {100 * steady.get(name, 0) / steady_total:.1f} %"
        lines.append(f"| {name.lower()} | {shares} | {ReadOutcome[name].value} |")
    struck = " · ".join(f"{kind} {count}" for kind, count in tally.faults.most_common())
    return "\n".join([*lines, "", f"what struck: {struck}"])
