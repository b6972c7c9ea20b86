"""The driver's part of the sink: the memberships in the cache nodes, which outlive the micro-batches.

Executors send tombstones; the keeper alone acknowledges. It joins the nodes before a micro-batch, publishes
progress after it, by the same procedures and the same CAS chain as the invalidator, and keeps the leases between
batches: a lease is extended only on the strength of an own heartbeat that came back through the stream (F71), so a
job that stalls lets the nodes close. A node that missed a batch, or whose progress the stream does not reach back
to, begins a new life.

Lives in the driver's process, with a thread for each lineage; ``spark.sink.sink`` speaks to it over loopback.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, acknowledge, renew
from freshness.algorithm.driver import BlockingDriver, running_clock
from freshness.algorithm.envelope import LIFE_SIZE
from freshness.algorithm.gather import gather
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Head
from freshness.config.settings import Config, GtidFlavor, Shard
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.primary import Primary
from freshness.database.pulse import Pulse
from freshness.errors import FreshnessError, HistoryLost, StreamStopped
from freshness.keys.placement import Placement
from freshness.nodes.open import open_node
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, empty_position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat
from spark.sink.tombstone import Part, SinkPlan, Ticket, join_ranges

RENEW_SECONDS: Final = 0.25
REJOIN_SECONDS: Final = 2.0
"""A node that could not be joined is tried again with a micro-batch after so long."""

HISTORY_CONFIRM_SECONDS: Final = 15.0
"""How long a primary may lack what a node has acknowledged before history counts as lost (F57)."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LineageKeeper:
    """All nodes of one lineage. Every method holds the lock: the renewing thread is the other user."""

    lineage: str
    shard: str
    members: Mapping[str, Membership]
    driver: BlockingDriver
    read_head: Callable[[], Head]
    find_heartbeat: Callable[[int], float | None]
    instance: str
    streamed: Position
    epoch: int = 0
    streamed_epoch: int = 0
    clock: Callable[[], float] = running_clock
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: set[str] = field(default_factory=set)
    _retry_at: dict[str, float] = field(default_factory=dict)

    @property
    def joined(self) -> list[Membership]:
        return [member for member in self.members.values() if member.is_joined]

    def begin(self) -> tuple[dict[str, int], dict[str, bytes], float]:
        """Join what can be joined: (epochs, tenures, now). Raises `HistoryLost` where the primary stays behind."""
        with self._lock:
            self._join_missing()
            records = {member.node: member.joined_record() for member in self.joined}
            epochs = {node: record.epoch for node, record in records.items()}
            return epochs, {node: record.tenure for node, record in records.items()}, self.clock()

    def find_start(self) -> EventToken | None:
        """From where a stream must be opened so that no joined node misses an event."""
        with self._lock:
            start: Position | None = None
            for member in self.joined:
                start = member.applied if start is None else start.intersection(member.applied)
            return None if start is None else EventToken(self.lineage, self.shard, self.epoch, 0, start)

    def commit(self, parts: Sequence[Part], tenures: Mapping[str, bytes], sent_at: float) -> None:
        """Acknowledge a micro-batch on every node that was joined throughout, and took all of it.

        Raises `StreamStopped` where the batch is not whole: then nothing is acknowledged.
        """
        before, streamed = _require_whole(self.lineage, parts)
        failed = {node: why for part in parts for node, why in part.failed.items()}
        raised = _join_raised(parts)
        beats = [beat for part in parts for beat in part.heartbeats.values()]
        with self._lock:
            # Of this batch's history alone: what was streamed before an epoch was raised is in no floor of today.
            self.streamed, self.streamed_epoch = streamed, self.epoch
            batch = Batch({}, raised, before, streamed, self._own_heartbeat(beats))
            ready = []
            for member in self.joined:
                why = failed.get(member.node) or self._find_gap(member, tenures, before)
                if why:
                    self._drop(member, why)
                else:
                    ready.append(member)
            results = self.driver.run(gather([acknowledge(member, batch, sent_at) for member in ready]))
            for member, result in zip(ready, results, strict=True):
                if isinstance(result, FreshnessError):
                    self._drop(member, str(result))
                elif not result:
                    self._drop(
                        member, "the micro-batch took longer than tombstones are safe: make it smaller"
                    )
            members = self.joined
            written = self.driver.run(gather([member.write_resume() for member in members]))
            self._note(members, written)
            if any(beat.epoch > self.epoch for beat in beats):
                log.warning("%s: the epoch was raised: all nodes begin new lives", self.lineage)
                for member in self.joined:
                    member.leave()

    def renew(self) -> None:
        """Keep the leases, as long as the own heartbeat is young."""
        with self._lock:
            members = self.joined
            self._note(members, self.driver.run(gather([renew(member) for member in members])))

    def finish(self) -> None:
        """Leave the resume copies up to date. The leases run out."""
        with self._lock:
            members = self.joined
            self._note(members, self.driver.run(gather([member.write_resume() for member in members])))

    def _join_missing(self) -> None:
        now = self.clock()
        missing = [
            member
            for node, member in self.members.items()
            if not member.is_joined and self._retry_at.get(node, float("-inf")) <= now
        ]
        if not missing:
            return
        procedures = [
            join(member, self.streamed, epoch=self.streamed_epoch, is_fresh=member.node in self._ended)
            for member in missing
        ]
        results = self.driver.run(gather(procedures))
        for member, result in zip(missing, results, strict=True):
            if isinstance(result, FreshnessError):
                self._postpone(member, str(result))
            elif not member.is_trailing:
                self._postpone(
                    member, f"not for a job on a cluster, its floor cannot trail: {member.why_not_trailing}"
                )
            else:
                self._ended.discard(member.node)
                self.epoch = max(self.epoch, member.joined_record().epoch)
                log.info("node %s joined %s at %s", member.node, self.lineage, member.applied)
        for member in self.joined:
            if member.joined_record().epoch < self.epoch:
                member.leave()  # the epoch was raised; it begins a new life when it is joined next
        self._check_history()

    def _check_history(self) -> None:
        """Wait until the primary shows all that any node has acknowledged (F57), for so long (F28)."""
        deadline = self.clock() + HISTORY_CONFIRM_SECONDS
        while behind := self._find_ahead():
            if self.clock() > deadline:
                raise HistoryLost(
                    f"{self.lineage}: the primary has never executed all that node {behind} acknowledged or demands",
                    hint="a failover lost transactions: let `invalidator run` raise the epoch, then start again",
                )
            self.driver.sleep(RENEW_SECONDS)
            members = self.joined
            self._note(members, self.driver.run(gather([renew(member) for member in members])))

    def _find_ahead(self) -> str:
        """A node that has acknowledged, or demands of a read, more than the primary shows; "" for none (ADR 0018)."""
        head = self.read_head() if self.joined else None
        for member in self.joined:
            record = member.joined_record()
            demanded = [record.floor, *record.table_floors.values()]
            demanded += (coverage.start for coverage in record.objects.values())
            wanted = member.applied.union_all(demanded)
            wanted = wanted if member.target is None else wanted.union(member.target)
            if head is not None and not head.position.contains(wanted):
                return member.node
        return ""

    def _find_gap(self, member: Membership, tenures: Mapping[str, bytes], before: Position) -> str:
        """Why the batch cannot be acknowledged; "" where it can."""
        if tenures.get(member.node) != member.joined_record().tenure:
            return "it was not joined all the while"
        if not member.is_trailing:
            return f"its floor cannot trail any more: {member.why_not_trailing}"
        if not member.applied.contains(before):
            return "the stream begins after what it has acknowledged"
        return ""

    def _drop(self, member: Membership, why: str) -> None:
        """It has missed a batch, which does not come again: the next life has the primary's head for its floor."""
        self._ended.add(member.node)
        self._postpone(member, why, pause_seconds=0)

    def _postpone(self, member: Membership, why: str, pause_seconds: float = REJOIN_SECONDS) -> None:
        member.leave()
        self._retry_at[member.node] = self.clock() + pause_seconds
        log.warning("node %s is out of %s: %s", member.node, self.lineage, why)

    def _note(self, members: Sequence[Membership], results: Sequence[object]) -> None:
        for member, result in zip(members, results, strict=True):
            if isinstance(result, FreshnessError):
                self._postpone(member, str(result), pause_seconds=0)

    def _own_heartbeat(self, beats: Sequence[Heartbeat]) -> HeartbeatSeen | None:
        seen: HeartbeatSeen | None = None
        for beat in sorted(beats, key=lambda beat: beat.sequence):
            written_at = self.find_heartbeat(beat.sequence) if beat.instance == self.instance else None
            if written_at is not None:
                seen = HeartbeatSeen(written_at, beat.min_us)
        return seen


def _require_whole(lineage: str, parts: Sequence[Part]) -> tuple[Position, Position]:
    """(everything before, everything with it). Every transaction after the begin must be there."""
    begun = [part for part in parts if part.before is not None]
    if not begun:
        raise StreamStopped(
            f"the micro-batch does not say where {lineage} begins",
            hint='hand on what readStream.format("updatestream") gives, all of its rows and columns',
        )
    first = min(begun, key=lambda part: part.first)
    ranges = join_ranges(found for part in parts for found in part.ordinals)
    if len(ranges) > 1 or (ranges and ranges[0][0] not in (first.first, first.first + 1)):
        raise StreamStopped(
            f"the micro-batch lacks transactions of {lineage}: it begins after {first.first} and has "
            f"{', '.join(f'{low} to {high}' for low, high in ranges[:5])}",
            hint="rows were filtered out on the way to the sink",
        )
    assert first.before is not None, "chosen among those that have it"
    streamed = first.before
    for part in parts:
        streamed = streamed if part.streamed is None else streamed.union(part.streamed)
    return first.before, streamed


def _join_raised(parts: Sequence[Part]) -> dict[str, Position]:
    raised: dict[str, Position] = {}
    for part in parts:
        for table, position in part.raised.items():
            held = raised.get(table)
            raised[table] = position if held is None else held.union(position)
            log.warning("table %s is invalidated as a whole at %s: %s", table, position, part.reasons[table])
    return raised


class Keeper:
    """All lineages of a configuration. ``batches``, ``items``: what was committed so far."""

    def __init__(self, config: Config, registry: Mapping[str, ObjectDefinition]) -> None:
        self.batches = 0
        self.items = 0
        self._number = 0
        self._stopping = threading.Event()
        self._closers: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self.lineages: dict[str, LineageKeeper] = {}
        cache = config.cache
        self.plan = SinkPlan(
            cache.namespace,
            cache.backend,
            cache.nodes,
            cache.tombstone_ttl_seconds,
            {
                shard.lineage: keyspace.gtid_flavor
                for keyspace in config.keyspaces.values()
                for shard in keyspace.serving_shards
            },
            {
                keyspace: {name: each for name, each in registry.items() if each.config.keyspace == keyspace}
                for keyspace in config.keyspaces
            },
        )
        try:
            for keyspace in config.keyspaces.values():
                for shard in keyspace.serving_shards:
                    self.lineages[shard.lineage] = self._open(
                        config, keyspace.gtid_flavor, shard, keyspace.name
                    )
        except BaseException:
            self.close()
            raise

    def _open(self, config: Config, flavor: GtidFlavor, shard: Shard, keyspace: str) -> LineageKeeper:
        cache = config.cache
        policy = NodePolicy(
            namespace=cache.namespace,
            lineage=shard.lineage,
            ring=Placement(cache.nodes, cache.namespace).ring_version,
            objects={name: each.policy.fingerprint for name, each in self.plan.definitions[keyspace].items()},
            tombstone_ttl_seconds=cache.tombstone_ttl_seconds,
            lease_seconds=cache.lease_seconds,
            trail_seconds=cache.trail_seconds,
            heartbeat_age_max_seconds=cache.heartbeat_age_max_seconds,
            node_refresh_seconds=cache.node_refresh_seconds,
        )
        instance = f"{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(4)}"
        writer = HeartbeatWriter(shard.writable, flavor, instance, config.stream.clock_error_seconds)
        writer.prepare()
        epochs = HeartbeatWriter(shard.writable, flavor, f"{instance}.e", 0)
        primary = Primary(shard.writable, flavor, epochs.epoch)
        pulse = Pulse(writer, config.stream.heartbeat_seconds, running_clock, lambda: None)
        nodes: dict[str, CacheNode] = {name: open_node(cache.backend, name) for name in cache.nodes}
        self._closers += [pulse.stop, epochs.close, primary.close, *(node.close for node in nodes.values())]

        nothing = empty_position(flavor)
        members = {
            name: Membership(name, policy, running_clock, lambda: secrets.token_bytes(LIFE_SIZE), nothing)
            for name in nodes
        }
        keeper = LineageKeeper(
            shard.lineage,
            shard.name,
            members,
            BlockingDriver(nodes, time.sleep, read_head=primary.read_head),
            primary.read_head,
            pulse.find_begun,
            instance,
            nothing,
        )
        pulse.start()
        thread = threading.Thread(
            target=self._renew, args=(keeper,), name=f"leases of {shard.lineage}", daemon=True
        )
        thread.start()
        self._threads.append(thread)
        return keeper

    def _renew(self, keeper: LineageKeeper) -> None:
        while not self._stopping.wait(RENEW_SECONDS):
            keeper.renew()

    def begin(self) -> Ticket:
        """Leave to send one micro-batch. Raises `HistoryLost`, `SourceUnavailable`."""
        begun = {lineage: keeper.begin() for lineage, keeper in self.lineages.items()}
        self._number += 1
        return Ticket(
            self._number,
            {lineage: epochs for lineage, (epochs, _, _) in begun.items()},
            {lineage: tenures for lineage, (_, tenures, _) in begun.items()},
            {lineage: at for lineage, (_, _, at) in begun.items()},
        )

    def commit(self, ticket: Ticket, parts: Sequence[Part]) -> None:
        """Acknowledge a micro-batch. Raises `StreamStopped`."""
        by_lineage: dict[str, list[Part]] = {}
        for part in parts:
            by_lineage.setdefault(part.lineage, []).append(part)
        for lineage, of_lineage in by_lineage.items():
            self.lineages[lineage].commit(of_lineage, ticket.tenures[lineage], ticket.at[lineage])
        self.batches += 1
        self.items += sum(part.items for part in parts)

    def find_starts(self) -> list[EventToken]:
        """Where to open the stream for all joined nodes, of the lineages that have any."""
        found = [keeper.find_start() for keeper in self.lineages.values()]
        return [token for token in found if token is not None]

    def describe(self) -> dict[str, Any]:
        """For display."""
        return {
            "batches": self.batches,
            "items": self.items,
            "lineages": {
                lineage: {
                    "position": str(keeper.streamed),
                    "joined": sorted(member.node for member in keeper.joined),
                    "open": sorted(
                        member.node
                        for member in keeper.joined
                        if member.record is not None and member.record.is_open
                    ),
                }
                for lineage, keeper in self.lineages.items()
            },
        }

    def close(self) -> None:
        """Leave the nodes as they are, with resume copies up to date."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=10)
        for keeper in self.lineages.values():
            keeper.finish()
        for close in self._closers:
            close()
