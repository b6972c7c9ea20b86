"""The place at which a merged stream resumes, as one opaque text that consumers keep beside their data and send back.

A vector has, for each lineage of a stream, the position up to which it was delivered. The update stream makes and
reads it, and so do the Spark jobs. No I/O; ``invalidator.stream.start`` finds each shard's start in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from freshness.errors import FormatError
from freshness.keys.keyrange import KeyRange
from freshness.position.token import TEXT_PREFIX as TOKEN_PREFIX
from freshness.position.token import EventToken, from_text, to_text
from freshness.position.varint import ByteReader, append_varint

TEXT_PREFIX: Final = "fr1."
REFRESH_PREFIX: Final = "rf1."
"""The begin of a vector with the place of a refresh. A reader that would lose the refresh refuses the text."""

ENCODED_BYTES_MAX: Final = 4 << 20
LINEAGES_MAX: Final = 4096
NAME_BYTES_MAX: Final = 255

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RefreshPlace:
    """How far a refresh has come. ``reached``: by lineage and table, the primary key after which it goes on, with
    values as ``freshness.values.json`` writes them; None if the table is done. Others begin at their first key."""

    tables: tuple[str, ...]
    reached: Mapping[str, Mapping[str, list[Any] | None]]

    def is_done(self, lineage: str, table: str) -> bool:
        return self.reached.get(lineage, {}).get(table, ()) is None

    def find_key(self, lineage: str, table: str) -> list[Any] | None:
        return self.reached.get(lineage, {}).get(table)

    def reach(self, lineage: str, table: str, key: list[Any] | None) -> RefreshPlace:
        own = {**self.reached.get(lineage, {}), table: key}
        return RefreshPlace(self.tables, {**self.reached, lineage: own})

    def restart(self, lineage: str, table: str) -> RefreshPlace:
        own = {name: key for name, key in self.reached.get(lineage, {}).items() if name != table}
        return RefreshPlace(self.tables, {**self.reached, lineage: own})

    def encode(self) -> bytes:
        return json.dumps([self.tables, self.reached], sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> RefreshPlace:
        """Raises ValueError, TypeError or AttributeError for what `encode` never gave."""
        tables, reached = json.loads(data)
        place = cls(tuple(tables), {lineage: dict(own.items()) for lineage, own in reached.items()})
        keys = [key for own in place.reached.values() for key in own.values()]
        if not all(isinstance(name, str) for name in place.tables) or not all(
            key is None or isinstance(key, list) for key in keys
        ):
            raise TypeError("a name or a key of another type")
        return place


@dataclass(frozen=True, slots=True)
class ResumeVector:
    """``tokens``, by lineage: the position up to which it was delivered, and its watermark as the time.

    ``key_range``: range that was delivered; the vector says nothing of other rows. ``refresh``: the place of
      a refresh that is under way.
    """

    keyspace: str
    key_range: KeyRange
    tokens: Mapping[str, EventToken]
    refresh: RefreshPlace | None = None

    @property
    def min_timestamp_us(self) -> int:
        return min(token.timestamp_us for token in self.tokens.values())

    def format(self) -> str:
        """The text form: safe in URLs, headers and cookies. Raises `FormatError` if it would be too long."""
        out = bytearray((_VERSION,))
        for name in (self.keyspace, self.key_range.format()):
            raw = name.encode("utf-8")
            if len(raw) > NAME_BYTES_MAX:
                raise FormatError(f"the name {name[:60]!r} in a resume text", hint=f"at most {NAME_BYTES_MAX} bytes")
            out.append(len(raw))
            out += raw
        append_varint(out, len(self.tokens))
        for lineage in sorted(self.tokens):
            raw = self.tokens[lineage].encode()
            append_varint(out, len(raw))
            out += raw
        if self.refresh is not None:
            raw = self.refresh.encode()
            append_varint(out, len(raw))
            out += raw
        _require_bounds(len(out), len(self.tokens))
        return to_text(TEXT_PREFIX if self.refresh is None else REFRESH_PREFIX, bytes(out))

    @classmethod
    def parse(cls, text: str) -> ResumeVector:
        """The vector in a ``text`` of `format`, blanks around it allowed. Raises `FormatError` for anything else."""
        text = text.strip()
        is_refresh = text.startswith(REFRESH_PREFIX)
        prefix = REFRESH_PREFIX if is_refresh else TEXT_PREFIX
        vector = cls._decode(from_text(prefix, text, "resume text", ENCODED_BYTES_MAX), is_refresh=is_refresh)
        if vector.format() != text:
            raise FormatError(f"resume text {text[:60]!r} was altered", hint="take it again from its source")
        return vector

    @classmethod
    def _decode(cls, data: bytes, *, is_refresh: bool) -> ResumeVector:
        reader = ByteReader(data, "resume text")
        if reader.read_byte() != _VERSION:
            raise reader.error(f"is of version {data[0]}, this process reads version {_VERSION}")
        keyspace, key_range = reader.read_name(), reader.read_name()
        count = reader.read_varint()
        _require_bounds(len(data), count)
        tokens = [EventToken.decode(reader.read_bytes(reader.read_varint())) for _ in range(count)]
        refresh = None
        if is_refresh:
            try:
                refresh = RefreshPlace.decode(reader.read_bytes(reader.read_varint()))
            except (ValueError, TypeError, AttributeError) as error:
                raise reader.error(f"has no place of a refresh: {error}") from error
        reader.finish()
        return cls(keyspace, KeyRange.parse(key_range), {token.lineage: token for token in tokens}, refresh)


Moment: TypeAlias = int | EventToken | ResumeVector
"""A place in the history of a keyspace: a time (µs since 1970), after an event, or after all that a vector has."""


def parse_moment(text: str) -> Moment | None:
    """A resume text, an event token, or a time as ISO 8601 with its zone; None for anything else. Raises
    `FormatError` for a resume text or a token that was cut or altered, and for the resume text of a refresh."""
    text = text.strip()
    if text.startswith(REFRESH_PREFIX):
        raise FormatError(
            f"resume text {text[:20]}… has the place of a refresh, which would be lost here",
            hint="`invalidator stream` and the service's update stream go on with it; or begin at an event token",
        )
    if text.startswith(TEXT_PREFIX):
        return ResumeVector.parse(text)
    if text.startswith(TOKEN_PREFIX):
        return EventToken.parse(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else round(time.timestamp() * 1_000_000)


def _require_bounds(size: int, lineages: int) -> None:
    if size > ENCODED_BYTES_MAX or lineages > LINEAGES_MAX:
        raise FormatError(
            f"resume text of {size} bytes and {lineages} lineages",
            hint=f"at most {ENCODED_BYTES_MAX} bytes and {LINEAGES_MAX} lineages",
        )
