"""The state of a running invalidator, from its own memory: shards, nodes, lag, problems, recent troubles.

The only place that makes it: ``/v1/overview`` and the page show what is here, and ``/readyz`` is made of the same
states. It asks no node and no database, so that it answers at once when these hang (ADR 0059). The nodes' own
words are ``invalidator.process.status``. Read from the threads of the HTTP service.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from freshness import __version__
from freshness.algorithm.driver import running_clock
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import FreshnessError
from freshness.keys.keyrange import KeyRange
from freshness.position import Position
from invalidator.process.app import Invalidator
from invalidator.process.recent import BUCKET_SECONDS, find_quantile
from invalidator.process.trouble import RecentTroubles
from invalidator.process.worker import ShardWorker

POSITION_CHARACTERS_MAX: Final = 160
"""A longer position is cut in the middle; ``/v1/status`` has it in full."""

RATE_BUCKETS: Final = 2
"""Number of the last buckets that throughput is measured over: ten seconds."""

LATE_SHARE: Final = 0.5
"""A shard is late when its heartbeat is older than this share of the age at which leases are no longer renewed."""


@dataclass(frozen=True, slots=True)
class PresentProblem:
    """Something that is wrong now. ``where``: a shard or a node; ``remedy``: action that a person can take."""

    severity: Literal["error", "warning"]
    where: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Overview:
    """``troubles``: the lines of the log that it shows."""

    invalidator: Invalidator
    troubles: RecentTroubles = field(default_factory=RecentTroubles)

    def read(self) -> dict[str, Any]:
        """Ready for JSON. Durations are in seconds, times in seconds since 1970."""
        workers, config = self.invalidator.workers, self.invalidator.config
        shards = [_describe_shard(worker) for worker in workers]
        nodes = [_describe_node(worker, node) for worker in workers for node in worker.assignment.nodes]
        problems = [*_find_problems(workers, shards)]
        return {
            "now": time.time(),
            "version": __version__,
            "namespace": config.cache.namespace,
            "topology": config.topology,
            "summary": _summarize(shards, nodes, problems),
            "problems": [asdict(each) for each in problems],
            "shards": shards,
            "nodes": nodes,
            "previous_nodes": list(config.cache.previous_nodes),
            "reshards": [*_find_reshards(config)],
            "troubles": [asdict(each) for each in self.troubles.list()],
        }


def _describe_shard(worker: ShardWorker) -> dict[str, Any]:
    task, recent, now = worker.assignment, worker.recent, running_clock()
    lags, buckets = recent.list_lags(now), recent.list_buckets(now)
    seconds = RATE_BUCKETS * BUCKET_SECONDS
    clocks = recent.find_clock_difference()
    streamed = worker.invalidator.streamed if worker.invalidator is not None and worker.has_streamed else None
    return {
        "keyspace": task.keyspace,
        "shard": task.shard.name,
        "lineage": task.shard.lineage,
        "serving": task.shard.serving,
        "primary": _place(task.shard.primary),
        "log_server": _place(worker.log_server),
        "state": worker.state,
        "problem": worker.last_error,
        "position": _shorten(streamed),
        "behind_seconds": None if recent.begun_at is None else _round(now - recent.begun_at),
        "leases_end_at_seconds": _round(task.cache.heartbeat_age_max_seconds),
        "lag_seconds": {
            "median": _round(find_quantile(lags, 0.5)),
            "p99": _round(find_quantile(lags, 0.99)),
            "max": _round(find_quantile(lags, 1.0)),
        },
        "transactions_per_second": _round(sum(each.transactions for each in buckets[-RATE_BUCKETS:]) / seconds),
        "keys_per_second": _round(sum(each.keys for each in buckets[-RATE_BUCKETS:]) / seconds),
        "history": {
            "bucket_seconds": BUCKET_SECONDS,
            "transactions": [each.transactions for each in buckets],
            "keys": [each.keys for each in buckets],
            "lag_max_seconds": [_round(max(each.lags, default=None)) for each in buckets],
        },
        "primary_clock_seconds": None
        if clocks is None
        else {"at_least": _round(clocks.at_least), "at_most": _round(clocks.at_most)},
    }


def _describe_node(worker: ShardWorker, node: str) -> dict[str, Any]:
    invalidator = worker.invalidator
    member = invalidator.members.get(node) if invalidator is not None else None
    record = None if member is None else member.record
    described: dict[str, Any] = {
        "node": node,
        "lineage": worker.assignment.shard.lineage,
        "state": worker.find_node_state(node),
        "problem": "" if invalidator is None else str(invalidator.problems.get(node, "")),
        "lease_seconds_left": None,
        "heartbeat_age_seconds": None,
        "progress": "",
        "has_all_stripes": _has_all_stripes(worker, node),
        "life": "",
        "epoch": None,
    }
    if member is None or invalidator is None:
        return described
    left = member.lease_until - member.clock()
    if left > 0:  # also of a node that is out: readers trust its record for so long
        described["lease_seconds_left"] = _round(left)
    if record is not None:
        described |= {
            "heartbeat_age_seconds": _round(time.time() - record.as_of_us / 1e6) if record.as_of_us else None,
            "progress": _shorten(record.progress),
            "life": record.life.hex(),
            "epoch": record.epoch,
        }
    return described


def _has_all_stripes(worker: ShardWorker, node: str) -> bool:
    restorers = worker.restoration.restorers if worker.restoration is not None else []
    return any(each.node == node and each.is_complete for each in restorers)


def _place(server: ServerAddress | VtgateAddress | None) -> str:
    return "" if server is None else f"{server.host}:{server.port}"


def _shorten(position: Position | None) -> str:
    text = "" if position is None else str(position)
    if len(text) <= POSITION_CHARACTERS_MAX:
        return text
    half = POSITION_CHARACTERS_MAX // 2
    return f"{text[:half]} … {text[-half:]}"


def _round(seconds: float | None) -> float | None:
    """Six digits after the point, microseconds: more is noise that costs bytes."""
    return None if seconds is None else round(seconds, 6)


NAMED_MAX: Final = 3
"""Maximum number of problems that the summary names."""

LOOK_AT_LAG: Final = "see whether the server whose log is read lags or hangs, or the nodes are slow"


def _summarize(
    shards: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]], problems: Sequence[PresentProblem]
) -> str:
    if problems:
        named = [each.where for each in problems[:NAMED_MAX]] + ["…"] * (len(problems) > NAMED_MAX)
        return f"{_count(len(problems), 'problem')}: {', '.join(named)}"
    names = {node["node"] for node in nodes}
    return f"All is well: {_count(len(shards), 'shard')} on {_count(len(names), 'node')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _find_problems(workers: Sequence[ShardWorker], shards: Sequence[Mapping[str, Any]]) -> Iterator[PresentProblem]:
    """A shard's problem closes its nodes: those that are closed for it are not told."""
    if not workers:
        yield PresentProblem("warning", "this process", "no shard is followed yet", "wait, or read the log")
    for worker, shard in zip(workers, shards, strict=True):
        found = _find_shard_problem(worker, shard["behind_seconds"], shard["leases_end_at_seconds"])
        if found is not None:
            yield found
        for node in worker.assignment.nodes:
            problem = _find_node_problem(worker, node, is_alone=found is None)
            if problem is not None:
                yield problem


def _find_shard_problem(worker: ShardWorker, behind: float | None, end: float) -> PresentProblem | None:
    where = f"shard {worker.assignment.shard.lineage}"
    message, hint = _tell(worker.failure)
    match worker.state:
        case "stopped":
            remedy = hint or "see the log, and 'When something is wrong' in docs/operations.md"
            return PresentProblem("error", where, f"it has stopped: {message}", remedy)
        case "waiting":
            return PresentProblem("error", where, f"it waits for its database: {message}", _try_again(hint))
        case "connecting" if message:
            return PresentProblem("error", where, f"its stream is not open: {message}", _try_again(hint))
        case "connecting":
            return PresentProblem("warning", where, "its stream is not open yet", "wait")
    if message:
        return PresentProblem("error", where, message, hint or "see the log")
    if behind is not None and behind > end:
        told = f"its stream is {behind:.1f} s behind: leases are not renewed, and reads go to the database"
        return PresentProblem("error", where, told, LOOK_AT_LAG)
    if behind is not None and behind > LATE_SHARE * end:
        told = f"its stream is {behind:.1f} s behind; leases are not renewed from {end:g} s on"
        return PresentProblem("warning", where, told, LOOK_AT_LAG)
    return None


def _find_node_problem(worker: ShardWorker, node: str, *, is_alone: bool) -> PresentProblem | None:
    """``is_alone``: the shard has no problem of its own."""
    shard, state = worker.assignment.shard, worker.find_node_state(node)
    where = f"node {node} of {shard.lineage}"
    if state == "not joined":
        problem = "" if worker.invalidator is None else worker.invalidator.problems.get(node, "")
        message, hint = _tell(problem)
        told = f"it is not joined: {message or 'nobody has reached it yet'}"
        rest = "its keys are read from the database until it is joined again"
        return PresentProblem("error", where, told, f"{hint}; {rest}" if hint else rest)
    if state == "lapsed" and shard.serving:
        told = "its lease has run out: its keys are read from the database"
        return PresentProblem("error", where, told, LOOK_AT_LAG)
    if state == "closed" and shard.serving and is_alone:
        return PresentProblem("warning", where, "it is closed until it is caught up", "wait")
    if is_alone and not _has_all_stripes(worker, node):
        remedy = "they are put back; if this stays, the node needs more memory, or no heartbeat comes back"
        return PresentProblem("warning", where, "stripes are missing: their keys are not stored", remedy)
    return None


def _try_again(hint: str) -> str:
    return f"{hint}; it is tried again" if hint else "it is tried again"


def _tell(failure: BaseException | str) -> tuple[str, str]:
    """Its message and its hint."""
    return (failure.message, failure.hint) if isinstance(failure, FreshnessError) else (str(failure), "")


def _find_reshards(config: Config) -> Iterator[dict[str, Any]]:
    """Keyspaces with shards that do not serve: one is resharded, or was, and its file is not the last one yet."""
    for keyspace in config.keyspaces.values():
        closed = [shard for shard in keyspace.shards if not shard.serving]
        if closed:
            yield {
                "keyspace": keyspace.name,
                "topology": config.topology,
                "shards": [
                    {
                        "lineage": shard.lineage,
                        "shard": shard.name,
                        "continues": list(shard.continues),
                        "beside": [each.lineage for each in _find_serving(keyspace, shard)],
                    }
                    for shard in closed
                ],
            }


def _find_serving(keyspace: Keyspace, shard: Shard) -> list[Shard]:
    """The shards that serve some of its keys."""
    keys = KeyRange.parse(shard.name)
    return [each for each in keyspace.serving_shards if keys.overlaps(KeyRange.parse(each.name))]
