"""Clusters of servers that all take writes. They are refused by name, wherever one is met.

A commit of another server is in no position that this one shows, and comes into its log behind heartbeats that are
younger: entries come late, and reads with ``at_least`` fail.
"""

from __future__ import annotations

from collections.abc import Mapping

from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, read_rows
from freshness.errors import SourceUnsuitable

REMEDY = "use a primary with replicas, or Group Replication in single-primary mode"


def find_cluster(variables: Mapping[str, str]) -> str:
    """The sign of such a cluster in these global variables, "" for none."""
    if variables.get("wsrep_on", "").upper() == "ON":
        return "wsrep_on is ON: it is a node of a Galera cluster"
    mode = variables.get("group_replication_single_primary_mode", "").upper()
    if mode == "OFF" and variables.get("group_replication_group_name"):
        return "group_replication_single_primary_mode is OFF: its group has several primaries"
    return ""


def require_no_cluster(connection: Connection, address: ServerAddress) -> None:
    """Raises `SourceUnsuitable`, and what pymysql raises."""
    rows = read_rows(
        connection,
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
        " ('wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')",
    )
    found = find_cluster({str(name).lower(): str(value) for name, value in rows})
    if found:
        raise SourceUnsuitable(f"{address.host}:{address.port}: {found}", hint=REMEDY)
