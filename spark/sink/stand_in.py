"""The stand-in of the sink's cluster: the driver alone follows the stream while Spark starts, or stalls.

A node stays open on the strength of heartbeats that come back through the stream. Spark needs many seconds until its
first micro-batch, and executors can be lost. So as long as no heartbeat of the job comes back, a thread of the driver
does what the cluster does, without Spark: it reads a piece of the stream, sends, and acknowledges.

To the nodes it is a job of its own, with a keeper of its own; two jobs on one lineage do each other no harm (ADR
0019). With a long backlog it is slower than the cluster, and it stops as soon as that is there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from pyspark.sql.streaming.datasource import ReadAllAvailable

from freshness.algorithm.driver import BlockingDriver, running_clock
from freshness.config.config import Config
from freshness.database.schema import load_registry
from freshness.errors import FreshnessError
from freshness.nodes.open import open_node
from spark.sink.keeper import Keeper
from spark.sink.sender import COLUMNS, Sender
from spark.stream.source import ChangeStreamReader, StreamOptions

PAUSE_SECONDS: Final = 0.5
"""Between two pieces, and between two looks whether the cluster is late."""
RETRY_SECONDS: Final = 2.0
LINGER_SECONDS: Final = 60.0
"""The keeper is held so long behind the last time that the cluster was late: each one begins a row of heartbeats."""
JOIN_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


class StandIn:
    """A thread, from `__enter__` to `__exit__`. ``source``: options of the update stream, of a service. ``is_late``:
    function that returns True if the cluster is late."""

    def __init__(self, config: Config, source: Mapping[str, str], is_late: Callable[[], bool] = lambda: True) -> None:
        self._config = config
        self._source = dict(source)
        self._is_late = is_late
        self._keeper: Keeper | None = None
        self._is_at_work = False
        self._late_at = 0.0
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)

    def watch(self, keeper: Keeper) -> None:
        """``keeper``: the cluster's, which is there from now on."""
        self._is_late = keeper.is_late

    def find_keeper(self) -> Keeper | None:
        """The stand-in's own, while it is at work."""
        return self._keeper if self._is_at_work else None

    def check(self) -> None:
        """Raise what ended the thread: a bug, since failures of servers do not."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            pause = 0.0
            while not self._stopping.wait(pause):
                pause = PAUSE_SECONDS
                try:
                    self._step()
                except FreshnessError as error:
                    log.warning("the sink's driver cannot stand in for the cluster: %s", error)
                    self._close()
                    pause = RETRY_SECONDS
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self._failure = error
        finally:
            self._close()

    def _step(self) -> None:
        self._is_at_work = self._is_late()
        if self._is_at_work:
            self._late_at = running_clock()
            if self._keeper is None:
                self._keeper = Keeper(self._config, load_registry(self._config))
            self._run_piece(self._keeper)
        elif self._keeper is not None and running_clock() - self._late_at > LINGER_SECONDS:
            log.info("the cluster follows the stream")
            self._close()

    def _close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def _run_piece(self, keeper: Keeper) -> None:
        """Follow the stream from what all nodes have acknowledged to the current heads. Stop if the cluster is no
        longer late."""
        ticket = keeper.begin()
        shards = self._config.keyspaces[self._source["keyspace"]].serving_shards
        starts = [token for token in keeper.find_starts() if token.lineage in {each.lineage for each in shards}]
        if len(starts) < len(shards):
            return  # no node of a shard is joined: there is nothing to acknowledge
        keeper.require_keys({each.lineage for each in shards})
        reader = ChangeStreamReader(StreamOptions.parse({**self._source, "since": ",".join(map(str, starts))}))
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
        nodes = {name: open_node(keeper.plan.access, name) for name in keeper.plan.all_nodes}
        driver, sender = BlockingDriver(nodes, time.sleep), Sender(keeper.plan, ticket)
        try:
            for partition in reader.partitions(begin, end):
                for batch in reader.read(partition):
                    driver.run(sender.take(batch.select(list(COLUMNS)).to_pylist()))
                    if self._stopping.is_set() or not self._is_late():
                        return
            driver.run(sender.flush())
        finally:
            for node in nodes.values():
                node.close()
        if sender.parts:
            keeper.commit(ticket, list(sender.parts.values()))
