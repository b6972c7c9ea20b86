"""The invalidation of one shard, with real connections: its life. One thread runs it.

Its steps are ``invalidator.loop.loop``; here the loop gets its connections and clock. It knows nothing
of other shards: containment needs no order between them, so none ever waits for another. Made by
``invalidator.process.app``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, Final, Literal, TypeAlias

from freshness.algorithm.applier import RENEW_SECONDS
from freshness.algorithm.driver import BlockingDriver, drive, running_clock
from freshness.algorithm.envelope import find_record, record_key, resume_key
from freshness.algorithm.request import Get, ReadHead, Wait
from freshness.algorithm.witness import Witness
from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.database.connection import connected
from freshness.database.foreignkey import Cascades, find_cascades
from freshness.database.heartbeat import HeartbeatWriter, new_instance
from freshness.database.primary import Primary
from freshness.database.pulse import Pulse
from freshness.errors import FreshnessError, MembershipLost, NodeUnavailable, SourceUnavailable, SourceUnsuitable
from freshness.nodes.open import open_node
from freshness.nodes.restoration import Restoration
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, empty_position
from freshness.stream.source import Heartbeat, Source, Transaction
from invalidator.binlog.seek import TimeIndex
from invalidator.binlog.source import READ_TIMEOUT_SECONDS
from invalidator.loop.loop import LoopObserver, LoopStep, OpenStream, Poll, RaiseEpoch, run_loop
from invalidator.loop.shard import ShardInvalidator
from invalidator.process.assignment import Assignment
from invalidator.process.metrics import ShardMetrics
from invalidator.process.recent import RecentWork
from invalidator.replica.promotion import PromotionWatch
from invalidator.replica.source import ReplicaSource
from invalidator.rules.finding import require
from invalidator.rules.primary import check_shard
from invalidator.stream.open import search_log

log = logging.getLogger(__name__)

LEVELS: Final = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
"""Levels of the log, by severity of a finding."""

HEARTBEAT_MISSING_SECONDS: Final = 15.0
"""How long heartbeats are written without one that comes back, before it is said."""

ShardState: TypeAlias = Literal["streaming", "connecting", "waiting", "stopped"]
"""``waiting``: its database was not there at the start, and it is started again."""

NodeState: TypeAlias = Literal["open", "closed", "lapsed", "not joined"]
"""The state of a node for one shard. ``lapsed``: its lease has run out."""

ReadRegistry: TypeAlias = Callable[[Mapping[str, ObjectDefinition], Set[str]], Mapping[str, ObjectDefinition]]

SHOWN_SECONDS: Final = 1.0
"""Less than a lease has left. A primary never shows a domain that it knows from a previous source alone (F113)."""

STOP_SEEN_SECONDS: Final = 0.1
"""How long a pause may last before it is seen that the worker is to stop."""


@dataclass(slots=True)
class ShardWorker:
    """`run` returns when `stop` was called; anything it cannot handle it raises.

    The public fields are for the HTTP service, which reads them from another thread. ``failure``: the last one that
    is not known to be over; "" if there is none. ``ended_by``: the error that ended it. ``recent``: its work of the
    last minutes. ``times``: received positions by time, for consumers that begin at a time. ``read_registry``: reads
    the schema of objects with these tables, and gets the objects as they were before. ``since_us``: time (µs since
    1970) from which on every node is sent everything again. ``created_at``: by `running_clock`. ``steps``: number of
    those that its loop has taken. ``errant``: see `PromotionWatch`; it outlasts a restart.
    """

    assignment: Assignment
    metrics: ShardMetrics
    witness: Witness | None = None
    failure: BaseException | str = ""
    ended_by: BaseException | None = None
    is_streaming: bool = False
    invalidator: ShardInvalidator | None = None
    restoration: Restoration | None = None
    read_registry: ReadRegistry = lambda previous, _: previous
    has_streamed: bool = False
    since_us: int | None = None
    times: TimeIndex = field(init=False)
    recent: RecentWork = field(default_factory=RecentWork)
    created_at: float = field(default_factory=running_clock)
    steps: int = 0
    errant: dict[str, str] = field(default_factory=dict)
    _source: Source | None = field(default=None, init=False)
    _is_stopping: bool = field(default=False, init=False)
    _left_for: FreshnessError | None = field(default=None, init=False)
    _shut_out_by: list[MembershipLost] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.times = TimeIndex(clock_error_seconds=self.assignment.stream.clock_error_seconds)
        # Computed at each scrape: a worker that hangs would not report it
        self.metrics.heartbeat_age_seconds.set_function(self._find_heartbeat_age)
        self.metrics.nodes_closed.set_function(self._count_closed)

    @property
    def last_error(self) -> str:
        """``failure`` as text, with its remedy."""
        return str(self.failure)

    @property
    def log_server(self) -> ServerAddress | VtgateAddress | None:
        """The server whose log is read; None if none is chosen yet."""
        shard = self.assignment.shard
        if isinstance(self._source, ReplicaSource):
            return self._source.serving
        return shard.vtgate or shard.primary

    @property
    def state(self) -> ShardState:
        if self.ended_by is not None:
            return "waiting" if self.is_waiting else "stopped"
        return "streaming" if self.is_streaming else "connecting"

    def find_node_state(self, node: str) -> NodeState:
        """As this worker knows it. Readers hit and fill while it is open."""
        members = self.invalidator.members if self.invalidator is not None else {}
        # The record is looked at once: the worker's own thread may replace it at any time
        record = members[node].record if node in members else None
        if record is None:
            return "not joined"
        if not record.is_open:
            return "closed"
        return "open" if members[node].lease_until > members[node].clock() else "lapsed"

    def _find_heartbeat_age(self) -> float:
        begun_at = self.recent.begun_at
        if not self.assignment.shard.serving:
            return nan
        return running_clock() - (self.created_at if begun_at is None else begun_at)

    def _count_closed(self) -> float:
        if not self.assignment.shard.serving:
            return 0
        return sum(self.find_node_state(node) != "open" for node in self.assignment.nodes)

    @property
    def is_waiting(self) -> bool:
        """Whether it found its database unavailable at its start, and is started again."""
        return isinstance(self.ended_by, SourceUnavailable)

    @property
    def has_repeated(self) -> bool:
        """Whether every node has been sent again what was to be."""
        return (
            self.invalidator is not None and self.invalidator.since is not None and not (self.invalidator.unrepeated)
        )

    def stop(self) -> None:
        """Finish the batch in hand and end."""
        self._is_stopping = True

    def run(self) -> None:
        shard = self.assignment.shard
        if not shard.adopt_promotions:
            self._work()
            return
        watch = PromotionWatch(shard, self.assignment.flavor, self._read_streamed, errant=self.errant)
        watch.require_primary(self._sleep)
        ending = threading.Event()
        watching = threading.Thread(
            target=watch.watch, args=(ending, self._leave), name=f"primary {shard.lineage}", daemon=True
        )
        watching.start()
        try:
            self._work()
        except FreshnessError as error:
            if self._left_for is not None:
                raise self._left_for from error
            raise
        finally:
            ending.set()
            watching.join()  # a look ends by its time-outs
        if self._left_for is not None:
            raise self._left_for

    def _leave(self, error: FreshnessError) -> None:
        """End with this error: the leases run out unless a worker follows that renews them."""
        log.error("%s", error)
        self.failure = error
        self._left_for, self._is_stopping = error, True

    def _read_streamed(self) -> Position:
        """Everything that was streamed; before anything was, what the nodes have acknowledged. A node that does not
        answer is asked when it joins."""
        if self.invalidator is not None and self.has_streamed:
            return self.invalidator.streamed
        task, streamed = self.assignment, empty_position(self.assignment.flavor)
        namespace, lineage = task.cache.namespace, task.shard.lineage
        for name in task.nodes:
            gets = [Get(key(namespace, lineage), is_bound=True) for key in (record_key, resume_key)]
            try:
                with closing(open_node(task.cache.access, name)) as node:
                    records = [find_record(reply, name) for reply in node.perform(gets)]
            except NodeUnavailable as error:
                log.warning("what %s has acknowledged is not known: %s", name, error)
            else:
                streamed = streamed.union_all(each.progress for each in records if each is not None)
        return streamed

    def _work(self) -> None:
        if self.assignment.registry is None:
            self.assignment = replace(self.assignment, registry=self.read_registry({}, frozenset()))
        while True:
            try:
                self._follow()
            except _KeysAltered as altered:
                log.warning(
                    "%s: the columns of keys were altered: objects begin again", self.assignment.shard.lineage
                )
                self.assignment = altered.assignment
            else:
                return

    def _require_keys(self, tables: Set[str], driver: BlockingDriver) -> None:
        """Raise `_KeysAltered` if one of these tables has other keys. Asked before a statement that may have altered
        them is acknowledged, and once the start of the stream is chosen, which leaves out all statements before.

        Keeps the leases: the schema of thousands of objects takes longer.

        Raises `SourceUnavailable` and `SourceUnsuitable`.
        """
        task = self.assignment
        if task.tables.isdisjoint(tables):
            return
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self.read_registry, task.definitions, tables)
            while not wait((reading,), RENEW_SECONDS).done:
                self.steps += 1
                if self.invalidator is not None:
                    driver.run(self.invalidator.renew())
        present = replace(task, registry=reading.result())
        if present.objects != task.objects:
            altered = (task.altered | task.objects.items()) - present.objects.items()
            raise _KeysAltered(replace(present, altered=altered))

    def _wait_shown(self, raising: Sequence[Transaction], driver: BlockingDriver) -> None:
        """Return when the primary shows these statements, or after `SHOWN_SECONDS`: a statement may be in its log
        before (F57), and its schema is the previous one then."""
        position = raising[0].position.union_all(each.position for each in raising[1:])
        until = running_clock() + SHOWN_SECONDS
        while not driver.answer(ReadHead()).position.contains(position) and running_clock() < until:
            driver.answer(Wait(STOP_SEEN_SECONDS))

    def _follow(self) -> None:
        self.steps = 0
        task = self.assignment
        shard, flavor = task.shard, task.flavor
        cascades = self._check()
        instance = new_instance()
        heartbeats = HeartbeatWriter(
            shard.writable,
            flavor,
            instance,
            task.stream.clock_error_seconds,
            namespace=task.cache.namespace,
            lineage=shard.lineage,
            topology=task.topology,
        )
        has_heartbeats = self._prepare(heartbeats)
        # On a connection of its own: the heartbeats' one is in use by the thread of the pulse
        epochs = HeartbeatWriter(shard.writable, flavor, f"{instance}.e", 0)
        primary = Primary(shard.writable, flavor, epochs.epoch)
        pulse = Pulse(heartbeats, task.stream.heartbeat_seconds, running_clock, self.metrics.heartbeat_failures.inc)
        nodes = {name: open_node(task.cache.access, name) for name in task.nodes}
        driver = BlockingDriver(
            nodes, self._sleep, read_head=primary.read_head, confirm_succession=task.confirm_succession
        )
        source = self._source = task.create_source(cascades, self.metrics.transactions_skipped.inc)
        self.invalidator = task.create_invalidator(instance, pulse, self.witness)
        self.restoration = task.create_restoration(self.invalidator, pulse)
        if has_heartbeats:  # without them no stripe can be put back
            pulse.start()
            self.restoration.start()
        try:
            if task.stream.start == "now":
                self.invalidator.end_lives()
            if self.since_us is not None:
                since = search_log(task.flavor, shard, self.since_us)
                log.info("shard %s: everything from %s on is sent again", shard.lineage, since)
                self.invalidator.repeat_since(since)
            loop = run_loop(
                self.invalidator,
                transactions_max=task.stream.batch_transactions_max,
                is_stopping=lambda: self._is_stopping,
                observer=MetricsObserver(self, self.invalidator, lambda: pulse.written_at),
            )
            drive(loop, self._make_answerer(driver, source, epochs))
        finally:
            source.close()
            self.restoration.stop()
            pulse.stop()
            epochs.close()
            primary.close()
            for node in nodes.values():
                node.close()

    def _make_answerer(
        self, driver: BlockingDriver, source: Source, epochs: HeartbeatWriter
    ) -> Callable[[LoopStep], Any]:
        """Answers the loop's own steps with the real source, and all others with the driver."""

        def answer(step: LoopStep) -> Any:
            self.steps += 1
            match step:
                case Poll():
                    transactions = source.poll(step.timeout_seconds, step.transactions_max)
                    raising = [
                        each for each in transactions if not self.assignment.tables.isdisjoint(each.raised_tables)
                    ]
                    if raising:
                        self._wait_shown(raising, driver)
                        self._require_keys(frozenset().union(*(each.raised_tables for each in raising)), driver)
                    return transactions
                case OpenStream():
                    source.open(step.start)
                    return self._require_keys(self.assignment.tables, driver)
                case RaiseEpoch():
                    return epochs.raise_epoch()
                case Wait() if self._is_shut_out():
                    self._require_keys(self.assignment.tables, driver)
            return driver.answer(step)

        return answer

    def _is_shut_out(self) -> bool:
        """Whether no node is joined, and since the last call one has refused. Another process may have seen a
        statement that altered keys, which this one does not come to without a node."""
        if self.invalidator is None or self.invalidator.joined:
            return False
        problems = [each for each in self.invalidator.problems.values() if isinstance(each, MembershipLost)]
        is_new, self._shut_out_by = problems != self._shut_out_by, problems
        return is_new and bool(problems)

    def _check(self) -> Cascades:
        """Refuse a primary that would lose invalidations. Returns the tables that foreign keys change, by table
        (F23)."""
        task = self.assignment
        primary = task.shard.writable
        with connected(primary, "checking it", read_timeout_seconds=READ_TIMEOUT_SECONDS) as connection:
            findings = check_shard(connection, task.shard, task.flavor, task.tables)
            for finding in findings:
                log.log(LEVELS[finding.severity], "%s", finding)
            require(findings)
            if task.shard.vtgate is not None:
                return {}  # refused above; other schemas' names are the tablet's own
            return find_cascades(connection, primary.database, task.tables)

    def _prepare(self, heartbeats: HeartbeatWriter) -> bool:
        """Whether heartbeats can be written. A previous source of a reshard is read-only, and needs none."""
        try:
            heartbeats.prepare()
        except SourceUnsuitable as error:
            if self.assignment.shard.serving:
                raise
            log.warning("shard %s is followed without heartbeats: %s", self.assignment.shard.lineage, error)
            return False
        return True

    def _sleep(self, seconds: float) -> None:
        until = running_clock() + seconds
        while not self._is_stopping and (left := until - running_clock()) > 0:
            time.sleep(min(left, STOP_SEEN_SECONDS))


class MetricsObserver(LoopObserver):
    """Turns the loop's reports into metrics. ``read_written_at``: returns when the last heartbeat was written."""

    def __init__(
        self, worker: ShardWorker, invalidator: ShardInvalidator, read_written_at: Callable[[], float]
    ) -> None:
        self._worker = worker
        self._invalidator = invalidator
        self._metrics = worker.metrics
        self._read_written_at = read_written_at
        self._own_at = self._applied_at = invalidator.clock()
        self._missing = ""
        self._restored = 0
        # MariaDB logs whole seconds.
        self._has_commit_times = worker.assignment.flavor == "mysql"

    def stream_opened(self, start: Position) -> None:
        self._worker.failure = self._missing
        if not self._missing:
            self._own_at = self._invalidator.clock()
        self._worker.is_streaming = self._worker.has_streamed = True
        self._metrics.stream_open.set(1)
        self._metrics.shard_waiting.set(0)
        self._metrics.stream_reopened.inc()
        log.info("streaming from %s of %s", start, self._worker.assignment.shard.lineage)

    def stream_closed(self) -> None:
        self._worker.is_streaming = False
        self._metrics.stream_open.set(0)

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None:
        now = running_clock()
        self._applied_at = self._invalidator.clock()
        self._worker.times.note(time.time_ns() // 1000, self._invalidator.streamed)
        self._metrics.batch_seconds.observe(now - begun)
        if self._has_commit_times and transactions[0].timestamp_us:
            # The first transaction alone: one sample for each would cost as much as invalidating it.
            lag_us = time.time_ns() // 1000 - transactions[0].timestamp_us
            self._metrics.commit_lag_seconds.observe(max(0, lag_us) / 1e6)
        self._metrics.transactions.inc(len(transactions))
        self._metrics.invalidations.inc(keys)
        self._worker.recent.note_batch(now, len(transactions), keys)
        for transaction in transactions:
            for beat in transaction.heartbeats:
                if beat.instance == self._invalidator.instance:
                    written_at = self._invalidator.find_heartbeat(beat.sequence)
                    if written_at is not None:
                        self._metrics.lag_seconds.observe(now - written_at)
                        self._note_recent(now, written_at, beat, transaction.timestamp_us)
                        self._note_own_heartbeat()

    def _note_recent(self, now: float, written_at: float, beat: Heartbeat, committed_us: int) -> None:
        recent = self._worker.recent
        recent.note_heartbeat(now, written_at)
        if committed_us:
            recent.note_clocks((beat.min_us + beat.max_us) // 2, committed_us, time.time_ns() // 1000)

    def nodes_joined(self, count: int) -> None:
        self._look_for_heartbeats()
        self._metrics.nodes_joined.set(count)
        if self._worker.restoration is not None:
            restorers = self._worker.restoration.restorers
            self._metrics.nodes_complete.set(sum(each.is_complete for each in restorers))
            restored = sum(each.restored for each in restorers)
            self._metrics.stripes_restored.inc(restored - self._restored)
            self._restored = restored

    def failed(self, error: FreshnessError) -> None:
        self._worker.failure = error

    def _note_own_heartbeat(self) -> None:
        self._own_at = self._invalidator.clock()
        if self._missing:
            log.info("heartbeats of %s come back again", self._worker.assignment.shard.lineage)
            self._missing = self._worker.failure = ""
            self._metrics.heartbeat_missing.set(0)

    def _look_for_heartbeats(self) -> None:
        """Say why the nodes stay closed where heartbeats are written and none comes back."""
        silent_seconds = self._read_written_at() - self._own_at
        if self._missing or silent_seconds < HEARTBEAT_MISSING_SECONDS:
            return
        is_behind = self._invalidator.clock() - self._applied_at < HEARTBEAT_MISSING_SECONDS
        cause = (
            "the stream is behind and catching up, or it is of another server"
            if is_behind
            else "is the stream of the server that heartbeats are written to (an address that moved)? Does its log"
            " leave out this database (binlog_do_db, binlog_ignore_db), or does the replica whose log is read?"
        )
        self._missing = (
            f"no own heartbeat has come back through the stream of {self._worker.assignment.shard.lineage} for"
            f" {silent_seconds:.0f} s, though they are written, so nodes stay closed: {cause}"
        )
        self._worker.failure = self._missing
        self._metrics.heartbeat_missing.set(1)
        log.error("%s", self._missing)


class _KeysAltered(Exception):
    """The objects are others now."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
