"""Compressed events: MariaDB's one by one (zlib), MySQL's as whole transactions (zstd).

The unpacked events are those that the server would have written without compression. Bytes that do not add up raise
`StreamStopped`: nothing in a stream is skipped.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from freshness.errors import FormatError, StreamStopped
from invalidator.binlog.wire.event import QUERY, LogEvent
from invalidator.binlog.wire.tablemap import read_packed

TRANSACTION_PAYLOAD: Final = 40
QUERY_COMPRESSED: Final = 165
PLAIN_KINDS: Final = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""Compressed row events of MariaDB, and what they are without compression."""

_SECOND_VERSION: Final = 30
_UPDATES: Final = (24, 31)

EVENT_BYTES_MAX: Final = 1 << 30
"""The size of one unpacked event; both servers bound an event to this."""

_KIND_PLACE: Final = 5
_SIZE_PLACE: Final = 10
_HEADER: Final = struct.Struct("<IBIIIH")
_PAYLOAD_END, _PAYLOAD_SIZE, _PAYLOAD_METHOD, _PAYLOAD_LENGTH = range(4)
_METHOD_ZSTD: Final = 0
_METHOD_NONE: Final = 255


def unpack_rows(event: LogEvent) -> LogEvent:
    """The row event without compression: only its rows are compressed, which begin behind the bitmaps."""
    kind = PLAIN_KINDS[event.kind]
    try:
        place = event.start + 8
        if kind >= _SECOND_VERSION:
            place += int.from_bytes(event.packet[place : place + 2], "little")
        count, place = read_packed(event.packet, place)
    except (IndexError, FormatError) as error:
        raise _damaged(event, "it is shorter than its head") from error
    bitmaps = 2 if kind in _UPDATES else 1
    return _replaced(event, kind, place + bitmaps * ((count + 7) >> 3))


def unpack_query(event: LogEvent, post_header_length: int = 13) -> LogEvent:
    """The QUERY event of a QUERY_COMPRESSED: only the statement's text is compressed."""
    body = event.body
    if len(body) < post_header_length:
        raise StreamStopped(f"event {event.kind} at {event.log_pos} is shorter than its parts")
    database_length, status_length = body[8], int.from_bytes(body[11:13], "little")
    text = event.start + post_header_length + status_length + database_length + 1
    return _replaced(event, QUERY, text)


def unpack_transaction(event: LogEvent) -> Iterator[bytes]:
    """The events of a TRANSACTION_PAYLOAD as packets (with the OK byte), one after the other. They have no checksums.
    If the events of the log have one, zero bytes stand in its place, so that all are read alike."""
    trailer = bytes(len(event.packet) - event.end)
    method, length, content = _read_payload(event)
    if method == _METHOD_NONE:
        reader: Any = io.BytesIO(content)
    elif method == _METHOD_ZSTD:
        reader = _open_zstd(content)
    else:
        raise _damaged(event, f"the unknown compression method {method}")
    done = 0
    while done < length:
        header = _read_exactly(event, reader, _HEADER.size)
        size = _HEADER.unpack(header)[3]
        if not _HEADER.size <= size <= min(EVENT_BYTES_MAX, length - done):
            raise _damaged(event, f"an event of {size} bytes in {length - done}")
        body = _read_exactly(event, reader, size - _HEADER.size)
        yield _resized(b"\0" + header + body + trailer)
        done += size


def _read_payload(event: LogEvent) -> tuple[int, int, bytes]:
    """(method, length when unpacked, content)."""
    body, place = event.body, 0
    fields: dict[int, int] = {}
    try:
        while True:
            kind, place = read_packed(body, place)
            if kind == _PAYLOAD_END:
                break
            size, place = read_packed(body, place)
            fields[kind] = read_packed(body[: place + size], place)[0]
            place += size
    except (IndexError, FormatError) as error:
        raise _damaged(event, "its header does not add up") from error
    content = body[place:]
    if fields.get(_PAYLOAD_SIZE) != len(content) or _PAYLOAD_METHOD not in fields:
        raise _damaged(event, f"{len(content)} bytes of content, announced {fields.get(_PAYLOAD_SIZE)}")
    length = fields.get(_PAYLOAD_LENGTH, len(content))
    return fields[_PAYLOAD_METHOD], length, content


def _open_zstd(content: bytes) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise StreamStopped(
            "a TRANSACTION_PAYLOAD event came, and the package zstandard is not installed",
            hint="install zstandard, or set binlog_transaction_compression=OFF, also in every session",
        ) from error
    return zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)


def _read_exactly(event: LogEvent, reader: Any, size: int) -> bytes:
    parts, missing = [], size
    try:
        while missing:
            part = reader.read(missing)
            if not part:
                raise _damaged(event, f"it ends {missing} bytes early")
            parts.append(part)
            missing -= len(part)
    except StreamStopped:
        raise
    except Exception as error:  # of a package that may not be there to import its errors from
        raise _damaged(event, repr(error)) from error
    return b"".join(parts)


def _replaced(event: LogEvent, kind: int, start: int) -> LogEvent:
    """The event with another number, and with what is compressed from ``start`` on unpacked. Its checksum is void."""
    if start >= event.end:
        raise _damaged(event, "nothing is compressed in it")
    content = _inflate(event, event.packet[start : event.end])
    head = event.packet[:_KIND_PLACE] + bytes((kind,)) + event.packet[_KIND_PLACE + 1 : start]
    trailer = event.packet[event.end :]
    packet = _resized(head + content + trailer)
    return event._replace(kind=kind, packet=packet, end=len(packet) - len(trailer))


def _resized(packet: bytes) -> bytes:
    """The packet with its own length in the event's header."""
    return packet[:_SIZE_PLACE] + (len(packet) - 1).to_bytes(4, "little") + packet[_SIZE_PLACE + 4 :]


def _inflate(event: LogEvent, data: bytes) -> bytes:
    """MariaDB: a byte with the method and the number of bytes of the length, the length (big-endian), zlib."""
    if data[0] & 0xF0 != 0x80:
        raise _damaged(event, f"the unknown compression method {data[0]:#x}")
    size = data[0] & 7
    length = int.from_bytes(data[1 : 1 + size], "big")
    if length > EVENT_BYTES_MAX:
        raise _damaged(event, f"{length} bytes when unpacked")
    try:
        content = zlib.decompressobj().decompress(data[1 + size :], length + 1)
    except zlib.error as error:
        raise _damaged(event, str(error)) from error
    if len(content) != length:
        raise _damaged(event, f"{len(content)} bytes came out, not {length}")
    return content


def _damaged(event: LogEvent, what: str) -> StreamStopped:
    return StreamStopped(
        f"the compressed event {event.kind} at {event.log_pos} cannot be unpacked: {what}",
        hint="turn compression of the binary log off, and look whether the log is damaged",
    )
