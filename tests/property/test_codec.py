"""Whatever value is accepted comes back the same; whatever bytes arrive, only a FormatError comes out."""

from __future__ import annotations

import math
from datetime import timedelta, timezone
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import FormatError
from freshness.values.codec import decode_value, encode_value

_OFFSETS = st.timedeltas(
    min_value=-timedelta(hours=24) + timedelta(microseconds=1),
    max_value=timedelta(hours=24) - timedelta(microseconds=1),
).map(timezone)
_ZONES = st.none() | _OFFSETS
_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**63 - 2, max_value=2**64 + 2)
    | st.floats()
    | _TEXT
    | st.binary()
    | st.decimals()
    | st.datetimes(timezones=_ZONES)
    | st.dates()
    | st.times(timezones=_ZONES)
    | st.timedeltas()
)
_KEYS = _TEXT | st.integers(min_value=-(2**63), max_value=2**64 - 1) | st.binary() | st.none()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=20
)


def _is_exact(left: object, right: object) -> bool:
    """The same types, the same digits, the same sign of zero, and NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_exact, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return _is_exact([list(pair) for pair in left.items()], [list(pair) for pair in right.items()])
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, float) and isinstance(right, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return left == right and repr(left) == repr(right)


@given(_VALUES)
def test_every_value_comes_back_exactly(value: object) -> None:
    assert _is_exact(decode_value(encode_value(value)), value)


@given(st.dictionaries(_TEXT, _SCALARS, max_size=8))
def test_every_row_comes_back_exactly(row: dict[str, object]) -> None:
    assert _is_exact(decode_value(encode_value(row)), row)


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda data: b"\x01" + data))
def test_any_bytes_decode_or_are_a_format_error(data: bytes) -> None:
    try:
        value = decode_value(data)
    except FormatError as error:
        assert error.hint  # noqa: PT017 - either end is right, a third is not
    else:
        assert data[:1] == b"\x01", value


@given(_VALUES, st.data())
def test_damaged_bytes_decode_or_are_a_format_error(value: object, draw: st.DataObject) -> None:
    good = encode_value(value)
    cut = draw.draw(st.integers(min_value=0, max_value=len(good) - 1))
    flipped = draw.draw(st.integers(min_value=1, max_value=255))
    for data in (good[:cut], good[:cut] + bytes([good[cut] ^ flipped]) + good[cut + 1 :]):
        try:
            decode_value(data)
        except FormatError as error:
            assert error.hint  # noqa: PT017 - either end is right, a third is not
