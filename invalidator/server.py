"""What a database server reports of its positions and its role, and whether it can serve a start position.

Connections and the translation of errors are in ``freshness.backends.database``. Called by ``invalidator.binlog``,
the preflight and the composition root.
"""

from __future__ import annotations

import pymysql

from freshness.backends.database import Connection, executed_position, read_rows
from freshness.config import ServerAddress
from freshness.errors import HistoryLost, HistoryPurged, SourceUnavailable
from freshness.position import Position, parse_position


def is_replica(connection: Connection, flavor: str) -> bool:
    """Whether this server is set up to follow another one, running or not."""
    if flavor == "mariadb":
        return bool(read_rows(connection, "SHOW ALL SLAVES STATUS"))
    try:
        return bool(read_rows(connection, "SHOW REPLICA STATUS"))
    except pymysql.err.ProgrammingError:  # before MySQL 8.0.22
        return bool(read_rows(connection, "SHOW SLAVE STATUS"))


def check_start(connection: Connection, flavor: str, start: Position, address: ServerAddress) -> None:
    """Find out whether this server can still stream everything that is not in ``start``.

    Raises `HistoryLost` where the logs are purged (F15), or where a primary lacks part of ``start`` (F28, F29);
    `SourceUnavailable` where a replica lacks it: it may only lag. On MariaDB purged logs show when streaming
    starts, since no variable tells. A history that was replaced and has grown past ``start`` is not seen here:
    the epoch is for that.
    """
    where = f"{address.host}:{address.port}"
    executed = executed_position(connection, flavor)
    if not executed.contains(start):
        if is_replica(connection, flavor):
            raise SourceUnavailable(
                f"replica {where} has not yet executed all of the start position",
                hint="wait for it, or stream from another server",
            )
        raise HistoryLost(
            f"{where} has never executed all of the start position: it has {str(executed)[:200]!r},"
            f" the start is {str(start)[:200]!r}",
            hint="a future position or another history (F28, F29): raise the epoch and end the lives of all nodes",
        )
    if flavor == "mysql":
        [(text,)] = read_rows(connection, "SELECT @@global.gtid_purged")
        purged = parse_position(flavor, str(text).replace("\n", ""))
        if not start.contains(purged):
            raise HistoryPurged(
                f"{where} no longer has the log from the start position: purged is {str(purged)[:200]!r}",
                hint="purged (F15): the lives of all nodes must end; keep binary logs longer than the longest outage",
            )
