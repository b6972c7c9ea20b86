"""Values of VStream rows, by query.Type, as the Python values that a binary log gives."""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from freshness.stream.source import UNREADABLE, Shape
from integration.servers.vtgate import column
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.value import BINARY, find_decoder, find_shape


def decoded(kind: int, data: bytes, *, has_labels: bool = True, **parts: Any) -> object:
    return find_decoder(column("c", kind, **parts), has_labels=has_labels)(data)


def naive(second: int, microsecond: int = 0) -> datetime:
    return datetime(2026, 1, 31, 23, 59, second, microsecond)  # noqa: DTZ001 - as the role has it


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (257, b"-128", -128),
        (770, b"255", 255),
        (259, b"-32768", -32768),
        (772, b"65535", 65535),
        (261, b"-8388608", -8388608),
        (774, b"16777215", 16777215),
        (263, b"-2147483648", -2147483648),
        (776, b"4294967295", 4294967295),
        (265, b"-9223372036854775808", -(1 << 63)),
        (778, b"18446744073709551615", (1 << 64) - 1),
        (785, b"2026", 2026),
        (1036, b"1.1E+00", 1.1),
        (1035, b"1.1E+00", struct.unpack("<f", struct.pack("<f", 1.1))[0]),
        (18, b"-12.50", Decimal("-12.50")),
        (2062, b"2026-01-31", date(2026, 1, 31)),
        (2064, b"2026-01-31 23:59:58", naive(58)),
        (2064, b"2026-01-31 23:59:58.5", naive(58, 500_000)),
        (2061, b"2026-01-31 23:59:58.000001", naive(58, 1)),
        (2063, b"-838:59:59.25", -timedelta(hours=838, minutes=59, seconds=59, microseconds=250_000)),
        (2063, b"01:02:03", timedelta(hours=1, minutes=2, seconds=3)),
        (10262, b"a\x00b\x00", b"a\x00b\x00"),
        (10260, b"\xff", b"\xff"),
        (10264, b"A1\x00\x00", b"A1"),
        (2077, b"\x00\x01", b"\x00\x01"),
        (2083, b"\x00\x01", b"\x00\x01"),
        (2078, b'{"a": [1, null]}', {"a": [1, None]}),
    ],
)
def test_values(kind: int, data: bytes, value: object) -> None:
    got = decoded(kind, data)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (265, b""),
        (265, b"x"),
        (18, b"NaN"),
        (18, b"x"),
        (2062, b"0000-00-00"),
        (2062, b"2026-00-00"),
        (2064, b"0000-00-00 00:00:00"),
        (2064, b"2026-02-30 00:00:00"),
        (2064, b"2026-01-31"),
        (2061, b"0000-00-00 00:00:00.000000"),
        (2063, b"1:2"),
        (2078, b"{"),
        (2078, b"null"),
        (2074, b"\xff"),
        (0, b"x"),
        (28, b"tuple"),
        (31, b"expression"),
        (9999, b"a type of the future"),
    ],
)
def test_what_cannot_be_told_is_unreadable_and_not_null(kind: int, data: bytes) -> None:
    assert decoded(kind, data) is UNREADABLE


@pytest.mark.parametrize("kind", [6163, 6165, 6167])
@pytest.mark.parametrize(
    ("collation", "data", "value"),
    [
        (255, "Grün 😀".encode(), "Grün 😀"),
        (33, "ü".encode(), "ü"),
        (8, b"\xfc", "ü"),
        (11, b"abc", "abc"),
        (35, "ü".encode("utf-16-be"), "ü"),
        (54, "ü😀".encode("utf-16-be"), "ü😀"),
        (60, "ü".encode("utf-32-be"), "ü"),
        (63, b"\xff", b"\xff"),
        (0, b"abc", b"abc"),
        (9999, b"abc", b"abc"),
    ],
)
def test_text_is_read_in_its_character_set(kind: int, collation: int, data: bytes, value: object) -> None:
    """In an unknown one it stays bytes, which give no key of text: the table is raised."""
    assert decoded(kind, data, charset=collation) == value


@pytest.mark.parametrize("kind", [10260, 10262, 10264])
@pytest.mark.parametrize("collation", [46, 83, 309])
def test_text_with_a_binary_collation_is_text_though_its_type_says_bytes(kind: int, collation: int) -> None:
    """utf8mb4_bin, utf8mb3_bin, utf8mb4_0900_bin."""
    assert decoded(kind, "Grün".encode(), charset=collation) == "Grün"


@pytest.mark.parametrize("collation", [0, 63])
def test_bytes_are_bytes(collation: int) -> None:
    assert decoded(10260, b"abc", charset=collation) == b"abc"
    assert decoded(10262, b"abc\0", charset=collation) == b"abc\0"
    # Text in an unknown character set may be padded; BINARY(n) has n bytes
    assert decoded(10264, b"abc\0", charset=collation) == (b"abc\0" if collation == 63 else b"abc")


def test_text_that_is_not_in_its_character_set_is_unreadable() -> None:
    assert decoded(6165, b"\xff", charset=255) is UNREADABLE


@pytest.mark.parametrize(
    ("length", "data", "value"),
    [(1, b"\x01", "1"), (3, b"\x05", "101"), (10, b"\x02\x01", "1000000001"), (0, b"\x05", "00000101")],
)
def test_bits_are_text_of_the_columns_length(length: int, data: bytes, value: str) -> None:
    assert decoded(2073, data, column_length=length) == value


LABELS = r"enum('small','it''s','a,b','back\\slash','x''')"


@pytest.mark.parametrize(
    ("number", "label"), [(0, ""), (1, "small"), (2, "it's"), (3, "a,b"), (4, "back\\slash"), (5, "x'")]
)
def test_enum_by_number(number: int, label: str) -> None:
    assert decoded(2074, str(number).encode(), has_labels=False, column_type=LABELS) == label


@pytest.mark.parametrize("column_type", ["", "int", "enum(small)", "enum('a' 'b')", LABELS])
def test_enum_by_a_number_that_has_no_label_is_unreadable(column_type: str) -> None:
    assert decoded(2074, b"6", has_labels=False, column_type=column_type) is UNREADABLE
    assert decoded(2074, b"-1", has_labels=False, column_type=column_type) is UNREADABLE


@pytest.mark.parametrize("collation", [47, 63, 46])  # latin1_bin, binary, utf8mb4_bin
def test_enum_and_set_with_a_binary_collation(collation: int) -> None:
    """Vitess calls them BINARY; their labels come in UTF-8, whatever the column's character set."""
    assert decoded(BINARY, "größer".encode(), column_type="enum('größer')", charset=collation) == "größer"
    members = "SET('größer','b')"
    assert decoded(BINARY, "größer,b".encode(), column_type=members, charset=collation) == {"größer", "b"}


def test_enum_by_label() -> None:
    assert decoded(2074, "größe".encode(), column_type=LABELS) == "größe"


def test_set_by_mask_and_by_labels() -> None:
    members = "set('a','b','c')"
    assert decoded(2075, b"5", has_labels=False, column_type=members) == {"a", "c"}
    assert decoded(2075, b"0", has_labels=False, column_type=members) == set()
    assert decoded(2075, b"8", has_labels=False, column_type=members) is UNREADABLE
    assert decoded(2075, b"1", has_labels=False) is UNREADABLE
    assert decoded(2075, b"a,c") == {"a", "c"}
    assert decoded(2075, b"") == set()


def test_a_decoder_is_made_for_every_type_that_vitess_has() -> None:
    for kind in range(1 << 14):
        find_decoder(pb.Field(name="c", type=kind), has_labels=True)


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        (column("c", 265), Shape("same")),
        (column("c", 785), Shape("same")),
        (column("c", 18), Shape("same")),
        (column("c", 2064), Shape("same")),
        (column("c", 2061), Shape("timestamp")),
        (column("c", 1035), Shape("float")),
        (column("c", 2073, column_length=10), Shape("bit")),
        (column("c", 2074, column_type="enum('a')"), Shape("same")),
        (column("c", BINARY, charset=46, column_type="enum('a')"), Shape("same")),
        (column("c", 2075, column_type="set('b','a')"), Shape("set", ("b", "a"))),
        (column("c", 2075, column_type="set("), Shape("untold")),
        (column("c", 6165, charset=255), Shape("text")),
        (column("c", 6165, charset=51), Shape("ascii")),
        (column("c", 6165, charset=9999), Shape("ascii")),
        (column("c", 10262, charset=46), Shape("text")),
        (column("c", 10262, charset=63), Shape("binary")),
        (column("c", BINARY, charset=63, column_length=16), Shape("binary")),
        (column("c", BINARY, charset=46, column_length=16), Shape("untold")),
        (column("c", 2078), Shape("untold")),
        (column("c", 9999), Shape("untold")),
    ],
)
def test_how_a_client_reads_a_column(field: pb.Field, shape: Shape) -> None:
    """It makes the digest of a row: a wrong one would be a false accusation, so doubt has none."""
    assert find_shape(field) == shape
