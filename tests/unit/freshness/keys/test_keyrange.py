"""Key ranges: Vitess's text and meaning."""

from __future__ import annotations

import pytest

from freshness.errors import FormatError
from freshness.keys.keyrange import KeyRange


@pytest.mark.parametrize(
    ("text", "start", "end", "canonical"),
    [
        ("-80", b"", b"\x80", "-80"),
        ("40-80", b"\x40", b"\x80", "40-80"),
        ("80-", b"\x80", b"", "80-"),
        ("-", b"", b"", "-"),
        ("0", b"", b"", "-"),
        (" C0ff-c1 ", b"\xc0\xff", b"\xc1", "c0ff-c1"),
        ("8000-", b"\x80", b"", "80-"),
        ("00-80", b"", b"\x80", "-80"),
    ],
)
def test_text_is_read_and_printed(text: str, start: bytes, end: bytes, canonical: str) -> None:
    key_range = KeyRange.parse(text)
    assert (key_range.start, key_range.end) == (start, end)
    assert str(key_range) == canonical
    assert KeyRange.parse(canonical) == key_range


@pytest.mark.parametrize("text", ["", "80", "1", "00", "-8", "4-8", "g0-", "80-40", "80-80", "-00", "--", "40-80-c0"])
def test_malformed_text_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        KeyRange.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "keyspace_id", "is_inside"),
    [
        ("-80", b"", True),
        ("-80", b"\x7f\xff\xff", True),
        ("-80", b"\x80", False),
        ("80-", b"\x80", True),
        ("80-", b"\xff" * 8, True),
        ("8000-", b"\x80", True),
        ("-80", b"\x80\x00", False),
        ("40-80", b"\x3f\xff", False),
        ("40-80", b"\x40\x00\x01", True),
        ("-", b"\xff", True),
    ],
)
def test_a_range_is_half_open(text: str, keyspace_id: bytes, is_inside: bool) -> None:
    assert KeyRange.parse(text).contains(keyspace_id) is is_inside


@pytest.mark.parametrize(
    ("one", "two", "overlaps", "one_contains_two"),
    [
        ("-80", "80-", False, False),
        ("-80", "40-c0", True, False),
        ("-", "40-80", True, True),
        ("40-80", "-", True, False),
        ("80-", "c0-", True, True),
        ("80-", "80-c0", True, True),
        ("80-c0", "80-", True, False),
        ("-80", "-80", True, True),
        ("-40", "80-c0", False, False),
    ],
)
def test_overlap_and_containment(one: str, two: str, overlaps: bool, one_contains_two: bool) -> None:
    first, second = KeyRange.parse(one), KeyRange.parse(two)
    assert first.overlaps(second) is overlaps
    assert second.overlaps(first) is overlaps
    assert first.contains_range(second) is one_contains_two


def test_only_the_whole_range_is_full() -> None:
    assert KeyRange().is_full
    assert KeyRange.parse("0").is_full
    assert not KeyRange.parse("-80").is_full
    assert not KeyRange.parse("80-").is_full
