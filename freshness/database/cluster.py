"""Clusters of servers that all take writes, and logs in InnoDB. They are refused by name, wherever one is met.

A commit of another server is in no position that this one shows, and comes into its log behind heartbeats that are
younger: entries come late, and reads with ``at_least`` fail.

A log in InnoDB (MariaDB 12.3) has no two-phase commit with its tables. All that is known of a position, that a read
behind it shows its commits, is known of a log of files; of the other nobody has tested it.
"""

from __future__ import annotations

from collections.abc import Mapping

from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, read_rows
from freshness.errors import SourceUnsuitable

REMEDY = "use a primary with replicas, or Group Replication in single-primary mode"
LOG_REMEDY = "start it without binlog_storage_engine"


def find_cluster(variables: Mapping[str, str]) -> str:
    """The sign of such a cluster in these global variables, "" for none."""
    if variables.get("wsrep_on", "").upper() == "ON":
        return "wsrep_on is ON: it is a node of a Galera cluster"
    mode = variables.get("group_replication_single_primary_mode", "").upper()
    if mode == "OFF" and variables.get("group_replication_group_name"):
        return "group_replication_single_primary_mode is OFF: its group has several primaries"
    return ""


def find_log_in_engine(variables: Mapping[str, str]) -> str:
    """The sign that the log is in a storage engine, "" for a log of files."""
    engine = variables.get("binlog_storage_engine", "")
    return f"binlog_storage_engine is {engine}: its log is in no files of its own" if engine else ""


def require_no_cluster(connection: Connection, address: ServerAddress) -> None:
    """And no log in InnoDB. Raises `SourceUnsuitable`, and what pymysql raises."""
    rows = read_rows(
        connection,
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
        " ('wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode',"
        " 'binlog_storage_engine')",
    )
    variables = {str(name).lower(): str(value) for name, value in rows}
    for found, remedy in ((find_cluster(variables), REMEDY), (find_log_in_engine(variables), LOG_REMEDY)):
        if found:
            raise SourceUnsuitable(f"{address.host}:{address.port}: {found}", hint=remedy)
