"""Reading and writing of the binary envelopes: fixed-width integers and length-prefixed fields, big-endian.

Used by ``freshness.envelope`` alone; docs/wire-format.md is its description. A reader never reads past its end
and never returns a short field: anything that does not fit is a `FormatError`.
"""

from __future__ import annotations

import struct

from freshness.errors import FormatError

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


class Writer:
    """Collects fields; ``getvalue`` returns them joined."""

    __slots__ = ("_parts",)

    def __init__(self, head: bytes) -> None:
        self._parts = [head]

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def u8(self, number: int) -> None:
        self._parts.append(_U8.pack(number))

    def u32(self, number: int) -> None:
        self._parts.append(_U32.pack(number))

    def u64(self, number: int) -> None:
        self._parts.append(_U64.pack(number))

    def i64(self, number: int) -> None:
        self._parts.append(_I64.pack(number))

    def short(self, data: bytes) -> None:
        """A field of at most 255 bytes."""
        self._parts.append(_U8.pack(len(data)) + data)

    def long(self, data: bytes) -> None:
        """A field of at most 4 GiB."""
        self._parts.append(_U32.pack(len(data)) + data)

    def count(self, number: int) -> None:
        self._parts.append(_U16.pack(number))

    def getvalue(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Takes fields from the front of ``data``; every method raises `FormatError` where the bytes do not suffice."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def raw(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise FormatError(
                f"envelope ends after {len(self._data)} bytes where {end} were expected",
                hint="the item was cut short or is not one of ours",
            )
        part = self._data[self._at : end]
        self._at = end
        return part

    def u8(self) -> int:
        return self.raw(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self.raw(8), "big")

    def i64(self) -> int:
        return int.from_bytes(self.raw(8), "big", signed=True)

    def short(self) -> bytes:
        return self.raw(self.u8())

    def long(self) -> bytes:
        return self.raw(self.u32())

    def count(self) -> int:
        return int.from_bytes(self.raw(2), "big")

    def rest(self) -> bytes:
        part = self._data[self._at :]
        self._at = len(self._data)
        return part

    def end(self) -> None:
        if self._at != len(self._data):
            raise FormatError(
                f"{len(self._data) - self._at} bytes follow the end of an envelope", hint="not one of ours"
            )
