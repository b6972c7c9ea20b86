"""Invalidation of one shard: from transactions to acknowledged batches on all cache nodes.

The memberships and the place in the stream are ``freshness.algorithm.applier``; here the cache keys are collected
from the transactions, and sent. A node that was away is sent what it missed: the stream is opened again from what it
has acknowledged (`start_position`). Events that the other nodes have acknowledged by then are not sent to them twice,
unless an operator asks for it (`repeat_since`): the stream begins earlier then, and every node is sent all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from freshness.algorithm.applier import Applier
from freshness.algorithm.membership import Membership
from freshness.algorithm.refill import LoggedRow
from freshness.algorithm.request import Procedure
from freshness.keys.placement import Placement
from freshness.objects.keyfinder import KeyFinder
from freshness.position import Position
from freshness.stream.source import Transaction

log = logging.getLogger(__name__)

ROWS_AT_ONCE_MAX: Final = 1000
"""Rows between two looks at the lease, and the most rows of a transaction that is filled from the log."""

FindRows = Callable[[Transaction], Mapping[bytes, LoggedRow]]
"""A whole transaction → for each item whose row its images tell, the row after it."""


def no_rows(_: Transaction) -> Mapping[bytes, LoggedRow]:
    """No object is filled from the log."""
    return {}


@dataclass(slots=True, kw_only=True)
class ShardInvalidator(Applier):
    """See the module. ``keys_total``: number of keys sent so far. ``unrepeated``: the nodes that must still be sent
    again what they have acknowledged since ``since``. ``previous``: placements by which keys are sent, too."""

    placement: Placement
    previous: tuple[Placement, ...] = ()
    finder: KeyFinder
    find_rows: FindRows = no_rows
    keys_total: int = 0
    since: Position | None = None
    unrepeated: set[str] = field(default_factory=set)
    _repeating: dict[str, Position] = field(default_factory=dict)
    """Nodes that have been sent everything since the open stream began, and what they had acknowledged by then."""

    def repeat_since(self, position: Position) -> None:
        """Send every node again what comes after the position, even if it has acknowledged that. Progress stays."""
        self.since = position
        self.unrepeated = set(self.members)

    @property
    def is_repeating(self) -> bool:
        """Whether a joined node is still to be sent again what it has acknowledged."""
        return any(member.node in self.unrepeated for member in self.joined)

    def start_position(self) -> Position | None:
        start = Applier.start_position(self)
        if start is None or self.since is None or not self.is_repeating:
            return start
        return start.intersection(self.since)

    @property
    def needs_rewind(self) -> bool:
        missed = any(member.node in self.unrepeated and member.node not in self._repeating for member in self.joined)
        return missed or super(ShardInvalidator, self).needs_rewind

    def opened(self, start: Position) -> None:
        Applier.opened(self, start)
        self._repeating = {member.node: member.applied for member in self.joined if member.node in self.unrepeated}

    def find_before(self, member: Membership, before: Position) -> Position:
        # Nothing that the node has acknowledged counts as sent. A gap stays a gap.
        return before.union(member.applied) if member.node in self._repeating else before

    def _note_joined(self, member: Membership) -> None:
        Applier._note_joined(self, member)
        self._repeating.pop(member.node, None)  # it may have missed a batch

    def _note_repeated(self) -> None:
        for member in self.joined:
            end = self._repeating.get(member.node)
            if end is not None and self.streamed.contains(end):
                del self._repeating[member.node]
                self.unrepeated.discard(member.node)
                log.info("node %s was sent everything from %s to %s again", member.node, self.since, end)

    def apply(self, transactions: Sequence[Transaction]) -> Procedure[None]:
        """Acknowledge the transactions on every joined node; a node that fails leaves."""
        keys, raised, rows = yield from self._collect(transactions)
        streamed = self.streamed.union_all([transaction.position for transaction in transactions])
        beats = [beat for transaction in transactions for beat in transaction.heartbeats]
        self.keys_total += len(keys)
        yield from self.send(self._place(keys), raised, streamed, beats, rows)
        self._note_repeated()

    def _collect(
        self, transactions: Sequence[Transaction]
    ) -> Procedure[tuple[dict[bytes, Position], dict[str, Position], dict[bytes, LoggedRow]]]:
        """For each cache item, and each table that is raised, the transactions that concern it; and for the items
        whose rows the log holds, the row at the end of the batch. Keeps the leases."""
        keys: dict[bytes, Position] = {}
        raised: dict[str, Position] = {}
        rows: dict[bytes, LoggedRow] = {}
        looked_at = 0
        for transaction in chain.from_iterable(map(_divide, transactions)):
            looked_at += len(transaction.changes)
            if looked_at > ROWS_AT_ONCE_MAX:
                yield from self.renew()
                looked_at = len(transaction.changes)
            position = transaction.position
            items: Iterable[bytes] = transaction.items
            found: Mapping[bytes, LoggedRow] = {}
            if transaction.changes or transaction.raised_tables:
                items, tables = self.finder.find(transaction)
                found = self.find_rows(transaction) if transaction.is_last or transaction.raised_tables else {}
                for table, reason in tables.items():
                    at = raised.get(table)
                    raised[table] = position if at is None else at.union(position)
                    log.warning("table %s is invalidated as a whole at %s: %s", table, position, reason)
                if tables or not _is_whole(transaction):
                    rows, found = {}, {}  # rows may have changed that no image tells
            for item in items:
                if item in found:
                    rows[item] = found[item]
                else:
                    rows.pop(item, None)
                held = keys.get(item)
                keys[item] = position if held is None or held is position else held.union(position)
        return keys, raised, rows

    def _place(self, keys: dict[bytes, Position]) -> Mapping[str, Mapping[bytes, Position]]:
        """The keys of each node that this process looks after; other nodes have another process."""
        if len(self.placement.nodes) == 1 and not self.previous:
            return dict.fromkeys(self.members, keys)
        by_node: dict[str, dict[bytes, Position]] = {node: {} for node in self.members}
        for placement in (self.placement, *self.previous):
            node_for = placement.node_for
            for item, position in keys.items():
                of_node = by_node.get(node_for(item))
                if of_node is not None:
                    of_node[item] = position
        return by_node


def _divide(transaction: Transaction) -> Iterator[Transaction]:
    """Parts of a large transaction that is held as rows, which are not filled from the log."""
    changes, raised = transaction.changes, transaction.raised_tables
    if len(changes) <= ROWS_AT_ONCE_MAX:
        yield transaction
        return
    for first in range(0, len(changes), ROWS_AT_ONCE_MAX):
        part = changes[first : first + ROWS_AT_ONCE_MAX]
        yield transaction._replace(changes=part, raised_tables=frozenset() if first else raised, is_last=False)


def _is_whole(transaction: Transaction) -> bool:
    return transaction.is_last and transaction.first_row == 0 and not transaction.raised_tables
