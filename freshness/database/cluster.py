"""Clusters of servers that all take writes, and logs in InnoDB. They are refused by name, wherever one is met.

A commit of another server is in no position that this one shows, and comes into its log behind heartbeats that are
younger: entries come late, and reads with ``at_least`` fail. A cluster of Galera whose nodes give a commit one GTID
is followed: `PromotionWatch` sees to it that one node alone is writable.

A log in InnoDB (MariaDB 12.3) has no two-phase commit with its tables. All that is known of a position, that a read
behind it shows its commits, is known of a log of files; of the other nobody has tested it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from freshness.config.server import ServerAddress
from freshness.errors import SourceUnsuitable

REMEDY = "use a primary with replicas, Group Replication in single-primary mode, or Galera as docs/topology.md has it"
LOG_REMEDY = "start it without binlog_storage_engine"

_COUNTING: Final = ("wsrep_gtid_mode", "log_bin", "log_slave_updates")
"""Settings by which all nodes of Galera give a commit one GTID."""

CLUSTER_VARIABLES: Final = (
    "version",
    "version_comment",
    "wsrep_on",
    *_COUNTING,
    "gtid_domain_id",
    "wsrep_gtid_domain_id",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "binlog_storage_engine",
)


class ClusterRefused(SourceUnsuitable):
    """A server is in such a cluster, or has such a log."""


def is_galera(variables: Mapping[str, str]) -> bool:
    return variables.get("wsrep_on", "").upper() == "ON"


def find_cluster(variables: Mapping[str, str]) -> str:
    """The sign of such a cluster in these global variables, "" for none."""
    if is_galera(variables):
        if "mariadb" not in variables.get("version", "").lower():
            product = variables.get("version_comment", "").partition(" (")[0]
            return f"it is a node of {product}, and of all clusters with wsrep_on only Galera of MariaDB is followed"
        for name in _COUNTING:
            if variables.get(name, "").upper() != "ON":
                return f"{name} is not ON: each node of this Galera cluster counts its commits for itself"
        if variables.get("gtid_domain_id") == variables.get("wsrep_gtid_domain_id"):
            return "gtid_domain_id is wsrep_gtid_domain_id: a change of this node alone takes a GTID of its cluster"
    mode = variables.get("group_replication_single_primary_mode", "").upper()
    if mode == "OFF" and variables.get("group_replication_group_name"):
        return "group_replication_single_primary_mode is OFF: its group has several primaries"
    return ""


def find_log_in_engine(variables: Mapping[str, str]) -> str:
    """The sign that the log is in a storage engine, "" for a log of files."""
    engine = variables.get("binlog_storage_engine", "")
    return f"binlog_storage_engine is {engine}: its log is in no files of its own" if engine else ""


def require_no_cluster(variables: Mapping[str, str], address: ServerAddress) -> None:
    """And no log in InnoDB. ``variables``: `CLUSTER_VARIABLES` at least. Raises `ClusterRefused`."""
    where = f"{address.host}:{address.port}"
    if found := find_cluster(variables):
        raise ClusterRefused(f"{where}: {found}", hint=REMEDY)
    if found := find_log_in_engine(variables):
        raise ClusterRefused(f"{where}: {found}", hint=LOG_REMEDY)
