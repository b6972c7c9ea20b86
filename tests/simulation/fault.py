"""What strikes a world from outside. Requests that are lost or late are `tests.simulation.network`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from freshness.algorithm.request import Request
from freshness.stream.source import RowChange
from tests.simulation.actor import Actor
from tests.simulation.application import SESSION_FAULTS
from tests.simulation.network import REQUEST_FAULTS, Earlier, RedisStore, kind_of, part_of
from tests.simulation.options import CANCEL_FAULTS, STRIPES
from tests.simulation.upstream import BEAT_FAULTS

if TYPE_CHECKING:
    from tests.simulation.world import World

STALL_SHARE: Final = 0.05
"""How often a process stalls before a request of the kind that the world has chosen."""

UNSTREAMED_SHARE: Final = 0.5
"""How often a failover takes back just what no stream has delivered yet."""

RAISED_SHARE: Final = 0.8
"""How often other nodes come with a higher number of the topology."""

PUBLISH_STALL_SHARE: Final = 0.4
"""The same between stripes and their progress, which is seldom."""

RETURN_SECONDS: Final = (0.3, 1.0, 3.0, 10.0)
"""How old the memory can be that a node has again."""

CANCEL_SHARE: Final = 0.03
"""How many requests and statements of a reader are its last."""

OLD_TIME_SECONDS: Final = 0.3
"""How long a process that was stopped answers by the time at which it was."""


def strike(world: World) -> None:
    kinds = world.struck_faults
    if kinds:
        _STRIKES[world.count(world.random.choice(kinds))](world)


def stall(world: World, actor: Actor, request: Request) -> bool:
    """Whether the process of ``actor`` stands still before ``request``, for about one of the bounds that count."""
    options = world.options
    kind, share = kind_of(request), STALL_SHARE
    if kind == "record" and actor.has_struck and options.stall_at == "publish":
        kind, share = "publish", PUBLISH_STALL_SHARE
    if kind != options.stall_at or world.random.random() >= share:
        return False
    bounds = (options.lease_seconds, 5.0, 12.0, 40.0)
    drawn = world.random.choice(bounds) * world.random.choice((0.9, 1.05, 1.3))
    pause(world, actor.process, options.stall_seconds or drawn)
    world.count("stall")
    return True


def pause(world: World, process: str, seconds: float) -> None:
    for each in world.actors:
        if each.process == process:
            each.paused_until = world.now + seconds
    world.note(f"{process} is paused for {seconds:.1f} s")


def _strike_pause(world: World) -> None:
    actor = world.random.choice(world.pausable)
    pause(world, actor.process, world.random.choice((0.5, 3.0, 10.0, 40.0)))


def _strike_crash(world: World) -> None:
    names = world.invalidator_names + world.executor_names
    crash(world, world.random.choice(names), world.random.choice((0.1, 2.0, 15.0)))


def crash(world: World, name: str, back_after_seconds: float) -> None:
    for each in world.actors:
        if each.process == name:
            each.crash()
            each.wake_at = world.now + back_after_seconds
    world.processes.pop(name, None)
    world.note(f"{name} crashes")


def _any_node(world: World) -> str:
    return world.random.choice(list(world.stores))


def _strike_evict(world: World) -> None:
    _evict(world, lambda key: True)


def _strike_evict_stripe(world: World) -> None:
    _evict(world, lambda key: part_of(key) == "stripe")


def _evict(world: World, may_go: Callable[[bytes], bool]) -> None:
    node = _any_node(world)
    store = world.stores[node]
    keys = [key for key in store.keys() if may_go(key)]  # noqa: SIM118 - not a mapping
    if keys:
        key = world.random.choice(keys)
        store.evict(key)
        world.note(f"{node} evicts {key.decode()}")


def _strike_restart(world: World) -> None:
    node = _any_node(world)
    world.stores[node].restart()
    for name in world.network.names_of(node):
        world.network.incarnations[name] += 1
        world.checker.node_emptied(name)
    world.note(f"{node} restarts empty")


def _strike_cut(world: World) -> None:
    node = _any_node(world)
    store = world.stores[node]
    if not store.down:
        store.down = True
        world.network.back_at[node] = world.now + world.random.choice((0.2, 1.0, 5.0, 30.0))
        world.note(f"{node} is cut off")


def _strike_flush(world: World) -> None:
    node = _any_node(world)
    world.stores[node].flush()
    for name in world.network.names_of(node):
        world.checker.node_emptied(name)
    world.note(f"{node} is flushed")


def _strike_jump(world: World) -> None:
    seconds = world.random.choice((1.0, 4.0, 12.0, 25.0))
    world.now += seconds
    world.note(f"{seconds} s pass")
    if not world.options.holds_commits:
        for shard in world.shards:
            shard.show_all()


def _strike_truncate(world: World) -> None:
    shard = world.random.choice(world.shards)
    table = world.random.choice(shard.tables)
    commit = shard.write(world.now, raised=frozenset((table,)), gap=world.draw_gap())
    world.note(f"{shard.lineage}: commit {commit.number} truncates {table}")


def _strike_move(world: World) -> None:
    shard = world.random.choice(world.shards)
    before, after = world.random.randrange(world.options.keys), world.random.randrange(world.options.keys)
    old, new = ({"id": world.kind.stored[row]} for row in (before, after))
    commit = shard.write(world.now, (RowChange("b", "update", old, new),))
    world.note(f"{shard.lineage}: commit {commit.number} moves b[{before}] to b[{after}]")


def _strike_stop_replica(world: World) -> None:
    shard = world.random.choice(world.shards)
    replica = world.random.choice(shard.replicas)
    if replica.epoch == shard.epoch:
        replica.is_stopped = replica.is_errant or not replica.is_stopped
        world.note(f"{replica.name} {'stops' if replica.is_stopped else 'goes on'}")


def _strike_late_domain(world: World) -> None:
    """A replica of MariaDB applies one domain later than the other, or both alike again."""
    shard = world.random.choice(world.shards)
    replica = world.random.choice(shard.replicas)
    if shard.domains > 1:
        replica.late_domain = world.random.choice((None, 0, 1, 1))
        if replica.late_domain is not None:
            world.count("late_domain")
        world.note(f"{replica.name} does not apply domain {replica.late_domain}")


def _strike_failover(world: World) -> None:
    shard = world.random.choice(world.shards)
    # Commits that nobody but the old primary and its readers had; heartbeats among them.
    kept = max(0, len(shard.log) - world.random.choice((0, 1, 2)))
    if world.random.random() < UNSTREAMED_SHARE:
        kept = max((each.cursor for each in world.processes.values() if each.shard is shard), default=kept)
    if kept < len(shard.log):
        world.checker.history_lost(shard)
    shard.fail_over(kept)
    for process in world.processes.values():
        # Who reads the log of a replica need not notice
        if process.shard is shard and (process.cursor > kept or world.random.random() < 0.7):
            process.is_open = False
    world.note(f"{shard.lineage} fails over and keeps {kept} commits")
    for place, replica in enumerate(shard.replicas):
        if replica.is_stopped and world.random.random() < 0.5:
            shard.rebuild(place)


def _strike_redeploy(world: World) -> None:
    """A configuration with one object more or fewer; invalidators that are not restarted keep the old one."""
    world.knows_extra = not world.knows_extra
    world.note(f"deployed {'with' if world.knows_extra else 'without'} the third object")
    _restart_some(world)


def _strike_reshape(world: World) -> None:
    """Another set of nodes (F69), most often with the previous one beside it, or the previous one is left out again;
    readers learn of it one by one, and the operator may forget to raise the number of the topology."""
    present = world.rings[0]
    other = world.random.choice([ring for ring in range(len(world.placements)) if ring != present] or [present])
    beside = other, present
    choices = [(present,), beside] if len(world.rings) > 1 else [beside, beside, beside, (other,)]
    world.rings = world.random.choice(choices)
    world.topology += world.random.random() < RAISED_SHARE
    named = (", ".join(placement.nodes) for placement in world.placed(world.rings))
    world.note(f"deployed with nodes {' beside '.join(named)}, topology {world.topology}")
    _restart_some(world)


def _strike_stop_clock(world: World) -> None:
    """The node answers nobody during the stop. After a suspend the machine's clock goes on from its old time; a
    process that was stopped answers by the old time for a moment, and then knows the right one."""
    node, options = _any_node(world), world.options
    store, clock = world.stores[node], world.clocks[node]
    if store.down:
        return
    lease = options.lease_seconds
    seconds = world.random.choice((0.5 * lease, 1.5 * lease, 12.0, 40.0))
    store.down = True
    world.network.back_at[node] = world.now + seconds
    if world.random.random() < 0.5:
        clock.set_back(seconds)
    else:
        clock.late, clock.late_until = seconds, world.now + seconds + OLD_TIME_SECONDS
    world.note(f"{node} stands still with its clock for {seconds:.1f} s")
    if world.random.random() < 0.5:  # the invalidators are on the same machine, and come later
        for name in world.invalidator_names:
            pause(world, name, seconds + world.random.choice((1.0, 5.0, 20.0)))


def _strike_step_clock(world: World) -> None:
    node = _any_node(world)
    lease = world.options.lease_seconds
    seconds = world.random.choice((0.5 * lease, 1.5 * lease, 12.0, 40.0)) * world.random.choice((-1, 1, 1))
    world.clocks[node].set_back(seconds)
    world.note(f"the clock of {node} is set back by {seconds:.1f} s")


def _strike_restripe(world: World) -> None:
    """Another number of stripes is another configuration, for which a node begins a new life."""
    world.stripes = world.random.choice(STRIPES)
    world.note(f"deployed with {world.stripes} stripes")
    _restart_some(world)


def _strike_share_server(world: World) -> None:
    """A name resolves to the server of another name (F94), or to its own again, which was rebuilt."""
    servers = world.network.servers
    if len(servers) == 1 or any(store.down for store in servers.values()):
        return
    first, second = world.random.sample(list(servers), 2)
    if len(world.network.names_of(first)) == 1:
        world.network.resolve(second, first)
        world.note(f"{second} is the server of {first} from now on")
    else:
        _part_servers(world)


def _part_servers(world: World) -> None:
    for name, server in world.network.servers.items():
        if world.stores[name] is not server:
            server.restart()
            world.network.resolve(name, name)
            world.note(f"{name} is a server of its own again")


def _strike_return_memory(world: World) -> None:
    """A Redis that comes back from its file, or a promoted replica of it that lacks the last writes."""
    _keep_memory(world, is_silent=False)


def _strike_replace_memory(world: World) -> None:
    """The same in a process that lives on, since it was the replica of such a server for a moment."""
    _keep_memory(world, is_silent=True)


def _keep_memory(world: World, *, is_silent: bool) -> None:
    node = _any_node(world)
    store = world.stores[node]
    assert isinstance(store, RedisStore)
    back_at = world.now + world.random.choice(RETURN_SECONDS)
    world.network.earlier.append(Earlier(back_at, store, store.state(), is_silent))
    world.note(f"the memory of {node} is saved")


def cancel(world: World, actor: Actor) -> bool:
    """Whether the read of ``actor`` is interrupted, between two requests or statements."""
    if world.calm or actor.name not in world.reading or world.random.random() >= CANCEL_SHARE:
        return False
    world.count("cancel")
    world.note(f"{actor.name} is cancelled")
    if actor.name in world.applications:
        world.applications[actor.name].turns.end()
    actor.interrupt()
    return True


def _restart_some(world: World) -> None:
    for name in world.invalidator_names:
        if world.random.random() < 0.8:
            crash(world, name, world.random.choice((0.1, 2.0)))


_STRIKES: Final[dict[str, Callable[[World], None]]] = {
    "pause": _strike_pause,
    "crash": _strike_crash,
    "evict": _strike_evict,
    "evict_stripe": _strike_evict_stripe,
    "restart": _strike_restart,
    "cut": _strike_cut,
    "flush": _strike_flush,
    "jump": _strike_jump,
    "truncate": _strike_truncate,
    "move": _strike_move,
    "stop_replica": _strike_stop_replica,
    "late_domain": _strike_late_domain,
    "failover": _strike_failover,
    "redeploy": _strike_redeploy,
    "reshape": _strike_reshape,
    "stop_clock": _strike_stop_clock,
    "step_clock": _strike_step_clock,
    "restripe": _strike_restripe,
    "share_server": _strike_share_server,
    "return_memory": _strike_return_memory,
    "replace_memory": _strike_replace_memory,
}


def struck_faults(faults: frozenset[str]) -> list[str]:
    """Those of ``faults`` that strike from outside, in an order that does not depend on hashing."""
    others = *REQUEST_FAULTS, *BEAT_FAULTS, *SESSION_FAULTS, *CANCEL_FAULTS, "refuse_append", "stall"
    assert faults <= {*_STRIKES, *others}
    return sorted(faults & _STRIKES.keys())


def calm(world: World) -> None:
    """End all faults: what is broken is mended, what stands still goes on, what is old is replaced (I5)."""
    world.calm = True
    if world.reshard is not None:
        world.reshard.left_behind = ""
    world.note("from here on nothing fails")
    world.network.late.clear()
    world.network.earlier.clear()
    _part_servers(world)
    for node in world.stores:
        world.network.back_at[node] = world.now
        clock = world.clocks[node]
        clock.late_until = min(clock.late_until, world.now + OLD_TIME_SECONDS)
    for actor in world.actors:
        actor.paused_until = 0.0
    for name in list(world.processes):
        process = world.processes[name]
        process.behind_seconds = 0.0
        if process.configuration != world.configuration:
            crash(world, name, 0.1)
    for shard in world.shards:
        for place, replica in enumerate(shard.replicas):
            if replica.is_errant or not shard.logged.contains(replica.executed) or replica.epoch > shard.epoch:
                shard.rebuild(place)
            shard.replicas[place].is_stopped = False
            shard.replicas[place].late_domain = None
