"""The preflight finds each bad setting on a real server, and connecting says what is wrong and what to do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from appclient import Cache
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position, replicated_position
from freshness.database.foreignkey import Cause, find_cascades
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.schema import key_columns
from freshness.errors import ConfigError, FreshnessError, SourceUnavailable, SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.position import Position, parse_position
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE
from integration.servers import DatabaseServer, Flavor, Pair
from integration.servers.database import make_database
from integration.servers.process import find_free_port
from invalidator.rules.finding import CheckFinding, require
from invalidator.rules.primary import check_database
from invalidator.rules.rule import Rule


def address_of(server: DatabaseServer, user: str = "app") -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, user, user, "shop")


def check(server: DatabaseServer, *tables: str, user: str = "app", flavor: str = "") -> list[CheckFinding]:
    address = address_of(server, user)
    with connect(address) as connection:
        findings = check_database(connection, address, flavor or server.flavor, tables)
    return [each for each in findings if each.rule is not Rule.UNTESTED]  # a mirror may move on


def found(findings: list[CheckFinding]) -> set[tuple[str, str]]:
    return {(finding.severity, finding.code) for finding in findings}


@pytest.fixture
def server(pair: Pair) -> DatabaseServer:
    return pair.primary


def test_a_server_as_it_should_be_has_no_error(server: DatabaseServer) -> None:
    with (
        server.setting("sync_binlog", "1"),
        server.setting("innodb_flush_log_at_trx_commit", "1"),
        server.setting("binlog_expire_logs_seconds", "864000"),
    ):
        findings = check(server)
    assert findings == []
    require(findings)


@pytest.mark.parametrize(
    ("flavor", "name", "value", "expected"),
    [
        ("mariadb", "binlog_format", "MIXED", ("error", "F26")),
        ("mysql", "binlog_format", "STATEMENT", ("error", "F26")),
        ("mariadb", "binlog_row_image", "MINIMAL", ("error", "F35")),
        ("mysql", "binlog_row_image", "NOBLOB", ("error", "F35")),
        ("mariadb", "binlog_row_metadata", "NO_LOG", ("error", "F27")),
        ("mysql", "binlog_row_metadata", "MINIMAL", ("error", "F27")),
        ("mariadb", "gtid_strict_mode", "OFF", ("error", "F59")),
        ("mysql", "gtid_mode", "ON_PERMISSIVE", ("error", "F29")),
        ("mariadb", "sync_binlog", "0", ("warning", "F55")),
        ("mysql", "sync_binlog", "100", ("warning", "F55")),
        ("mariadb", "binlog_expire_logs_seconds", "3600", ("warning", "F15")),
        ("mysql", "binlog_expire_logs_seconds", "3600", ("warning", "F15")),
        ("mysql", "binlog_row_value_options", "'PARTIAL_JSON'", ("warning", "F27")),
    ],
    indirect=["flavor"],
)
def test_each_bad_setting_is_found(server: DatabaseServer, name: str, value: str, expected: tuple[str, str]) -> None:
    with server.setting("sync_binlog", "1"):
        assert expected not in found([finding for finding in check(server) if name in finding.message])
    with server.setting(name, value):
        findings = [finding for finding in check(server) if name in finding.message or expected[1] == "F15"]
    assert expected in found(findings)
    assert all(finding.hint for finding in findings)
    if expected[0] == "error":
        with pytest.raises(SourceUnsuitable, match=expected[1]):
            require(findings)
    else:
        require(findings)


def test_the_flavor_in_the_configuration_is_compared(server: DatabaseServer) -> None:
    other = "mysql" if server.flavor == "mariadb" else "mariadb"
    [finding] = check(server, flavor=other)
    assert finding.severity == "error"
    assert server.flavor in finding.hint


def test_missing_privileges_are_named(server: DatabaseServer) -> None:
    findings = check(server, user="reader")
    messages = " ".join(finding.message for finding in findings if finding.severity == "error")
    assert "lacks REPLICATION SLAVE" in messages
    assert "lacks REPLICATION CLIENT" in messages


def test_rights_of_a_role_are_rights(server: DatabaseServer) -> None:
    """Of a role that the account has from its beginning, as the program's sessions have it."""
    server.execute("CREATE ROLE follower")
    server.execute("CREATE USER member@'%' IDENTIFIED BY 'member'")
    rights = (
        "REPLICATION SLAVE, REPLICATION CLIENT" if server.flavor == "mysql" else "REPLICATION SLAVE, BINLOG MONITOR"
    )
    try:
        server.execute(f"GRANT {rights} ON *.* TO follower")
        if server.flavor == "mariadb":
            server.execute("GRANT SLAVE MONITOR ON *.* TO follower")
        server.execute("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON shop.* TO member@'%'")
        server.execute("GRANT follower TO member@'%'")
        assert any("lacks" in finding.message for finding in check(server, user="member"))
        to = "follower FOR" if server.flavor == "mariadb" else "follower TO"
        server.execute(f"SET DEFAULT ROLE {to} member@'%'")
        assert not any("lacks" in finding.message for finding in check(server, user="member"))
    finally:
        server.execute("DROP USER member@'%'")
        server.execute("DROP ROLE follower")


def test_a_server_without_a_binary_log(flavor: Flavor) -> None:
    server = make_database(flavor, server_id=1, options=("--skip-log-bin",))
    try:
        server.start()
        server.execute("CREATE DATABASE shop")
        assert ("error", "F25") in found(check(server))
    finally:
        server.stop()


@contextmanager
def own_server(flavor: Flavor, *options: str, server_id: int = 1) -> Iterator[DatabaseServer]:
    """A server of one test, with the schema."""
    server = make_database(flavor, server_id=server_id, options=options)
    try:
        server.start()
        server.execute("CREATE DATABASE shop")
        yield server
    finally:
        server.stop()


def test_a_node_of_galera_is_refused_by_name(tmp_path: Path) -> None:
    """And nothing else is advised of it: most rules do not fit a cluster."""
    port = find_free_port()
    at = f"127.0.0.1:{port}"
    options = (
        "--wsrep-on=ON",
        "--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
        "--wsrep-cluster-address=gcomm://",
        "--wsrep-node-address=127.0.0.1",
        f"--wsrep-provider-options=base_host=127.0.0.1;base_port={port};gmcast.listen_addr=tcp://{at}",
    )
    with own_server("mariadb", *options) as server:
        assert server.execute("SHOW STATUS LIKE 'wsrep_cluster_size'") == [("wsrep_cluster_size", "1")]
        findings = check(server)
        server.execute(CUSTOMERS_TABLE, database="shop")
        with pytest.raises(SourceUnsuitable, match="Galera"):
            Cache.open(write_config(tmp_path, "mariadb", server.url, ["127.0.0.1:1"]))
    assert [each.rule for each in findings] == [Rule.SEVERAL_WRITERS]
    with pytest.raises(SourceUnsuitable, match="Galera"):
        require(findings)


def test_a_primary_that_does_not_log_what_it_replicates(pair: Pair, flavor: Flavor) -> None:
    """Such changes are in no log that anybody reads, while the heartbeats are (F111)."""
    option = "--log-slave-updates=0" if flavor == "mariadb" else "--log-replica-updates=0"
    with own_server(flavor, option, server_id=9) as server:
        assert ("error", "F111") not in found(check(server)), "it replicates from nobody"
        # The history of the pair has databases that are dropped: none of it is applied here.
        server.replicate_from(pair.primary, delay_seconds=3600)
        [finding] = [each for each in check(server) if each.code == "F111"]
        assert finding.severity == "error"
        assert "log_slave_updates" in finding.message
        server.stop_replication()
        assert ("error", "F111") in found(check(server)), "it may be started again at any time"
        server.remove_sources()
        assert ("error", "F111") not in found(check(server))
    assert ("error", "F111") not in found(check(pair.replica)), "it logs what it replicates"


@pytest.mark.parametrize("option", ["--binlog-do-db=shop", "--binlog-do-db=other", "--binlog-ignore-db=mysql"])
def test_a_log_that_leaves_out_databases(flavor: Flavor, option: str) -> None:
    """Each of them can hide a statement on any table: its session's default database decides (F112)."""
    with own_server(flavor, option) as server:
        [finding] = [each for each in check(server) if each.code == "F112"]
        assert finding.severity == "error"
        assert option.partition("=")[2] in finding.message
        server.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY)")
        server.execute("INSERT INTO shop.goods VALUES (1)")
        with server.connect() as connection:
            before = executed_position(connection, flavor)
            hidden = {"--binlog-do-db=shop": "sys", "--binlog-do-db=other": "shop"}.get(option, "mysql")
        server.execute("TRUNCATE shop.goods", database=hidden)
        with server.connect() as connection:
            assert executed_position(connection, flavor) == before, "the log does not have it"


@pytest.mark.parametrize("flavor", ["mysql"], indirect=True)
def test_a_server_that_gives_its_log_to_nobody(server: DatabaseServer) -> None:
    """MariaDB makes a 1 of it."""
    with server.setting("server_id", "0"):
        [finding] = [each for each in check(server) if "server_id" in each.message]
        assert (finding.severity, finding.code) == ("error", "F115")


def rehearse(server: DatabaseServer, user: str) -> None:
    address = replace(address_of(server), user=user, password=user)
    with closing(HeartbeatWriter(address, server.flavor, "rehearsal", 0)) as writer:
        writer.rehearse()


def test_each_right_that_heartbeats_need(server: DatabaseServer) -> None:
    """The server itself is asked, by statements that are taken back; before the table is there and after."""
    server.execute("CREATE USER IF NOT EXISTS beats@'%' IDENTIFIED BY 'beats'")
    rights = {"CREATE", "SELECT", "INSERT", "UPDATE", "DELETE"}
    try:
        for is_prepared in (False, True):
            if is_prepared:
                writer = HeartbeatWriter(address_of(server), server.flavor, "me", 0.0)
                writer.prepare()
                writer.beat()
                writer.close()
                before = server.executed()
            for lacking in sorted(rights):
                server.execute("REVOKE ALL PRIVILEGES, GRANT OPTION FROM beats@'%'")
                server.execute(f"GRANT {', '.join(sorted(rights - {lacking}))} ON shop.* TO beats@'%'")
                if is_prepared:
                    before = server.executed()
                with pytest.raises(SourceUnsuitable, match=f"{lacking} command denied") as caught:
                    rehearse(server, "beats")
                assert "grant the account" in caught.value.hint
            server.execute(f"GRANT {', '.join(sorted(rights))} ON shop.* TO beats@'%'")
            before = server.executed()
            rehearse(server, "beats")
            assert server.executed() == before, "nothing is logged"
            with server.setting("read_only", "1"), pytest.raises(SourceUnsuitable, match="read-only"):
                rehearse(server, "beats")
        assert len(server.execute("SELECT * FROM shop.freshness_heartbeat")) == 2
    finally:
        server.execute("DROP USER beats@'%'")


def test_a_domain_that_the_log_does_not_have_is_not_demanded(mariadb_pair: Pair) -> None:
    """gtid_slave_pos keeps the domains of a previous source forever; no stream brings them (F113)."""
    with own_server("mariadb") as server:

        def head() -> Position:
            with server.connect() as connection:
                return executed_position(connection, "mariadb")

        own = head()
        [(position,)] = server.execute("SELECT @@global.gtid_binlog_pos")
        server.execute("SET GLOBAL gtid_slave_pos = %s", f"{position},5-9-77")
        assert head() == own
        with server.connect() as connection:
            assert str(replicated_position(connection, "mariadb")) == f"{position},5-9-77"
            with connection.cursor() as cursor:
                cursor.execute("SET gtid_domain_id = 5")
                cursor.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY)")
        assert head().contains(parse_position("mariadb", "5-9-77")), "the log has the domain now"
    with own_server("mariadb", "--log-slave-updates=0") as server:
        [(position,)] = server.execute("SELECT @@global.gtid_binlog_pos")
        server.execute("SET GLOBAL gtid_slave_pos = %s", f"{position},5-9-77")
        with server.connect() as connection:
            everything = executed_position(connection, "mariadb")
        assert str(everything) == f"{position},5-9-77", "nobody knows what its log lacks"


@pytest.mark.parametrize("engine", ["MEMORY", "MyISAM", "InnoDB"])
def test_an_engine_whose_tables_change_at_a_start_is_refused(server: DatabaseServer, engine: str) -> None:
    """The server empties a table in memory, and repairs one without transactions; the log has it later, or never."""
    server.execute(f"CREATE TABLE shop.loose (id INT PRIMARY KEY) ENGINE = {engine}")
    refused = [each for each in check(server, "loose") if each.rule is Rule.ENGINE]
    assert bool(refused) == (engine != "InnoDB")
    assert not [each for each in check(server, "other") if each.rule is Rule.ENGINE]
    if refused:
        with pytest.raises(SourceUnsuitable, match=f"table loose is of engine {engine}"):
            require(refused)


def test_cascades_that_are_not_logged(server: DatabaseServer) -> None:
    server.execute("CREATE TABLE shop.parent (id INT PRIMARY KEY)")
    server.execute(
        "CREATE TABLE shop.child (id INT PRIMARY KEY, p INT,"
        " FOREIGN KEY (p) REFERENCES shop.parent (id) ON DELETE CASCADE)"
    )
    server.execute(
        "CREATE TABLE shop.grandchild (id INT PRIMARY KEY, c INT,"
        " FOREIGN KEY (c) REFERENCES shop.child (id) ON UPDATE SET NULL)"
    )
    with connect(address_of(server)) as connection:
        assert find_cascades(connection, "shop", ["grandchild", "parent"]) == {
            # Rows of the parent delete rows of the child, which touches no id that the grandchild refers to.
            "grandchild": frozenset((Cause("shop", "child", "id"),))
        }
        assert find_cascades(connection, "shop", ["child"]) == {"child": frozenset((Cause("shop", "parent"),))}
    # MariaDB: the stream raises the child, which costs hits. MySQL 9.6 and later logs the rows.
    expected = {("warning", "F23")} if server.flavor == "mariadb" else set()
    assert {item for item in found(check(server, "child")) if item[1] == "F23"} == expected


def test_cascades_of_innodb_itself_are_warned_of_on_mysql() -> None:
    server = make_database("mysql", server_id=1, options=("--innodb-native-foreign-keys=ON",))
    try:
        server.start()
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE shop.parent (id INT PRIMARY KEY)")
        server.execute(
            "CREATE TABLE shop.child (id INT PRIMARY KEY, p INT,"
            " FOREIGN KEY (p) REFERENCES shop.parent (id) ON DELETE CASCADE)"
        )
        assert ("warning", "F23") in found(check(server, "child"))
        assert ("warning", "F23") not in found(check(server, "parent"))
    finally:
        server.stop()


# -- connecting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [({"user": "guarded", "password": "wrong"}, "Access denied"), ({"database": "nowhere"}, "Unknown database")],
)
def test_what_an_operator_must_correct(server: DatabaseServer, change: dict[str, str], message: str) -> None:
    with pytest.raises(SourceUnsuitable, match=message) as caught:
        connect(replace(address_of(server), **change))  # type: ignore[arg-type]
    assert caught.value.hint
    assert "wrong" not in str(caught.value)


def test_an_unreachable_server_can_be_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        address = ServerAddress("127.0.0.1", taken.getsockname()[1], "app", "app", "shop")
        with pytest.raises(SourceUnavailable) as caught:
            connect(address)
    assert caught.value.is_retryable
    assert str(address.port) in str(caught.value)


# -- keys -----------------------------------------------------------------------------------------------


def test_key_columns_come_in_the_order_of_the_key(server: DatabaseServer) -> None:
    server.execute(
        "CREATE TABLE shop.k (a VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin, b BINARY(16), c INT UNSIGNED,"
        " d DATE, e DECIMAL(9,2), f DATETIME(6), g ENUM('x'), h VARBINARY(8), v TEXT,"
        " PRIMARY KEY (c, a, b, d, e, f, g, h))"
    )
    with connect(address_of(server)) as connection:
        columns = key_columns(connection, "shop", "k")
        assert key_columns(connection, "shop", "k", ("c",)) == (KeyColumn("c", ColumnKind.INTEGER),)
    assert [(column.name, column.kind) for column in columns] == [
        ("c", ColumnKind.INTEGER),
        ("a", ColumnKind.STRING),
        ("b", ColumnKind.BINARY),
        ("d", ColumnKind.DATE),
        ("e", ColumnKind.DECIMAL),
        ("f", ColumnKind.DATETIME),
        ("g", ColumnKind.STRING),
        ("h", ColumnKind.BINARY),
    ]
    assert columns[1].collation == "latin1_bin"
    assert columns[2].length == 16
    assert columns[7].length == 0


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("a INT", "no primary key"),
        ("a VARCHAR(50), PRIMARY KEY (a(4))", "only 4 characters of a"),
        ("a FLOAT PRIMARY KEY", "float cannot be a key"),
        ("a TIMESTAMP PRIMARY KEY", "timestamp cannot be a key"),
        ("a SET('x') PRIMARY KEY", "set cannot be a key"),
        ("a BIT(3) PRIMARY KEY", "bit cannot be a key"),
        ("a TIME PRIMARY KEY", "time cannot be a key"),
        ("a VARCHAR(5) CHARACTER SET utf16 PRIMARY KEY", "utf16"),
        ("a CHAR(5) CHARACTER SET ucs2 PRIMARY KEY", "ucs2"),
    ],
)
def test_a_key_that_cannot_be_spelled_is_refused(server: DatabaseServer, definition: str, message: str) -> None:
    server.execute(f"CREATE TABLE shop.k ({definition})")
    with connect(address_of(server)) as connection, pytest.raises(ConfigError, match=message) as caught:
        key_columns(connection, "shop", "k")
    assert caught.value.hint


def test_what_is_not_there_is_named(server: DatabaseServer) -> None:
    server.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY)")
    server.execute("CREATE VIEW shop.v AS SELECT * FROM shop.goods")
    with connect(address_of(server)) as connection:
        with pytest.raises(ConfigError, match=r"no table shop\.nothing"):
            key_columns(connection, "shop", "nothing")
        with pytest.raises(ConfigError, match="spelled goods"):
            key_columns(connection, "shop", "Goods")
        with pytest.raises(ConfigError, match="is a view"):
            key_columns(connection, "shop", "v")
        with pytest.raises(ConfigError, match=r"no column other.*it has id"):
            key_columns(connection, "shop", "goods", ("other",))


def test_uuid_and_inet_keys_are_refused_on_mariadb(mariadb_pair: Pair) -> None:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    mariadb_pair.primary.execute("CREATE TABLE shop.k (a UUID PRIMARY KEY, b INET6)")
    with connect(address_of(mariadb_pair.primary)) as connection:
        with pytest.raises(ConfigError, match="uuid cannot be a key"):
            key_columns(connection, "shop", "k")
        with pytest.raises(FreshnessError, match="inet6 cannot be a key"):
            key_columns(connection, "shop", "k", ("b",))
