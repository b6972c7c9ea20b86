"""Events of the binary log as bytes: their numbers, their headers, and the bodies that mark transactions.

The row events are left to ``invalidator.binlog.rows.decoder``. A body is parsed by fixed offsets that both servers
keep stable; a body that is too short or unknown raises `StreamStopped`, never a guess.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from freshness.errors import StreamStopped
from freshness.position import MariadbPosition, MysqlGtidSet, Position
from invalidator.statement import Xid

QUERY: Final = 2
ROTATE: Final = 4
FORMAT_DESCRIPTION: Final = 15
XID: Final = 16
EXECUTE_LOAD_QUERY: Final = 18
TABLE_MAP: Final = 19
GTID: Final = 33
ANONYMOUS_GTID: Final = 34
XA_PREPARE: Final = 38
GTID_TAGGED: Final = 42
MARIADB_GTID: Final = 162
ROW_EVENTS: Final[dict[int, str]] = {
    23: "insert",
    24: "update",
    25: "delete",
    30: "insert",
    31: "update",
    32: "delete",
    39: "update",  # PARTIAL_UPDATE_ROWS
}

HARMLESS: Final = frozenset(
    (
        3,  # STOP
        5,  # INTVAR, and the next two: parameters of the statement that follows as a QUERY event
        13,  # RAND
        14,  # USER_VAR
        9,  # APPEND_BLOCK, and the next two: data of a LOAD DATA that follows as EXECUTE_LOAD_QUERY
        11,  # DELETE_FILE
        17,  # BEGIN_LOAD_QUERY
        27,  # HEARTBEAT
        28,  # IGNORABLE
        29,  # ROWS_QUERY, the statement's text
        35,  # PREVIOUS_GTIDS
        36,  # TRANSACTION_CONTEXT of Group Replication
        37,  # VIEW_CHANGE of Group Replication
        41,  # HEARTBEAT_V2
        160,  # MariaDB ANNOTATE_ROWS, the statement's text
        161,  # MariaDB BINLOG_CHECKPOINT
        163,  # MariaDB GTID_LIST
        164,  # MariaDB START_ENCRYPTION
    )
)
"""Events that say nothing about rows. An event that is not listed here and not handled stops the stream (F27)."""

REMEDIES: Final[dict[int, tuple[str, str]]] = {
    26: ("INCIDENT", "the server lost events of its own log; rebuild the cache: end the lives of all nodes"),
    ANONYMOUS_GTID: ("ANONYMOUS_GTID", "a transaction without a GTID: set gtid_mode=ON on the server"),
}

IGNORABLE_FLAG: Final = 0x80
"""Set by the server on events that a reader may pass without understanding them."""

CHECKSUM_BYTES: Final = 4
_HEADER: Final = struct.Struct("<xIBIIIH")
_HEADER_BYTES: Final = _HEADER.size  # with the OK byte of the network packet


class LogEvent(NamedTuple):
    """One event: the header, the whole network packet, and the bounds of the body in it."""

    kind: int
    timestamp_seconds: int
    server_id: int
    log_pos: int
    flags: int
    packet: bytes
    start: int
    end: int

    @property
    def body(self) -> bytes:
        return self.packet[self.start : self.end]


def parse_event(packet: bytes, *, has_checksum: bool) -> LogEvent:
    """Read the header of a network packet that starts with the OK byte. Raises `StreamStopped`."""
    end = len(packet) - (CHECKSUM_BYTES if has_checksum else 0)
    if end < _HEADER_BYTES:
        raise StreamStopped(f"an event of {len(packet)} bytes is shorter than its header")
    timestamp_seconds, kind, server_id, size, log_pos, flags = _HEADER.unpack_from(packet)
    if size != len(packet) - 1:
        raise StreamStopped(f"event {kind} at {log_pos} announces {size} bytes and has {len(packet) - 1}")
    return LogEvent(kind, timestamp_seconds, server_id, log_pos, flags, packet, _HEADER_BYTES, end)


class FormatDescription(NamedTuple):
    """A log file's description of the events that follow."""

    post_header_lengths: tuple[int, ...]
    has_checksum: bool


def parse_format_description(packet: bytes) -> FormatDescription:
    """Read a FORMAT_DESCRIPTION event. It always ends with the algorithm and a checksum (MySQL 5.6, MariaDB 5.3)."""
    fixed = _HEADER_BYTES + 2 + 50 + 4 + 1
    if len(packet) < fixed + 1 + CHECKSUM_BYTES:
        raise StreamStopped("a FORMAT_DESCRIPTION event is too short", hint="the server is too old")
    algorithm = packet[-CHECKSUM_BYTES - 1]
    lengths = tuple(packet[fixed : -CHECKSUM_BYTES - 1])
    if algorithm > 1:
        raise StreamStopped(
            f"unknown binlog checksum algorithm {algorithm}", hint="set binlog_checksum to CRC32 or NONE"
        )
    return FormatDescription(lengths, algorithm == 1)


class GroupStart(NamedTuple):
    """A GTID event. ``in_transaction``: a commit ends the group, not its first statement. ``is_xa``: it ends with XA
    PREPARE (MariaDB; MySQL has a statement for it)."""

    position: Position
    timestamp_us: int
    in_transaction: bool
    is_xa: bool = False


def parse_mysql_gtid(event: LogEvent) -> GroupStart:
    """Read event 33. The time is that of the commit on the server that executed it first, in µs."""
    body = _at_least(event, 25)
    position = MysqlGtidSet.of(str(uuid.UUID(bytes=body[1:17])), int.from_bytes(body[17:25], "little"))
    timestamp_us = event.timestamp_seconds * 1_000_000
    # flags 1, source 16, number 8, kind of clock 1, last committed 8, sequence number 8, then the commit times:
    # 7 bytes, the top bit of which says that another 7 with the original time follow.
    if len(body) >= 49:
        timestamp_us = int.from_bytes(body[42:49], "little")
        if timestamp_us >> 55:
            timestamp_us = int.from_bytes(_at_least(event, 56)[49:56], "little")
    # MySQL says with a statement BEGIN that a commit will follow.
    return GroupStart(position, timestamp_us, in_transaction=False)


def parse_mariadb_gtid(event: LogEvent) -> GroupStart:
    """Read event 162. Flag 1 (standalone): the group is one statement without a commit. Flag 64: an XA PREPARE."""
    body = _at_least(event, 13)
    sequence, domain, flags = struct.unpack_from("<QIB", body)
    position = MariadbPosition.of(domain, event.server_id, sequence)
    timestamp_us = event.timestamp_seconds * 1_000_000
    return GroupStart(position, timestamp_us, in_transaction=not flags & 1, is_xa=bool(flags & 64))


class Query(NamedTuple):
    sql: str
    default_database: str


def parse_query(event: LogEvent, post_header_length: int = 13) -> Query:
    """Read a statement. The status variables are stepped over by their length: unknown ones do no harm (F26)."""
    body = _at_least(event, post_header_length)
    _, _, database_length, _, status_length = struct.unpack_from("<IIBHH", body)
    start = post_header_length + status_length
    end = start + database_length
    if end + 1 > len(body):
        raise StreamStopped(f"QUERY event at {event.log_pos} is shorter than its parts")
    database = body[start:end].decode("utf-8", "backslashreplace")
    return Query(body[end + 1 :].decode("utf-8", "backslashreplace"), database)


def parse_xa_prepare(event: LogEvent) -> tuple[Xid, bool]:
    """Read event 38: the XA transaction, and whether it is committed at once (ONE PHASE)."""
    body = _at_least(event, 13)
    one_phase, format_id, global_length, branch_length = struct.unpack_from("<?III", body)
    if 13 + global_length + branch_length > len(body):
        raise StreamStopped(f"XA_PREPARE event at {event.log_pos} is shorter than its parts")
    middle = 13 + global_length
    return Xid(body[13:middle], body[middle : middle + branch_length], format_id), one_phase


def _at_least(event: LogEvent, length: int) -> bytes:
    if event.end - event.start < length:
        raise StreamStopped(
            f"event {event.kind} at {event.log_pos} has {event.end - event.start} bytes, not {length}"
        )
    return event.body
