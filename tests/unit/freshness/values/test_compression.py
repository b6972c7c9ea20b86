"""Compressed values: read by everybody or refused, never misread, and never more than a reader can take."""

from __future__ import annotations

import logging
import sys
import tracemalloc
from random import Random
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from freshness.config.cache import VALUE_BYTES_MAX
from freshness.errors import ConfigError, FormatError
from freshness.values import compression
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import PACKED, compressing, unpack

DOCUMENT: Any = {"id": 7, "lines": [{"sku": f"A{number:05}", "quantity": 1} for number in range(200)]}
encode = compressing(encode_value, 1000)


def test_a_large_value_is_compressed_and_comes_back() -> None:
    packed, plain = encode(DOCUMENT), encode_value(DOCUMENT)
    assert packed[:1] == PACKED
    assert len(packed) < len(plain) / 3
    assert unpack(packed) == plain
    assert decode_value(packed) == DOCUMENT


def test_a_small_value_is_as_ever() -> None:
    value = "x" * 995
    assert len(encode_value(value)) == 999
    assert encode(value) == encode_value(value)
    assert encode("x" * 996) == encode_value("x" * 996), "1000 bytes are not more than 1000"
    assert encode("x" * 997)[:1] == PACKED


def test_what_does_not_get_smaller_is_as_ever() -> None:
    noise = Random(1).randbytes(5000)
    assert encode(noise) == encode_value(noise)


def test_nothing_is_compressed_by_default() -> None:
    assert compressing(encode_value, None) is encode_value


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.binary(max_size=200)))
def test_every_value_comes_back(value: Any) -> None:
    packed = compressing(encode_value, 1)(value)
    assert decode_value(packed) == value
    assert unpack(packed) == encode_value(value)


@pytest.mark.parametrize("at", range(60))
def test_a_damaged_frame_is_a_format_error(at: int) -> None:
    """One bit anywhere, the checksum included."""
    packed = encode(DOCUMENT)
    place = 1 + at * (len(packed) - 2) // 59
    damaged = bytearray(packed)
    damaged[place] ^= 1
    try:
        value = decode_value(bytes(damaged))
    except FormatError:
        return
    assert value == DOCUMENT, "a bit of the frame's header that says nothing"


@pytest.mark.parametrize("size", [1, 2, 5, 20, -1, -4])
def test_a_cut_frame_is_a_format_error(size: int) -> None:
    with pytest.raises(FormatError):
        decode_value(encode(DOCUMENT)[:size])


def test_more_than_one_frame_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="unused data"):
        decode_value(encode(DOCUMENT) + b"x")
    with pytest.raises(FormatError):
        decode_value(encode(DOCUMENT) * 2)


def test_a_frame_inside_a_frame_is_no_value() -> None:
    inner = encode(DOCUMENT)
    with pytest.raises(FormatError, match="codec version 2"):
        decode_value(PACKED + zstandard.compress(inner))


@pytest.mark.parametrize("size", [VALUE_BYTES_MAX + 1, 1 << 30])
def test_a_bomb_takes_no_memory(size: int) -> None:
    bomb = PACKED + zstandard.ZstdCompressor(level=1).compress(bytes(size))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=f"of {size} bytes"):
            decode_value(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    with pytest.raises(FormatError, match="of -1 bytes"):
        decode_value(PACKED + frame)


def test_a_value_that_no_reader_takes_is_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "VALUE_BYTES_MAX", len(encode_value(DOCUMENT)) - 1)
    assert encode(DOCUMENT) == encode_value(DOCUMENT)


def test_without_the_package_a_writer_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError) as refused:
        compressing(encode_value, 1000)
    assert str(refused.value) == (
        "cache.compress_above_bytes is set, and the Python package zstandard is not installed "
        "(pip install 'freshness[compression]')"
    )
    assert compressing(encode_value, None) is encode_value


def test_without_the_package_a_reader_refuses_the_value_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packed = encode(DOCUMENT)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    compression._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(FormatError, match="zstandard is not installed"):
                decode_value(packed)
    assert len(caplog.records) == 1
    assert decode_value(encode_value(DOCUMENT)) == DOCUMENT
