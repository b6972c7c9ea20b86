"""Model and code: each step of the production code in a small world is some actions of the model, or none.

`Tied` explores a world of ``tests/simulation/explore.py``, and keeps a state of the model beside each of its own.
Each answer of the node or the database, and each answer to a caller, is some actions of the model, which must be
possible. An eviction, a lapse or a commit is an action when it shows. After that the node, the log and the servers
must be what the model says. The model knows what readers and invalidators have in mind by the answers that they had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from freshness.algorithm.envelope import STUB, Filled, NodeRecord, PendingStripe, Stripe
from freshness.algorithm.request import Append, Delete, Flow, Get, Item, Load, Stored
from freshness.errors import FormatError
from freshness.position import Position
from tests.proof import actions, reading
from tests.proof.concrete import SORTS, Action, Facts, Impossible, Model
from tests.proof.language import name_of
from tests.simulation.explore import Explorer, Label, LastChange, SmallWorld, State, decode_entry, single
from tests.simulation.history import STRIPE_HEAD

Events = frozenset[tuple[int]]

READS: Final = [name for name, sorts in SORTS.items() if sorts[0] == "Read"]


def is_tied(world: SmallWorld) -> bool:
    """Whether the world fits the model: one node and ring, one history, keys whose rows stay theirs."""
    is_one = len(world.rings) == len(world.files) == 1
    return is_one and not (world.rows or world.spellings or world.strays or world.returns or world.spread)


class Walk:
    """Actions of the model, one after the other."""

    def __init__(self, model: Model, number: int) -> None:
        self.model, self.number = model, number

    @property
    def facts(self) -> Facts:
        return self.model.facts(self.number)

    def has(self, name: str, *terms: Any) -> bool:
        return terms in self.facts[name]

    def of(self, name: str, *first: Any) -> list[tuple[Any, ...]]:
        """The rest of all tuples that begin so. ``nonce`` of an item: those of its pending stripes."""
        if name == "nonce":
            return sorted((each[0],) for (each,) in self.facts["pending"] if each[1] == first[0])
        return sorted(terms[len(first) :] for terms in self.facts[name] if terms[: len(first)] == first)

    def do(self, action: Action, *chosen: Any) -> None:
        self.number = self.model.do(self.number, action, *chosen)

    def do_with_one(self, action: Action, *choices: tuple[Any, ...]) -> None:
        """With the first choice for which it is possible."""
        if not choices:
            raise Impossible(name_of(action))
        for chosen in choices[:-1]:
            with suppress(Impossible):
                return self.do(action, *chosen)
        return self.do(action, *choices[-1])

    def put(self, name: str, tuples: Iterable[tuple[Any, ...]]) -> None:
        self.number = self.model.put(self.number, {name: frozenset(tuples)})


class Tied(Explorer):
    """Ends with the first step that no action allows, or the first state in which a clause fails."""

    def __init__(self, world: SmallWorld) -> None:
        super().__init__(world)
        self.model = Model()
        self._items_of_readers: dict[int, bytes] = {}
        self._synced: dict[Any, tuple[int, str]] = {}

    # -- steps --------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """Readers that have filled before are forgotten."""
        state = super().initial()
        walk = Walk(self.model, self._sync(state, state)[0].model)
        for place in range(2 * self.world.invalidators, len(state.actors)):
            self._forget(walk, self._read_of(place), None)
            self._forget(walk, self._read_of(place, "later"), None)
        return state._replace(model=walk.number)

    def _moved(self, state: State, place: int) -> State:
        state, _ = self._sync(state, state)
        following, problem = self._sync(state, super()._moved(state, place))
        assert not problem, problem
        return following

    def _successors(self, state: State) -> Iterator[tuple[Label, State, str]]:
        for label, following, problem in super()._successors(state):
            synced, gap = self._sync(state, following)
            yield label, synced, problem or gap

    def _observed(self, state: State, place: int | None, request: Any, reply: Any) -> tuple[State, str]:
        after, problem = super()._observed(state, place, request, reply)
        walk = Walk(self.model, state.model)
        return self._walked(after, problem, walk, lambda: self._request_of(walk, state, place, request, reply))

    def _load(self, state: State, place: int, step: Load) -> tuple[Label, State, str]:
        label, after, problem = super()._load(state, place, step)
        walk, read = Walk(self.model, state.model), self._read_of(place)
        is_token = not state.actors[place].replies
        is_primary = (after if is_token else state).actors[place].replies[1]

        def load() -> None:
            self._start(walk, read)
            if is_token and not walk.has("looked", read):
                self._look_away(walk, read)
            walk.do(reading.take_position if is_token else reading.take_rows, read, SERVERS[is_primary])

        return label, *self._walked(after, problem, walk, load)

    def _poll(self, state: State, place: int, *, is_stalled: bool = False) -> tuple[Label, State, str]:
        label, after, problem = super()._poll(state, place, is_stalled=is_stalled)
        walk = Walk(self.model, state.model)

        def take() -> None:
            for member in self._known(walk, state, place):
                self._stream(walk, after, member)

        return label, *self._walked(after, problem, walk, take)

    def _do(self, state: State, place: int, step: Any) -> tuple[Label, State, str]:
        label, after, problem = super()._do(state, place, step)
        walk = Walk(self.model, state.model)
        match step:
            case LastChange():
                own = int(str(label).rpartition(" ")[2])
                walk.put("asked", walk.facts["asked"] | {(self._read_of(place), own)})
                return label, after._replace(model=walk.number), problem
            case ("read", read, _, _):
                return label, *self._walked(after, problem, walk, lambda: self._answer(walk, after, place, read))
        return label, after, problem

    def _walked(self, after: State, problem: str, walk: Walk, act: Callable[[], None]) -> tuple[State, str]:
        try:
            act()
        except Impossible as impossible:
            return after, f"not in the model: {impossible}"
        return after._replace(model=walk.number), problem

    def _request_of(self, walk: Walk, state: State, place: int | None, request: Any, reply: Any) -> None:
        kind = -1 if place is None else min(place // self.world.invalidators, 2)
        if request.key in self.records:
            self._touch_record(walk, state, place, kind, request, reply)
        elif request.key in self.items:
            self._touch_item(walk, state, place, kind, request, reply)
        for item, stripe in self.stripes.items():
            if request.key == stripe:
                self._touch_stripe(walk, state, place, kind, item, request, reply)

    # -- the record ---------------------------------------------------------------------------------------

    def _touch_record(self, walk: Walk, state: State, place: int | None, kind: int, request: Any, reply: Any) -> None:
        if isinstance(request, Get):
            if isinstance(reply, Item) and place is not None:
                self._see_record(walk, state, place, kind, _decode_record(reply.value))
        elif isinstance(reply, Stored):
            record = _decode_record(request.value)
            life, progress = record.life, _events(state, record.progress)
            member, *_ = self._members(walk, state, place, life, record.tenure)
            if not walk.has("begun", life):
                return walk.do(actions.begin_life, member)
            if not walk.has("born", life):
                return walk.do(actions.set_floor, member, progress)
            if not walk.facts["record"]:
                walk.do(actions.revive, member, progress)
            walk.do(actions.publish, member, progress - walk.facts["progress"])
            walk.do(actions.open_record if record.is_open else actions.close_record, member)
        return None

    def _see_record(self, walk: Walk, state: State, place: int, kind: int, record: NodeRecord) -> None:
        life = record.life
        if kind == 0:
            (member,) = self._members(walk, state, place, life, record.tenure)
            is_better = walk.has("is_open", life) and not walk.has("joined_open", member)
            if is_better or not walk.has("joined", member):
                walk.do(actions.join, member)
            for read in self._refills_of(walk, place):
                if record.is_open:
                    walk.do(reading.fetch_record, read, life)
                walk.do(reading.take_image, read, member, frozenset(walk.of("streamed", member)))
        elif kind == 2 and record.is_open:
            read, later = self._read_of(place), self._read_of(place, "later")
            if walk.has("guarded", read) and not walk.of("informed", read):
                walk.do(reading.fetch_record, read, life)
            elif not walk.has("looked", read):
                walk.do(reading.copy_record, read, life)
            walk.do(reading.copy_record, later, life)

    def _members(
        self, walk: Walk, state: State, place: int | None, life: bytes, tenure: bytes = b""
    ) -> Sequence[Any]:
        """Who may have sent it, and all that each of them has streamed is known to the model then."""
        known = self._known(walk, state, place)
        found = [member for member in known if member[3] == life and tenure in (b"", member[2])]
        if place is None:
            return found or [(-1, 0, tenure, life)]
        process = place % self.world.invalidators, state.actors[place].generation
        member = found[0] if found else (*process, tenure, life)
        self._stream(walk, state, member)
        return [member]

    def _known(self, walk: Walk, state: State, place: int | None) -> Sequence[Any]:
        """The members of a process, or of all."""
        known = sorted({terms[0] for terms in walk.facts["streamed"] | walk.facts["joined"]})
        if place is None:
            return known
        process = place % self.world.invalidators, state.actors[place].generation
        return [member for member in known if member[:2] == process]

    def _stream(self, walk: Walk, state: State, member: Any) -> None:
        for event in sorted(self._delivered(state, member[0])):
            if not walk.has("streamed", member, event):
                walk.do(actions.stream, member, event)

    # -- stripes ------------------------------------------------------------------------------------------

    def _touch_stripe(
        self, walk: Walk, state: State, place: int | None, kind: int, item: bytes, request: Any, reply: Any
    ) -> None:
        if isinstance(request, Get):
            reads = [self._read_of(place)] if place is not None and kind == 2 else self._refills_of(walk, place)
            for read in reads:
                if read[1] == item:
                    walk.do(reading.fetch_stripe, read)
        elif isinstance(request, Delete):
            for member in self._known(walk, state, place) if kind == 0 else ():
                walk.do(actions.remove_stripe, member, item, frozenset(walk.of("streamed", member)))
        elif isinstance(request, Append):
            if not isinstance(reply, Stored):
                return  # the stripe will be removed
            chunk = _decode(STRIPE_HEAD + request.value)
            assert isinstance(chunk, Stripe)
            events = _events(state, chunk.position)
            members = self._members(walk, state, place, chunk.life)
            walk.do_with_one(actions.append, *((member, item, events) for member in members))
        elif isinstance(reply, Stored):
            stripe = _decode(request.value)
            if isinstance(stripe, PendingStripe):
                life = walk.of("latest")[0][0] if place is None else self._aim_of(state, place)
                walk.do(actions.mark, (stripe.nonce, item, life))
                return
            held = _events(state, stripe.position)
            pending = [attempt for (attempt,) in walk.of("pending") if attempt[1] == item]
            if not pending:
                walk.do(actions.shorten, item, held)
                return
            floor = frozenset(walk.of("floor", stripe.life))
            members = self._members(walk, state, place, stripe.life)
            batches = [(held | floor) & frozenset(walk.of("streamed", member)) for member in members]
            chosen = zip(members, batches, strict=True)
            walk.do_with_one(actions.complete, *((pending[0], member, batch) for member, batch in chosen))

    def _aim_of(self, state: State, place: int) -> bytes:
        """The life that a restorer has seen last."""
        histories, history = self._histories_of(state, place), state.actors[place].history
        while True:
            parent, _, answer = histories.entry(history)
            step = histories.step(parent)
            if isinstance(step, Flow) and step.requests[0].key in self.records and isinstance(answer[0], Item):
                return _decode_record(answer[0].value).life
            history = parent

    # -- entries and reads --------------------------------------------------------------------------------

    def _read_of(self, place: int, which: str = "") -> Any:
        if place not in self._items_of_readers:
            self._items_of_readers[place] = self._lookup_of(place - 2 * self.world.invalidators)[0].item
        return place, self._items_of_readers[place], 0, which

    def _start(self, walk: Walk, read: Any) -> None:
        if not walk.has("started", read):
            walk.do(reading.start, read)

    def _touch_item(self, walk: Walk, state: State, place: int | None, kind: int, request: Any, reply: Any) -> None:
        item = request.key
        if isinstance(request, Delete) and request.version is None:
            walk.do(actions.delete, item)
        elif isinstance(request, Get) and place is not None and kind == 0:
            self._look_to_refill(walk, state, place, item, reply)
        elif isinstance(request, Get) and place is not None and kind == 2:
            read = self._read_of(place)
            self._start(walk, read)
            if not isinstance(reply, Item):
                self._look_away(walk, read)
            elif reply.value == STUB:
                walk.do(reading.leave_stub, read)
            else:
                walk.do(reading.look, read, decode_entry(reply.value)[0])
        elif isinstance(reply, Stored):
            if request.value == STUB:
                assert place is not None
                walk.do(actions.evict_entry, item)
                walk.do(reading.leave_stub, self._read_of(place))
                return
            life, version = decode_entry(request.value)
            loaded = [read for (read,) in walk.of("loaded") if read[1] == item]
            if place is None:  # the row and its position say whose it is
                at = sorted(_events(state, _position_of(request.value)))
                reads = [read for read in loaded if walk.of("at", read) == at and self._shows(walk, read, version)]
            else:
                reads = [read for read in loaded if (read[0], read[3]) == (place, "")]
            walk.do_with_one(reading.fill, *((read, life) for read in reads))

    def _refills_of(self, walk: Walk, place: int | None) -> Sequence[Any]:
        """The reads of an invalidator that fills from the log."""
        return [read for (read,) in walk.of("looked") if read[0] == place and not walk.has("loaded", read)]

    def _look_to_refill(self, walk: Walk, state: State, place: int, item: bytes, reply: Any) -> None:
        """Keep the entry that has all, or begin a read that may replace it."""
        for read in [read for (read,) in walk.of("started") if read[:2] == (place, item)]:
            self._forget(walk, read, None)
        if not isinstance(reply, Item):
            walk.do(actions.delete, item)
            return
        life = b"" if reply.value == STUB else decode_entry(reply.value)[0]
        of_log = [
            event for event, key in walk.of("changes") if key == item and event in self._delivered(state, place)
        ]
        lacked = [event for event in of_log if not (life and walk.has("position", item, event))]
        for event in of_log:
            is_new = walk.has("struck", life, item, event) and not walk.has("settled", life, item, event)
            if is_new and event not in lacked:
                walk.do_with_one(actions.keep, (item, life, event))
        if lacked:
            read = place, item, lacked[-1], ""
            walk.do(reading.start, read)
            walk.do(reading.look_to_refill, read, life) if life else walk.do(reading.leave_stub, read)

    def _look_away(self, walk: Walk, read: Any) -> None:
        """A look that the node has not answered, or not with a stub: as if that was lost at once."""
        for (life,) in [terms[1:] for terms in walk.facts["filled"] if terms[0] == read[1]]:
            return walk.do(reading.look, read, life)
        is_there = walk.has("stub", read[1])
        walk.do(reading.leave_stub, read)
        return None if is_there else walk.do(actions.evict_entry, read[1])

    def _answer(self, walk: Walk, after: State, place: int, read: Any) -> None:
        one = self._read_of(place)
        lives = [life for (life,) in walk.of("got" if read.is_hit else "informed", one)] or [b""]
        if read.is_hit:
            walk.do(reading.take_hit, one, lives[0])
        elif read.shows_required:
            walk.do(reading.answer, one, lives[0])
        else:
            walk.do(reading.answer_bounded, one)
        version = int(read.payload.split(b",")[0]) if read.is_hit else read.value
        if not self._shows(walk, one, version):
            raise Impossible(f"the answer {version}")
        late = self._read_of(place, "late")
        is_late = not walk.has("started", late) and any(request.key == one[1] for _, request in after.late)
        self._forget(walk, one, late if is_late else None)
        self._forget(walk, self._read_of(place, "later"), one)

    @staticmethod
    def _shows(walk: Walk, read: Any, version: int) -> bool:
        """Whether the read has this row."""
        changed = [event for event, key in walk.of("changes") if key == read[1]]
        return all(walk.has("value", read, event) == (event <= version) for event in changed)

    @staticmethod
    def _forget(walk: Walk, read: Any, instead: Any) -> None:
        """The read is over, or from here on another one."""
        changed = {}
        for name in READS:
            here = {terms for terms in walk.facts[name] if terms[0] == read}
            there = {(instead, *terms[1:]) for terms in here} if instead else set()
            changed[name] = (walk.facts[name] - here) | there
        walk.number = walk.model.put(walk.number, changed)

    # -- what comes without a request ---------------------------------------------------------------------

    def _sync(self, before: State, after: State) -> tuple[State, str]:
        """The state after what came without a request, and why the model has no such state."""
        begun = len(after.begun) - len(before.begun)
        clock = after.now - after.behind
        key = after.model, after.store, clock, after.log, after.shown, after.applied, begun
        if key not in self._synced:
            walk = Walk(self.model, after.model)
            try:
                self._happen(walk, after, begun)
                gap = self._find_gap(walk, after)
            except Impossible as impossible:
                gap = str(impossible)
            self._synced[key] = walk.number, gap and f"not in the model: {gap}"
        number, gap = self._synced[key]
        return after._replace(model=number), gap

    def _happen(self, walk: Walk, state: State, begun: int) -> None:
        if begun > 0 or (begun == 0 and len(state.log) > len(walk.facts["logged"])):
            self._beat(walk)
        for event in range(1, len(state.log) + 1):
            if not walk.has("logged", event):
                keys = [item for item in self.items if state.log[event - 1].change in self.changing[item]]
                walk.put("changes", walk.facts["changes"] | {(event, key) for key in keys})
                walk.do(actions.commit, event)
            for server, shown in zip(SERVERS, (state.applied, state.shown), strict=True):
                if event <= shown and not walk.has("shown", server, event):
                    walk.do(actions.replicate, server, event)
        if self._record_of(state) is None:
            for (life,) in walk.of("record"):
                walk.do(actions.lapse, life)
        for item in self.items:
            if self._peek(state, self.stripes[item]) is None and _is_of(walk, item, "whole", "pending"):
                walk.do(actions.evict_stripe, item)
            if self._peek(state, item) is None and _is_of(walk, item, "stub", "filled"):
                walk.do(actions.evict_entry, item)

    def _beat(self, walk: Walk) -> None:
        """All processes begin a heartbeat. For a join and for a pending stripe the first one says most."""
        for (member,) in walk.of("joined"):
            if not walk.has("beaten", member):
                walk.do(actions.beat, member)
        for (attempt,) in walk.of("pending"):
            if not walk.has("awaited", attempt):
                walk.do(actions.await_heartbeat, attempt)

    def _find_gap(self, walk: Walk, state: State) -> str:
        """What differs between the model and what is there."""
        for name, first, there in self._read_off(walk, state):
            of_model = walk.of(name, *first)
            if of_model != sorted(there):
                return f"{name}{first}: {sorted(there)}, in the model {of_model}"
        return ""

    def _read_off(self, walk: Walk, state: State) -> Iterator[tuple[str, tuple[Any, ...], Iterable[tuple[Any, ...]]]]:
        record = self._record_of(state)
        yield "record", (), [] if record is None else [(record.life,)]
        yield "is_open", (), [] if record is None or not record.is_open else [(record.life,)]
        if record is not None:
            yield "progress", (), _events(state, record.progress)
            yield "floor", (record.life,), _events(state, record.floor)
            for (member,) in walk.of("joined"):
                yield "joined", (member,), [()] if member[2] == record.tenure else []
        for item in self.items:
            held, other = self._peek(state, item), self._peek(state, self.stripes[item])
            stripe = None if other is None else _decode(other.value)
            yield "stub", (item,), [()] if held is not None and held.value == STUB else []
            lives = [] if held is None or held.value == STUB else [(decode_entry(held.value)[0],)]
            yield "filled", (item,), lives
            if held is not None and lives:
                yield "position", (item,), _events(state, _position_of(held.value))
                changed = [terms[:1] for terms in walk.of("changes") if terms[1] == item]
                rows = [each for each in changed if each[0] <= decode_entry(held.value)[1]]
                yield "row", (item,), {*rows, *(set(walk.of("row", item)) - set(changed))}
            yield "whole", (item,), [(stripe.life,)] if isinstance(stripe, Stripe) else []
            if isinstance(stripe, Stripe):
                yield "held", (item,), _events(state, stripe.position)
            there = [each for (each,) in walk.of("pending") if each[1] == item]
            yield "nonce", (item,), [(stripe.nonce,)] if isinstance(stripe, PendingStripe) else []
            if isinstance(stripe, PendingStripe):
                for attempt in there:
                    chunks = [_events(state, at) for life, at in stripe.chunks if life == attempt[2]]
                    yield "appended", (attempt,), frozenset().union(*chunks)


SERVERS: Final = "replica", "primary"


def _is_of(walk: Walk, item: bytes, *names: str) -> bool:
    """Whether the model has an entry there, or a stripe."""
    return any(item in (terms[0], terms[0][1]) for name in names for terms in walk.facts[name])


def _events(state: State, position: Position) -> Events:
    return _events_until(len(state.log), position)


@cache
def _events_until(last: int, position: Position) -> Events:
    return frozenset((event,) for event in range(1, last + 1) if position.contains(single(event)))


@cache
def _position_of(data: bytes) -> Position:
    return Filled.decode(data).stamps[0].position


@cache
def _decode(data: bytes) -> Stripe | PendingStripe:
    try:
        return Stripe.decode(data)
    except FormatError:
        return PendingStripe.decode(data)


@cache
def _decode_record(data: bytes) -> NodeRecord:
    return NodeRecord.decode(data)
