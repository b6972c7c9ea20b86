"""Removes poisoned entries, after they were found.

The content of the node decides: the entry that was condemned is there, and is removed by CAS, or it is gone, as was
wanted. So a task that is started again, or twice at once, says the same, and removes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from freshness.algorithm.envelope import encode_wanted, stripe_key, stripe_number, wanted_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Append, Delete, Item, Request
from freshness.comparison.entry import digest_bytes, read_items
from freshness.comparison.scope import ComparisonScope
from freshness.errors import FreshnessError

_STAYS: Final = "was written again while it was removed: run the job again"
_NOBODY_VOUCHES: Final = "the node has no record, so the stripe is not known: see `invalidator status`"


@dataclass(frozen=True, slots=True)
class Condemned:
    """A row of `spark.live.job.CONDEMNED`: an entry to remove, as it was when it was found poisoned."""

    node: str
    item: bytes
    entry_digest: str
    lineages: Sequence[str]


@dataclass(frozen=True, slots=True)
class Repair:
    """A row of `spark.live.job.REPAIR`. ``is_gone``: the condemned entry is not there. ``error``: why it still is."""

    node: str
    is_gone: bool
    error: str = ""


def repair(scope: ComparisonScope, find_node: Callable[[str], CacheNode], condemned: Condemned) -> Repair:
    """Delete the entry's stripes, so that nothing older than now can be stored there, and then the entry by CAS: an
    entry that replaced it stays."""
    try:
        error = _remove(scope, find_node(condemned.node), condemned)
    except FreshnessError as failure:
        error = str(failure)
    return Repair(condemned.node, not error, error)


def _remove(scope: ComparisonScope, node: CacheNode, condemned: Condemned) -> str:
    """Why the entry is still there, "" if it is gone."""
    item = condemned.item
    records, [held] = read_items(scope, node, [item])
    if not isinstance(held, Item) or digest_bytes(held.value) != condemned.entry_digest:
        return ""
    stripes: list[Request] = []
    wanted: list[Request] = []
    for lineage in condemned.lineages:
        record = records[lineage]
        if record is None:
            return _NOBODY_VOUCHES
        number = stripe_number(item, record.stripes)
        stripes.append(Delete(stripe_key(scope.namespace, lineage, number)))
        wanted.append(Append(wanted_key(scope.namespace, lineage), encode_wanted([number])))
    node.perform([*stripes, Delete(item, held.version), *wanted])
    _, [now] = read_items(scope, node, [item])
    is_there = isinstance(now, Item) and digest_bytes(now.value) == condemned.entry_digest
    return _STAYS if is_there else ""
