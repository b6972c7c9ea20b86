"""From a log that is there to acknowledged invalidations: the invalidator's parts against a loop that people write.

The loop is mysql-replication and pymemcache: for each row of each event read a marker with its version, then add it
or replace it by CAS. It leaves out the delete of the entry, progress and checksums, which ours include. It reads the
beginning of the same log, and its time counts as if it went on like that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from pymemcache.client.base import Client
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from benchmarks.cores import Placement, only_on
from benchmarks.decode import FLAVORS
from benchmarks.invalidation import mark
from benchmarks.measure import Criterion, Result, interleave, stopwatch
from benchmarks.pipeline import Log, address_of, open_nodes, open_pipeline, open_server, write_log
from integration.servers import DatabaseServer
from integration.servers.database import SCHEMA
from invalidator.loop.loop import LoopObserver

ROWS: Final = 300_000
ROWS_OF_LOOP: Final = 3_000
"""How much of the log the loop reads."""

ROWS_IN_EVENT: Final = 1_000
ROUNDS_MAX: Final = 5
LOOP: Final = "mysql-replication + pymemcache gets + add/cas"
CRITERIA: Final = {"singles": Criterion(at_least=15), "thousands": Criterion(at_least=30)}
ROW_EVENTS: Final = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent)


def measure_end_to_end(rounds: int) -> list[Result]:
    """Both servers: transactions of one row, and of a thousand rows in one event."""
    results = []
    for flavor in FLAVORS:
        for name, rows in (("thousands", ROWS_IN_EVENT), ("singles", 1)):
            # A server for each: on MariaDB the library always begins with the oldest log.
            with open_server(flavor) as server:
                log = write_log(server, name, ROWS // rows, rows)
                results.append(_measure(server, log, min(rounds, ROUNDS_MAX)))
    return results


def _measure(server: DatabaseServer, log: Log, rounds: int) -> Result:
    unit = "transactions/s" if log.rows == log.transactions else "rows/s"
    timings = interleave(lambda _: follow(server, log), lambda _: _loop(server, log), rounds)
    name = f"end_to_end_{server.flavor}_{log.name}"
    criterion: Criterion | None = CRITERIA[log.name]
    if log.name == "thousands":  # on a shared core the node's own work alone takes longer than that
        criterion = only_on(Placement.OTHER_CORE, CRITERIA[log.name])
    return timings.per_second(name, log.rows, unit, LOOP, criterion)


def follow(server: DatabaseServer, log: Log, *, nodes: int = 1, observer: LoopObserver | None = None) -> float:
    """Seconds from connecting until everything is acknowledged. The nodes were empty."""
    with open_nodes(nodes) as servers:
        addresses = [each.address for each in servers]
        with open_pipeline(address_of(server), server.flavor, addresses, log.start) as pipeline:
            seconds = stopwatch(lambda: pipeline.follow_to(log.end, observer))
        deleted = sum(int(each.stats()["delete_misses"]) for each in servers)
        assert deleted >= log.rows, f"{deleted} deletes where {log.rows} rows were changed"
    return seconds


@contextmanager
def _stream(server: DatabaseServer, log: Log) -> Iterator[Any]:
    address = address_of(server)
    settings = {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "passwd": address.password,
        "ssl_disabled": True,
    }
    stream = BinLogStreamReader(
        settings,
        server_id=0x7000_0000 + os.getpid() % 0x100_0000,
        log_file=log.file,
        log_pos=4,
        resume_stream=True,
        blocking=False,
        only_events=ROW_EVENTS,
        only_schemas=[SCHEMA],
        is_mariadb=server.flavor == "mariadb",
        enable_logging=False,
    )
    try:
        yield stream
    finally:
        stream.close()


def _loop(server: DatabaseServer, log: Log) -> float:
    """Seconds for the whole log, from its first `ROWS_OF_LOOP` rows."""
    with (
        open_nodes(1) as (node,),
        _stream(server, log) as stream,
        closing(Client(node.address, no_delay=True)) as client,
    ):
        started = time.perf_counter()
        done = 0
        for event in stream:
            assert stream.log_file == log.file, f"it reads {stream.log_file} and not {log.file}"
            marker = f"{stream.log_file}:{stream.log_pos}".encode()
            for row in event.rows:
                for image in ("values", "before_values", "after_values"):
                    if image in row:
                        mark(client, b"bench:small:%d" % row[image]["id"], marker)
                done += 1
            if done >= ROWS_OF_LOOP:
                break
        seconds = time.perf_counter() - started
    assert done >= ROWS_OF_LOOP, f"the loop has read {done} rows"
    return seconds * log.rows / done
