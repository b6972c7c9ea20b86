"""A world: shards, cache nodes, readers and invalidators, one clock, one source of chance.

Each step one actor does one atomic thing, or one fault strikes, and time moves a little. Everything that happens
is told to the checker. With `trace` on, it is also written down, so that a failing seed can be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from freshness.backends.memory import MemoryStore
from freshness.cachekey import KeyBuilder, tombstone_key
from freshness.config import ObjectConfig
from freshness.envelope import STUB
from freshness.errors import HistoryLost, NodeUnavailable, SourceUnavailable
from freshness.keycolumn import ColumnKind, KeyColumn
from freshness.membership import NodePolicy
from freshness.placement import Placement
from freshness.position import MysqlGtidSet, Position
from freshness.read import Loaded, Lookup, ReadContext, read_through
from freshness.registry import ObjectDefinition
from freshness.request import Add, Cas, Head, InspectStorage, Load, ReadHead, Reply, Request, Stored, Wait
from freshness.rule import ObjectPolicy
from freshness.token import EventToken
from invalidator.loop import LoopObserver, OpenStream, Poll, RaiseEpoch, run_loop
from invalidator.shard import KeyFinder, ShardInvalidator
from invalidator.source import Heartbeat, RowChange
from tests.simulation.actor import Actor
from tests.simulation.checker import Checker
from tests.simulation.database import Server, Shard
from tests.simulation.options import Options

NAMESPACE: Final = "sim"
SINGLE: Final = "single"
COMPOSITE: Final = "composite"
TEMP_LRU_SECONDS: Final = 700
REQUEST_FAULT_SHARE: Final = 0.2
"""How many of the faults that a request could suffer it does suffer: one ends a whole membership."""


class Beat:
    """The heartbeat actor's own step: write a heartbeat to the primary."""


@dataclass(slots=True)
class Process:
    """One invalidator of one shard, with its heartbeat. ``cursor``: how much of the log it has taken."""

    name: str
    shard: Shard
    instance: str
    invalidator: ShardInvalidator
    begun: dict[int, float] = field(default_factory=dict)
    sequence: int = 0
    opened_at: Position = field(default_factory=MysqlGtidSet)
    cursor: int = 0
    is_open: bool = False


@dataclass(slots=True)
class World:
    """See the module. `run` takes ``options.steps`` steps; violations raise `checker.Violation`."""

    options: Options
    bug: str = ""
    trace: Callable[[str], None] | None = None
    now: float = 1000.0
    random: Random = field(init=False)
    shards: list[Shard] = field(init=False)
    stores: dict[str, MemoryStore] = field(init=False)
    incarnations: dict[str, int] = field(init=False)
    delayed: list[tuple[float, str, int, Request, str]] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    back_at: dict[str, float] = field(default_factory=dict)
    definitions: dict[str, ObjectDefinition] = field(init=False)
    placement: Placement = field(init=False)
    checker: Checker = field(init=False)
    steps_taken: int = 0
    calm: bool = False
    _names: int = 0

    def __post_init__(self) -> None:
        options = self.options
        self.random = Random(f"world {options.seed}")
        self.shards = [
            Shard.create(f"s{number}", ("a", "b"), options.keys, options.replicas)
            for number in range(options.shards)
        ]
        for shard in self.shards:
            for place, replica in enumerate(shard.replicas):
                replica.is_out_of_order = options.is_out_of_order and place == 0
        names = [f"n{number}" for number in range(options.nodes)]
        self.stores = {name: self._new_store(name) for name in names}
        self.incarnations = dict.fromkeys(names, 0)
        self.placement = Placement(names, NAMESPACE)
        self.definitions = self._define()
        self.checker = Checker(self)
        for shard in self.shards:
            for number in range(options.invalidators):
                self._add_invalidator(shard, number)
        for number in range(options.readers):
            self._add_reader(number)
        self.actors.append(Actor("writer", self, self._writer))
        for shard in self.shards:
            self.actors.append(
                Actor(f"{shard.lineage} servers", self, lambda shard=shard: self._servers(shard))
            )

    # -- set-up -------------------------------------------------------------------------------------------

    def _new_store(self, name: str) -> MemoryStore:
        ttl = TEMP_LRU_SECONDS if self.options.keeps_tombstones else None
        return MemoryStore(name, clock=lambda: self.now, temp_lru_ttl_seconds=ttl)

    def _define(self) -> dict[str, ObjectDefinition]:
        column = KeyColumn("id", ColumnKind.INTEGER)
        lineages = tuple(shard.lineage for shard in self.shards)
        definitions = {}
        for number, (name, tables) in enumerate(((SINGLE, ("a",)), (COMPOSITE, ("a", "b")))):
            config = ObjectConfig(
                name=name,
                keyspace="sim",
                table="a" if name == SINGLE else None,
                key=None if name == SINGLE else "id",
                members={} if name == SINGLE else dict.fromkeys(tables, "id"),
            )
            # A composite spans all shards; a single row lives on the first.
            policy = ObjectPolicy(name, number, tables, lineages if name == COMPOSITE else lineages[:1], 3600)
            builder = KeyBuilder(NAMESPACE, name, (column,))
            definitions[name] = ObjectDefinition(config, policy, builder, dict.fromkeys(tables, (column,)))
        return definitions

    def objects_on(self, lineage: str) -> dict[str, ObjectDefinition]:
        return {n: d for n, d in self.definitions.items() if lineage in d.policy.lineages}

    def node_policy(self, lineage: str) -> NodePolicy:
        options = self.options
        return NodePolicy(
            namespace=NAMESPACE,
            lineage=lineage,
            ring=self.placement.ring_version,
            objects={name: d.policy.fingerprint for name, d in self.objects_on(lineage).items()},
            tombstone_ttl_seconds=options.tombstone_ttl_seconds,
            lease_seconds=options.lease_seconds,
            trail_seconds=options.trail_seconds,
            heartbeat_age_max_seconds=options.heartbeat_age_max_seconds,
            node_refresh_seconds=options.node_refresh_seconds,
        )

    # -- actors -------------------------------------------------------------------------------------------

    def _add_invalidator(self, shard: Shard, number: int) -> None:
        name = f"{shard.lineage} invalidator {number}"

        def start() -> Generator[Any, Any, Any]:
            return self._invalidate(name, shard)

        self.actors.append(Actor(name, self, start))
        self.actors.append(Actor(f"{name} heartbeat", self, lambda: self._beat(name)))

    def _invalidate(self, name: str, shard: Shard) -> Generator[Any, Any, Any]:
        self._names += 1
        instance = f"{name} {self._names}"
        chance = Random(f"nonce {self.options.seed} {instance}")
        offset = chance.uniform(-1000, 1000)
        invalidator = ShardInvalidator.create(
            self.stores,
            self.node_policy(shard.lineage),
            self.placement,
            KeyFinder(self.objects_on(shard.lineage)),
            instance=instance,
            clock=lambda: self.now + offset,
            nonce=lambda: chance.randbytes(8),
            find_heartbeat=lambda sequence: process.begun.get(sequence),
            nothing=MysqlGtidSet(),
        )
        process = Process(name, shard, instance, invalidator)
        self.processes[name] = process
        return run_loop(
            invalidator,
            transactions_max=self.random.choice((1, 2, 5)),
            is_stopping=lambda: False,
            observer=LoopObserver(),
        )

    def _beat(self, name: str) -> Generator[Any, Any, Any]:
        while True:
            yield Beat()
            yield Wait(self.options.heartbeat_seconds)

    def _add_reader(self, number: int) -> None:
        name = f"reader {number}"
        chance = Random(f"reader {self.options.seed} {number}")
        offset = chance.uniform(-1000, 1000)
        context = ReadContext(
            namespace=NAMESPACE,
            ring=self.placement.ring_version,
            lineages=tuple(shard.lineage for shard in self.shards),
            clock=lambda: self.now + offset,
            jitter=chance.random,
            encode=lambda value: repr(value).encode(),
            lease_seconds=self.options.lease_seconds,
            node_refresh_seconds=self.options.node_refresh_seconds,
            fill_lease_ttl_seconds=4,
            fill_wait_seconds=0.05,
            on_stale="serve" if self.options.on_stale_serve else "bypass",
        )
        self.actors.append(Actor(name, self, lambda: self._read(name, context)))

    def _read(self, name: str, context: ReadContext) -> Generator[Any, Any, Any]:
        while True:
            count = self.random.choice((1, 1, 1, 2))
            wanted = dict.fromkeys(
                (self.random.choice((SINGLE, COMPOSITE)), self.random.randrange(self.options.keys))
                for _ in range(count)
            )
            lookups = [self.lookup(object_name, key) for object_name, key in wanted]
            reads = yield from read_through(context, lookups)
            self.checker.read_done(name, lookups, reads)
            if self.options.think_seconds:
                yield Wait(self.options.think_seconds * self.random.choice((0.1, 1.0, 2.0)))

    def lookup(self, object_name: str, key: int) -> Lookup:
        definition = self.definitions[object_name]
        cache_key = definition.builder.build((key,))
        node = self.placement.node_for(cache_key.item)
        if self.bug == "keys move when a node is down" and self.stores[node].down:
            node = next((name for name, store in self.stores.items() if not store.down), node)
        return Lookup(definition.policy, node, cache_key.item, definition.identity(cache_key), (key,))

    def _writer(self) -> Generator[Any, Any, Any]:
        while True:
            yield Wait(self.options.quiet_seconds * self.random.choice((0.1, 0.5, 1.0, 3.0)))
            shard = self.random.choice(self.shards)
            key = self.random.randrange(self.options.keys)
            table = self.random.choice(shard.tables)
            commit = shard.write(self.now, (RowChange(table, "update", {"id": key}, {"id": key}),))
            self.note(f"{shard.lineage}: commit {commit.number} changes {table}[{key}]")

    def _servers(self, shard: Shard) -> Generator[Any, Any, Any]:
        while True:
            yield Wait(self.random.choice((0.01, 0.1, 0.5)))
            if self.random.random() < 0.6 and shard.show():
                continue
            replica = self.random.choice(shard.replicas)
            lag = self.options.lag_seconds if replica is shard.replicas[0] else 0.0
            if shard.replicate(replica, self.now - lag, ahead=2):
                self.note(f"{replica.name} applies {replica.applied[-1].number}")

    # -- transport ----------------------------------------------------------------------------------------

    def carry_out(self, actor: Actor, node: str, request: Request) -> Reply:
        known = actor.connections.get(node)
        if self.stores[node].down or (known is not None and known != self.incarnations[node]):
            actor.connections.pop(node, None)
            self.note(f"{actor.name} → {node} {_show(request)}: no answer")
            raise NodeUnavailable(f"{node} does not answer")
        actor.connections[node] = self.incarnations[node]
        fault = None if self.calm else self._draw_fault(("lose_request", "lose_reply", "delay_request"))
        if fault == "delay_request" and not isinstance(request, InspectStorage):
            wait = self.random.choice((0.01, 0.5, 5.0, 40.0))
            self.delayed.append((self.now + wait, node, self.incarnations[node], request, actor.name))
        if fault is None or fault == "lose_reply":
            reply = self.execute(actor.name, node, request)
            if fault is None:
                return reply
        actor.connections.pop(node, None)
        self.note(f"{actor.name} → {node} {_show(request)}: {fault}")
        raise NodeUnavailable(f"{node}: {fault}")

    def execute(self, who: str, node: str, request: Request) -> Reply:
        store = self.stores[node]
        is_fill = isinstance(request, Cas) and b":!" not in request.key and request.value != STUB
        is_fill = is_fill and not request.key.endswith(b"!")
        if is_fill and self.bug == "blind set":
            store.evict(request.key)
            reply = store.answer(Add(request.key, request.value, request.ttl_seconds))
        else:
            reply = store.answer(request)
        if is_fill and self.bug == "fill removes the tombstone" and isinstance(reply, Stored):
            store.evict(tombstone_key(request.key))
        self.note(f"{who} → {node} {_show(request)}: {_show(reply)}")
        self.checker.executed(who, node, request, reply)
        return reply

    def abandon(self, actor: Actor, node: str, requests: list[Request]) -> None:
        """Some of what was in the pipe may be carried out after all."""
        if self.calm or self.stores[node].down:
            return
        for request in requests:
            if isinstance(request, InspectStorage) or self.random.random() < 0.5:
                return
            self.execute(actor.name, node, request)

    def answer(self, actor: Actor, step: Any) -> list[Callable[[], Any]]:
        match step:
            case Load():
                return self._load(step)
            case ReadHead():
                process = self.processes[actor.name]
                if self.bug == "floor of a new life is empty":
                    return [lambda: Head(MysqlGtidSet(), process.shard.epoch)]
                return [lambda: Head(process.shard.primary.executed, process.shard.epoch)]
            case OpenStream():
                return [lambda: self._open(self.processes[actor.name], step.start)]
            case Poll():
                return [lambda: self._poll(actor, self.processes[actor.name], step)]
            case RaiseEpoch():
                return [lambda: self.processes[actor.name].shard.raise_epoch(self.now)]
            case Beat():
                return self._write_heartbeat(actor.name.removesuffix(" heartbeat"))
        raise AssertionError(step)

    def _load(self, step: Load) -> list[Callable[[], Any]]:
        """Per shard the token, then the rows, on one server; other actors may come between."""
        servers = {shard.lineage: self.random.choice(self._readable(shard)) for shard in self.shards}
        tokens: dict[str, EventToken] = {}

        def read_token(lineage: str, server: Server) -> None:
            executed = server.executed
            if self.bug == "token of the binlog":
                executed = next(shard for shard in self.shards if shard.lineage == lineage).logged
            tokens[lineage] = EventToken(lineage, "-", server.epoch, 0, executed)
            self.note(f"  token of {server.name}: {server.executed}")

        def read_rows() -> list[Loaded]:
            return [self._loaded(lookup, servers, tokens) for lookup in step.lookups]

        actions: list[Callable[[], Any]] = [
            lambda lineage=lineage, server=server: read_token(lineage, server)
            for lineage, server in servers.items()
        ]
        if self.bug == "snapshot before token":
            rows: list[Loaded] = []
            empty = {name: EventToken(name, "-", 1, 0, MysqlGtidSet()) for name in servers}

            def read_rows_early() -> None:
                rows.extend(self._loaded(lookup, servers, empty) for lookup in step.lookups)

            def label() -> list[Loaded]:
                return [Loaded(row.value, {name: tokens[name] for name in row.tokens}) for row in rows]

            return [read_rows_early, *actions, label]
        return [*actions, read_rows]

    def _readable(self, shard: Shard) -> list[Server]:
        return [*shard.replicas, shard.primary] if self.random.random() < 0.2 else shard.replicas

    def _loaded(self, lookup: Lookup, servers: dict[str, Server], tokens: dict[str, EventToken]) -> Loaded:
        key = lookup.values[0]
        value = tuple(
            servers[lineage].version((table, key))
            for lineage in lookup.policy.lineages
            for table in lookup.policy.tables
        )
        self.note(f"  {lookup.item.decode()} is {value}")
        return Loaded(value, {lineage: tokens[lineage] for lineage in lookup.policy.lineages})

    def _open(self, process: Process, start: Position) -> None:
        shard = process.shard
        if not shard.logged.union(shard.primary.executed).contains(start):
            raise HistoryLost(f"{shard.lineage} lacks {start}")
        process.opened_at, process.cursor, process.is_open = start, 0, True

    def _poll(self, actor: Actor, process: Process, step: Poll) -> list[Any]:
        log = process.shard.log
        if process.cursor > len(log) or not process.is_open:
            process.is_open = False
            raise SourceUnavailable("the stream ended")
        taken = []
        while process.cursor < len(log) and len(taken) < step.transactions_max:
            commit = log[process.cursor]
            process.cursor += 1
            if not process.opened_at.contains(commit.position):
                taken.append(commit.transaction)
        if not taken:
            actor.wake_at = self.now + step.timeout_seconds
        return taken

    def _write_heartbeat(self, name: str) -> list[Callable[[], Any]]:
        process = self.processes.get(name)
        if process is None:
            return [lambda: None]
        number = process.sequence + 1

        def begin() -> None:
            process.sequence = number
            process.begun[number] = process.invalidator.clock()

        def write() -> None:
            beat = Heartbeat(process.instance, number, 0, 0, process.shard.epoch)
            process.shard.write(self.now, heartbeats=(beat,))

        return [begin, write]

    # -- chance -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all steps."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop)
            for _ in range(self.options.steps):
                self.step()

    def step(self) -> None:
        self.steps_taken += 1
        self._deliver()
        if not self.calm and self.random.random() < self.options.fault_share:
            self._strike()
        actor = self._choose()
        if actor is not None:
            actor.run_step()
        self.now += self.random.choice((0.0005, 0.002, 0.01, 0.03))
        self.checker.stepped()

    def _choose(self) -> Actor | None:
        runnable = [actor for actor in self.actors if self._wakes_at(actor) <= self.now]
        if runnable:
            return self.random.choice(runnable)
        self.now = min(self._wakes_at(actor) for actor in self.actors)
        return None

    def _wakes_at(self, actor: Actor) -> float:
        return max(actor.wake_at, self.paused.get(actor.name, 0.0))

    def _deliver(self) -> None:
        """Requests that were on their way when their sender gave up."""
        for node in [node for node, at in self.back_at.items() if at <= self.now]:
            del self.back_at[node]
            self.stores[node].down = False
            self.note(f"{node} is back")
        due = [entry for entry in self.delayed if entry[0] <= self.now]
        for entry in due:
            self.delayed.remove(entry)
            _, node, incarnation, request, who = entry
            if incarnation == self.incarnations[node] and not self.stores[node].down:
                self.execute(f"{who} (late)", node, request)

    def _draw_fault(self, kinds: tuple[str, ...]) -> str | None:
        if self.random.random() >= self.options.fault_share * REQUEST_FAULT_SHARE:
            return None
        kind = self.random.choice(kinds)
        return kind if kind in self.options.faults else None

    def _strike(self) -> None:
        kinds = sorted(self.options.faults - {"lose_request", "lose_reply", "delay_request"})
        if kinds:
            kind = self.random.choice(kinds)
            getattr(self, f"_fault_{kind}")()

    def _any_node(self) -> str:
        return self.random.choice(list(self.stores))

    def _fault_pause(self) -> None:
        actor = self.random.choice([a for a in self.actors if a.name.startswith(("reader", "s"))])
        seconds = self.random.choice((0.5, 3.0, 10.0, 40.0))
        for each in self.actors:
            # A process stands still with all its threads.
            if each.name.removesuffix(" heartbeat") == actor.name.removesuffix(" heartbeat"):
                self.paused[each.name] = self.now + seconds
        self.note(f"{actor.name} is paused for {seconds} s")

    def _fault_crash(self) -> None:
        actor = self.random.choice([a for a in self.actors if " invalidator " in a.name])
        name = actor.name.removesuffix(" heartbeat")
        for each in self.actors:
            if each.name.removesuffix(" heartbeat") == name:
                each.crash()
                each.wake_at = self.now + self.random.choice((0.1, 2.0, 15.0))
        self.processes.pop(name, None)
        self.note(f"{name} crashes")

    def _fault_evict(self) -> None:
        node = self._any_node()
        store = self.stores[node]
        keys = [key for key in list(store.keys()) if self._may_evict(key)]
        if keys:
            key = self.random.choice(keys)
            store.evict(key)
            self.note(f"{node} evicts {key.decode()}")

    def _may_evict(self, key: bytes) -> bool:
        is_short_lived = key.endswith(b"!") or (b":!" in key and not key.endswith(b"!resume"))
        return not (self.options.keeps_tombstones and is_short_lived)

    def _fault_lose_tombstone(self) -> None:
        node = self._any_node()
        store = self.stores[node]
        keys = [key for key in list(store.keys()) if key.endswith(b"!")]
        if keys and self.options.keeps_tombstones:
            key = self.random.choice(keys)
            store.evict(key)
            store.losses += 1
            self.checker.node_damaged(node, is_counted=True)
            self.note(f"{node} loses {key.decode()}")

    def _fault_restart(self) -> None:
        node = self._any_node()
        self.stores[node].restart()
        self.incarnations[node] += 1
        self.checker.node_emptied(node)
        self.note(f"{node} restarts empty")

    def _fault_cut(self) -> None:
        node = self._any_node()
        store = self.stores[node]
        if not store.down:
            store.down = True
            self.back_at[node] = self.now + self.random.choice((0.2, 1.0, 5.0, 30.0))
            self.note(f"{node} is cut off")

    def _fault_flush(self) -> None:
        node = self._any_node()
        self.stores[node].flush()
        self.checker.node_emptied(node)
        self.note(f"{node} is flushed")

    def _fault_jump(self) -> None:
        seconds = self.random.choice((1.0, 4.0, 12.0, 25.0))
        self.now += seconds
        self.note(f"{seconds} s pass")

    def _fault_truncate(self) -> None:
        shard = self.random.choice(self.shards)
        table = self.random.choice(shard.tables)
        commit = shard.write(self.now, raised=frozenset((table,)))
        self.note(f"{shard.lineage}: commit {commit.number} truncates {table}")

    def _fault_move(self) -> None:
        shard = self.random.choice(self.shards)
        before, after = self.random.randrange(self.options.keys), self.random.randrange(self.options.keys)
        change = RowChange("b", "update", {"id": before}, {"id": after})
        commit = shard.write(self.now, (change,))
        self.note(f"{shard.lineage}: commit {commit.number} moves b[{before}] to b[{after}]")

    def _fault_stop_replica(self) -> None:
        replica = self.random.choice(self.random.choice(self.shards).replicas)
        if replica.epoch == max(shard.epoch for shard in self.shards if replica in shard.replicas):
            replica.is_stopped = not replica.is_stopped
            self.note(f"{replica.name} {'stops' if replica.is_stopped else 'goes on'}")

    def _fault_failover(self) -> None:
        shard = self.random.choice(self.shards)
        # Commits that nobody but the old primary had; heartbeats among them.
        kept = max(0, len(shard.log) - self.random.choice((0, 1, 2)))
        if kept == len(shard.log):
            return
        shard.fail_over(kept)
        for process in self.processes.values():
            if process.shard is shard:
                process.is_open = False
        self.checker.history_lost(shard.lineage)
        self.note(f"{shard.lineage} fails over and keeps {kept} commits")
        for place, replica in enumerate(shard.replicas):
            if replica.is_stopped and self.random.random() < 0.5:
                shard.rebuild(place)

    def _stop(self) -> None:
        for actor in self.actors:
            if actor.procedure is not None:
                with contextlib.suppress(RuntimeError):
                    actor.procedure.close()

    # -- telling ------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now - 1000:9.4f}  {text}")

    def step_began(self, who: str) -> float:
        """When that actor's present step began."""
        return next((actor.step_began for actor in self.actors if actor.name == who), self.now)

    def lookups(self) -> Iterator[Lookup]:
        for name in self.definitions:
            for key in range(self.options.keys):
                yield self.lookup(name, key)


def _show(thing: Any) -> str:
    from tests.simulation.history import show

    return show(thing)
