"""Removes poisoned entries, after they were found.

The content of the node decides: the entry that was condemned is there, and is removed by CAS, or it is gone, as was
wanted. So a repair that is done again, or twice at once, says the same, and removes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from freshness.algorithm.envelope import encode_wanted, stripe_key, stripe_number, wanted_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Append, Delete, Item, Request
from freshness.comparison.entry import NodeEntry, digest_bytes, read_items
from freshness.comparison.scope import ComparisonScope
from freshness.errors import FreshnessError

_STAYS: Final = "was written again while it was removed: run the prober again"
_NOBODY_VOUCHES: Final = "the node has no record, so the stripe is not known: see `invalidator status`"


def repair(scope: ComparisonScope, find_node: Callable[[str], CacheNode], condemned: NodeEntry) -> str:
    """Delete the entry's stripes, so that nothing older than now can be stored there, and then the entry by CAS: an
    entry that replaced it stays. Why the condemned entry is still there, "" if it is gone."""
    try:
        return _remove(scope, find_node(condemned.node), condemned)
    except FreshnessError as failure:
        return str(failure)


def _remove(scope: ComparisonScope, node: CacheNode, condemned: NodeEntry) -> str:
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
