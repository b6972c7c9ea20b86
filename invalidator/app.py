"""The invalidator as a process: the composition root. It alone knows the concrete classes.

What the process does is ``invalidator.loop``; here it gets its configuration, connections, clock and randomness.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from freshness.backend import CacheNode
from freshness.backends import open_node
from freshness.backends.database import Connection, connect, executed_position, translated
from freshness.backends.schema import find_cascades, load_registry
from freshness.config import Config, Keyspace, Shard
from freshness.driver import BlockingDriver, drive, running_clock
from freshness.envelope import LIFE_SIZE
from freshness.errors import ConfigError, FreshnessError
from freshness.membership import NodePolicy
from freshness.placement import Placement
from freshness.position import Position, empty_position
from freshness.registry import ObjectDefinition
from freshness.request import Head
from invalidator.binlog import BinlogSource
from invalidator.heartbeat import HeartbeatWriter
from invalidator.loop import LoopObserver, LoopStep, OpenStream, Poll, RaiseEpoch, run_loop
from invalidator.metrics import Metrics
from invalidator.preflight import check_database, require
from invalidator.pulse import Pulse
from invalidator.shard import KeyFinder, ShardInvalidator
from invalidator.source import Source, Transaction

log = logging.getLogger(__name__)

STOP_SEEN_SECONDS: Final = 0.1
"""How long a pause may last before it is seen that the process is to stop."""


class Primary:
    """Says where the primary of a shard is. One connection, opened when needed and again after an error."""

    def __init__(self, shard: Shard, flavor: str, read_epoch: Callable[[], int]) -> None:
        self._address = shard.primary
        self._flavor = flavor
        self._read_epoch = read_epoch
        self._connection: Connection | None = None

    def head(self) -> Head:
        """The epoch first: labelled with an older one, the position is doubted rather than trusted.

        Raises `SourceUnavailable` or `SourceUnsuitable`.
        """
        epoch = self._read_epoch()
        if self._connection is None:
            self._connection = connect(self._address)
        try:
            return Head(executed_position(self._connection, self._flavor), epoch)
        except FreshnessError:
            raise
        except Exception as error:
            self.close()
            raise translated(error, self._address, "reading the head") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@dataclass(slots=True)
class Invalidator:
    """One keyspace's invalidator. `run` returns when `stop` was called; anything it cannot handle it raises.

    What is public is for ``invalidator.http``, which reads it from another thread.
    """

    config: Config
    metrics: Metrics = field(default_factory=Metrics)
    last_error: str = ""
    is_streaming: bool = False
    shard: ShardInvalidator | None = None
    _is_stopping: bool = False

    def stop(self) -> None:
        """Finish the batch in hand and end. Safe in a signal handler."""
        self._is_stopping = True  # a plain flag: a lock could be the one that the interrupted thread holds

    def run(self) -> None:
        keyspace = self._get_keyspace()
        shard = keyspace.shards[0]
        registry = load_registry(self.config)
        tables = frozenset(table for definition in registry.values() for table in definition.columns_by_table)
        cascades = self._check(keyspace, shard, tables)
        instance = f"{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(4)}"
        heartbeats = HeartbeatWriter(
            shard.primary, keyspace.flavor, instance, self.config.stream.clock_error_seconds
        )
        heartbeats.prepare()
        # On a connection of its own: the heartbeats' one is in use by the thread of the pulse
        epochs = HeartbeatWriter(shard.primary, keyspace.flavor, f"{instance}.e", 0)
        primary = Primary(shard, keyspace.flavor, epochs.epoch)
        pulse = Pulse(
            heartbeats,
            self.config.stream.heartbeat_seconds,
            running_clock,
            self.metrics.heartbeat_failures.inc,
        )
        nodes = {name: open_node(self.config.cache.backend, name) for name in self.config.cache.nodes}
        driver = BlockingDriver(nodes, self._sleep, read_head=primary.head)
        source = BinlogSource(shard.primary, keyspace.flavor, tables, cascades=cascades)
        self.shard = self._create_shard(keyspace, shard, registry, instance, pulse)
        self.metrics.nodes_configured.set(len(nodes))
        pulse.start()
        try:
            if self.config.stream.start == "now":
                self.shard.end_lives()
            loop = run_loop(
                self.shard,
                transactions_max=self.config.stream.batch_transactions_max,
                is_stopping=lambda: self._is_stopping,
                observer=MetricsObserver(self, self.shard),
            )
            drive(loop, _answerer(driver, source, epochs))
        finally:
            source.close()
            pulse.stop()
            epochs.close()
            primary.close()
            _close_all(nodes)

    # -- set-up --------------------------------------------------------------------------------------------

    def _get_keyspace(self) -> Keyspace:
        if len(self.config.keyspaces) != 1:
            raise ConfigError(
                f"{self.config.path} has {len(self.config.keyspaces)} keyspaces",
                hint="this version invalidates one keyspace per process: give each a file of its own",
            )
        return next(iter(self.config.keyspaces.values()))

    def _check(
        self, keyspace: Keyspace, shard: Shard, tables: frozenset[str]
    ) -> Mapping[str, frozenset[str]]:
        """Refuse a primary that would lose invalidations. What foreign keys change, by table (F23)."""
        connection = connect(shard.primary)
        try:
            findings = check_database(connection, shard.primary, keyspace.flavor, tables)
            for finding in findings:
                log.log(logging.ERROR if finding.severity == "error" else logging.WARNING, "%s", finding)
            require(findings)
            return find_cascades(connection, shard.primary.database, tables)
        finally:
            connection.close()

    def _create_shard(
        self,
        keyspace: Keyspace,
        shard: Shard,
        registry: Mapping[str, ObjectDefinition],
        instance: str,
        pulse: Pulse,
    ) -> ShardInvalidator:
        cache = self.config.cache
        placement = Placement(cache.nodes, cache.namespace)
        policy = NodePolicy(
            namespace=cache.namespace,
            lineage=shard.lineage,
            ring=placement.ring_version,
            objects={name: definition.policy.fingerprint for name, definition in registry.items()},
            tombstone_ttl_seconds=cache.tombstone_ttl_seconds,
            lease_seconds=cache.lease_seconds,
            trail_seconds=cache.trail_seconds,
            heartbeat_age_max_seconds=cache.heartbeat_age_max_seconds,
            node_refresh_seconds=cache.node_refresh_seconds,
        )
        return ShardInvalidator.create(
            cache.nodes,
            policy,
            placement,
            KeyFinder(registry),
            instance=instance,
            clock=running_clock,
            nonce=lambda: secrets.token_bytes(LIFE_SIZE),
            find_heartbeat=pulse.find_begun,
            nothing=empty_position(keyspace.flavor),
        )

    def _sleep(self, seconds: float) -> None:
        until = running_clock() + seconds
        while not self._is_stopping and (left := until - running_clock()) > 0:
            time.sleep(min(left, STOP_SEEN_SECONDS))


class MetricsObserver(LoopObserver):
    """Turns what the loop tells into metrics."""

    def __init__(self, invalidator: Invalidator, shard: ShardInvalidator) -> None:
        self._invalidator = invalidator
        self._shard = shard
        self._metrics = invalidator.metrics

    def stream_opened(self, start: Position) -> None:
        self._invalidator.last_error = ""
        self._invalidator.is_streaming = True
        self._metrics.stream_open.set(1)
        self._metrics.reopened.inc()
        log.info("streaming from %s", start)

    def stream_closed(self) -> None:
        self._invalidator.is_streaming = False
        self._metrics.stream_open.set(0)

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None:
        now = running_clock()
        self._metrics.batch_seconds.observe(now - begun)
        self._metrics.transactions.inc(len(transactions))
        self._metrics.invalidations.inc(keys)
        for transaction in transactions:
            for beat in transaction.heartbeats:
                if beat.instance == self._shard.instance:
                    written_at = self._shard.find_heartbeat(beat.sequence)
                    if written_at is not None:
                        self._metrics.lag_seconds.observe(now - written_at)

    def nodes_joined(self, count: int) -> None:
        self._metrics.nodes_joined.set(count)

    def failed(self, error: FreshnessError) -> None:
        self._invalidator.last_error = str(error)


def _answerer(driver: BlockingDriver, source: Source, epochs: HeartbeatWriter) -> Callable[[LoopStep], Any]:
    """Answers the loop's own steps with the real source, and all others with the driver."""

    def answer(step: LoopStep) -> Any:
        match step:
            case Poll():
                return source.poll(step.timeout_seconds, step.transactions_max)
            case OpenStream():
                return source.open(step.start)
            case RaiseEpoch():
                return epochs.raise_epoch()
            case _:
                return driver.answer(step)

    return answer


def _close_all(nodes: Mapping[str, CacheNode]) -> None:
    for node in nodes.values():
        node.close()
