"""The servers that a process refuses by name when it starts, in cases that no local server produces."""

from __future__ import annotations

import pytest

from freshness.config.server import ServerAddress
from freshness.database.cluster import CLUSTER_VARIABLES, require_no_cluster
from freshness.errors import SourceUnsuitable

ADDRESS = ServerAddress("db.example.com", 3306, "app", "app", "shop")


def require(variables: dict[str, str]) -> None:
    """On a server that has these variables, and answers for those that it is asked for."""
    require_no_cluster({name: variables[name] for name in variables if name in CLUSTER_VARIABLES}, ADDRESS)


def test_a_server_with_a_log_in_innodb() -> None:
    with pytest.raises(SourceUnsuitable, match="binlog_storage_engine is innodb") as caught:
        require({"binlog_storage_engine": "innodb"})
    assert "without binlog_storage_engine" in caught.value.hint


def test_a_node_of_percona_xtradb_cluster() -> None:
    comment = "Percona XtraDB Cluster (GPL), Release rel27, Revision 4f3aa4b, WSREP version 26.1.4.3"
    variables = {"version": "8.0.42-33.1", "version_comment": comment, "wsrep_on": "ON"}
    with pytest.raises(SourceUnsuitable, match="a node of Percona XtraDB Cluster, and"):
        require(variables)


def test_a_server_with_a_log_of_files() -> None:
    require({"wsrep_on": "OFF", "binlog_storage_engine": ""})
