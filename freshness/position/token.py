"""Event tokens: a place in the history of one lineage. Opaque to applications; this package compares them.

A token names the lineage (replication topology), shard, epoch, a timestamp, and the position. Containment of the
position decides; the timestamp is for seeking and for showing lag, never proof of freshness (F3, F4). Tokens of
another lineage, epoch or flavor are UNKNOWN to one another, and UNKNOWN never fills and always invalidates.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final

from freshness.errors import FormatError
from freshness.position import Order, Position, decode_position
from freshness.position.varint import NUMBER_MAX, ByteReader, append_varint

TEXT_PREFIX: Final = "ft1."
NAME_BYTES_MAX: Final = 128
ENCODED_BYTES_MAX: Final = 256 * 1024
"""A GTID set of 2000 intervals takes about 6 kB. A larger token has a broken set, or is an attack."""

_VERSION: Final = 1
_BASE64_TEXT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_UNSUITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, lone surrogates


@dataclass(frozen=True, slots=True)
class EventToken:
    """``timestamp_us``: microseconds since 1970, as the stream has it (the start of a statement; F3). ``epoch``:
    changed when history was lost. ``until``: a position beyond which a value that was read has nothing, None if it is
    not known; it is not encoded. Raises `FormatError` for names or numbers out of bounds."""

    lineage: str
    shard: str
    epoch: int
    timestamp_us: int
    position: Position
    until: Position | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for part, name in (("lineage", self.lineage), ("shard", self.shard)):
            if not 1 <= len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX or _UNSUITABLE.search(name):
                raise FormatError(
                    f"{part} {name[:60]!r} of an event token",
                    hint=f"expected 1 to {NAME_BYTES_MAX} bytes of text without control characters",
                )
        for part, number in (("epoch", self.epoch), ("timestamp_us", self.timestamp_us)):
            if not 0 <= number <= NUMBER_MAX:
                raise FormatError(f"{part} {number} of an event token", hint=f"expected 0 to {NUMBER_MAX}")

    def encode(self) -> bytes:
        """The binary form. Raises `FormatError` above ``ENCODED_BYTES_MAX`` bytes."""
        out = bytearray((_VERSION,))
        for name in (self.lineage, self.shard):
            raw = name.encode("utf-8")
            out.append(len(raw))
            out += raw
        append_varint(out, self.epoch)
        append_varint(out, self.timestamp_us)
        out += self.position.encode()
        require_size(len(out))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> EventToken:
        """The token in ``data`` of `encode`. Raises `FormatError` for anything else."""
        require_size(len(data))
        reader = ByteReader(data, "event token")
        version = reader.read_byte()
        if version != _VERSION:
            raise FormatError(
                f"event token of version {version}, this process reads version {_VERSION}",
                hint="upgrade this process, or drop the token",
            )
        lineage, shard = reader.read_name(), reader.read_name()
        epoch, timestamp_us = reader.read_varint(), reader.read_varint()
        return cls(lineage, shard, epoch, timestamp_us, decode_position(data[reader.offset :]))

    def format(self) -> str:
        """The text form: safe in URLs, headers and cookies."""
        return to_text(TEXT_PREFIX, self.encode())

    @classmethod
    def parse(cls, text: str) -> EventToken:
        """The token in a ``text`` of `format`, blanks around it allowed. Raises `FormatError` for anything else."""
        text = text.strip()
        token = cls.decode(from_text(TEXT_PREFIX, text, "event token"))
        if token.format() != text:
            raise FormatError(f"event token {text[:60]!r} was altered", hint="take it again from its source")
        return token

    def __str__(self) -> str:
        return self.format()


def to_text(prefix: str, data: bytes) -> str:
    """Bytes as text that is safe in URLs, headers and cookies."""
    return prefix + base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_text(prefix: str, text: str, what: str, bytes_max: int = ENCODED_BYTES_MAX) -> bytes:
    """The bytes that `to_text` was given. Raises `FormatError`, naming ``what`` it should be, also for more
    than ``bytes_max``, before they are made."""
    body = text.removeprefix(prefix)
    if not text.startswith(prefix) or not _BASE64_TEXT.fullmatch(body):
        article = "an" if what[0] in "aeiou" else "a"
        raise FormatError(
            f"{text[:60]!r} is not {article} {what}", hint=f"expected {prefix} followed by letters, digits, - and _"
        )
    require_size(len(body) * 3 // 4, what, bytes_max)
    try:
        return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except binascii.Error as error:
        raise FormatError(
            f"{what} {text[:60]!r} has an impossible length", hint="it was cut; take it again"
        ) from error


def compare(one: EventToken, two: EventToken) -> Order:
    """How ``one`` stands to ``two``, by containment alone. Another lineage, epoch or flavor: UNKNOWN."""
    if one.lineage != two.lineage or one.epoch != two.epoch:
        return Order.UNKNOWN
    return one.position.compare(two.position)


def covers(one: EventToken, two: EventToken) -> bool:
    """True iff ``one`` is known to hold everything ``two`` does: same lineage and epoch, position contained.
    `covers(read, event)` is the only ground on which a read may be called fresh. Doubt is False."""
    return one.lineage == two.lineage and one.epoch == two.epoch and one.position.contains(two.position)


def lacks(shown: EventToken | None, asked: EventToken | None) -> bool:
    """True iff a value read at ``shown`` is not known to hold what is asked of it. False if nothing is asked, or if
    it has no token: nobody stores it."""
    return shown is not None and asked is not None and not covers(shown, asked)


def require_size(size: int, what: str = "event token", bytes_max: int = ENCODED_BYTES_MAX) -> None:
    """Raise `FormatError` above ``bytes_max`` bytes."""
    if size > bytes_max:
        raise FormatError(f"{what} of {size} bytes", hint=f"at most {bytes_max}; is a GTID set fragmented?")
