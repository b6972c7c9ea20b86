"""A job of the sink in a world: a driver that begins and commits micro-batches, and executors that send them.

The driver runs `spark.sink.acknowledger.Acknowledger` and each executor `spark.sink.sender.Sender`, as they are.
Made here is the part of Spark. A micro-batch becomes tasks. A task may run twice: a second attempt sends everything
again, at any later moment. An answer may be lost. A micro-batch may be dropped after all of it was sent. The driver
goes on from a checkpoint, which it writes after the commit: after a crash in between the same events come again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshness.algorithm.applier import HISTORY_CONFIRM_SECONDS, Permit
from freshness.algorithm.request import Wait
from freshness.errors import HistoryLost, SourceUnavailable, StreamStopped
from freshness.position import Position
from freshness.stream.source import Transaction
from freshness.values.json import to_json_row
from invalidator.loop.loop import OpenStream, Poll, RaiseEpoch
from spark.sink.acknowledger import Acknowledger
from spark.sink.sender import Part, Sender, SinkPlan, Ticket

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_SECONDS: Final = 0.1
"""How often the driver looks whether its tasks have ended."""

START_AGAIN_SECONDS: Final = 1.0
"""How long it takes until a job that ended runs again."""

ATTEMPTS_MAX: Final = 4
"""How often a task is tried before its job ends, as Spark has it."""

NEVER: Final = float("inf")
SECOND_ATTEMPT_SHARE: Final = 0.3
"""How many tasks are given to a second executor while the first one is slow."""

LOST_ANSWER_SHARE: Final = 0.05
DROPPED_BATCH_SHARE: Final = 0.03
FILTERED_BATCH_SHARE: Final = 0.02
"""How many micro-batches reach the sink without one of their transactions."""

Row = Mapping[str, Any]


def rows_of(
    keyspace: str, lineage: str, transactions: Sequence[Transaction], before: Position, first: int = 0
) -> Iterator[Row]:
    """The rows of one partition of the update stream, with those that begin and end it. ``first``: the ordinal before
    it."""
    head = {"keyspace": keyspace, "lineage": lineage, "epoch": 1, "timestamp_us": 0, "table": None}
    nothing = {"before": None, "after": None, "detail": None, "row": -1}
    yield {**head, **nothing, "ordinal": first, "op": "begin", "gtid": str(before)}
    ordinal, streamed = first, before
    for ordinal, each in enumerate(transactions, first + 1):
        streamed = streamed.union(each.position)
        own = {**head, **nothing, "ordinal": ordinal, "gtid": str(each.position)}
        for place, change in enumerate(each.changes):
            images = {
                name: None if image is None else json.dumps(to_json_row(image))
                for name, image in (("before", change.before), ("after", change.after))
            }
            yield {**own, **images, "row": place, "op": change.op, "table": change.table}
        for table in sorted(each.raised_tables):
            yield {**own, "op": "raise", "table": table, "detail": "; ".join(each.reasons)}
        for beat in each.heartbeats:
            names = ("instance", "sequence", "min_us", "max_us", "epoch")
            yield {**own, "op": "heartbeat", "detail": json.dumps({name: getattr(beat, name) for name in names})}
        if not (each.changes or each.raised_tables or each.heartbeats):
            yield {**own, "op": "empty"}
    yield {**head, **nothing, "ordinal": ordinal, "op": "empty", "gtid": str(streamed)}


@dataclass(slots=True, eq=False)
class Task:
    """A part of a micro-batch. ``open_attempts``: the attempts that wait for an executor or run. ``parts``: the
    result of the first attempt whose answer arrived."""

    plan: SinkPlan
    ticket: Ticket
    rows: list[Row]
    attempts: int = 0
    open_attempts: int = 0
    second_attempt_at: float = NEVER
    parts: list[Part] | None = None


@dataclass(slots=True, eq=False)
class Job:
    """The part of a job that outlives its driver's process.

    ``waiting``: attempts that no executor has taken yet. ``checkpoint``: up to where micro-batches were committed,
    and in which epoch.
    """

    world: World
    executors: list[str]
    waiting: deque[Task] = field(default_factory=deque)
    checkpoint: tuple[Position, int] | None = None

    def submit(self, task: Task) -> None:
        """An attempt of this task, for the next executor that is free."""
        world = self.world
        task.attempts += 1
        task.open_attempts += 1
        task.second_attempt_at = world.now + 2.0 if world.random.random() < SECOND_ATTEMPT_SHARE else NEVER
        self.waiting.append(task)
        for name in self.executors:
            actor = world.actor_by_name[name]
            if actor.is_idle:
                actor.wake_at = min(actor.wake_at, world.now)

    def execute(self, name: str) -> Generator[Any, Any, Any]:
        """One executor. An attempt that was begun is carried out to its end, whatever became of its job."""
        world, actor = self.world, self.world.actor_by_name[name]
        while True:
            if not self.waiting:
                actor.is_idle = True
                yield Wait(60.0)
                actor.is_idle = False
                continue
            task = self.waiting.popleft()
            sender = Sender(task.plan, task.ticket)
            try:
                yield from sender.take(task.rows)
                yield from sender.flush()
            finally:
                task.open_attempts -= 1
            is_lost = not world.calm and world.random.random() < LOST_ANSWER_SHARE
            if task.parts is None and not is_lost:
                task.parts = list(sender.parts.values())


@dataclass(slots=True, eq=False)
class Driver:
    """One process of the driver: it ends when the job does, and another one starts."""

    job: Job
    plan: SinkPlan
    acknowledger: Acknowledger
    transactions_max: int
    streamed: Position

    def run(self) -> Generator[Any, Any, Any]:
        self.job.waiting.clear()
        try:
            yield from self._follow()
        except HistoryLost:
            yield from self._raise_epoch()
        except (SourceUnavailable, StreamStopped) as error:
            self.job.world.note(f"the job of {self.acknowledger.lineage} ends: {error}")
        yield Wait(START_AGAIN_SECONDS)

    def _raise_epoch(self) -> Generator[Any, Any, Any]:
        """The operator: `invalidator run` until the epoch is raised, then the job again without its checkpoint."""
        checkpoint, self.job.checkpoint = self.job.checkpoint, None
        if checkpoint is None or checkpoint[1] == self.acknowledger.epoch:
            yield Wait(HISTORY_CONFIRM_SECONDS)
            yield RaiseEpoch()

    def _follow(self) -> Generator[Any, Any, Any]:
        yield from self.acknowledger.begin()
        checkpoint = self.job.checkpoint
        start = self.acknowledger.start_position() if checkpoint is None else checkpoint[0]
        if start is None:
            return  # a job without a checkpoint begins at the nodes' position, which must exist
        yield OpenStream(start)
        self.streamed = start
        while True:
            transactions = yield Poll(LOOK_SECONDS, self.transactions_max)
            yield from self.acknowledger.renew()
            if transactions:
                yield from self._run_batch(transactions)

    def _run_batch(self, transactions: Sequence[Transaction]) -> Generator[Any, Any, Any]:
        world = self.job.world
        permit = yield from self.acknowledger.begin()
        tasks = list(self._plan_tasks(transactions, permit))
        for task in tasks:
            self.job.submit(task)
        yield from self._wait_for(tasks)
        if not world.calm and world.random.random() < DROPPED_BATCH_SHARE:
            raise StreamStopped("the micro-batch is dropped")
        parts = [part for task in tasks for part in task.parts or ()]
        yield from self.acknowledger.commit(parts, permit)
        self.streamed = self.streamed.union_all([each.position for each in transactions])
        self.job.checkpoint = self.streamed, self.acknowledger.epoch

    def _plan_tasks(self, transactions: Sequence[Transaction], permit: Permit) -> Iterator[Task]:
        """One to three partitions, handed out in any order."""
        world = self.job.world
        lineage, ticket = self.acknowledger.lineage, Ticket(1, {self.acknowledger.lineage: permit})
        count = min(len(transactions), world.random.choice((1, 2, 3)))
        size = -(-len(transactions) // count)
        is_filtered = not world.calm and world.random.random() < FILTERED_BATCH_SHARE
        left_out = world.random.randrange(len(transactions)) + 1 if is_filtered else 0
        before, tasks = self.streamed, []
        for first in range(0, len(transactions), size):
            some = transactions[first : first + size]
            rows = [
                row
                for row in rows_of("sim", lineage, some, before, first)
                if row["ordinal"] != left_out or row["op"] == "begin"
            ]
            tasks.append(Task(self.plan, ticket, rows))
            before = before.union_all([each.position for each in some])
        world.random.shuffle(tasks)
        yield from tasks

    def _wait_for(self, tasks: Sequence[Task]) -> Generator[Any, Any, Any]:
        """Until each task has an answer. Renews leases during the wait, as the keeper's thread does."""
        world = self.job.world
        while True:
            for task in tasks:
                if task.parts is None and (not task.open_attempts or world.now >= task.second_attempt_at):
                    if task.attempts == ATTEMPTS_MAX:
                        raise StreamStopped(f"a task failed {ATTEMPTS_MAX} times")
                    self.job.submit(task)
            if all(task.parts is not None for task in tasks):
                return
            yield Wait(LOOK_SECONDS)
            yield from self.acknowledger.renew()
