"""One run of the demo: start the world, let writers and readers work, stop, judge.

Writers stop first. Readers go on until the replica has caught up and every strategy has acknowledged everything,
as readers do; after another second all keys are judged. An error in any thread, or a server that dies, ends the
run with that error.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pymysql

from appclient import Cache
from appclient.telemetry.observer import Observer, PrimaryResult, Vitals
from examples.demo.acknowledgement import ProgressLedger, StreamLedger, commit_position, track_gtids
from examples.demo.databases import Flavor
from examples.demo.interrupted import Interruptions
from examples.demo.measurement import Meter, ObjectKey, Write
from examples.demo.progress_watcher import parse_progress
from examples.demo.report import DemoResult, StrategyResult
from examples.demo.strategy import (
    DELETE_AFTER_WRITE,
    DELETE_FROM_STREAM,
    EVENT_TOKENS,
    GENERATION_FENCE,
    STRATEGIES,
    DeletingCache,
    DeletingWriter,
    FencedCache,
    FencedWriter,
    Strategy,
    TokenCache,
)
from examples.demo.stream_deleter import parse_report
from examples.demo.verdict import read_verdicts
from examples.demo.workload import OrderBook, Plan, Popularity, Writer, draw_requests, load_profile, repeat
from examples.demo.world import LINEAGE, NodeKind, World, open_world
from freshness.database.schema import load_registry
from freshness.keys.placement import Placement
from freshness.position import parse_position
from integration.servers import ServerFailed

if TYPE_CHECKING:
    from examples.demo.evidence import Witness

PLAIN: Final = tuple(name for name in STRATEGIES if name != EVENT_TOKENS)
TICK_SECONDS: Final = 0.25
GRACE_SECONDS: Final = 1.0
ACKNOWLEDGE_SECONDS_MAX: Final = 120.0
THREAD_SWITCH_SECONDS: Final = 0.001
"""The lags are measured in a process with many threads: at Python's usual 5 ms they would measure Python."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How it stands, for the live view. ``replica_lag_seconds``: None without a replica."""

    seconds_left: float
    phase: str
    replica_lag_seconds: float | None
    is_paused: bool
    meters: dict[str, Meter]


class View(Protocol):
    """Who shows a run while it goes on."""

    def say(self, text: str) -> None: ...

    def show(self, sample: Sample) -> None: ...


@dataclass(slots=True)
class Workers:
    """The threads of a run, each of which ends when its event is set."""

    pool: ThreadPoolExecutor
    stop_writing: threading.Event = field(default_factory=threading.Event)
    stop_reading: threading.Event = field(default_factory=threading.Event)
    stop_watching: threading.Event = field(default_factory=threading.Event)
    futures: list[Future[Any]] = field(default_factory=list)

    def start(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = self.pool.submit(work, *arguments)
        self.futures.append(future)
        return future

    def check(self) -> None:
        """Raise what has ended a thread."""
        for future in self.futures:
            if future.done():
                future.result()

    def stop(self) -> None:
        for event in (self.stop_writing, self.stop_reading, self.stop_watching):
            event.set()


@contextmanager
def _workers() -> Iterator[Workers]:
    with ThreadPoolExecutor(max_workers=32, thread_name_prefix="demo") as pool:
        workers = Workers(pool)
        try:
            yield workers
        finally:
            workers.stop()


def run_demo(flavor: Flavor, plan: Plan, view: View, kind: NodeKind, history: Path | None = None) -> DemoResult:
    """Run it. ``history``: a folder for what the audit reads, see ``examples.demo.evidence``.

    Raises `ServerFailed` with the end of a log if something died, or whatever ended a thread."""
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    with ExitStack() as stack:
        world = stack.enter_context(open_world(flavor, plan, view.say, kind, history))
        workers = stack.enter_context(_workers())
        try:
            return _Run(world, plan, view, workers).run()
        except Exception:
            time.sleep(TICK_SECONDS)  # a dying server is gone by then
            world.check()  # what broke the threads is the better explanation
            raise


class PrimaryReads(Observer):
    """Counts the misses that were read from the primary, since the replica lacked what they must show, and those
    that were above the bound."""

    def __init__(self) -> None:
        self.count = self.refusals = 0

    def observe(self, _: Vitals) -> Observer:
        return self

    def need_primary(self, result: PrimaryResult) -> None:
        self.count += result == "read"
        self.refusals += result == "bounded"


class _Run:
    def __init__(self, world: World, plan: Plan, view: View, workers: Workers) -> None:
        self._world, self._plan, self._view, self._workers = world, plan, view, workers
        self._meters = {name: Meter(name) for name in STRATEGIES}
        self._witnesses = _open_witnesses(world)
        self._ledger = StreamLedger(self._meters[DELETE_FROM_STREAM], self._witnesses.get(DELETE_FROM_STREAM))
        cache = world.config.cache
        namespace = cache.namespace
        self._progress = ProgressLedger(cache.nodes, world.databases.gtid_flavor, self._meters[EVENT_TOKENS])
        self._primary_reads = PrimaryReads()
        self._cache = Cache.open(world.config_path, telemetry=self._primary_reads)
        self._cache.loader("profile")(load_profile)
        self._registry = load_registry(world.config)
        self._placement = Placement(world.config.cache.nodes, namespace)
        self._is_paused = False
        self._replica_lags: list[float] = []

    def run(self) -> DemoResult:
        plan, workers = self._plan, self._workers
        world, stopping = self._world, workers.stop_watching
        deleted, progressed = self._ledger.reported, self._progress.reported
        workers.start(world.stream_deleter.receive, lambda line: deleted(*parse_report(line)), stopping)
        workers.start(world.progress_watcher.receive, lambda line: progressed(*parse_progress(line)), stopping)
        book = OrderBook()
        writers = [workers.start(self._write, number, book) for number in range(plan.writers)]
        readers = [workers.start(self._read, number) for number in range(plan.readers)]
        self._view.say(
            f"{plan.writers} writers, {plan.readers} readers, {plan.customers} customers, seed {plan.seed}"
        )
        self._work(time.monotonic() + plan.seconds)
        self._settle(writers)
        workers.stop_reading.set()
        touched: set[ObjectKey] = set()
        for future in [*writers, *readers]:
            touched |= future.result()
        self._wait(GRACE_SECONDS)
        interruptions = Interruptions.sum_up(reader.finish() for reader in self._world.interrupted)
        workers.stop_watching.set()
        self._view.say(f"comparing {len(touched)} keys with the primary, row by row")
        verdicts = read_verdicts(self._world, touched)
        self._finish_history()
        return DemoResult(
            flavor=self._world.databases.flavor,
            seconds=plan.seconds,
            seed=plan.seed,
            writes=self._meters[DELETE_AFTER_WRITE].writes_begun,
            replica_delay_seconds=self._world.databases.delay_seconds,
            pause_seconds=plan.pause_seconds,
            replica_lags_seconds=self._replica_lags,
            interruptions=interruptions,
            primary_reads=self._primary_reads.count,
            primary_refusals=self._primary_reads.refusals,
            lives={name: len(lives) for name, lives in self._progress.lives.items()},
            strategies={name: StrategyResult.of(meter, verdicts[name]) for name, meter in self._meters.items()},
        )

    # -- phases --------------------------------------------------------------------------------------------

    def _work(self, ends_at: float) -> None:
        """The applier stands still for a while in the middle, as it does behind a large transaction."""
        middle = ends_at - self._plan.seconds / 2
        is_resumed = False
        try:
            while (now := time.monotonic()) < ends_at:
                if not self._is_paused and not is_resumed and now >= middle:
                    self._world.databases.pause_applier()
                    self._is_paused = True
                elif self._is_paused and now >= middle + self._plan.pause_seconds:
                    self._world.databases.resume_applier()
                    self._is_paused, is_resumed = False, True
                self._tick(ends_at - now, "working")
        finally:
            if self._is_paused:
                self._world.databases.resume_applier()
                self._is_paused = False

    def _settle(self, writers: list[Future[Any]]) -> None:
        self._workers.stop_writing.set()
        for writer in writers:
            writer.result()
        replica = "the replica and for " if self._plan.has_replica else ""
        self._view.say(f"the writers have stopped; waiting for {replica}all acknowledgements")
        caught_up = self._workers.start(self._world.databases.wait_caught_up)  # it has a bound of its own
        while not caught_up.done():
            self._tick(0.0, "settling")
        caught_up.result()
        deadline = time.monotonic() + ACKNOWLEDGE_SECONDS_MAX
        while any(meter.unacknowledged for meter in self._meters.values()):
            if time.monotonic() > deadline:
                left = ", ".join(f"{name}: {meter.unacknowledged}" for name, meter in self._meters.items())
                raise ServerFailed(
                    f"not all invalidations were acknowledged within {ACKNOWLEDGE_SECONDS_MAX:.0f} s ({left}); "
                    f"the end of the invalidator's log:\n{self._world.invalidator.log_tail()}",
                    hint=f"the stream deleter's log ends with:\n{self._world.stream_deleter.log_tail()}",
                )
            self._tick(0.0, "settling")

    def _finish_history(self) -> None:
        for witness in self._witnesses.values():
            witness.recorder.close()
        self._cache.close()
        if self._world.archives:
            self._view.say("completing the archives")
            head = parse_position(self._world.databases.gtid_flavor, self._world.databases.primary.executed())
            for archive in self._world.archives.values():
                archive.finish(head, LINEAGE)
            self._world.invalidator.terminate()  # it completes its part of the history

    def _wait(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            self._tick(0.0, "settling")

    def _tick(self, seconds_left: float, phase: str) -> None:
        self._workers.check()
        self._world.check()
        lag = self._world.databases.replica_lag_seconds()
        if seconds_left and lag is not None:
            self._replica_lags.append(lag)
        self._view.show(Sample(seconds_left, phase, lag, self._is_paused, self._meters))
        time.sleep(TICK_SECONDS)

    # -- threads -------------------------------------------------------------------------------------------

    def _write(self, number: int, book: OrderBook) -> set[ObjectKey]:
        plan, world = self._plan, self._world
        touched: set[ObjectKey] = set()
        with ExitStack() as stack:
            connection = stack.enter_context(pymysql.connect(**_tracking(world)))
            track_gtids(connection, world.databases.flavor)
            deleting = [
                stack.enter_context(
                    closing(make(name, world.open_client(), self._meters[name], self._witnesses.get(name)))
                )
                for name, make in ((DELETE_AFTER_WRITE, DeletingWriter), (GENERATION_FENCE, FencedWriter))
            ]
            generator = random.Random(plan.seed * 1000 + number)
            writer = Writer(connection, book, Popularity(plan, plan.write_skew), generator)

            def work() -> None:
                write, cursor = writer.write()
                for meter in self._meters.values():
                    meter.begin()
                for each in deleting:  # first: nothing is to delay them
                    each.after_commit(write)
                deleting.reverse()  # nor is one always first
                self._ledger.committed(write)
                position = commit_position(connection, cursor, world.databases.flavor)
                self._progress.committed(write, position, self._nodes_of(write))
                for witness in self._witnesses.values():
                    witness.committed(write, position)
                touched.update(write.objects)

            repeat(plan.writes_per_second / plan.writers, self._workers.stop_writing.is_set, work)
        return touched

    def _nodes_of(self, write: Write) -> frozenset[str]:
        items = (self._registry[name].builder.build((number,)).item for name, number in write.objects)
        return frozenset(self._placement.node_for(item) for item in items)

    def _read(self, number: int) -> set[ObjectKey]:
        plan, world = self._plan, self._world
        touched: set[ObjectKey] = set()
        with ExitStack() as stack:
            replica = world.databases.reading()
            strategies: dict[str, Strategy] = {EVENT_TOKENS: TokenCache(self._cache)}
            for name in PLAIN:
                make = FencedCache if name == GENERATION_FENCE else DeletingCache
                strategies[name] = make(name, world.open_client(), replica, self._witnesses.get(name))
            for strategy in strategies.values():
                stack.enter_context(closing(strategy))
            generator = random.Random(plan.seed * 1000 + 500 + number)
            requests = draw_requests(plan, generator)
            order = list(STRATEGIES)

            def work() -> None:
                request = next(requests)
                generator.shuffle(order)  # nobody is always first
                for name in order:
                    expected = self._meters[name].expect(request)
                    answers = strategies[name].read(request)
                    self._meters[name].count(answers, expected)
                    if request.is_pair:
                        self._meters[name].count_pair(answers)
                touched.update(request.objects)

            repeat(plan.requests_per_second / plan.readers, self._workers.stop_reading.is_set, work)
        return touched


def _open_witnesses(world: World) -> dict[str, Witness]:
    """Witnesses of the strategies without a recording library; none if the run is not recorded."""
    if world.history is None:
        return {}
    from examples.demo.evidence import Witness
    from freshness.history.recorder import Recorder

    find_node = world.open_client().hasher.get_node
    return {
        name: Witness(
            name, world.databases.gtid_flavor, LINEAGE, Recorder(world.history / name / "history"), find_node
        )
        for name in PLAIN
    }


def _tracking(world: World) -> dict[str, Any]:
    from pymysql.constants import CLIENT

    return world.databases.writing() | {"client_flag": CLIENT.SESSION_TRACK}
