"""Read keys through the cache: the read half of the algorithm (docs/algorithm.md#reading).

1. Look up: the node record, then the entry, which is a hit, or a stub in its place (``hit.py``). ``shortway.py`` is a
   faster way to the same hits.
2. to 4. Otherwise the guards of the fill, the rows, and the fill itself (``fill.py``).

``state.py`` draws the states through which a lookup goes. A node that does not answer is not a miss: its keys are
read from the database, and not stored. Run by appclient's drivers and by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from freshness.algorithm.fill import load_and_fill
from freshness.algorithm.hit import look_up
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.request import Procedure, Wait
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import NO_DEMAND, Demand, Pending, Read, ReadContext, Unstored, forgets_broken

LEASE_POLLS_MAX: Final = 4
"""How often a reader looks again for the value of another reader's lease before it reads the database (I6). Each wait
is twice as long as the one before: most loads are short, and some are long."""


@forgets_broken
def read_through(
    context: ReadContext, lookups: Sequence[Lookup], demand: Demand = NO_DEMAND
) -> Procedure[list[Read]]:
    """Answer every lookup, in order. Raises what the loader raises; cache failures only show in the outcome."""
    entries = [Pending(lookup) for lookup in lookups]
    distinct = entries if len(entries) == 1 else _find_distinct(entries)
    yield from look_up(context, distinct, demand)
    hits = [entry.state for entry in entries if isinstance(entry.state, Read)]
    if len(hits) == len(entries):
        return hits
    first = {entry.lookup.item: entry for entry in distinct}
    waiting = [entry for entry in distinct if entry.is_waiting]
    if waiting:
        yield from _wait_for_winners(context, waiting, demand)
    missing = [entry for entry in entries if not isinstance(entry.state, Read) and not _is_repeat(entry, first)]
    if missing:
        yield from load_and_fill(context, missing, demand)
    return [_answered(first[entry.lookup.item] if _is_repeat(entry, first) else entry) for entry in entries]


def _wait_for_winners(context: ReadContext, waiting: list[Pending], demand: Demand) -> Procedure[None]:
    """A lease only delays (F41, F72): look again a few times, then read the database.

    A reader that still waits at the end may fill by the same rule as the winner. One that may be given an old value
    (stale while revalidate) does not wait if there is one.
    """
    if demand.may_be_stale:
        for entry in waiting:
            entry.state = context.recall(entry.lookup) or entry.state
        waiting = [entry for entry in waiting if entry.is_waiting]
    for poll in range(LEASE_POLLS_MAX):
        if not waiting:
            return
        yield Wait(context.fill_wait_seconds * 2**poll / (2**LEASE_POLLS_MAX - 1))
        yield from look_up(context, waiting, demand)
        waiting = [entry for entry in waiting if entry.is_waiting]


def _find_distinct(entries: list[Pending]) -> list[Pending]:
    """One place in the cache, one lookup: a second one would wait for the first one's lease."""
    if len({entry.lookup.item for entry in entries}) == len(entries):
        return entries
    first: dict[bytes, Pending] = {}
    for entry in entries:
        if first.setdefault(entry.lookup.item, entry) is not entry:
            entry.state = Unstored(ReadOutcome.IDENTITY)
    return list(first.values())


def _is_repeat(entry: Pending, first: Mapping[bytes, Pending]) -> bool:
    """Whether the very same key was asked for before in the same call."""
    other = first[entry.lookup.item]
    return other is not entry and other.lookup.identity == entry.lookup.identity


def _answered(entry: Pending) -> Read:
    assert isinstance(entry.state, Read)
    return entry.state
