"""I5: with faults off, everything becomes cacheable again. A cache that never fills is safe and useless.

After a world has taken its steps, faults end, the writer rests, replicas go on (as late as they were),
reads go to replicas only, and every invalidator is started again that runs with an old configuration. A prober then
reads every key until each was a hit; it must not take longer than `bound_seconds`, nor more than `LIVELY_STEPS_MAX`
steps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from freshness.algorithm.applier import HISTORY_CONFIRM_SECONDS, REJOIN_MAX_SECONDS
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.request import Wait
from freshness.algorithm.restore import DOUBT_SECONDS, PENDING_MORE_SECONDS, SWEEP_SECONDS
from freshness.algorithm.rule import ReadOutcome
from tests.simulation import fault
from tests.simulation.actor import Actor
from tests.simulation.checker import Violation
from tests.simulation.options import Options
from tests.simulation.world import EXTRA, Deployment, World

LIVELY_STEPS_MAX: Final = 30_000
LIVELY_EVERY_SEEDS: Final = 20
PROBE_SECONDS: Final = 0.25


def bound_seconds(options: Options) -> float:
    """The lag, and what joining again takes: a lease that lapses, a lost history that is confirmed, the longest pause
    between two tries, twice. Then a whole round over the stripes, a doubt, and a put-back."""
    pending_seconds = options.heartbeat_age_max_seconds + PENDING_MORE_SECONDS
    return (
        options.lag_seconds
        + 2 * (options.lease_seconds + HISTORY_CONFIRM_SECONDS + REJOIN_MAX_SECONDS)
        + SWEEP_SECONDS
        + DOUBT_SECONDS
        + 2 * pending_seconds
        + 20.0
    )


def check_liveness(world: World) -> float:
    """Seconds of the world's time until every key was a hit. Raises `Violation` (I5) beyond the bound."""
    fault.calm(world)
    began = world.now
    name = "prober"
    known = Deployment(world.reader_context(name), world.ring)
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
    # What a put-back left pending on a node whose clock was set back meanwhile stays for so much longer.
    bound = bound_seconds(world.options) + max([0.0, *(clock.behind for clock in world.clocks.values())])
    for _ in range(LIVELY_STEPS_MAX):
        if not waiting:
            return world.now - began
        if world.now - began > bound:
            break
        world.step()
    (place, last), *_ = waiting.items()
    raise Violation(
        "I5",
        f"{place[0]}[{place[1]}] is still no hit {world.now - began:.0f} s after all faults ended; the last read "
        f"said: {last}",
    )


def _present(world: World, known: Deployment, object_name: str, key: int) -> Lookup:
    """With the shards that serve now."""
    return world.lookup(
        object_name, key, known.ring, has_moved=world.reshard is not None and world.reshard.has_moved
    )
