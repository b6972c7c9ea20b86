"""Unsigned variable-length integers (LEB128) and a bounded reader over bytes.

Used by the binary forms of positions and tokens, and under those of envelopes. Never reads past the end of its bytes
and never accepts two spellings of one number, so equal values have equal bytes.
"""

from __future__ import annotations

from freshness.errors import FormatError

NUMBER_MAX = (1 << 64) - 1
"""Largest number that is written or accepted: MariaDB sequence numbers are unsigned 64 bit."""

_CUT_HINT = "the bytes were cut, or are not what they are taken for; take them again from where they came"


def append_varint(out: bytearray, number: int) -> None:
    """Append ``number`` (0 to 2**64-1) to ``out``: seven bits a byte, lowest first."""
    assert 0 <= number <= NUMBER_MAX
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def varint(number: int) -> bytes:
    """``number`` alone, as `append_varint` appends it. For what is made 100,000 times a second."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x20_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    out = bytearray()
    append_varint(out, number)
    return bytes(out)


class ByteReader:
    """Reads forward through ``data``. Where bytes are missing, it raises `FormatError`, naming ``what``."""

    __slots__ = ("data", "offset", "what")

    def __init__(self, data: bytes, what: str, offset: int = 0) -> None:
        self.data = data
        self.offset = offset
        self.what = what

    def read_byte(self) -> int:
        return self.read_bytes(1)[0]

    def read_bytes(self, size: int) -> bytes:
        end = self.offset + size
        if end > len(self.data):
            raise self.error(f"ends after {len(self.data)} bytes where {end} are needed")
        chunk = self.data[self.offset : end]
        self.offset = end
        return chunk

    def read_varint(self) -> int:
        """The next number. Refuses numbers above 2**64-1 and spellings longer than needed."""
        data, offset = self.data, self.offset
        number = shift = 0
        while True:
            if offset >= len(data):
                raise self.error(f"ends after {len(data)} bytes, inside a number")
            byte = data[offset]
            offset += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise self.error(f"has a number of more than 64 bits at byte {offset}")
        self.offset = offset
        if number > NUMBER_MAX or (byte == 0 and shift):
            raise self.error(f"has a malformed number that ends at byte {self.offset}")
        return number

    def read_name(self) -> str:
        """The next text, UTF-8 of at most 255 bytes behind a byte with their number."""
        raw = self.read_bytes(self.read_byte())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"has a name that is not UTF-8 before byte {self.offset}") from error

    def finish(self) -> None:
        """Raises `FormatError` where bytes are left over."""
        if self.offset != len(self.data):
            raise self.error(f"has {len(self.data) - self.offset} bytes too many after byte {self.offset}")

    def error(self, problem: str) -> FormatError:
        return FormatError(f"binary {self.what} {problem}", hint=_CUT_HINT)
