"""The short way of a read, for the most frequent one by far: a plain hit by a young copy of the node records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from freshness.algorithm.envelope import find_live_value
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.parts import fetch_parts
from freshness.algorithm.request import MISSING, NO_TOKENS, Finds, Flow, Flows, Item, Procedure
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.state import REFRESH_SHARE, Read, ReadContext, forgets_broken
from freshness.algorithm.view import NodeView
from freshness.errors import FreshnessError
from freshness.position.token import EventToken

_HIT: Final = ReadOutcome.HIT


def find_hit(
    context: ReadContext,
    lookup: Lookup,
    get: Callable[[bytes], bytes | None],
    at_least: Mapping[str, EventToken] = NO_TOKENS,
) -> Read | None:
    """The short way of `read_through` for a plain hit, the most frequent read by far. ``get`` reads an item of the
    lookup's node, or None. ``at_least``: see `Demand`. Returns the very hit that `read_through`
    would, or None: then that is to be run, since nothing was found out. Raises what ``get`` raises."""
    view = context.views.get(lookup.node)
    if view is None or context.witness is not None:
        return None
    refresh_seconds, fetched_at, clock = context.node_refresh_seconds, view.fetched_at, context.clock
    if clock() - fetched_at >= refresh_seconds * REFRESH_SHARE:
        return None
    policy = lookup.policy
    _, refused, beginning, _ = view.trust(policy)
    if refused is not None:
        return None
    if at_least and view.find_behind(policy, at_least):
        return None
    try:
        data = get(lookup.item)
    except BaseException:
        context.forget(lookup.node)
        raise
    if not data or clock() - fetched_at > refresh_seconds:
        return None
    value_at = find_live_value(data, beginning, lookup.identity)
    if value_at:
        return Read(_HIT, data[value_at:], None, NO_TOKENS)
    refusal, payload = view.judge(policy, lookup.identity, data)
    return Read(_HIT, payload, None, NO_TOKENS) if refusal is None else None


@forgets_broken
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
        policies = {lookups[place].policy.lineages: lookups[place].policy for place in places} if at_least else {}
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
        for place, data in zip(places, found, strict=True):
            lookup = lookups[place]
            if lookup.policy is not policy:
                policy = lookup.policy
                _, refused, beginning, _ = view.trust(policy)
            value = data.value if isinstance(data, Item) else data
            if refused is not None or not value or value is MISSING:
                continue
            value_at = find_live_value(value, beginning, lookup.identity)
            if value_at:
                hits[place] = Read(_HIT, value[value_at:], None, NO_TOKENS)
                continue
            refusal, payload = view.judge(policy, lookup.identity, value)
            if refusal is None:
                hits[place] = Read(_HIT, payload, None, NO_TOKENS)
            elif refusal is ReadOutcome.PARTS:
                assert payload is not None, "a manifest has a payload"
                parted.append((place, payload))
    if parted:
        wanted = [(lookups[place].node, manifest) for place, manifest in parted]
        values = yield from fetch_parts(context.namespace, wanted)
        for (place, _), whole in zip(parted, values, strict=True):
            if isinstance(whole, bytes):
                hits[place] = Read(_HIT, whole, None, NO_TOKENS)
    return hits
