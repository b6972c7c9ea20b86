"""Key ranges: which keyspace ids a shard, or a reader of the stream, covers.

Text and meaning are Vitess's: ``-80``, ``40-80``, ``80-``, half-open, hexadecimal; ``-`` is everything, and ``0``
is the name of the one shard of an unsharded keyspace, which is everything too. As in Vitess, trailing zero bytes
mean nothing (``80-`` is ``8000-``). Never maps a row to a keyspace id; that is the sharding function's work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from freshness.errors import FormatError

_TEXT = re.compile(r"((?:[0-9a-f]{2})*)-((?:[0-9a-f]{2})*)", re.ASCII | re.IGNORECASE)
_HINT = 'expected hexadecimal bytes around a dash, as in "-80", "40-80", "80-", or "-" or "0" for everything'


@dataclass(frozen=True, slots=True)
class KeyRange:
    """From ``start`` up to and without ``end``; an empty ``end`` means no upper limit. `KeyRange()` is everything."""

    start: bytes = b""
    end: bytes = b""

    def __post_init__(self) -> None:
        start, end = self.start.rstrip(b"\0"), self.end.rstrip(b"\0")
        if self.end and start >= end:
            raise FormatError(f"key range {self.start.hex()}-{self.end.hex()} holds nothing", hint=_HINT)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "end", end)

    @classmethod
    def parse(cls, text: str) -> KeyRange:
        """Read a key range or shard name. Raises `FormatError`."""
        if text.strip() == "0":
            return cls()
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise FormatError(f"key range {text[:60]!r}", hint=_HINT)
        return cls(bytes.fromhex(match[1]), bytes.fromhex(match[2]))

    def format(self) -> str:
        """The canonical text; ``-`` for everything (also if it was read from ``0``)."""
        return f"{self.start.hex()}-{self.end.hex()}"

    def __str__(self) -> str:
        return self.format()

    @property
    def is_full(self) -> bool:
        """True iff it holds every keyspace id, so rows need not be looked at."""
        return not self.start and not self.end

    def contains(self, keyspace_id: bytes) -> bool:
        """True iff the keyspace id lies in the range."""
        place = keyspace_id.rstrip(b"\0")
        return self.start <= place and (not self.end or place < self.end)

    def contains_range(self, other: KeyRange) -> bool:
        """True iff all of ``other`` lies in this range: a reader of it need not filter that shard's rows."""
        return self.start <= other.start and (not self.end or (bool(other.end) and other.end <= self.end))

    def overlaps(self, other: KeyRange) -> bool:
        """True iff some keyspace id lies in both."""
        return (not self.end or other.start < self.end) and (not other.end or self.start < other.end)
