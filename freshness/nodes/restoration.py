"""A thread that keeps a lineage's stripes on all nodes complete, with connections of its own.

It runs ``freshness.algorithm.restore`` beside the stream, so that a node that lost its stripes delays no
invalidation. Started by the invalidator's worker and by the driver of the Spark sink, one for each shard.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections.abc import Callable, Sequence

from freshness.algorithm.driver import BlockingDriver, running_clock
from freshness.algorithm.envelope import LIFE_SIZE
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Streamed
from freshness.algorithm.restore import REST_SECONDS, Restorer, run_restorers
from freshness.config.access import NodeAccess
from freshness.nodes.open import open_node

log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 10.0


class Restoration:
    """``read_stream`` answers `ReadStream`: how far the stream of this process is. ``hurry``: see `Pulse.hurry`;
    called to wait for a heartbeat. Both are safe from another thread."""

    def __init__(
        self,
        access: NodeAccess,
        nodes: Sequence[str],
        policy: NodePolicy,
        read_stream: Callable[[float], Streamed | None],
        hurry: Callable[[float], None],
        open_connection: Callable[[NodeAccess, str], CacheNode] = open_node,
    ) -> None:
        self.restorers = [
            Restorer(node, policy, running_clock, lambda: secrets.token_bytes(LIFE_SIZE)) for node in nodes
        ]
        self._connections = {node: open_connection(access, node) for node in nodes}
        self._applier_stream, self._hurry = read_stream, hurry
        self._driver = BlockingDriver(self._connections, self._sleep, read_stream=self._read_stream)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stripes of {policy.lineage}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:  # else it was never started
            self._thread.join(timeout=STOP_SECONDS_MAX)
        for connection in self._connections.values():
            connection.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._driver.run(run_restorers(self.restorers, random.random))
            except _StoppedError:
                return
            except Exception:
                log.exception("%s: missing stripes are not put back for now", self._thread.name)
                self._stopping.wait(REST_SECONDS)

    def _read_stream(self, begun_at: float) -> Streamed | None:
        streamed = self._applier_stream(begun_at)
        if streamed is None or streamed.begun_at < begun_at:
            self._hurry(begun_at)
        return streamed

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _StoppedError


class _StoppedError(Exception):
    """The thread is to end."""
