"""The invalidator as a process: a worker for each shard, started, watched, and exchanged when the configuration is
loaded again.

The shards go on independently: one that must stop (an event that cannot be handled, a history that is gone) says so
and is not ready, and the others keep their part of the cache fresh. One whose database is not there waits for it. The
process ends when it is stopped, or when no worker is left.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from freshness.algorithm.driver import running_clock
from freshness.config.config import Config, load_config
from freshness.config.server import ServerAddress
from freshness.database.schema import load_registry
from freshness.errors import ConfigError, FreshnessError, SourceUnavailable, SourceUnsuitable
from freshness.history.open import open_recorder
from freshness.objects.registry import ObjectDefinition
from invalidator.binlog.seek import TimeIndex
from invalidator.process.assignment import Assignment
from invalidator.process.metrics import Metrics
from invalidator.process.supervisor import Supervisor
from invalidator.process.worker import ShardWorker
from invalidator.replica.promotion import PrimaryMoved, with_primaries

if TYPE_CHECKING:
    from freshness.history.recorder import Recorder

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 0.1
"""How soon it is seen that a worker has ended, that the process is to stop, or that there is a new configuration."""

RESTART_SECONDS: Final = 5.0
RESTART_MAX_SECONDS: Final = 30.0
"""Pause before a worker that found its database unavailable at its start is started again: it doubles between these
two."""

WORKER_STOP_SECONDS: Final = 30.0
"""How long all workers together may take to finish the batches in hand."""

NEW_OBJECTS_MIN: Final = 50_000
"""Number of additional objects after which the young ones are scanned; some tens of megabytes at most."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Within this block Python seldom looks for cycles of garbage, in the whole process. Each transaction makes a
    handful of objects that wait for their batch: by default Python looks through them after every 700, and finds
    nothing, a quarter of the reader's time."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS_MIN, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(slots=True)
class _Running:
    """A worker in its thread. ``pause_seconds``: before it is started again, if its database is not there."""

    worker: ShardWorker
    pause_seconds: float
    is_reported: bool = False
    ended_at: float | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        name = self.worker.assignment.shard.lineage
        self.thread = threading.Thread(target=self._run, name=f"shard {name}", daemon=True)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - the thread that watches raises it, or logs it
            self.worker.ended_by = error
            self.worker.failure = error
        finally:
            self.ended_at = running_clock()


class Invalidator:
    """``shards``, ``nodes``: names of the shards and of the cache nodes that this process takes, all where empty.
    ``since_us``: a time (µs since 1970), from which on every node is sent everything again. `run` is for the main
    thread."""

    def __init__(
        self,
        config: Config,
        *,
        shards: Collection[str] = (),
        nodes: Collection[str] = (),
        since_us: int | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor({})
        self.config = config
        """With the primaries that were adopted."""
        self._given = config
        self._adopted: dict[str, ServerAddress] = {}
        self.metrics = Metrics()
        self._shards = frozenset(shards)
        self._nodes = frozenset(nodes)
        self._since_us = since_us
        self._repeated: set[str] = set()
        self._running: dict[str, _Running] = {}
        self._next: Config | None = None
        self._is_stopping = False
        self._recorder: Recorder | None = None

    @property
    def workers(self) -> list[ShardWorker]:
        """The workers that were started, ended ones included."""
        return [each.worker for each in list(self._running.values())]

    def find_times(self, lineage: str) -> TimeIndex | None:
        """The positions that the worker of a shard had received, by time; None if this process does not follow it."""
        running = self._running.get(lineage)
        return None if running is None else running.worker.times

    def stop(self) -> None:
        """Finish the batches in hand and end. Safe in a signal handler."""
        self._is_stopping = True  # a plain flag: a lock could be the one that the interrupted thread holds

    def reload(self, config: Config) -> None:
        """Go on with another configuration. Workers that it does not concern are left alone. Safe in any thread."""
        self._next = config

    def change_topology(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with other keyspaces until the process is started again.

        ``{"topology": NUMBER, "keyspaces": {...}}``, as the file has them, with a higher number than the present one.

        Raises `ConfigError` with all problems; then nothing changes.
        """
        if document.keys() != {"topology", "keyspaces"}:
            raise ConfigError(
                f"the topology has the keys {sorted(document)}",
                hint='expected {"topology": NUMBER, "keyspaces": {"NAME": {"flavor": ..., "shards": [...]}}}, as in '
                "freshness.toml",
            )
        config = load_config(self.config.path, instead=document)
        if config.topology <= self.config.topology:
            raise ConfigError(
                f"topology = {config.topology}, the present one is {self.config.topology}",
                hint="give a higher number, and write it into freshness.toml with the keyspaces: a process that is "
                "started again with a lower one is refused by the nodes",
            )
        self.reload(config)
        return {"topology": config.topology, "lineages": list(config.lineages)}

    def run(self) -> None:
        """Returns after `stop`. Raises `ConfigError`, and what ended the last worker; never waits for a database."""
        self._recorder = open_recorder(self.config, self.metrics.history_dropped.inc)
        try:
            with seldom_collected():
                self._assign(self.config)
                while not self._is_stopping:
                    following, self._next = self._next, None
                    if following is not None:
                        self._exchange(following)
                    self._look_after()
                    if self._next is None:
                        self._report()
                    threading.Event().wait(WATCH_SECONDS)
        finally:
            self._supervisor.stop()
            self._stop(list(self._running))
            if self._recorder is not None:
                self._recorder.close()

    def _report(self) -> None:
        """A worker that is not in its loop is bounded by the time-outs of its statements, and counts as alive."""
        status = ", ".join(f"{lineage} {each.worker.state}" for lineage, each in self._running.items())
        alive = {lineage: each.worker for lineage, each in self._running.items() if each.ended_at is None}
        self._supervisor.look(status, {lineage: worker.steps for lineage, worker in alive.items() if worker.steps})

    def _exchange(self, config: Config) -> None:
        try:
            _require_successor(self.config, config)
            self._assign(config)
        except FreshnessError as error:
            log.error("the new configuration is not used: %s", error)
            return
        log.info("the configuration was loaded again: %s", ", ".join(self._running))

    def _assign(self, config: Config) -> None:
        """Start, exchange and stop workers so that there is one for each shard of ``config``, with the primaries that
        were adopted."""
        given, config = config, with_primaries(config, self._adopted)
        registries = {}
        for name in config.keyspaces:
            registries[name] = self._read_registry(config, name)
            self._supervisor.work()
        wanted = _assignments(config, registries, self._shards, self._nodes)
        changed = [
            lineage
            for lineage, running in self._running.items()
            if wanted.get(lineage) != running.worker.assignment or running.ended_at is not None
        ]
        self._stop(changed)
        self._given, self.config = given, config
        self.metrics.nodes_configured.set(len(self._nodes or config.cache.all_nodes))
        self.metrics.stripes_configured.set(config.cache.stripes)
        for lineage, assignment in wanted.items():
            if lineage not in self._running:
                self._start(assignment)

    def _read_registry(self, config: Config, keyspace: str) -> dict[str, ObjectDefinition] | None:
        """None if the database is unavailable or unsuitable: the workers of the keyspace read the schema themselves,
        and no other keyspace waits for that. Raises the error if None would end running workers."""
        try:
            return load_registry(config, [keyspace])
        except (SourceUnavailable, SourceUnsuitable):
            tasks = [each.worker.assignment for each in self._running.values() if each.ended_at is None]
            if any(task.keyspace == keyspace and task.registry is not None for task in tasks):
                raise
            return None

    def _start(self, assignment: Assignment, errant: dict[str, str] | None = None) -> None:
        lineage = assignment.shard.lineage
        worker = ShardWorker(
            assignment,
            self.metrics.of_shard(lineage),
            self._recorder,
            read_registry=partial(load_registry, self.config, [assignment.keyspace], lineage),
            since_us=None if lineage in self._repeated else self._since_us,
            errant={} if errant is None else errant,
        )
        self._running[lineage] = _Running(worker, RESTART_SECONDS)
        self._running[lineage].thread.start()

    def _restart(self, ended: _Running) -> None:
        """Start a worker again that found its database unavailable."""
        task = ended.worker.assignment
        if ended.worker.has_repeated:
            self._repeated.add(task.shard.lineage)
        self._start(task, ended.worker.errant)
        again = self._running[task.shard.lineage]
        again.worker.failure = ended.worker.failure  # until it is known to be over
        if not ended.worker.has_streamed:
            again.pause_seconds = min(2 * ended.pause_seconds, RESTART_MAX_SECONDS)

    def _adopt(self, lineage: str, moved: PrimaryMoved) -> None:
        """Go on with another primary of a shard, as if the file named it. The demands of the nodes are checked again
        when the stream is opened (F28, F101)."""
        before, self._adopted = self._adopted, {**self._adopted, lineage: moved.address}
        try:
            self._assign(self._given)
        except FreshnessError as error:
            self._adopted = before
            log.error("%s: it is not adopted: %s", moved, error)
            return
        self.metrics.promotions_adopted.labels(lineage).inc()
        log.warning("adopted: %s", moved)

    def _stop(self, lineages: Collection[str]) -> None:
        stopping = [self._running.pop(lineage) for lineage in lineages]
        for each in stopping:
            each.worker.stop()
        deadline = running_clock() + WORKER_STOP_SECONDS
        for each in stopping:
            each.thread.join(max(0.0, deadline - running_clock()))
            if each.worker.has_repeated:
                self._repeated.add(each.worker.assignment.shard.lineage)
            self.metrics.forget_shard(each.worker.assignment.shard.lineage)

    def _look_after(self) -> None:
        """Log the workers that ended, restart those that may; raise if all have ended and none may."""
        ended = {lineage: each for lineage, each in self._running.items() if each.ended_at is not None}
        if len(ended) == len(self._running) and not any(each.worker.is_waiting for each in ended.values()):
            for each in ended.values():
                assert each.worker.ended_by is not None, "a worker ends by a stop or by an error"
                raise each.worker.ended_by
        for lineage, each in ended.items():
            assert each.ended_at is not None
            if each.is_reported:
                if each.worker.is_waiting and running_clock() - each.ended_at >= each.pause_seconds:
                    self._restart(each)
                continue
            each.is_reported = True
            if isinstance(each.worker.ended_by, PrimaryMoved):
                self._adopt(lineage, each.worker.ended_by)
                return  # the workers are others now
            if each.worker.is_waiting:
                each.worker.metrics.shard_waiting.set(1)
                log.warning(
                    "shard %s waits for its database: %s; next try in %.0f s",
                    lineage,
                    each.worker.ended_by,
                    each.pause_seconds,
                )
            else:
                self.metrics.shard_failed.labels(lineage).set(1)
                log.error("shard %s has stopped", lineage, exc_info=each.worker.ended_by)


def _assignments(
    config: Config,
    registries: Mapping[str, Mapping[str, ObjectDefinition] | None],
    shards: Collection[str],
    nodes: Collection[str],
) -> dict[str, Assignment]:
    """By lineage. Raises `ConfigError` for names of shards or nodes that there are none of."""
    _require_known("shard", shards, [s.name for keyspace in config.keyspaces.values() for s in keyspace.shards])
    _require_known("cache node", nodes, config.cache.all_nodes)
    mine = tuple(node for node in config.cache.all_nodes if not nodes or node in nodes)
    assignments = {}
    for keyspace in config.keyspaces.values():
        objects = registries[keyspace.name]
        for shard in keyspace.shards:
            if not shards or shard.name in shards:
                assignments[shard.lineage] = Assignment(
                    keyspace.name,
                    keyspace.gtid_flavor,
                    shard,
                    config.cache,
                    mine,
                    config.stream,
                    objects,
                    config.topology,
                )
    return assignments


def _require_successor(present: Config, following: Config) -> None:
    """Raise `ConfigError` if a configuration is of a previous topology, or moves what serves under the same number:
    then nothing would tell the processes of both apart (F102)."""
    served = {shard.lineage: shard.serving for each in present.keyspaces.values() for shard in each.shards}
    moved = [
        shard.lineage
        for keyspace in following.keyspaces.values()
        for shard in keyspace.shards
        if served.get(shard.lineage, shard.serving) != shard.serving
    ]
    if following.topology < present.topology:
        raise ConfigError(
            f"{following.path}: topology = {following.topology}, this process has {present.topology}",
            hint="a previous topology is never served again: load the present file, or raise its number",
        )
    lists = [(set(each.cache.nodes), set(each.cache.previous_nodes)) for each in (present, following)]
    if following.topology == present.topology and lists[0] != lists[1]:
        raise ConfigError(
            f"{following.path}: cache.nodes or cache.previous_nodes changes, and topology = {following.topology} does"
            " not",
            hint="raise it, and name the present nodes in previous_nodes: `invalidator nodes` writes such a file",
        )
    if following.topology == present.topology and moved:
        raise ConfigError(
            f"{following.path}: serving of {', '.join(moved)} changes, and topology = {following.topology} does not",
            hint=f"set topology = {present.topology + 1}, so that no process with the old file opens a node again",
        )


def _require_known(what: str, names: Collection[str], known: Collection[str]) -> None:
    for name in sorted(names):
        if name not in known:
            raise ConfigError(f"there is no {what} {name!r}", hint=f"expected one of {', '.join(sorted(known))}")
