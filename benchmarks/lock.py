"""What writers lose to the reads of a MariaDB primary with a lock: an UPDATE of a hot row, and how many reads find it
held.

The worst case: readers read one row as fast as they can, and a writer changes it at a steady pace. In the cache at
most one read follows each change. The baseline has the same readers, which read without a lock.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Final

from appclient.database.shard import ShardDatabase
from benchmarks.lag import percentile
from benchmarks.measure import Result, interleave
from benchmarks.pipeline import LINEAGE, TABLE, address_of, open_server
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position
from freshness.database.heartbeat import HeartbeatWriter
from freshness.position.token import EventToken, covers
from integration.servers import DatabaseServer, ServerFailed
from integration.servers.database import SCHEMA

READERS: Final = 3
UPDATES: Final = 1500
"""In one round."""

RATE: Final = 500
"""Updates a second that the writer aims at."""

ANSWER_SECONDS: Final = 60.0


def measure_lock(rounds: int) -> list[Result]:
    with open_server("mariadb") as server, _reading(address_of(server)) as readers:
        for name in ("sync_binlog", "innodb_flush_log_at_trx_commit"):
            server.execute(f"SET GLOBAL {name} = 1")  # as in production: the row is held while the log is synced
        server.execute(f"INSERT INTO {TABLE} VALUES (1,1,2,3,'hello world')", database=SCHEMA)
        HeartbeatWriter(address_of(server), "mariadb", "bench", 1.0).create()
        counts: list[tuple[int, int]] = []

        def round_of(locks: bool, number: int) -> float:
            readers.send(locks)
            _receive(readers)
            seconds = sorted(_update(server))
            readers.send(None)
            read, busy = _receive(readers)
            if locks and number:  # round 0 is not measured
                counts.append((read, busy))
            return percentile(seconds, 99)

        timings = interleave(lambda n: round_of(True, n), lambda n: round_of(False, n), rounds)
    updates = timings.microseconds("lock_update_p99", 1, f"{READERS} readers of the row without a lock")
    shares = [busy / reads for reads, busy in counts]
    reads, busy = (sum(each) for each in zip(*counts, strict=True))
    spread = min(shares), max(shares)
    return [updates, Result("lock_busy", busy, "reads", "reads with a lock", reads, spread, is_share=True)]


def _update(server: DatabaseServer) -> list[float]:
    """The seconds of each update."""
    seconds = []
    with server.connect(SCHEMA) as connection, connection.cursor() as cursor:
        begun = time.monotonic()
        for number in range(UPDATES):
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
            at = time.perf_counter()
            cursor.execute(f"UPDATE {TABLE} SET b = {number} WHERE id = 1")
            seconds.append(time.perf_counter() - at)
    return seconds


# -- the readers --------------------------------------------------------------------------------------------


@contextmanager
def _reading(address: ServerAddress) -> Iterator[Any]:
    """A process of readers, behind a pipe: it is sent whether they lock, and None to end the round."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(address, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join(ANSWER_SECONDS)


def _receive(pipe: Any) -> Any:
    try:
        if pipe.poll(ANSWER_SECONDS):
            return pipe.recv()
    except EOFError:
        raise ServerFailed("the readers have ended", hint="their own output says why") from None
    raise ServerFailed(f"the readers were silent for {ANSWER_SECONDS:.0f} s", hint="is the machine overloaded?")


def _serve(address: ServerAddress, pipe: Any) -> None:
    """In the readers' process."""
    shard = Shard(primary=address, lineage=LINEAGE)
    with closing(ShardDatabase("mariadb", shard)) as database:
        while True:
            try:
                locks = pipe.recv()
            except EOFError:
                return
            with connect(address) as connection:
                # The primary's token is older, since nothing beats here: all reads that demand it lock.
                head = EventToken(LINEAGE, LINEAGE, 1, 0, executed_position(connection, "mariadb"))
            stopping = threading.Event()
            with ThreadPoolExecutor(READERS) as pool:
                futures = [pool.submit(_read, database, head, locks, stopping.is_set) for _ in range(READERS)]
                pipe.send("begun")
                pipe.recv()
                stopping.set()
                pipe.send(tuple(map(sum, zip(*(future.result() for future in futures), strict=True))))


def _read(database: ShardDatabase, head: EventToken, locks: bool, is_stopping: Callable[[], bool]) -> tuple[int, int]:
    """The number of reads, and of those that found the row held: they do not show the demanded position."""
    reads = busy = 0
    while not is_stopping():
        _, token = database.rows_with_token(f"`{TABLE}`", "id = %s", [1], required=head if locks else None)
        assert token is not None
        reads += 1
        busy += not covers(token, head)
    return reads, busy
