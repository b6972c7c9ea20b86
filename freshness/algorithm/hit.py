"""Step 1 of a read: get the node record, or use a young copy, and then the entry; leave a stub if there is none.

A live entry is a hit. Since the record was read before it, the entry has every event that the record's progress
names. So a caller that asks for its own commit gets a hit if the entry's position and that progress contain the
commit. The parts of a large value are read after its entry (``parts.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from freshness.algorithm.envelope import STUB, NodeRecord, resume_key
from freshness.algorithm.parts import fetch_parts
from freshness.algorithm.request import (
    MISSING,
    NO_TOKENS,
    Cas,
    Flow,
    Flows,
    Get,
    Item,
    Procedure,
    Replies,
    Request,
    Stored,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.state import (
    REFRESH_SHARE,
    Demand,
    Parted,
    Pending,
    Read,
    ReadContext,
    Stub,
    Unstored,
    by_node,
    lineages_of,
    record_gets,
    say_previous,
)
from freshness.algorithm.view import NodeView
from freshness.algorithm.witness import tell_hit
from freshness.config.cache import FLOW_SECONDS_MAX
from freshness.errors import FreshnessError
from freshness.position.token import EventToken

_REPLACEABLE: Final = frozenset((ReadOutcome.DEAD, ReadOutcome.TABLE_FLOOR, ReadOutcome.IDENTITY, ReadOutcome.PARTS))
"""Why an entry of ours is not a hit, and never will be for this key: a reader may take its place."""


_HIT: Final = ReadOutcome.HIT


def look_up(context: ReadContext, entries: Sequence[Pending], demand: Demand) -> Procedure[None]:
    """Step 1: each entry becomes a `Read` that is a hit, a `Stub`, or `Unstored`."""
    sent_at = context.clock()
    witness = context.witness
    sent_us = witness.now_us() if witness is not None else 0
    refresh_seconds = context.node_refresh_seconds
    asked: list[tuple[str, Sequence[Pending], NodeView | None]] = []
    flows = []
    for node, of_node in by_node(entries).items():
        view = known = context.views.get(node)
        requests = _entry_gets(context, view, of_node)
        if view is None or (
            sent_at - view.fetched_at >= refresh_seconds * REFRESH_SHARE
            or demand.is_together  # a copy is older than what was filled since
            or (demand.at_least and _is_behind(view, of_node, demand.at_least))
        ):
            view = None
            # In front: a record that is read behind an entry vouches for a later moment than the entry's
            requests = [
                *record_gets(context.namespace, context.lineages),
                *requests,
                *say_previous(context, node, known, sent_at),
            ]
        asked.append((node, of_node, view))
        flows.append(Flow(node, tuple(requests)))
    answers = yield Flows(tuple(flows))
    answered_at = context.clock()
    judged: list[tuple[str, Sequence[Pending], NodeView, Replies, list[tuple[Pending, Item]]]] = []
    for (node, of_node, view), replies in zip(asked, answers, strict=True):
        if isinstance(replies, FreshnessError):
            for entry in of_node:
                entry.state = Unstored(ReadOutcome.NODE_DOWN)
            continue
        age_max = refresh_seconds
        if view is None:
            count = len(context.lineages)
            view = context.views[node] = NodeView(node, context.lineages, replies[:count], sent_at, context.ring)
            context.sightings.note(node, view)
            replies, age_max = replies[count:], max(refresh_seconds, FLOW_SECONDS_MAX)
        if answered_at - view.fetched_at > age_max:
            # This process was paused (F58): the view's lease may have ended before the entry was read.
            context.views.pop(node, None)
            view = NodeView(node, context.lineages, [MISSING] * len(context.lineages), sent_at, context.ring)
        dead, stale = _judge(context, view, of_node, replies, demand)
        if stale:
            yield from _serve_stale(context, node, stale)
        judged.append((node, of_node, view, replies, dead))
    parted = [entry for entry in entries if isinstance(entry.state, Parted)]
    if parted:
        yield from _complete(context, parted)
    for node, of_node, view, replies, dead in judged:
        if demand.is_together:
            _note_spans(view, of_node, replies)  # `read_together` knows which of these hits it serves
        elif witness is not None:
            for entry, reply in zip(of_node, replies, strict=False):
                if isinstance(state := entry.state, Read) and isinstance(reply, Item):
                    tell_hit(witness, entry.lookup, state.outcome, reply, state.payload, sent_us)
        dead = [(entry, item) for entry, item in dead if _is_replaceable(entry)]
        if dead:
            yield from _claim(context, node, dead, view.records)


def _note_spans(view: NodeView, entries: Sequence[Pending], replies: Replies) -> None:
    for entry, reply in zip(entries, replies, strict=False):
        if isinstance(state := entry.state, Read) and isinstance(reply, Item):
            entry.state = replace(state, spans=view.find_spans(entry.lookup.policy, reply.value), item=reply)


def _is_replaceable(entry: Pending) -> bool:
    """False if its parts made it a hit after all, or the node did not answer."""
    return isinstance(entry.state, Unstored) and entry.state.outcome is not ReadOutcome.NODE_DOWN


def _entry_gets(context: ReadContext, view: NodeView | None, entries: Sequence[Pending]) -> list[Request]:
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
            is_refused = view.find_refusal(policy) is not None
            ttl_seconds = 0 if is_refused else context.fill_lease_ttl_seconds
        requests.append(Get(lookup.item, ttl_seconds))
    return requests


def _is_behind(view: NodeView, entries: Sequence[Pending], at_least: Mapping[str, EventToken]) -> bool:
    """Whether a copy of the records lacks commits that the caller asks for. The node's own may have them by now."""
    return any(view.find_behind(entry.lookup.policy, at_least) for entry in entries)


def _judge(
    context: ReadContext, view: NodeView, entries: Sequence[Pending], replies: Replies, demand: Demand
) -> tuple[list[tuple[Pending, Item]], list[tuple[Pending, Item]]]:
    """(entries that can never be a hit again, entries that ``on_stale = "serve"`` may still serve)."""
    at_least, max_staleness_seconds = demand.at_least, demand.max_staleness_seconds
    dead: list[tuple[Pending, Item]] = []
    stale: list[tuple[Pending, Item]] = []
    policy: ObjectPolicy | None = None
    closed: ReadOutcome | None = None
    for entry, reply in zip(entries, replies, strict=False):
        lookup = entry.lookup
        if lookup.policy is not policy:
            policy = lookup.policy
            closed = view.find_refusal(policy)
        if not isinstance(reply, Item):
            # Absent although a stub was asked for, or none was asked for since the node is closed
            entry.state = Unstored(closed or ReadOutcome.LOST_RACE)
        elif reply.value == STUB:
            stub = Stub(reply.version, reply.won, reply.lease, view.records)
            entry.state = stub if closed is None else stub.refuse(closed)
        elif closed is not None:
            entry.state = Unstored(closed)
            if context.on_stale == "serve" and demand.may_be_stale:
                stale.append((entry, reply))
        elif max_staleness_seconds is not None and max_staleness_seconds < view.staleness_seconds(
            policy, context.clock()
        ):
            entry.state = Unstored(ReadOutcome.STALE)  # older than this caller accepts
        else:
            refusal, payload = view.judge(policy, lookup.identity, reply.value)
            is_live = refusal is None or refusal is ReadOutcome.PARTS
            if is_live and at_least and not view.shows(policy, reply.value, at_least):
                refusal = ReadOutcome.BEHIND
            if refusal is None:
                entry.state = Read(_HIT, payload, None, NO_TOKENS)
                continue
            if refusal is ReadOutcome.PARTS and payload is not None:
                entry.state = Parted(_HIT, payload)
            else:
                entry.state = Unstored(refusal)  # until `_claim` has put a stub in its place
            if refusal in _REPLACEABLE:
                dead.append((entry, reply))
    return dead, stale


def _claim(
    context: ReadContext, node: str, dead: Sequence[tuple[Pending, Item]], records: Mapping[str, NodeRecord | None]
) -> Procedure[None]:
    """Put a stub in the place of entries that can never be a hit again. The reader that succeeds fills."""
    ttl = context.fill_lease_ttl_seconds
    requests = tuple(Cas(entry.lookup.item, STUB, item.version, ttl) for entry, item in dead)
    (replies,) = yield Flows((Flow(node, requests),))
    if isinstance(replies, FreshnessError):
        return
    for (entry, _), reply in zip(dead, replies, strict=True):
        if isinstance(reply, Stored):
            entry.state = Stub(reply.version, True, False, records)


def _serve_stale(context: ReadContext, node: str, stale: Sequence[tuple[Pending, Item]]) -> Procedure[None]:
    """``on_stale = "serve"``: hits of unknown age, if they are of the life that the node had last."""
    lineages = lineages_of([entry for entry, _ in stale])
    keys = tuple(Get(resume_key(context.namespace, lineage), is_bound=True) for lineage in lineages)
    (replies,) = yield Flows((Flow(node, keys),))
    if isinstance(replies, FreshnessError):
        return
    last = NodeView(node, lineages, replies, context.clock(), context.ring)
    for entry, item in stale:
        refusal, payload = last.judge(entry.lookup.policy, entry.lookup.identity, item.value)
        if refusal is None:
            entry.state = Read(ReadOutcome.STALE_SERVED, payload)
        elif refusal is ReadOutcome.PARTS and payload is not None:
            entry.state = Parted(ReadOutcome.STALE_SERVED, payload)


def _complete(context: ReadContext, parted: Sequence[Pending]) -> Procedure[None]:
    """Live entries whose value is in parts: each becomes a `Read`, or `Unstored` if the value is not whole."""
    states = [entry.state for entry in parted if isinstance(entry.state, Parted)]
    wanted = [(entry.lookup.node, state.manifest) for entry, state in zip(parted, states, strict=True)]
    values = yield from fetch_parts(context.namespace, wanted)
    for entry, state, whole in zip(parted, states, values, strict=True):
        if isinstance(whole, FreshnessError):
            entry.state = Unstored(ReadOutcome.NODE_DOWN)
        elif whole is None:
            entry.state = Unstored(ReadOutcome.PARTS)
        else:
            entry.state = Read(state.outcome, whole, None, NO_TOKENS)
