"""The heartbeat table, as both sides know it, and the token of a read that is taken with its help.

The invalidator writes the table on each primary; readers find the epoch there and, on MariaDB, the watermark.
A read's token comes from the engine-visible side of the very server that is read, in a statement of its own
before the rows (F2, F17, F18; docs/algorithm.md#reading): a binlog position would be ahead of what a SELECT sees.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from freshness.errors import FormatError
from freshness.position import Position, parse_position
from freshness.position.token import EventToken

_THREADS: Final = re.compile(r"#\d+")

HEARTBEAT_TABLE: Final = "freshness_heartbeat"
EPOCH_ROW: Final = "epoch"


def topology_row(namespace: str, lineage: str) -> str:
    """The row with the number of the topology that a shard had last for a namespace (F102): ``sequence`` is the
    number, ``watermark`` the namespace. No other shard writes it, so shards can be merged by replication."""
    return "=" + hashlib.sha256(f"{namespace}\0{lineage}".encode()).hexdigest()[:32]


def is_beat(row_id: object) -> bool:
    """Whether a row of the heartbeat table is that of an invalidator."""
    return row_id != EPOCH_ROW and not str(row_id).startswith("=")


_VISIBLE: Final = {
    # In any role: updated after the engine commit.
    "mysql": "@@global.gtid_executed",
    # On a replica: updated after the engine commit. On a primary it stands still, a lower bound all the same;
    # there the watermark moves the token.
    "mariadb": "@@global.gtid_slave_pos",
}


UNTIL: Final = {
    # While a transaction commits, it is owned; the engine shows it before the server calls it executed.
    "mysql": "CONCAT_WS(',', NULLIF(@@global.gtid_owned, ''), "
    "NULLIF(GTID_SUBTRACT(@@global.gtid_executed, '{position}'), ''))",
    # The log has a transaction before the engine shows it, on a replica only if that logs what it applies.
    "mariadb": "IF(@@global.log_bin AND @@global.log_slave_updates, @@global.gtid_binlog_pos, NULL)",
}
UNTIL_CHARS_MAX: Final = 1000
"""A longer position is not subtracted from another one for each row."""


SERVER_NAME: Final = {
    "mysql": "@@global.server_uuid",
    "mariadb": "CONCAT_WS(':', @@global.server_id, @@global.hostname, @@global.port)",
}
"""A server's name for itself, no two of a topology alike. A proxy answers with that of the server that it asked."""


def token_sql(flavor: str, first_column: str = "") -> str:
    """The statement to run on the same server before the rows are read, outside any older snapshot. Its own snapshot
    may be older than the variable it returns; the statements after it are not. ``first_column``: one more, in front
    of those that `parse_token` takes."""
    first = f"{first_column}, " if first_column else ""
    return f"SELECT {first}{_VISIBLE[flavor]}, id, epoch, watermark, min_us FROM {HEARTBEAT_TABLE}"


def parse_token(flavor: str, lineage: str, shard: str, rows: Sequence[Sequence[Any]]) -> EventToken | None:
    """The token in the answer to `token_sql`; None if the table has no epoch yet: such a read never fills. The
    position is a lower bound of what the server shows: on MariaDB the replica's own position united with the
    watermarks, each of which was visible before its row. ``timestamp_us`` is the newest heartbeat's, 0 without."""
    epochs = [int(row[2]) for row in rows if row[1] == EPOCH_ROW]
    if len(epochs) != 1:
        return None
    position = _parse_position(flavor, str(rows[0][0] or ""))
    if flavor == "mariadb":
        for row in rows:
            # A row of an older epoch, of an invalidator that is gone, speaks of a history that was lost.
            if is_beat(row[1]) and row[3] and int(row[2]) == epochs[0]:
                position = position.union(_parse_position(flavor, str(row[3])))
    return EventToken(lineage, shard, epochs[0], max(int(row[4]) for row in rows), position)


def until_sql(flavor: str, token: EventToken | None) -> str:
    """A column of the SELECT that reads rows after ``token``. The server computes it when it sends a row, so the row
    has nothing beyond the token and it. NULL: not known. See `parse_until`."""
    if flavor == "mariadb":
        return UNTIL[flavor]
    position = "" if token is None else str(token.position)
    return "NULL" if len(position) > UNTIL_CHARS_MAX else UNTIL[flavor].format(position=position)


def parse_until(flavor: str, token: EventToken, text: object) -> Position | None:
    """The upper bound of rows by the answer to `until_sql`. An owned GTID has the thread behind it: ``uuid:5#31``."""
    return None if text is None else token.position.union(_parse_position(flavor, _THREADS.sub("", str(text))))


def _parse_position(flavor: str, text: str) -> Position:
    try:
        return parse_position(flavor, text)
    except FormatError as error:
        raise FormatError(f"the server's own position does not parse: {error.message}", hint=error.hint) from error
