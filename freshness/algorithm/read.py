"""Read keys through the cache: the read half of the algorithm (docs/algorithm.md#reading).

1. Get the entry; where there is none, leave a stub. A live entry is a hit.
2. Otherwise, and only after 1, the tombstone and then the node record, on the same node, never from a copy.
3. Then the rows, with the token that was read from the same server before them.
4. Store by CAS on the item observed in 1, and only if the rule of ``freshness.algorithm.rule`` allows it.

Nothing is ever added or set: if the item is gone or another, somebody invalidated, and the value is returned
without being stored. A node that does not answer is no miss: its keys are read from the database and not stored.
Run by appclient's drivers and by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Literal

from freshness.algorithm.envelope import STUB, Filled, Stamp, Tombstone, record_key, resume_key
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import (
    MISSING,
    Cas,
    Delete,
    Flow,
    Flows,
    Get,
    Item,
    Load,
    Procedure,
    Refused,
    Replies,
    Request,
    Stored,
    Version,
    Wait,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome, find_fill_refusal
from freshness.algorithm.view import NodeView
from freshness.algorithm.witness import Witness, tell_fill, tell_hit, tell_refusal
from freshness.errors import FormatError, FreshnessError
from freshness.keys.cachekey import tombstone_key
from freshness.position.token import EventToken
from freshness.value import value

_REPLACEABLE: Final = frozenset((ReadOutcome.DEAD, ReadOutcome.TABLE_FLOOR, ReadOutcome.IDENTITY))
"""Why an entry that is one of ours is no hit, and never will be for this key: a reader may take its place."""

_HIT: Final = ReadOutcome.HIT
_NO_TOKENS: Final[Mapping[str, EventToken]] = MappingProxyType({})

LEASE_POLLS_MAX: Final = 4
"""How often a reader looks again for the value of another reader's lease before it reads the database (I6)."""


@value
class Read:
    """The answer to one lookup. From the cache: ``payload`` (encoded; None: no such row). Else: ``value``."""

    outcome: ReadOutcome
    payload: bytes | None = None
    value: Any = None
    tokens: Mapping[str, EventToken] = field(default_factory=lambda: _NO_TOKENS)

    @property
    def is_hit(self) -> bool:
        return self.outcome is ReadOutcome.HIT or self.outcome is ReadOutcome.STALE_SERVED


@dataclass(slots=True)
class ReadContext:
    """What a client's reads share: settings, clock, and its copies of the node records.

    ``lineages``: of all shards that objects may name, those that serve; hits trust one copy of all their records.
    ``clock`` is monotonic, in seconds; ``jitter`` gives numbers in [0, 1) (F47); ``encode`` turns a loaded value
    into bytes. Not shared between threads.
    """

    namespace: str
    ring: int
    lineages: tuple[str, ...]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    encode: Callable[[Any], bytes]
    lease_seconds: int
    node_refresh_seconds: float
    fill_lease_ttl_seconds: int
    fill_wait_seconds: float
    on_stale: Literal["bypass", "serve"]
    witness: Witness | None = None
    views: dict[str, NodeView] = field(default_factory=dict)


class _Pending:
    """A lookup and what has become of it. ``version`` is the item observed in step 1, on which alone a fill may be
    based; ``is_waiting``: another reader holds the lease; ``lives``: of the node, read no later than the item."""

    # Of the class until something else is known: a hit needs hardly any of them, and a reader makes one for each key.
    refusal: ReadOutcome | None = None
    version: Version | None = None
    is_winner = False
    is_waiting = False
    lives: Mapping[str, bytes | None] = MappingProxyType({})
    read: Read | None = None

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup


def read_through(
    context: ReadContext, lookups: Sequence[Lookup], max_staleness_seconds: float | None = None
) -> Procedure[list[Read]]:
    """Answer every lookup, in order. Raises what the loader raises; cache failures only show in the outcome."""
    entries = [_Pending(lookup) for lookup in lookups]
    distinct = entries if len(entries) == 1 else _find_distinct(entries)
    yield from _look_up(context, distinct, max_staleness_seconds)
    hits = [entry.read for entry in entries if entry.read is not None]
    if len(hits) == len(entries):
        return hits
    first = {entry.lookup.item: entry for entry in distinct}
    waiting = [entry for entry in distinct if entry.is_waiting]
    if waiting:
        yield from _wait_for_winners(context, waiting, max_staleness_seconds)
    missing = [entry for entry in entries if entry.read is None and not _is_repeat(entry, first)]
    if missing:
        yield from _load_and_fill(context, missing)
    return [_answered(first[entry.lookup.item] if _is_repeat(entry, first) else entry) for entry in entries]


def _find_distinct(entries: list[_Pending]) -> list[_Pending]:
    """One place in the cache, one lookup: a second one would wait for the first one's lease."""
    if len({entry.lookup.item for entry in entries}) == len(entries):
        return entries
    first: dict[bytes, _Pending] = {}
    for entry in entries:
        if first.setdefault(entry.lookup.item, entry) is not entry:
            entry.refusal = ReadOutcome.IDENTITY
    return list(first.values())


def _is_repeat(entry: _Pending, first: Mapping[bytes, _Pending]) -> bool:
    """Whether the very same key was asked for before in the same call."""
    other = first[entry.lookup.item]
    return other is not entry and other.lookup.identity == entry.lookup.identity


def _answered(entry: _Pending) -> Read:
    assert entry.read is not None
    return entry.read


def _observed(entry: _Pending) -> Version:
    assert entry.version is not None
    return entry.version


def _by_node(entries: Sequence[_Pending]) -> Mapping[str, Sequence[_Pending]]:
    if len(entries) == 1:
        return {entries[0].lookup.node: entries}
    nodes: dict[str, list[_Pending]] = {}
    for entry in entries:
        nodes.setdefault(entry.lookup.node, []).append(entry)
    return nodes


# -- step 1 --------------------------------------------------------------------------------------------


def _look_up(
    context: ReadContext, entries: Sequence[_Pending], max_staleness_seconds: float | None
) -> Procedure[None]:
    """Hits get their `Read`; the others the version they observed, or why they must not be stored."""
    sent_at = context.clock()
    witness = context.witness
    sent_us = witness.now_us() if witness is not None else 0
    refresh_seconds = context.node_refresh_seconds
    asked: list[tuple[str, Sequence[_Pending], NodeView | None]] = []
    flows = []
    for node, of_node in _by_node(entries).items():
        view = context.views.get(node)
        requests = _entry_gets(context, view, of_node)
        if view is None or sent_at - view.fetched_at >= refresh_seconds:
            view = None
            requests += _record_gets(context.namespace, context.lineages)
        asked.append((node, of_node, view))
        flows.append(Flow(node, tuple(requests)))
    answers = yield Flows(tuple(flows))
    answered_at = context.clock()
    for (node, of_node, view), replies in zip(asked, answers, strict=True):
        if isinstance(replies, FreshnessError):
            context.views.pop(node, None)
            for entry in of_node:
                entry.refusal, entry.is_waiting = ReadOutcome.NODE_DOWN, False
            continue
        if view is None:
            view = context.views[node] = NodeView(context.lineages, replies[len(of_node) :], sent_at)
        elif answered_at - view.fetched_at > refresh_seconds:
            # This process stood still meanwhile (F58): what the view said may have ended before the entry was read.
            view = yield from _fetch_view(context, node, view)
        dead, stale = _judge(context, view, of_node, replies, max_staleness_seconds)
        if stale:
            yield from _serve_stale(context, node, stale)
        if witness is not None:
            for entry, reply in zip(of_node, replies, strict=False):
                if entry.read is not None and isinstance(reply, Item):
                    tell_hit(witness, entry.lookup, entry.read.outcome, reply, sent_us)
        if dead:
            yield from _claim(context, node, dead)


def _entry_gets(context: ReadContext, view: NodeView | None, entries: Sequence[_Pending]) -> list[Request]:
    """Each leaves a stub where there is nothing, but not where it is known that nothing will be stored."""
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


def _fetch_view(context: ReadContext, node: str, old: NodeView) -> Procedure[NodeView]:
    """The records as they are now. The lives stay those of ``old``, which were read before the entries."""
    sent_at = context.clock()
    (replies,) = yield Flows((Flow(node, tuple(_record_gets(context.namespace, context.lineages))),))
    if isinstance(replies, FreshnessError):
        replies = [MISSING] * len(context.lineages)
    view = context.views[node] = NodeView(context.lineages, replies, sent_at)
    return (
        view
        if view.lives == old.lives
        else NodeView(context.lineages, [MISSING] * len(context.lineages), sent_at)
    )


def _record_gets(namespace: str, lineages: Sequence[str]) -> list[Request]:
    return [Get(record_key(namespace, lineage)) for lineage in lineages]


def _lineages_of(entries: Sequence[_Pending]) -> tuple[str, ...]:
    """Those that the objects of these entries live in: the only ones that have a say in them."""
    return tuple(dict.fromkeys(chain.from_iterable(entry.lookup.policy.lineages for entry in entries)))


def _judge(
    context: ReadContext,
    view: NodeView,
    entries: Sequence[_Pending],
    replies: Replies,
    max_staleness_seconds: float | None,
) -> tuple[list[_Pending], list[tuple[_Pending, Item]]]:
    """(entries that can never be a hit again, what ``on_stale = "serve"`` may serve all the same)."""
    dead: list[_Pending] = []
    stale: list[tuple[_Pending, Item]] = []
    policy: ObjectPolicy | None = None
    closed: ReadOutcome | None = None
    lives = view.lives
    for entry, reply in zip(entries, replies, strict=False):
        lookup = entry.lookup
        if lookup.policy is not policy:
            policy = lookup.policy
            closed = view.find_refusal(policy, context.ring)
        refusal = closed
        entry.refusal, entry.lives, entry.is_waiting = refusal, lives, False
        if not isinstance(reply, Item):
            entry.refusal = refusal or ReadOutcome.LOST_RACE  # absent although a stub was asked for: no fill
        elif reply.value == STUB:
            entry.version, entry.is_winner = reply.version, reply.won
            entry.is_waiting = refusal is None and reply.lease
        elif refusal is not None:
            is_served = context.on_stale == "serve" and max_staleness_seconds is None
            if is_served and refusal is not ReadOutcome.RING:
                stale.append((entry, reply))
        elif max_staleness_seconds is not None and max_staleness_seconds < view.staleness_seconds(
            policy, context.lease_seconds, context.clock()
        ):
            entry.refusal = ReadOutcome.STALE
        else:
            refusal, payload = view.judge(policy, lookup.identity, reply.value)
            entry.refusal = refusal
            if refusal is None:
                entry.read = Read(_HIT, payload, None, _NO_TOKENS)
            elif refusal in _REPLACEABLE and view.covers(policy):
                entry.version = reply.version
                dead.append(entry)
    return dead, stale


def _claim(context: ReadContext, node: str, dead: Sequence[_Pending]) -> Procedure[None]:
    """Put a stub in the place of entries that can never be a hit again. Whoever succeeds fills."""
    ttl = context.fill_lease_ttl_seconds
    requests = tuple(Cas(entry.lookup.item, STUB, _observed(entry), ttl) for entry in dead)
    (replies,) = yield Flows((Flow(node, requests),))
    for entry, reply in zip(
        dead, replies if not isinstance(replies, FreshnessError) else [None] * len(dead), strict=True
    ):
        if isinstance(reply, Stored):
            entry.version, entry.is_winner, entry.refusal = reply.version, True, None
        else:
            entry.version = None


def _serve_stale(context: ReadContext, node: str, stale: Sequence[tuple[_Pending, Item]]) -> Procedure[None]:
    """``on_stale = "serve"``: hits of unknown age, if they are of the life that the node had last."""
    lineages = _lineages_of([entry for entry, _ in stale])
    keys = tuple(Get(resume_key(context.namespace, lineage)) for lineage in lineages)
    (replies,) = yield Flows((Flow(node, keys),))
    if isinstance(replies, FreshnessError):
        return
    last = NodeView(lineages, replies, context.clock())
    for entry, item in stale:
        refusal, payload = last.judge(entry.lookup.policy, entry.lookup.identity, item.value)
        if refusal is None:
            entry.read = Read(ReadOutcome.STALE_SERVED, payload)


def _wait_for_winners(
    context: ReadContext, waiting: list[_Pending], max_staleness_seconds: float | None
) -> Procedure[None]:
    """A lease only delays (F41, F72): look again a few times, then read the database like anyone else."""
    for _ in range(LEASE_POLLS_MAX):
        yield Wait(context.fill_wait_seconds / LEASE_POLLS_MAX)
        yield from _look_up(context, waiting, max_staleness_seconds)
        waiting = [entry for entry in waiting if entry.is_waiting]
        if not waiting:
            return
    # Whoever still waits may fill by the same rule as the winner.


# -- steps 2 to 4 --------------------------------------------------------------------------------------


def _load_and_fill(context: ReadContext, missing: Sequence[_Pending]) -> Procedure[None]:
    candidates = [entry for entry in missing if entry.refusal is None and entry.version is not None]
    guards = yield from _fetch_guards(context, candidates)
    try:
        loaded: Sequence[Loaded] = yield Load(tuple(entry.lookup for entry in missing))
    except Exception:
        yield from _drop_stubs(missing)
        raise
    fills = []
    for entry, row in zip(missing, loaded, strict=True):
        entry.read = Read(entry.refusal or ReadOutcome.LOST_RACE, value=row.value, tokens=row.tokens)
        guard = guards.get(id(entry))
        if guard is None or entry.refusal is not None:
            continue
        entry.refusal = row.refusal or _find_refusal(context, entry, guard, row)
        if entry.refusal is None:
            fills.append((entry, guard, row))
        else:
            entry.read = Read(entry.refusal, value=row.value, tokens=row.tokens)
    yield from _fill(context, fills)
    yield from _drop_stubs([entry for entry in missing if entry.refusal is not None])
    if context.witness is not None:
        for entry, row in zip(missing, loaded, strict=True):
            if entry.refusal is not None or entry.version is None:
                tell_refusal(context.witness, entry.lookup, _answered(entry).outcome, row)


@dataclass(frozen=True, slots=True)
class _Guard:
    """Tombstone and records as read in step 2."""

    tombstone: Tombstone | None
    view: NodeView


def _fetch_guards(context: ReadContext, candidates: Sequence[_Pending]) -> Procedure[dict[int, _Guard]]:
    """Step 2: all tombstones of a node, then the records that have a say in these entries, in one flow."""
    guards: dict[int, _Guard] = {}
    if not candidates:
        return guards
    sent_at = context.clock()
    asked = []
    flows = []
    for node, of_node in _by_node(candidates).items():
        lineages = _lineages_of(of_node)
        tombstones: list[Request] = [Get(tombstone_key(entry.lookup.item)) for entry in of_node]
        asked.append((node, of_node, lineages))
        flows.append(Flow(node, (*tombstones, *_record_gets(context.namespace, lineages))))
    answers = yield Flows(tuple(flows))
    for (node, of_node, lineages), replies in zip(asked, answers, strict=True):
        if isinstance(replies, FreshnessError):
            for entry in of_node:
                entry.refusal = ReadOutcome.NODE_DOWN
            continue
        view = NodeView(lineages, replies[len(of_node) :], sent_at)
        if set(lineages) == set(context.lineages):
            context.views[node] = view  # it holds as much as any other
        for entry, reply in zip(of_node, replies, strict=False):
            if not _is_same_life(entry, view):
                entry.refusal = ReadOutcome.LIFE  # CAS numbers may have begun anew (F8)
                continue
            try:
                tombstone = None if reply is MISSING else Tombstone.decode(reply.value)
            except FormatError:
                entry.refusal = ReadOutcome.FOREIGN
                continue
            guards[id(entry)] = _Guard(tombstone, view)
    return guards


def _is_same_life(entry: _Pending, view: NodeView) -> bool:
    """Whether the node remembers all that it did when the entry was looked up, for all who have a say in it."""
    return all(
        view.lives.get(lineage) == entry.lives.get(lineage) for lineage in entry.lookup.policy.lineages
    )


def _find_refusal(context: ReadContext, entry: _Pending, guard: _Guard, row: Loaded) -> ReadOutcome | None:
    if row.value is None and not entry.lookup.is_exact:
        return ReadOutcome.KEY
    return find_fill_refusal(
        entry.lookup.policy, context.ring, guard.view.records, guard.tombstone, row.tokens
    )


def _fill(context: ReadContext, fills: Sequence[tuple[_Pending, _Guard, Loaded]]) -> Procedure[None]:
    """Step 4: store by CAS on the version observed in step 1."""
    witness = context.witness
    nodes: dict[str, list[tuple[_Pending, _Guard, Loaded, Cas]]] = {}
    for entry, guard, row in fills:
        policy = entry.lookup.policy
        stamps = []
        for lineage in policy.lineages:
            record, token = guard.view.records[lineage], row.tokens[lineage]
            assert record is not None
            stamps.append(Stamp(lineage, record.life, token.epoch, token.position))
        value = None if row.value is None else context.encode(row.value)
        data = Filled(tuple(stamps), entry.lookup.identity, value).encode()
        ttl = max(1, int(policy.value_ttl_seconds * (1 - 0.1 * context.jitter())))
        request = Cas(entry.lookup.item, data, _observed(entry), ttl)
        nodes.setdefault(entry.lookup.node, []).append((entry, guard, row, request))
    if not nodes:
        return
    flows = [Flow(node, tuple(cas for *_, cas in of_node)) for node, of_node in nodes.items()]
    sent_us = witness.now_us() if witness is not None else 0
    answers = yield Flows(tuple(flows))
    for of_node, replies in zip(nodes.values(), answers, strict=True):
        failed = isinstance(replies, FreshnessError)
        for place, (entry, guard, row, cas) in enumerate(of_node):
            reply = None if failed else replies[place]
            outcome = ReadOutcome.NODE_DOWN if failed else _stored(reply)
            entry.read = Read(outcome, value=row.value, tokens=row.tokens)
            if witness is not None:
                tell_fill(witness, entry.lookup, outcome, guard.view.records, row, cas, reply, sent_us)


def _stored(reply: object) -> ReadOutcome:
    if isinstance(reply, Stored):
        return ReadOutcome.FILLED
    return ReadOutcome.TOO_LARGE if isinstance(reply, Refused) else ReadOutcome.LOST_RACE


def _drop_stubs(entries: Sequence[_Pending]) -> Procedure[None]:
    """A winner that was refused makes room for the next reader. Best effort: the stub expires by itself."""
    flows = []
    for node, of_node in _by_node(entries).items():
        deletes = tuple(
            Delete(entry.lookup.item, entry.version)
            for entry in of_node
            if entry.is_winner and entry.version is not None and entry.refusal is not ReadOutcome.NODE_DOWN
        )
        if deletes:
            flows.append(Flow(node, deletes))
    if flows:
        yield Flows(tuple(flows))
