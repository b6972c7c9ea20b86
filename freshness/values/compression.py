"""Compression of encoded values, by zstd: the byte 2 in the place of the codec's version, and one frame.

The frame says how long its content is, and has a checksum of it. A reader unpacks no more than `VALUE_BYTES_MAX`, and
a damaged frame raises. A reader that does not know the byte, or has no zstandard, refuses the value as bytes of
another codec: it reads the database, and leaves the entry alone. The package is of the extra ``compression``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from freshness.config.cache import VALUE_BYTES_MAX
from freshness.errors import FormatError, missing_package

log = logging.getLogger(__name__)

PACKED: Final = b"\x02"
LEVEL: Final = 3
"""zstd's own default. Higher levels take several times as long for a few percent of a row document."""

_HINT: Final = "the entry was damaged or not written by this library; treat it as a miss"

Encode = Callable[[Any], bytes]


def compressing(encode: Encode, above_bytes: int | None) -> Encode:
    """``encode``, and compress what is longer than ``above_bytes``; None: nothing is compressed. Not to be shared
    between threads. Raises `ConfigError` where zstandard is not installed."""
    if above_bytes is None:
        return encode
    try:
        import zstandard
    except ModuleNotFoundError as error:
        missing = missing_package(error, "compression")
        assert missing is not None, "zstandard is of no project of ours"
        missing.message = f"cache.compress_above_bytes is set, and {missing.message[0].lower()}{missing.message[1:]}"
        raise missing from error
    pack = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True).compress

    def encode_and_compress(value: Any) -> bytes:
        plain = encode(value)
        if not above_bytes < len(plain) <= VALUE_BYTES_MAX:
            return plain
        packed = PACKED + pack(plain)
        return packed if len(packed) < len(plain) else plain

    return encode_and_compress


def unpack(data: bytes) -> bytes:
    """The encoded value: ``data`` itself, if it is not compressed. Raises `FormatError`."""
    if data[:1] != PACKED:
        return data
    try:
        import zstandard
    except ModuleNotFoundError as error:
        _warn_once()
        raise FormatError(
            "a cached value is compressed, and the Python package zstandard is not installed",
            hint="pip install 'freshness[compression]'; until then these values are read from the database",
        ) from error
    frame = memoryview(data)[1:]
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 < size <= VALUE_BYTES_MAX:
            raise FormatError(f"a compressed value of {size} bytes, expected 1 to {VALUE_BYTES_MAX}", hint=_HINT)
        plain: bytes = _find_decompressor(zstandard).decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"a compressed value cannot be unpacked: {error}", hint=_HINT) from error
    if len(plain) != size:
        raise FormatError("a compressed value has another content than its frame says", hint=_HINT)
    return plain


_of_thread: Final = threading.local()


def _find_decompressor(zstandard: Any) -> Any:
    """The thread's own: to make one takes longer than most values."""
    try:
        return _of_thread.decompressor
    except AttributeError:
        _of_thread.decompressor = zstandard.ZstdDecompressor()
        return _of_thread.decompressor


@cache
def _warn_once() -> None:
    log.warning(
        "values in the cache are compressed, and the Python package zstandard is not installed: they are read from "
        "the database. Install the extra compression"
    )
