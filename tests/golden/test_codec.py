"""The bytes of cached values. A failure here means that running caches hold what this version cannot read:
do not change a line; raise the codec version and keep reading the previous one."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from freshness.values.codec import CODEC_VERSION, decode_value, encode_value

GOLDEN: list[tuple[Any, str]] = [
    (None, "01 c0"),
    ({"id": 42, "name": "Ada"}, "01 82 a2 6964 2a a4 6e616d65 a3 416461"),
    ([True, -1, 1.5, b"\xff"], "01 94 c3 ff cb 3ff8000000000000 c4 01 ff"),
    (Decimal("-10.50"), "01 c7 06 01 2d31302e3530"),
    (datetime(2025, 11, 21, 8, 9, 10, 123456), "01 c7 0b 02 07e9 0b 15 08 09 0a 0001e240"),  # noqa: DTZ001
    (datetime(2025, 11, 21, tzinfo=UTC), "01 c7 13 02 07e9 0b 15 00 00 00 00000000 0000000000000000"),
    (datetime(2025, 11, 21, fold=1), "01 c7 0b 02 07e9 0b 15 00 00 00 80000000"),  # noqa: DTZ001
    (date(2025, 11, 21), "01 d6 03 07e9 0b 15"),
    (time(8, 30), "01 c7 07 04 08 1e 00 00000000"),
    (timedelta(hours=-1), "01 c7 0c 05 ffffffff 00014370 00000000"),
    (2**64, "01 c7 09 06 01 0000000000000000"),
    (-(2**63) - 1, "01 c7 09 06 ff 7fffffffffffffff"),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_bytes_of_a_value(value: Any, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_value(value) == data
    assert decode_value(data) == value
    assert type(decode_value(data)) is type(value)


def test_the_first_byte_is_the_codec_version() -> None:
    assert CODEC_VERSION == 1
    assert encode_value({})[0] == CODEC_VERSION
