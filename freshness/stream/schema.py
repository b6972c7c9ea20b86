"""The columns of a table and its primary key, as of a place in the stream.

A source takes them from the log, beside the rows that they describe, so they are right for a row of any age. Set by
``invalidator.binlog.rows.schema`` and ``invalidator.vstream.row``; sent by ``invalidator.stream.json_lines``.
No I/O.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from typing import Literal, TypeAlias

ID_BYTES = 8

KeySource: TypeAlias = Literal["log", "vttablet", "server", "unknown"]
"""The source of the primary key: the log; vttablet, from its schema for that place; the server, from its current
schema, if the log lacks the key; none."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """``type``: the name in SQL, such as ``bigint``. Types that only the server's dictionary distinguishes have one
    name: MariaDB's UUID is ``binary``. ``length``: bytes at most of CHAR, VARCHAR, BINARY and VARBINARY (vttablet
    sends those of the text in utf8mb4), digits of DECIMAL, bits of BIT, else None. ``scale``: digits behind the
    point, or behind the second. ``charset``: character set or None. ``labels``: labels of ENUM and SET, None if they
    are not text or cannot be read."""

    name: str
    type: str
    nullable: bool
    unsigned: bool = False
    length: int | None = None
    scale: int | None = None
    charset: str | None = None
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """``key``: the names of the primary key's columns, in its order if ``key_source`` is "log". Empty for a table
    without one, None if the source does not report it."""

    columns: tuple[TableColumn, ...]
    key: tuple[str, ...] | None
    key_source: KeySource


def make_schema_id(keyspace: str, table: str, columns: tuple[TableColumn, ...], key: tuple[str, ...] | None) -> str:
    """The same for the same layout, in each process and at any time; another one for another layout."""
    text = json.dumps([keyspace, table, [astuple(column) for column in columns], key], ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=ID_BYTES).hexdigest()
