"""The states of a lookup, and what the steps of a read share: its context, the caller's demand, its answer.

Used by ``freshness.algorithm.read`` and the modules of its steps, ``shortway``, ``hit`` and ``fill``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar

from freshness.algorithm.envelope import NodeRecord, Stripe, previous_reader_key, record_key
from freshness.algorithm.lookup import NO_SERVERS, Loaded, Lookup, ReadServer
from freshness.algorithm.request import LATEST, NO_TOKENS, Add, Delete, Flows, Get, Item, Procedure, Request, Version
from freshness.algorithm.rule import ReadOutcome, Span
from freshness.algorithm.view import NodeView, Sightings
from freshness.algorithm.witness import Witness
from freshness.config.cache import PART_BYTES, STORED_BYTES_MAX
from freshness.errors import FreshnessError
from freshness.position.token import EventToken, covers, lacks
from freshness.value import value

REFRESH_SHARE: Final = 0.9
"""A copy of the records is replaced at this share of its bound, so that it still counts when the answer comes."""

PREVIOUS_READER_SECONDS: Final = 90
"""TTL of the name that a reader leaves on a node which serves its ring beside a later one."""


@value
class Read:
    """The answer to one lookup. From the cache: ``payload`` (encoded; None: no such row). Else: ``value``.

    ``shows_required``: the value from the database has every invalidation of the key that the node had acknowledged
    before the read began (I10). False: the node did not say which, or no server that was read is known to show them.
    ``servers``: the servers that it was read from, by lineage. A hit that is to be read together with others
    has its entry as ``item`` and the answer of `NodeView.find_spans` as ``spans``.
    """

    outcome: ReadOutcome
    payload: bytes | None = None
    value: Any = None
    tokens: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS)
    shows_required: bool = False
    servers: Mapping[str, ReadServer] = field(default_factory=lambda: NO_SERVERS)
    spans: Mapping[str, Span] | None = None
    item: Item | None = None

    @property
    def is_hit(self) -> bool:
        return self.outcome.is_hit


TogetherResult: TypeAlias = Literal["one_look", "more_looks", "snapshot"]
"""Entries proved it at the first look at the nodes, or after more of them; or the database was read."""


@dataclass(slots=True, eq=False)
class ServedValue:
    """An answer that a caller has. ``payload``: the value as bytes. ``spans``: the spans of its entry; none after
    a snapshot."""

    lookup: Lookup
    payload: bytes | None
    spans: Mapping[str, Span]


@dataclass(slots=True, eq=False)
class ServedState:
    """The answers that are to be of one state, see `freshness.algorithm.together`. ``result``: how the last of them
    were found. ``view``: number of the state for a witness; 0 before the first one, and after a snapshot."""

    kept: list[ServedValue] = field(default_factory=list)
    result: TogetherResult | None = None
    view: int = 0


@value
class Demand:
    """The caller's own demands on a hit. ``at_least``: by lineage, commits that the value must have (I9).
    ``served``: the answers that the values must be of one state with, to which they are added.

    If a token is of another lineage than its key, such as one that no longer serves, no hit serves.
    """

    max_staleness_seconds: float | None = None
    at_least: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS, hash=False)
    served: ServedState | None = None

    @property
    def is_together(self) -> bool:
        return self.served is not None

    @property
    def earlier(self) -> list[Lookup]:
        """The keys of answers that the caller has, which may be read again."""
        return [] if self.served is None else [kept.lookup for kept in self.served.kept]

    @property
    def may_be_stale(self) -> bool:
        return self.max_staleness_seconds is None and not self.at_least and not self.is_together


NO_DEMAND: Final = Demand()

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(slots=True)
class ReadContext:
    """The settings and the clock that a client's reads share, and its copies of the node records.

    ``lineages``: lineages of all serving shards that objects may name; hits trust one copy of all their records.
    ``clock`` is monotonic, in seconds; ``jitter`` gives numbers in [0, 1) (F47); ``encode`` turns a loaded value
    into bytes, ``decode`` turns it back, or raises `FormatError`. ``recall`` finds what may be served while another
    reader fills. ``on_unknown``: the server to read if the node does not say what a row must show. A value of more
    than ``part_bytes`` is stored in parts, one of more than ``value_bytes_max`` not at all. ``previous_ring``: the
    one by which lookups name a previous node. ``name``: this process, for `say_previous`. Not shared between threads.
    """

    namespace: str
    ring: int
    lineages: tuple[str, ...]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    node_refresh_seconds: float
    fill_lease_ttl_seconds: int
    fill_wait_seconds: float
    on_stale: Literal["bypass", "serve"]
    sightings: Sightings
    witness: Witness | None = None
    recall: Callable[[Lookup], Read | None] = lambda _: None
    on_unknown: Literal["replica", "primary"] = "replica"
    part_bytes: int = PART_BYTES
    value_bytes_max: int = STORED_BYTES_MAX
    previous_ring: int = 0
    name: bytes = b""
    views: dict[str, NodeView] = field(default_factory=dict)
    said_at: dict[str, float] = field(default_factory=dict)

    def forget(self, node: str) -> None:
        """The connection to a node broke. Its memory may be an older one from now on, and records that were read
        before vouch for nothing in it."""
        self.views.pop(node, None)


def forgets_broken(
    procedure: Callable[Concatenate[ReadContext, Arguments], Procedure[Result]],
) -> Callable[Concatenate[ReadContext, Arguments], Procedure[Result]]:
    """A procedure that forgets the records of each node that fails under it, whichever step meets the failure."""

    @wraps(procedure)
    def run(context: ReadContext, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Procedure[Result]:
        steps = procedure(context, *args, **kwargs)
        try:
            step = next(steps)
            while True:
                try:
                    answer = yield step
                except BaseException as error:  # noqa: BLE001 - the procedure cleans up and raises it again
                    if isinstance(step, Flows) or not isinstance(error, Exception):
                        context.views.clear()  # an interruption closes the connections that wait for answers
                    step = steps.throw(error)
                    continue
                if isinstance(step, Flows):
                    for flow, replies in zip(step.flows, answer, strict=True):
                        if isinstance(replies, FreshnessError):
                            context.forget(flow.node)
                step = steps.send(answer)
        except StopIteration as stop:
            result: Result = stop.value
            return result

    return run


# A lookup goes through these states, and only forward but for the wait:
#
#     not asked yet ─┬─> Read                        a live entry: a hit
#                    ├─> Parted ─┬─> Read           a live entry with all of its parts: a hit
#                    │           └─> Unstored       a part is missing
#                    ├─> Unstored ──────────────┐   nothing may be stored, for the cause that it names
#                    └─> Stub ─┬─> Unstored ────┤   the stub of another reader is looked up again a few times
#                              └─> Guarded ─┬───┴─> Read    from the database, not stored
#                                           └─────> Read    from the database, stored by CAS on the stub


@value
class Unstored:
    """Nothing is stored. ``stub``: this reader's own stub, which it deletes for the next one. ``wanted``: (lineage,
    number) of stripes that were missing."""

    outcome: ReadOutcome
    stub: Version | None = None
    wanted: Sequence[tuple[str, int]] = ()

    def refuse(self, outcome: ReadOutcome) -> Unstored:
        return Unstored(outcome, self.stub, self.wanted)


@value
class Parted:
    """A live entry whose value is in parts, which are still to be read. ``outcome``: outcome of the read if all are
    there."""

    outcome: ReadOutcome
    manifest: bytes


@value
class Stub:
    """The stub observed in step 1, which alone a fill may replace.

    ``is_own``: this reader made it. ``is_leased``: another reader made it a moment ago and is about to fill.
    ``records``: records of the node, read no later than the stub.
    """

    version: Version
    is_own: bool
    is_leased: bool
    records: Mapping[str, NodeRecord | None]

    def refuse(self, outcome: ReadOutcome, wanted: Sequence[tuple[str, int]] = ()) -> Unstored:
        return Unstored(outcome, self.version if self.is_own else None, wanted)


@value
class Guarded:
    """A stub with the stripes and the records of step 2, by lineage, which decide over its fill."""

    stub: Stub
    stripes: Mapping[str, Stripe | None]
    records: Mapping[str, NodeRecord | None]


class Pending:
    """A lookup and its state; None before the first answer. ``required``: answer of `find_required` to step 2, None
    if the node has not given it. ``asked``: answer of `ask`, by lineage."""

    __slots__ = ("asked", "lookup", "required", "state")

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.required: Mapping[str, EventToken] | None = None
        self.asked: Mapping[str, EventToken] = NO_TOKENS
        self.state: Read | Unstored | Parted | Stub | Guarded | None = None

    @property
    def is_waiting(self) -> bool:
        return isinstance(self.state, Stub) and self.state.is_leased

    def is_shown(self, row: Loaded) -> bool:
        """Whether the value has all that is required of it."""
        required, tokens = self.required, row.tokens
        return (
            required is not None
            and self._is_own(row)
            and all(
                lineage in required and lineage in tokens and covers(tokens[lineage], required[lineage])
                for lineage in self.lookup.policy.lineages
            )
        )

    def ask(self, on_unknown: Literal["replica", "primary"]) -> Lookup:
        """The lookup with what its rows must show."""
        self.asked = self.required or NO_TOKENS
        if on_unknown == "primary":
            self.asked = {**dict.fromkeys(self.lookup.policy.lineages, LATEST), **self.asked}
        return replace(self.lookup, required=self.asked) if self.asked else self.lookup

    def is_bounded(self, row: Loaded) -> bool:
        """Whether a server was read that lacks what was asked for."""
        return self._is_own(row) and any(self._lacks(row, *read) for read in row.servers.items())

    def _lacks(self, row: Loaded, lineage: str, server: ReadServer) -> bool:
        """A primary of MariaDB shows more than its token says. One of MySQL that lacks it is the previous primary."""
        asked = self.asked.get(lineage)
        if server.is_primary and (asked is None or asked is LATEST or asked.position.flavor == "mariadb"):
            return False
        return asked is LATEST or lacks(row.tokens.get(lineage), asked)

    def _is_own(self, row: Loaded) -> bool:
        """A row of another spelling has another stripe."""
        return row.refusal is not ReadOutcome.KEY and (row.value is not None or self.lookup.is_exact)

    @property
    def own_stub(self) -> Version | None:
        """The stub that this reader made and that no fill has replaced."""
        state = self.state.stub if isinstance(self.state, Guarded) else self.state
        if isinstance(state, Stub):
            return state.version if state.is_own else None
        return state.stub if isinstance(state, Unstored) else None


def by_node(entries: Sequence[Pending]) -> Mapping[str, Sequence[Pending]]:
    """The entries of each node, in their order."""
    if len(entries) == 1:
        return {entries[0].lookup.node: entries}
    nodes: dict[str, list[Pending]] = {}
    for entry in entries:
        nodes.setdefault(entry.lookup.node, []).append(entry)
    return nodes


def record_gets(namespace: str, lineages: Sequence[str]) -> list[Request]:
    """A request for each node record."""
    return [Get(record_key(namespace, lineage), is_bound=True) for lineage in lineages]


def say_previous(context: ReadContext, node: str, view: NodeView | None, now: float) -> list[Request]:
    """Requests that leave this reader's name, once a minute, if the node's last records serve its ring beside a later
    one: a change of the nodes waits for it. Nobody needs the replies."""
    if view is None or now - context.said_at.get(node, -PREVIOUS_READER_SECONDS) < PREVIOUS_READER_SECONDS * 2 / 3:
        return []
    keys = [
        previous_reader_key(context.namespace, lineage, view.ring)
        for lineage, record in view.records.items()
        if record is not None and record.ring != view.ring and view.ring in record.rings
    ]
    if keys:
        context.said_at[node] = now
    deletes, adds = map(Delete, keys), (Add(key, context.name, PREVIOUS_READER_SECONDS) for key in keys)
    return [*deletes, *adds]


def lineages_of(entries: Sequence[Pending]) -> tuple[str, ...]:
    """The lineages that the objects of these entries live in. No other lineage decides over them."""
    return tuple(dict.fromkeys(chain.from_iterable(entry.lookup.policy.lineages for entry in entries)))
