"""Packets of a replication stream from a socket, many at once, and the checksums of the events in them.

A client library reads a packet with several calls and makes an object of it; here one large read is cut into all the
packets that it holds. Reads go into one preallocated buffer; allocating a new one for each read costs as much as
filling it. Not for the compressed protocol, which is not asked for. Never reconnects, and looks at nothing in a
packet but its first byte.
"""

from __future__ import annotations

import mmap
import socket
import struct
from typing import Final
from zlib import crc32

from pymysql.err import raise_mysql_exception

from freshness.errors import SourceUnavailable, StreamStopped

RECEIVE_BYTES: Final = 1 << 18
EVENT_BYTES_MAX: Final = (1 << 30) + (1 << 20)
"""The size of one event, joined from its packets; max_allowed_packet of both servers is at most 1 GB."""

_WHOLE: Final = 0xFFFFFF
"""A packet of this size goes on in the next one."""

_SIZE_MASK: Final = 0xFFFFFF
_HEAD: Final = struct.Struct("<I").unpack_from
_HEAD_BYTES: Final = 4
_OK: Final = 0
_ERROR: Final = b"\xff"

CHECKSUM_START: Final = 0x0F6A7026
"""crc32 that one zero byte turns into 0: the OK byte in front of an event is not in its checksum."""

CHECKSUM_RESIDUE: Final = 0x2144DF1C
"""crc32 of anything that ends with its own crc32."""


def check_sum(packet: bytes) -> None:
    """Raises `StreamStopped` if the event in the packet does not end with its checksum."""
    if crc32(packet, CHECKSUM_START) != CHECKSUM_RESIDUE:
        raise StreamStopped(
            f"an event of {len(packet)} bytes has a wrong checksum",
            hint="the binary log or the network is damaged; look with mysqlbinlog --verify-binlog-checksum",
        )


class PacketReader:
    """The packets that come on one socket, from the answer to a request of one packet on. Keeps to the socket's own
    timeout."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._number = 1
        self._buffer = mmap.mmap(-1, RECEIVE_BYTES)
        self._place = self._end = 0
        self._parts: list[bytes] = []

    def read(self) -> list[bytes]:
        """The next packets, each with the OK byte before its event: at least one, and all that are here already.

        Raises what the socket raises, pymysql's error for an error packet, `SourceUnavailable` if the stream ended or
        its packets are out of order, `StreamStopped` for one too large. The packets before an error are returned
        first, and the error is raised at the next call.
        """
        packets = self._cut()
        while not packets:
            self._receive()
            packets = self._cut()
        return packets

    def _cut(self) -> list[bytes]:
        """All whole packets that were received."""
        data, place, number, length = self._buffer, self._place, self._number, self._end
        packets: list[bytes] = []
        is_plain = not self._parts
        while place + _HEAD_BYTES <= length:
            head = _HEAD(data, place)[0]
            size = head & _SIZE_MASK
            start = place + _HEAD_BYTES
            end = start + size
            if end > length:
                break
            if is_plain and head >> 24 == number and 0 < size < _WHOLE and data[start] == _OK:
                packets.append(data[start:end])
            elif packets:
                # The packets in front of it are returned first, as this one may be an error.
                break
            else:
                self._place, self._number = place, number
                packets += self._cut_unusual(head >> 24, data[start:end])
                is_plain = not self._parts
            place = end
            number = number + 1 & 255
        self._place, self._number = place, number
        return packets

    def _cut_unusual(self, number: int, content: bytes) -> list[bytes]:
        """A packet that is an error, an end, out of order, or a part of an event that goes on in the next."""
        if number != self._number:
            raise SourceUnavailable(
                f"packet {number} came where {self._number} was expected",
                hint="something between here and the server disturbs the connection",
            )
        if not self._parts and content[:1] == _ERROR:
            raise_mysql_exception(content)
        if not self._parts and content[:1] != b"\0":
            raise SourceUnavailable("the server ended the stream", hint="it shuts down, or another reader took over")
        self._parts.append(content)
        if sum(map(len, self._parts)) > EVENT_BYTES_MAX:
            raise StreamStopped(f"an event of more than {EVENT_BYTES_MAX} bytes")
        if len(content) == _WHOLE:
            return []
        joined = b"".join(self._parts)
        self._parts.clear()
        return [joined]

    def _receive(self) -> None:
        """Read until the packet in front can be whole, into a larger buffer if it needs one."""
        have = self._end - self._place
        want = have + 1
        if have >= _HEAD_BYTES:
            want = max(want, _HEAD_BYTES + (_HEAD(self._buffer, self._place)[0] & _SIZE_MASK))
        size = max(want, RECEIVE_BYTES)
        if size != len(self._buffer):
            kept = self._buffer[self._place : self._end]
            self._buffer = mmap.mmap(-1, size)
            self._buffer[:have] = kept
        else:
            self._buffer.move(0, self._place, have)
        self._place, self._end = 0, have
        with memoryview(self._buffer) as view:
            while self._end < want:
                received = self._socket.recv_into(view[self._end :])
                if not received:
                    raise SourceUnavailable("the server closed the stream", hint="is the server up?")
                self._end += received
