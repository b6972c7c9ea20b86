"""Read several keys as one state of the database: the values of a moment that each shard has had (I11).

An entry is known to have all events of its key in the progress of its node, and none beyond the upper bound that its
reader has stored. So entries whose bounds the progress of each of their nodes contains are the rows at the least of
these progresses. The records are read in front of the entries, as ever. Progress soon passes the bound of a fresh
entry, so it is looked at again. Keys that remain in doubt are read in one snapshot of one server.

A caller may read on: what it was given holds as long as later entries are of the same state. If one is not, all are
read again. A state that shows the earlier values as they were given is one of all values.
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
from freshness.algorithm.state import Demand, Read, ReadContext, ServedState, ServedValue
from freshness.algorithm.witness import tell_hit, tell_refusal
from freshness.errors import FormatError, StateChanged
from freshness.position.token import EventToken, covers

WAITS_SECONDS: Final = 0.0, 0.002, 0.008
"""The waits before each look at the nodes: a batch is acknowledged some milliseconds after its commits."""

_SETTLING: Final = frozenset((ReadOutcome.FILLED, ReadOutcome.MOVED, ReadOutcome.LOST_RACE))
"""Ends of a read whose key can be a hit at the next look."""

_views: Final = count(1)
"""Numbers of the views that a witness records."""


def read_together(context: ReadContext, lookups: Sequence[Lookup], demand: Demand) -> Procedure[list[Read]]:
    """Answer every lookup, in order, all of one state of each lineage, which is also that of the answers that
    ``demand`` has been served before.

    If the entries do not prove it, all of these are read again together. Raises `StateChanged` if one of them is
    another value by then, and what the loaders raise.
    """
    served = demand.served
    assert served is not None, "the demand is to read together"
    lineages = {lineage for lookup in lookups for lineage in lookup.policy.lineages}
    earlier = [kept for kept in served.kept if not lineages.isdisjoint(kept.lookup.policy.lineages)]
    everything = (*(kept.lookup for kept in earlier), *lookups)
    asked: Sequence[Lookup] = lookups if all(kept.spans for kept in earlier) else everything
    for looks, wait_seconds in enumerate(WAITS_SECONDS, 1):
        if wait_seconds:
            yield Wait(wait_seconds)
        sent_us = 0 if context.witness is None else context.witness.now_us()
        reads = yield from read_through(context, asked, demand)
        spans = [_spans_of(context, lookup, read) for lookup, read in zip(asked, reads, strict=True)]
        beside = [] if asked is everything else [kept.spans for kept in earlier]
        if all(spans) and _are_together([*beside, *spans]):
            served.result = "one_look" if looks == 1 else "more_looks"
            answers = _serve(context, served, earlier, lookups, reads, spans)
            served.view = next(_views) if asked is everything else served.view or next(_views)
            _tell(context, asked, reads, sent_us, served)
            return answers
        if not all(held or read.outcome in _SETTLING for held, read in zip(spans, reads, strict=True)):
            break
        asked = everything
    wanted = tuple(replace(lookup, required=dict(_find_required(context, lookup))) for lookup in everything)
    loaded = yield Load(wanted, demand.at_least, is_together=True)
    if context.witness is not None:
        for lookup, one in zip(wanted, loaded, strict=True):
            tell_refusal(context.witness, lookup, ReadOutcome.TOGETHER, one)
    reads = [
        Read(ReadOutcome.TOGETHER, None, one.value, one.tokens, _is_shown(lookup, one.tokens), one.servers)
        for lookup, one in zip(wanted, loaded, strict=True)
    ]
    served.result, served.view = "snapshot", 0
    return _serve(context, served, earlier, lookups, reads, [{}] * len(reads))


def _tell(
    context: ReadContext, lookups: Sequence[Lookup], reads: Sequence[Read], sent_us: int, served: ServedState
) -> None:
    """Record a view. Looks in vain are not recorded: no caller has their values."""
    for lookup, read in zip(lookups, reads, strict=True):
        if context.witness is not None and read.item is not None:
            tell_hit(context.witness, lookup, read.outcome, read.item, read.payload, sent_us, served.view)


def _serve(
    context: ReadContext,
    served: ServedState,
    earlier: Sequence[ServedValue],
    lookups: Sequence[Lookup],
    reads: Sequence[Read],
    spans: Sequence[Mapping[str, Span]],
) -> list[Read]:
    """Keep the answers to these lookups, which are the last ``reads``. The ``earlier`` ones, if they were read again,
    are in front."""
    payloads = [context.encode(read.value) if read.value is not None else read.payload for read in reads]
    count = len(reads) - len(lookups)
    for kept, payload, its in zip(earlier[:count], payloads, spans, strict=False):
        if payload != kept.payload and _spell(context, payload) != _spell(context, kept.payload):
            raise StateChanged(
                f"object {kept.lookup.policy.name} of key {kept.lookup.values} has changed since it was read, so "
                f"{lookups[0].policy.name} of key {lookups[0].values} is not of one state with it",
                hint="run the block again; objects whose keys are known at its start never fail in one get_all",
            )
        kept.spans = its
    served.kept += map(ServedValue, lookups, payloads[count:], spans[count:])
    return list(reads[count:])


def _spell(context: ReadContext, payload: bytes | None) -> bytes | None:
    """Equal spellings are equal values: other processes may compress."""
    return None if payload is None else context.encode(context.decode(payload))


def _spans_of(context: ReadContext, lookup: Lookup, read: Read) -> Mapping[str, Span]:
    """The spans of a hit, by lineage; empty if one of them is not known, or the value cannot be decoded."""
    spans = read.spans or {}
    if read.outcome is not ReadOutcome.HIT or len(spans) != len(lookup.policy.lineages):
        return {}
    try:
        if read.payload is not None:
            context.decode(read.payload)
    except FormatError:
        return {}
    return spans


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
