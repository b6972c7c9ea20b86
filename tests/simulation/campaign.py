"""Run many seeds: one at a time, a range, or until a planted bug is caught. No output; see ``report``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final, TypeAlias

from freshness.errors import FreshnessError
from tests.simulation.bugs import KNOWN_SEEDS, Planting
from tests.simulation.checker import Violation
from tests.simulation.liveness import LIVELY_EVERY_SEEDS, check_liveness
from tests.simulation.options import Options
from tests.simulation.quick import be_quick, collect
from tests.simulation.world import BEGINNING_SECONDS, World

PROCESSES: Final = 2
CHUNK_SEEDS: Final = 50
SEARCH_SEEDS_MAX: Final = 5000
"""How many seeds a planted bug may take before it counts as not caught."""

OTHER: Final = "crash"
"""The invariant named for an exception or a broken assertion of the production code."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation: the world in which it shows, the invariant, what happened, and after how many steps."""

    options: Options
    invariant: str
    message: str
    steps: int


@dataclass(slots=True)
class Tally:
    """The sum of a number of worlds. ``outcomes``: reads by outcome; by profile in ``profiles``. ``faults``: how
    often each kind struck."""

    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    lively: int = 0
    slowest_recovery_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    profiles: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.seconds += other.seconds
        self.lively += other.lively
        self.slowest_recovery_seconds = max(self.slowest_recovery_seconds, other.slowest_recovery_seconds)
        self.outcomes.update(other.outcomes)
        self.faults.update(other.faults)
        self.findings += other.findings
        for profile, outcomes in other.profiles.items():
            self.profiles.setdefault(profile, Counter()).update(outcomes)


def is_lively(seed: int) -> bool:
    """Whether this seed also ends with faults off (I5)."""
    return seed % LIVELY_EVERY_SEEDS == 0


def run_world(
    options: Options,
    *,
    is_lively: bool,
    bug: str = "",
    trace: Callable[[str], None] | None = None,
    tally: Tally | None = None,
) -> Finding | None:
    """One world to its end. The violation, if there is one; a crash of the production code is one too."""
    world = World(options, bug, trace)
    finding = None
    try:
        world.run()
        if is_lively:
            recovery_seconds = check_liveness(world)
            if tally is not None:
                tally.lively += 1
                tally.slowest_recovery_seconds = max(tally.slowest_recovery_seconds, recovery_seconds)
    except Violation as violation:
        finding = Finding(options, violation.invariant, str(violation), world.steps_taken)
    except (AssertionError, FreshnessError, LookupError, TypeError, ValueError, AttributeError) as error:
        finding = Finding(options, OTHER, f"{type(error).__name__}: {error}", world.steps_taken)
    finally:
        world.stop()
    if finding is None:
        failed = next((actor for actor in world.actors if actor.failure is not None), None)
        if failed is not None:
            message = f"{failed.name} ended: {failed.failure!r}"
            finding = Finding(options, OTHER, message, world.steps_taken)
    if tally is not None:
        tally.seeds += 1
        tally.steps += world.steps_taken
        tally.seconds += world.now - BEGINNING_SECONDS
        outcomes = Counter({outcome.name: count for outcome, count in world.checker.outcomes.items()})
        tally.outcomes.update(outcomes)
        tally.faults.update(world.counts)
        tally.profiles.setdefault(options.profile, Counter()).update(outcomes)
        if finding is not None:
            tally.findings.append(finding)
    return finding


def run_seed(
    seed: int, bug: str = "", trace: Callable[[str], None] | None = None, tally: Tally | None = None
) -> Finding | None:
    """The world of one seed, with or without a planted bug."""
    with Planting(bug):
        return run_world(Options.of_seed(seed), is_lively=is_lively(seed), bug=bug, trace=trace, tally=tally)


def run_seeds(seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        run_seed(seed, tally=tally)
    return tally


@dataclass(frozen=True, slots=True)
class Caught:
    """Which seed caught a planted bug, with what; ``finding`` None: none of the seeds did."""

    bug: str
    seed: int | None
    finding: Finding | None


_ALL: Final = range(SEARCH_SEEDS_MAX)


def catch(bug: str, seeds: range = _ALL) -> Caught:
    """The seed that is known to catch a planted bug, or else the first of ``seeds`` that does."""
    known = KNOWN_SEEDS.get(bug)
    finding = None if known is None else _find_planted(bug, known)
    return search(bug, seeds) if finding is None else Caught(bug, known, finding)


def search(bug: str, seeds: range = _ALL) -> Caught:
    """The first seed that catches a planted bug."""
    for seed in seeds:
        finding = _find_planted(bug, seed)
        if finding is not None:
            return Caught(bug, seed, finding)
    return Caught(bug, None, None)


def _find_planted(bug: str, seed: int) -> Finding | None:
    """What the bug breaks in the world of a seed that is sound without it."""
    finding = run_seed(seed, bug)
    return finding if finding is not None and run_seed(seed) is None else None


Task: TypeAlias = tuple[Callable[[Any], Any], Any]
"""A function of a module, and its argument."""


def chunks_of(seeds: range) -> list[range]:
    return [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]


def run_tasks(tasks: Sequence[Task]) -> Iterator[Any]:
    """The result of each, as it is finished. `PROCESSES` processes take the next one in turn: put long ones first."""
    with get_context("spawn").Pool(PROCESSES, initializer=be_quick) as pool:
        yield from pool.imap_unordered(_perform, tasks)


def _perform(task: Task) -> Any:
    function, argument = task
    result = function(argument)
    collect()
    return result
