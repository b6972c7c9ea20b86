"""GTIDs with tags as bytes: events that MySQL 9.7 wrote, and sets as it reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import StreamStopped
from freshness.position import MysqlGtidSet
from invalidator.binlog.wire.event import GroupStart, LogEvent
from invalidator.binlog.wire.tagged import TaggedGtid, encode_gtid_set, parse_tagged_gtid, read_tagged_gtid
from tests.unit.invalidator.binlog.rowevents import tagged_gtid, tagged_numbers

SID = "d6b190ea-e731-11f1-af01-02fc00000001"
WRITTEN = bytes.fromhex(
    "0276000000025903c5024102a9039d036222c503bd020204f103000000020404060a6d7974616708280a2c0c7f19daf7f9ef60061015061283120b"
)
"""An event of MySQL 9.7: ``SID:mytag:1``, the tenth and eleventh of its group."""

COMMITTED_US = 1_795_433_667_484_185


def event(body: bytes) -> LogEvent:
    packet = bytes(20) + body
    return LogEvent(42, 1_000, 1, 4711, 0, packet, 20, len(packet))


def test_an_event_of_the_server() -> None:
    gtid = read_tagged_gtid(event(WRITTEN))
    assert gtid == TaggedGtid(MysqlGtidSet.of(SID, 1, "mytag"), COMMITTED_US, COMMITTED_US)
    start = parse_tagged_gtid(event(WRITTEN))
    assert start == GroupStart(gtid.position, gtid.original_us, in_transaction=False)


@given(
    st.uuids(),
    st.integers(1, (1 << 54) - 1),
    st.from_regex(r"[a-z_][a-z0-9_]{0,31}", fullmatch=True),
    st.integers(0, (1 << 56) - 1),
    st.none() | st.integers(0, (1 << 56) - 1),
    st.integers(0, 1),
)
def test_all_that_can_be_written_is_read(
    sid: object, gno: int, tag: str, committed: int, original: int | None, flags: int
) -> None:
    body = tagged_gtid(str(sid), gno, tag, committed, original, flags=flags)
    found = read_tagged_gtid(event(body))
    assert found == TaggedGtid(
        MysqlGtidSet.of(str(sid), gno, tag), committed, committed if original is None else original
    )


def test_a_number_of_nine_bytes() -> None:
    body = tagged_gtid(SID, 5, "a", 1 << 40, None)
    long = body.replace(tagged_numbers(2, 10), tagged_numbers(2) + b"\xff" + (10).to_bytes(8, "little"))
    assert len(long) == len(body) + 8
    long = long[:1] + bytes((len(long) << 1,)) + long[2:]
    assert read_tagged_gtid(event(long)).position == MysqlGtidSet.of(SID, 5, "a")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        *(WRITTEN[:length] for length in range(1, len(WRITTEN))),
        WRITTEN + b"\0",
        b"\4" + WRITTEN[1:],
        tagged_gtid(SID, 1, "a", 5, None, must_know=12),
        tagged_gtid(SID, 1, "", 5, None),
        tagged_gtid(SID, 1, "A B", 5, None),
        tagged_gtid(SID, 1, "a", 5, None).replace(tagged_numbers(2, 2), tagged_numbers(2, 3)),
        tagged_gtid(SID, 1, "a", 5, None).replace(tagged_numbers(2, 2), tagged_numbers(2, 0)),
        tagged_gtid(SID, 1, "a", 5, None).replace(tagged_numbers(4, 18), tagged_numbers(5, 18)),
    ],
)
def test_another_event_stops_the_stream(body: bytes) -> None:
    with pytest.raises(StreamStopped, match=r"GTID_TAGGED.*4711") as caught:
        read_tagged_gtid(event(body))
    assert caught.value.hint


def test_a_set_without_tags_is_one_that_every_server_reads() -> None:
    encoded = encode_gtid_set(MysqlGtidSet.parse(f"{SID}:1-5:7").intervals())
    numbers = (1, 6, 7, 8)
    assert encoded == b"".join(
        (
            (1).to_bytes(8, "little"),
            bytes.fromhex(SID.replace("-", "")),
            (2).to_bytes(8, "little"),
            *(n.to_bytes(8, "little") for n in numbers),
        )
    )


def test_a_set_with_tags() -> None:
    encoded = encode_gtid_set(MysqlGtidSet.parse(f"{SID}:3:ab:1-2").intervals())
    sid = bytes.fromhex(SID.replace("-", ""))
    assert encoded == b"".join(
        (
            bytes((1, 2, 0, 0, 0, 0, 0, 1)),
            *(sid, b"\0", (1).to_bytes(8, "little"), (3).to_bytes(8, "little"), (4).to_bytes(8, "little")),
            *(sid, b"\4ab", (1).to_bytes(8, "little"), (1).to_bytes(8, "little"), (3).to_bytes(8, "little")),
        )
    )
