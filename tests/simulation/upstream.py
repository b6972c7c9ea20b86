"""What processes ask of the databases: rows with their tokens, heads, streams, heartbeats.

Every answer is a list of atomic actions, of which the last one gives the answer; others may come between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshness.algorithm.applier import Applier
from freshness.algorithm.request import ConfirmSuccession, Head, Load, ReadHead, ReadStream, Streamed
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter, parse_heartbeat
from freshness.database.pulse import Pulse
from freshness.errors import HistoryLost, SourceUnavailable, SourceUnsuitable
from freshness.position import MysqlGtidSet, Position
from freshness.stream.source import Heartbeat, Transaction
from invalidator.loop.loop import OpenStream, Poll, RaiseEpoch
from invalidator.replica import server
from tests.simulation.actor import Actor
from tests.simulation.database import Commit, Shard
from tests.simulation.options import Options

if TYPE_CHECKING:
    from tests.simulation.world import World

Actions: TypeAlias = list[Callable[[], Any]]
Configuration: TypeAlias = tuple[tuple[int, ...], bool, int, int]
"""The rings, the present one first, whether the third object is known, the number of stripes, and that of the
topology."""

REORDERING: Final = {"replica_preserve_commit_order": "OFF", "replica_parallel_workers": "4"}
"""The settings of a replica that commits out of order, for the production code to refuse."""

STUCK_SECONDS: Final = 40.0
"""How long a change is stuck in such a replica while heartbeats pass it."""

Beaten: TypeAlias = tuple[Heartbeat, str]
"""A heartbeat and its watermark."""

BEAT_FAULTS: Final = ("fail_beat", "lose_beat")
BEAT_FAULT_SHARE: Final = 0.3
"""The share of heartbeats that fail, or lose their answer, if they can."""


PREVIOUS_ANSWERS_SHARE = 0.3
"""How often the previous primary answers."""


class Beat:
    """The heartbeat actor's own step: write a heartbeat to the primary."""


@dataclass(slots=True, eq=False)
class Process:
    """One invalidator of one shard, with its heartbeat and its restorer.

    ``cursor``: how much of the log it has taken; ``behind_seconds``: how late the log reaches it;
    ``configuration``: the deployment that it was started with, ``settings``: its own times. ``written``: heartbeats
    on their way to the primary, ``commits``: the heartbeats that arrived. ``is_reordered``: it follows a replica
    that commits out of order.
    """

    name: str
    shard: Shard
    instance: str
    clock: Callable[[], float]
    opened_at: Position
    settings: Options
    pulse: Pulse
    written: list[Beaten]
    commits: list[Commit]
    behind_seconds: float = 0.0
    configuration: Configuration = (0,), True, 0, 1
    cursor: int = 0
    is_open: bool = False
    is_reordered: bool = False
    delivered: set[int] = field(default_factory=set)
    applier: Applier | None = None


def answer(world: World, actor: Actor, step: Any) -> Actions:
    match step:
        case Load():
            return _load(world, actor, step)
        case ReadHead():
            return [partial(_head, world, world.processes[actor.name])]
        case ConfirmSuccession():
            return [partial(_confirm_succession, world, world.processes[actor.name].shard, step)]
        case OpenStream():
            return [partial(_open, world, world.processes[actor.name], step.start)]
        case Poll():
            return [partial(_poll, world, actor, world.processes[actor.name], step)]
        case RaiseEpoch():
            return [partial(world.processes[actor.name].shard.raise_epoch, world.now)]
        case ReadStream():
            return [partial(_read_stream, world, world.processes[actor.process], step)]
        case Beat():
            return _write_heartbeat(world, actor)
    raise AssertionError(step)


# -- reads ---------------------------------------------------------------------------------------------


def _load(world: World, actor: Actor, step: Load) -> Actions:
    """As many actions as the read has statements; see `tests.simulation.application`."""
    application = world.application_of(actor.name)
    application.turns.begin(partial(application.load, step.lookups, step.at_least, is_together=step.is_together))
    actions: Actions = []

    def go_on() -> Any:
        if application.turns.step():
            return application.turns.result()
        actions.append(go_on)
        return None

    actions.append(go_on)
    return actions


# -- what the invalidator asks -------------------------------------------------------------------------


def _head(world: World, process: Process) -> Head:
    executed = process.shard.head
    if world.bug == "errant transactions in a floor" and process.shard.flavor == "mysql":
        executed = executed.union(MysqlGtidSet.of("99999999-9999-9999-9999-999999999999", 1))
    return Head(executed, process.shard.epoch, process.shard.identity)


def _confirm_succession(world: World, shard: Shard, step: ConfirmSuccession) -> bool:
    answers = world.calm or world.random.random() < PREVIOUS_ANSWERS_SHARE
    return answers and step.present == shard.identity and shard.is_succession_lossless(step.previous)


def _read_stream(world: World, process: Process, step: ReadStream) -> Streamed | None:
    """As in production, a heartbeat is hurried that is waited for."""
    assert process.applier is not None, "a restorer begins after its process"
    passed = process.applier.read_stream(step.begun_at)
    if passed is None or passed.begun_at < step.begun_at:
        world.actor_by_name[f"{process.name} heartbeat"].wake_at = world.now
    return passed


def _open(world: World, process: Process, start: Position) -> None:
    shard = process.shard
    # Who has errant transactions serves a stream from them.
    if world.bug != "errant transactions in a floor" and not shard.can_stream_from(start):
        raise HistoryLost(f"{shard.lineage} lacks {start}")
    process.opened_at, process.cursor, process.is_open = start, 0, True
    if world.options.is_reordered:
        world.count("reordered log")
        process.is_reordered = not server._reorders(REORDERING, [])
        process.delivered.clear()


def _poll(world: World, actor: Actor, process: Process, step: Poll) -> list[Transaction]:
    log = process.shard.log
    if process.cursor > len(log) or not process.is_open:
        process.is_open = False
        raise SourceUnavailable("the stream ended")
    if process.is_reordered:
        return _poll_reordered(world, actor, process, step)
    until = world.now - process.behind_seconds
    taken: list[Transaction] = []
    while process.cursor < len(log) and len(taken) < step.transactions_max:
        commit = log[process.cursor]
        if commit.at > until:
            break
        process.cursor += 1
        if not process.opened_at.contains(commit.position):
            taken.append(commit.transaction)
    if not taken:
        actor.wake_at = world.now + step.timeout_seconds
    return taken


def _poll_reordered(world: World, actor: Actor, process: Process, step: Poll) -> list[Transaction]:
    """Heartbeats at once, and changes when they have been stuck for a while."""
    taken = []
    for commit in process.shard.log:
        is_due = commit.transaction.heartbeats or commit.at < world.now - STUCK_SECONDS
        if is_due and commit.number not in process.delivered:
            process.delivered.add(commit.number)
            if not process.opened_at.contains(commit.position):
                taken.append(commit.transaction)
    if not taken:
        actor.wake_at = world.now + step.timeout_seconds
    return taken


# -- heartbeats ----------------------------------------------------------------------------------------


class Writer(HeartbeatWriter):
    """The production writer on a connection of the simulator: its writes are on their way until `_write_heartbeat`
    brings them into the log, even if the answer is lost. ``commits``: the commits of its session."""

    def __init__(
        self, world: World, shard: Shard, instance: str, written: list[Beaten], commits: list[Commit], topology: int
    ) -> None:
        address = ServerAddress("primary", 3306, "invalidator", "", "sim")
        now_us = world.wall_clock(instance)
        super().__init__(address, shard.flavor, instance, 0.0, topology=topology, now_us=now_us)
        self._world, self._shard, self._written, self._commits = world, shard, written, commits

    def find_primary(self) -> str:
        return self._shard.identity

    def _execute(self, sql: str, parameters: Any = None) -> tuple[list[tuple[Any, ...]], int]:
        if not isinstance(parameters, dict):
            if "MAX(sequence)" in sql:
                return [(self._shard.topology,)], 1
            return ([], 0) if sql.startswith("SELECT sequence") else ([(self._find_last_gtid(),)], 1)
        if self._shard.topology > parameters["topology"]:
            return [], 0
        fault = fault_of_beat(self._world)
        if fault != "fail_beat":
            row = {name: parameters[name] for name in ("id", "sequence", "min_us", "max_us")}
            beat = parse_heartbeat({**row, "epoch": self._shard.epoch})
            self._written.append((beat, str(parameters["watermark"])))
        if fault is not None:
            self._commits.clear()  # the next session is another one
            raise SourceUnavailable(f"{self._shard.lineage}: {fault}")
        return [], 1

    def _find_last_gtid(self) -> str:
        """That of a commit which has returned: so it is shown."""
        commits, applied = self._commits, self._shard.primary.applied
        return str(commits[-1].position) if commits and commits[-1] in applied else ""


def fault_of_beat(world: World) -> str | None:
    """Whether a heartbeat fails, or its answer is lost while the primary is slow to commit it."""
    faults = sorted(world.options.faults & {*BEAT_FAULTS})
    if world.calm or not faults or world.random.random() >= BEAT_FAULT_SHARE:
        return None
    return world.count(world.random.choice(faults))


def _write_heartbeat(world: World, actor: Actor) -> Actions:
    process = world.processes.get(actor.process)
    if process is None:
        return [lambda: None]

    def begin() -> None:
        try:
            process.pulse._beat()
        except SourceUnsuitable:
            world.count("a previous topology beats no more")
        except SourceUnavailable:
            if process.written:
                actor.wake_at = world.now + world.random.choice((0.5, 5.0, 8.0))

    def write() -> None:
        for beat, watermark in process.written:
            present = replace(beat, epoch=process.shard.epoch)
            process.commits.append(process.shard.write(world.now, heartbeats=(present,), watermark=watermark))
        process.written.clear()

    return [begin, write]
