"""I5: with faults off, everything becomes cacheable again. A cache that never fills is safe and useless.

After a world has taken its steps, faults end, the writer rests, replicas go on (as late as they were),
reads go to replicas only, and every invalidator is started again that runs with an old configuration. A prober then
reads every key until each was a hit; it must not take longer than `bound_seconds`. Each step takes time, so the loop
ends. Steps are not counted: where many actors take turns, a step takes less time, and nothing is promised in steps.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final

from freshness.algorithm.absence import REJOIN_MAX_SECONDS
from freshness.algorithm.applier import HISTORY_CONFIRM_SECONDS
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.request import Wait
from freshness.algorithm.restore import DOUBT_SECONDS, PENDING_MORE_SECONDS, SWEEP_SECONDS
from freshness.algorithm.rule import ReadOutcome
from tests.simulation import fault
from tests.simulation.actor import Actor
from tests.simulation.checker import Violation
from tests.simulation.world import EXTRA, MIXED_LEASES, Deployment, World

LIVELY_EVERY_SEEDS: Final = 20
PROBE_SECONDS: Final = 0.25

WORK_SECONDS: Final = 20.0
"""For everything else: requests, heartbeats, a job that restarts, a replica that catches up, the prober."""


def bound_seconds(world: World) -> float:
    """The sum of the waits that ``docs/algorithm.md#bounds`` names, each of which may follow another one.

    An entry from before the end of the faults stays longer, by the seconds that its node's clock was set back.
    A node is joined again: a lease that lapses, a lost history that is confirmed, the longest pause between two
    tries, twice. A stripe is put back: a whole round, a doubt, two pending stripes that expire, one of a process that
    is gone and one of a put-back that is given up. At last the replica must have what was streamed by then: its lag.
    """
    options = world.options
    leases = MIXED_LEASES if options.is_mixed else (options.lease_seconds,)
    heartbeat_age_max_seconds = replace(options, lease_seconds=min(leases)).heartbeat_age_max_seconds
    return (
        max(clock.set_back_seconds for clock in world.clocks.values())
        + 2 * (max(leases) + HISTORY_CONFIRM_SECONDS + REJOIN_MAX_SECONDS)
        + SWEEP_SECONDS
        + max(DOUBT_SECONDS, heartbeat_age_max_seconds)
        + 2 * (heartbeat_age_max_seconds + PENDING_MORE_SECONDS)
        + options.lag_seconds
        + WORK_SECONDS
    )


def check_liveness(world: World) -> float:
    """Seconds of the world's time until every key was a hit. Raises `Violation` (I5) beyond the bound."""
    fault.calm(world)
    began = world.now
    name = "prober"
    known = Deployment(world.reader_context(name), world.rings)
    world.switch(known)
    waiting = {
        (lookup.policy.name, world.rows[lookup.item]): "never read"
        for lookup in world.lookups()
        if lookup.policy.name != EXTRA or world.knows_extra
    }

    def probe() -> Generator[Any, Any, Any]:
        while waiting:
            for place in list(waiting):
                (read,) = yield from world.read(name, known, [_present(world, known, *place)])
                waiting[place] = read.outcome.value
                if read.outcome is ReadOutcome.HIT:
                    del waiting[place]
            yield Wait(PROBE_SECONDS)

    prober = Actor(name, world, probe)
    world.actors = [prober, *(actor for actor in world.actors if not actor.name.startswith("reader"))]
    world.actor_by_name[name] = prober
    ends_at = began + bound_seconds(world)
    while waiting and world.now <= ends_at:
        world.step()
    if not waiting:
        return world.now - began
    (place, last), *_ = waiting.items()
    raise Violation(
        "I5",
        f"{place[0]}[{place[1]}] is still no hit {world.now - began:.0f} s after all faults ended; the last read "
        f"said: {last}",
    )


def _present(world: World, known: Deployment, object_name: str, key: int) -> Lookup:
    """With the shards that serve now."""
    return world.lookup(
        object_name, key, known.rings, has_moved=world.reshard is not None and world.reshard.has_moved
    )
