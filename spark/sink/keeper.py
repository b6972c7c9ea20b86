"""The keeper of the sink: the acknowledgers of all lineages in the driver's process, with real connections.

Between micro-batches a thread for each lineage keeps the leases. A lease is extended only on the strength of an own
heartbeat that came back through the stream (F71), so a job that stalls lets the nodes close.
``spark.sink.acknowledger`` joins nodes and acknowledges; here it gets its connections, clock and randomness, and a
lock, since the renewing thread uses it, too. A thread of `Restoration` puts missing stripes back, with connections of
its own. ``spark.sink.sink`` speaks to the keeper over loopback.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from freshness.algorithm.applier import RENEW_SECONDS, Permit, create_members
from freshness.algorithm.driver import BlockingDriver, running_clock
from freshness.algorithm.envelope import LIFE_SIZE
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Procedure
from freshness.config.config import Config
from freshness.config.keyspace import GtidFlavor, Shard
from freshness.database.heartbeat import HeartbeatWriter, new_instance
from freshness.database.primary import Primary
from freshness.database.pulse import Pulse
from freshness.database.schema import load_registry
from freshness.errors import StreamStopped
from freshness.nodes.open import open_node
from freshness.nodes.restoration import Restoration
from freshness.objects.nodepolicy import node_policy
from freshness.objects.registry import ObjectDefinition
from freshness.position import empty_position
from freshness.position.token import EventToken
from spark.sink.acknowledger import Acknowledger
from spark.sink.sender import Part, SinkPlan, Ticket

Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineageStatus:
    """``joined``, ``open``: numbers of nodes. ``heartbeat_age_seconds``: age of the latest own heartbeat that has
    come back; None before the first."""

    joined: int
    open: int
    heartbeat_age_seconds: float | None


@dataclass(slots=True)
class LineageKeeper:
    """All nodes of one lineage. Every method holds the lock: the renewing thread is the other user."""

    shard: str
    acknowledger: Acknowledger
    driver: BlockingDriver
    heartbeat_age_max_seconds: float
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> Permit:
        return self._run(self.acknowledger.begin)

    def commit(self, parts: Sequence[Part], permit: Permit) -> None:
        self._run(lambda: self.acknowledger.commit(parts, permit))

    def renew(self) -> None:
        """Keep the leases, as long as the own heartbeat is young."""
        self._run(self.acknowledger.renew)

    def finish(self) -> None:
        """Leave the resume copies up to date. The leases run out."""
        self._run(self.acknowledger.finish)

    def find_start(self) -> EventToken | None:
        """From where a stream must be opened so that no joined node misses an event."""
        with self._lock:
            start, lineage = self.acknowledger.start_position(), self.acknowledger.lineage
            return None if start is None else EventToken(lineage, self.shard, self.acknowledger.epoch, 0, start)

    @property
    def heartbeat_age_seconds(self) -> float | None:
        """Age of the latest own heartbeat that has come back; None before the first."""
        passed = self.acknowledger.passed
        return None if passed is None else running_clock() - passed.begun_at

    def read_status(self) -> LineageStatus:
        records = [member.record for member in self.acknowledger.joined]
        is_open = [record is not None and record.is_open for record in records]
        return LineageStatus(len(records), sum(is_open), self.heartbeat_age_seconds)

    def _run(self, start: Callable[[], Procedure[Result]]) -> Result:
        with self._lock:
            return self.driver.run(start())


class Keeper:
    """All lineages of a configuration. ``batches``, ``items``: numbers committed so far."""

    def __init__(self, config: Config, registry: Mapping[str, ObjectDefinition]) -> None:
        self.batches = 0
        self.items = 0
        self._config = config
        self._number = 0
        self._stopping = threading.Event()
        self._closers: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self.lineages: dict[str, LineageKeeper] = {}
        cache = config.cache
        self.plan = SinkPlan(
            cache.namespace,
            cache.access,
            cache.nodes,
            {
                shard.lineage: keyspace.gtid_flavor
                for keyspace in config.keyspaces.values()
                for shard in keyspace.serving_shards
            },
            {
                keyspace: {name: each for name, each in registry.items() if each.config.keyspace == keyspace}
                for keyspace in config.keyspaces
            },
            (cache.previous_nodes,) if cache.previous_nodes else (),
        )
        try:
            for keyspace in config.keyspaces.values():
                for shard in keyspace.serving_shards:
                    self.lineages[shard.lineage] = self._open(config, keyspace.gtid_flavor, shard, keyspace.name)
        except BaseException:
            self.close()
            raise

    def _open(self, config: Config, flavor: GtidFlavor, shard: Shard, keyspace: str) -> LineageKeeper:
        cache = config.cache
        instance = new_instance()
        writer = HeartbeatWriter(
            shard.writable,
            flavor,
            instance,
            config.stream.clock_error_seconds,
            namespace=cache.namespace,
            lineage=shard.lineage,
            topology=config.topology,
        )
        writer.prepare()
        epochs = HeartbeatWriter(shard.writable, flavor, f"{instance}.e", 0)
        primary = Primary(shard.writable, flavor, epochs.epoch)
        pulse = Pulse(writer, config.stream.heartbeat_seconds, running_clock, lambda: None)
        nodes: dict[str, CacheNode] = {name: open_node(cache.access, name) for name in cache.all_nodes}
        self._closers += [pulse.stop, epochs.close, primary.close, *(node.close for node in nodes.values())]
        policy = node_policy(cache, shard.lineage, self.plan.definitions[keyspace], topology=config.topology)
        acknowledger = Acknowledger(
            members=create_members(
                nodes, policy, running_clock, lambda: secrets.token_bytes(LIFE_SIZE), empty_position(flavor)
            ),
            instance=instance,
            clock=running_clock,
            find_heartbeat=pulse.find_begun,
            find_primary=pulse.find_primary,
            hurry=pulse.hurry,
            streamed=empty_position(flavor),
            is_sender=False,
            lineage=policy.lineage,
        )
        driver = BlockingDriver(
            nodes, time.sleep, read_head=primary.read_head, confirm_succession=lambda _: shard.lossless_failover
        )
        keeper = LineageKeeper(shard.name, acknowledger, driver, policy.heartbeat_age_max_seconds)

        restoration = Restoration(
            cache.access, cache.all_nodes, policy, acknowledger.read_stream, pulse.hurry, open_node
        )
        self._closers.insert(0, restoration.stop)
        pulse.start()
        restoration.start()
        thread = threading.Thread(target=self._renew, args=(keeper,), name=f"leases of {shard.lineage}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return keeper

    def _renew(self, keeper: LineageKeeper) -> None:
        while not self._stopping.wait(RENEW_SECONDS):
            keeper.renew()

    def begin(self) -> Ticket:
        """Leave to send one micro-batch. Raises `HistoryLost`, `SourceUnavailable`."""
        permits = {lineage: keeper.begin() for lineage, keeper in self.lineages.items()}
        self._number += 1
        return Ticket(self._number, permits)

    def commit(self, ticket: Ticket, parts: Sequence[Part]) -> None:
        """Acknowledge a micro-batch. Raises `StreamStopped`, and what `require_keys` raises."""
        self.require_keys({part.lineage for part in parts if part.raised})
        by_lineage: dict[str, list[Part]] = {}
        for part in parts:
            by_lineage.setdefault(part.lineage, []).append(part)
        for lineage, of_lineage in by_lineage.items():
            self.lineages[lineage].commit(of_lineage, ticket.permits[lineage])
        self.batches += 1
        self.items += sum(part.items for part in parts)

    def require_keys(self, lineages: Collection[str]) -> None:
        """Raise `StreamStopped` if keys are others on these shards than the executors know. Asked before a statement
        that may have altered them is acknowledged, and once the start of the stream is chosen, which leaves out all
        statements before.

        Raises `SourceUnavailable` and `SourceUnsuitable`.
        """
        for keyspace, known in self.plan.definitions.items():
            for shard in self._config.keyspaces[keyspace].serving_shards:
                if not known or shard.lineage not in lineages:
                    continue
                present = load_registry(self._config, [keyspace], shard.lineage, known)
                altered = [
                    name for name in known if present[name].policy.fingerprint != known[name].policy.fingerprint
                ]
                if altered:
                    raise StreamStopped(
                        f"the key columns of {', '.join(altered)} were altered on {shard.lineage}",
                        hint="start the job again: it reads them when it starts, and nothing is lost",
                    )

    def find_starts(self) -> list[EventToken]:
        """Where to open the stream for all joined nodes, of the lineages that have any."""
        found = [keeper.find_start() for keeper in self.lineages.values()]
        return [token for token in found if token is not None]

    def is_late(self) -> bool:
        """Whether nodes must close, as no own heartbeat that is young enough has come back."""
        return any(
            (age := keeper.heartbeat_age_seconds) is None or age > keeper.heartbeat_age_max_seconds
            for keeper in self.lineages.values()
        )

    def read_status(self) -> dict[str, LineageStatus]:
        """By lineage."""
        return {lineage: keeper.read_status() for lineage, keeper in self.lineages.items()}

    def describe(self) -> dict[str, Any]:
        acknowledgers = {lineage: keeper.acknowledger for lineage, keeper in self.lineages.items()}
        return {
            "batches": self.batches,
            "items": self.items,
            "lineages": {
                lineage: {
                    "position": str(acknowledger.streamed),
                    "joined": sorted(member.node for member in acknowledger.joined),
                    "open": sorted(
                        member.node
                        for member in acknowledger.joined
                        if member.record is not None and member.record.is_open
                    ),
                }
                for lineage, acknowledger in acknowledgers.items()
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
