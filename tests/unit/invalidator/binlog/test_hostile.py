"""A log that is damaged on its way, or made up: what was whole before is delivered, and then an error of our own."""

from __future__ import annotations

import random
import resource
import signal
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
import zstandard

from freshness.errors import FreshnessError, StreamStopped
from freshness.stream.source import Transaction
from invalidator.binlog.decoder import EventDecoder
from invalidator.binlog.fasttrack import FastTrack
from invalidator.binlog.fasttrack import make_decoder as make_source_decoder
from invalidator.binlog.transaction import Subscription
from tests.unit.invalidator.binlog.rowevents import packed
from tests.unit.invalidator.binlog.test_fasttrack import (
    FLAVORS,
    STRANGE_FROM,
    description,
    make_decoder,
    packet,
    random_transaction,
)

TRIALS: Final = 50
BYTES_MAX: Final = 256 << 20
"""Memory that the process may have more than before; a log that claims to be large asks for gigabytes."""

CPU_SECONDS_MAX: Final = 60.0


def make_rows(flavor: str) -> EventDecoder:
    """The decoder of whole rows."""
    subscription = Subscription(flavor, "shop", frozenset(("goods", "child")), "beats", {})
    made = make_source_decoder(subscription, find_cascades=dict, rows_max=1000)
    assert isinstance(made, EventDecoder)
    made.restart(has_checksum=True)
    return made


@contextmanager
def bounded() -> Iterator[None]:
    """A loop without end is a failure, and memory without bounds."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt("it goes round and round")

    previous = signal.signal(signal.SIGVTALRM, stop)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < BYTES_MAX >> 10


def damage(chance: random.Random, content: bytes) -> bytes:
    """Bits, bytes, a number that is too large, an end that is missing, more at the end."""
    data = bytearray(content)
    place = chance.randrange(len(data))
    match chance.randrange(6):
        case 0:
            data[place] ^= 1 << chance.randrange(8)
        case 1:
            data[place] = chance.choice((0, 1, 0x7F, 0x80, 251, 252, 253, 254, 255))
        case 2:
            data[place : place + 9] = b"\xfe" + b"\xff" * 8
        case 3:
            del data[place:]
        case 4:
            data += chance.randbytes(chance.choice((1, 4, 300)))
        case _:
            data[place : place + 4] = chance.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"))
    return bytes(data)


def write_log(chance: random.Random, flavor: str) -> list[bytes]:
    packets = [description()]
    for number in range(1, 6):
        packets += random_transaction(chance, flavor, min(number, STRANGE_FROM))
    return packets


def decode(made: EventDecoder | FastTrack, packets: list[bytes]) -> tuple[list[Transaction], FreshnessError | None]:
    found: list[Transaction] = []
    try:
        made.decode(packets, found)
    except FreshnessError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("make", [make_decoder, make_rows])
def test_damage_on_the_way_stops_the_stream_before_its_transaction(flavor: str, make: type) -> None:
    for seed in range(TRIALS):
        chance = random.Random(f"way {seed}")
        packets = write_log(chance, flavor)
        whole, no_error = decode(make(flavor), packets)
        assert no_error is None
        place = chance.randrange(1, len(packets))
        damaged = packets[place]
        while damaged == packets[place] or not damaged:
            damaged = damage(chance, packets[place])
        found, error = decode(make(flavor), [*packets[:place], damaged, *packets[place + 1 :]])
        assert isinstance(error, StreamStopped), (seed, damaged)
        assert found == whole[: len(found)]
        assert found == decode(make(flavor), packets[:place])[0]


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("make", [make_decoder, make_rows])
def test_a_log_that_is_made_up_costs_an_error_at_most(flavor: str, make: type) -> None:
    """Its checksums are right: a server without checksums gives no less. All before it is delivered."""
    with bounded():
        for seed in range(TRIALS * 4):
            chance = random.Random(f"made {seed}")
            packets = write_log(chance, flavor)
            if chance.random() < 0.3:
                pack(chance, packets)
            place = chance.randrange(len(packets))
            whole = packets[place]
            event = damage(chance, whole[20:-4] or b"x")
            packets[place] = packet(whole[5], event, flags=struct.unpack("<H", whole[18:20])[0])
            before = decode(make(flavor), packets[:place])[0]
            found, _ = decode(make(flavor), packets)
            assert found[: len(before)] == before


def pack(chance: random.Random, packets: list[bytes]) -> None:
    """Compress an event as MariaDB does, or some as MySQL does."""
    place = chance.randrange(1, len(packets))
    if packets[place][5] in (23, 24, 25) and len(packets[place]) > 40:
        event = packets[place]
        rows = event[32:-4]
        content = b"\x84" + len(rows).to_bytes(4, "big") + zlib.compress(rows)
        packets[place] = packet(event[5] - 23 + 166, event[20:32] + content)
    else:
        inner = b"".join(each[1:-4] for each in packets[place : place + 3])
        content = zstandard.compress(inner)
        fields = ((2, packed(0)), (3, packed(len(inner))), (1, packed(len(content))))
        head = b"".join(packed(kind) + packed(len(value)) + value for kind, value in fields)
        packets[place : place + 3] = [packet(40, head + b"\0" + content)]
