"""Bytes that stay readable: every item in the cache, as docs/wire-format.md describes it.

A change of these takes a new format version: applications and invalidators of two releases share a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from freshness.algorithm.envelope import (
    PART_HEAD,
    STUB,
    Coverage,
    Filled,
    Kind,
    NodeRecord,
    PendingStripe,
    Stamp,
    Stripe,
    decode_wanted,
    encode_chunk,
    encode_wanted,
    find_live_value,
    live_prefix,
    record_key,
    resume_key,
    split_live,
    stripe_key,
    stripe_keys,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.parts import Manifest
from freshness.errors import FormatError
from freshness.position import Position, parse_position

POSITIONS = {
    "mysql": parse_position("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"),
    "mariadb": parse_position("mariadb", "0-1-100"),
}
ENCODED = {
    "mysql": "1101" + "3e11fa4771ca11e19e33c80aa9429562" + "00" + "01" + "00" + "04",
    "mariadb": "1201" + "00" + "63" + "00" + "01",
}
LIFE = b"\x01\x02\x03\x04\x05\x06\x07\x08"
TENURE = b"\x11\x12\x13\x14\x15\x16\x17\x18"
PREVIOUS_LIFE = b"\x21\x22\x23\x24\x25\x26\x27\x28"
HEAD = "fa03"


def long(hex_text: str) -> str:
    """A field with its length before it."""
    return f"{len(hex_text) // 2:08x}" + hex_text


def short(text: str) -> str:
    return f"{len(text):02x}" + text.encode().hex()


def position_of(flavor: str) -> str:
    return long(ENCODED[flavor])


def stamp_of(flavor: str, lineage: str = "shop/-") -> tuple[Stamp, str]:
    written = short(lineage) + LIFE.hex() + "0000000000000003" + position_of(flavor)
    return Stamp(lineage, LIFE, 3, POSITIONS[flavor]), written


@pytest.mark.parametrize("flavor", POSITIONS)
def test_a_filled_entry_of_one_lineage(flavor: str) -> None:
    stamp, written = stamp_of(flavor)
    entry = Filled((stamp,), b"\x00\x00\x00\x0542", b'{"id":42}')
    expected = HEAD + "01" + "01" + written + long(b"\x00\x00\x00\x0542".hex()) + "00" + b'{"id":42}'.hex()
    assert entry.encode().hex() == expected
    assert Filled.decode(bytes.fromhex(expected)) == entry


@pytest.mark.parametrize("flavor", POSITIONS)
def test_a_filled_entry_of_two_lineages(flavor: str) -> None:
    (one, first), (two, second) = stamp_of(flavor, "a"), stamp_of(flavor, "bb")
    entry = Filled((one, two), b"7", b"")
    expected = HEAD + "01" + "02" + first + second + long("37") + "0000"
    assert entry.encode().hex() == expected
    assert Filled.decode(bytes.fromhex(expected)) == entry


@pytest.mark.parametrize(
    ("position", "until", "beyond"),
    [("0-1-100", "0-1-100", "021200"), ("0-1-100", "0-1-103", "06120100660001"), ("0-1-100", "", "021200")],
)
def test_an_entry_with_a_bound(position: str, until: str, beyond: str) -> None:
    """Nothing is written of what the position has; what is read is a bound as well."""
    read, bound = parse_position("mariadb", position), parse_position("mariadb", until)
    data = Filled((Stamp("a", LIFE, 3, read, bound),), b"7", b"x").encode()
    assert data.hex().endswith(long("37") + beyond + b"x".hex())
    assert Filled.decode(data).stamps == (Stamp("a", LIFE, 3, read, read.union(bound)),)
    prefix = live_prefix(Kind.FILLED, "a", LIFE)
    assert data[find_live_value(data, prefix, b"7") :] == b"x"


def test_a_bound_that_takes_too_much_is_not_written() -> None:
    far = parse_position(
        "mysql", ",".join(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{number}" for number in range(1, 4000, 2))
    )
    data = Filled((Stamp("a", LIFE, 3, POSITIONS["mysql"], far),), b"7", b"x").encode()
    assert data.endswith(b"7\x00x")
    assert Filled.decode(data).stamps == (Stamp("a", LIFE, 3, POSITIONS["mysql"]),)


@pytest.mark.parametrize("flavor", POSITIONS)
def test_an_absent_row(flavor: str) -> None:
    stamp, written = stamp_of(flavor)
    entry = Filled((stamp,), b"7", None)
    expected = HEAD + "02" + "01" + written + long("37") + "00"
    assert entry.encode().hex() == expected
    assert Filled.decode(bytes.fromhex(expected)) == entry
    with pytest.raises(FormatError):
        Filled.decode(bytes.fromhex(expected + "00"))


@pytest.mark.parametrize("flavor", POSITIONS)
def test_an_entry_in_parts(flavor: str) -> None:
    """The manifest is in the place of the value, and names 3 parts."""
    stamp, written = stamp_of(flavor)
    manifest = Manifest.of(b"a value", 3)
    assert manifest is not None
    digest = "292e8027b40dd369a8a8848c2a9729166f249cfb01169eee06196be2b1ae3521"
    said = "00000007" + "00000003" + digest
    assert manifest.encode().hex() == said
    assert Manifest.decode(bytes.fromhex(said)) == manifest
    entry = Filled((stamp,), b"7", manifest.encode(), True)
    expected = HEAD + "06" + "01" + written + long("37") + "00" + said
    assert entry.encode().hex() == expected
    assert Filled.decode(bytes.fromhex(expected)) == entry
    assert manifest.keys("shop") == [f"shop:!!{digest}!{number}".encode() for number in range(3)]
    assert [part.hex() for part in manifest.split(b"a value")] == [
        HEAD + "07" + "612076",
        HEAD + "07" + "616c75",
        HEAD + "07" + "65",
    ]


def chunk_of(flavor: str, life: bytes = LIFE) -> str:
    written = life.hex() + ENCODED[flavor]
    return f"{len(written) // 2:04x}" + written


@pytest.mark.parametrize("flavor", POSITIONS)
def test_a_stripe(flavor: str) -> None:
    stripe = Stripe(LIFE, POSITIONS[flavor])
    expected = HEAD + "03" + chunk_of(flavor)
    assert stripe.encode().hex() == expected
    assert Stripe.decode(bytes.fromhex(expected)) == stripe


def test_a_stripe_that_was_appended_to() -> None:
    """Chunks of the first one's life are united; those of another count for nothing."""
    more = parse_position("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:9")
    chunk = "001e" + LIFE.hex() + "1101" + "3e11fa4771ca11e19e33c80aa9429562" + "00" + "01" + "08" + "00"
    assert encode_chunk(LIFE, more).hex() == chunk
    data = HEAD + "03" + chunk_of("mysql") + chunk + chunk_of("mysql", PREVIOUS_LIFE)
    assert Stripe.decode(bytes.fromhex(data)) == Stripe(LIFE, POSITIONS["mysql"].union(more), 3)
    previous = HEAD + "03" + chunk_of("mysql", PREVIOUS_LIFE) + chunk
    assert Stripe.decode(bytes.fromhex(previous)) == Stripe(PREVIOUS_LIFE, POSITIONS["mysql"], 2)


@pytest.mark.parametrize("flavor", POSITIONS)
def test_a_pending_stripe(flavor: str) -> None:
    pending = PendingStripe(TENURE)
    expected = HEAD + "05" + TENURE.hex()
    assert pending.encode().hex() == expected
    assert PendingStripe.decode(bytes.fromhex(expected)) == pending
    appended = expected + chunk_of(flavor, PREVIOUS_LIFE) + chunk_of(flavor)
    held = PendingStripe.decode(bytes.fromhex(appended))
    assert held.chunks == ((PREVIOUS_LIFE, POSITIONS[flavor]), (LIFE, POSITIONS[flavor]))
    nothing = parse_position(flavor, "")
    assert held.complete(LIFE, nothing).encode().hex() == HEAD + "03" + chunk_of(flavor)


def test_stripes_that_are_wanted() -> None:
    assert encode_wanted([1, 0x01020304]).hex() == "0000000101020304"
    assert decode_wanted(bytes.fromhex("000000010102030405")) == [1, 0x01020304]
    assert decode_wanted(STUB) == []


def test_the_stripe_of_a_key() -> None:
    """Applications and invalidators must agree on it."""
    assert stripe_number(b"shop:customer:42", 65_536) == 0xF0E8
    assert stripe_number(b"shop:customer:42", 1000) == 120
    assert stripe_number(b"shop:customer:42", 1) == 0


def record_of(position: Position) -> NodeRecord:
    return NodeRecord(
        lineage="shop/-",
        life=LIFE,
        tenure=TENURE,
        is_open=True,
        epoch=3,
        ring=0xA1B2C3D4,
        as_of_us=1_763_700_000_123_456,
        heartbeat_age_ms=250,
        node="10.0.0.1:11211",
        stripes=65_536,
        progress=position,
        floor=position,
        table_floors={"orders": position, "customers": position},
        objects={"customer": Coverage(0x01020304, position)},
        primary="3e11fa47",
        topology=2,
    )


@pytest.mark.parametrize("flavor", POSITIONS)
def test_a_node_record(flavor: str) -> None:
    record = record_of(POSITIONS[flavor])
    position = position_of(flavor)
    expected = "".join(
        (
            HEAD + "04",
            short("shop/-"),
            LIFE.hex(),
            TENURE.hex(),
            "01",  # open
            "0000000000000003",  # epoch
            "a1b2c3d4",  # ring
            "0006441367ff6a40",  # as of
            "000000fa",  # age of the heartbeat
            short("10.0.0.1:11211"),
            "00010000",  # stripes
            short("3e11fa47"),  # primary
            "00000002",  # topology
            position,  # progress
            position,  # floor
            "0002" + short("customers") + position + short("orders") + position,
            "0001" + short("customer") + "01020304" + position,
        )
    )
    assert record.encode().hex() == expected
    assert NodeRecord.decode(bytes.fromhex(expected)) == record


def test_a_stub_is_the_empty_item() -> None:
    """memcached makes it, so it has no envelope; and nothing reads it as one."""
    assert STUB == b""
    for decode in (Filled.decode, Stripe.decode, PendingStripe.decode, NodeRecord.decode):
        with pytest.raises(FormatError):
            decode(STUB)


def test_keys_of_the_nodes_own_items() -> None:
    assert record_key("shop", "shop/-80") == b"shop:!shop/-80"
    assert resume_key("shop", "shop/-80") == b"shop:!shop/-80!resume"
    assert wanted_key("shop", "shop/-80") == b"shop:!shop/-80!wanted"
    assert stripe_key("shop", "shop/-80", 0xF0E8) == b"shop:!shop/-80!f0e8"
    assert stripe_keys("shop", "shop/-80", 12)[::11] == (b"shop:!shop/-80!0", b"shop:!shop/-80!b")


def test_positions_are_written_as_ever() -> None:
    """Said in full for one of each flavor; tests/golden/test_token.py has the rest."""
    assert {flavor: position.encode().hex() for flavor, position in POSITIONS.items()} == ENCODED


@pytest.mark.parametrize("version", [0, 1, 2, 255])
def test_another_format_version_is_refused_by_name(version: int) -> None:
    data = bytearray(Stripe(LIFE, POSITIONS["mariadb"]).encode())
    data[1] = version
    with pytest.raises(FormatError, match=f"format version {version}") as raised:
        Stripe.decode(bytes(data))
    assert raised.value.hint


def test_one_kind_is_never_read_as_another() -> None:
    stamp, _ = stamp_of("mysql")
    items = {
        Kind.FILLED: Filled((stamp,), b"7", b"x").encode(),
        Kind.ABSENT_ROW: Filled((stamp,), b"7", None).encode(),
        Kind.STRIPE: Stripe(LIFE, POSITIONS["mysql"]).encode(),
        Kind.RECORD: record_of(POSITIONS["mysql"]).encode(),
        Kind.PENDING: PendingStripe(TENURE).encode(),
        Kind.PARTED: Filled((stamp,), b"7", b"manifest", True).encode(),
        Kind.PART: PART_HEAD + b"x",
    }
    assert set(items) == set(Kind)
    readers: dict[Callable[[bytes], Any], set[Kind]] = {
        Filled.decode: {Kind.FILLED, Kind.ABSENT_ROW, Kind.PARTED},
        Stripe.decode: {Kind.STRIPE},
        PendingStripe.decode: {Kind.PENDING},
        NodeRecord.decode: {Kind.RECORD},
    }
    for decode, kinds in readers.items():
        for kind, data in items.items():
            if kind in kinds:
                assert decode(data).encode() == data
            else:
                with pytest.raises(FormatError):
                    decode(data)


def test_the_hit_path_reads_the_same_bytes() -> None:
    stamp, _ = stamp_of("mysql")
    data = Filled((stamp,), b"identity", b"value").encode()
    prefix = live_prefix(Kind.FILLED, "shop/-", LIFE)
    assert data.startswith(prefix)
    parts = split_live(data, len(prefix))
    assert parts is not None
    position, identity, at = parts
    assert position == POSITIONS["mysql"].encode()
    assert (identity, data[at:]) == (b"identity", b"value")
    assert find_live_value(data, prefix, b"identity") == at
    assert find_live_value(data, prefix, b"another.") == 0
    assert find_live_value(data, live_prefix(Kind.FILLED, "shop/-", PREVIOUS_LIFE), b"identity") == 0
    assert not any(find_live_value(data[:end], prefix, b"identity") for end in range(at))
    assert not any(split_live(data[:end], len(prefix)) for end in range(at))
