"""Steps 2 to 4 of a read: the stripe and the record, the rows, and the fill.

2. Only after step 1, the stripe of the key and then the node record, on the same node, never from a copy.
3. Then the rows, with the token that was read from the same server before them: a replica that shows what step 2
   says that they must contain, else the primary.
4. Store by CAS on the item observed in step 1, and only if the rule of ``freshness.algorithm.rule`` allows it.

A value that is too large for one item is in parts, which are written before step 4 (``parts.py``). A value is never
stored by add or set: if the item is gone or another, an event invalidated it, and the value is returned without being
stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from freshness.algorithm.envelope import (
    Filled,
    NodeRecord,
    Stamp,
    Stripe,
    encode_wanted,
    find_stripe,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.parts import Manifest, store_parts
from freshness.algorithm.request import (
    Append,
    Cas,
    Delete,
    Flow,
    Flows,
    Get,
    Item,
    Load,
    Procedure,
    Refused,
    Reply,
    Request,
    Stored,
)
from freshness.algorithm.rule import ReadOutcome, find_fill_refusal, find_required
from freshness.algorithm.state import (
    Demand,
    Guarded,
    Pending,
    Read,
    ReadContext,
    Stub,
    Unstored,
    by_node,
    lineages_of,
    record_gets,
)
from freshness.algorithm.view import NodeView
from freshness.algorithm.witness import Attempt, tell_fill, tell_refusal
from freshness.config.cache import FLOW_SECONDS_MAX
from freshness.errors import FreshnessError
from freshness.position.token import EventToken
from freshness.value import value


@value
class _Fill:
    """A value that may be stored. ``manifest``: manifest of its parts, if it is too large for one item. ``is_moved``:
    the value is that of an entry on another node."""

    entry: Pending
    guarded: Guarded
    row: Loaded
    payload: bytes | None
    ttl_seconds: int
    manifest: Manifest | None = None
    is_moved: bool = False


def load_and_fill(context: ReadContext, missing: Sequence[Pending], demand: Demand) -> Procedure[None]:
    yield from _fetch_guards(context, [entry for entry in missing if not _is_unknown(entry)])
    fills = yield from _move(context, missing, demand)
    moved = {fill.entry for fill in fills}
    missing = [entry for entry in missing if entry not in moved]
    loaded: Sequence[Loaded] = ()
    if missing:
        lookups = tuple(entry.ask(context.on_unknown) for entry in missing)
        try:
            loaded = yield Load(lookups, demand.at_least)
        except Exception:
            yield from _drop_stubs(context, [*missing, *moved])
            raise
    refused: list[tuple[Pending, Unstored, Loaded]] = []
    for entry, row in zip(missing, loaded, strict=True):
        state = entry.state
        if isinstance(state, Guarded):
            refusal = row.refusal or _find_refusal(context, entry.lookup, state, row)
            if refusal is None:
                fill = _encode(context, entry, state, row)
                refusal = yield from _store_parts(context, fill)
                if refusal is None:
                    fills.append(fill)
                    continue
            wanted = _find_wanted(entry.lookup, state) if refusal is ReadOutcome.STRIPE_ABSENT else ()
            state = entry.state = state.stub.refuse(refusal, wanted)
        assert isinstance(state, Unstored)
        refused.append((entry, state, row))
    yield from _fill(context, fills)
    yield from _drop_stubs(context, [entry for entry, _, _ in refused])
    for entry, state, row in refused:
        outcome = ReadOutcome.BOUNDED if entry.is_bounded(row) else state.outcome
        entry.state = _answer(entry, outcome, row)
        if context.witness is not None:
            tell_refusal(context.witness, entry.lookup, outcome, row)


def _move(context: ReadContext, missing: Sequence[Pending], demand: Demand) -> Procedure[list[_Fill]]:
    """Live entries on the nodes that held these keys by the previous ring, as values that may be stored.

    An entry is the row at its own position ∪ the progress of a record that was read before it. It is fetched behind
    the guards of the present node, as rows are, so the rule decides over it as over a row at that position. The
    records of both nodes must follow the same primary.
    """
    wanted = [entry for entry in missing if entry.lookup.previous_node and isinstance(entry.state, Guarded)]
    if not wanted:
        return []
    sent_at = context.clock()
    nodes: dict[str, list[Pending]] = {}
    for entry in wanted:
        nodes.setdefault(entry.lookup.previous_node, []).append(entry)
    gets = record_gets(context.namespace, context.lineages)
    flows = [Flow(node, (*gets, *(Get(entry.lookup.item) for entry in of_node))) for node, of_node in nodes.items()]
    answers = yield Flows(tuple(flows))
    fills: list[_Fill] = []
    for (node, of_node), replies in zip(nodes.items(), answers, strict=True):
        age_max = max(context.node_refresh_seconds, FLOW_SECONDS_MAX)
        if isinstance(replies, FreshnessError) or context.clock() - sent_at > age_max:
            continue
        count = len(gets)
        view = NodeView(node, context.lineages, replies[:count], sent_at, context.previous_ring)
        context.sightings.note(node, view)
        for entry, item in zip(of_node, replies[count:], strict=True):
            if isinstance(item, Item) and (fill := _find_moved(context, entry, view, item, demand)):
                fills.append(fill)
    return fills


def _find_moved(context: ReadContext, entry: Pending, view: NodeView, item: Item, demand: Demand) -> _Fill | None:
    lookup, guarded = entry.lookup, entry.state
    policy = lookup.policy
    assert isinstance(guarded, Guarded)
    bound = demand.max_staleness_seconds
    if view.find_refusal(policy) is not None or (
        bound is not None and bound < view.staleness_seconds(policy, context.clock())
    ):
        return None
    refusal, payload = view.judge(policy, lookup.identity, item.value)
    if refusal is not None or not view.shows(policy, item.value, demand.at_least):
        return None
    stamps = {stamp.lineage: stamp for stamp in Filled.decode(item.value).stamps}
    tokens = {}
    for lineage in policy.lineages:
        held, record = view.records[lineage], guarded.records[lineage]
        if held is None or record is None or held.primary != record.primary:
            return None
        position = held.progress.union(stamps[lineage].position)
        tokens[lineage] = EventToken(lineage, lineage, held.epoch, 0, position, stamps[lineage].until)
    if find_fill_refusal(policy, context.ring, guarded.records, guarded.stripes, tokens) is not None:
        return None
    ttl_seconds = policy.spread_ttl(context.jitter())
    if item.ttl_seconds > 0:
        ttl_seconds = min(ttl_seconds, item.ttl_seconds)
    return _Fill(entry, guarded, Loaded(None, tokens), payload, ttl_seconds, is_moved=True)


def _answer(entry: Pending, outcome: ReadOutcome, row: Loaded) -> Read:
    return Read(outcome, None, row.value, row.tokens, entry.is_shown(row), row.servers)


_UNKNOWN: Final = frozenset(
    (ReadOutcome.NODE_DOWN, ReadOutcome.NO_RECORD, ReadOutcome.CLOSED, ReadOutcome.RING, ReadOutcome.CLOCK)
)
"""Outcomes of a node that cannot say what a row must show: it is not asked again."""


def _is_unknown(entry: Pending) -> bool:
    return isinstance(entry.state, Unstored) and entry.state.outcome in _UNKNOWN


def _fetch_guards(context: ReadContext, missing: Sequence[Pending]) -> Procedure[None]:
    """Step 2: the stripes of all keys of a node, then the records of these entries' lineages, in one flow.

    Each entry learns what its rows must show, and each stub becomes `Guarded`. Without an answer, or with one of
    another life, nothing is known: the entry is `Unstored` for that reason, whatever the previous one was.
    """
    if not missing:
        return
    sent_at = context.clock()
    asked = []
    flows = []
    for node, of_node in by_node(missing).items():
        lineages = lineages_of(of_node)
        observed = [_find_observed(context, entry) for entry in of_node]
        gets = [
            get
            for entry, records in zip(of_node, observed, strict=True)
            for get in _stripe_gets(context.namespace, entry.lookup, records)
        ]
        asked.append((node, of_node, observed, lineages, len(gets)))
        flows.append(Flow(node, (*gets, *record_gets(context.namespace, lineages))))
    answers = yield Flows(tuple(flows))
    for (node, of_node, observed, lineages, count), replies in zip(asked, answers, strict=True):
        if isinstance(replies, FreshnessError):
            for entry in of_node:
                entry.state = Unstored(ReadOutcome.NODE_DOWN)  # its stub cannot be deleted either
            continue
        view = NodeView(node, lineages, replies[count:], sent_at, context.ring)
        if set(lineages) == set(context.lineages):
            context.sightings.note(node, view)
            context.views[node] = view  # it holds as much as any other
        held = iter(replies)
        for entry, records in zip(of_node, observed, strict=True):
            stub, policy = entry.state, entry.lookup.policy
            found = dict(zip(policy.lineages, held, strict=False))
            if any(_life_of(records, lineage) != view.lives[lineage] for lineage in policy.lineages):
                # The node has forgotten something since the stub was observed: CAS numbers may have begun again (F8)
                assert isinstance(stub, (Stub, Unstored))
                entry.state = stub.refuse(ReadOutcome.LIFE if records else ReadOutcome.NODE_DOWN)
                continue
            stripes = {lineage: _find_stripe(view, lineage, reply) for lineage, reply in found.items()}
            entry.required = find_required(policy, context.ring, view.records, stripes)
            if isinstance(stub, Stub):
                entry.state = Guarded(stub, stripes, view.records)


def _find_observed(context: ReadContext, entry: Pending) -> Mapping[str, NodeRecord | None]:
    """The records of step 1: those of the stub, or without one, the copies of this reader."""
    if isinstance(entry.state, Stub):
        return entry.state.records
    view = context.views.get(entry.lookup.node)
    return {} if view is None else view.records


def _stripe_gets(namespace: str, lookup: Lookup, records: Mapping[str, NodeRecord | None]) -> list[Request]:
    """One for each lineage. How many stripes there are does not change in a life, so the records of step 1 know."""
    item = lookup.item
    gets: list[Request] = []
    for lineage in lookup.policy.lineages:
        record = records.get(lineage)
        number = stripe_number(item, record.stripes) if record is not None and record.stripes else 0
        gets.append(Get(stripe_key(namespace, lineage, number)))
    return gets


def _life_of(records: Mapping[str, NodeRecord | None], lineage: str) -> bytes | None:
    record = records.get(lineage)
    return None if record is None else record.life


def _find_stripe(view: NodeView, lineage: str, reply: Reply) -> Stripe | None:
    record = view.records[lineage]
    return find_stripe(reply.value, record.life) if record is not None and isinstance(reply, Item) else None


def _find_refusal(context: ReadContext, lookup: Lookup, guarded: Guarded, row: Loaded) -> ReadOutcome | None:
    if row.value is None and not lookup.is_exact:
        return ReadOutcome.KEY
    return find_fill_refusal(lookup.policy, context.ring, guarded.records, guarded.stripes, row.tokens)


def _find_wanted(lookup: Lookup, guarded: Guarded) -> list[tuple[str, int]]:
    return [
        (lineage, stripe_number(lookup.item, record.stripes))
        for lineage, record in guarded.records.items()
        if record is not None and record.stripes and guarded.stripes.get(lineage, record) is None
    ]


def _encode(context: ReadContext, entry: Pending, guarded: Guarded, row: Loaded) -> _Fill:
    payload = None if row.value is None else context.encode(row.value)
    ttl_seconds = entry.lookup.policy.spread_ttl(context.jitter())
    manifest = None
    if payload is not None and context.part_bytes < len(payload) <= context.value_bytes_max:
        manifest = Manifest.of(payload, context.part_bytes)
    return _Fill(entry, guarded, row, payload, ttl_seconds, manifest)


def _store_parts(context: ReadContext, fill: _Fill) -> Procedure[ReadOutcome | None]:
    """Before step 4: an entry must not be stored before its parts. Returns why it must not be stored."""
    payload = fill.payload
    if payload is None or len(payload) <= min(context.part_bytes, context.value_bytes_max):
        return None
    if fill.manifest is None:
        return ReadOutcome.TOO_LARGE
    node, stub_ttl_seconds = fill.entry.lookup.node, context.fill_lease_ttl_seconds
    return (
        yield from store_parts(context.namespace, node, fill.manifest, payload, fill.ttl_seconds, stub_ttl_seconds)
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
            stamps.append(Stamp(lineage, record.life, token.epoch, token.position, token.until))
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
            if fill.is_moved:
                fill.entry.state = Read(ReadOutcome.MOVED, fill.payload)
            else:
                fill.entry.state = _answer(fill.entry, outcome, row)
            if witness is not None:
                attempt = Attempt(fill.payload, cas, reply, sent_us)
                tell_fill(witness, lookup, outcome, fill.guarded.records, row.tokens, attempt)


def _stored(reply: object) -> ReadOutcome:
    if isinstance(reply, Stored):
        return ReadOutcome.FILLED
    return ReadOutcome.TOO_LARGE if isinstance(reply, Refused) else ReadOutcome.LOST_RACE


def _drop_stubs(context: ReadContext, entries: Sequence[Pending]) -> Procedure[None]:
    """Delete this reader's own stubs, so that the next reader need not wait. A stub that stays expires on its own.

    The same flow notes missing stripes, for the invalidator to put back first.
    """
    flows = []
    for node, of_node in by_node(entries).items():
        requests: list[Request] = [
            Delete(entry.lookup.item, stub) for entry in of_node if (stub := entry.own_stub) is not None
        ]
        wanted: dict[str, list[int]] = {}
        for entry in of_node:
            for lineage, number in entry.state.wanted if isinstance(entry.state, Unstored) else ():
                wanted.setdefault(lineage, []).append(number)
        requests += [
            Append(wanted_key(context.namespace, lineage), encode_wanted(numbers))
            for lineage, numbers in wanted.items()
        ]
        if requests:
            flows.append(Flow(node, tuple(requests)))
    if flows:
        yield Flows(tuple(flows))
