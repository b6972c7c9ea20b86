"""Processor time for one row, by part, from the log to acknowledged invalidations.

Waiting is not in it: where other work has the processors, or a part waits for another, the parts add up to less than
the rate says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.end_to_end import ROWS_IN_EVENT
from benchmarks.measure import Result
from benchmarks.pipeline import Log, address_of, open_nodes, open_pipeline, open_server, write_log
from freshness.stream.source import Transaction
from integration.servers import DatabaseServer
from invalidator.loop.loop import LoopObserver

ROWS: Final = 50_000
ROUNDS_MAX: Final = 5
PARTS: Final = ("reader", "applier", "memcached", "database")
"""Our two threads (receive and decode; place, encode, publish), and the two servers."""

READER_THREAD: Final = "binlog "


def measure_profile(rounds: int) -> list[Result]:
    """On MariaDB: transactions of one row, and of a thousand."""
    results = []
    with open_server("mariadb") as server:
        for name, rows in (("singles", 1), ("thousands", ROWS_IN_EVENT)):
            log = write_log(server, name, ROWS // rows, rows)
            seen = [_spent(server, log) for _ in range(min(rounds, ROUNDS_MAX))]
            microseconds = [median(each[place] for each in seen) / ROWS * 1e6 for place in range(len(PARTS))]
            total = sum(microseconds)
            for part, spent in zip(PARTS, microseconds, strict=True):
                share = spent / total
                results.append(
                    Result(f"profile_{name}_{part}", spent, "µs", "all parts", total, (share, share), is_share=True)
                )
    return results


class _ReaderTime(LoopObserver):
    """Processor seconds of the reader's thread, as of the last batch."""

    seconds = 0.0

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith(READER_THREAD) and thread.ident is not None:
                self.seconds = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _spent(server: DatabaseServer, log: Log) -> tuple[float, ...]:
    """Processor seconds of each of the `PARTS`."""
    with (
        open_nodes(1) as (node,),
        open_pipeline(address_of(server), server.flavor, [node.address], log.start) as pipeline,
    ):
        reader = _ReaderTime()
        servers = _process_seconds(node.pid), _process_seconds(server.pid)
        begun = time.thread_time()
        pipeline.follow_to(log.end, reader)
        applier = time.thread_time() - begun
        memcached = _process_seconds(node.pid) - servers[0]
        return reader.seconds, applier, memcached, _process_seconds(server.pid) - servers[1]


def _process_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
