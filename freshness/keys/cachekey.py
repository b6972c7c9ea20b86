"""Canonical cache keys: one row, one slot, however its key was spelled (F24), and never two rows as one (F45).

A key has three parts. The **item** is the memcached key. It is *coarser* than the database's own equality for
ordinary text: whatever the collation calls equal should land in one slot, and rows that share a slot by mistake
only push one another out. The **identity** is *finer*: two values that differ for the database never have one
identity. It is stored in the entry and compared on a hit. **is_exact** says that values equal for the database
always give one item and one identity.

The contract of the callers:

* an entry is a hit only if its identity is the requested one;
* the database is asked for `KeyBuilder.parse` of the identity, so that one identity is one question;
* a row is stored only if the key built from the row's own stored values has the same item and identity as the
  requested one: the binlog names rows by their stored values, so only those slots are ever invalidated;
* "no such row", and composites, are stored only if ``is_exact``: nothing stored determines which slot an
  invalidation will name when the row appears.

Item keys that start with ``<namespace>:!`` belong to node records; no object name can start with "!". Never put a
secret in a key. A TIMESTAMP column is a DATETIME here, in one time zone for all sessions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from freshness.errors import ConfigError, FormatError
from freshness.keys.keycolumn import INTEGER_MAX, INTEGER_MIN, ColumnKind, KeyColumn

ITEM_BYTES_MAX: Final = 240
"""memcached takes 250; the rest is for suffixes."""
_DIGEST_BYTES: Final = 20
_PLAIN_SEQUENCES: Final = (tuple, list)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}", re.ASCII)


class CacheKey(NamedTuple):
    """The place of an object (``item``) and its ``identity``; see the module for ``is_exact``."""

    item: bytes
    identity: bytes
    is_exact: bool


class KeyBuilder:
    """Builds the keys of one object. Raises `ConfigError` for names that cannot stand in a key."""

    __slots__ = ("_takes_one_integer", "columns", "is_exact", "object_name", "prefix")

    def __init__(self, namespace: str, object_name: str, columns: Sequence[KeyColumn]) -> None:
        for what, name in (("namespace", namespace), ("object name", object_name)):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{what} {name[:80]!r} cannot stand in a cache key",
                    hint="expected 1 to 60 of the characters A-Z a-z 0-9 _ . -",
                )
        if not columns:
            raise ConfigError(f"object {object_name} has no key columns", hint="name the columns of its key")
        self.object_name = object_name
        self.columns = tuple(columns)
        self.is_exact = all(column.is_exact for column in self.columns)
        self.prefix = f"{namespace}:{object_name}:".encode("ascii")
        """The first bytes of every item of this object; the coarse spellings follow, joined by ":"."""
        self._takes_one_integer = len(self.columns) == 1 and self.columns[0].kind is ColumnKind.INTEGER

    def build(self, values: Sequence[object]) -> CacheKey:
        """The key of these values, in the order of the columns. Raises `FormatError` for a wrong number of values,
        NULL, or a value that does not fit its column."""
        # Nearly every read: no spelling, no escaping. Not for bytes, whose members are integers too.
        if self._takes_one_integer and type(values) in _PLAIN_SEQUENCES and len(values) == 1:
            value = values[0]
            if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:
                text = b"%d" % value
                return CacheKey(self.prefix + text, text, True)
        return self._build(values)

    def parse(self, identity: bytes) -> tuple[Any, ...]:
        """The values that an identity stands for, in the order of the columns: what the database is asked for. Raises
        `FormatError` for a value that the column cannot hold; another `ValueError`, or `ArithmeticError`, for bytes
        that are not an identity of this object."""
        parts = identity.decode("ascii").split(":")
        return tuple(column.parse(part) for column, part in zip(self.columns, parts, strict=True))

    def _build(self, values: Sequence[object]) -> CacheKey:
        if isinstance(values, (str, bytes, bytearray)) or len(values) != len(self.columns):
            raise FormatError(
                f"the key of {self.object_name} got {_describe_values(values)}",
                hint=f"expected a sequence with {', '.join(column.name for column in self.columns)}",
            )
        try:
            spellings = [column.spell(value) for column, value in zip(self.columns, values, strict=True)]
        except FormatError as error:
            raise FormatError(f"the key of {self.object_name}: {error.message}", hint=error.hint) from error
        # No spelling holds the separator, and their number is fixed: two tuples never join to one text.
        item = self.prefix + ":".join(coarse for coarse, _ in spellings).encode("ascii")
        identity = ":".join(fine for _, fine in spellings).encode("ascii")
        return CacheKey(shorten_item(item), identity, self.is_exact)


def shorten_item(item: bytes) -> bytes:
    """Keys too long for memcached keep their start and get a digest. "~" stands in no other key."""
    if len(item) <= ITEM_BYTES_MAX:
        return item
    digest = blake2b(item, digest_size=_DIGEST_BYTES).hexdigest().encode("ascii")
    return item[: ITEM_BYTES_MAX - 1 - len(digest)] + b"~" + digest


def _describe_values(values: Sequence[object]) -> str:
    return f"one {type(values).__name__}" if isinstance(values, (str, bytes, bytearray)) else f"{len(values)} values"
