"""Invalidation of one shard: from transactions to acknowledged batches on all cache nodes.

Holds the memberships of the shard's nodes and the place in the stream. Every method that speaks to a node is a
procedure, so the application drives it with real nodes and the simulator with its own. It never waits for a node
that is down: that node leaves, and is joined again later; then the stream is opened again from what it has
acknowledged (`start_position`). What the other nodes have acknowledged by then is not sent to them twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, apply_batch, renew
from freshness.algorithm.gather import gather
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.request import Procedure
from freshness.algorithm.witness import Witness
from freshness.errors import FreshnessError
from freshness.keys.placement import Placement
from freshness.objects.keyfinder import KeyFinder
from freshness.position import Position, empty_position
from freshness.stream.source import Transaction

log = logging.getLogger(__name__)

REJOIN_MIN_SECONDS: Final = 0.2
REJOIN_MAX_SECONDS: Final = 5.0
"""A node that cannot be joined is tried again after a pause that doubles between these two."""

FindHeartbeat = Callable[[int], float | None]
"""Sequence number of an own heartbeat → when this process began to write it, by its clock."""


@dataclass(slots=True)
class _Rejoin:
    """When a node may be tried again."""

    at: float = float("-inf")
    pause_seconds: float = REJOIN_MIN_SECONDS


@dataclass(slots=True)
class ShardInvalidator:
    """See the module. ``streamed``: everything the open stream started from or has delivered."""

    members: Mapping[str, Membership]
    placement: Placement
    finder: KeyFinder
    instance: str
    clock: Callable[[], float]
    find_heartbeat: FindHeartbeat
    streamed: Position
    epoch: int = 0
    keys_total: int = 0
    _streamed_epoch: int = 0
    _rejoins: dict[str, _Rejoin] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    @classmethod
    def create(
        cls,
        nodes: Iterable[str],
        policy: NodePolicy,
        placement: Placement,
        finder: KeyFinder,
        *,
        instance: str,
        clock: Callable[[], float],
        nonce: Callable[[], bytes],
        find_heartbeat: FindHeartbeat,
        nothing: Position,
        witness: Witness | None = None,
    ) -> ShardInvalidator:
        members = {node: Membership(node, policy, clock, nonce, nothing, witness=witness) for node in nodes}
        return cls(members, placement, finder, instance, clock, find_heartbeat, nothing)

    # -- membership ----------------------------------------------------------------------------------------

    @property
    def joined(self) -> list[Membership]:
        return [member for member in self.members.values() if member.is_joined]

    def join_missing(self) -> Procedure[None]:
        """Join every node that is not joined and whose pause is over, those of `end_lives` under new lives."""
        now = self.clock()
        missing = [
            member
            for node, member in self.members.items()
            if not member.is_joined and self._rejoins.setdefault(node, _Rejoin()).at <= now
        ]
        if not missing:
            return
        results = yield from gather(
            [
                join(member, self.streamed, epoch=self._streamed_epoch, is_fresh=member.node in self._ended)
                for member in missing
            ]
        )
        for member, result in zip(missing, results, strict=True):
            if isinstance(result, FreshnessError):
                self._postpone(member.node, result)
            else:
                self._rejoins[member.node] = _Rejoin()
                self._ended.discard(member.node)
                record = member.joined_record()
                self.epoch = max(self.epoch, record.epoch)
                log.info(
                    "node %s joined: life %s, progress %s", member.node, record.life.hex(), record.progress
                )
                if not member.is_trailing:
                    log.warning(
                        "node %s: its floor stands at the head: %s", member.node, member.why_not_trailing
                    )

        for member in self.joined:
            if member.joined_record().epoch < self.epoch:
                member.leave()  # the epoch was raised; it begins a new life when it is joined next

    def start_position(self) -> Position | None:
        """From where the stream must be opened so that no joined node misses an event; None: no node is joined."""
        start: Position | None = None
        for member in self.joined:
            start = member.applied if start is None else start.intersection(member.applied)
        return start

    @property
    def needs_rewind(self) -> bool:
        """Whether a joined node has acknowledged less than has been streamed."""
        return any(not member.applied.contains(self.streamed) for member in self.joined)

    def leave_all(self) -> None:
        """End all memberships, so that the next join looks at every node anew."""
        for member in self.members.values():
            member.leave()

    def end_lives(self) -> None:
        """All nodes begin new lives when they are joined next: what they hold cannot be vouched for.

        What was streamed belongs to the former history and must not be in the new floors.
        """
        self.leave_all()
        self.streamed = empty_position(self.streamed.flavor)
        self._ended.update(self.members)

    def end_lives_behind(self) -> None:
        """The log that the nodes furthest behind would need is gone: those begin new lives, the others go on.

        Where all are equally far, all begin anew (F15).
        """
        top = self.streamed
        for member in self.joined:
            top = top.union(member.applied)
        behind = [member for member in self.joined if not member.applied.contains(top)] or self.joined
        for member in behind:
            log.error("node %s begins a new life: the log since %s is gone", member.node, member.applied)
            member.leave()
            self._ended.add(member.node)

    def finish(self) -> Procedure[None]:
        """Leave the resume copies up to date, so that the next start repeats nothing."""
        members = self.joined
        results = yield from gather([member.write_resume() for member in members])
        self._note_failures(members, results)

    def _postpone(self, node: str, error: FreshnessError) -> None:
        rejoin = self._rejoins.setdefault(node, _Rejoin())
        rejoin.at = self.clock() + rejoin.pause_seconds
        log.warning(
            "node %s is out: %s; next try in %.1f s. Its lease runs out, its progress stays.",
            node,
            error,
            rejoin.pause_seconds,
        )
        rejoin.pause_seconds = min(rejoin.pause_seconds * 2, REJOIN_MAX_SECONDS)

    # -- the stream ----------------------------------------------------------------------------------------

    def opened(self, start: Position) -> None:
        """The stream was opened at ``start``."""
        self.streamed, self._streamed_epoch = start, self.epoch

    def apply(self, transactions: Sequence[Transaction]) -> Procedure[None]:
        """Acknowledge the transactions on every joined node; a node that fails leaves."""
        before = self.streamed
        keys, raised = self._collect(transactions)
        self.streamed = before.union_all([transaction.position for transaction in transactions])
        heartbeat: HeartbeatSeen | None = None
        for transaction in transactions:
            if transaction.heartbeats:
                heartbeat = self._own_heartbeat(transaction) or heartbeat
        self.keys_total += len(keys)
        by_node = self._place(keys)
        members = self.joined
        results = yield from gather(
            [
                apply_batch(member, Batch(by_node[member.node], raised, before, self.streamed, heartbeat))
                for member in members
            ]
        )
        self._note_failures(members, results)
        if any(beat.epoch > self.epoch for transaction in transactions for beat in transaction.heartbeats):
            log.warning("the epoch was raised: history was lost; all nodes begin new lives")
            self.leave_all()

    def _collect(
        self, transactions: Sequence[Transaction]
    ) -> tuple[dict[bytes, Position], dict[str, Position]]:
        """For each cache item, and each table that is raised, the transactions that concern it."""
        keys: dict[bytes, Position] = {}
        raised: dict[str, Position] = {}
        for transaction in transactions:
            position = transaction.position
            items: Iterable[bytes] = transaction.items
            if transaction.changes or transaction.raised_tables:
                items, tables = self.finder.find(transaction)
                for table, reason in tables.items():
                    at = raised.get(table)
                    raised[table] = position if at is None else at.union(position)
                    log.warning("table %s is invalidated as a whole at %s: %s", table, position, reason)
            for item in items:
                held = keys.get(item)
                keys[item] = position if held is None or held is position else held.union(position)
        return keys, raised

    def _place(self, keys: dict[bytes, Position]) -> Mapping[str, Mapping[bytes, Position]]:
        """The keys of each node that this process looks after; other nodes have another process."""
        if len(self.placement.nodes) == 1:
            return dict.fromkeys(self.members, keys)
        by_node: dict[str, dict[bytes, Position]] = {node: {} for node in self.members}
        node_for = self.placement.node_for
        for item, position in keys.items():
            of_node = by_node.get(node_for(item))
            if of_node is not None:
                of_node[item] = position
        return by_node

    def renew(self) -> Procedure[None]:
        """Keep the leases of joined nodes while the stream is silent."""
        members = self.joined
        results = yield from gather([renew(member) for member in members])
        self._note_failures(members, results)

    def _note_failures(self, members: Sequence[Membership], results: Sequence[object]) -> None:
        for member, result in zip(members, results, strict=True):
            if isinstance(result, FreshnessError):
                self._postpone(member.node, result)

    def _own_heartbeat(self, transaction: Transaction) -> HeartbeatSeen | None:
        """This process's own heartbeat in a transaction; those of others say nothing about this stream (F71)."""
        for beat in transaction.heartbeats:
            if beat.instance == self.instance:
                written_at = self.find_heartbeat(beat.sequence)
                if written_at is not None:
                    return HeartbeatSeen(written_at, beat.min_us)
        return None
