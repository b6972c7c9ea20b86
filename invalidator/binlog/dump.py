"""The handshake of a replica: how a connection is asked for a server's binary log.

PyMySQL has no call for these commands, so its private attributes are touched, in this file alone. Each request draws
a random server id (and UUID) in a high range: to the server the reader is a replica, and of two replicas with one id
the newer one kicks the older one out. Errors are those of PyMySQL, the socket and the packets; the callers translate
them.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from freshness.database.connection import Connection, read_rows
from freshness.position import Position
from invalidator.binlog.wire.packets import PacketReader
from invalidator.binlog.wire.tagged import encode_gtid_set

_COM_BINLOG_DUMP: Final = 0x12
_COM_BINLOG_DUMP_GTID: Final = 0x1E
_THROUGH_GTID: Final = 0x04
_NON_BLOCKING: Final = 0x01
_FIRST_OFFSET: Final = 4
_SERVER_IDS: Final = range(0x8000_0000, 0xFFFF_FFF0)

_CHECKSUMS: Final = (
    "@master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum"
)
_PLAIN_GTIDS: Final = "@mariadb_slave_capability = 4"
"""MariaDB sends GTID events as they are, not dressed up as statements. MySQL ignores the variable."""


class Dump(NamedTuple):
    """``has_checksum``: flag, True if the first events end with a checksum; later each log file states it itself."""

    packets: PacketReader
    has_checksum: bool


def request_stream(connection: Connection, flavor: str, start: Position, heartbeat_seconds: float) -> Dump:
    """Request all transactions that are not in ``start``, and a heartbeat after ``heartbeat_seconds`` without events.
    The server refuses a position in its first packet."""
    [(checksum,)] = read_rows(connection, "SELECT @@global.binlog_checksum")
    period_ns = int(heartbeat_seconds * 1_000_000_000)
    identity = str(uuid.uuid4())
    settings = (
        f"SET {_CHECKSUMS}, @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns},"
        f" @slave_uuid = '{identity}', @replica_uuid = '{identity}'"
    )
    if flavor == "mariadb":
        settings += (
            f", {_PLAIN_GTIDS}, @slave_connect_state = '{start}'"
            ", @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0"
        )
        command = _encode_file_dump("", flags=0)
    else:
        command = _encode_gtid_dump(start)
    _send(connection, settings, command)
    return Dump(PacketReader(connection._sock), str(checksum).upper() != "NONE")  # type: ignore[attr-defined]


def dump_files(connection: Connection, file: str) -> Iterator[bytes]:
    """The events of the file and of all after it, as network packets, up to the present end."""
    _send(connection, f"SET {_CHECKSUMS}, {_PLAIN_GTIDS}", _encode_file_dump(file, flags=_NON_BLOCKING))
    raw: Any = connection
    while (packet := raw._read_packet()._data)[:1] == b"\0":
        yield packet


def shut_down(connection: Connection) -> None:
    """End a read of another thread on this connection."""
    raw: Any = connection
    connected = raw._sock
    if connected is not None:
        with contextlib.suppress(OSError):  # not connected any more: the thread is about to see the same
            # Not TLS's own shutdown, which takes the session from under the thread that reads.
            socket.socket.shutdown(connected, socket.SHUT_RDWR)


def force_close(connection: Connection) -> None:
    """Close without a farewell, which a connection that streams does not read. Harmless when it is closed."""
    raw: Any = connection
    raw._force_close()


def _send(connection: Connection, settings: str, command: bytes) -> None:
    read_rows(connection, settings)
    raw: Any = connection
    raw._write_bytes(struct.pack("<I", len(command)) + command)
    raw._next_seq_id = 1


def _draw_server_id() -> int:
    return random.SystemRandom().choice(_SERVER_IDS)


def _encode_file_dump(file: str, *, flags: int) -> bytes:
    return struct.pack("<BIHI", _COM_BINLOG_DUMP, _FIRST_OFFSET, flags, _draw_server_id()) + file.encode()


def _encode_gtid_dump(start: Position) -> bytes:
    gtids = encode_gtid_set(start.intervals())
    header = struct.pack("<BHII", _COM_BINLOG_DUMP_GTID, _THROUGH_GTID, _draw_server_id(), 0)
    return header + struct.pack("<QI", _FIRST_OFFSET, len(gtids)) + gtids
