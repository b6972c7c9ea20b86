"""Exhaustive mode: every interleaving of small worlds, so that for those sizes the claim is no sample.

A state is what the node holds, the clock, how far the database is, what faults are left, and for each actor all
the answers it has had. The latter stands for its local state: a procedure is a function of its answers, so equal
answers mean equal states, and its pending step is found by feeding them to a fresh one. States are hashed and
visited once, breadth first; a violation comes with the shortest history that leads to it.

The procedures are the production ones; the invalidators run ``invalidator.loop.loop``. What a world leaves out (other
nodes, other keys, clocks that run differently) is said in its docstring and in docs/testing.md.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from freshness.algorithm.envelope import STUB, Filled, NodeRecord, Tombstone, record_key
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.read import Read, ReadContext, read_through
from freshness.algorithm.request import (
    Add,
    Cas,
    Delete,
    Flow,
    Flows,
    Get,
    Head,
    Item,
    Load,
    ReadHead,
    Stored,
    Wait,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.config.settings import ObjectConfig
from freshness.errors import FreshnessError, NodeUnavailable
from freshness.keys.cachekey import KeyBuilder, tombstone_key
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat, RowChange, Transaction
from invalidator.loop.loop import LoopObserver, OpenStream, Poll, run_loop
from invalidator.loop.shard import ShardInvalidator
from tests.simulation.history import show

NODE: Final = "n0"
LINEAGE: Final = "s0"
SID: Final = "00000000-0000-0000-0000-000000000001"
D_SECONDS: Final = 20
L_SECONDS: Final = 3
W_SECONDS: Final = D_SECONDS - 2 * L_SECONDS - 2
NOTHING: Final = MysqlGtidSet()
START: Final = 1000.0


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """What one exhaustive world holds.

    ``commits``: changes of the one row, the first of them before anything is explored, so that the node is open.
    ``polls``: how often each invalidator looks at the stream after the start. ``is_first_gone``:
    the first one has acknowledged the second commit and has died, before anything is explored. ``ticks``: lengths
    of time that may pass, each once, at any moment. ``evictions``, ``losses``, ``restarts``, ``crashes``,
    ``lost_replies``: how often each may strike.
    """

    name: str
    commits: int = 2
    readers: int = 1
    reads: int = 1
    invalidators: int = 1
    polls: int = 2
    is_first_gone: bool = False
    ticks: tuple[float, ...] = ()
    evictions: int = 0
    tombstone_evictions: int = 0
    restarts: int = 0
    lost_replies: int = 0
    crashes: int = 0
    keeps_tombstones: bool = True
    reads_first: bool = False
    lease_seconds: int = L_SECONDS
    trail_seconds: float = W_SECONDS
    heartbeat_age_max_seconds: float = 4.0
    states_max: int = 2_000_000


WORLDS: Final = (
    SmallWorld("two readers, two events, eviction", readers=2, commits=3, polls=1, evictions=1),
    SmallWorld("one reader twice, two events, eviction", reads=2, commits=3, polls=2, evictions=1),
    SmallWorld("two invalidators, one of them paused anywhere", invalidators=2, commits=2, polls=1),
    SmallWorld(
        "two invalidators, paused anywhere, that read tombstones first",
        invalidators=2, commits=2, polls=1, reads_first=True,
    ),
    SmallWorld(
        "what the other one sent grows old while the lease is kept",
        invalidators=2, readers=0, commits=2, polls=4, is_first_gone=True, ticks=(7.4, 7.0, 7.0),
        lease_seconds=8, trail_seconds=2.0, heartbeat_age_max_seconds=60.0,
    ),
    SmallWorld("tombstones expire", reads=2, commits=2, polls=2, ticks=(25.0,)),
    SmallWorld("tombstones expire that are read first", commits=3, polls=2, ticks=(25.0,), reads_first=True),
    SmallWorld("the lease lapses, the node is revived", reads=2, commits=2, polls=4, ticks=(4.0,)),
    SmallWorld("the lease lapses, then tombstones expire", commits=2, polls=2, ticks=(4.0, 18.0)),
    SmallWorld("the node restarts, its versions repeat", reads=2, commits=2, polls=3, restarts=1),
    SmallWorld("a reply is lost after the effect", commits=2, polls=4, lost_replies=1),
    SmallWorld("the invalidator crashes anywhere", commits=2, polls=2, crashes=1),
    SmallWorld(
        "head mode, tombstones are evicted",
        reads=2, commits=2, polls=2, keeps_tombstones=False, tombstone_evictions=1,
    ),
)  # fmt: skip


Label = str | tuple[str, Any, Any]
"""What happened between two states: a text, or who sent which request and what was answered."""


class ActorState(NamedTuple):
    """``history``: identifies all answers so far. ``replies``: those of the flow in hand. ``connection``: the
    node's incarnation it is connected to, -1 for none. ``seen``: the entry its last get returned, and what had
    been acknowledged then. ``generation``: how often the process was started again."""

    history: int
    replies: tuple[Any, ...]
    connection: int
    generation: int
    seen: tuple[bytes, frozenset[tuple[bytes, int]]] | None


class State(NamedTuple):
    now: float
    store: int
    incarnation: int
    committed: int
    applied: int
    actors: tuple[ActorState, ...]
    ticks: tuple[float, ...]
    evictions: int
    tombstone_evictions: int
    restarts: int
    lost_replies: int
    crashes: int
    acknowledged: frozenset[tuple[bytes, int]]
    removed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Done:
    """A procedure's result instead of a pending step."""

    result: Any


@dataclass(slots=True)
class Result:
    """``violation``: empty where every state is sound."""

    name: str
    states: int = 0
    violation: str = ""
    history: list[str] = field(default_factory=list)


class _Histories:
    """The answers an actor has had, as numbers; and its pending step after them."""

    def __init__(self, explorer: Explorer, program: Callable[[], Generator[Any, Any, Any]]) -> None:
        self._explorer = explorer
        self._program = program
        self._numbers: dict[tuple[int, float, Any], int] = {}
        self._entries: list[tuple[int, float, Any]] = []
        self._steps: list[Any] = []
        self._alive: dict[int, Generator[Any, Any, Any]] = {}
        self.delivered: dict[int, set[int]] = {}
        self.root = self._add(-1, START, None)

    def step(self, history: int) -> Any:
        return self._steps[history]

    def extended(self, history: int, now: float, answer: Any) -> int:
        key = (history, now, _freeze(answer))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._add(history, now, answer)
        return number

    def _add(self, parent: int, now: float, answer: Any) -> int:
        number = len(self._entries)
        self._entries.append((parent, now, answer))
        generator = self._alive.pop(parent, None) or self._rebuilt(parent)
        self._explorer.actor_now = now
        self._steps.append(_advance(generator, answer))
        self._alive[number] = generator
        return number

    def _rebuilt(self, history: int) -> Generator[Any, Any, Any]:
        generator = self._program()
        chain = []
        while history >= 0:
            chain.append(self._entries[history])
            history = chain[-1][0]
        for _, now, answer in reversed(chain):
            self._explorer.actor_now = now
            _advance(generator, answer)
        return generator


def _advance(generator: Generator[Any, Any, Any], answer: Any) -> Any:
    try:
        if isinstance(answer, FreshnessError):
            return generator.throw(answer)
        return generator.send(answer)
    except StopIteration as stop:
        return Done(stop.value)
    except FreshnessError as error:
        return Done(error)


def _freeze(answer: Any) -> Any:
    freeze = _FREEZE.get(type(answer))
    if freeze is not None:
        return freeze(answer)
    return type(answer).__name__ if isinstance(answer, FreshnessError) else answer


_FREEZE: Final[dict[type, Callable[[Any], Any]]] = {
    list: lambda answer: tuple([_freeze(each) for each in answer]),
    Loaded: lambda answer: (answer.value, answer.tokens[LINEAGE].position),
    Transaction: lambda answer: answer.position,
    Head: lambda answer: answer.position,
}
"""What can be hashed, and is equal exactly where the answers are."""


class Explorer:
    """Visits every state of one `SmallWorld`."""

    def __init__(self, world: SmallWorld) -> None:
        self.world = world
        self.now = START
        self.actor_now = START
        self.store = MemoryStore(
            NODE, clock=lambda: self.now, temp_lru_ttl_seconds=700 if world.keeps_tombstones else None
        )
        self.placement = Placement((NODE,), "sim")
        column = KeyColumn("id", ColumnKind.INTEGER)
        builder = KeyBuilder("sim", "row", (column,))
        policy = ObjectPolicy("row", 1, ("t",), (LINEAGE,), 3600)
        config = ObjectConfig(name="row", keyspace="sim", table="t")
        self.definition = ObjectDefinition(config, policy, builder, {"t": (column,)})
        key = builder.build((0,))
        self.lookup = Lookup(policy, NODE, key.item, self.definition.identity(key), (0,))
        self.commit_times: dict[int, float] = {}
        # One for each actor and each time that it can be started.
        self._histories: list[list[_Histories]] = [
            [_Histories(self, self._invalidator(number, each)) for each in range(world.crashes + 1)]
            for number in range(world.invalidators)
        ]
        self._histories += [[_Histories(self, self._reader())] for _ in range(world.readers)]
        self._store_numbers: dict[Any, int] = {}
        self._store_states: list[Any] = []
        self._peeked: dict[tuple[int, float, bytes], Item | None] = {}
        self._protections: dict[tuple[int, float], tuple[bytes, tuple[Position, ...]] | None] = {}

    # -- programs -----------------------------------------------------------------------------------------

    def _invalidator(self, number: int, start: int) -> Callable[[], Generator[Any, Any, Any]]:
        def program() -> Generator[Any, Any, Any]:
            counter = iter(range(1, 1000))
            is_gone = self.world.is_first_gone and number == 0
            polls = iter(range(2 if is_gone else self.world.polls + 1))

            def is_stopping() -> bool:
                if next(polls, None) is None:
                    raise FreshnessError(
                        "this world ends here"
                    )  # without the farewell, which only adds states
                return False

            invalidator = ShardInvalidator.create(
                (NODE,),
                NodePolicy(
                    "sim", LINEAGE, self.placement.ring_version, {"row": 1}, D_SECONDS, self.world.lease_seconds,
                    self.world.trail_seconds, self.world.heartbeat_age_max_seconds, 1.0,
                ),
                self.placement,
                KeyFinder({"row": self.definition}),
                instance=f"i{number}",
                clock=lambda: self.actor_now,
                nonce=lambda: bytes((number, start, 0, 0, 0, 0, 0, next(counter))),
                find_heartbeat=lambda sequence: self.commit_times.get(sequence),
                nothing=NOTHING,
            )  # fmt: skip
            for member in invalidator.members.values():
                member.expects_tombstones = self.world.reads_first
            return run_loop(
                invalidator,
                transactions_max=10,
                is_stopping=is_stopping,
                observer=LoopObserver(),
            )

        return program

    def _reader(self) -> Callable[[], Generator[Any, Any, Any]]:
        def program() -> Generator[Any, Any, Any]:
            context = ReadContext(
                "sim", self.placement.ring_version, (LINEAGE,), lambda: self.actor_now, lambda: 0.0,
                lambda value: repr(value).encode(), self.world.lease_seconds, 1.0, 4, 0.05, "bypass",
            )  # fmt: skip
            for _ in range(self.world.reads):
                (read,) = yield from read_through(context, [self.lookup])
                view = context.views.get(NODE)
                yield ("read", read, None if view is None else view.records[LINEAGE])

        return program

    # -- states -------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The first invalidator has joined and opened the node; the first commit is everywhere."""
        world = self.world
        actors = tuple(ActorState(starts[0].root, (), -1, 0, None) for starts in self._histories)
        state = State(
            START, self._saved(), 0, 0, 0, actors, world.ticks, world.evictions,
            world.tombstone_evictions, world.restarts, world.lost_replies, world.crashes, frozenset(), frozenset(),
        )  # fmt: skip
        state = self._committed(state)._replace(applied=1)
        opened_at = 0
        while opened_at < world.invalidators:
            # Joined one after the other, each up to its first look at a stream that has nothing new.
            moved = self._moved(state, opened_at)
            step = self._step(moved, opened_at)
            state = moved
            if isinstance(step, Poll) and self._record_of(state) is not None:
                opened_at += 1
        if world.is_first_gone:
            # The second one has looked at the stream before that, and is about to renew the lease.
            state = self._moved(state._replace(now=START + world.lease_seconds / 2), 1)
            state = self._committed(state)
            while not isinstance(self._step(state, 0), Done):
                state = self._moved(state, 0)
        return state

    def explore(self) -> Result:
        result = Result(self.world.name)
        first = self.initial()
        parents: dict[State, tuple[State, Label] | None] = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            result.states += 1
            if result.states > self.world.states_max:
                raise AssertionError(f"{self.world.name}: more than {self.world.states_max} states")
            for label, following, problem in self._successors(state):
                problem = problem or self._find_unprotected(following)
                if problem:
                    result.violation = problem
                    result.history = [*_path(parents, state), _told(label), problem]
                    return result
                if following not in parents:
                    parents[following] = (state, label)
                    queue.append(following)
        return result

    def _successors(self, state: State) -> Iterator[tuple[Label, State, str]]:
        for place in range(len(state.actors)):
            step = self._step(state, place)
            if isinstance(step, Done):
                continue
            label, following, problem = self._do(state, place, step)
            yield label, following, problem
            if state.lost_replies and isinstance(step, Flow | Flows) and state.actors[place].connection >= 0:
                yield (
                    f"{_told(label)}, the reply is lost",
                    self._reply_lost(state, following, place, step),
                    problem,
                )
        yield from self._happenings(state)

    def _happenings(self, state: State) -> Iterator[tuple[Label, State, str]]:
        """What happens without any actor."""
        if state.committed < self.world.commits:
            yield f"commit {state.committed + 1}", self._committed(state), ""
        if state.applied < state.committed:
            yield f"the replica applies {state.applied + 1}", state._replace(applied=state.applied + 1), ""
        for seconds in dict.fromkeys(state.ticks):
            left = list(state.ticks)
            left.remove(seconds)
            yield f"{seconds} s pass", state._replace(now=state.now + seconds, ticks=tuple(left)), ""
        if state.evictions and self._peek(state, self.lookup.item) is not None:
            store = self._without(state, self.lookup.item)
            yield "the entry is evicted", state._replace(store=store, evictions=state.evictions - 1), ""
        marker = tombstone_key(self.lookup.item)
        if state.tombstone_evictions and self._peek(state, marker) is not None:
            store = self._without(state, marker)
            left_over = state.tombstone_evictions - 1
            yield "the tombstone is evicted", state._replace(store=store, tombstone_evictions=left_over), ""
        for place in range(self.world.invalidators if state.crashes else 0):
            generation = state.actors[place].generation + 1
            root = self._histories[place][generation].root
            crashed = self._with_actor(state, place, ActorState(root, (), -1, generation, None))
            yield (
                f"{self._name(place)} crashes and starts again",
                crashed._replace(crashes=state.crashes - 1),
                "",
            )
        if state.restarts:
            self._restore(state)
            self.store.restart()
            yield "the node restarts", state._replace(
                store=self._saved(), incarnation=state.incarnation + 1, restarts=state.restarts - 1,
                removed=frozenset(),
            ), ""  # fmt: skip

    def _committed(self, state: State) -> State:
        number = state.committed + 1
        # The heartbeat travels with the commit; its age is counted from here.
        self.commit_times.setdefault(number, START)
        return state._replace(committed=number)

    def _histories_of(self, state: State, place: int) -> _Histories:
        return self._histories[place][state.actors[place].generation]

    def _step(self, state: State, place: int) -> Any:
        """What an actor waits for, or `Done`."""
        return self._histories_of(state, place).step(state.actors[place].history)

    # -- steps of an actor ----------------------------------------------------------------------------------

    def _moved(self, state: State, place: int) -> State:
        step = self._step(state, place)
        assert not isinstance(step, Done), step
        _, following, problem = self._do(state, place, step)
        assert not problem, problem
        return following

    def _do(self, state: State, place: int, step: Any) -> tuple[Label, State, str]:
        name = self._name(place)
        match step:
            case Flow():
                return self._request(state, place, step, step)
            case Flows():
                return self._request(state, place, step, step.flows[0])
            case Wait():
                # Time stands still: waits end at once, which only adds interleavings.
                return f"{name} waited", self._answered(state, place, None), ""
            case Load():
                return self._load(state, place)
            case ReadHead():
                head = Head(_prefix(state.committed), 1)
                return f"{name} reads the head {state.committed}", self._answered(state, place, head), ""
            case OpenStream():
                return f"{name} opens the stream", self._opened(state, place, step), ""
            case Poll():
                return self._poll(state, place)
            case ("read", read, record):
                problem = self._find_stale_hit(state, place, read, record)
                return f"{name} has read: {read.outcome.name}", self._answered(state, place, None), problem
        raise AssertionError(step)

    def _name(self, place: int) -> str:
        invalidators = self.world.invalidators
        return f"invalidator {place}" if place < invalidators else f"reader {place - invalidators}"

    def _answered(self, state: State, place: int, answer: Any) -> State:
        actor = state.actors[place]
        history = self._histories_of(state, place).extended(actor.history, state.now, answer)
        return self._with_actor(state, place, actor._replace(history=history, replies=()))

    @staticmethod
    def _with_actor(state: State, place: int, actor: ActorState) -> State:
        actors = list(state.actors)
        actors[place] = actor
        return state._replace(actors=tuple(actors))

    def _request(self, state: State, place: int, step: Flow | Flows, flow: Flow) -> tuple[Label, State, str]:
        actor = state.actors[place]
        if actor.connection not in (-1, state.incarnation):
            state = self._with_actor(state, place, actor._replace(connection=-1))
            error = NodeUnavailable("the connection is broken")
            answer = error if isinstance(step, Flow) else [error]
            return f"{self._name(place)}: no answer", self._answered(state, place, answer), ""
        request = flow.requests[len(actor.replies)]
        self._restore(state)
        reply = self.store.answer(request)
        label = (self._name(place), request, reply)
        actor = actor._replace(replies=(*actor.replies, reply), connection=state.incarnation)
        state = self._with_actor(state._replace(store=self._saved()), place, actor)
        state, problem = self._observed(state, place, request, reply)
        if len(state.actors[place].replies) == len(flow.requests):
            replies = list(state.actors[place].replies)
            state = self._answered(state, place, replies if isinstance(step, Flow) else [replies])
        return label, state, problem

    def _reply_lost(self, before: State, after: State, place: int, step: Flow | Flows) -> State:
        """The request took effect and its sender hears nothing; its connection is gone."""
        error = NodeUnavailable("the reply was lost")
        state = after._replace(
            actors=(*after.actors[:place], before.actors[place], *after.actors[place + 1 :]),
            lost_replies=before.lost_replies - 1,
        )
        state = self._with_actor(state, place, state.actors[place]._replace(connection=-1))
        return self._answered(state, place, error if isinstance(step, Flow) else [error])

    def _load(self, state: State, place: int) -> tuple[Label, State, str]:
        """Token, then row, from the replica. As two actions: the replica may apply in between."""
        actor, name = state.actors[place], self._name(place)
        if not actor.replies:
            waiting = self._with_actor(state, place, actor._replace(replies=(_prefix(state.applied),)))
            return f"{name} reads the token {state.applied}", waiting, ""
        (position,) = actor.replies
        token = EventToken(LINEAGE, "-", 1, 0, position)
        answer = [Loaded(state.applied, {LINEAGE: token})]
        return f"{name} reads version {state.applied}", self._answered(state, place, answer), ""

    def _opened(self, state: State, place: int, step: OpenStream) -> State:
        return self._answered(state, place, None)

    def _poll(self, state: State, place: int) -> tuple[Label, State, str]:
        delivered = self._delivered(state, place)
        taken = [_transaction(number) for number in range(1, state.committed + 1) if number not in delivered]
        label = f"{self._name(place)} takes {[self._number(each.position) for each in taken]}"
        return label, self._answered(state, place, taken), ""

    def _delivered(self, state: State, place: int) -> set[int]:
        """What the open stream started from or has delivered, from the actor's own history."""
        histories, history = self._histories_of(state, place), state.actors[place].history
        known = histories.delivered.get(history)
        if known is None:
            known = histories.delivered[history] = self._find_delivered(histories, history)
        return known

    def _find_delivered(self, histories: _Histories, history: int) -> set[int]:
        delivered: set[int] = set()
        while history >= 0:
            parent, _, answer = histories._entries[history]
            step = histories.step(parent) if parent >= 0 else None
            if isinstance(step, Poll):
                delivered |= {self._number(each.position) for each in answer}
            elif isinstance(step, OpenStream):
                return delivered | {
                    n for n in range(1, self.world.commits + 1) if step.start.contains(_single(n))
                }
            history = parent
        return delivered

    @staticmethod
    def _number(position: Position) -> int:
        return int(str(position).rpartition(":")[2])

    # -- what must hold -------------------------------------------------------------------------------------

    def _observed(self, state: State, place: int, request: Any, reply: Any) -> tuple[State, str]:
        item = self.lookup.item
        if isinstance(request, Get) and request.key == item and isinstance(reply, Item):
            actor = state.actors[place]._replace(seen=(reply.value, state.acknowledged))
            return self._with_actor(state, place, actor), ""
        if isinstance(request, Delete) and request.key == item and request.version is None:
            held = self.store.peek(tombstone_key(item))
            if held is not None:
                positions = Tombstone.decode(held.value).positions.values()
                new = {
                    n for n in range(1, state.committed + 1) if any(p.contains(_single(n)) for p in positions)
                }
                return state._replace(removed=state.removed | new), ""
        if isinstance(request, Add | Cas) and isinstance(reply, Stored):
            if request.key == record_key("sim", LINEAGE):
                return self._published(state, NodeRecord.decode(request.value))
            if request.key == item and request.value != STUB:
                return state, self._find_poison(state, request.value)
        return state, ""

    def _published(self, state: State, record: NodeRecord) -> tuple[State, str]:
        new = set()
        for number in range(1, state.committed + 1):
            if not record.progress.contains(_single(number)) or (record.life, number) in state.acknowledged:
                continue
            new.add((record.life, number))
            if not record.floor.contains(_single(number)) and number not in state.removed:
                return state, f"I4: progress names commit {number}, which was not carried out"
        return state._replace(acknowledged=state.acknowledged | new), ""

    def _find_poison(self, state: State, data: bytes) -> str:
        entry = Filled.decode(data)
        version = ast.literal_eval((entry.value or b"0").decode())
        for number in range(version + 1, state.committed + 1):
            if (entry.stamps[0].life, number) in state.acknowledged:
                return f"I1: version {version} was filled after commit {number} was acknowledged"
        return ""

    def _find_stale_hit(self, state: State, place: int, read: Read, record: NodeRecord | None) -> str:
        """I1, and the lemma that read-your-writes will stand on: a live entry is the row at its own position and the
        progress of the record that its reader judged it by."""
        if read.outcome is not ReadOutcome.HIT:
            return ""
        seen = state.actors[place].seen
        assert seen is not None
        entry = Filled.decode(seen[0])
        version = ast.literal_eval((entry.value or b"0").decode())
        for number in range(version + 1, state.committed + 1):
            if (entry.stamps[0].life, number) in seen[1]:
                return f"I1: version {version} was hit after commit {number} was acknowledged"
            if record is not None and record.progress.contains(_single(number)):
                return f"lemma: version {version} was hit by a record whose progress names commit {number}"
        return ""

    def _find_unprotected(self, state: State) -> str:
        """I2: whatever is acknowledged in a life that goes on is in the tombstone or in the floor."""
        protection = self._protection(state)
        if protection is None:
            return ""
        life, positions = protection
        for named, number in state.acknowledged:
            if named == life and not any(position.contains(_single(number)) for position in positions):
                return f"I2: commit {number} is acknowledged, and neither tombstone nor floor holds it"
        return ""

    def _protection(self, state: State) -> tuple[bytes, tuple[Position, ...]] | None:
        """The life of an open record, its floor and the tombstone's positions."""
        where = (state.store, state.now)
        if where not in self._protections:
            record = self._record_of(state)
            if record is None or not record.is_open:
                self._protections[where] = None
            else:
                held = self._peek(state, tombstone_key(self.lookup.item))
                marked = [] if held is None else Tombstone.decode(held.value).positions.values()
                self._protections[where] = record.life, (record.floor, *marked)
        return self._protections[where]

    def _record_of(self, state: State) -> NodeRecord | None:
        item = self._peek(state, record_key("sim", LINEAGE))
        return None if item is None else NodeRecord.decode(item.value)

    def _peek(self, state: State, key: bytes) -> Item | None:
        where = (state.store, state.now, key)
        if where not in self._peeked:
            self._restore(state)
            self._peeked[where] = self.store.peek(key)
        return self._peeked[where]

    def _without(self, state: State, key: bytes) -> Any:
        self._restore(state)
        self.store.evict(key)
        return self._saved()

    def _restore(self, state: State) -> None:
        self.now = state.now
        self.store.restore(self._store_states[state.store])

    def _saved(self) -> int:
        """What the node holds, as a number."""
        held = self.store.state()
        number = self._store_numbers.setdefault(held, len(self._store_states))
        if number == len(self._store_states):
            self._store_states.append(held)
        return number


def _single(number: int) -> MysqlGtidSet:
    return _SINGLES[number]


def _prefix(number: int) -> Position:
    return _PREFIXES[number]


_SINGLES: Final = [NOTHING, *(MysqlGtidSet.of(SID, number) for number in range(1, 50))]
_PREFIXES: Final[list[Position]] = [NOTHING]
for _each in _SINGLES[1:]:
    _PREFIXES.append(_PREFIXES[-1].union(_each))


def _transaction(number: int) -> Transaction:
    change = RowChange("t", "update", {"id": 0}, {"id": 0})
    beats = tuple(Heartbeat(f"i{each}", number, 0, 0, 1) for each in range(3))
    return Transaction(_SINGLES[number], 0, (change,), frozenset(), beats)


def _path(parents: dict[State, tuple[State, Label] | None], state: State) -> list[str]:
    labels = []
    while (parent := parents[state]) is not None:
        state, label = parent
        labels.append(_told(label))
    return labels[::-1]


def _told(label: Label) -> str:
    """A label as text; requests are put into words only when somebody wants to read them."""
    if isinstance(label, str):
        return label
    who, request, reply = label
    return f"{who} → {show(request)}: {show(reply)}"


def explore(world: SmallWorld) -> Result:
    """Visit a world to its end."""
    return Explorer(world).explore()
