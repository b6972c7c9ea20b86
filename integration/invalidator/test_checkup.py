"""`invalidator check` finds on real servers what keeps `run` from starting, or the cache from storing anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from appclient import Cache, SourceUnavailable
from freshness.config.config import load_config
from integration.configuration import CUSTOMER, write_config
from integration.harness import CUSTOMERS_TABLE, call_cli, run_cli, running_system, wait_for_hits, wait_until
from integration.servers import DatabaseServer, Memcached, Pair
from integration.servers.database import SEMISYNCHRONOUS, Flavor, database_pair
from integration.servers.program import InvalidatorProcess
from invalidator.process.status import read_nodes

OK, USAGE, UPSTREAM, OPERATOR = 0, 2, 3, 4


@pytest.fixture
def primary(pair: Pair) -> DatabaseServer:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    pair.wait_caught_up()
    return pair.primary


def check(path: Path) -> tuple[int, list[dict[str, Any]]]:
    ran = call_cli("check", "-c", path, "--json")
    assert "Traceback" not in ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def errors(path: Path, code: int) -> str:
    """The messages and hints of the errors that `check` finds; it ends with that code."""
    ended, findings = check(path)
    wrong = [each for each in findings if each["severity"] == "error"]
    assert ended == code, findings
    assert all(each["hint"] for each in wrong)
    return "\n".join(f"{each['code']} {each['message']} → {each['hint']}" for each in wrong)


def refused(path: Path, code: int) -> str:
    """The message with which `run` ends."""
    ran = run_cli("run", "-c", path)
    assert ran.returncode == code, ran.stderr
    return ran.stderr


def config_of(folder: Path, server: DatabaseServer, *nodes: str, **options: Any) -> Path:
    settings = {"objects": CUSTOMER, **options}
    return write_config(folder, server.flavor, settings.pop("url", server.url), nodes, **settings)


def test_a_system_as_it_should_be(pair: Pair, primary: DatabaseServer, memcached: Memcached, tmp_path: Path) -> None:
    path = config_of(tmp_path, primary, memcached.address, replicas=[pair.replica.url])
    code, findings = check(path)
    assert code == OK
    assert {each["severity"] for each in findings} <= {"warning", "note"}
    assert not any(each["code"] in ("F113", "F115") for each in findings)


@contextmanager
def account(server: DatabaseServer, *grants: str) -> Iterator[str]:
    """The URL of an account that may only that, and what a follower of the log needs."""
    monitor = {"mariadb": "BINLOG MONITOR, REPLICA MONITOR", "mysql": "REPLICATION CLIENT"}[server.flavor]
    server.execute("CREATE USER IF NOT EXISTS few@'%' IDENTIFIED BY 'few'")
    server.execute(f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO few@'%'")
    for grant in grants:
        server.execute(f"GRANT {grant} TO few@'%'")
    try:
        yield server.url.replace("app:app", "few:few")
    finally:
        server.execute("DROP USER few@'%'")


def test_an_account_that_lacks_a_right(primary: DatabaseServer, memcached: Memcached, tmp_path: Path) -> None:
    beats = "CREATE, SELECT, INSERT, UPDATE, DELETE ON shop.*"
    with account(primary, beats) as url:
        path = config_of(tmp_path, primary, memcached.address, url=url)
        assert check(path)[0] == OK
    for lacking in ("CREATE", "INSERT"):
        with account(primary, beats.replace(f"{lacking}, ", "")) as url:
            path = config_of(tmp_path, primary, memcached.address, url=url)
            assert f"{lacking} command denied" in errors(path, OPERATOR)
            assert f"{lacking} command denied" in refused(path, OPERATOR)
    rights = "CREATE, SELECT, INSERT, UPDATE, DELETE ON shop.freshness_heartbeat"
    with account(primary, rights) as url:
        path = config_of(tmp_path, primary, memcached.address, url=url)
        assert "no table shop.customers → create it" in errors(path, USAGE)
        assert "grant the account SELECT" in refused(path, USAGE)
    with account(primary, rights, "SELECT (id) ON shop.customers") as url:
        path = config_of(tmp_path, primary, memcached.address, url=url)
        assert "reading customers: SELECT command denied" in errors(path, OPERATOR)


def test_a_read_only_primary(primary: DatabaseServer, memcached: Memcached, tmp_path: Path) -> None:
    with account(primary, "CREATE, SELECT, INSERT, UPDATE, DELETE ON shop.*") as url:
        path = config_of(tmp_path, primary, memcached.address, url=url)
        primary.execute("SET GLOBAL read_only = 1")
        try:
            assert "read-only" in errors(path, OPERATOR)
            assert "read-only" in refused(path, OPERATOR)
        finally:
            primary.execute("SET GLOBAL read_only = 0")


def test_a_token_file_and_a_port(primary: DatabaseServer, memcached: Memcached, tmp_path: Path, port: int) -> None:
    listen = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    path = config_of(tmp_path, primary, memcached.address, extra=listen + 'token_file = "nowhere"\n')
    assert "http.token_file" in errors(path, USAGE)
    path = config_of(tmp_path, primary, memcached.address, extra=listen)
    assert check(path)[0] == OK
    with socket.create_server(("127.0.0.1", port)):
        assert f"http.listen = 127.0.0.1:{port}: Address already in use" in errors(path, USAGE)


def test_the_port_of_an_invalidator_that_runs_is_no_mistake(pair: Pair, tmp_path: Path, port: int) -> None:
    with running_system(pair, tmp_path, extra=f'[http]\nlisten = "127.0.0.1:{port}"\n') as system:
        assert check(system.config_path)[0] == OK


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_a_server_whose_sessions_read_the_past(tmp_path: Path, pair: Pair) -> None:
    """No cached read takes a row of it, of any table."""
    versioned = "CREATE TABLE notes (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING"
    objects = f'{CUSTOMER}[objects.note]\ntable = "notes"\n'
    with running_system(pair, tmp_path, tables=(CUSTOMERS_TABLE, versioned), objects=objects) as system:
        system.execute("INSERT INTO notes VALUES (1, 1)")
        system.settle()
        for server in (pair.replica, pair.primary):
            server.execute("SET GLOBAL system_versioning_asof = '2026-01-01 00:00:00'")
        try:
            told = errors(system.config_path, OPERATOR)
            for server in (pair.replica, pair.primary):
                assert f"{server.port}: system_versioning_asof is 2026-01-01 00:00:00.000000" in told
            assert "SET GLOBAL system_versioning_asof = DEFAULT" in told
            with closing(Cache.open(system.config_path)) as cache, pytest.raises(SourceUnavailable):
                cache.get("note", 1)
        finally:
            for server in (pair.replica, pair.primary):
                server.execute("SET GLOBAL system_versioning_asof = DEFAULT")
        assert errors(system.config_path, OK) == ""
        with closing(Cache.open(system.config_path)) as cache:
            assert cache.get("note", 1) == {"id": 1, "v": 1}


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)  # a server_uuid of MySQL is of its data
def test_a_primary_with_another_identity(primary: DatabaseServer, memcached: Memcached, tmp_path: Path) -> None:
    """Of the same server: `check` reports it before a start."""
    path = config_of(tmp_path, primary, memcached.address)

    def found() -> list[str]:
        return [each["message"] for each in check(path)[1] if each["rule"] == "primary-changed"]

    with InvalidatorProcess(path):
        assert found() == []
    with primary.setting("server_id", 4711):
        (message,) = found()
        assert "follows the primary" in message
        assert " 4711 " in message.rpartition("which is")[2]
    assert found() == []


def test_a_failover_is_lossless_while_commits_wait_for_a_replica(
    flavor: Flavor, memcached: Memcached, tmp_path: Path
) -> None:
    """A commit that has waited in vain ends that, until the replica has it."""
    settings = SEMISYNCHRONOUS[flavor]
    with database_pair(flavor, primary_options=settings, replica_options=settings) as servers:
        path = config_of(tmp_path, servers.primary, memcached.address, shard={"lossless_failover": True})

        def is_lossless() -> bool:
            return all(each["rule"] != "lossless" for each in check(path)[1])

        servers.primary.execute(CUSTOMERS_TABLE, database="shop")
        wait_until(is_lossless, "the replica is waited for")
        servers.replica.stop_replication()
        servers.primary.execute("INSERT INTO customers VALUES (1, 'c', 0)", database="shop")
        assert not is_lossless()
        servers.replica.start_replication()
        wait_until(is_lossless, "the replica is waited for again")


def test_nodes(primary: DatabaseServer, memcached: Memcached, tmp_path: Path) -> None:
    port = memcached.address.partition(":")[2]
    twice = [memcached.address, f"localhost:{port}"]
    found = errors(config_of(tmp_path, primary, *twice), OPERATOR)
    assert f"F94 localhost:{port} and {memcached.address} are one cache node under two names" in found
    code, findings = check(config_of(tmp_path, primary, memcached.address, "127.0.0.1:1"))
    assert code == OK, "`run` waits for it"
    assert [each["severity"] for each in findings if "127.0.0.1:1 " in each["message"]] == ["warning"]
    with Memcached(options=("-C",)) as unsuitable:
        assert "has no CAS" in errors(config_of(tmp_path, primary, unsuitable.address), OPERATOR)


def test_a_node_that_a_neighbour_has_filled_is_told_as_such(primary: DatabaseServer, tmp_path: Path) -> None:
    """A node that may not evict cannot take a record; the log blames neither a proxy nor another invalidator."""
    with Memcached(memory_mb=2, options=("-M",)) as node:
        path = config_of(tmp_path, primary, node.address)
        assert not any(each["code"] == "F115" for each in check(path)[1])
        for size in (1000, 400, 200, 100, 60, 30):
            fill(node, size)
        [finding] = [each for each in check(path)[1] if each["code"] == "F115"]
        assert f"{node.address} has no memory for another item" in finding["message"]
        assert "-M" in finding["hint"]
        assert "proxy" not in finding["hint"]
        invalidator = InvalidatorProcess(path)
        invalidator.launch()
        try:
            told = f"node {node.address} is out: memcached {node.address} has no memory for another item"
            wait_until(lambda: told in invalidator.log(), "it says so", invalidator.log)
            assert "another invalidator" not in invalidator.log()
            node.ask("flush_all")
            wait_until(lambda: read_nodes(load_config(path))[0]["state"] == "open", "it is joined", invalidator.log)
        finally:
            invalidator.stop()


def fill(node: Memcached, size: int) -> None:
    """Items of a neighbour, until the node takes no more of them."""
    value = b"x" * size
    with socket.create_connection(("127.0.0.1", node.port), 5) as connection, connection.makefile("rb") as answers:
        for number in range(200_000):
            connection.sendall(b"set neighbour-%d-%d 0 0 %d\r\n%b\r\n" % (size, number, size, value))
            if answers.readline() != b"STORED\r\n":
                return
    raise AssertionError("it is never full")


def test_one_database_of_two_that_is_down(primary: DatabaseServer, memcached: Memcached, tmp_path: Path) -> None:
    """It is a finding, and what is wrong with the other one is found all the same."""
    path = config_of(tmp_path, primary, memcached.address, objects=CUSTOMER + 'keyspace = "shop"\n', extra=OTHER)
    assert "127.0.0.1:1: connecting" in errors(path, UPSTREAM)
    path.write_text(path.read_text().replace('"customers"', '"custmers"'))
    found = errors(path, USAGE)
    assert "127.0.0.1:1: connecting" in found
    assert "no table shop.custmers" in found


OTHER = """[keyspaces.other]
flavor = "mysql"
[[keyspaces.other.shards]]
primary = "mysql://app:app@127.0.0.1:1/other"
[objects.goods]
keyspace = "other"
table = "goods"
"""


# -- positions that readers never show ------------------------------------------------------------------


def test_a_domain_of_a_previous_source_is_no_hindrance(tmp_path: Path) -> None:
    """It stood in every floor, no replica has it, and nothing was ever stored (F113)."""
    with database_pair("mariadb") as pair:
        pair.primary.execute(f"SET GLOBAL gtid_slave_pos = '{pair.primary.executed()},5-9-77'")
        with running_system(pair, tmp_path, nodes=[Memcached()]) as system:
            system.execute("INSERT INTO customers VALUES (1, 'n', 0)")
            code, findings = check(system.config_path)
            assert (code, [each for each in findings if each["code"] == "F113"]) == (OK, [])
            cache = system.open_cache()
            wait_for_hits(cache, "customer", [1], system.describe)
            cache.close()


def test_a_domain_that_the_primary_has_and_a_replica_does_not_show(tmp_path: Path, memcached: Memcached) -> None:
    with database_pair("mariadb") as pair:
        pair.primary.execute(CUSTOMERS_TABLE, database="shop")
        pair.wait_caught_up()
        path = config_of(tmp_path, pair.primary, memcached.address, replicas=[pair.replica.url])
        pair.replica.stop_replication()
        write_in_domain_5(pair.primary)
        code, findings = check(path)
        [finding] = [each for each in findings if each["code"] == "F113"]
        assert (code, finding["severity"]) == (OK, "warning")
        assert f"nothing will be stored from 127.0.0.1:{pair.replica.port}" in finding["message"]
        assert "domain 5" in finding["message"]
        pair.replica.start_replication()
        pair.wait_caught_up()
        assert not any(each["code"] == "F113" for each in check(path)[1])
        alone = config_of(tmp_path, pair.primary, memcached.address)
        [finding] = [each for each in check(alone)[1] if each["code"] == "F113"]
        assert f"nothing will be stored from 127.0.0.1:{pair.primary.port}" in finding["message"]


@pytest.mark.parametrize("filtering", ["IGNORE_DOMAIN_IDS = (5)", "--replicate-ignore-table=shop.customers"])
def test_a_replica_that_leaves_out_changes(tmp_path: Path, memcached: Memcached, filtering: str) -> None:
    """Its position names what it has not applied, an ignored domain's too: a read there is old and is stored."""
    options = [filtering] if filtering.startswith("--") else []
    with database_pair("mariadb", replica_options=options) as pair:
        pair.primary.execute(CUSTOMERS_TABLE, database="shop")
        pair.wait_caught_up()
        if not options:
            pair.replica.stop_replication()
            pair.replica.execute(f"CHANGE MASTER TO {filtering}")
            pair.replica.start_replication()
            write_in_domain_5(pair.primary)
            pair.wait_caught_up()
            assert pair.replica.execute("SELECT * FROM shop.customers") == []
            [(position,)] = pair.replica.execute("SELECT @@global.gtid_slave_pos")
            assert "5-1-1" in str(position)
        path = config_of(tmp_path, pair.primary, memcached.address, replicas=[pair.replica.url])
        found = errors(path, OPERATOR)
        assert f"F25 127.0.0.1:{pair.replica.port}: it leaves out a part of what it replicates" in found
        reader = pair.replica.url.replace("app:app", "reader:reader")
        path = config_of(tmp_path, pair.primary, memcached.address, replicas=[reader])
        assert "leaves out a part" in errors(path, OPERATOR), "the invalidator's own account is told"


def write_in_domain_5(server: DatabaseServer) -> None:
    with server.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("SET gtid_domain_id = 5")
        cursor.execute("INSERT INTO customers VALUES (5, 'n', 0)")
