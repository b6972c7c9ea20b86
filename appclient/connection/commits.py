"""The commits of the application's own connection, and whether it has a transaction open.

Any connection of PEP 249: pymysql, mysqlclient, mysql-connector. No statement here reads a table, so none opens a
snapshot that later statements of the application would see. Used by the database and by own connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS

from appclient.connection.driver import require_safe
from freshness.errors import ConfigError, FormatError, SourceUnsuitable
from freshness.position import Position, empty_position, parse_position

INTERVALS_MAX: Final = 64
"""Maximum of intervals since the last token; above it, the server is asked for its whole set."""

_SESSION_STATE_CHANGED: Final = 1 << 14
_STATE_OF_GTIDS: Final = 3
_UNKNOWN_VARIABLE: Final = 1193
_TRACK: Final = (
    "SET SESSION session_track_gtids = OWN_GTID, session_track_state_change = ON, "
    "session_track_transaction_info = STATE"
)
_TOLD: Final = "SET SESSION session_track_state_change = OFF, session_track_transaction_info = OFF"
COMMITTED_SQL: Final = {
    # The last commit of this session, and with it all before it in its domain.
    "mariadb": "SELECT @@last_gtid",
    # MySQL has no statement for the session's own commits, so this reads those of all sessions.
    "mysql": "SELECT @@global.gtid_executed",
}


def find_transaction(connection: Any) -> bool | None:
    """Whether a transaction is open, as the driver says; None if it cannot (mysqlclient). mysql-connector has
    ``in_transaction``. pymysql keeps the status of the last answer without rows. Without autocommit a statement with
    rows, such as INSERT … RETURNING, may have begun a transaction since then."""
    status = getattr(connection, "server_status", None)
    if isinstance(status, int):
        if status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            return True
        return False if status & SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT else None
    told = getattr(connection, "in_transaction", None)
    return told if isinstance(told, bool) else None


def read_committed(connection: Any, flavor: str) -> Position | None:
    """A position with all that the session has committed; None if it has committed nothing.

    A `GtidConnection` knows it without a statement, of the commits since it was asked last. Otherwise one statement
    asks: on MariaDB for the session's last commit, on MySQL for those of all sessions, which is more. Raises
    `ConfigError` if a transaction is open. Errors of the driver come out as they are.
    """
    _require_no_transaction(connection)
    if isinstance(connection, GtidConnection) and flavor == "mysql":
        committed = connection.take_committed()
        if committed.interval_count <= INTERVALS_MAX:
            return None if committed.is_empty else committed
    with closing(connection.cursor()) as cursor:
        cursor.execute(COMMITTED_SQL[flavor])
        row = cursor.fetchone()
    position = parse_position(flavor, read_gtids(row))
    return None if position.is_empty else position


async def ask_committed(connection: Any, flavor: str) -> str:
    """The GTIDs that the session of asyncmy or aiomysql has committed, for `Database.commit_token_of`. Raises
    `ConfigError` if a transaction is open, `SourceUnsuitable` for a dangerous version of them. Errors of the driver
    come out as they are."""
    require_safe(connection)
    _require_no_transaction(connection)
    async with connection.cursor() as cursor:
        await cursor.execute(COMMITTED_SQL[flavor])
        row = await cursor.fetchone()
    return read_gtids(row)


def read_gtids(row: Any) -> str:
    """The GTIDs in the only row of such an answer, of whatever driver and cursor."""
    (text,) = row.values() if isinstance(row, Mapping) else row
    return text.decode() if isinstance(text, bytes) else str(text or "")


def _require_no_transaction(connection: Any) -> None:
    if find_transaction(connection):
        raise ConfigError(
            "a commit token was asked of a connection with an open transaction", hint="commit, then take the token"
        )


class GtidConnection(pymysql.Connection):
    """A pymysql connection to MySQL that takes the GTIDs of its commits from the server's answers to them. So a
    commit token costs no statement. Raises `SourceUnsuitable` if the server does not send them, as MariaDB."""

    def __init__(self, *args: Any, client_flag: int = 0, **kwargs: Any) -> None:
        self._committed: Position = empty_position("mysql")
        self._told_by: set[str] = set()
        super().__init__(*args, client_flag=client_flag | CLIENT.SESSION_TRACK, **kwargs)

    def take_committed(self) -> Position:
        """The commits since it was asked last."""
        committed, self._committed = self._committed, empty_position("mysql")
        return committed

    def connect(self, sock: Any = None) -> None:
        """Connect, also again, and have the server tell the GTIDs from now on, in both kinds of answers."""
        super().connect(sock)
        self._told_by = set()
        try:
            with self.cursor() as cursor:
                cursor.execute(_TRACK)
                self.begin()
                self.rollback()
                cursor.execute(_TOLD)
        except pymysql.MySQLError as error:
            self.close()
            if error.args and error.args[0] == _UNKNOWN_VARIABLE:
                raise SourceUnsuitable(
                    f"{self.host}:{self.port} does not tell the GTIDs of commits: {error.args[1]}",
                    hint="only MySQL does; on MariaDB an ordinary connection serves for commit tokens",
                ) from error
            raise
        if self._told_by != {"statement", "commit"}:
            self.close()
            raise SourceUnsuitable(
                f"{self.host}:{self.port} tells no changes of the session's state, or pymysql hides them",
                hint="is a proxy in between, or another pymysql? An ordinary connection serves for commit tokens",
            )

    def _read_ok_packet(self) -> Any:
        """The answer to a begin(), commit() or rollback()."""
        answer = super()._read_ok_packet()  # type: ignore[misc]
        self._note("commit", answer.server_status, answer.message)
        return answer

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        """The answer to a statement of a cursor."""
        count = super()._read_query_result(unbuffered)  # type: ignore[misc]
        result: Any = getattr(self, "_result", None)
        if result is not None and result.message:
            self._note("statement", result.server_status, result.message)
        return count

    def _note(self, kind: str, server_status: int, message: bytes) -> None:
        if server_status & _SESSION_STATE_CHANGED:
            self._told_by.add(kind)
            for gtids in find_gtids(message):
                self._committed = self._committed.union(parse_position("mysql", gtids))


def find_gtids(message: bytes) -> Iterator[str]:
    """The GTIDs in the end of an OK packet: the server's message, then the changes of the session's state. See
    "OK_Packet" and "Session state information" in the documentation of MySQL's protocol. Raises `FormatError`."""
    _, at = _read_text(message, 0)
    changes, _ = _read_text(message, at)
    at = 0
    while at < len(changes):
        kind = changes[at]
        change, at = _read_text(changes, at + 1)
        if kind == _STATE_OF_GTIDS:
            # One byte says how they are encoded; there is one way.
            gtids, _ = _read_text(change, 1)
            yield gtids.decode("ascii")


def _read_text(data: bytes, at: int) -> tuple[bytes, int]:
    """A text with its length in front, and the offset of its end."""
    if at >= len(data):
        raise FormatError(f"an answer of {len(data)} bytes ends within the state of its session")
    size, start = data[at], at + 1
    if size >= 0xFB:
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(size)
        if width is None:
            raise FormatError(f"byte {size:#x} as the length of a text in the state of a session")
        size, start = int.from_bytes(data[start : start + width], "little"), start + width
    if start + size > len(data):
        raise FormatError(f"an answer of {len(data)} bytes ends within the state of its session")
    return data[start : start + size], start + size
