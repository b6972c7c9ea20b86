"""What an invalidator holds in memory: while a log of millions of events passes, and for one huge transaction.

``python -m benchmarks.memory --events 10000000`` lets more events pass than ``make bench`` waits for. The
invalidator's parts run in a process of their own. The writer changes the same ten thousand rows over and over, one in
each transaction, so stripes grow and are shortened, as they are where keys are busy. The huge transaction is bounded
by `TRANSACTION_ROWS_MAX`: beyond it the table is invalidated as a whole.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.measure import Criterion, Result
from benchmarks.pipeline import TABLE, address_of, open_nodes, open_pipeline, open_server
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position
from freshness.position import Position
from freshness.stream.source import Transaction
from integration.servers import DatabaseServer, ServerFailed
from integration.servers.database import SCHEMA
from invalidator.loop.loop import LoopObserver

EVENTS: Final = 600_000
EVENTS_IN_TRANSACTION: Final = 4
"""On MariaDB: GTID, table map, rows, commit."""

HUGE_ROWS: Final = 1_000_000
HUGE_BOUND_MB: Final = 300.0
ROWS: Final = 10_000
SAMPLES: Final = 200
PASS_SECONDS: Final = 3600.0
FLAT: Final = Criterion(at_most=1.1)
BOUNDED: Final = Criterion(at_most=1.0)
UPDATES: Final = f"""CREATE PROCEDURE updates(count INT) BEGIN DECLARE n INT DEFAULT 0;
  WHILE n < count DO UPDATE {TABLE} SET a = a + 1 WHERE id = n % {ROWS}; SET n = n + 1; END WHILE; END"""


def measure_memory(_: int, *, events: int = EVENTS) -> list[Result]:
    """Once each, on MariaDB: memory has no rounds."""
    with open_server("mariadb") as server:
        return [_measure_stream(server, events), _measure_huge(server)]


def _measure_stream(server: DatabaseServer, events: int) -> Result:
    transactions = events // EVENTS_IN_TRANSACTION
    _insert(server, 0, ROWS)
    server.execute(UPDATES, database=SCHEMA)
    samples, _ = _watch(server, transactions, lambda: _call_updates(server, transactions))
    fifth = len(samples) // 5
    early, late = median(samples[fifth : 2 * fifth]), median(samples[-fifth:])
    baseline = f"after a fifth of {events:,} events"
    return Result("memory_stream", late, "MB", baseline, early, (late / early,) * 2, FLAT)


def _measure_huge(server: DatabaseServer) -> Result:
    _, peak = _watch(server, 1, lambda: _insert(server, ROWS, HUGE_ROWS))
    baseline = f"bound, for {HUGE_ROWS:,} rows in a transaction"
    ratio = peak / HUGE_BOUND_MB
    return Result("memory_transaction", peak, "MB", baseline, HUGE_BOUND_MB, (ratio, ratio), BOUNDED)


def _call_updates(server: DatabaseServer, count: int) -> None:
    with server.connect(SCHEMA, read_timeout=int(PASS_SECONDS)) as connection, connection.cursor() as cursor:
        cursor.execute("CALL updates(%s)", (count,))


def _insert(server: DatabaseServer, first: int, count: int) -> None:
    """All in one transaction."""
    with server.connect(SCHEMA, read_timeout=int(PASS_SECONDS)) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for start in range(first, first + count, ROWS):
            lines = ",".join(f"({number},1,2,3,'hello world')" for number in range(start, start + ROWS))
            cursor.execute(f"INSERT INTO {TABLE} VALUES {lines}")
        cursor.execute("COMMIT")


# -- the process that is watched ----------------------------------------------------------------------------


def _watch(server: DatabaseServer, transactions: int, write: Any) -> tuple[list[float], float]:
    """(resident MB at regular moments of the stream, the peak). Raises `ServerFailed` if it does not end."""
    context = multiprocessing.get_context("spawn")
    address = address_of(server)
    with connect(address) as connection:
        start = executed_position(connection, server.flavor)
    with open_nodes(1) as (node,):
        here, there = context.Pipe()
        arguments = (address, server.flavor, node.address, start, transactions, there)
        process = context.Process(target=_follow, args=arguments, daemon=True)
        process.start()
        there.close()
        writer = threading.Thread(target=write)
        try:
            here.recv()
            writer.start()
            if not here.poll(PASS_SECONDS):
                raise ServerFailed(f"{transactions} transactions did not pass in {PASS_SECONDS:.0f} s")
            seen: tuple[list[float], float] = here.recv()
        except EOFError:
            raise ServerFailed("the invalidator has ended", hint="its own output says why") from None
        finally:
            here.close()
            process.join(10)
            if process.is_alive():
                process.kill()
            if writer.ident is not None:
                writer.join()
    return seen


class _Watch(LoopObserver):
    def __init__(self, transactions: int, pipe: Any) -> None:
        self._pipe = pipe
        self._transactions = transactions
        self._step = max(1, transactions // SAMPLES)
        self._passed = 0
        self.samples: list[float] = []

    @property
    def is_through(self) -> bool:
        return self._passed >= self._transactions

    def stream_opened(self, start: Position) -> None:
        self._pipe.send(None)

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None:
        self._passed += len(transactions)
        while len(self.samples) < self._passed // self._step:
            self.samples.append(_status_mb("VmRSS"))


def _follow(address: ServerAddress, flavor: Any, node: str, start: Position, transactions: int, pipe: Any) -> None:
    watch = _Watch(transactions, pipe)
    deadline = time.monotonic() + PASS_SECONDS

    def is_done() -> bool:
        assert time.monotonic() < deadline, "the stream takes too long"
        return watch.is_through

    with open_pipeline(address, flavor, [node], start) as pipeline:
        pipeline.follow(is_done, watch)
    pipe.send((watch.samples, _status_mb("VmHWM")))


def _status_mb(name: str) -> float:
    """Of this process, from /proc."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, "/proc/self/status says what is resident"
    return int(found[1]) / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    results = measure_memory(1, events=parser.parse_args(arguments).events)
    for result in results:
        print(
            f"{result.name}: {result.value:.1f} MB, {result.baseline}: {result.baseline_value:.1f} MB, "
            f"ratio {result.ratio:.3f}, expected {result.criterion}"
        )
    return 0 if all(result.is_met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
