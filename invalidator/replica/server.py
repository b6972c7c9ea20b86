"""The report of a database server on its positions and its role, and whether it can serve a start position.

Connections and the translation of errors are in ``freshness.database.connection``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql
from pymysql.cursors import DictCursor

from freshness.config.server import ServerAddress
from freshness.database.cluster import CLUSTER_VARIABLES, is_galera, require_no_cluster
from freshness.database.connection import (
    IDENTITY,
    Connection,
    connected,
    identity_of,
    read_rows,
    read_variables,
    replicated_position,
)
from freshness.errors import HistoryLost, HistoryPurged, SourceUnavailable
from freshness.position import MariadbPosition, Position, parse_gtids, parse_position
from freshness.stream.heartbeat import HEARTBEAT_TABLE

_NO_SUCH_TABLE: Final = 1146
_STOPPED: Final = "NO"
_NOT_SKIPPING: Final = ("", "OFF", "NONE")
_WRITABLE: Final = ("0", "OFF")
"""Values of `read_only`, which has more than two values from MariaDB 12 on."""

_OWN_THREADS: Final = ("system user", "event_scheduler")

_MEMBER: Final = """SELECT @@global.group_replication_group_name AS Group_Name,
  IF(member.MEMBER_ROLE = 'PRIMARY' AND NOT GTID_SUBSET(RECEIVED_TRANSACTION_SET, @@global.gtid_executed),
    'ELECTED', member.MEMBER_ROLE) AS Member_Role,
  (SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE') AS Members_Online
FROM performance_schema.replication_group_members AS member
  JOIN performance_schema.replication_connection_status USING (CHANNEL_NAME)
WHERE member.MEMBER_ID = @@global.server_uuid AND member.MEMBER_STATE IN ('ONLINE', 'RECOVERING')"""
"""A row if the server is in a group of Group Replication. A primary is elected before it has applied all that the
group has received from its predecessor."""

_SYNCED: Final = "Synced"

_ROLE: Final = "read_only", "gtid_slave_pos", "log_replica_updates", "slave_skip_errors", "replica_skip_errors"
_WORKERS: Final = "slave_parallel_threads", "slave_parallel_workers", "replica_parallel_workers"
_ORDER: Final = "slave_preserve_commit_order", "replica_preserve_commit_order"
_LOOKED_AT: Final = (*CLUSTER_VARIABLES, *IDENTITY["mysql"], *IDENTITY["mariadb"], *_ROLE, *_WORKERS, *_ORDER)
"""The variables that `read_state` takes."""


def follows_another(replication: Iterable[Mapping[str, str]]) -> bool:
    """Whether a server with these rows of `read_replication` is set up to follow another one, running or not. The
    primary of a group does not."""
    return any(row.get("Member_Role") != "PRIMARY" for row in replication)


def find_log_filters(connection: Connection) -> list[str]:
    """Filters that keep changes out of this server's own binary log, each as ``name = value``. No variable shows
    them."""
    return [
        f"{name} = {row[name]}"
        for row in _read_log_status(connection)
        for name in ("Binlog_Do_DB", "Binlog_Ignore_DB")
        if row.get(name)
    ]


def logs_updates(variables: Mapping[str, str]) -> bool:
    """Whether a server with these global variables has in its own log what it replicates."""
    value = variables.get("log_replica_updates") or variables.get("log_slave_updates", "")
    return variables.get("log_bin") == "ON" and value == "ON"


@dataclass(frozen=True, slots=True)
class ServerState:
    """The result of one look at a server.

    ``identity``: its server UUID (MySQL) or server id (MariaDB), the origin of the GTIDs that are written to it.
    ``heartbeats``: the time of each heartbeat row that it shows, by its instance. ``unfit``: why a stream of it would
    lack changes of its primary, "" if it would not. ``stopped``: why it executes nothing more, "" while it does.
    ``purged`` is empty on MariaDB, which reports it only when streaming starts. ``last_numbers`` (MariaDB): the
    highest sequence number of each ``(domain, server id)`` in its history. ``server``: see `server_identity`.
    ``is_read_only``: to all accounts without a privilege for it. ``group``: the group of Group Replication that it is
    in, "" for none: the origin of the GTIDs of all its members. ``domain``: the domain of its Galera cluster, or "".
    ``is_elected``: it became the primary of that group, and still applies what its predecessor has committed.
    """

    identity: str
    executed: Position
    purged: Position
    follows: bool
    stopped: str
    unfit: str
    heartbeats: Mapping[str, int]
    last_numbers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    server: str = ""
    is_read_only: bool = False
    group: str = ""
    domain: str = ""
    is_elected: bool = False

    def is_origin(self, position: Position) -> bool:
        """Whether the transaction of this one GTID comes from this server, or from the group that it is in: it may be
        elsewhere before this server shows it (F57)."""
        if isinstance(position, MariadbPosition):
            [gtid] = position.gtids()
            return str(gtid.server) == self.identity and self.domain in ("", str(gtid.domain))
        [origin] = position.by_source()
        return origin in (self.identity, self.group)

    def is_apart(self, other: ServerState) -> bool:
        """Whether it is a node of the other one's Galera cluster whose wsrep_on was set to OFF."""
        return bool(other.domain) and not self.domain and self.identity == other.identity

    @property
    def heartbeat_us(self) -> int:
        """The newest heartbeat, 0 without."""
        return max(self.heartbeats.values(), default=0)

    def find_behind(self, other: ServerState) -> int:
        """How far its heartbeats are behind those of another server, in µs. The one that is furthest behind counts:
        in a log that is made of several, one may stand still."""
        own, newest = self.heartbeats, self.heartbeat_us
        return max((us - own.get(instance, newest) for instance, us in other.heartbeats.items()), default=0)

    def knows(self, position: Position) -> bool:
        """Whether each GTID that ``position`` names is in this server's history. Not the same as containment on
        MariaDB: a server that stands at 0-1-9 contains 0-2-7, and yet need not have executed the transaction 0-2-7.
        """
        if not isinstance(position, MariadbPosition):
            return self.executed.contains(position)
        return all(
            self.last_numbers.get((domain, server), 0) >= number for domain, server, number in position.gtids()
        )


APART: Final = "is a node of Galera whose wsrep_on was set to OFF: SET GLOBAL wsrep_on = ON, or build it again"


def find_foreign(state: ServerState, primary: ServerState, start: Position) -> str:
    """GTIDs that this server has executed and its primary has not, and that a stream from ``start`` would bring: the
    errant ones (F53), as text. Transactions of the primary's own origin are not meant: see `ServerState.is_origin`.
    """
    if state.executed.flavor == "mysql":
        return ",".join(
            str(part)
            for part in state.executed.by_source().values()
            if not primary.is_origin(part) and not primary.executed.contains(part)
        )
    return ",".join(
        f"{domain}-{server}-{number}"
        for (domain, server), number in sorted(state.last_numbers.items())
        if not primary.is_origin(MariadbPosition.of(domain, server, number))
        and number > primary.last_numbers.get((domain, server), 0)
        and not start.contains(MariadbPosition.of(domain, server, number))
    )


def look_at(address: ServerAddress, flavor: str, *, timeout_seconds: float) -> ServerState:
    """Look at a server on a short connection of its own; ``timeout_seconds`` bounds each answer. Raises
    `SourceUnavailable` or `SourceUnsuitable`."""
    with connected(address, "looking at its state", timeout_seconds=timeout_seconds) as connection:
        variables = read_variables(connection, _LOOKED_AT)
        require_no_cluster(variables, address)
        return read_state(connection, flavor, variables)


def find_sessions(address: ServerAddress) -> list[str]:
    """The other sessions that this account may see on a server, as ``USER@HOST``. Replicas that follow it do not
    count. Raises `SourceUnavailable` or `SourceUnsuitable`."""
    with connected(address, "looking at its sessions") as connection:
        [(own,)] = read_rows(connection, "SELECT CONNECTION_ID()")
        return [
            f"{row['User']}@{row['Host'].rpartition(':')[0] or row['Host']}"
            for row in _read_named(connection, "SHOW FULL PROCESSLIST")
            if row["Id"] != str(own)
            and row["User"] not in _OWN_THREADS
            and not row["Command"].startswith("Binlog Dump")
        ]


def check_start(connection: Connection, flavor: str, start: Position, address: ServerAddress) -> None:
    """Find out whether this server can still stream everything that is not in ``start``.

    Raises `HistoryLost` if the logs are purged (F15), or if a primary lacks part of ``start`` (F28, F29);
    `SourceUnavailable` if a replica lacks it, which may only lag, and for a primary that was just elected. On MariaDB
    purged logs show when streaming starts, since no variable shows them. A history that was replaced and has grown
    past ``start`` is not seen here: the epoch is for that.
    """
    where = f"{address.host}:{address.port}"
    variables = read_variables(connection, _LOOKED_AT)
    require_applied(where, _is_elected(_read_member(connection, variables)))
    executed = replicated_position(connection, flavor)
    if not executed.contains(start):
        if follows_another(read_replication(connection, flavor, variables)):
            raise SourceUnavailable(
                f"replica {where} has not yet executed all of the start position",
                hint="wait for it, or stream from another server",
            )
        raise HistoryLost(
            f"{where} has never executed all of the start position: it has {str(executed)[:200]!r},"
            f" the start is {str(start)[:200]!r}",
            hint="a future position or another history (F28, F29): raise the epoch and end the lives of all nodes",
        )
    if flavor == "mysql":
        [(text,)] = read_rows(connection, "SELECT @@global.gtid_purged")
        purged = parse_position(flavor, str(text).replace("\n", ""))
        if not start.contains(purged):
            raise HistoryPurged(
                f"{where} no longer has the log from the start position: purged is {str(purged)[:200]!r}",
                hint="purged (F15): the lives of all nodes must end; keep binary logs longer than the longest outage",
            )


def require_applied(where: str, is_elected: bool) -> None:
    """Raise `SourceUnavailable` for a primary with `ServerState.is_elected`. It has received what it lacks."""
    if is_elected:
        raise SourceUnavailable(
            f"{where} was elected as the primary of its group, and still applies what its predecessor has committed",
            hint="it is waited for",
        )


def read_state(connection: Connection, flavor: str, variables: Mapping[str, str]) -> ServerState:
    """`look_at` on a connection that is there. Errors of pymysql come out as they are."""
    replication = read_replication(connection, flavor, variables)
    is_elected = _is_elected(replication)
    if flavor == "mysql":
        [(executed, purged)] = read_rows(connection, "SELECT @@global.gtid_executed, @@global.gtid_purged")
        history = ""
    else:
        [(executed, history)] = read_rows(
            connection,
            "SELECT CONCAT_WS(',', NULLIF(@@global.gtid_binlog_pos, ''),"
            " NULLIF(@@global.gtid_slave_pos, '')),"
            " CONCAT_WS(',', NULLIF(@@global.gtid_binlog_state, ''), NULLIF(@@global.gtid_slave_pos, ''))",
        )
        purged = ""
    return ServerState(
        identity=variables["server_uuid" if flavor == "mysql" else "server_id"].lower(),
        executed=parse_position(flavor, str(executed)),
        purged=parse_position(flavor, str(purged)),
        follows=follows_another(replication),
        stopped="; ".join(find_stopped(replication)),
        unfit="; ".join(_find_unfit(connection, replication, variables)),
        # It lets nobody read a table
        heartbeats=({} if is_elected else read_heartbeats(connection, "id", "min_us", "min_us > 0")) or {},
        last_numbers=_last_numbers(str(history)),
        server=identity_of(flavor, variables),
        is_read_only=variables["read_only"].upper() not in _WRITABLE,
        group=next((row["Group_Name"].lower() for row in replication if "Group_Name" in row), ""),
        domain=variables.get("wsrep_gtid_domain_id", "") if is_galera(variables) else "",
        is_elected=is_elected,
    )


def read_replication(connection: Connection, flavor: str, variables: Mapping[str, str]) -> list[dict[str, str]]:
    """One row for each server that this one follows, and one for the group that it is in. Errors of pymysql come out
    as they are."""
    if flavor == "mariadb":
        return _read_named(connection, "SHOW ALL SLAVES STATUS") + _read_galera(connection, variables)
    try:
        rows = _read_named(connection, "SHOW REPLICA STATUS")
    except pymysql.ProgrammingError:  # before MySQL 8.0.22
        rows = _read_named(connection, "SHOW SLAVE STATUS")
    return rows + _read_member(connection, variables)


def _read_member(connection: Connection, variables: Mapping[str, str]) -> list[dict[str, str]]:
    """No other server than one with a group's name is asked: the answer takes a privilege."""
    return _read_named(connection, _MEMBER) if variables.get("group_replication_group_name") else []


def _read_galera(connection: Connection, variables: Mapping[str, str]) -> list[dict[str, str]]:
    """As `_MEMBER`. All nodes can write; the one that is not read-only counts as the primary."""
    if not is_galera(variables):
        return []
    [(_, state)] = read_rows(connection, "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'")
    row = {"Member_Role": "PRIMARY" if variables["read_only"].upper() in _WRITABLE else "SECONDARY"}
    if state != _SYNCED:
        row.update(Slave_SQL_Running="No", Last_SQL_Error=f"wsrep_local_state_comment is {state}")
    return [row]


def _is_elected(replication: Iterable[Mapping[str, str]]) -> bool:
    return any(row.get("Member_Role") == "ELECTED" for row in replication)


def find_stopped(replication: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """The threads that are stopped in the rows of `read_replication`, in words."""
    for row in replication:
        for thread in ("IO", "SQL"):
            running = row.get(f"Replica_{thread}_Running") or row.get(f"Slave_{thread}_Running", "")
            if running.upper() == _STOPPED:
                error = row.get(f"Last_{thread}_Error", "")
                yield f"its {thread} thread is stopped{': ' if error else ''}{error[:200]}"


def _find_unfit(
    connection: Connection, replication: list[dict[str, str]], variables: Mapping[str, str]
) -> Iterator[str]:
    """Settings that keep changes of the primary out of a replica's own log, without a trace in it (I8), or that bring
    them into another order there: an own heartbeat must not overtake them (F92)."""
    filters = sorted({name for row in replication for name in find_filters(row)})
    if filters:
        yield f"it filters what it replicates: {', '.join(filters)}"
    if not replication:
        return
    if not logs_updates(variables):
        yield "it does not log what it replicates (log_bin, log_replica_updates)"
    skipped = find_skipped(variables)
    if skipped:
        yield f"it skips errors of replication ({skipped})"
    if _reorders(variables, replication):
        yield "it commits in another order than its primary (replica_preserve_commit_order, slave_parallel_threads)"
    kept_out = find_log_filters(connection)
    if kept_out:
        yield f"it filters what it logs: {', '.join(kept_out)}"


def find_skipped(variables: Mapping[str, str]) -> str:
    """The errors of replication that a server with these global variables passes over, "" for none."""
    skipped = variables.get("replica_skip_errors") or variables.get("slave_skip_errors", "")
    return "" if skipped.upper() in _NOT_SKIPPING else skipped


def find_filters(replication: Mapping[str, str]) -> list[str]:
    """The names of the filters of one replication, as a row of `read_replication`."""
    return [name for name, value in replication.items() if name.startswith("Replicate_") and value]


def _reorders(variables: Mapping[str, str], replication: list[dict[str, str]]) -> bool:
    """MySQL: workers that do not preserve the order of commits. MariaDB: parallel threads, which keep it within a
    domain alone, and several domains."""
    ordered = variables.get("replica_preserve_commit_order") or variables.get("slave_preserve_commit_order", "ON")
    workers = variables.get("replica_parallel_workers") or variables.get("slave_parallel_workers", "0")
    if ordered == "OFF" and int(workers) > 1:
        return True
    return (
        int(variables.get("slave_parallel_threads", "0")) > 0
        and variables.get("gtid_slave_pos", "").count(",") > 0
        and any(row.get("Parallel_Mode", "").lower() != "none" for row in replication)
    )


def _read_log_status(connection: Connection) -> list[dict[str, str]]:
    try:
        return _read_named(connection, "SHOW MASTER STATUS")
    except pymysql.ProgrammingError:  # MySQL from 8.4 on
        return _read_named(connection, "SHOW BINARY LOG STATUS")


def read_heartbeats(connection: Connection, name: str, number: str, condition: str) -> dict[str, int] | None:
    """Numbers by name, both SQL, from rows of the heartbeat table; None if there is no such table."""
    try:
        rows = read_rows(connection, f"SELECT {name}, {number} FROM {HEARTBEAT_TABLE} WHERE {condition}")
    except pymysql.ProgrammingError as error:
        if error.args[0] != _NO_SUCH_TABLE:
            raise
        return None
    return {str(name): int(number) for name, number in rows}


def _read_named(connection: Connection, sql: str) -> list[dict[str, str]]:
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(sql)
        rows: Any = cursor.fetchall()
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


def _last_numbers(history: str) -> dict[tuple[int, int], int]:
    numbers: dict[tuple[int, int], int] = {}
    for domain, server, number in parse_gtids(history):
        numbers[domain, server] = max(number, numbers.get((domain, server), 0))
    return numbers
