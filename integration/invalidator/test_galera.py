"""A cluster of Galera: one node is the primary of a shard, the others are its read-only replicas.

The tests share one cluster. Any node can be its primary when one begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache
from appclient.database.atleast import wait_sql
from freshness.database.cluster import REMEDY
from freshness.database.connection import OUTSIDE_HINT
from freshness.errors import SourceUnavailable, SourceUnsuitable
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, PATIENT, STREAM, System, call_cli, run_cli, wait_for_hits, wait_until
from integration.judge import ALL_SHOWN, Judge, Writer, judged_client, judged_moves, survive_kills
from integration.servers import Memcached
from integration.servers.galera import DOMAIN, GaleraCluster, GaleraNode, galera_of_three
from integration.servers.haproxy import Haproxy
from integration.servers.program import InvalidatorProcess
from invalidator.replica.server import APART

KEYS: Final = tuple(range(1, 11))
OPERATOR: Final = 4


@pytest.fixture(scope="module")
def formed() -> Iterator[GaleraCluster]:
    with galera_of_three() as cluster:
        yield cluster


@pytest.fixture
def cluster(formed: GaleraCluster) -> GaleraCluster:
    """The primary first. All have the table, and its rows."""
    primary = formed.nodes[0]
    formed.make_primary(primary)
    primary.execute("DROP DATABASE IF EXISTS shop")
    primary.execute("CREATE DATABASE shop")
    primary.execute(CUSTOMERS_TABLE, database="shop")
    for key in KEYS:
        primary.execute(f"INSERT INTO customers VALUES ({key}, 'c', 0)", database="shop")
    for each in formed.nodes:
        each.wait_ready()
        each.wait_caught_up(primary)
    return formed


def write(cluster: GaleraCluster, folder: Path, *nodes: Memcached, **shard: Any) -> Path:
    """A file whose primary is the present one, and whose replicas are the others."""
    primary, *others = [each.url for each in cluster.nodes]
    return write_config(
        folder,
        "mariadb",
        primary,
        [each.address for each in nodes],
        replicas=others,
        shard={"adopt_promotions": True, **shard},
        cache={**PATIENT, **ALL_SHOWN},
        stream={**STREAM, "replica_choice": "freshest"},
    )


def find_messages(path: Path) -> dict[str, set[str]]:
    """Of `check`, by rule, without the rules that a private server earns."""
    private = {"sync-binlog", "flush-log", "clock", "connections", "open-files", "heartbeat-table", "no-heartbeats"}
    found: dict[str, set[str]] = {}
    for each in json.loads(call_cli("check", "-c", path, "--json").stdout):
        if each["rule"] not in private:
            found.setdefault(each["rule"], set()).add(each["message"])
    return found


@contextmanager
def judged(
    cluster: GaleraCluster, folder: Path, node: Memcached, **shard: Any
) -> Iterator[tuple[System, Judge, Writer]]:
    path = write(cluster, folder, node, **shard)
    with judged_moves(cluster.nodes[0], cluster.nodes[1], node, path, KEYS) as moves:
        yield moves


@contextmanager
def isolated(node: GaleraNode) -> Iterator[None]:
    """In here it is in no primary component, as it has lost the other nodes."""
    node.execute("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")
    try:
        wait_until(lambda: not node.is_ready(), "it has lost the others", node.log_tail)
        yield
    finally:
        node.execute("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")
        node.wait_ready()


def wait_adopted(system: System) -> None:
    wait_until(lambda: "adopted: " in system.invalidator.log(), "it is adopted", system.describe)
    system.wait_open()


def test_the_nodes_are_a_primary_and_its_replicas(cluster: GaleraCluster, tmp_path: Path) -> None:
    """`check` finds nothing wrong, and the log comes from one that is read-only. Galera is said to lose commits in
    crashes, so nothing shows that a failover is lossless."""
    with Memcached() as node:
        assert set(find_messages(write(cluster, tmp_path, node, lossless_failover=True))) == {"lossless"}
        path = write(cluster, tmp_path, node)
        assert find_messages(path) == {}
        with InvalidatorProcess(path) as invalidator, closing(Cache.open(path)) as cache:
            assert "reading the log of replica" in invalidator.log()
            wait_for_hits(cache, "customer", KEYS, invalidator.log)


def test_a_planned_switchover_keeps_the_cache(cluster: GaleraCluster, memcached: Memcached, tmp_path: Path) -> None:
    """Nobody states that it is lossless: the nodes show it. While an application's file names the previous primary, a
    miss that no replica shows may read that one late, so nothing is written then."""
    with judged(cluster, tmp_path, memcached) as (system, judge, writer):
        lives = system.lives()
        with judged_client(system, judge):
            judge.wait_judged(20)
            writer.move(None)
            cluster.make_primary(cluster.nodes[1])
            wait_adopted(system)
            judge.wait_judged(20)
        write(cluster, tmp_path, memcached)
        with judged_client(system, judge):
            writer.move(cluster.nodes[0])
            judge.wait_writes(20)
            judge.wait_judged(20)
        assert system.lives() == lives
        assert "new life" not in system.invalidator.log()


def test_haproxy_leads_to_the_writable_node(cluster: GaleraCluster, memcached: Memcached, tmp_path: Path) -> None:
    """The file's primary is HAProxy, and all nodes are replicas: an operator moves both, and edits nothing."""
    with Haproxy(cluster.nodes) as proxy:
        path = write(cluster, tmp_path, memcached)
        nodes = [each.url for each in cluster.nodes]
        settings = path.read_text().replace(
            f'primary = "{nodes[0]}"', f'primary = "{nodes[0].replace(str(cluster.nodes[0].port), str(proxy.port))}"'
        )
        path.write_text(settings.replace("replicas = [", f'replicas = ["{nodes[0]}", '))
        with judged_moves(cluster.nodes[0], cluster.nodes[1], memcached, path, KEYS) as (system, judge, writer):
            assert set(find_messages(path)) == {"same-server"}
            with judged_client(system, judge):
                judge.wait_judged(20)
                writer.move(None)
                cluster.make_primary(cluster.nodes[1])
                proxy.lead_to(cluster.nodes[0])
                writer.move(cluster.nodes[0])
                judge.wait_writes(20)
                judge.wait_judged(20)


def test_a_killed_primary_is_succeeded_and_comes_back_by_state_transfer(
    cluster: GaleraCluster, memcached: Memcached, tmp_path: Path
) -> None:
    previous, *others = cluster.nodes
    transfers = previous.log().count("rsync SST started on joiner")
    with judged(cluster, tmp_path, memcached, lossless_failover=True) as (system, judge, writer):
        lives = system.lives()
        with judged_client(system, judge):
            judge.wait_judged(20)
            writer.move(None)
            previous.kill()
            wait_until(lambda: {each.status("wsrep_cluster_size") for each in others} == {"2"}, "it is out")
            others[0].set_read_only(0)
            wait_adopted(system)
            judge.wait_judged(20)
        cluster.nodes[:] = [*others, previous]
        write(cluster, tmp_path, memcached)
        with judged_client(system, judge):
            writer.move(others[0])
            judge.wait_writes(20)
            judge.wait_judged(20)
            (previous.data_directory / "grastate.dat").unlink()  # nobody knows what it has
            previous.start()
            assert previous.log().count("rsync SST started on joiner") == transfers + 1
            judge.wait_writes(20)
            judge.wait_judged(20)
        assert system.lives() == lives
        writer.move(None)
    for each in cluster.nodes:
        each.wait_caught_up(others[0])
    assert len({each.executed() for each in cluster.nodes}) == 1


def test_an_invalidator_that_is_killed_again_and_again(
    cluster: GaleraCluster, memcached: Memcached, tmp_path: Path
) -> None:
    with judged(cluster, tmp_path, memcached) as (system, judge, _), judged_client(system, judge):
        survive_kills(system, judge)


def test_reads_have_the_commits_of_their_session(
    cluster: GaleraCluster, memcached: Memcached, tmp_path: Path
) -> None:
    """The row of each commit, while another session writes, and no wait for a replication that is not there."""
    with judged(cluster, tmp_path, memcached) as (system, _, _), closing(system.open_cache()) as cache:
        system.execute("INSERT INTO customers VALUES (11, 'c', 0)")
        with cluster.nodes[0].connect("shop") as connection, connection.cursor() as cursor:
            for number in range(1, 151):
                cursor.execute("UPDATE customers SET v = %s WHERE id = 11", (number,))
                token = cache.database().commit_token(connection)
                assert cache.get("customer", 11, at_least=token)["v"] == number
    for each in cluster.nodes:
        assert each.execute(wait_sql("mariadb", "1", 5), "7-1-1000000000") == [(1, None)]


def test_a_previous_primary_does_not_show_a_commit_that_it_has_only_logged(
    cluster: GaleraCluster, tmp_path: Path
) -> None:
    """All nodes have one server id: the commit is in its `gtid_current_pos`, and its rows lack it."""
    previous, primary, _ = cluster.nodes
    with Memcached() as node:
        path = write(cluster, tmp_path, node)
        with InvalidatorProcess(path):
            pass  # it has prepared the shard, and adopts nothing now
        cluster.make_primary(primary)
        with closing(Cache.open(path)) as cache, previous.commits_waiting(), primary.connect("shop") as connection:
            with connection.cursor() as cursor:
                cursor.execute("UPDATE customers SET v = 1 WHERE id = 1")
            token = cache.database().commit_token(connection)
            previous.wait_caught_up(primary)
            assert previous.execute("SELECT v FROM customers WHERE id = 1", database="shop") == [(0,)]
            with pytest.raises(SourceUnavailable, match="not known to show the commits"):
                cache.get("customer", 1, at_least=token)


def test_a_node_that_refuses_queries_is_not_read(cluster: GaleraCluster, tmp_path: Path) -> None:
    """One is outside of the primary component, then the other one refuses them, as a donor can."""
    primary, outside, _ = cluster.nodes
    with Memcached() as node:
        path = write(GaleraCluster([primary, outside]), tmp_path, node)
        with InvalidatorProcess(path):
            pass  # it has prepared the shard
        with closing(Cache.open(path)) as cache, isolated(outside):
            for key in KEYS[2:]:
                assert cache.get("customer", key)["v"] == 0
            checked = call_cli("check", "-c", path, "--json").stdout
            assert checked.count(OUTSIDE_HINT) == 2
            assert "start its replication" not in checked
            found = find_messages(path)
            assert set(found) == {"not-replicating", "table-unreadable"}
            assert "wsrep_local_state_comment is Initialized" in str(found)
            refused = f"127.0.0.1:{primary.port}: reading: WSREP has not yet prepared node for application use"
            with primary.setting("wsrep_reject_queries", "'ALL'"):
                for key in (KEYS[0], 99):
                    with pytest.raises(SourceUnavailable, match=refused) as raised:
                        cache.get("customer", key)
                    assert raised.value.hint == OUTSIDE_HINT


def test_nothing_is_stored_while_a_second_node_is_writable(cluster: GaleraCluster, tmp_path: Path) -> None:
    with Memcached() as node:
        path = write(cluster, tmp_path, node)
        with InvalidatorProcess(path) as invalidator, closing(Cache.open(path)) as cache:
            wait_for_hits(cache, "customer", KEYS, invalidator.log)
            cluster.nodes[1].set_read_only(0)
            assert set(find_messages(path)) == {"adoption-blocked"}
            told = "2 servers of shop/- are writable at a time"
            wait_until(lambda: told in invalidator.log(), "it is logged", invalidator.log)
            cluster.nodes[1].set_read_only(1)
            wait_for_hits(cache, "customer", KEYS, invalidator.log)


def test_only_with_adoption_is_a_second_writer_noticed(cluster: GaleraCluster, tmp_path: Path) -> None:
    with Memcached() as node:
        path = write(cluster, tmp_path, node, adopt_promotions=False)
        named = "a node of a Galera cluster needs adopt_promotions, which notices a second writable one"
        assert find_messages(path) == {"several-writers": {f"127.0.0.1:{cluster.nodes[0].port}: {named}"}}
        ran = run_cli("run", "-c", path)
        assert ran.returncode == OPERATOR
        assert named in ran.stderr


@pytest.mark.parametrize("place", [0, 2], ids=["primary", "replica"])
@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("wsrep_gtid_mode", 0, "wsrep_gtid_mode is not ON: each node of this Galera cluster counts"),
        ("gtid_domain_id", DOMAIN, "gtid_domain_id is wsrep_gtid_domain_id: a change of this node alone"),
    ],
)
def test_nodes_that_count_for_themselves_are_refused_by_name(
    cluster: GaleraCluster, tmp_path: Path, place: int, name: str, value: int, named: str
) -> None:
    """The one remedy is advised, although all nodes are writable."""
    for each in cluster.nodes:
        each.set_read_only(0)
    node = cluster.nodes[place]
    with Memcached() as cache_node, node.setting(name, value):
        path = write(cluster, tmp_path, cache_node)
        assert any(named in each for each in find_messages(path)["several-writers"])
        invalidator = InvalidatorProcess(path)
        invalidator.launch()
        try:
            wait_until(lambda: named in invalidator.log(), "it is logged", invalidator.log)
            assert REMEDY in invalidator.log()
        finally:
            invalidator.stop()
        if place == 0:
            assert set(find_messages(path)) == {"several-writers"}
            path = write_config(tmp_path, "mariadb", node.url, [cache_node.address])
            with pytest.raises(SourceUnsuitable, match=named) as refused:
                Cache.open(path)
            assert refused.value.hint == REMEDY


def test_a_node_of_another_domain_is_refused_by_name(cluster: GaleraCluster, tmp_path: Path) -> None:
    node = cluster.nodes[2]
    with Memcached() as cache_node, node.setting("wsrep_gtid_domain_id", 9):
        path = write(cluster, tmp_path, cache_node)
        told = f"127.0.0.1:{node.port}: its wsrep_gtid_domain_id is 9"
        assert any(each.startswith(told) for each in find_messages(path)["several-writers"])
        invalidator = InvalidatorProcess(path)
        invalidator.launch()
        try:
            told = "nodes of the Galera cluster of shop/- give different GTIDs: 7-1, 9-1"
            wait_until(lambda: told in invalidator.log(), "it is logged", invalidator.log)
        finally:
            invalidator.stop()


def test_a_node_whose_wsrep_on_is_set_to_off_is_named(cluster: GaleraCluster, tmp_path: Path) -> None:
    apart = cluster.nodes[1]
    with Memcached() as node, InvalidatorProcess(path := write(cluster, tmp_path, node)) as invalidator:
        told = f"127.0.0.1:{apart.port} of shop/- {APART}"
        with apart.setting("wsrep_on", 0):
            wait_until(lambda: told in invalidator.log(), "it is logged", invalidator.log)
            found = find_messages(path)
            assert "several-writers" in found
            assert "not-replicating" not in found, found
        assert invalidator.log().count(told) == 1


def test_a_node_that_falls_behind_on_purpose_is_named(cluster: GaleraCluster, tmp_path: Path) -> None:
    """As the donor of a state transfer does."""
    with Memcached() as node, cluster.nodes[1].setting("wsrep_desync", 1):
        found = find_messages(write(cluster, tmp_path, node))
        assert set(found) == {"not-replicating"}
        assert "wsrep_local_state_comment is Donor/Desynced" in str(found)
