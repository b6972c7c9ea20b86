"""Read several keys as one state of the database: the values of a moment that each shard has had (I11).

An entry is known to have all events of its key in the progress of its node, and none beyond the upper bound that its
reader has stored. So entries whose bounds the progress of each of their nodes contains are the rows at the least of
these progresses. The records are read in front of the entries, as ever. Progress soon passes the bound of a fresh
entry, so it is looked at again. Keys that remain in doubt are read in one snapshot of one server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from freshness.algorithm.lookup import Lookup
from freshness.algorithm.read import read_through
from freshness.algorithm.request import LATEST, Load, Procedure, Wait
from freshness.algorithm.rule import ReadOutcome, Span, are_of_one_state, find_required
from freshness.algorithm.state import Demand, Read, ReadContext
from freshness.algorithm.witness import tell_hit, tell_refusal
from freshness.position.token import EventToken, covers

WAITS_SECONDS: Final = 0.0, 0.002, 0.008
"""The waits before each look at the nodes: a batch is acknowledged some milliseconds after its commits."""

_SETTLING: Final = frozenset((ReadOutcome.FILLED, ReadOutcome.MOVED, ReadOutcome.LOST_RACE))
"""Ends of a read whose key can be a hit at the next look."""

_views: Final = count(1)
"""Numbers of the views that a witness records."""


def read_together(context: ReadContext, lookups: Sequence[Lookup], demand: Demand) -> Procedure[list[Read]]:
    """Answer every lookup, in order, all of one state of each lineage. ``demand`` asks for that. Raises what the
    loaders raise."""
    for wait_seconds in WAITS_SECONDS:
        if wait_seconds:
            yield Wait(wait_seconds)
        sent_us = 0 if context.witness is None else context.witness.now_us()
        reads = yield from read_through(context, lookups, demand)
        spans = [_spans_of(lookup, read) for lookup, read in zip(lookups, reads, strict=True)]
        if all(spans) and _are_together(spans):
            _tell(context, lookups, reads, sent_us)
            return reads
        if not all(held or read.outcome in _SETTLING for held, read in zip(spans, reads, strict=True)):
            break
    asked = tuple(replace(lookup, required=dict(_find_required(context, lookup))) for lookup in lookups)
    loaded = yield Load(asked, demand.at_least, is_together=True)
    if context.witness is not None:
        for lookup, one in zip(asked, loaded, strict=True):
            tell_refusal(context.witness, lookup, ReadOutcome.TOGETHER, one)
    return [
        Read(ReadOutcome.TOGETHER, None, one.value, one.tokens, _is_shown(lookup, one.tokens), one.servers)
        for lookup, one in zip(asked, loaded, strict=True)
    ]


def _tell(context: ReadContext, lookups: Sequence[Lookup], reads: Sequence[Read], sent_us: int) -> None:
    """Record a view. Looks in vain are not recorded: no caller has their values."""
    if (witness := context.witness) is None:
        return
    view = next(_views)
    for lookup, read in zip(lookups, reads, strict=True):
        assert read.item is not None, "a hit has its entry"
        tell_hit(witness, lookup, read.outcome, read.item, read.payload, sent_us, view)


def _spans_of(lookup: Lookup, read: Read) -> Mapping[str, Span]:
    """The spans of a hit, by lineage; empty if one of them is not known."""
    spans = read.spans or {}
    return spans if read.outcome is ReadOutcome.HIT and len(spans) == len(lookup.policy.lineages) else {}


def _are_together(spans: Sequence[Mapping[str, Span]]) -> bool:
    lineages = {lineage for held in spans for lineage in held}
    return all(are_of_one_state([held[lineage] for held in spans if lineage in held]) for lineage in lineages)


def _find_required(context: ReadContext, lookup: Lookup) -> Iterator[tuple[str, EventToken]]:
    """All that the records of this read vouch for, in the place of stripes (I10)."""
    policy, view = lookup.policy, context.views.get(lookup.node)
    known = find_required(policy, context.ring, {} if view is None else view.records, {})
    for lineage in policy.lineages:
        if lineage in known:
            yield lineage, known[lineage]
        elif context.on_unknown == "primary":
            yield lineage, LATEST


def _is_shown(lookup: Lookup, tokens: Mapping[str, EventToken]) -> bool:
    return bool(lookup.required) and all(
        lineage in tokens and covers(tokens[lineage], required) for lineage, required in lookup.required.items()
    )
