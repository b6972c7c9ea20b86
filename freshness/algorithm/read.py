"""Read keys through the cache: the read half of the algorithm (docs/algorithm.md#reading).

1. Get the node record, or use a young copy of it, and then the entry; where there is none, leave a stub. A live entry
   is a hit. Since the record was read before it, the entry has every event that the record's progress names. So a
   caller that asks for its own commit gets a hit where the entry's position and that progress contain the commit.
2. Otherwise, and only after 1, the stripe of the key and then the node record, on the same node, never from a copy.
3. Then the rows, with the token that was read from the same server before them.
4. Store by CAS on the item observed in 1, and only if the rule of ``freshness.algorithm.rule`` allows it.

A value that is too large for one item is in parts, which are written before 4 and read after 1 (``parts.py``).

A value is never stored by add or set: if the item is gone or another, an event invalidated it, and the value is
returned without being stored. A node that does not answer is no miss: its keys are read from the database, not
stored. Run by appclient's drivers and by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

from freshness.algorithm.envelope import (
    STUB,
    Filled,
    NodeRecord,
    Stamp,
    Stripe,
    encode_wanted,
    find_stripe,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.parts import Manifest, fetch_parts, store_parts
from freshness.algorithm.request import (
    MISSING,
    NO_TOKENS,
    Append,
    Cas,
    Delete,
    Finds,
    Flow,
    Flows,
    Get,
    Item,
    Load,
    Procedure,
    Refused,
    Replies,
    Reply,
    Request,
    Stored,
    Version,
    Wait,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome, find_fill_refusal
from freshness.algorithm.view import NodeView, Sightings
from freshness.algorithm.witness import Witness, tell_fill, tell_hit, tell_refusal
from freshness.config.cache import FLOW_SECONDS_MAX, PART_BYTES, STORED_BYTES_MAX
from freshness.errors import FreshnessError
from freshness.position.token import EventToken
from freshness.value import value

_REPLACEABLE: Final = frozenset(
    (ReadOutcome.DEAD, ReadOutcome.TABLE_FLOOR, ReadOutcome.IDENTITY, ReadOutcome.PARTS)
)
"""Why an entry that is one of ours is no hit, and never will be for this key: a reader may take its place."""

_HIT: Final = ReadOutcome.HIT

REFRESH_SHARE: Final = 0.9
"""A copy of the records is replaced at this share of its bound, so that it still counts when the answer comes."""

LEASE_POLLS_MAX: Final = 4
"""How often a reader looks again for the value of another reader's lease before it reads the database (I6). Each wait
is twice as long as the one before: most loads are short, and some are long."""


@value
class Read:
    """The answer to one lookup. From the cache: ``payload`` (encoded; None: no such row). Else: ``value``."""

    outcome: ReadOutcome
    payload: bytes | None = None
    value: Any = None
    tokens: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS)

    @property
    def is_hit(self) -> bool:
        return self.outcome.is_hit


@dataclass(slots=True)
class ReadContext:
    """The settings and the clock that a client's reads share, and its copies of the node records.

    ``lineages``: of all serving shards that objects may name; hits trust one copy of all their records.
    ``clock`` is monotonic, in seconds; ``jitter`` gives numbers in [0, 1) (F47); ``encode`` turns a loaded value
    into bytes. ``recall`` finds what may be served while another reader fills. A value of more than ``part_bytes`` is
    stored in parts, one of more than ``value_bytes_max`` not at all. Not shared between threads.
    """

    namespace: str
    ring: int
    lineages: tuple[str, ...]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    encode: Callable[[Any], bytes]
    node_refresh_seconds: float
    fill_lease_ttl_seconds: int
    fill_wait_seconds: float
    on_stale: Literal["bypass", "serve"]
    sightings: Sightings
    witness: Witness | None = None
    recall: Callable[[Lookup], Read | None] = lambda _: None
    part_bytes: int = PART_BYTES
    value_bytes_max: int = STORED_BYTES_MAX
    views: dict[str, NodeView] = field(default_factory=dict)


# A lookup goes through these states, and only forward but for the wait:
#
#     not asked yet ─┬─> Read                        a live entry: a hit
#                    ├─> _Parted ─┬─> Read           a live entry with all of its parts: a hit
#                    │            └─> _Refused       a part is missing
#                    ├─> _Refused ──────────────┐    nothing may be stored, for the cause that it names
#                    └─> _Stub ─┬─> _Refused ───┤    the stub of another reader is looked up again a few times
#                               └─> _Guarded ─┬─┴─> Read    from the database, not stored
#                                             └───> Read    from the database, stored by CAS on the stub


@value
class _Refused:
    """Nothing is stored. ``stub``: this reader's own stub, which it deletes for the next one. ``wanted``: (lineage,
    number) of stripes that were missing."""

    outcome: ReadOutcome
    stub: Version | None = None
    wanted: Sequence[tuple[str, int]] = ()


@value
class _Parted:
    """A live entry whose value is in parts, which are still to be read. ``outcome``: of the read if all are there."""

    outcome: ReadOutcome
    manifest: bytes


@value
class _Stub:
    """The stub observed in step 1, which alone a fill may replace.

    ``is_own``: this reader made it. ``is_leased``: another reader made it a moment ago and is about to fill.
    ``records``: of the node, read no later than the stub.
    """

    version: Version
    is_own: bool
    is_leased: bool
    records: Mapping[str, NodeRecord | None]

    def refuse(self, outcome: ReadOutcome, wanted: Sequence[tuple[str, int]] = ()) -> _Refused:
        return _Refused(outcome, self.version if self.is_own else None, wanted)


@value
class _Guarded:
    """A stub with the stripes and the records of step 2, by lineage, which decide over its fill."""

    stub: _Stub
    stripes: Mapping[str, Stripe | None]
    records: Mapping[str, NodeRecord | None]


@value
class _Fill:
    """A value that may be stored. ``manifest``: of its parts, where it is too large for one item."""

    entry: _Pending
    guarded: _Guarded
    row: Loaded
    payload: bytes | None
    ttl_seconds: int
    manifest: Manifest | None = None


class _Pending:
    """A lookup and its state; None before the first answer."""

    __slots__ = ("lookup", "state")

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.state: Read | _Refused | _Parted | _Stub | _Guarded | None = None

    @property
    def is_waiting(self) -> bool:
        return isinstance(self.state, _Stub) and self.state.is_leased

    @property
    def own_stub(self) -> Version | None:
        """The stub that this reader made and that no fill has replaced."""
        state = self.state.stub if isinstance(self.state, _Guarded) else self.state
        if isinstance(state, _Stub):
            return state.version if state.is_own else None
        return state.stub if isinstance(state, _Refused) else None


@value
class Demand:
    """The caller's own demands on a hit. ``at_least``: by lineage, commits that the value must have (I9).

    Where a token is of another lineage than its key, a former one, no hit serves.
    """

    max_staleness_seconds: float | None = None
    at_least: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS, hash=False)

    @property
    def may_be_stale(self) -> bool:
        return self.max_staleness_seconds is None and not self.at_least


NO_DEMAND: Final = Demand()


def read_through(
    context: ReadContext, lookups: Sequence[Lookup], demand: Demand = NO_DEMAND
) -> Procedure[list[Read]]:
    """Answer every lookup, in order. Raises what the loader raises; cache failures only show in the outcome."""
    entries = [_Pending(lookup) for lookup in lookups]
    distinct = entries if len(entries) == 1 else _find_distinct(entries)
    yield from _look_up(context, distinct, demand)
    hits = [entry.state for entry in entries if isinstance(entry.state, Read)]
    if len(hits) == len(entries):
        return hits
    first = {entry.lookup.item: entry for entry in distinct}
    waiting = [entry for entry in distinct if entry.is_waiting]
    if waiting:
        yield from _wait_for_winners(context, waiting, demand)
    missing = [
        entry for entry in entries if not isinstance(entry.state, Read) and not _is_repeat(entry, first)
    ]
    if missing:
        yield from _load_and_fill(context, missing, demand.at_least)
    return [_answered(first[entry.lookup.item] if _is_repeat(entry, first) else entry) for entry in entries]


def find_hit(
    context: ReadContext,
    lookup: Lookup,
    get: Callable[[bytes], bytes | None],
    at_least: Mapping[str, EventToken] = NO_TOKENS,
) -> Read | None:
    """The short way of `read_through` for a plain hit, the most frequent read by far. ``get`` reads an item of the
    lookup's node, None where there is none. ``at_least``: as in `Demand`. Returns the very hit that `read_through`
    would, or None: then that is to be run, since nothing was found out. Raises what ``get`` raises."""
    view = context.views.get(lookup.node)
    if view is None or context.witness is not None:
        return None
    refresh_seconds, fetched_at = context.node_refresh_seconds, view.fetched_at
    if context.clock() - fetched_at >= refresh_seconds * REFRESH_SHARE:
        return None
    policy = lookup.policy
    if view.find_refusal(policy, context.ring) is not None:
        return None
    if at_least and view.find_behind(policy, at_least):
        return None
    data = get(lookup.item)
    if not data or context.clock() - fetched_at > refresh_seconds:
        return None
    refusal, payload = view.judge(policy, lookup.identity, data)
    return Read(_HIT, payload, None, NO_TOKENS) if refusal is None else None


def find_hits(
    context: ReadContext, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken] = NO_TOKENS
) -> Procedure[list[Read | None]]:
    """The same for many keys, with one flow to each node; for each lookup its hit, or None."""
    hits: list[Read | None] = [None] * len(lookups)
    if context.witness is not None:
        return hits
    nodes: dict[str, list[int]] = {}
    for place, lookup in enumerate(lookups):
        nodes.setdefault(lookup.node, []).append(place)
    asked: list[tuple[list[int], NodeView]] = []
    flows = []
    now, refresh_seconds = context.clock(), context.node_refresh_seconds
    for node, places in nodes.items():
        view = context.views.get(node)
        if view is None or now - view.fetched_at >= refresh_seconds * REFRESH_SHARE:
            continue
        policies = (
            {lookups[place].policy.lineages: lookups[place].policy for place in places} if at_least else {}
        )
        if not any(view.find_behind(each, at_least) for each in policies.values()):
            asked.append((places, view))
            flows.append(Flow(node, Finds([lookups[place].item for place in places])))
    if not flows:
        return hits
    answers = yield Flows(tuple(flows))
    now = context.clock()
    parted: list[tuple[int, bytes]] = []
    for (places, view), found in zip(asked, answers, strict=True):
        if isinstance(found, FreshnessError) or now - view.fetched_at > refresh_seconds:
            continue
        policy: ObjectPolicy | None = None
        is_refused = True
        for place, data in zip(places, found, strict=True):
            lookup = lookups[place]
            if lookup.policy is not policy:
                policy = lookup.policy
                is_refused = view.find_refusal(policy, context.ring) is not None
                judge = view.judging(policy)
            value = data.value if isinstance(data, Item) else data
            if is_refused or not value or value is MISSING:
                continue
            refusal, payload = judge(lookup.identity, value)
            if refusal is None:
                hits[place] = Read(_HIT, payload, None, NO_TOKENS)
            elif refusal is ReadOutcome.PARTS:
                assert payload is not None, "a manifest is no missing row"
                parted.append((place, payload))
    if parted:
        wanted = [(lookups[place].node, manifest) for place, manifest in parted]
        values = yield from fetch_parts(context.namespace, wanted)
        for (place, _), whole in zip(parted, values, strict=True):
            if isinstance(whole, bytes):
                hits[place] = Read(_HIT, whole, None, NO_TOKENS)
    return hits


def _find_distinct(entries: list[_Pending]) -> list[_Pending]:
    """One place in the cache, one lookup: a second one would wait for the first one's lease."""
    if len({entry.lookup.item for entry in entries}) == len(entries):
        return entries
    first: dict[bytes, _Pending] = {}
    for entry in entries:
        if first.setdefault(entry.lookup.item, entry) is not entry:
            entry.state = _Refused(ReadOutcome.IDENTITY)
    return list(first.values())


def _is_repeat(entry: _Pending, first: Mapping[bytes, _Pending]) -> bool:
    """Whether the very same key was asked for before in the same call."""
    other = first[entry.lookup.item]
    return other is not entry and other.lookup.identity == entry.lookup.identity


def _answered(entry: _Pending) -> Read:
    assert isinstance(entry.state, Read)
    return entry.state


def _by_node(entries: Sequence[_Pending]) -> Mapping[str, Sequence[_Pending]]:
    if len(entries) == 1:
        return {entries[0].lookup.node: entries}
    nodes: dict[str, list[_Pending]] = {}
    for entry in entries:
        nodes.setdefault(entry.lookup.node, []).append(entry)
    return nodes


# -- step 1 --------------------------------------------------------------------------------------------


def _look_up(context: ReadContext, entries: Sequence[_Pending], demand: Demand) -> Procedure[None]:
    """Step 1: each entry becomes a `Read` that is a hit, a `_Stub`, or `_Refused`."""
    sent_at = context.clock()
    witness = context.witness
    sent_us = witness.now_us() if witness is not None else 0
    refresh_seconds = context.node_refresh_seconds
    asked: list[tuple[str, Sequence[_Pending], NodeView | None]] = []
    flows = []
    for node, of_node in _by_node(entries).items():
        view = context.views.get(node)
        requests = _entry_gets(context, view, of_node)
        if view is None or (
            sent_at - view.fetched_at >= refresh_seconds * REFRESH_SHARE
            or (demand.at_least and _is_behind(view, of_node, demand.at_least))
        ):
            view = None
            # In front: a record that is read behind an entry vouches for a later moment than the entry's
            requests = [*_record_gets(context.namespace, context.lineages), *requests]
        asked.append((node, of_node, view))
        flows.append(Flow(node, tuple(requests)))
    answers = yield Flows(tuple(flows))
    answered_at = context.clock()
    judged: list[tuple[str, Sequence[_Pending], NodeView, Replies, list[tuple[_Pending, Item]]]] = []
    for (node, of_node, view), replies in zip(asked, answers, strict=True):
        if isinstance(replies, FreshnessError):
            context.views.pop(node, None)
            for entry in of_node:
                entry.state = _Refused(ReadOutcome.NODE_DOWN)
            continue
        age_max = refresh_seconds
        if view is None:
            count = len(context.lineages)
            view = context.views[node] = NodeView(node, context.lineages, replies[:count], sent_at)
            context.sightings.note(node, view)
            replies, age_max = replies[count:], max(refresh_seconds, FLOW_SECONDS_MAX)
        if answered_at - view.fetched_at > age_max:
            # This process stood still meanwhile (F58): the view's lease may have ended before the entry was read.
            context.views.pop(node, None)
            view = NodeView(node, context.lineages, [MISSING] * len(context.lineages), sent_at)
        dead, stale = _judge(context, view, of_node, replies, demand)
        if stale:
            yield from _serve_stale(context, node, stale)
        judged.append((node, of_node, view, replies, dead))
    parted = [entry for entry in entries if isinstance(entry.state, _Parted)]
    if parted:
        yield from _complete(context, parted)
    for node, of_node, view, replies, dead in judged:
        if witness is not None:
            for entry, reply in zip(of_node, replies, strict=False):
                if isinstance(state := entry.state, Read) and isinstance(reply, Item):
                    tell_hit(witness, entry.lookup, state.outcome, reply, state.payload, sent_us)
        dead = [(entry, item) for entry, item in dead if _is_replaceable(entry)]
        if dead:
            yield from _claim(context, node, dead, view.records)


def _is_replaceable(entry: _Pending) -> bool:
    """Not where its parts made it a hit after all, or where the node did not answer."""
    return isinstance(entry.state, _Refused) and entry.state.outcome is not ReadOutcome.NODE_DOWN


def _entry_gets(context: ReadContext, view: NodeView | None, entries: Sequence[_Pending]) -> list[Request]:
    """Requests for the entries. Each leaves a stub at an absent key, unless the node is known to be closed."""
    ttl_seconds = context.fill_lease_ttl_seconds
    if view is None:
        return [Get(entry.lookup.item, ttl_seconds) for entry in entries]
    requests: list[Request] = []
    policy: ObjectPolicy | None = None
    for entry in entries:
        lookup = entry.lookup
        if lookup.policy is not policy:  # the keys of one call mostly share it
            policy = lookup.policy
            is_refused = view.find_refusal(policy, context.ring) is not None
            ttl_seconds = 0 if is_refused else context.fill_lease_ttl_seconds
        requests.append(Get(lookup.item, ttl_seconds))
    return requests


def _is_behind(view: NodeView, entries: Sequence[_Pending], at_least: Mapping[str, EventToken]) -> bool:
    """Whether a copy of the records lacks commits that the caller asks for. The node's own may have them by now."""
    return any(view.find_behind(entry.lookup.policy, at_least) for entry in entries)


def _record_gets(namespace: str, lineages: Sequence[str]) -> list[Request]:
    return [Get(record_key(namespace, lineage), is_bound=True) for lineage in lineages]


def _lineages_of(entries: Sequence[_Pending]) -> tuple[str, ...]:
    """The lineages that the objects of these entries live in. No other lineage decides over them."""
    return tuple(dict.fromkeys(chain.from_iterable(entry.lookup.policy.lineages for entry in entries)))


def _judge(
    context: ReadContext,
    view: NodeView,
    entries: Sequence[_Pending],
    replies: Replies,
    demand: Demand,
) -> tuple[list[tuple[_Pending, Item]], list[tuple[_Pending, Item]]]:
    """(entries that can never be a hit again, entries that ``on_stale = "serve"`` may still serve)."""
    at_least, max_staleness_seconds = demand.at_least, demand.max_staleness_seconds
    dead: list[tuple[_Pending, Item]] = []
    stale: list[tuple[_Pending, Item]] = []
    policy: ObjectPolicy | None = None
    closed: ReadOutcome | None = None
    for entry, reply in zip(entries, replies, strict=False):
        lookup = entry.lookup
        if lookup.policy is not policy:
            policy = lookup.policy
            closed = view.find_refusal(policy, context.ring)
        if not isinstance(reply, Item):
            # Absent although a stub was asked for, or none was asked for since the node is closed
            entry.state = _Refused(closed or ReadOutcome.LOST_RACE)
        elif reply.value == STUB:
            stub = _Stub(reply.version, reply.won, reply.lease, view.records)
            entry.state = stub if closed is None else stub.refuse(closed)
        elif closed is not None:
            entry.state = _Refused(closed)
            is_served = context.on_stale == "serve" and demand.may_be_stale
            if is_served and closed is not ReadOutcome.RING:
                stale.append((entry, reply))
        elif max_staleness_seconds is not None and max_staleness_seconds < view.staleness_seconds(
            policy, context.clock()
        ):
            entry.state = _Refused(ReadOutcome.STALE)  # older than this caller accepts
        else:
            refusal, payload = view.judge(policy, lookup.identity, reply.value)
            is_live = refusal is None or refusal is ReadOutcome.PARTS
            if is_live and at_least and not view.shows(policy, reply.value, at_least):
                refusal = ReadOutcome.BEHIND
            if refusal is None:
                entry.state = Read(_HIT, payload, None, NO_TOKENS)
                continue
            if refusal is ReadOutcome.PARTS and payload is not None:
                entry.state = _Parted(_HIT, payload)
            else:
                entry.state = _Refused(refusal)  # until `_claim` has put a stub in its place
            if refusal in _REPLACEABLE and view.covers(policy):
                dead.append((entry, reply))
    return dead, stale


def _claim(
    context: ReadContext,
    node: str,
    dead: Sequence[tuple[_Pending, Item]],
    records: Mapping[str, NodeRecord | None],
) -> Procedure[None]:
    """Put a stub in the place of entries that can never be a hit again. The reader that succeeds fills."""
    ttl = context.fill_lease_ttl_seconds
    requests = tuple(Cas(entry.lookup.item, STUB, item.version, ttl) for entry, item in dead)
    (replies,) = yield Flows((Flow(node, requests),))
    if isinstance(replies, FreshnessError):
        return
    for (entry, _), reply in zip(dead, replies, strict=True):
        if isinstance(reply, Stored):
            entry.state = _Stub(reply.version, True, False, records)


def _serve_stale(context: ReadContext, node: str, stale: Sequence[tuple[_Pending, Item]]) -> Procedure[None]:
    """``on_stale = "serve"``: hits of unknown age, if they are of the life that the node had last."""
    lineages = _lineages_of([entry for entry, _ in stale])
    keys = tuple(Get(resume_key(context.namespace, lineage), is_bound=True) for lineage in lineages)
    (replies,) = yield Flows((Flow(node, keys),))
    if isinstance(replies, FreshnessError):
        return
    last = NodeView(node, lineages, replies, context.clock())
    for entry, item in stale:
        refusal, payload = last.judge(entry.lookup.policy, entry.lookup.identity, item.value)
        if refusal is None:
            entry.state = Read(ReadOutcome.STALE_SERVED, payload)
        elif refusal is ReadOutcome.PARTS and payload is not None:
            entry.state = _Parted(ReadOutcome.STALE_SERVED, payload)


def _complete(context: ReadContext, parted: Sequence[_Pending]) -> Procedure[None]:
    """Live entries whose value is in parts: each becomes a `Read`, or `_Refused` where the value is not whole."""
    states = [entry.state for entry in parted if isinstance(entry.state, _Parted)]
    wanted = [(entry.lookup.node, state.manifest) for entry, state in zip(parted, states, strict=True)]
    values = yield from fetch_parts(context.namespace, wanted)
    for entry, state, whole in zip(parted, states, values, strict=True):
        if isinstance(whole, FreshnessError):
            entry.state = _Refused(ReadOutcome.NODE_DOWN)
        elif whole is None:
            entry.state = _Refused(ReadOutcome.PARTS)
        else:
            entry.state = Read(state.outcome, whole, None, NO_TOKENS)


def _wait_for_winners(context: ReadContext, waiting: list[_Pending], demand: Demand) -> Procedure[None]:
    """A lease only delays (F41, F72): look again a few times, then read the database.

    A reader that still waits at the end may fill by the same rule as the winner. One that may be given an old value
    (stale while revalidate) does not wait where there is one.
    """
    if demand.may_be_stale:
        for entry in waiting:
            entry.state = context.recall(entry.lookup) or entry.state
        waiting = [entry for entry in waiting if entry.is_waiting]
    for poll in range(LEASE_POLLS_MAX):
        if not waiting:
            return
        yield Wait(context.fill_wait_seconds * 2**poll / (2**LEASE_POLLS_MAX - 1))
        yield from _look_up(context, waiting, demand)
        waiting = [entry for entry in waiting if entry.is_waiting]


# -- steps 2 to 4 --------------------------------------------------------------------------------------


def _load_and_fill(
    context: ReadContext, missing: Sequence[_Pending], at_least: Mapping[str, EventToken]
) -> Procedure[None]:
    yield from _fetch_guards(context, [entry for entry in missing if isinstance(entry.state, _Stub)])
    try:
        loaded: Sequence[Loaded] = yield Load(tuple(entry.lookup for entry in missing), at_least)
    except Exception:
        yield from _drop_stubs(context, missing)
        raise
    fills: list[_Fill] = []
    refused: list[tuple[_Pending, _Refused, Loaded]] = []
    for entry, row in zip(missing, loaded, strict=True):
        state = entry.state
        if isinstance(state, _Guarded):
            refusal = row.refusal or _find_refusal(context, entry.lookup, state, row)
            if refusal is None:
                fill = _encode(context, entry, state, row)
                refusal = yield from _store_parts(context, fill)
                if refusal is None:
                    fills.append(fill)
                    continue
            wanted = _find_wanted(entry.lookup, state) if refusal is ReadOutcome.STRIPE_ABSENT else ()
            state = entry.state = state.stub.refuse(refusal, wanted)
        assert isinstance(state, _Refused)
        refused.append((entry, state, row))
    yield from _fill(context, fills)
    yield from _drop_stubs(context, [entry for entry, _, _ in refused])
    for entry, state, row in refused:
        entry.state = Read(state.outcome, value=row.value, tokens=row.tokens)
        if context.witness is not None:
            tell_refusal(context.witness, entry.lookup, state.outcome, row)


def _fetch_guards(context: ReadContext, stubs: Sequence[_Pending]) -> Procedure[None]:
    """Step 2: the stripes of all keys of a node, then the records of these entries' lineages, in one flow.

    Each stub becomes `_Guarded`, or `_Refused`: no answer, or another life.
    """
    if not stubs:
        return
    sent_at = context.clock()
    asked = []
    flows = []
    for node, of_node in _by_node(stubs).items():
        lineages = _lineages_of(of_node)
        gets = [get for entry in of_node for get in _stripe_gets(context.namespace, entry)]
        asked.append((node, of_node, lineages, len(gets)))
        flows.append(Flow(node, (*gets, *_record_gets(context.namespace, lineages))))
    answers = yield Flows(tuple(flows))
    for (node, of_node, lineages, count), replies in zip(asked, answers, strict=True):
        if isinstance(replies, FreshnessError):
            for entry in of_node:
                entry.state = _Refused(ReadOutcome.NODE_DOWN)  # its stub cannot be deleted either
            continue
        view = NodeView(node, lineages, replies[count:], sent_at)
        if set(lineages) == set(context.lineages):
            context.sightings.note(node, view)
            context.views[node] = view  # it holds as much as any other
        held = iter(replies)
        for entry in of_node:
            stub, of_entry = entry.state, entry.lookup.policy.lineages
            assert isinstance(stub, _Stub)
            found = dict(zip(of_entry, held, strict=False))
            if any(_life_of(stub.records, lineage) != view.lives[lineage] for lineage in of_entry):
                # The node has forgotten something since the stub was observed: CAS numbers may have begun again (F8)
                entry.state = stub.refuse(ReadOutcome.LIFE)
                continue
            stripes = {lineage: _find_stripe(view, lineage, reply) for lineage, reply in found.items()}
            entry.state = _Guarded(stub, stripes, view.records)


def _stripe_gets(namespace: str, entry: _Pending) -> list[Request]:
    """One for each lineage. How many stripes there are does not change in a life, so the records of step 1 know."""
    assert isinstance(entry.state, _Stub)
    item = entry.lookup.item
    gets: list[Request] = []
    for lineage in entry.lookup.policy.lineages:
        record = entry.state.records.get(lineage)
        number = stripe_number(item, record.stripes) if record is not None and record.stripes else 0
        gets.append(Get(stripe_key(namespace, lineage, number)))
    return gets


def _life_of(records: Mapping[str, NodeRecord | None], lineage: str) -> bytes | None:
    record = records.get(lineage)
    return None if record is None else record.life


def _find_stripe(view: NodeView, lineage: str, reply: Reply) -> Stripe | None:
    record = view.records[lineage]
    return find_stripe(reply.value, record.life) if record is not None and isinstance(reply, Item) else None


def _find_refusal(context: ReadContext, lookup: Lookup, guarded: _Guarded, row: Loaded) -> ReadOutcome | None:
    if row.value is None and not lookup.is_exact:
        return ReadOutcome.KEY
    return find_fill_refusal(lookup.policy, context.ring, guarded.records, guarded.stripes, row.tokens)


def _find_wanted(lookup: Lookup, guarded: _Guarded) -> list[tuple[str, int]]:
    return [
        (lineage, stripe_number(lookup.item, record.stripes))
        for lineage, record in guarded.records.items()
        if record is not None and record.stripes and guarded.stripes.get(lineage, record) is None
    ]


def _encode(context: ReadContext, entry: _Pending, guarded: _Guarded, row: Loaded) -> _Fill:
    payload = None if row.value is None else context.encode(row.value)
    ttl_seconds = entry.lookup.policy.spread_ttl(context.jitter())
    manifest = None
    if payload is not None and context.part_bytes < len(payload) <= context.value_bytes_max:
        manifest = Manifest.of(payload, context.part_bytes)
    return _Fill(entry, guarded, row, payload, ttl_seconds, manifest)


def _store_parts(context: ReadContext, fill: _Fill) -> Procedure[ReadOutcome | None]:
    """Before step 4: where the entry is, its parts are. Returns why the entry must not be stored."""
    payload = fill.payload
    if payload is None or len(payload) <= min(context.part_bytes, context.value_bytes_max):
        return None
    if fill.manifest is None:
        return ReadOutcome.TOO_LARGE
    node, stub_ttl_seconds = fill.entry.lookup.node, context.fill_lease_ttl_seconds
    return (
        yield from store_parts(
            context.namespace, node, fill.manifest, payload, fill.ttl_seconds, stub_ttl_seconds
        )
    )


def _fill(context: ReadContext, fills: Sequence[_Fill]) -> Procedure[None]:
    """Step 4: store by CAS on the stub of step 1."""
    witness = context.witness
    nodes: dict[str, list[tuple[_Fill, Cas]]] = {}
    for fill in fills:
        lookup, guarded = fill.entry.lookup, fill.guarded
        stamps = []
        for lineage in lookup.policy.lineages:
            record, token = guarded.records[lineage], fill.row.tokens[lineage]
            assert record is not None
            stamps.append(Stamp(lineage, record.life, token.epoch, token.position))
        data = fill.payload if fill.manifest is None else fill.manifest.encode()
        entry = Filled(tuple(stamps), lookup.identity, data, fill.manifest is not None).encode()
        request = Cas(lookup.item, entry, guarded.stub.version, fill.ttl_seconds)
        nodes.setdefault(lookup.node, []).append((fill, request))
    if not nodes:
        return
    flows = [Flow(node, tuple(cas for _, cas in of_node)) for node, of_node in nodes.items()]
    sent_us = witness.now_us() if witness is not None else 0
    answers = yield Flows(tuple(flows))
    for of_node, replies in zip(nodes.values(), answers, strict=True):
        failed = isinstance(replies, FreshnessError)
        for place, (fill, cas) in enumerate(of_node):
            row, lookup = fill.row, fill.entry.lookup
            reply = None if failed else replies[place]
            outcome = ReadOutcome.NODE_DOWN if failed else _stored(reply)
            fill.entry.state = Read(outcome, value=row.value, tokens=row.tokens)
            if witness is not None:
                tell_fill(
                    witness, lookup, outcome, fill.guarded.records, row, fill.payload, cas, reply, sent_us
                )


def _stored(reply: object) -> ReadOutcome:
    if isinstance(reply, Stored):
        return ReadOutcome.FILLED
    return ReadOutcome.TOO_LARGE if isinstance(reply, Refused) else ReadOutcome.LOST_RACE


def _drop_stubs(context: ReadContext, entries: Sequence[_Pending]) -> Procedure[None]:
    """Delete this reader's own stubs, so that the next reader need not wait. A stub that stays expires by itself.

    The same flow notes missing stripes, for the invalidator to put back first.
    """
    flows = []
    for node, of_node in _by_node(entries).items():
        requests: list[Request] = [
            Delete(entry.lookup.item, stub) for entry in of_node if (stub := entry.own_stub) is not None
        ]
        wanted: dict[str, list[int]] = {}
        for entry in of_node:
            for lineage, number in entry.state.wanted if isinstance(entry.state, _Refused) else ():
                wanted.setdefault(lineage, []).append(number)
        requests += [
            Append(wanted_key(context.namespace, lineage), encode_wanted(numbers))
            for lineage, numbers in wanted.items()
        ]
        if requests:
            flows.append(Flow(node, tuple(requests)))
    if flows:
        yield Flows(tuple(flows))
