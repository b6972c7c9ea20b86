"""Make a violation small: fewer faults, actors and steps, as long as the same invariant breaks.

A smaller world is another world, in which chance falls differently, so each candidate is tried with a few
chances. Every world that is kept was seen to violate the invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Final

from tests.simulation.bugs import Planting
from tests.simulation.campaign import Finding, run_world
from tests.simulation.options import Options

CHANCES: Final = 12
"""How many runs of a smaller world are tried before it is given up."""

WORLDS_MAX: Final = 1500
"""Worlds tried altogether (I6)."""

_SMALLEST: Final = Options(seed=0, readers=1, keys=1, fault_share=0.003, quiet_seconds=3.0, think_seconds=0.5)


def shrink(
    finding: Finding, *, is_lively: bool, bug: str = "", progress: Callable[[Finding], None] | None = None
) -> Finding:
    """The smallest violation of the same invariant that was found."""
    with Planting(bug):
        return _shrink(finding, is_lively, bug, progress)


def _shrink(best: Finding, is_lively: bool, bug: str, progress: Callable[[Finding], None] | None) -> Finding:
    tried = 0
    is_smaller = True
    while is_smaller and tried < WORLDS_MAX:
        is_smaller = False
        for candidate in _smaller(best.options, best.steps, is_lively):
            found = None
            for chance in range(CHANCES):
                tried += 1
                options = replace(candidate, chance=chance)
                found = run_world(options, is_lively=is_lively, bug=bug)
                if found is not None and found.invariant == best.invariant:
                    break
                found = None
            if found is not None:
                best, is_smaller = found, True
                if progress is not None:
                    progress(best)
                break
            if tried >= WORLDS_MAX:
                break
    return best


def size(options: Options) -> tuple[int, int]:
    """What shrinking makes less: (faults and actors, steps)."""
    counts = (options.shards, options.keys, options.nodes, options.readers, options.invalidators, options.sinks)
    return len(options.faults) + sum(counts) + options.replicas + _differences(options), options.steps


def _differences(options: Options) -> int:
    return sum(getattr(options, name) != getattr(_SMALLEST, name) for name in _PLAIN)


_COUNTS: Final = ("shards", "nodes", "invalidators", "keys", "readers", "replicas")
_PLAIN: Final = (
    "flavor",
    "is_out_of_order",
    "on_stale_serve",
    "has_extra_object",
    "burst",
    "gap_share",
    "clock_rate_error",
    "behind_seconds",
    "warm_seconds",
    "lag_seconds",
)


def _smaller(options: Options, steps: int, is_lively: bool) -> Iterator[Options]:
    """Options that are one step simpler, the most rewarding first."""
    if options.faults:
        yield replace(options, faults=frozenset())
    for fault in sorted(options.faults):
        yield replace(options, faults=options.faults - {fault})
    for name in _COUNTS:
        if getattr(options, name) > 1 and not (name == "shards" and options.reshard):
            yield _with(options, name, 1)
    for name in ("sinks", "executors"):
        if getattr(options, name) > 1:
            yield _with(options, name, 1)
    for name in _PLAIN:
        if getattr(options, name) != getattr(_SMALLEST, name):
            yield _with(options, name, getattr(_SMALLEST, name))
    used = options.steps if is_lively else min(options.steps, steps)
    for fewer in (used // 2, used * 3 // 4, used * 9 // 10):
        if 0 < fewer < options.steps:
            yield replace(options, steps=fewer)


def _with(options: Options, name: str, value: object) -> Options:
    assert any(field.name == name for field in fields(options))
    return replace(options, **{name: value})  # type: ignore[arg-type]
