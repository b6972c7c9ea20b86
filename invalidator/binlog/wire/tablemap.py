"""The columns of a table, as a TABLE_MAP event describes them: types, names, signs, character sets and labels.

Needs the full metadata (binlog_row_metadata=FULL). Reads bytes alone and knows no table. An event that is too short,
or does not add up, raises `FormatError`: the table is then raised, never guessed at. Metadata of unknown kinds are
skipped by their length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from freshness.errors import FormatError, StreamStopped

OLD_DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24 = range(10)
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = range(10, 20)
BLOB_COMPRESSED: Final = 140
VARCHAR_COMPRESSED: Final = 141
VECTOR: Final = 242
JSON: Final = 245
NEWDECIMAL: Final = 246
ENUM: Final = 247
SET: Final = 248
TINY_BLOB: Final = 249
MEDIUM_BLOB: Final = 250
LONG_BLOB: Final = 251
BLOB: Final = 252
VAR_STRING: Final = 253
STRING: Final = 254
GEOMETRY: Final = 255
"""Column types (enum_field_types of both servers)."""

BLOBS: Final = frozenset((TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, BLOB_COMPRESSED, JSON, VECTOR, GEOMETRY))
"""Types whose metadata is the number of bytes of their length."""

COLUMNS_MAX: Final = 4096
NAMES_START: Final = 8
"""The bytes of a table map in front of the names: the table's number and flags."""

BINARY_COLLATION: Final = 63

_ONE_BYTE: Final = BLOBS | {FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2}
_TWO_BYTES: Final = frozenset((VARCHAR, VARCHAR_COMPRESSED, BIT, NEWDECIMAL, VAR_STRING, STRING, ENUM, SET))
_KNOWN: Final = _ONE_BYTE | _TWO_BYTES | frozenset(range(1, 15))
_SIGNED_OR_NOT: Final = frozenset((TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR))
_TEXT: Final = frozenset((STRING, VAR_STRING, VARCHAR, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED))
_TEXT_OF: Final = {"mysql": _TEXT | {VECTOR}, "mariadb": _TEXT | {GEOMETRY}}
"""The columns that have an entry among the character sets, as each server counts them."""

_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _COLUMN_NAME, _SET_LABELS, _ENUM_LABELS = range(1, 7)
_KEY: Final = 8
_KEY_WITH_PREFIXES: Final = 9
_LABELS_DEFAULT_CHARSET: Final = 10
_LABELS_CHARSET: Final = 11
_VISIBILITY: Final = 12
"""MySQL from 8.0.23 on. A table map without it can be of a server that gave YEAR no sign (F123)."""


class MappedColumn(NamedTuple):
    """One column. ``kind``: its real type (ENUM and SET are logged as STRING). ``width``: the metadata as a number:
    bytes at most of a string, bytes of a length, bits, digits behind the second. ``collation``: its number, 0 if
    there is none. ``labels``: labels of an ENUM or SET, in the column's character set."""

    name: str
    kind: int
    width: int
    scale: int
    is_unsigned: bool
    is_nullable: bool
    collation: int
    labels: tuple[bytes, ...]


def read_columns(body: bytes, start: int, flavor: str) -> tuple[MappedColumn, ...]:
    """The columns, from the place behind the table's name. Raises `FormatError`."""
    try:
        return _read_columns(body, start, flavor)
    except (IndexError, UnicodeDecodeError, StopIteration) as error:
        raise FormatError(f"a TABLE_MAP event does not add up: {error!r}") from error


def read_primary_key(body: bytes, start: int, columns: Sequence[MappedColumn]) -> tuple[str, ...]:
    """The names of the primary key's columns, in its order; empty for a table without one. Both servers tell them
    together with the names. ``start`` as of `read_columns`. Raises `FormatError`."""
    try:
        optional = dict(_read_optional(body, _skip_columns(body, start)))
        if _KEY in optional:
            places = list(_read_numbers(optional[_KEY]))
        else:  # (place, characters of a prefix, 0 for the whole) of each column
            places = list(_read_numbers(optional.get(_KEY_WITH_PREFIXES, b"")))[::2]
        return tuple(columns[place].name for place in places)
    except IndexError as error:
        raise FormatError(f"the primary key of a TABLE_MAP event does not add up: {error!r}") from error


def _skip_columns(body: bytes, start: int) -> int:
    """The place of the optional metadata."""
    count, place = read_packed(body, start)
    length, place = read_packed(body, place + count)
    return place + length + (count + 7) // 8


def read_name(body: bytes, place: int) -> tuple[str, int]:
    """A name with its length before it and a zero after it, and the place behind them. Raises `StreamStopped`."""
    end = place + 1 + body[place] if place < len(body) else len(body)
    if end >= len(body):
        raise StreamStopped("a TABLE_MAP event is shorter than its names")
    return body[place + 1 : end].decode("utf-8", "backslashreplace"), end + 1


def read_packed(data: bytes, place: int) -> tuple[int, int]:
    """A length-encoded integer, and the place behind it. Raises `FormatError` if there is none."""
    first = data[place]
    if first < 251:
        return first, place + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    end = place + 1 + (size or 0)
    if size is None or end > len(data):
        raise FormatError(f"no length-encoded integer at {place}")
    return int.from_bytes(data[place + 1 : end], "little"), end


def _read_columns(body: bytes, start: int, flavor: str) -> tuple[MappedColumn, ...]:
    count, place = read_packed(body, start)
    if not 0 < count <= COLUMNS_MAX:
        raise FormatError(f"a TABLE_MAP event with {count} columns")
    kinds, place = _cut(body, place, count)
    length, place = read_packed(body, place)
    metadata, place = _cut(body, place, length)
    nullable, place = _cut(body, place, (count + 7) // 8)
    shapes = list(_read_shapes(kinds, metadata))
    optional = dict(_read_optional(body, place))
    if _COLUMN_NAME not in optional:
        raise FormatError(
            "the log has no column names: binlog_row_metadata is not FULL",
            hint="set binlog_row_metadata to FULL on the server",
        )
    names = [name.decode() for name in _read_strings(optional[_COLUMN_NAME])]
    real_kinds = [kind for kind, _, _ in shapes]
    if flavor == "mysql" and _VISIBILITY not in optional and _has_number_after_year(real_kinds):
        raise FormatError(
            "which numbers behind a YEAR are unsigned is not certain in the log of a MySQL before 8.0.23",
            hint="move the YEAR columns to the end of the table, or upgrade the server",
        )
    unsigned = _unsigned_places(real_kinds, optional.get(_SIGNEDNESS, b""))
    collations = _collations(
        [place for place, kind in enumerate(real_kinds) if kind in _TEXT_OF[flavor]],
        optional.get(_DEFAULT_CHARSET),
        optional.get(_COLUMN_CHARSET),
    )
    labelled = [place for place, kind in enumerate(real_kinds) if kind in (ENUM, SET)]
    collations |= _collations(labelled, optional.get(_LABELS_DEFAULT_CHARSET), optional.get(_LABELS_CHARSET))
    labels = _labels(real_kinds, optional)
    if len(names) != count:
        raise FormatError(f"{len(names)} names for {count} columns")
    return tuple(
        MappedColumn(
            name,
            *shape,
            place in unsigned,
            bool(nullable[place >> 3] >> (place & 7) & 1),
            collations.get(place, 0),
            labels.get(place, ()),
        )
        for place, (name, shape) in enumerate(zip(names, shapes, strict=True))
    )


def _cut(data: bytes, start: int, length: int) -> tuple[bytes, int]:
    end = start + length
    if end > len(data):
        raise FormatError(f"{length} bytes at {start} of a TABLE_MAP event of {len(data)}")
    return data[start:end], end


def _read_shapes(kinds: bytes, metadata: bytes) -> Iterator[tuple[int, int, int]]:
    """(real type, width, scale) of each column."""
    place = 0
    for kind in kinds:
        size = 2 if kind in _TWO_BYTES else 1 if kind in _ONE_BYTE else 0
        if kind not in _KNOWN:
            raise FormatError(f"column type {kind} is not known", hint="this server is newer than this program")
        first, second = (*metadata[place : place + size], 0, 0)[:2]
        if len(metadata) < place + size:
            raise FormatError("the metadata of the columns are too short")
        place += size
        if kind in (VARCHAR, VARCHAR_COMPRESSED):
            yield kind, first | second << 8, 0
        elif kind == BIT:
            yield kind, first + 8 * second, 0
        elif kind == STRING and first in (ENUM, SET):
            yield first, second, 0
        elif kind in (STRING, VAR_STRING):
            # Two bits of the length are kept, inverted, in the real type.
            yield kind, second | (first & 0x30 ^ 0x30) << 4, 0
        elif kind in (ENUM, SET):
            yield kind, second, 0
        else:
            yield kind, first, second
    if place != len(metadata):
        raise FormatError(f"{len(metadata)} bytes of metadata where the columns have {place}")


def _read_optional(body: bytes, place: int) -> Iterator[tuple[int, bytes]]:
    while place < len(body):
        kind = body[place]
        length, place = read_packed(body, place + 1)
        value, place = _cut(body, place, length)
        yield kind, value


def _read_strings(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        length, place = read_packed(data, place)
        value, place = _cut(data, place, length)
        yield value


def _read_numbers(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        number, place = read_packed(data, place)
        yield number


def _has_number_after_year(kinds: Sequence[int]) -> bool:
    return YEAR in kinds and any(kind in _SIGNED_OR_NOT - {YEAR} for kind in kinds[kinds.index(YEAR) :])


def _unsigned_places(kinds: Sequence[int], bits: bytes) -> frozenset[int]:
    numeric = [place for place, kind in enumerate(kinds) if kind in _SIGNED_OR_NOT]
    if len(bits) != (len(numeric) + 7) // 8:
        raise FormatError(f"{len(bits)} bytes of signs for {len(numeric)} numeric columns")
    return frozenset(place for index, place in enumerate(numeric) if bits[index >> 3] & 0x80 >> (index & 7))


def _collations(places: Sequence[int], default: bytes | None, each: bytes | None) -> dict[int, int]:
    """Collation by column place: one for all with exceptions, or one for each."""
    if each is not None:
        numbers = list(_read_numbers(each))
        return dict(zip(places, numbers, strict=True)) if len(numbers) == len(places) else _off()
    if default is None:
        return {} if not places else _off()
    exceptions = _read_numbers(default)
    found = dict.fromkeys(places, next(exceptions))
    for index in exceptions:
        found[places[index]] = next(exceptions)
    return found


def _off() -> dict[int, int]:
    raise FormatError("the character sets of a TABLE_MAP event do not fit its columns")


def _labels(kinds: Sequence[int], optional: dict[int, bytes]) -> dict[int, tuple[bytes, ...]]:
    found: dict[int, tuple[bytes, ...]] = {}
    for wanted, field in ((ENUM, _ENUM_LABELS), (SET, _SET_LABELS)):
        places = [place for place, kind in enumerate(kinds) if kind == wanted]
        data, at = optional.get(field, b""), 0
        for place in places:
            count, at = read_packed(data, at)
            labels = []
            for _ in range(count):
                length, at = read_packed(data, at)
                label, at = _cut(data, at, length)
                labels.append(label)
            found[place] = tuple(labels)
        if at != len(data):
            raise FormatError("the labels of a TABLE_MAP event do not fit its columns")
    return found
