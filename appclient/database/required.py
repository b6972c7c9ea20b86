"""The demand of a miss on the rows that it reads (I10), and the lock by which a MariaDB primary proves it.

MariaDB logs a transaction before it shows it. Until then the transaction holds the locks of its rows, so a read that
gets them shows everything of these rows that was in the log before. InnoDB alone locks so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from freshness.algorithm.lookup import ReadServer
from freshness.errors import ConnectionsExhausted, QueryTimedOut, SourceUnavailable
from freshness.position.token import EventToken

log = logging.getLogger(__name__)

Servers: TypeAlias = MutableMapping[str, ReadServer]
"""The server that was read, by lineage."""

LOCK: Final = " LOCK IN SHARE MODE NOWAIT"
BUSY: Final = (1205, 1020, 1213)
"""Errors of a locking read: a writer holds a row, or on Galera a commit of another node has taken it away."""


class KeyedRows(NamedTuple):
    """The rows of a table under a key: SQL, and the condition's parameters."""

    table: str
    condition: str
    params: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Required:
    """The events that a value must show, and the rows that it is made of, by which a lock can prove it."""

    token: EventToken | None
    rows: Sequence[KeyedRows] = ()


NOTHING_REQUIRED: Final = Required(None)


@contextmanager
def giving_way(lineage: str) -> Iterator[None]:
    """Around a read that its caller repeats without what is required if no server answers it."""
    try:
        yield
    except (QueryTimedOut, ConnectionsExhausted):
        raise
    except SourceUnavailable as error:
        log.debug("%s is read without what the cache requires: %s", lineage, error)


def log_sql(flavor: str, tables: Sequence[str]) -> tuple[str, list[str]]:
    """Three columns and their parameters: whether the server is read-only, the end of its log, and how many of these
    tables, as SQL, are InnoDB's."""
    marks = ", ".join(["NULL", *["%s"] * len(tables)])
    end = "@@global.gtid_binlog_pos" if flavor == "mariadb" else "''"
    sql = (
        f"@@global.read_only, {end}, (SELECT COUNT(*) FROM information_schema.TABLES"
        f" WHERE TABLE_SCHEMA = DATABASE() AND ENGINE = 'InnoDB' AND TABLE_NAME IN ({marks}))"
    )
    return sql, [table.strip("`").replace("``", "`") for table in tables]
