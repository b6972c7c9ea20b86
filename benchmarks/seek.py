"""How long the search for a start by time takes: `find_position`, by the number of log files that the server has.

The time lies in the oldest file, which is the worst: files are looked at newest first, and each but the last costs
one look at its head. The baseline reads the log as a whole, as a reader without a search must.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import Final

from benchmarks.decode import SINGLE, SMALL
from benchmarks.measure import Result, stopwatch
from freshness.config.server import ServerAddress
from freshness.database.connection import connect
from integration.servers import DatabaseServer, Flavor
from integration.servers.database import SCHEMA, make_database
from invalidator.binlog.seek import BinaryLog, find_position

FLAVORS: Final[tuple[Flavor, ...]] = ("mariadb", "mysql")
FILES: Final = (4, 16, 64, 256)
TRANSACTIONS: Final = 200
"""In each file but the oldest."""

TRANSACTIONS_OLDEST: Final = 20_000
"""Of which the search reads half: the time lies in the middle of them."""

MARGIN_SECONDS: Final = {"mariadb": 1.0, "mysql": 0.0}
RUNS: Final = 3


def measure_seek(_: int) -> list[Result]:
    """One curve for each server."""
    return [_measure(flavor) for flavor in FLAVORS]


def _measure(flavor: Flavor) -> Result:
    server = make_database(flavor, server_id=1, options=("--sync-binlog=0",))
    try:
        server.launch()
        server.wait_ready()
        server.execute(f"CREATE DATABASE {SCHEMA}")
        for statement in (SMALL, SINGLE):
            server.execute(statement, database=SCHEMA)
        time_us = _write_oldest(server)
        address = ServerAddress("127.0.0.1", server.port, "app", "app", SCHEMA)
        margin = MARGIN_SECONDS[flavor]
        points: list[tuple[float, float]] = []
        whole: list[tuple[float, float]] = []
        for files in FILES:
            _fill_up(server, files)
            points.append(
                (files, _median_ms(partial(find_position, address, flavor, time_us, margin_seconds=margin)))
            )
            whole.append((files, _median_ms(partial(_read_whole, address, flavor))))
    finally:
        server.stop()
    return _result(flavor, points, whole)


def _result(flavor: Flavor, points: Sequence[tuple[float, float]], whole: Sequence[tuple[float, float]]) -> Result:
    ratios = [value / baseline for (_, value), (_, baseline) in zip(points, whole, strict=True)]
    return Result(
        f"seek_{flavor}",
        points[-1][1],
        "ms",
        "reading the log as a whole",
        whole[-1][1],
        (min(ratios), max(ratios)),
        points=tuple(points),
        axis="log files",
        baseline_points=tuple(whole),
    )


def _write_oldest(server: DatabaseServer) -> int:
    """Two halves of a log file, and the time between them, in µs. MariaDB notes whole seconds."""
    with server.connect(SCHEMA, read_timeout=300) as connection, connection.cursor() as cursor:
        cursor.execute("CALL singles(%s)", (TRANSACTIONS_OLDEST // 2,))
        time.sleep(3.0)
        time_us = time.time_ns() // 1000
        time.sleep(3.0)
        cursor.execute("TRUNCATE small")
        cursor.execute("CALL singles(%s)", (TRANSACTIONS_OLDEST // 2,))
    return time_us


def _fill_up(server: DatabaseServer, files: int) -> None:
    """Write log files until there are ``files``."""
    with server.connect(SCHEMA, read_timeout=300) as connection, connection.cursor() as cursor:
        while cursor.execute("SHOW BINARY LOGS") < files:
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("TRUNCATE small")
            cursor.execute("CALL singles(%s)", (TRANSACTIONS,))


def _read_whole(address: ServerAddress, flavor: Flavor) -> None:
    with closing(connect(address)) as connection:
        log = BinaryLog(connection, address, flavor)
        for _ in log.marks(log.files()[0]):
            pass


def _median_ms(work: Callable[[], object]) -> float:
    return median(stopwatch(work) for _ in range(RUNS)) * 1000
