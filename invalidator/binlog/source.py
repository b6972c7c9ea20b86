"""A source that reads the binary log of MySQL or MariaDB as a replica does.

A thread receives and decodes while the caller applies; between them is a bounded mailbox, and errors travel
through it behind the transactions that came before them. This module never reconnects and never chooses a
position: after an error the caller opens it again from what was acknowledged (F14). Rows are decoded by
mysql-replication (``invalidator.binlog.rows.decoder``); its stream loop is not used, as it reconnects by itself from
the original position and drops what it does not know. Built by the composition root, used as
`freshness.stream.source.Source`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final

import pymysql

from freshness.config.settings import ServerAddress
from freshness.database.connection import Connection, connect, read_rows, translated
from freshness.database.schema import find_cascades
from freshness.errors import FreshnessError, SourceUnavailable, StreamStopped
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from freshness.stream.source import Transaction
from invalidator.binlog.decoder import EventDecoder
from invalidator.binlog.transaction import Cascades, Subject
from invalidator.binlog.wire.packets import PacketReader
from invalidator.mailbox import (
    ROWS_QUEUED_MAX,
    TRANSACTION_ROWS_MAX,
    TRANSACTIONS_QUEUED_MAX,
    Mailbox,
    measure,
)
from invalidator.replica.server import check_start

READ_TIMEOUT_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 4.0
JOIN_SECONDS: Final = 5.0

_COM_BINLOG_DUMP: Final = 0x12
_COM_BINLOG_DUMP_GTID: Final = 0x1E
_BINLOG_THROUGH_GTID: Final = 0x04
_FIRST_OFFSET: Final = 4
_SERVER_IDS: Final = range(0x8000_0000, 0xFFFF_FFF0)


class BinlogSource:
    """See the module. `open`, `poll` and `close` belong to one thread of the caller.

    Each `open` draws a random server id (and UUID) in a high range: to the server this is a replica, and of two
    replicas with the same id the newer one kicks the older one out.
    """

    def __init__(
        self,
        address: ServerAddress,
        flavor: str,
        tables: frozenset[str],
        *,
        heartbeat_table: str = HEARTBEAT_TABLE,
        cascades: Cascades | None = None,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        transaction_rows_max: int = TRANSACTION_ROWS_MAX,
        piece_rows: int | None = None,
        definitions: Mapping[str, ObjectDefinition] | None = None,
        transactions_queued_max: int = TRANSACTIONS_QUEUED_MAX,
        rows_queued_max: int = ROWS_QUEUED_MAX,
    ) -> None:
        """``cascades``: foreign keys known to the caller, beside those that the server shows at each `open`.

        ``piece_rows``: deliver transactions in pieces of about so many rows (`Transaction.is_last`); without it
        one of more than ``transaction_rows_max`` rows raises its tables. ``definitions``: deliver the cache items of
        these objects instead of rows, many times faster (`Transaction.items`).
        """
        assert 0 < heartbeat_seconds * 2 <= read_timeout_seconds, "an idle stream would look dead"
        self._address = address
        self._flavor = flavor
        self._read_timeout_seconds = read_timeout_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._mailbox_bounds = (transactions_queued_max, rows_queued_max)
        self._tables = tables - {heartbeat_table}
        self._known_cascades = dict(cascades or {})
        subject = Subject(flavor, address.database, self._tables, heartbeat_table)
        self._decoder = EventDecoder(
            subject,
            find_cascades=self._find_cascades,
            rows_max=transaction_rows_max,
            piece_rows=piece_rows,
            definitions=definitions,
        )
        self._reader: _Reader | None = None

    def open(self, start: Position) -> None:
        """See `Source.open`. An empty ``start`` is the beginning of all history, and refused by a server that has
        purged it. Raises `SourceUnsuitable` for tagged GTIDs in ``start``, which the protocol used cannot name.
        """
        self.close()
        connection = connect(self._address, read_timeout_seconds=self._read_timeout_seconds)
        try:
            check_start(connection, self._flavor, start, self._address)
            has_checksum = self._request_stream(connection, start)
            # The server refuses a position in its first answer, or else begins with a ROTATE event.
            packets = PacketReader(connection._sock)  # type: ignore[attr-defined]
            first = packets.read()
            self._decoder.restart(has_checksum=has_checksum)
        except Exception as error:
            _force_close(connection)
            raise translated(error, self._address, "starting to stream") from error
        mailbox = Mailbox(measure, *self._mailbox_bounds)
        self._reader = _Reader(connection, self._address, self._decoder, mailbox, packets, first)
        self._reader.start()

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """See `Source.poll`."""
        if self._reader is None:
            raise SourceUnavailable(f"the stream of {self._address.host}:{self._address.port} is not open")
        return self._reader.mailbox.take(timeout_seconds, transactions_max)

    def close(self) -> None:
        """See `Source.close`. Returns within `JOIN_SECONDS`."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()

    def _find_cascades(self) -> Cascades:
        try:
            with connect(self._address, timeout_seconds=self._read_timeout_seconds) as connection:
                found = find_cascades(connection, self._address.database, self._tables)
        except Exception as error:
            raise translated(error, self._address, "reading the foreign keys") from error
        for child, parents in self._known_cascades.items():
            found[child] = found.get(child, frozenset()) | parents
        return found

    def _request_stream(self, connection: Connection, start: Position) -> bool:
        """Ask for the stream; whether checksums come with the first events."""
        [(checksum,)] = read_rows(connection, "SELECT @@global.binlog_checksum")
        period_ns = int(self._heartbeat_seconds * 1_000_000_000)
        server_id = random.SystemRandom().choice(_SERVER_IDS)
        identity = str(uuid.uuid4())
        settings = (
            "SET @master_binlog_checksum = @@global.binlog_checksum,"
            " @source_binlog_checksum = @@global.binlog_checksum,"
            f" @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns},"
            f" @slave_uuid = '{identity}', @replica_uuid = '{identity}'"
        )
        if self._flavor == "mariadb":
            # Capability 4: GTID events as they are, not dressed up as statements.
            settings += (
                f", @mariadb_slave_capability = 4, @slave_connect_state = '{start}'"
                ", @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0"
            )
            command = struct.pack("<BIHI", _COM_BINLOG_DUMP, _FIRST_OFFSET, 0, server_id)
        else:
            command = _encode_gtid_dump(server_id, start)
        read_rows(connection, settings)
        raw: Any = connection  # the same private calls that mysql-replication makes
        raw._write_bytes(struct.pack("<I", len(command)) + command)
        raw._next_seq_id = 1
        return str(checksum).upper() != "NONE"


def _encode_gtid_dump(server_id: int, start: Position) -> bytes:
    gtids = _encode_gtid_set(start)
    header = struct.pack("<BHII", _COM_BINLOG_DUMP_GTID, _BINLOG_THROUGH_GTID, server_id, 0)
    return header + struct.pack("<QI", _FIRST_OFFSET, len(gtids)) + gtids


def _encode_gtid_set(start: Position) -> bytes:
    """The set as the server reads it: count of sources, then UUID, count of intervals, each from … up to below."""
    by_source = start.intervals()
    out = [struct.pack("<Q", len(by_source))]
    for source, intervals in by_source.items():
        if ":" in source:
            raise StreamStopped(
                f"the start position has tagged GTIDs: {source}",
                hint="tagged GTIDs are not supported: do not set gtid_next='AUTOMATIC:tag' on this server",
            )
        out.append(uuid.UUID(source).bytes + struct.pack("<Q", len(intervals)))
        out += (struct.pack("<QQ", first, last + 1) for first, last in intervals)
    return b"".join(out)


def _force_close(connection: Connection) -> None:
    raw: Any = connection
    raw._force_close()


class _Reader:
    """The thread that receives, decodes, and puts into the mailbox, until an error or `stop`."""

    def __init__(
        self,
        connection: Connection,
        address: ServerAddress,
        decoder: EventDecoder,
        mailbox: Mailbox[Transaction],
        packets: PacketReader,
        first: list[bytes],
    ) -> None:
        self.mailbox = mailbox
        self._connection = connection
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]
        self._address = address
        self._decoder = decoder
        self._packets = packets
        self._first = first
        self._thread = threading.Thread(
            target=self._run, name=f"binlog {address.host}:{address.port}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread: it waits either in the mailbox or in the socket."""
        self.mailbox.close()
        with contextlib.suppress(OSError):  # not connected any more: the thread is about to see the same
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(JOIN_SECONDS)
        _force_close(self._connection)

    def _run(self) -> None:
        try:
            packets = self._first
            while True:
                found: list[Transaction] = []
                try:
                    self._decoder.decode(packets, found)
                finally:
                    # Those before an error go before it.
                    is_wanted = self.mailbox.put(found)
                if not is_wanted:
                    return
                packets = self._packets.read()
        except Exception as error:  # noqa: BLE001 - it must reach the caller, whatever it is
            self.mailbox.fail(self._describe(error))
        finally:
            _force_close(self._connection)

    def _describe(self, error: Exception) -> FreshnessError:
        if isinstance(error, (FreshnessError, pymysql.MySQLError, OSError)):
            described = translated(error, self._address, "streaming")
        else:
            described = StreamStopped(
                f"{self._address.host}:{self._address.port}: an event could not be decoded: {error!r}",
                hint="report it with the server's version",
            )
        if described is not error:
            described.__cause__ = error
        return described
