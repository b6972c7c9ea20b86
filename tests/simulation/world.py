"""A world: shards, cache nodes, readers and invalidators, one clock, one source of chance.

Each step one actor does one atomic thing, or one fault strikes, and time moves a little. The checker sees every
event. With `trace` on, each event is also written down, so that a failing seed can be read.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final

from freshness.algorithm.applier import create_members
from freshness.algorithm.envelope import Filled
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.membership import Membership, NodePolicy
from freshness.algorithm.parts import Manifest
from freshness.algorithm.read import read_through
from freshness.algorithm.refill import LoggedRow
from freshness.algorithm.request import Reply, Request, Wait
from freshness.algorithm.restore import Restorer, run_restorers
from freshness.algorithm.rule import ObjectPolicy
from freshness.algorithm.state import NO_DEMAND, Read, ReadContext, ServedState
from freshness.algorithm.together import read_together
from freshness.algorithm.view import Sightings
from freshness.config.access import NodeAccess
from freshness.config.object import ObjectConfig
from freshness.database.pulse import Pulse
from freshness.errors import SourceUnavailable, StateChanged
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.stream.source import RowChange, Transaction
from invalidator.loop.loop import LoopObserver, run_loop
from invalidator.loop.shard import ShardInvalidator, no_rows
from spark.sink.acknowledger import Acknowledger
from spark.sink.sender import SinkPlan
from tests.simulation import fault, upstream
from tests.simulation.actor import Actor, Cancelled
from tests.simulation.application import SESSION_FAULTS, Application
from tests.simulation.checker import Checker, numbers_of
from tests.simulation.database import Commit, Shard
from tests.simulation.keykind import KINDS, KeyKind
from tests.simulation.network import Network, RedisStore
from tests.simulation.options import ACCEPTED_SECONDS, CANCEL_FAULTS, MEMORY_FAULTS, Options
from tests.simulation.reshard import Reshard
from tests.simulation.sink import Driver, Job
from tests.simulation.upstream import Beat, Beaten, Configuration, Process, Writer
from tests.simulation.writing import OwnCommits

NAMESPACE: Final = "sim"
SINGLE: Final = "single"
COMPOSITE: Final = "composite"
EXTRA: Final = "extra"
LOOKS_SLOWER: Final = 2.0
MIXED_LEASES: Final = (2, 3, 4, 6)
"""The leases of processes that have settings of their own."""

BEGINNING_SECONDS: Final = 1000.0
_TICKS_SECONDS: Final = (0.0005, 0.002, 0.01, 0.03)
_ACTORS_AT_FULL_PACE: Final = 5
"""With more of them each step takes less time: they run side by side."""
_PLACEMENTS: dict[tuple[str, ...], Placement] = {}


def _placement(nodes: tuple[str, ...]) -> Placement:
    """Rings are costly to compute, and the same in all worlds."""
    if nodes not in _PLACEMENTS:
        _PLACEMENTS[nodes] = Placement(nodes, NAMESPACE)
    return _PLACEMENTS[nodes]


@dataclass(slots=True)
class Deployment:
    """Which rings, the present one first, and, in a reshard, which shards a reader knows."""

    context: ReadContext
    rings: tuple[int, ...] = (0,)
    has_moved: bool = False


@dataclass(slots=True, eq=False)
class NodeClock:
    """The clock by which a node counts TTLs. ``behind``: how long it stood still, or was set back, and goes on from
    there, or, below 0, was set forward; ``least``: the lowest that this was. It misses ``late`` seconds besides until
    ``late_until``, when it jumps to the right time."""

    world: World
    base: Callable[[], float]
    behind: float = 0.0
    least: float = 0.0
    late: float = 0.0
    late_until: float = 0.0

    @property
    def set_back_seconds(self) -> float:
        """By how much an item that is there can outlive its TTL."""
        return self.behind - self.least

    def set_back(self, seconds: float) -> None:
        self.behind += seconds
        self.least = min(self.least, self.behind)

    def read(self) -> float:
        return self.base() - self.behind - (self.late if self.world.now < self.late_until else 0.0)


@dataclass(slots=True)
class World:
    """See the module. `run` takes ``options.steps`` steps; violations raise `checker.Violation`.

    ``rows``: the row that an item is about. ``knows_extra``, ``rings``, ``topology``: the configuration of
    invalidators that start now. ``bug``: a planted bug of the world's own, see `tests.simulation.bugs`.
    """

    options: Options
    bug: str = ""
    trace: Callable[[str], None] | None = None
    now: float = BEGINNING_SECONDS
    random: Random = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    stripes: int = field(init=False)
    clocks: dict[str, NodeClock] = field(default_factory=dict)
    shards: list[Shard] = field(init=False)
    network: Network = field(init=False)
    actors: list[Actor] = field(default_factory=list)
    actor_by_name: dict[str, Actor] = field(default_factory=dict)
    rows: dict[bytes, int] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    definitions: dict[str, ObjectDefinition] = field(init=False)
    placements: tuple[Placement, ...] = field(init=False)
    rings: tuple[int, ...] = (0,)
    topology: int = 1
    knows_extra: bool = True
    reshard: Reshard | None = None
    checker: Checker = field(init=False)
    struck_faults: list[str] = field(init=False)
    has_stalls: bool = field(init=False)
    has_cancels: bool = field(init=False)
    reading: set[str] = field(default_factory=set)
    session_faults: list[str] = field(init=False)
    applications: dict[str, Application] = field(default_factory=dict)
    pace: float = field(init=False)
    invalidator_names: list[str] = field(default_factory=list)
    executor_names: list[str] = field(default_factory=list)
    pausable: list[Actor] = field(default_factory=list)
    steps_taken: int = 0
    calm: bool = False
    lag_seconds: float = field(init=False)
    _is_warm: bool = False
    _last: Actor | None = None
    _names: int = 0
    _wholes: dict[bytes, bytes] = field(default_factory=dict)
    _keys: dict[tuple[str, str], tuple[bytes, bytes, tuple[Any, ...], bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = self.options
        self.random = Random(f"world {options.seed} {options.chance}")
        self.lag_seconds = options.lag_seconds
        self.stripes = options.stripes
        self.struck_faults = fault.struck_faults(options.faults)
        self.has_stalls = "stall" in options.faults
        self.has_cancels = not options.faults.isdisjoint(CANCEL_FAULTS)
        self.session_faults = [kind for kind in SESSION_FAULTS if kind in options.faults]
        self.shards = [
            Shard.create(f"s{number}", ("a", "b"), options.keys, options.replicas, options.flavor, options.domains)
            for number in range(options.shards)
        ]
        for shard in self.shards:
            shard.replicas[0].is_out_of_order = options.is_out_of_order
            shard.find_row = self.kind.number
        names = tuple(f"n{number}" for number in range(options.nodes))
        self.network = Network(self, {name: self._new_store(name) for name in names})
        rings = [names]
        if len(names) > 1 and "reshape" in options.faults:
            rings += [names[:-1], names[1:]]
        self.placements = tuple(_placement(nodes) for nodes in rings)
        if options.reshard:
            self.reshard = Reshard(self, is_split=options.reshard == "split")
        self.knows_extra = not options.has_extra_object or self.random.random() < 0.5
        self.definitions = self._define()
        self.checker = Checker(self)
        for shard in self.shards:
            for number in range(options.invalidators):
                self._add_invalidator(shard, number)
        for number in range(options.readers):
            self._add_reader(number)
        self._add(Actor("writer", self, self._writer))
        for shard in self.shards:
            self._add(Actor(f"{shard.lineage} servers", self, partial(self._servers, shard)))
        if self.reshard is not None:
            self._add(Actor("operator", self, self.reshard.operate))
        self._is_warm = options.warm_seconds == 0
        self.pace = min(1.0, _ACTORS_AT_FULL_PACE / len(self.actors))

    # -- set-up -------------------------------------------------------------------------------------------

    @property
    def stores(self) -> dict[str, MemoryStore]:
        return self.network.stores

    @property
    def kind(self) -> KeyKind:
        return KINDS[self.options.key_kind]

    @property
    def configuration(self) -> Configuration:
        """What an invalidator is configured with that starts now, unless it is left behind by a reshard."""
        topology = self.topology if self.reshard is None else self.reshard.topology
        return self.rings, self.knows_extra, self.stripes, topology

    def _new_store(self, name: str) -> MemoryStore:
        clock = self.clocks[name] = NodeClock(self, self._clock(f"node {name}"))
        store = RedisStore if self._has_returns else MemoryStore
        return store(name, clock=clock.read)

    @property
    def _has_returns(self) -> bool:
        return not self.options.faults.isdisjoint(MEMORY_FAULTS)

    def _clock(self, name: str) -> Callable[[], float]:
        """A clock of its own: with an offset, and a little too fast or too slow."""
        chance = Random(f"clock {self.options.seed} {self.options.chance} {name}")
        offset = chance.uniform(-1000, 1000)
        rate = 1 + chance.uniform(-1, 1) * self.options.clock_rate_error
        return lambda: self.now * rate + offset

    def _draw_refresh_seconds(self) -> float:
        """Readers may refresh more often than the invalidators count with."""
        options = self.options
        return options.node_refresh_seconds * (self.random.choice((0.1, 0.5, 1.0)) if options.is_mixed else 1.0)

    def wall_clock(self, name: str) -> Callable[[], int]:
        """A wall clock of its own, in microseconds: two of them differ by the allowed skew, at most."""
        chance = Random(f"wall {self.options.seed} {self.options.chance} {name}")
        error = chance.uniform(-0.5, 0.5) * self.options.clock_skew_seconds
        return lambda: int((self.now + error) * 1_000_000)

    def _define(self) -> dict[str, ObjectDefinition]:
        lineages = tuple(shard.lineage for shard in self.shards)
        # A composite spans all shards; a single row lives on the first.
        of_single = lineages[:1] if self.reshard is None else lineages
        column = self.kind.column
        kinds: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [(SINGLE, ("a",), of_single)]
        if column.is_exact:
            kinds.append((COMPOSITE, ("a", "b"), lineages))
        if self.options.has_extra_object:
            kinds.append((EXTRA, ("b",), lineages[:1]))
        definitions = {}
        for number, (name, tables, of_lineages) in enumerate(kinds):
            is_single = len(tables) == 1
            config = ObjectConfig(
                name=name,
                keyspace="sim",
                table=tables[0] if is_single else None,
                key=() if is_single else ("id",),
                members={} if is_single else dict.fromkeys(tables, ("id",)),
            )
            policy = ObjectPolicy(name, number, tables, of_lineages, 3600)
            builder = KeyBuilder(NAMESPACE, name, (column,))
            definitions[name] = ObjectDefinition(config, policy, builder, dict.fromkeys(tables, (column,)))
        return definitions

    def objects_on(self, lineage: str) -> dict[str, ObjectDefinition]:
        """The objects of a shard that invalidators know which start now."""
        return {
            name: definition
            for name, definition in self.definitions.items()
            if lineage in definition.policy.lineages and (name != EXTRA or self.knows_extra)
        }

    def _settings_of(self, instance: str) -> Options:
        """The times that a process has: in some worlds its own, with bounds that the configuration would accept."""
        options = self.options
        if not options.is_mixed or self.calm:
            return options
        chance = Random(f"settings {options.seed} {options.chance} {instance}")
        while True:
            drawn = replace(
                options,
                lease_seconds=chance.choice(MIXED_LEASES),
                max_staleness_seconds=options.max_staleness_seconds - chance.choice((0.0, 0.0, 2.0)),
                node_refresh_seconds=options.node_refresh_seconds * chance.choice((1.0, 2.0)),
            )
            if drawn.heartbeat_age_max_seconds >= 2 * drawn.heartbeat_seconds:
                self.count("mixed settings")
                return drawn

    def node_policy(self, lineage: str, process: Process) -> NodePolicy:
        options, reshard = process.settings, self.reshard
        has_previous_file = reshard is not None and process.name == reshard.left_behind
        return NodePolicy(
            namespace=NAMESPACE,
            lineage=lineage,
            ring=self.placements[process.configuration[0][0]].ring_version,
            objects={name: d.policy.fingerprint for name, d in self.objects_on(lineage).items()},
            stripes=self.stripes,
            lease_seconds=options.lease_seconds,
            heartbeat_age_max_seconds=options.heartbeat_age_max_seconds,
            node_refresh_seconds=options.node_refresh_seconds,
            is_serving=reshard is None
            or reshard.is_serving(self.shard_of(lineage), has_previous_file=has_previous_file),
            topology=process.configuration[3],
            placements={each.ring_version: each for each in self.placed(process.configuration[0])},
        )

    def placed(self, rings: Sequence[int]) -> tuple[Placement, ...]:
        return tuple(self.placements[ring] for ring in rings)

    def shard_of(self, lineage: str) -> Shard:
        return next(shard for shard in self.shards if shard.lineage == lineage)

    def restart_invalidators(self) -> None:
        """All of them, with the present configuration; each takes its time. One may be left behind."""
        for name in self.invalidator_names:
            if self.reshard is not None and name == self.reshard.left_behind:
                fault.pause(self, name, self.random.choice((0.5, 3.0, 10.0)))
                continue
            fault.crash(self, name, self.random.choice((0.1, 0.5, 2.0)))

    def _add(self, actor: Actor) -> Actor:
        self.actors.append(actor)
        self.actor_by_name[actor.name] = actor
        return actor

    # -- invalidators -------------------------------------------------------------------------------------

    def _add_invalidator(self, shard: Shard, number: int) -> None:
        name = f"{shard.lineage} invalidator {number}"
        is_last = number == self.options.invalidators - 1
        behind_seconds = self.options.behind_seconds if is_last else 0.0
        self.invalidator_names.append(name)
        start = partial(self._invalidate, name, shard, behind_seconds)
        if number < self.options.sinks:
            start = partial(self._run_job, self._add_job(name), name, shard, behind_seconds)
        actor = self._add(Actor(name, self, start))
        self.pausable.append(actor)
        self._add(Actor(f"{name} heartbeat", self, self._beat))
        self._add(Actor(f"{name} restorer", self, partial(self._restore, name)))

    def _create_members(self, shard: Shard, process: Process) -> Mapping[str, Membership]:
        placements = self.placed(process.configuration[0])
        nodes = dict.fromkeys(node for placement in placements for node in placement.nodes)
        policy, nonce = self.node_policy(shard.lineage, process), self._nonce(process.instance)
        return create_members(nodes, policy, process.clock, nonce, shard.nothing)

    def _invalidate(self, name: str, shard: Shard, behind_seconds: float) -> Generator[Any, Any, Any]:
        process = self._start_process(name, shard, behind_seconds)
        placement, *previous = self.placed(process.configuration[0])
        invalidator = ShardInvalidator(
            members=self._create_members(shard, process),
            instance=process.instance,
            clock=process.clock,
            find_heartbeat=process.pulse.find_begun,
            find_primary=process.pulse.find_primary,
            find_rows=self._find_rows if self.options.fills_from_log else no_rows,
            streamed=shard.nothing,
            placement=placement,
            previous=tuple(previous),
            finder=KeyFinder(self.objects_on(shard.lineage)),
        )
        process.applier = invalidator
        return run_loop(
            invalidator,
            transactions_max=self.random.choice((1, 2, 5)),
            is_stopping=lambda: False,
            observer=LoopObserver(),
        )

    def _find_rows(self, transaction: Transaction) -> dict[bytes, LoggedRow]:
        """The single rows, as the log has them."""
        definition = self.definitions[SINGLE]
        rows = {}
        for change in transaction.changes:
            if change.table not in definition.policy.tables or change.after is None:
                continue
            payload = repr((change.after["version"],)).encode()
            for image in (change.before, change.after):
                key = definition.builder.build((None if image is None else image["id"],))
                lookup = Lookup(definition.policy, "", key.item, definition.identity(key), (), key.is_exact)
                rows[key.item] = LoggedRow(lookup, payload)
        return rows

    def _start_process(self, name: str, shard: Shard, behind_seconds: float) -> Process:
        self._names += 1
        instance = f"{name} {self._names}"
        behind_seconds = 0.0 if self.calm else behind_seconds
        clock, written, commits = self._clock(instance), list[Beaten](), list[Commit]()
        configuration = self.configuration
        if self.reshard is not None and name == self.reshard.left_behind:
            configuration = *configuration[:3], 1
        shard.topology = max(shard.topology, configuration[3])
        process = Process(
            name,
            shard,
            instance,
            clock,
            shard.nothing,
            self._settings_of(instance),
            Pulse(Writer(self, shard, instance, written, commits, configuration[3]), 0.0, clock, lambda: None),
            written,
            commits,
            behind_seconds,
            configuration,
        )
        self.processes[name] = process
        restorer = self.actor_by_name.get(f"{name} restorer")
        if restorer is not None:
            restorer.crash()  # the previous process's
        return process

    def _nonce(self, instance: str) -> Callable[[], bytes]:
        chance = Random(f"nonce {self.options.seed} {self.options.chance} {instance}")
        return lambda: chance.randbytes(8)

    def _add_job(self, name: str) -> Job:
        """What outlives the process of a sink's driver, with its executors."""
        job = Job(self, [f"{name} executor {number}" for number in range(self.options.executors)])
        for executor in job.executors:
            self.pausable.append(self._add(Actor(executor, self, partial(job.execute, executor))))
        self.executor_names += job.executors
        return job

    def _run_job(self, job: Job, name: str, shard: Shard, behind_seconds: float) -> Generator[Any, Any, Any]:
        process = self._start_process(name, shard, behind_seconds)
        placement, *previous = self.placed(process.configuration[0])
        acknowledger = Acknowledger(
            members=self._create_members(shard, process),
            instance=process.instance,
            clock=process.clock,
            find_heartbeat=process.pulse.find_begun,
            find_primary=process.pulse.find_primary,
            streamed=shard.nothing,
            is_sender=False,
            lineage=shard.lineage,
        )
        process.applier = acknowledger
        plan = SinkPlan(
            NAMESPACE,
            NodeAccess("memory"),
            placement.nodes,
            {shard.lineage: shard.flavor},
            {"sim": self.objects_on(shard.lineage)},
            tuple(each.nodes for each in previous),
        )
        return Driver(job, plan, acknowledger, self.random.choice((2, 5, 10)), shard.nothing).run()

    def _restore(self, name: str) -> Generator[Any, Any, Any]:
        """As the process was started: another configuration may have been deployed since."""
        while name not in self.processes:
            yield Wait(0.1)
        process = self.processes[name]
        assert process.applier is not None, "a process has its applier from its start"
        chance = Random(f"restorer {process.instance}")
        restorers = [
            Restorer(node, member.policy, process.clock, self._nonce(f"{process.instance} restorer"))
            for node, member in process.applier.members.items()
        ]
        # Looks are rarer than in production, so that most steps of a world are not theirs.
        yield from run_restorers(restorers, lambda: LOOKS_SLOWER * chance.random())

    def _beat(self) -> Generator[Any, Any, Any]:
        while True:
            yield Beat()
            yield Wait(self.options.heartbeat_seconds)

    # -- readers ------------------------------------------------------------------------------------------

    def reader_context(self, name: str) -> ReadContext:
        options = self.options
        return ReadContext(
            namespace=NAMESPACE,
            ring=self.placements[0].ring_version,
            lineages=tuple(shard.lineage for shard in self.shards),
            clock=self._clock(name),
            jitter=Random(f"{name} {options.seed} {options.chance}").random,
            encode=self._encode,
            decode=numbers_of,
            node_refresh_seconds=self._draw_refresh_seconds(),
            fill_lease_ttl_seconds=100_000 if self.bug == "only the holder of a lease may fill" else 4,
            fill_wait_seconds=0.05,
            on_stale="serve" if options.on_stale_serve else "bypass",
            sightings=Sightings(
                self._clock(name), self.wall_clock(name), options.max_staleness_seconds, options.clock_skew_seconds
            ),
            part_bytes=options.part_bytes,
        )

    def _encode(self, value: Any) -> bytes:
        """As the checker reads it, and note the values in parts, for it to know them by their manifests."""
        payload = repr(value).encode()
        manifest = Manifest.of(payload, self.options.part_bytes)
        if manifest is not None:
            self._wholes[manifest.encode()] = payload
        return payload

    def value_of(self, entry: Filled) -> bytes | None:
        """What the reader that stored the entry had, whatever the parts are now."""
        return self._wholes[entry.value] if entry.is_parted and entry.value is not None else entry.value

    def _add_reader(self, number: int) -> None:
        name = f"reader {number}"
        known = Deployment(self.reader_context(name))
        actor = self._add(Actor(name, self, lambda: self._read(name, known)))
        actor.wake_at = self.now + self.options.warm_seconds
        self.pausable.append(actor)

    def _read(self, name: str, known: Deployment) -> Generator[Any, Any, Any]:
        objects = list(self.definitions)
        own = OwnCommits(self, name) if self.options.writes_share else None
        while True:
            if known.rings != self.rings and (self.calm or self.random.random() < 0.1):
                self.switch(known)
            if self.reshard is not None and not known.has_moved and self._learns_of(self.reshard):
                known.has_moved = True
            wanted = dict.fromkeys(
                (self.random.choice(objects), self.random.randrange(self.options.keys))
                for _ in range(self.random.choice((1, 1, 1, 2)))
            )
            if own is not None and (changed := (yield from own.write())) is not None:
                wanted = dict.fromkeys([(self.random.choice(objects), changed), *wanted])
            share = self.options.together_share
            if is_together := share > 0 and not self.calm and self.random.random() < share:
                wanted = dict.fromkeys((self.random.choice(objects), key) for key in range(self.options.keys))
            lookups = [
                self.lookup(name, key, known.rings, has_moved=known.has_moved, spelling=self.draw_spelling(key))
                for name, key in wanted
            ]
            yield from (self.read_together if is_together else self.read)(name, known, lookups, own)
            if self.options.think_seconds:
                yield Wait(self.options.think_seconds * self.random.choice((0.1, 1.0, 2.0)))

    def _learns_of(self, reshard: Reshard) -> bool:
        """Readers are started again with the new shards in any order, also before anything has moved."""
        return reshard.has_moved if self.calm else self.random.random() < self.options.learn_share

    def switch(self, known: Deployment) -> None:
        """Start a reader with the current rings: the previous process keeps its copies of records."""
        known.rings = self.rings
        known.context.ring = self.placements[self.rings[0]].ring_version
        known.context.previous_ring = self.placements[self.rings[-1]].ring_version
        known.context.views.clear()

    def read(
        self,
        name: str,
        known: Deployment,
        lookups: list[Lookup],
        own: OwnCommits | None = None,
        served: ServedState | None = None,
    ) -> Generator[Any, Any, list[Read]]:
        """The reads; none if no server of a shard answered, or the state has changed. ``own``: commits that are
        demanded."""
        demand = NO_DEMAND if own is None else own.demand()
        share = self.options.accepts_share
        if share and not self.calm and self.random.random() < share:
            demand = replace(demand, max_staleness_seconds=self.random.choice(ACCEPTED_SECONDS))
            self.count("own bound")
        demand = replace(demand, served=served)
        acknowledged = self.checker.find_acknowledged(lookups)
        if self._has_returns:
            self._replace_idle(name, known.context, [*lookups, *demand.earlier])
        self.reading.add(name)
        try:
            procedure = read_together if demand.is_together else read_through
            reads = yield from procedure(known.context, lookups, demand)
        except (SourceUnavailable, Cancelled):
            return []
        except StateChanged:
            self.count("state changed")
            return []
        finally:
            self.reading.discard(name)
        self.checker.read_done(name, lookups, reads, acknowledged, demand.max_staleness_seconds)
        if own is not None:
            self.checker.own_read_done(name, lookups, reads, own.commits)
        return reads

    def read_together(
        self, name: str, known: Deployment, lookups: list[Lookup], own: OwnCommits | None
    ) -> Generator[Any, Any, None]:
        """All at once, or one after the other: some time passes between them."""
        served = ServedState()
        reads: list[Read] = []
        some = self.random.choice((1, len(lookups)))
        while len(reads) < len(lookups):
            found = yield from self.read(name, known, lookups[len(reads) : len(reads) + some], own, served)
            if not found:
                return
            reads += found
            self.checker.read_together(
                name, lookups[: len(reads)], reads, is_of_entries=all(kept.spans for kept in served.kept)
            )
            yield Wait(self.random.choice((0.0, 0.01, 0.1)))
        self.count("read together")
        if some < len(lookups):
            self.count("read on together")

    def _replace_idle(self, name: str, context: ReadContext, lookups: Sequence[Lookup]) -> None:
        """As the library does: a connection that was closed while idle is replaced before anything is asked on it."""
        actor = self.actor_by_name[name]
        for node in dict.fromkeys(lookup.node for lookup in lookups):
            if self.network.is_closed(actor, node):
                del actor.connections[node]
                context.forget(node)

    def application_of(self, reader: str) -> Application:
        """The reader's connections to the databases."""
        if reader not in self.applications:
            self.applications[reader] = Application(self)
        return self.applications[reader]

    def draw_spelling(self, key: int) -> Any:
        """A reader's spelling of the key of row ``key``."""
        spellings = self.kind.spellings[key]
        return spellings[0] if len(spellings) == 1 else self.random.choice(spellings)

    def lookup(
        self,
        object_name: str,
        key: int,
        rings: tuple[int, ...] = (0,),
        *,
        has_moved: bool | None = None,
        spelling: Any = None,
    ) -> Lookup:
        """``has_moved``: with the shards before or after a reshard; None: the object's policy as it is, of all.
        ``spelling``: None: that of the row itself."""
        definition = self.definitions[object_name]
        if spelling is None:
            spelling = self.kind.column.pad(stored) if isinstance(stored := self.kind.stored[key], bytes) else stored
        place = object_name, repr(spelling)
        if place not in self._keys:
            cache_key = definition.builder.build((spelling,))
            asked = definition.builder.parse(cache_key.identity)
            self._keys[place] = cache_key.item, definition.identity(cache_key), asked, cache_key.is_exact
            self.rows[cache_key.item] = key
        item, identity, asked, is_exact = self._keys[place]
        node = self.placements[rings[0]].node_for(item)
        if self.bug == "keys move when a node is down" and self.stores[node].down:
            node = next((name for name, store in self.stores.items() if not store.down), node)
        policy = definition.policy
        if self.reshard is not None and has_moved is not None:
            shards = self.reshard.shards(has_moved=has_moved)
            if object_name == SINGLE:
                shards = [self.reshard.owner(key, has_moved=has_moved)]
            policy = replace(policy, lineages=tuple(shard.lineage for shard in shards))
        previous_node = ""
        for placement in self.placed(rings[1:]):
            if placement.node_for(item) == node:
                policy = replace(policy, previous_rings=(placement.ring_version,))
            else:
                previous_node = placement.node_for(item)
        return Lookup(policy, node, item, identity, asked, is_exact, previous_node=previous_node)

    def lookups(self) -> Iterator[Lookup]:
        """Those of the rows' own keys."""
        for name in self.definitions:
            for key in range(self.options.keys):
                yield self.lookup(name, key, self.rings)

    def spelled_lookups(self) -> Iterator[Lookup]:
        """Those of all spellings. Some have other items than the rows' own."""
        for name in self.definitions:
            for key in range(self.options.keys):
                for spelling in self.kind.spellings[key]:
                    yield self.lookup(name, key, self.rings, spelling=spelling)

    # -- databases ----------------------------------------------------------------------------------------

    def draw_gap(self) -> int:
        has_gap = self.options.gap_share and self.random.random() < self.options.gap_share
        return self.random.randrange(1, 4) if has_gap else 0

    def _writer(self) -> Generator[Any, Any, Any]:
        while not self.calm:
            yield Wait(self.options.quiet_seconds * self.random.choice((0.1, 0.5, 1.0, 3.0)))
            shard = self.random.choice(self.shards)
            key = self.random.randrange(self.options.keys)
            if self.reshard is not None:
                if not self.reshard.is_writable:
                    continue
                shard = self.reshard.owner(key, has_moved=self.reshard.has_moved)
                shard.number = max(each.number for each in self.shards)
            table = self.random.choice(shard.tables)
            image = {"id": self.kind.stored[key]}
            changes = [RowChange(table, "update", image, image)]
            if self.options.together_share:
                others = [self.kind.stored[other] for other in range(self.options.keys) if other != key]
                images = [{"id": stored} for stored in others if self.random.random() < 0.7]
                changes += [RowChange(table, "update", image, image) for image in images]
            began = self.now - self.random.choice((0.0, 0.0, 0.5, 5.0))
            commit = shard.write(self.now, tuple(changes), began=began, gap=self.draw_gap())
            self.note(f"{shard.lineage}: commit {commit.number} changes {table}[{key}]")
        while True:
            yield Wait(60.0)

    def _servers(self, shard: Shard) -> Generator[Any, Any, Any]:
        while True:
            yield Wait(self.random.choice((0.01, 0.1, 0.5)))
            if self.random.random() < 0.6 and shard.show():
                while self.random.random() < 0.5 and shard.show():
                    pass
                continue
            replica = self.random.choice(shard.replicas)
            lag_seconds = self.lag_seconds if replica is shard.replicas[0] else 0.0
            for _ in range(self.random.choice((1, 2, 8))):
                if not shard.replicate(replica, self.now - lag_seconds, ahead=2):
                    break
                self.note(f"{replica.name} applies {replica.applied[-1].number}")

    # -- what actors ask ----------------------------------------------------------------------------------

    def carry_out(self, actor: Actor, node: str, request: Request) -> Reply:
        return self.network.carry_out(actor, node, request)

    def confirm(self, actor: Actor, node: str, requests: Sequence[Request]) -> None:
        self.network.confirm(actor, node, requests)

    def abandon(self, actor: Actor, node: str, requests: list[Request]) -> None:
        self.network.abandon(actor, node, requests)

    def answer(self, actor: Actor, step: Any) -> list[Callable[[], Any]]:
        return upstream.answer(self, actor, step)

    # -- chance -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all steps. The world can go on afterwards, until `stop`."""
        for _ in range(self.options.steps):
            self.step()

    def stop(self) -> None:
        for application in self.applications.values():
            application.turns.end()
        for actor in self.actors:
            if actor.procedure is not None:
                with contextlib.suppress(RuntimeError):
                    actor.procedure.close()

    def step(self) -> None:
        self.steps_taken += 1
        chance, network = self.random, self.network
        if network.late or network.back_at or network.earlier:
            network.deliver()
        if not self._is_warm:
            self._is_warm = self.now >= BEGINNING_SECONDS + self.options.warm_seconds
        elif not self.calm and chance.random() < self.options.fault_share:
            fault.strike(self)
        actor = self._choose()
        if not (self.has_stalls and self._stalls(actor)) and not (self.has_cancels and fault.cancel(self, actor)):
            actor.run_step()
        self.now += _TICKS_SECONDS[int(chance.random() * 4)] * self.pace

    def _choose(self) -> Actor:
        """One of those that can go on; if there is none, time passes until there is."""
        now = self.now
        runnable = [actor for actor in self.actors if actor.wake_at <= now and actor.paused_until <= now]
        if not runnable:
            now = self.now = min([max(actor.wake_at, actor.paused_until) for actor in self.actors])
            runnable = [actor for actor in self.actors if actor.wake_at <= now and actor.paused_until <= now]
        burst, last = self.options.burst, self._last
        if burst and last in runnable and self.random.random() < burst:
            assert last is not None
            return last
        chosen = self._last = runnable[int(self.random.random() * len(runnable))]
        return chosen

    def _stalls(self, actor: Actor) -> bool:
        if self.calm or not self._is_warm:
            return False
        coming = actor.find_next_request()
        return coming is not None and fault.stall(self, actor, coming[1])

    # -- telling ------------------------------------------------------------------------------------------

    def count(self, kind: str) -> str:
        """A fault struck, or a world is of that kind."""
        self.counts[kind] += 1
        return kind

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now - BEGINNING_SECONDS:9.4f}  {text}")

    def step_began(self, who: str) -> float:
        """When that actor's present step began."""
        actor = self.actor_by_name.get(who)
        return self.now if actor is None else actor.step_began
