"""Reads of one shard of a Vitess keyspace through vtgate's MySQL protocol, with the token that they deserve.

vtgate may send every statement to another tablet, and a query that equals one under way gets the result of that one
(the consolidator): a position read beside the rows would then be newer than they are. So a read names shard and
tablet type, and runs inside a transaction, which vtgate keeps on one tablet and never consolidates; and the server is
asked its name before and after. The position comes from a statement of its own, before the transaction has a snapshot
(F2, F17, F18). Needs no gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connected, read_rows
from freshness.errors import ConfigError
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from freshness.stream.heartbeat import HEARTBEAT_TABLE, parse_token

Result = TypeVar("Result")

_FLAVOR: Final = "mysql"
_NO_SUCH_TABLE: Final = 1146
_NAME = re.compile(r"[^\x00-\x20\x7f`:@/|%]+")

# No table in it, so it opens no snapshot: the one that the next statement opens is not older.
_POSITION: Final = "SELECT @@global.gtid_executed, @@global.server_uuid"
_SERVER: Final = "SELECT @@global.server_uuid"
_HEARTBEATS: Final = f"SELECT id, epoch, watermark, min_us FROM {HEARTBEAT_TABLE}"


@dataclass(frozen=True, slots=True)
class VitessShard:
    """One shard and which of its tablets to read. ``lineage``: name in the invalidator's configuration. ``tablet``:
    the alias of one tablet (``zone1-101``), which Vitess 24 and later can target."""

    keyspace: str
    shard: str
    lineage: str
    tablet_type: Literal["primary", "replica", "rdonly"] = "replica"
    tablet: str = ""

    @classmethod
    def of(cls, shard: Shard) -> VitessShard:
        """A shard of the configuration, on the tablets that its stream is of."""
        assert shard.vtgate is not None, "checked when the configuration was read"
        return cls(shard.vtgate.keyspace, shard.name, shard.lineage, shard.vtgate.tablet_type)

    def __post_init__(self) -> None:
        for name in (self.keyspace, self.shard, *([self.tablet] if self.tablet else [])):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{name[:60]!r} cannot be part of a Vitess target",
                    hint="expected keyspace, shard and tablet without blanks, quotes and any of : @ / | %",
                )

    @property
    def target(self) -> str:
        """``keyspace:shard@type``: the name of the database, to vtgate."""
        tablet = f"|{self.tablet}" if self.tablet else ""
        return f"{self.keyspace}:{self.shard}@{self.tablet_type}{tablet}"


def of_primary(shard: Shard) -> Shard:
    """The same shard, whose reads through vtgate are of its primary tablet."""
    return shard if shard.vtgate is None else replace(shard, vtgate=replace(shard.vtgate, tablet_type="primary"))


def readable(shard: Shard) -> ServerAddress:
    """vtgate's MySQL port, for reads of that shard. The target is the database from the beginning: with the keyspace
    alone vtgate sets a session up on the primary of another shard, which may be down."""
    return replace(shard.primary, database=VitessShard.of(shard).target)


def read_purged(shard: Shard) -> Position:
    """The transactions that a tablet of the shard, of its stream's type, has in no binary log any more. Raises
    `SourceUnavailable`, `SourceUnsuitable`."""
    address = readable(shard)
    with connected(address, "reading what was purged") as connection:
        [(text,)] = read_rows(connection, "SELECT @@global.gtid_purged")
        return parse_position(_FLAVOR, str(text))


@dataclass(slots=True)
class TabletRead:
    """``token``: all that is read shows its position. None if no invalidator has prepared the shard yet, and, at the
    end of the transaction, if vtgate changed the tablet on the way."""

    token: EventToken | None


@contextmanager
def on_one_tablet(connection: Connection, shard: VitessShard) -> Iterator[TabletRead]:
    """A transaction on one tablet of the shard, and what that tablet shows. The connection stays on the shard; who
    closes it inside gets no token. Errors of pymysql come out as they are."""
    read_rows(connection, f"USE `{shard.target}`")
    read_rows(connection, "BEGIN")
    try:
        [(position, server)] = read_rows(connection, _POSITION)
        rows = [(position, *row) for row in _read_heartbeats(connection)]
        found = TabletRead(parse_token(_FLAVOR, shard.lineage, shard.shard, rows))
        yield found
        server_after = read_rows(connection, _SERVER)[0][0] if connection.open else None
    finally:
        if connection.open:
            connection.rollback()
    if not server or server != server_after:
        found.token = None


def read_with_token(
    connection: Connection, shard: VitessShard, read: Callable[[Connection], Result]
) -> tuple[Result, EventToken | None]:
    """The result of ``read``, and a token whose position all of the result reflects. A value without a token must not
    be cached (`TabletRead`). ``read`` uses the connection and neither commits nor chooses another database. The
    connection stays on the shard. Errors of pymysql and of ``read`` come out as they are."""
    with on_one_tablet(connection, shard) as tablet:
        result = read(connection)
    return result, tablet.token


def _read_heartbeats(connection: Connection) -> list[tuple[object, ...]]:
    try:
        return read_rows(connection, _HEARTBEATS)
    except Exception as error:
        if error.args and error.args[0] == _NO_SUCH_TABLE and HEARTBEAT_TABLE in str(error):
            return []
        raise
