"""Rules for the primary, in cases that no local server produces."""

from __future__ import annotations

from typing import cast

import pytest

from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection
from freshness.errors import SourceUnsuitable
from invalidator.replica import server
from invalidator.rules.finding import require
from invalidator.rules.primary import check_server, check_tablet, check_tested, check_version
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts, ahead_of
from invalidator.rules.table import TableFacts, check_tables

ADDRESS = ServerAddress("db.example.com", 3306, "app", "app", "shop")


@pytest.mark.parametrize(
    ("flavor", "version", "oldest"),
    [("mariadb", "10.4.34-MariaDB-log", "10.5"), ("mysql", "5.7.44-log", "8.0.14"), ("mysql", "8.0.13", "8.0.14")],
)
def test_a_server_that_is_too_old(flavor: str, version: str, oldest: str) -> None:
    [found] = check_version(ServerFacts(ADDRESS, flavor, {"version": version}))
    assert found.rule is Rule.OLD_SERVER
    assert version in found.message
    assert f"upgrade to {oldest}" in found.hint


@pytest.mark.parametrize(
    ("flavor", "version"), [("mariadb", "10.5.0-MariaDB"), ("mysql", "8.0.14"), ("mysql", "9.7.0")]
)
def test_a_server_that_is_new_enough(flavor: str, version: str) -> None:
    assert list(check_version(ServerFacts(ADDRESS, flavor, {"version": version}))) == []


def test_a_node_of_galera() -> None:
    names = "wsrep_on", "wsrep_gtid_mode", "log_bin", "log_slave_updates"
    domains = {"gtid_domain_id": "0", "wsrep_gtid_domain_id": "7"}
    variables = {"version": "10.11.6-MariaDB-log", **domains, **dict.fromkeys(names, "ON")}
    assert list(check_version(ServerFacts(ADDRESS, "mariadb", variables))) == []
    mistakes = [({name: "OFF"}, f"{name} is not ON") for name in names[1:]]
    for mistake, named in [*mistakes, ({"gtid_domain_id": "7"}, "gtid_domain_id is wsrep_gtid_domain_id")]:
        wrong = {**variables, **mistake}
        [found] = check_version(ServerFacts(ADDRESS, "mariadb", wrong))
        assert found.rule is Rule.SEVERAL_WRITERS
        assert named in found.message
        assert list(check_version(ServerFacts(ADDRESS, "mariadb", {**wrong, "wsrep_on": "OFF"}))) == []


def test_a_node_of_percona_xtradb_cluster() -> None:
    """Nobody here has it: the variables are those of its manual."""
    comment = "Percona XtraDB Cluster (GPL), Release rel27, Revision 4f3aa4b, WSREP version 26.1.4.3"
    variables = {"version": "8.0.42-33.1", "version_comment": comment, "wsrep_on": "ON"}
    [found] = check_version(ServerFacts(ADDRESS, "mysql", variables))
    assert found.rule is Rule.SEVERAL_WRITERS
    assert "a node of Percona XtraDB Cluster, and" in found.message
    with pytest.raises(SourceUnsuitable, match="a node of Percona XtraDB Cluster, and"):
        require([found])
    assert list(check_version(ServerFacts(ADDRESS, "mysql", {**variables, "wsrep_on": "OFF"}))) == []


def test_a_node_of_percona_xtradb_cluster_has_no_domain_and_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` looks at each server before it judges it."""
    monkeypatch.setattr(server, "read_replication", lambda *_: [])
    monkeypatch.setattr(server, "read_heartbeats", lambda *_: {})
    monkeypatch.setattr(server, "read_rows", lambda *_: [("", "")])
    variables = {"wsrep_on": "ON", "server_uuid": "U", "read_only": "OFF"}
    assert server.read_state(cast(Connection, None), "mysql", variables).domain == ""


def test_a_group_with_several_primaries() -> None:
    name = {"group_replication_group_name": "5f0d1f3e-0000-0000-0000-000000000001"}
    variables = {"version": "8.0.39", **name, "group_replication_single_primary_mode": "OFF"}
    [found] = check_version(ServerFacts(ADDRESS, "mysql", variables))
    assert found.rule is Rule.SEVERAL_WRITERS
    for other in ({"group_replication_single_primary_mode": "ON"}, {"group_replication_group_name": ""}):
        assert list(check_version(ServerFacts(ADDRESS, "mysql", {**variables, **other}))) == []


@pytest.mark.parametrize("engine", ["innodb", "InnoDB"])
def test_a_log_in_innodb(engine: str) -> None:
    """MariaDB 12.3, which nobody here has: the variable is that of its manual."""
    variables = {"version": "12.3.1-MariaDB-log", "binlog_storage_engine": engine}
    [found] = check_version(ServerFacts(ADDRESS, "mariadb", variables))
    assert (found.rule, found.severity) == (Rule.LOG_IN_ENGINE, "error")
    assert f"binlog_storage_engine is {engine}" in found.message
    assert list(check_version(ServerFacts(ADDRESS, "mariadb", {**variables, "binlog_storage_engine": ""}))) == []


@pytest.mark.parametrize(
    ("flavor", "version", "known"),
    [
        ("mysql", "8.4.6", "GTIDs may have tags"),
        ("mysql", "8.0.42", "before 8.0.22"),
        ("mysql", "9.70.1", ""),
        ("mariadb", "12.3.1-MariaDB-log", "a log in InnoDB is refused"),
        ("mariadb", "10.6.21-MariaDB", ""),
    ],
)
def test_a_version_that_nobody_tested(flavor: str, version: str, known: str) -> None:
    [found] = check_tested(ServerFacts(ADDRESS, flavor, {"version": version}))
    assert (found.rule, found.severity) == (Rule.UNTESTED, "note")
    assert f"not tested on this version, {version}" in found.message
    assert found.message.partition("; ")[2].startswith(known)


@pytest.mark.parametrize(
    ("flavor", "version"), [("mysql", "9.7.4"), ("mysql", "8.0.15"), ("mariadb", "10.11.19-MariaDB"), ("mysql", "")]
)
def test_a_version_that_was_tested_or_is_not_known(flavor: str, version: str) -> None:
    assert list(check_tested(ServerFacts(ADDRESS, flavor, {"version": version}))) == []


def test_a_tablet_that_does_not_log_what_is_needed() -> None:
    right = {"log_bin": "ON", "binlog_row_image": "FULL", "gtid_mode": "ON"}
    assert list(check_tablet(ServerFacts(ADDRESS, "mysql", right))) == []
    for name, value, code in (
        ("log_bin", "OFF", "F25"),
        ("binlog_row_image", "MINIMAL", "F35"),
        ("gtid_mode", "OFF", "F29"),
    ):
        [found] = check_tablet(ServerFacts(ADDRESS, "mysql", {**right, name: value}))
        assert (found.severity, found.code) == ("error", code)
        assert f"{name} is {value}" in found.message
        assert f"set {name} = {right[name]} on all tablets" in found.hint


def test_only_of_mysql_a_vector_is_not_decoded() -> None:
    """MariaDB has the type from 11.7 on, and sends bytes."""
    points = ObjectConfig(name="point", keyspace="shop", table="points")
    profile = ObjectConfig(name="profile", keyspace="shop", key=("id",), members={"points": ("id",)})
    tables = TableFacts({"points": [("id",)]}, (), {"points": ["v (VECTOR)"]})
    [found] = check_tables(ServerFacts(ADDRESS, "mysql", {}), [points, profile], tables)
    assert found.rule is Rule.NOT_DECODED
    assert "does not decode v (VECTOR) of table points: each read of point raises" in found.message
    assert list(check_tables(ServerFacts(ADDRESS, "mariadb", {}), [points, profile], tables)) == []


@pytest.mark.parametrize(
    ("shown", "ahead"), [(100.0, 0.0), (101.0, 0.0), (101.5, 0.5), (99.0, -1.0), (90.0, -10.0), (200.0, 99.0)]
)
def test_a_clock_differs_by_no_more_than_is_sure(shown: float, ahead: float) -> None:
    """It was asked between 100 and 101 of our own clock."""
    assert ahead_of(shown, 100.0, 101.0) == ahead


def test_a_coarse_clock_may_be_a_step_further() -> None:
    assert ahead_of(99.0, 99.9, 100.0, step=1.0) == 0.0
    assert ahead_of(98.0, 99.9, 100.0, step=1.0) == pytest.approx(-0.9)


@pytest.mark.parametrize(
    ("variables", "hint", "statements"),
    [
        ({}, "SET PERSIST read_only = OFF; or name the true primary", ("SET PERSIST read_only = OFF",)),
        ({"wsrep_on": "ON"}, "SET GLOBAL read_only = OFF; or name the true primary", ("SET GLOBAL read_only = OFF",)),
        ({"group_replication_group_name": "5f"}, "name the group's primary, or start the group", ()),
    ],
)
def test_what_makes_a_primary_writable(variables: dict[str, str], hint: str, statements: tuple[str, ...]) -> None:
    """Nothing that makes a member of a cluster writable before it has joined at its next start."""
    is_galera = "wsrep_on" in variables
    names = dict.fromkeys(("wsrep_gtid_mode", "log_bin", "log_slave_updates"), "ON") if is_galera else {}
    version = {"version": "10.11.6-MariaDB" if is_galera else "8.0.39", "wsrep_gtid_domain_id": "7"}
    server = ServerFacts(
        ADDRESS, "mariadb" if is_galera else "mysql", {**version, **names, **variables, "read_only": "ON"}
    )
    [found] = [each for each in check_server(server) if each.rule is Rule.PRIMARY_READ_ONLY]
    assert (found.hint, found.statements) == (hint, statements)
