"""The value codec, case by case: what it keeps, what it refuses and how it says so."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from freshness.errors import FormatError
from freshness.values.codec import DEPTH_MAX, DIGEST_BYTES, decode_value, encode_value, row_digest


class Color(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


Point = namedtuple("Point", "x y")


def _is_same(left: object, right: object) -> bool:
    """Equal, and of the same type all the way down: True is not 1, and 1.0 is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return _is_same(list(left.items()), list(right.items()))
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    return left == right


ROUND_TRIPS: list[Any] = [
    None,
    {},
    [],
    "",
    b"",
    {"id": 42, "name": "Ada", "score": 1.5, "photo": b"\x00\xff", "note": None, "active": True},
    {"price": Decimal("10.50"), "wide": Decimal("12345678901234567890123456789.123456789012345678901234567890")},
    {"created": datetime(2025, 11, 21, 8, 9, 10, 123456), "day": date(2025, 11, 21)},  # noqa: DTZ001
    {"created": datetime(2025, 11, 21, tzinfo=UTC)},
    {"created": datetime(2025, 11, 21, tzinfo=timezone(-timedelta(hours=3, minutes=30)))},
    {"created": datetime(2025, 11, 21, tzinfo=timezone(timedelta(microseconds=-73)))},
    {"opens": time(8, 30), "closes": time(18, 0, 0, 5, tzinfo=UTC)},
    {"TIME may exceed a day": timedelta(hours=-838, minutes=-59, seconds=-59)},
    {"zero date": "0000-00-00"},
    [2**63 - 1, -(2**63), 2**64 - 1],
    [2**64, -(2**63) - 1, 2**4000],
    {"flat, yet beyond 64 bits": 2**64},
    {1: "int key", b"\xff": "bytes key", None: "None key", "text": "text key"},
    {"customer": {"id": 1}, "orders": [{"id": 7, "total": Decimal("1.10"), "lines": [[], {}]}]},
    [datetime.min, datetime.max, timedelta.min, timedelta.max, date.min, date.max],  # noqa: DTZ901
    [Decimal("1E+6"), Decimal("-0.00"), Decimal("Infinity")],
]


@pytest.mark.parametrize("value", ROUND_TRIPS, ids=repr)
def test_a_value_comes_back_equal_and_of_the_same_types(value: object) -> None:
    assert _is_same(decode_value(encode_value(value)), value)


def test_a_tuple_comes_back_as_a_list() -> None:
    assert decode_value(encode_value(({"a": (1, Decimal(2))}, ()))) == [{"a": [1, Decimal(2)]}, []]


def test_a_naive_datetime_stays_naive_and_keeps_its_fold() -> None:
    back = decode_value(encode_value(datetime(2025, 10, 26, 2, 30, fold=1)))  # noqa: DTZ001
    assert back.tzinfo is None
    assert back.fold == 1


def test_a_zoned_datetime_keeps_instant_and_offset() -> None:
    value = datetime(2025, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = decode_value(encode_value(value))
    assert back == value
    assert back.utcoffset() == timedelta(hours=2)


def test_encoding_leaves_the_value_alone() -> None:
    orders = [{"total": Decimal(1)}]
    value = {"orders": orders}
    encode_value(value)
    assert value["orders"] is orders
    assert orders == [{"total": Decimal(1)}]


REFUSED: list[tuple[object, str, str]] = [
    ({1, 2}, "builtins.set", "at value"),
    ({"tags": {1, 2}}, "builtins.set", "at value['tags']"),
    ({"orders": [{}, {"by": UUID(int=1)}]}, "uuid.UUID", "at value['orders'][1]['by']"),
    ([object()], "builtins.object", "at value[0]"),
    ({"color": Color.RED}, "Color", "at value['color']"),
    ({"name": Name("x")}, "Name", "at value['name']"),
    ({"at": Point(1, 2)}, "Point", "at value['at']"),
    ({"rows": OrderedDict(a=1)}, "OrderedDict", "at value['rows']"),
    (bytearray(b"x"), "bytearray", "at value"),
    ({"by_day": {date(2025, 1, 1): 1}}, "datetime.date", "at value['by_day']"),
    ({"by_place": {(1, 2): 1}}, "builtins.tuple", "at value['by_place']"),
    ({"x": {2**64: 1}}, "beyond 64 bits", "at value['x']"),
    ({"x": ["ok", "\ud800"]}, "lone surrogate at character 0", "at value['x'][1]"),
    ({"x": {"bad\udfff": 1}}, "lone surrogate at character 3", "at value['x']"),
    ({"x": [2**64, {3}]}, "builtins.set", "at value['x'][1]"),
    ({"t": time(1, tzinfo=ZoneInfo("Europe/Berlin"))}, "without UTC offset", "at value['t']"),
]


@pytest.mark.parametrize(("value", "what", "where"), REFUSED)
def test_what_would_not_come_back_the_same_is_refused_with_its_place(value: object, what: str, where: str) -> None:
    with pytest.raises(FormatError) as caught:
        encode_value(value)
    assert what in caught.value.message
    assert caught.value.message.endswith(where)
    assert caught.value.hint


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(FormatError, match="nested more than"):
        encode_value(value)


def test_the_deepest_value_comes_back() -> None:
    value: object = Decimal(1)
    for _ in range(DEPTH_MAX):
        value = [value]
    assert decode_value(encode_value(value)) == value
    with pytest.raises(FormatError, match="nested more than"):
        encode_value([value])


GARBAGE: list[tuple[bytes, str]] = [
    (b"", "no bytes at all"),
    (b"\x03\x01", "codec version 3"),
    (b"\x02\x01", "cannot be unpacked"),
    (b"\x80\x04N.", "codec version 128"),  # a pickle
    (b"\x01", "does not decode"),
    (b"\x01\xc1", "does not decode"),
    (b"\x01\x01\x01", "trailing"),
    (b"\x01\xa1\xff", "utf-8"),
    (b"\x01\x81\x80\x01", "hashable"),
    (b"\x01\xdd\xff\xff\xff\xff", "truncated"),
    (b"\x01" + b"\x91" * 5000 + b"\xc0", "recursion"),
    (b"\x01\xd4\x63\x00", "extension type 99"),
    (b"\x01\xc7\x03\x01abc", "does not decode"),  # Decimal("abc")
    (b"\x01\xd6\x03\x07\xe9\x0d\x01", "does not decode"),  # 13th month
    (b"\x01\xd5\x03\x07\xe9", "does not decode"),  # half a date
    (b"\x01\xd4\x02\x00", "does not decode"),  # half a datetime
    (b"\x01\xd7\x04\x08\x1e\x00\x00\x00\x00\x00\x00", "does not decode"),  # a time and one byte of offset
    (b"\x01\xd6\x05\x00\x00\x00\x00", "does not decode"),  # a third of a timedelta
    (b"\x01\xc7\x0c\x05" + b"\x7f" * 12, "does not decode"),  # more days than a timedelta holds
]


@pytest.mark.parametrize(("data", "what"), GARBAGE)
def test_bytes_that_do_not_decode_are_a_format_error(data: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        decode_value(data)


# -- digests of rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": "x"}, {"b": "x", "a": 1}),
        ({"v": -0.0}, {"v": 0.0}),
        ({"v": Decimal("1.50")}, {"v": Decimal("1.5")}),
        ({"v": Decimal("100")}, {"v": 100}),
        ({"v": Decimal("100.00")}, {"v": 100}),
        ({"v": Decimal("-0.00")}, {"v": 0}),
        ({"v": True}, {"v": 1}),
    ],
)
def test_rows_that_are_equal_for_the_database_have_one_digest(
    one: dict[str, object], other: dict[str, object]
) -> None:
    digest = row_digest(one)
    assert digest is not None
    assert len(digest) == DIGEST_BYTES
    assert row_digest(other) == digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "xbsy"}, {"a": "x", "b": "y"}),
        ({"v": 100}, {"v": 1}),
        ({"v": Decimal("1.05")}, {"v": Decimal("1.5")}),
        ({"v": None}, {"v": ""}),
        ({"v": "1"}, {"v": 1}),
        ({"v": b"1"}, {"v": "1"}),
        ({"v": 0.0}, {"v": 0}),
    ],
)
def test_rows_that_differ_have_two_digests(one: dict[str, object], other: dict[str, object]) -> None:
    digests = row_digest(one), row_digest(other)
    assert None not in digests
    assert digests[0] != digests[1]


@pytest.mark.parametrize("value", [Decimal("NaN"), datetime(2025, 11, 21, tzinfo=UTC), time(8), ["a list"]], ids=repr)
def test_a_row_with_a_value_that_has_no_canonical_form_has_no_digest(value: object) -> None:
    assert row_digest({"id": 1, "v": value}) is None
