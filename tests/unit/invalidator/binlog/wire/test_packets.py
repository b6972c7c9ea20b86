"""The packet reader: cutting, joining, order, errors; and the checksum of an event in its packet."""

from __future__ import annotations

import random
import socket
import struct
import zlib

import pymysql
import pytest

from freshness.errors import SourceUnavailable, StreamStopped
from invalidator.binlog.wire import packets
from invalidator.binlog.wire.packets import PacketReader, check_sum


class Wire:
    """A socket that hands out these bytes in pieces, then nothing."""

    def __init__(self, data: bytes, piece_bytes: int) -> None:
        self._data, self._place, self._piece_bytes = data, 0, piece_bytes
        self.reads = 0

    def recv_into(self, buffer: memoryview) -> int:
        self.reads += 1
        part = self._data[self._place : self._place + min(len(buffer), self._piece_bytes)]
        self._place += len(part)
        buffer[: len(part)] = part
        return len(part)


def frame(*contents: bytes, first_number: int = 1) -> bytes:
    return b"".join(
        struct.pack("<I", len(content) | (first_number + place & 255) << 24) + content
        for place, content in enumerate(contents)
    )


def reader_of(data: bytes, piece_bytes: int = 1 << 20) -> PacketReader:
    return PacketReader(Wire(data, piece_bytes))  # type: ignore[arg-type]


def read_all(reader: PacketReader, count: int) -> list[bytes]:
    """This many packets, and nothing behind them."""
    found: list[bytes] = []
    while len(found) < count:
        found += reader.read()
    with pytest.raises(SourceUnavailable, match="closed"):
        reader.read()
    return found


@pytest.mark.parametrize("piece_bytes", [1, 3, 4, 5, 64, 1 << 20])
def test_packets_come_out_as_they_were_whatever_the_pieces(piece_bytes: int) -> None:
    chance = random.Random(piece_bytes)
    events = [b"\0" + chance.randbytes(chance.randrange(0, 90)) for _ in range(600)]
    assert read_all(reader_of(frame(*events), piece_bytes), 600) == events


def test_one_read_gives_all_that_is_there() -> None:
    assert len(reader_of(frame(*(b"\0event",) * 300)).read()) == 300


@pytest.mark.parametrize("last_bytes", [0, 1, 500])
@pytest.mark.parametrize("piece_bytes", [7, 100, 1 << 20])
def test_an_event_of_several_packets_is_joined(
    monkeypatch: pytest.MonkeyPatch, last_bytes: int, piece_bytes: int
) -> None:
    monkeypatch.setattr(packets, "_WHOLE", 1000)
    chance = random.Random(1)
    large = [b"\0" + chance.randbytes(999), chance.randbytes(1000), chance.randbytes(last_bytes)]
    data = frame(b"\0before", *large, b"\0after")
    assert read_all(reader_of(data, piece_bytes), 3) == [b"\0before", b"".join(large), b"\0after"]


def test_the_second_packet_of_an_event_may_look_like_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_WHOLE", 10)
    data = frame(b"\0" * 10, b"\xff" * 10, b"\xfe")
    assert reader_of(data).read() == [b"\0" * 10 + b"\xff" * 10 + b"\xfe"]


def test_a_large_packet_is_not_copied_with_every_read() -> None:
    wire = Wire(frame(b"\0" + bytes(16_000_000)), 1 << 18)
    assert len(PacketReader(wire).read()[0]) == 16_000_001  # type: ignore[arg-type]
    assert wire.reads < 70


def test_an_event_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_WHOLE", 10)
    monkeypatch.setattr(packets, "EVENT_BYTES_MAX", 25)
    with pytest.raises(StreamStopped, match="more than 25 bytes"):
        reader_of(frame(*(b"\0" * 10,) * 3)).read()


def test_an_error_comes_after_what_came_before_it() -> None:
    reader = reader_of(frame(b"\0one", b"\0two", b"\xff\xd4\x04#HY000purged required binary logs"))
    assert reader.read() == [b"\0one", b"\0two"]
    with pytest.raises(pymysql.err.OperationalError, match="purged") as caught:
        reader.read()
    assert caught.value.args[0] == 1236


@pytest.mark.parametrize("content", [b"\xfe\0\0\2\0", b"", b"\1x"])
def test_an_end_is_an_error(content: bytes) -> None:
    reader = reader_of(frame(b"\0one", content))
    assert reader.read() == [b"\0one"]
    with pytest.raises(SourceUnavailable, match="ended the stream"):
        reader.read()


def test_a_lost_packet_is_noticed() -> None:
    reader = reader_of(frame(b"\0one") + frame(b"\0three", first_number=3))
    assert reader.read() == [b"\0one"]
    with pytest.raises(SourceUnavailable, match="packet 3 came where 2"):
        reader.read()


def test_a_closed_connection_is_an_error_also_within_a_packet() -> None:
    for data in (b"", frame(b"\0one")[:-1]):
        with pytest.raises(SourceUnavailable, match="closed"):
            reader_of(data).read()


def test_a_silent_server_meets_the_timeout_of_the_socket() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(0.01)
        with pytest.raises(TimeoutError):
            PacketReader(near).read()


def test_checksums() -> None:
    for size in (20, 21, 5000):
        event = random.Random(size).randbytes(size)
        packet = b"\0" + event + zlib.crc32(event).to_bytes(4, "little")
        check_sum(packet)
        for place in (1, size // 2, size, len(packet) - 1):
            damaged = bytearray(packet)
            damaged[place] ^= 4
            with pytest.raises(StreamStopped, match="wrong checksum"):
                check_sum(bytes(damaged))
