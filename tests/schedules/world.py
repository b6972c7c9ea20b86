"""A small world in which schedules are played: databases, memory nodes, invalidators and readers, one clock.

Everything is deterministic. Each procedure is a `Run` that is carried out request by request, so that a schedule
can stop it between any two of them, lose a request or a reply, and let others act in between. After every request
the world holds node records and stripes against the invariants (I2, I3), and every hit against what was
acknowledged before the read began (I1) and against the clock (I7); what does not hold is collected in
``World.broken``.

``World.answer_instead`` and ``World.order`` are where tests plant defects. It never sleeps and never uses chance.
Used by the tests of the algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from freshness.algorithm.admission import join
from freshness.algorithm.applier import RENEW_SECONDS
from freshness.algorithm.apply import Batch, apply_batch, renew
from freshness.algorithm.envelope import (
    NodeRecord,
    PendingStripe,
    Stripe,
    find_stripe,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.hit import look_up
from freshness.algorithm.lookup import NO_SERVERS, Loaded, Lookup, ReadServer
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.read import read_through
from freshness.algorithm.request import (
    CONFLICT,
    NO_TOKENS,
    Add,
    Append,
    Cas,
    ConfirmSuccession,
    Delete,
    Flow,
    Flows,
    Get,
    Head,
    Item,
    Load,
    Procedure,
    ReadHead,
    ReadStream,
    Refused,
    Reply,
    Request,
    Step,
    Stored,
    Streamed,
    Wait,
)
from freshness.algorithm.restore import Restorer
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.shortway import find_hit, find_hits
from freshness.algorithm.state import Demand, Read, ReadContext, ServedState
from freshness.algorithm.together import read_together
from freshness.algorithm.view import Sightings
from freshness.config.cache import PART_BYTES, STORED_BYTES_MAX, CacheConfig
from freshness.errors import FormatError, FreshnessError, NodeUnavailable
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryStore
from freshness.position import MariadbPosition, MysqlGtidSet, Position, empty_position
from freshness.position.token import EventToken

Result = TypeVar("Result")

NAMESPACE: Final = "shop"
LINEAGE: Final = "shop/-"
NODE: Final = "n1"
RING: Final = 7
SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
FIRST_NUMBER: Final = 11
"""Transactions before it were made, and cached nowhere, before the world begins."""

START_SECONDS: Final = 1000.0
STRIPES: Final = 8
L_SECONDS: Final = 5
NODE_REFRESH_SECONDS: Final = 1.0
MAX_STALENESS_SECONDS: Final = 15.0
CLOCK_SKEW_SECONDS: Final = 60.0
CONFIG: Final = CacheConfig(
    nodes=(NODE,),
    namespace=NAMESPACE,
    lease_seconds=L_SECONDS,
    max_staleness_seconds=MAX_STALENESS_SECONDS,
    node_refresh_seconds=NODE_REFRESH_SECONDS,
)
STEPS_MAX: Final = 10_000
VERSIONS_PER_CONNECTION: Final = 1 << 40

CUSTOMER: Final = ObjectPolicy("customer", 5, ("customers",), (LINEAGE,), 3600)
ORDER: Final = ObjectPolicy("order", 6, ("orders",), (LINEAGE,), 3600)


# -- databases -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transaction:
    """One commit. ``keys``: the items it changes; ``raised``: tables it changes without giving keys."""

    number: int
    position: Position
    keys: frozenset[bytes]
    raised: frozenset[str]
    committed_at: float
    timestamp_us: int

    def affects(self, item: bytes, tables: Sequence[str]) -> bool:
        return item in self.keys or not self.raised.isdisjoint(tables)


class Database:
    """The primary of one lineage, and everything it has committed since the world began."""

    def __init__(self, world: World, lineage: str, flavor: str, server: int) -> None:
        self.world, self.lineage, self.flavor, self._server = world, lineage, flavor, server
        self.epoch = 1
        self.transactions: list[Transaction] = []
        self.skipped = 0  # numbers that nobody ever executes, as Group Replication leaves them

    def position_of(self, number: int) -> Position:
        """One GTID; in MariaDB also all before it."""
        if self.flavor == "mariadb":
            return MariadbPosition.of(0, self._server, number)
        return MysqlGtidSet.of(SOURCE[:-1] + str(self._server), number)

    @property
    def base(self) -> Position:
        if self.flavor == "mariadb":
            return self.position_of(FIRST_NUMBER - 1)
        return MysqlGtidSet.parse(f"{SOURCE[:-1]}{self._server}:1-{FIRST_NUMBER - 1}")

    @property
    def head(self) -> Position:
        return self.position_with(transaction.number for transaction in self.transactions)

    def position_with(self, numbers: Iterable[int]) -> Position:
        position = self.base
        for number in numbers:
            position = position.union(self.position_of(number))
        return position

    def commit(self, *items: bytes, raised: Sequence[str] = (), timestamp_us: int | None = None) -> Transaction:
        number = FIRST_NUMBER + len(self.transactions) + self.skipped
        now = self.world.now
        stamp = int(now * 1e6) if timestamp_us is None else timestamp_us
        made = Transaction(number, self.position_of(number), frozenset(items), frozenset(raised), now, stamp)
        self.transactions.append(made)
        return made


class Replica:
    """A server that readers read. It applies transactions when told, in any order (F56)."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.numbers: set[int] = set()
        self.timestamp_us = 0
        self.gives_token = True

    def apply(self, *transactions: Transaction) -> Replica:
        self.numbers |= {transaction.number for transaction in transactions}
        return self

    def catch_up(self) -> Replica:
        return self.apply(*self.database.transactions)

    def token(self) -> EventToken:
        position = self.database.position_with(sorted(self.numbers))
        lineage, epoch = self.database.lineage, self.database.epoch
        return EventToken(lineage, "-", epoch, self.timestamp_us, position)

    def value(self, lookup: Lookup) -> list[int]:
        """A row is the list of transactions that made it, so a hit shows the transactions that it reflects."""
        return [
            made.number
            for made in self.database.transactions
            if made.number in self.numbers and made.affects(lookup.item, lookup.policy.tables)
        ]


# -- procedures, step by step --------------------------------------------------------------------------


class ReadToken:
    """The first half of a `Load`."""


class ReadRows:
    """The second half of a `Load`."""


Action: TypeAlias = Request | Load | ReadHead | ConfirmSuccession | ReadStream | Wait | ReadToken | ReadRows
Answerer: TypeAlias = Callable[[str, Request], Reply | None]


class Client:
    """The connections of one process. A restart of a node breaks the one to it: its next flow fails.

    As with memcached, a version is of use only on the connection on which it was read. A new `Client` counts its
    connections from the start again: two of them may well know one version (F8).
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._connected: dict[str, int] = {}
        self._connections: dict[str, int] = {}

    def perform(self, node: str, request: Request) -> Reply:
        world = self.world
        if world.stores[node].down:
            raise NodeUnavailable(f"{node} is down")
        incarnation = world.incarnations[node]
        if self._connected.setdefault(node, incarnation) != incarnation:
            del self._connected[node]
            self._connections[node] = self._connections.get(node, 0) + 1
            raise NodeUnavailable(f"{node} has closed the connection")
        versions_from = self._connections.get(node, 0) * VERSIONS_PER_CONNECTION
        if isinstance(request, Cas | Delete) and request.version is not None:
            request = replace(request, version=max(0, request.version - versions_from))
        reply = world.perform(node, request)
        if versions_from and isinstance(reply, Item | Stored) and reply.version:
            reply = replace(reply, version=reply.version + versions_from)
        return reply


class LivingConnection(Client):
    """To a Redis which has other data than when it was opened. A flow that reads says so; an item that is bound to
    the data is added to no others."""

    has_other_data = False

    def perform(self, node: str, request: Request) -> Reply:
        if self.has_other_data and isinstance(request, Get):
            self.has_other_data = False  # those of the next connection
            raise NodeUnavailable(f"{node} has other data")
        if self.has_other_data and self._is_refused(request):
            return CONFLICT
        return super().perform(node, request)

    def _is_refused(self, request: Request) -> bool:
        return isinstance(request, Add) and request.is_bound


class Run(Generic[Result]):
    """A procedure under way. ``pending`` is what it does next; `advance` does it, and nothing more."""

    def __init__(
        self,
        world: World,
        procedure: Procedure[Result],
        client: Client,
        replicas: Mapping[str, Replica] | None = None,
        on_start: Callable[[], None] = lambda: None,
        on_result: Callable[[Result], None] = lambda _: None,
        read_stream: Callable[[], Streamed | None] = lambda: None,
    ) -> None:
        self.world, self.client, self.replicas = world, client, replicas or {}
        self.read_stream = read_stream
        self.steps: list[Step] = []
        self.is_done = False
        self.error: Exception | None = None
        self.load_error: Exception | None = None
        self._procedure, self._on_start, self._on_result = procedure, on_start, on_result
        self._result: list[Result] = []
        self._todo: list[tuple[int, int, Action]] = []
        self._replies: list[dict[int, Reply]] = []
        self._failures: dict[int, NodeUnavailable] = {}
        self._tokens: dict[str, EventToken] = {}
        self._rows: list[list[int] | None] = []
        self._go_on(lambda: next(procedure))

    @property
    def pending(self) -> Action | None:
        return self._todo[0][2] if self._todo else None

    @property
    def result(self) -> Result:
        assert self._result, f"the procedure has no result: {self.error!r}"
        return self._result[0]

    def finish(self) -> Result:
        """Run to the end. Raises what the procedure raises."""
        self.until(lambda _: False, may_end=True)
        if self.error is not None:
            raise self.error
        return self.result

    def until(self, is_there: Callable[[Action], bool], *, may_end: bool = False) -> Run[Result]:
        """Stop before the first action that ``is_there``; that it never comes is a fault of the schedule."""
        for _ in range(STEPS_MAX):
            if self.pending is None:
                assert may_end, f"the procedure ended first: {self._result or self.error!r}"
                return self
            if is_there(self.pending):
                return self
            self.advance()
        raise AssertionError(f"no end after {STEPS_MAX} actions")

    def until_kind(self, *kinds: type, key: bytes | None = None) -> Run[Result]:
        """Stop before an action of these kinds (on this key)."""
        return self.until(
            lambda action: isinstance(action, kinds) and (key is None or getattr(action, "key", None) == key)
        )

    def advance(self) -> None:
        self._on_start()
        self._on_start = lambda: None
        place, index, action = self._todo.pop(0)
        match action:
            case Wait():
                self.world.sleep(action.seconds)
                self._send(None)
            case ReadHead():
                if self.world.is_primary_down:
                    self._throw(self.world.primary_error)
                else:
                    self._send(self.world.read_head(self._lineage()))
            case ReadStream():
                self._send(self.read_stream())
            case Load():
                self._todo = [(0, 0, ReadToken()), (0, 0, ReadRows())]
            case ReadToken() if self.world.reads_rows_first:
                self._rows = self._read_rows()
            case ReadToken():
                self._read_tokens()
            case ReadRows() if self.world.reads_rows_first:
                self._read_tokens()
                self._load(self._rows)
            case ReadRows():
                self._load(None)
            case _:
                self._request(place, index, action)

    def lose_request(self) -> None:
        """The rest of the pending flow never reaches its node."""
        self._fail(self._todo[0][0], "lost on the way there")
        self._answer_if_complete()

    def lose_reply(self) -> None:
        """The rest of the pending flow is carried out, and its answers are lost."""
        place = self._todo[0][0]
        for at, _, request in [entry for entry in self._todo if entry[0] == place]:
            self._perform(at, request)
        self._fail(place, "lost on the way back")
        self._answer_if_complete()

    # -- one action ------------------------------------------------------------------------------------

    def _lineage(self) -> str:
        return self.world.lineage_of_client.get(id(self.client), LINEAGE)

    def _flows(self) -> Sequence[Flow]:
        step = self.steps[-1]
        if isinstance(step, Flow):
            return (step,)
        assert isinstance(step, Flows)
        return step.flows

    def _perform(self, place: int, request: Action) -> Reply:
        assert isinstance(request, Request)
        return self.client.perform(self._flows()[place].node, request)

    def _request(self, place: int, index: int, request: Action) -> None:
        try:
            reply = self._perform(place, request)
        except NodeUnavailable as error:
            self._fail(place, error.message)
        else:
            self._replies[place][index] = reply
            if isinstance(reply, Refused) and isinstance(request, Add):
                self._failures[place] = NodeUnavailable(f"refused a quiet request: {reply.reason}")
        self._answer_if_complete()

    def _fail(self, place: int, why: str) -> None:
        self._failures[place] = NodeUnavailable(why)
        self._todo = [entry for entry in self._todo if entry[0] != place]

    def _answer_if_complete(self) -> None:
        if self._todo:
            return
        answers: list[Any] = [
            self._failures.get(place) or [reply for _, reply in sorted(replies.items(), key=lambda at: at[0])]
            for place, replies in enumerate(self._replies)
        ]
        if isinstance(self.steps[-1], Flows):
            self._send(answers)
        elif isinstance(answers[0], NodeUnavailable):
            self._throw(answers[0])
        else:
            self._send(answers[0])

    def _read_tokens(self) -> None:
        self._tokens = {lineage: replica.token() for lineage, replica in self.replicas.items() if replica.gives_token}

    def _read_rows(self) -> list[list[int] | None]:
        step = self.steps[-1]
        assert isinstance(step, Load)
        return [self._read_row(lookup) for lookup in step.lookups]

    def _read_row(self, lookup: Lookup) -> list[int] | None:
        numbers = [number for lineage in lookup.policy.lineages for number in self._value(lineage, lookup)]
        return None if lookup.item in self.world.absent else numbers

    def _load(self, rows: list[list[int] | None] | None) -> None:
        if self.load_error is not None:
            self._throw(self.load_error)
            return
        step = self.steps[-1]
        assert isinstance(step, Load)
        pairs = zip(step.lookups, self._read_rows() if rows is None else rows, strict=True)
        self._send([self._loaded(lookup, value) for lookup, value in pairs])

    def _loaded(self, lookup: Lookup, value: list[int] | None) -> Loaded:
        tokens = {
            name: replace(token, until=self.world.find_until(token, self.replicas[name]))
            for name, token in self._tokens.items()
            if name in lookup.policy.lineages
        }
        return Loaded(value, tokens, self.world.loader_refusal, self.world.servers)

    def _value(self, lineage: str, lookup: Lookup) -> list[int]:
        return self.replicas[lineage].value(lookup)

    # -- from step to step -----------------------------------------------------------------------------

    def _send(self, answer: Any) -> None:
        self._go_on(lambda: self._procedure.send(answer))

    def _throw(self, error: Exception) -> None:
        self._go_on(lambda: self._procedure.throw(error))

    def _go_on(self, resume: Callable[[], Step]) -> None:
        self._todo, self._replies, self._failures = [], [], {}
        while True:
            try:
                step = resume()
            except StopIteration as stop:
                self.is_done = True
                self._result.append(stop.value)
                self._on_result(stop.value)
                return
            except Exception as error:  # noqa: BLE001 - kept for the schedule, `finish` raises it
                self.is_done, self.error = True, error
                return
            self.steps.append(step)
            if isinstance(step, Flow | Flows):
                self._replies = [{} for _ in self._flows()]
                for place, flow in enumerate(self._flows()):
                    order = self.world.order(flow.requests)
                    self._todo += [(place, index, flow.requests[index]) for index in order]
                if not self._todo:
                    resume = self._answer_nothing
                    continue
            else:
                self._todo = [(0, 0, step)]
            return

    def _answer_nothing(self) -> Step:
        return self._procedure.send([[] for _ in self._replies])


# -- the world -----------------------------------------------------------------------------------------


class World:
    """Stores, databases, the clock, and what was seen to break.

    ``acknowledged``: by node and lineage, everything that a record has ever claimed as progress.
    ``reads_rows_first``: a defect; the token must come before the rows. ``placements``: by ring, where keys have
    several; otherwise ``places`` has the node of each item that is not on the first one.
    """

    reads_rows_first = False

    def __init__(
        self,
        *,
        nodes: Sequence[str] = (NODE,),
        lineages: Sequence[str] = (LINEAGE,),
        flavor: str = "mysql",
        stripes: int = STRIPES,
        capacity_items: int | None = None,
    ) -> None:
        self.now = START_SECONDS
        self.stripes = stripes
        self.stores = {node: MemoryStore(node, clock=self.clock, capacity_items=capacity_items) for node in nodes}
        self.incarnations = dict.fromkeys(nodes, 0)
        self.databases = {
            lineage: Database(self, lineage, flavor, server) for server, lineage in enumerate(lineages, 1)
        }
        self.absent: set[bytes] = set()
        self.places: dict[bytes, str] = {}
        self.placements: dict[int, Placement] = {}
        self.loader_refusal: ReadOutcome | None = None
        self.servers: Mapping[str, ReadServer] = NO_SERVERS
        self.is_primary_down = False
        self.primary_error: Exception = NodeUnavailable("replaced by tests")
        self.max_staleness_seconds: float = MAX_STALENESS_SECONDS
        self.answer_instead: Answerer = lambda _node, _request: None
        self.order: Callable[[Sequence[Request]], Sequence[int]] = lambda requests: range(len(requests))
        self.lineage_of_client: dict[int, str] = {}
        self.acknowledged: dict[tuple[str, str], Position] = {}
        self.broken: list[str] = []
        self._seen_open: dict[tuple[str, str, bytes], NodeRecord] = {}
        self._seen_stripes: dict[tuple[str, str, int], tuple[bytes, Stripe | None]] = {}
        self._records: dict[bytes, NodeRecord] = {}
        self._stripes: dict[tuple[bytes, bytes], Stripe | None] = {}
        self._nonces = 0
        self._moments = 0

    def clock(self) -> float:
        return self.now

    def moment(self) -> float:
        """A clock on which nothing happens twice at one time: by it put-backs wait for a heartbeat."""
        self._moments += 1
        return self.now + self._moments * 1e-9

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.check()

    def sleep_until(self, seconds: float) -> None:
        """``seconds`` after the world began."""
        assert START_SECONDS + seconds >= self.now, "time does not run backwards"
        self.now = START_SECONDS + seconds
        self.check()

    def nonce(self) -> bytes:
        self._nonces += 1
        return self._nonces.to_bytes(8, "big")

    @property
    def database(self) -> Database:
        return self.databases[LINEAGE]

    def find_rings(self, item: bytes, node: str, rings: Iterable[int]) -> list[int]:
        """Those of the rings that place the item on the node."""
        if not self.placements:
            return [*rings] if self.places.get(item, NODE) == node else []
        return [ring for ring in rings if self.placements[ring].node_for(item) == node]

    def find_until(self, token: EventToken, replica: Replica) -> Position | None:
        """The upper bound of rows that a replica has just given, which were read after the token."""
        return replica.token().position

    def commit(self, *items: bytes, raised: Sequence[str] = ()) -> Transaction:
        return self.database.commit(*items, raised=raised)

    def read_head(self, lineage: str) -> Head:
        database = self.databases[lineage]
        return Head(database.head, database.epoch)

    def replica(self, *transactions: Transaction) -> Replica:
        return Replica(self.database).apply(*transactions)

    # -- nodes -----------------------------------------------------------------------------------------

    def perform(self, node: str, request: Request) -> Reply:
        reply = self.answer_instead(node, request)
        if reply is None:
            reply = self.stores[node].answer(request)
        self.check()
        return reply

    def restart(self, node: str = NODE) -> None:
        self.stores[node].restart()
        self.incarnations[node] += 1

    def find_record(self, node: str = NODE, lineage: str = LINEAGE) -> NodeRecord | None:
        item = self.stores[node].peek(record_key(NAMESPACE, lineage))
        if item is None:
            return None
        if item.value not in self._records:
            self._records[item.value] = NodeRecord.decode(item.value)
        return self._records[item.value]

    def record(self, node: str = NODE, lineage: str = LINEAGE) -> NodeRecord:
        found = self.find_record(node, lineage)
        assert found is not None, f"{node} has no record"
        return found

    def resume_copy(self, node: str = NODE, lineage: str = LINEAGE) -> NodeRecord:
        item = self.stores[node].peek(resume_key(NAMESPACE, lineage))
        assert item is not None, f"{node} has no resume copy"
        return NodeRecord.decode(item.value)

    def stripe_key(self, item: bytes = b"", lineage: str = LINEAGE) -> bytes:
        """Key of the stripe that protects ``item``, `KEY` if none is given."""
        return stripe_key(NAMESPACE, lineage, stripe_number(item or KEY, self.stripes))

    def find_stripe(self, item: bytes = b"", node: str = NODE, lineage: str = LINEAGE) -> Stripe | None:
        """The stripe of an item in the node's current life; None if it is absent or pending."""
        held = self.stores[node].peek(self.stripe_key(item, lineage))
        record = self.find_record(node, lineage)
        return None if held is None or record is None else self._decode_stripe(held.value, record.life)

    def _decode_stripe(self, data: bytes, life: bytes) -> Stripe | None:
        if (data, life) not in self._stripes:
            self._stripes[data, life] = find_stripe(data, life)
        return self._stripes[data, life]

    def find_pending(self, item: bytes = b"", node: str = NODE, lineage: str = LINEAGE) -> PendingStripe | None:
        held = self.stores[node].peek(self.stripe_key(item, lineage))
        try:
            return None if held is None else PendingStripe.decode(held.value)
        except FormatError:
            return None

    def evict_stripe(self, item: bytes = b"", node: str = NODE, lineage: str = LINEAGE) -> None:
        assert self.stores[node].evict(self.stripe_key(item, lineage)), "there is no such stripe"
        self.check()

    def repeat_version(self, version: int, node: str = NODE) -> None:
        """Use up versions, so that the next item that is stored gets ``version`` again (F8)."""
        store = self.stores[node]
        for number in range(STEPS_MAX):
            key = b"junk:%d" % number
            store.answer(Add(key, b"x", 60))
            item = store.peek(key)
            assert item is not None
            assert item.version < version, f"version {version} is used up already"
            if item.version == version - 1:
                return

    # -- invariants ------------------------------------------------------------------------------------

    def check(self) -> None:
        for node in self.stores:
            for lineage in self.databases:
                record = self.find_record(node, lineage)
                if record is not None:
                    held = self.acknowledged.get((node, lineage), record.progress)
                    self.acknowledged[node, lineage] = held.union(record.progress)
                    self._check_stripes(node, record)
                    if record.is_open and record.node == node:
                        self._check_growth(node, record)
                        self._check_protection(node, record)

    def _break(self, invariant: str, text: str) -> None:
        self.broken.append(f"{invariant}: {text} at {self.now - START_SECONDS:g} s")

    def breaks(self, invariant: str) -> bool:
        return any(text.startswith(invariant) for text in self.broken)

    def _check_growth(self, node: str, record: NodeRecord) -> None:
        before = self._seen_open.get((node, record.lineage, record.life))
        self._seen_open[node, record.lineage, record.life] = record
        if before is None:
            return
        for name, old, new in (
            ("progress", before.progress, record.progress),
            ("floor", before.floor, record.floor),
            *(
                (f"floor of {table}", held, record.table_floors.get(table, empty_position(held.flavor)))
                for table, held in before.table_floors.items()
            ),
        ):
            if not new.contains(old):
                self._break("I3", f"{name} of {node} shrank from {old} to {new}")

    def _check_stripes(self, node: str, record: NodeRecord) -> None:
        """A stripe that stays there does not shrink."""
        for number in range(record.stripes):
            place = node, record.lineage, number
            held = self.stores[node].peek(stripe_key(NAMESPACE, record.lineage, number))
            data, before = self._seen_stripes.get(place, (b"", None))
            if held is not None and held.value == data:
                continue
            if held is None:
                self._seen_stripes.pop(place, None)
                continue
            found = self._decode_stripe(held.value, record.life)
            self._seen_stripes[place] = held.value, found
            if before is None or found is None or before.life != found.life:
                continue
            if not found.position.contains(before.position):
                self._break("I3", f"stripe {number} of {node} shrank from {before} to {found}")

    def _check_protection(self, node: str, record: NodeRecord) -> None:
        """A stripe may be absent. One that is there holds what was acknowledged since the life began."""
        for made in self.databases[record.lineage].transactions:
            if not record.progress.contains(made.position) or record.floor.contains(made.position):
                continue
            for table in made.raised:
                held = record.table_floors.get(table)
                if held is None or not held.contains(made.position):
                    self._break("I2", f"nothing protects table {table} from lacking {made.number}")
            for item in made.keys:
                coverage = record.objects.get(_object_of(item))
                start = record.find_start(self.find_rings(item, node, record.rings))
                if start is None or coverage is None:
                    continue
                if coverage.start.contains(made.position) or start.contains(made.position):
                    continue
                stripe = self.find_stripe(item, node, record.lineage)
                if stripe is not None and not stripe.position.contains(made.position):
                    self._break("I2", f"the stripe of {item!r} lacks the acknowledged {made.number}")

    def missing_in_hit(self, lookup: Lookup, payload: bytes, known: Mapping[str, Position]) -> list[int]:
        """Acknowledged transactions that a hit does not reflect."""
        numbers = set(json.loads(payload))
        return [
            made.number
            for lineage in lookup.policy.lineages
            for made in self.databases[lineage].transactions
            if made.affects(lookup.item, lookup.policy.tables)
            and made.number not in numbers
            and lineage in known
            and known[lineage].contains(made.position)
        ]

    def check_hit(self, lookup: Lookup, payload: bytes, known: Mapping[str, Position]) -> None:
        lacking = self.missing_in_hit(lookup, payload, known)
        if lacking:
            self._break("I1", f"a hit of {lookup.item!r} lacks the acknowledged {lacking}")
        late = {
            lineage: database.position_with(
                made.number
                for made in database.transactions
                if made.committed_at < self.now - self.max_staleness_seconds
            )
            for lineage, database in self.databases.items()
        }
        lacking = self.missing_in_hit(lookup, payload, late)
        if lacking:
            self._break("I7", f"a hit of {lookup.item!r} lacks {lacking}, staler than allowed")

    def check_miss(self, lookup: Lookup, read: Read, known: Mapping[str, Position]) -> None:
        """I10. ``known``: by lineage, all that the node had acknowledged when the read began."""
        lacking = [
            made.number
            for lineage in lookup.policy.lineages
            for made in self.databases[lineage].transactions
            if lineage in known
            and known[lineage].contains(made.position)
            and made.affects(lookup.item, lookup.policy.tables)
            and made.number not in (read.value or ())
        ]
        if lacking:
            self._break("I10", f"a miss of {lookup.item!r} lacks the acknowledged {lacking}")

    def check_together(self, lookups: Sequence[Lookup], reads: Sequence[Read]) -> None:
        """I11, for lookups of one lineage: each value has all events of its key up to the last one that any has."""
        shown = [set((read.value if read.payload is None else json.loads(read.payload)) or ()) for read in reads]
        newest = max(chain.from_iterable(shown), default=0)
        for lookup, numbers in zip(lookups, shown, strict=True):
            affecting = (
                made.number
                for made in self.databases[lookup.policy.lineages[0]].transactions
                if made.number <= newest and made.affects(lookup.item, lookup.policy.tables)
            )
            if lacking := set(affecting) - numbers:
                self._break("I11", f"{lookup.item!r} lacks {lacking}, which a value beside it is after")

    def check_commits(self, lookup: Lookup, read: Read, at_least: Mapping[str, EventToken]) -> None:
        """I9, for commits of the history that there is."""
        shown = read.value if read.payload is None else json.loads(read.payload)
        for lineage in lookup.policy.lineages:
            asked, database = at_least.get(lineage), self.databases[lineage]
            lacking = [
                made.number
                for made in database.transactions
                if asked is not None
                and (asked.lineage, asked.epoch) == (lineage, database.epoch)
                and asked.position.contains(made.position)
                and made.affects(lookup.item, lookup.policy.tables)
                and made.number not in (shown or ())
            ]
            if lacking:
                self._break("I9", f"a read of {lookup.item!r} lacks the caller's own {lacking}")


def _object_of(item: bytes) -> str:
    return item.split(b":")[1].decode()


def lookup(number: int = 1, policy: ObjectPolicy = CUSTOMER, node: str = NODE, **changes: Any) -> Lookup:
    """Row ``number`` of an object: its item is ``shop:<object>:<number>``."""
    item = f"{NAMESPACE}:{policy.name}:{number}".encode()
    return Lookup(policy, node, item, policy.fingerprint.to_bytes(4, "big") + b"%d" % number, (number,), **changes)


KEY: Final = lookup().item


# -- the two sides -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Invalidator:
    """One process's membership in one node, with a stream that delivers what the test says.

    ``passed``: the position of the stream when the last own heartbeat came back. ``restorer``: restores the node's
    stripes on its own connection. ``previous_ring``: one that is served beside ``ring``. ``altered``: see
    `NodePolicy`.
    """

    world: World
    node: str = NODE
    lineage: str = LINEAGE
    objects: Mapping[str, int] = field(default_factory=lambda: {CUSTOMER.name: CUSTOMER.fingerprint})
    ring: int = RING
    heartbeat_age_max_seconds: float = field(default_factory=lambda: CONFIG.heartbeat_age_max_seconds)
    node_refresh_seconds: float = NODE_REFRESH_SECONDS
    lease_seconds: int = L_SECONDS
    is_serving: bool = True
    topology: int = 1
    previous_ring: int | None = None
    altered: Set[tuple[str, int]] = frozenset()
    client: Client = field(init=False)
    member: Membership = field(init=False)
    cursor: Position = field(init=False)
    passed: Streamed | None = field(init=False, default=None)
    restorer: Restorer = field(init=False)
    restoring_client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client, self.restoring_client = Client(self.world), Client(self.world)
        self.world.lineage_of_client[id(self.client)] = self.lineage
        policy = NodePolicy(
            NAMESPACE,
            self.lineage,
            self.ring,
            self.objects,
            self.world.stripes,
            self.lease_seconds,
            self.heartbeat_age_max_seconds,
            self.node_refresh_seconds,
            self.is_serving,
            self.topology,
            {} if self.previous_ring is None else {ring: self.world.placements[ring] for ring in self.rings},
            self.altered,
        )
        self.restorer = Restorer(self.node, policy, self.world.moment, self.world.nonce)
        self.cursor = empty_position(self.database.flavor)
        self.member = Membership(self.node, policy, self.world.clock, self.world.nonce, self.cursor)

    @property
    def rings(self) -> Sequence[int]:
        return (self.ring,) if self.previous_ring is None else (self.ring, self.previous_ring)

    @property
    def database(self) -> Database:
        return self.world.databases[self.lineage]

    def run(self, procedure: Procedure[None]) -> Run[None]:
        return Run(self.world, procedure, self.client)

    def joining(self) -> Run[None]:
        def start_stream(_: None) -> None:
            self.cursor = self.member.applied

        return Run(self.world, join(self.member, self.cursor), self.client, on_result=start_stream)

    def join(self) -> Invalidator:
        self.joining().finish()
        return self

    def batch(self, *only: Transaction, heartbeat: bool = True) -> Batch:
        """Everything committed that this stream has not delivered yet, or only these.

        Without ``only`` an own heartbeat that was begun now is the last of it.
        """
        new = only or [made for made in self.database.transactions if not self.cursor.contains(made.position)]
        before, keys, raised = self.cursor, dict[bytes, Position](), dict[str, Position]()
        for made in new:
            self.cursor = self.cursor.union(made.position)
            for item in made.keys:
                if self.world.find_rings(item, self.node, self.rings) and _object_of(item) in self.objects:
                    keys[item] = keys[item].union(made.position) if item in keys else made.position
            for table in made.raised:
                raised[table] = raised[table].union(made.position) if table in raised else made.position
        now = self.world.now
        seen = HeartbeatSeen(now, int(now * 1e6)) if heartbeat else None
        if heartbeat and not only:
            self.passed = Streamed(self.cursor, self.database.epoch, self.world.moment())
        return Batch(keys, raised, before, self.cursor, seen)

    def applying(self, batch: Batch | None = None) -> Run[None]:
        return self.run(apply_batch(self.member, batch or self.batch()))

    def raising(self) -> Run[None]:
        """A batch that raises tables, paused when the record has the raise and is about to be published."""
        run = self.applying().until(is_record_write)
        run.advance()
        return run.until(is_record_write)

    def apply(self, batch: Batch | None = None) -> None:
        """A batch until it is acknowledged, and what there is to do for the stripes before and after it."""
        if batch is None:
            self.look()
        self.applying(batch).finish()
        while self.member.held:
            self.world.sleep(RENEW_SECONDS)
            self.renewing().finish()
        if batch is None:
            self.look()

    def looking(self) -> Run[None]:
        return Run(self.world, self.restorer.look(), self.restoring_client, read_stream=lambda: self.passed)

    def look(self) -> None:
        """One look at the node's stripes: missing ones become pending, pending ones whole."""
        run = self.looking().until(lambda _: False, may_end=True)
        if isinstance(run.error, NodeUnavailable):  # after a restart the next one has a connection again
            run = self.looking().until(lambda _: False, may_end=True)
        assert run.error is None or isinstance(run.error, NodeUnavailable)

    def renewing(self) -> Run[None]:
        return self.run(renew(self.member))

    def live(self, seconds: float) -> None:
        """Until ``seconds`` after the world began: every second, what was committed and a heartbeat."""
        while START_SECONDS + seconds - self.world.now > 1e-9:
            self.apply()
            self.world.sleep(min(1.0, START_SECONDS + seconds - self.world.now))


@dataclass(slots=True)
class Reader:
    """One client of the cache, which reads one replica of each lineage."""

    world: World
    replicas: Replica | Sequence[Replica]
    ring: int = RING
    on_stale: Literal["bypass", "serve"] = "bypass"
    clock_error_seconds: float = 0.0
    jitter: float = 0.0
    part_bytes: int = PART_BYTES
    value_bytes_max: int = STORED_BYTES_MAX
    previous_ring: int = 0
    client: Client = field(init=False)
    context: ReadContext = field(init=False)
    given: dict[ServedState, list[tuple[Lookup, Read]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = Client(self.world)
        self.context = ReadContext(
            NAMESPACE,
            self.ring,
            tuple(self.world.databases),
            self.world.clock,
            lambda: self.jitter,
            lambda value: json.dumps(value).encode(),
            json.loads,
            NODE_REFRESH_SECONDS,
            10,
            0.05,
            self.on_stale,
            Sightings(
                self.world.clock,
                lambda: int(1e6 * (self.world.now + self.clock_error_seconds)),
                MAX_STALENESS_SECONDS,
                CLOCK_SKEW_SECONDS,
            ),
            part_bytes=self.part_bytes,
            value_bytes_max=self.value_bytes_max,
            previous_ring=self.previous_ring,
        )

    def reading(
        self,
        *lookups: Lookup,
        max_staleness_seconds: float | None = None,
        at_least: Mapping[str, EventToken] = NO_TOKENS,
        served: ServedState | None = None,
    ) -> Run[list[Read]]:
        lookups = lookups or (lookup(),)
        replicas = [self.replicas] if isinstance(self.replicas, Replica) else self.replicas
        known: dict[tuple[str, str], Position] = {}

        def check(reads: list[Read]) -> None:
            if served is not None:
                given = self.given.setdefault(served, [])
                given += zip(lookups, reads, strict=True)
                self.world.check_together(*zip(*given, strict=True))
            for one, read in zip(lookups, reads, strict=True):
                self.world.check_commits(one, read, at_least)
                here = {lineage: at for (node, lineage), at in known.items() if node == one.node}
                if read.shows_required:
                    self.world.check_miss(one, read, here)
                if read.outcome in (ReadOutcome.HIT, ReadOutcome.MOVED) and read.payload is not None:
                    self.world.check_hit(one, read.payload, here)

        demand = Demand(max_staleness_seconds, at_least, served)
        procedure = (read_through if served is None else read_together)(self.context, lookups, demand)
        if served is None and max_staleness_seconds is None:
            procedure = compared(self.context, lookups, procedure, at_least)
        return Run(
            self.world,
            procedure,
            self.client,
            {replica.database.lineage: replica for replica in replicas},
            on_start=lambda: known.update(self.world.acknowledged),
            on_result=check,
        )

    def read(
        self,
        *lookups: Lookup,
        max_staleness_seconds: float | None = None,
        at_least: Mapping[str, EventToken] = NO_TOKENS,
    ) -> ReadOutcome:
        """What became of the first of these reads."""
        run = self.reading(*lookups, max_staleness_seconds=max_staleness_seconds, at_least=at_least)
        return run.finish()[0].outcome


def compared(
    context: ReadContext,
    lookups: Sequence[Lookup],
    reading: Procedure[list[Read]],
    at_least: Mapping[str, EventToken] = NO_TOKENS,
) -> Procedure[list[Read]]:
    """The same procedure. The short way gets the same answers at the same time, and must find the very same hits."""
    begun_at = context.clock()
    short: list[Read | None] | None = None
    is_sure = False
    advance = partial(next, reading)
    is_first = True
    while True:
        try:
            step = advance()
        except StopIteration as end:
            reads: list[Read] = end.value
            break
        try:
            answer = yield step
        except Exception as error:  # noqa: BLE001 - raised in the procedure
            advance = partial(reading.throw, error)
            is_first = False
            continue
        if is_first and isinstance(step, Flows):
            short = _take_short_way(context, lookups, step, answer, at_least)
            has_views = all(each.node in context.views for each in lookups)  # another read may have dropped one
            is_sure = context.clock() == begun_at and context.witness is None and has_views
        is_first = False
        advance = partial(reading.send, answer)
    for place, hit in enumerate(short or ()):
        if hit is not None:
            assert reads[place] == hit, "the short way found another hit"
        elif is_sure:
            assert reads[place].outcome is not ReadOutcome.HIT, "the short way missed a hit"
    return reads


def _take_short_way(
    context: ReadContext,
    lookups: Sequence[Lookup],
    step: Flows,
    answers: Sequence[Any],
    at_least: Mapping[str, EventToken],
) -> list[Read | None] | None:
    """The hits that it finds in the answers to a procedure's first step; None if that step also asked for records, or
    twice for a key, or if a node failed."""
    wanted = {node: [each.item for each in lookups if each.node == node] for node in {e.node for e in lookups}}
    for flow, replies in zip(step.flows, answers, strict=True):
        keys = [request.key for request in flow.requests if isinstance(request, Get)]
        if isinstance(replies, Exception) or keys != wanted[flow.node] or len(set(keys)) < len(keys):
            return None
    found = dict(zip((flow.node for flow in step.flows), answers, strict=True))
    hits: list[Read | None]
    taking = find_hits(context, lookups, at_least)
    try:
        asked = next(taking)
        assert isinstance(asked, Flows)
        asked = taking.send([found[flow.node] for flow in asked.flows])
    except StopIteration as end:
        hits = end.value
    else:
        assert isinstance(asked, Flows), "the short way asks nodes only"
        assert all(is_part(key.key) for flow in asked.flows for key in flow.requests), "it asks for entries once"
        return None
    if len(lookups) == 1:
        (reply,) = found[lookups[0].node]
        data = reply.value if isinstance(reply, Item) else None
        assert find_hit(context, lookups[0], {lookups[0].item: data}.get, at_least) == hits[0]
    return hits


def is_fill(action: Action) -> bool:
    """The CAS of a value on an entry, the last step of a read."""
    return isinstance(action, Cas) and not action.key.startswith(b"shop:!")


def is_part(key: bytes) -> bool:
    """The key of a part of a large value."""
    return key.startswith(b"shop:!!")


def is_record_write(action: Action) -> bool:
    return getattr(action, "key", None) == record_key(NAMESPACE, LINEAGE) and not isinstance(action, Get)


def is_delete(action: Action) -> bool:
    return isinstance(action, Delete) and action.version is None


def is_append(action: Action) -> bool:
    """The append to a stripe, with which an invalidation begins."""
    return isinstance(action, Append) and not action.key.endswith(b"!wanted")


def version_of(world: World, key: bytes, node: str = NODE) -> int:
    item = world.stores[node].peek(key)
    assert isinstance(item, Item), f"{key!r} is not there"
    return item.version


def look_up_with_the_record_behind(context: ReadContext, entries: Sequence[Any], demand: Demand) -> Procedure[None]:
    """A planted bug: step 1 of a read whose records are asked for behind the entries, and not in front."""
    procedure = look_up(context, entries, demand)
    answer: Any = None
    while True:
        try:
            step = procedure.send(answer)
        except StopIteration:
            return
        if isinstance(step, Flows):
            turned = [_turn(flow.requests, len(flow.requests) - len(entries)) for flow in step.flows]
            flows = zip(step.flows, turned, strict=True)
            answers = yield Flows(tuple(Flow(flow.node, tuple(requests)) for flow, requests in flows))
            answer = [
                replies if isinstance(replies, FreshnessError) else _turn(replies, len(entries))
                for replies in answers
            ]
        else:
            answer = yield step


def _turn(things: Sequence[Any], count: int) -> list[Any]:
    """The first ``count`` of them last."""
    return [*things[count:], *things[:count]]
