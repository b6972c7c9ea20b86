"""Reading and writing of the binary envelopes: fixed-width integers and length-prefixed fields, big-endian.

Used by ``freshness.algorithm.envelope`` alone; docs/wire-format.md is its description. As every `ByteReader`, a
reader never returns a short field: anything that does not fit is a `FormatError`.
"""

from __future__ import annotations

import struct

from freshness.position.varint import ByteReader

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


class WireReader(ByteReader):
    """Takes fields from the front, as a `Writer` puts them there."""

    __slots__ = ()

    def u8(self) -> int:
        return self.read_byte()

    def u32(self) -> int:
        return int.from_bytes(self.read_bytes(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self.read_bytes(8), "big")

    def i64(self) -> int:
        return int.from_bytes(self.read_bytes(8), "big", signed=True)

    def long(self) -> bytes:
        return self.read_bytes(self.u32())

    def count(self) -> int:
        return int.from_bytes(self.read_bytes(2), "big")

    def rest(self) -> bytes:
        return self.read_bytes(len(self.data) - self.offset)
