"""Tables that are read as a whole, in the order of their primary key: columns, key, and what a server shows.

``spark.copy`` dumps tables this way, and ``invalidator.stream.chunk`` reads them for a refresh. Takes no lock and
writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from freshness.config.keyspace import Shard
from freshness.database.connection import Connection, quote_name, read_rows
from freshness.database.vitess import VitessShard, on_one_tablet
from freshness.errors import ConfigError, SourceUnavailable
from freshness.position.token import EventToken
from freshness.stream.heartbeat import parse_token, token_sql

_COLUMNS: Final = """SELECT column_name, data_type, column_type, numeric_precision, numeric_scale,
  character_octet_length, character_set_name, extra, generation_expression FROM information_schema.columns
  WHERE table_schema = DATABASE() AND table_name = %s ORDER BY ordinal_position"""
_KEY: Final = """SELECT column_name FROM information_schema.key_column_usage
  WHERE table_schema = DATABASE() AND table_name = %s AND constraint_name = 'PRIMARY' ORDER BY ordinal_position"""


@dataclass(frozen=True, slots=True)
class WalkedColumn:
    """A column as the schema has it. ``kind``: its type without bounds, in small letters; ``whole_type``: with them.
    ``octets`` and ``charset``: size in bytes and character set of text and bytes, else 0 and empty."""

    name: str
    kind: str
    whole_type: str
    precision: int
    scale: int
    octets: int
    charset: str
    is_virtual: bool


@dataclass(frozen=True, slots=True)
class WalkedTable:
    """``key``: the columns of the primary key, in its order."""

    name: str
    columns: tuple[WalkedColumn, ...]
    key: tuple[str, ...]


def read_walked_table(connection: Connection, name: str) -> WalkedTable | None:
    """The current columns and key of a table; None if it does not exist. Raises `ConfigError` for a table without a
    primary key. Errors of pymysql come out as they are."""
    rows = read_rows(connection, _COLUMNS, (name,))
    # Where MariaDB keeps a table's past, the key has the end of each row: in the same for all rows that are there.
    told = {str(row[0]) for row in rows if row[-1] != "ROW END"}
    key = tuple(str(column) for (column,) in read_rows(connection, _KEY, (name,)) if column in told)
    if not rows:
        return None
    if not key:
        raise ConfigError(f"table {name} has no primary key", hint="its rows cannot be told apart; add one")
    columns = tuple(
        WalkedColumn(
            str(column),
            str(kind).lower(),
            str(whole_type),
            int(precision or 0),
            int(scale or 0),
            int(octets or 0),
            str(charset or ""),
            "VIRTUAL" in str(extra).upper(),
        )
        for column, kind, whole_type, precision, scale, octets, charset, extra, _ in rows
    )
    return WalkedTable(name, columns, key)


def above_key(key: Sequence[str], border: Sequence[Any] | None) -> tuple[str, list[Any]]:
    """The condition for keys after the border, and its parameters. Spelled out: servers use an index for this, and
    not for a comparison of tuples. Without a border, every key."""
    if border is None:
        return "TRUE", []
    parts: list[str] = []
    parameters: list[Any] = []
    for place, name in enumerate(key):
        equal = [f"{quote_name(earlier)} = %s" for earlier in key[:place]]
        parts.append("(" + " AND ".join([*equal, f"{quote_name(name)} > %s"]) + ")")
        parameters += border[: place + 1]
    return " OR ".join(parts), parameters


def read_floor(connection: Connection, flavor: str, shard: Shard) -> EventToken:
    """A position that every SELECT on this server shows from now on (F2), with the time of the newest heartbeat that
    it shows. Raises `ConfigError` without heartbeats. Errors of pymysql come out as they are."""
    found = read_rows(connection, token_sql(flavor))
    return _require_token(shard, parse_token(flavor, shard.lineage, shard.name, found))


@contextmanager
def reading_above(connection: Connection, flavor: str, shard: Shard) -> Iterator[EventToken]:
    """`read_floor`, for what is read in here. The reads of a shard of Vitess are in a transaction, on one tablet.
    Raises `SourceUnavailable` at the end where vtgate changed the tablet: then what was read counts for nothing."""
    if shard.vtgate is None:
        yield read_floor(connection, flavor, shard)
        return
    with on_one_tablet(connection, VitessShard.of(shard)) as tablet:
        yield _require_token(shard, tablet.token)
    if tablet.token is None:
        raise SourceUnavailable(
            f"vtgate changed the tablet of {shard.lineage} within a transaction", hint="it is read again"
        )


def _require_token(shard: Shard, token: EventToken | None) -> EventToken:
    if token is None or token.position.is_empty:
        raise ConfigError(
            f"shard {shard.lineage} has no heartbeats: nothing is known of what its servers show",
            hint="start `invalidator run`, or `freshness-spark sink`, which write them",
        )
    return token
