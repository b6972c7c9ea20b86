"""The heartbeat row: liveness, real lag, and on MariaDB the watermark that reads from the primary need.

One row for each invalidator, and one row ``epoch`` for the database, in a table of the keyspace's own database
on the primary. A row is written in one autocommitted statement. No thread and no clock of its own: the
invalidator's application calls `HeartbeatWriter.beat` in its rhythm; the stream brings the row back and
``invalidator.binlog.transaction`` reads it with `parse_heartbeat`.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, server_identity, translated
from freshness.errors import FormatError, SourceUnsuitable
from freshness.stream.heartbeat import EPOCH_ROW, HEARTBEAT_TABLE, is_beat, topology_row
from freshness.stream.source import Heartbeat

Result = TypeVar("Result")

_NO_SUCH_TABLE: Final = 1146
ABANDONED_AFTER_US: Final = 24 * 3600 * 1_000_000
_INSTANCE_CHARACTERS_MAX: Final = 64

_CREATE = f"""CREATE TABLE IF NOT EXISTS {HEARTBEAT_TABLE} (
  id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  sequence BIGINT UNSIGNED NOT NULL,
  min_us BIGINT NOT NULL,
  max_us BIGINT NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  watermark VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE=InnoDB"""
_CREATE_EPOCH = f"INSERT IGNORE INTO {HEARTBEAT_TABLE} VALUES ('{EPOCH_ROW}', 0, 0, 0, 1, '')"
_BEAT = f"""INSERT INTO {HEARTBEAT_TABLE} (id, sequence, min_us, max_us, epoch, watermark)
SELECT %(id)s, %(sequence)s, %(min_us)s, %(max_us)s, origin.epoch, %(watermark)s
FROM {HEARTBEAT_TABLE} AS origin WHERE origin.id = '{EPOCH_ROW}'
  AND NOT EXISTS (SELECT * FROM {HEARTBEAT_TABLE} AS present
    WHERE present.id LIKE '=%%' AND present.watermark = %(namespace)s AND present.sequence > %(topology)s)
ON DUPLICATE KEY UPDATE sequence = %(sequence)s, min_us = %(min_us)s, max_us = %(max_us)s,
  epoch = origin.epoch, watermark = %(watermark)s"""

_RAISE_TOPOLOGY = f"""INSERT INTO {HEARTBEAT_TABLE} (id, sequence, min_us, max_us, epoch, watermark)
VALUES (%(topology_row)s, %(topology)s, 0, {1 << 62}, 0, %(namespace)s)
ON DUPLICATE KEY UPDATE sequence = GREATEST(sequence, %(topology)s)"""


def _now_us() -> int:
    return time.time_ns() // 1000


def new_instance() -> str:
    """A name for the heartbeats of this process: host, process id and a random part, so that no two are equal."""
    return f"{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(4)}"


class HeartbeatWriter:
    """Writes one invalidator's row to the primary. Not thread-safe.

    ``instance`` must be unique among the invalidators of this database: two of one name would count each other's
    row as their own round trip (F71). ``topology``: the number of the configuration for ``namespace``. If a later
    one is in force nothing is written, so that an invalidator with an old file vouches for no node (F102).
    ``lineage``: the shard's own, for the row with the number.
    """

    def __init__(
        self,
        address: ServerAddress,
        flavor: str,
        instance: str,
        clock_error_seconds: float,
        *,
        namespace: str = "",
        lineage: str = "",
        topology: int = 1,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        if not 0 < len(instance) <= _INSTANCE_CHARACTERS_MAX or not instance.isascii() or not is_beat(instance):
            raise FormatError(
                f"heartbeat instance {instance[:80]!r}",
                hint=f"expected 1 to {_INSTANCE_CHARACTERS_MAX} ASCII characters, not {EPOCH_ROW!r}, no '=' first",
            )
        self._address = address
        self._flavor = flavor
        self._instance = instance
        self._deployment: dict[str, Any] = {
            "topology_row": topology_row(namespace, lineage),
            "namespace": namespace,
            "topology": topology,
        }
        self._clock_error_us = round(clock_error_seconds * 1_000_000)
        self._now_us = now_us
        self._connection: Connection | None = None
        self._sequence: int | None = None

    def create(self) -> None:
        """Create the table and the epoch row if they are missing. Raises as `prepare`."""
        self._execute(_CREATE)
        self._execute(_CREATE_EPOCH)

    def prepare(self) -> None:
        """`create`; put the number of the topology in force; delete rows that are a day old. Raises
        `SourceUnavailable`, or `SourceUnsuitable` if the account lacks a privilege."""
        self.create()
        if self._deployment["topology"] != 1:
            self._execute(_RAISE_TOPOLOGY, self._deployment)
        self._execute(
            f"DELETE FROM {HEARTBEAT_TABLE} WHERE id NOT IN (%s, %s) AND max_us < %s",
            (EPOCH_ROW, self._instance, self._now_us() - ABANDONED_AFTER_US),
        )

    def rehearse(self) -> None:
        """Have the server refuse what it would refuse to `prepare`, `beat` or `raise_epoch`. It changes nothing and
        logs nothing. Raises as `prepare`: the account lacks a privilege, or the server is read-only."""
        self._execute("PREPARE freshness_rehearsal FROM %s", (_CREATE,))  # refused where CREATE would be
        row = {"id": self._instance, "sequence": 0, "min_us": 0, "max_us": 0, "watermark": "", **self._deployment}
        for sql, parameters in (
            (f"SELECT epoch FROM {HEARTBEAT_TABLE} WHERE id = %(id)s", row),
            (_BEAT, row),
            (f"UPDATE {HEARTBEAT_TABLE} SET epoch = epoch + 1 WHERE id = %(id)s", row),
            (f"DELETE FROM {HEARTBEAT_TABLE} WHERE id = %(id)s", row),
        ):
            self._execute("BEGIN")
            try:
                self._execute(sql, parameters)
            except SourceUnsuitable as error:
                if error.__cause__ is None or error.__cause__.args[0] != _NO_SUCH_TABLE:
                    raise
            else:
                self._execute("ROLLBACK")

    def take_sequence(self) -> int:
        """The next sequence number. It is never given again, even if it is unknown whether its row was written.
        Raises as `prepare`."""
        if self._sequence is None:
            rows, _ = self._execute(f"SELECT sequence FROM {HEARTBEAT_TABLE} WHERE id = %s", (self._instance,))
            self._sequence = int(rows[0][0]) if rows else 0
        self._sequence += 1
        return self._sequence

    def find_primary(self) -> str:
        """The identity of the server that the next beat goes to, on the same connection. Raises as `prepare`."""
        return self._run(lambda connection: server_identity(connection, self._flavor))

    def beat(self, sequence: int | None = None) -> int:
        """Write the row with ``sequence``, by default with the next one. Returns the number. Raises as `prepare`.

        On MariaDB the row carries a watermark: ``@@last_gtid``, the GTID of this session's previous beat. That
        commit had returned before this row was written, and MariaDB makes transactions of a domain visible in
        the order of the log. So a reader that sees this row on the primary also sees every commit up to the
        watermark. No variable of a MariaDB primary says that: `gtid_binlog_pos` runs ahead of the engine
        (docs/adr/0010-mariadb-watermark.md).
        It is empty after a reconnect, and on MySQL, where ``@@global.gtid_executed`` serves.
        """
        if sequence is None:
            sequence = self.take_sequence()
        now_us = self._now_us()
        parameters = {
            "id": self._instance,
            "sequence": sequence,
            "min_us": now_us - self._clock_error_us,
            "max_us": now_us + self._clock_error_us,
            "watermark": self._read_watermark(),
            **self._deployment,
        }
        if self._execute(_BEAT, parameters)[1] == 0:
            self._require_topology()
            raise SourceUnsuitable(
                f"{self._address.host}:{self._address.port}: {HEARTBEAT_TABLE} has no row {EPOCH_ROW!r}",
                hint="its epoch is unknown: restore the row with a higher epoch than ever before",
            )
        return sequence

    def _require_topology(self) -> None:
        rows, _ = self._execute(
            f"SELECT COALESCE(MAX(sequence), 0) FROM {HEARTBEAT_TABLE} WHERE id LIKE '=%%' AND watermark = %s",
            (self._deployment["namespace"],),
        )
        own, latest = self._deployment["topology"], int(rows[0][0])
        if latest > own:
            raise SourceUnsuitable(
                f"{self._address.host}:{self._address.port}: topology {latest} is in force, this process has "
                f"topology {own}",
                hint="load the present freshness.toml; a previous topology is never served again",
            )

    def epoch(self) -> int:
        """The epoch that is in force on the primary. Raises as `beat`."""
        rows, _ = self._execute(f"SELECT epoch FROM {HEARTBEAT_TABLE} WHERE id = %s", (EPOCH_ROW,))
        if not rows:
            raise SourceUnsuitable(f"{HEARTBEAT_TABLE} has no row {EPOCH_ROW!r}", hint="run prepare")
        return int(rows[0][0])

    def raise_epoch(self) -> int:
        """Declare the history lost (F28, F29): positions of another epoch compare as UNKNOWN. Returns the
        new epoch."""
        self._execute(f"UPDATE {HEARTBEAT_TABLE} SET epoch = epoch + 1 WHERE id = %s", (EPOCH_ROW,))
        return self.epoch()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it may be dead already, and nothing depends on a farewell
                connection.close()

    def _read_watermark(self) -> str:
        if self._flavor != "mariadb":
            return ""
        rows, _ = self._execute("SELECT @@last_gtid")
        return str(rows[0][0] or "")

    def _execute(self, sql: str, parameters: Any = None) -> tuple[list[tuple[Any, ...]], int]:
        """The rows and the number of changed rows."""

        def execute(connection: Connection) -> tuple[list[tuple[Any, ...]], int]:
            with connection.cursor() as cursor:
                count = cursor.execute(sql, parameters)
                return list(cursor.fetchall()), count

        return self._run(execute)

    def _run(self, work: Callable[[Connection], Result]) -> Result:
        """After an error the next call opens a new connection."""
        if self._connection is None:
            self._connection = connect(self._address)
        try:
            return work(self._connection)
        except Exception as error:
            self.close()
            raise translated(error, self._address, "writing the heartbeat") from error


def parse_heartbeat(row: Mapping[str, object]) -> Heartbeat:
    """Read a row of the heartbeat table. Raises `FormatError` if it is not one."""
    numbers: list[int] = []
    for name in ("sequence", "min_us", "max_us", "epoch"):
        value = row.get(name)
        if not isinstance(value, int):
            raise FormatError(f"heartbeat row has {name} = {value!r}", hint="expected a whole number")
        numbers.append(value)
    instance = row.get("id")
    if not isinstance(instance, str):
        raise FormatError(f"heartbeat row has id = {instance!r}", hint="expected text")
    return Heartbeat(instance, *numbers)
