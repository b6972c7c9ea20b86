"""What has to be shown: of the start, the actions and the properties, and of each weakened action.

And of the model itself, since a proof about nothing would hold as well: `LIVELY` runs do every action once, and end
with a hit and a miss to which the properties apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from tests.proof.actions import (
    append,
    close_record,
    evict_entry,
    evict_stripe,
    join,
    keep,
    lapse,
    publish,
    remove_stripe,
    replicate,
    revive,
    shorten,
)
from tests.proof.invariant import INVARIANT
from tests.proof.language import Clause, Formula, Prover, Unrolling, empty, holds, parameters, symbols
from tests.proof.reading import answer, answer_bounded, fill, leave_stub, start, take_image
from tests.proof.state import RIGID, Event, Life, Next, Read, State, cause_of, changes, key_of
from tests.proof.weakened import CHANGE, HIT, INVALIDATED, MISS, OPEN, REFILL, SERVING, SIZES, Schedule, Weakened


def no_hit_has_anything_due(now: State, read: Read, life: Life, event: Event) -> Formula:
    return ~(now.hit(read) & now.copied(read, life) & now.due(read, life, event) & changes(event, key_of(read)))


def no_miss_has_anything_due(now: State, read: Read, life: Life, event: Event) -> Formula:
    return ~(now.shows(read) & now.due(read, life, event) & changes(event, key_of(read)))


def nothing_is_answered(now: State, read: Read) -> Formula:
    return ~now.answered(read)


def no_refill_is_acknowledged(now: State, read: Read, life: Life) -> Formula:
    return ~(now.refills(read) & now.filled(key_of(read), life) & now.acknowledged(life, cause_of(read)))


THE_REST: Final[Schedule] = (close_record, join, remove_stripe, evict_stripe, evict_entry, lapse, revive)

LIVELY: Final[tuple[tuple[Clause, Schedule], ...]] = (
    (no_hit_has_anything_due, (*SERVING, *INVALIDATED, replicate, shorten, *MISS, fill, *HIT)),
    (no_hit_has_anything_due, (*SERVING, *CHANGE, replicate, *MISS, fill, append, keep, publish, *HIT)),
    (no_miss_has_anything_due, (*SERVING, *INVALIDATED, replicate, *MISS, answer)),
    (no_refill_is_acknowledged, (*SERVING, *MISS, fill, *CHANGE, append, *REFILL, fill, publish)),
    (nothing_is_answered, (*OPEN, *CHANGE, *THE_REST, start, leave_stub, take_image, answer_bounded)),
)
"""Runs, by the clause that fails at the end of each."""


@cache
def prover() -> Prover[State]:
    """Of all that holds in a state of which the invariant is all that is known."""
    return Prover(INVARIANT, symbols(State))


def broken_at_start() -> list[Clause]:
    start = Prover[State]([], empty(State))
    return [clause for clause in INVARIANT if not start.follows(clause)]


def broken_by(action: Callable[..., Next]) -> list[Clause]:
    """The clauses that can fail after the action although the whole invariant held before."""
    step = action(prover().now, **parameters(action, "!"))
    return [clause for clause in INVARIANT if not prover().is_kept(clause, step)]


def explain(action: Callable[..., Next], clause: Clause) -> list[str] | None:
    """A small state in which the invariant holds, and the action after which the clause fails. No run need lead to
    such a state: either the action is wrong, or the invariant lacks a clause that excludes the state."""
    before = symbols(State)
    unrolling = Unrolling(SIZES, RIGID, before)
    for each in INVARIANT:
        unrolling.require(holds(each, before))
    unrolling.do(action)
    return unrolling.find(~holds(clause, unrolling.now))


def find_run(actions: Sequence[Callable[..., Next]], broken: Clause) -> list[str] | None:
    """A run of these actions from the start, at whose end the clause fails."""
    unrolling = Unrolling(SIZES, RIGID, empty(State))
    for action in actions:
        unrolling.do(action)
    return unrolling.find(~holds(broken, unrolling.now))


def find_violation(weakened: Weakened) -> list[str] | None:
    return find_run(weakened.actions(), weakened.breaks)
