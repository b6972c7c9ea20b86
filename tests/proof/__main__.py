"""``make proof``, ``python -m tests.proof``: every obligation with its time.

``NAME``: also the run that a weakened action of that name makes possible. ``--worlds``: also all worlds of the
explorer that fit the model, which takes ten minutes. Exit code 0: all is proved, and each weakened action is
refuted; else 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.console import Console

from tests.proof.invariant import INVARIANT, PROPERTIES
from tests.proof.language import Clause, name_of
from tests.proof.obligations import LIVELY, broken_at_start, broken_by, explain, find_run, find_violation, prover
from tests.proof.state import ACTIONS, Next
from tests.proof.tie import Tied, is_tied
from tests.proof.weakened import WEAKENED, Schedule, Weakened
from tests.simulation.explore import WORLDS, SmallWorld
from tests.simulation.quick import be_silent

Lines = Sequence[str]


def obligations(*, has_worlds: bool) -> Iterator[tuple[str, Callable[[], Lines]]]:
    """Each with a function that returns why it fails; nothing if it holds."""
    yield f"at the start: {len(INVARIANT)} clauses", lambda: [name_of(clause) for clause in broken_at_start()]
    for action in ACTIONS:
        yield f"kept by: {name_of(action)}", partial(refute_step, action)
    for clause in PROPERTIES:
        yield f"implied: {name_of(clause)}", partial(refute_property, clause)
    for clause, schedule in LIVELY:
        yield f"a run refutes: {name_of(clause)}", partial(refute_run, clause, schedule)
    for weakened in WEAKENED:
        yield f"weakened: {weakened.name}", partial(refute_refutation, weakened)
    for world in filter(is_tied, WORLDS if has_worlds else ()):
        yield f"world: {world.name}", partial(refute_world, world)


def refute_step(action: Callable[..., Next]) -> Lines:
    return [
        line
        for clause in broken_by(action)
        for line in (f"breaks: {name_of(clause)}", *(explain(action, clause) or ()))
    ]


def refute_property(clause: Clause) -> Lines:
    return [] if prover().follows(clause) else ["does not follow"]


def refute_run(clause: Clause, schedule: Schedule) -> Lines:
    return [] if find_run(schedule, clause) else ["no such run"]


def refute_refutation(weakened: Weakened) -> Lines:
    if not any(broken_by(action) for action in weakened.instead.values()):
        return ["keeps the invariant"]
    return [] if find_violation(weakened) else [f"no run breaks {name_of(weakened.breaks)}"]


def refute_world(world: SmallWorld) -> Lines:
    return Tied(world).explore().history


def tell(weakened: Weakened) -> Lines:
    """How the induction fails, and a run from the start that shows that a property does."""
    lines = [weakened.name]
    for action in weakened.instead.values():
        for clause in broken_by(action):
            lines += [f"breaks: {name_of(clause)}", *(explain(action, clause) or ())]
    return [*lines, f"breaks: {name_of(weakened.breaks).upper()}, from the start", *(find_violation(weakened) or ())]


def main(names: Sequence[str]) -> int:
    be_silent()
    console = Console(markup=False, highlight=False, soft_wrap=True)
    began, failed = time.monotonic(), 0
    for name, show in obligations(has_worlds="--worlds" in names):
        at = time.monotonic()
        wrong = show()
        failed += bool(wrong)
        console.print(f"{time.monotonic() - at:6.2f} s  {'FAILED' if wrong else 'ok':6}  {name}")
        for line in wrong:
            console.print(f"{'':18}{line}")
    for weakened in WEAKENED:
        if weakened.name in names:
            console.print(*tell(weakened), sep="\n    ")
    console.print(f"{time.monotonic() - began:6.2f} s  {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
