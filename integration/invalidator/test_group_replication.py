"""A group of MySQL Group Replication with a single primary: its members are the primary and the replicas of a shard.

The tests share one group. Any member can be its primary when one begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnavailable, SourceUnsuitable
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, PATIENT, STREAM, System, call_cli, run_cli, wait_for_hits, wait_until
from integration.judge import ALL_SHOWN, Judge, Writer, judged_client, judged_moves, survive_kills
from integration.servers import Memcached, MysqlServer
from integration.servers.group import Group, group_of_three
from integration.servers.program import InvalidatorProcess
from invalidator.replica.server import check_start, look_at

KEYS: Final = tuple(range(1, 11))
OPERATOR: Final = 4


@pytest.fixture(scope="module")
def formed() -> Iterator[Group]:
    with group_of_three() as group:
        yield group


@pytest.fixture
def group(formed: Group) -> Group:
    """The members in their present order: the primary first. They have the table, and its rows."""
    primary = wait_primary(formed, formed.members[0])
    formed.members.sort(key=lambda each: each is not primary)
    primary.execute("DROP DATABASE IF EXISTS shop")
    primary.execute("CREATE DATABASE shop")
    primary.execute(CUSTOMERS_TABLE, database="shop")
    for key in KEYS:
        primary.execute(f"INSERT INTO customers VALUES ({key}, 'c', 0)", database="shop")
    for each in formed.members[1:]:
        each.wait_caught_up(primary)
    wait_until(formed.are_online, "all are members")
    return formed


def write(group: Group, folder: Path, *nodes: Memcached, **shard: Any) -> Path:
    """A file whose primary is the present one, and whose replicas are the others."""
    primary, *others = [each.url for each in group.members]
    return write_config(
        folder,
        "mysql",
        primary,
        [each.address for each in nodes],
        replicas=others,
        shard=shard,
        cache={**PATIENT, **ALL_SHOWN},
        stream={**STREAM, "replica_choice": "freshest"},
    )


def find_rules(path: Path) -> set[str]:
    """Those that `check` finds on the group, without the ones that a private server earns."""
    private = {"sync-binlog", "flush-log", "clock", "connections", "open-files", "heartbeat-table", "no-heartbeats"}
    return {each["rule"] for each in json.loads(call_cli("check", "-c", path, "--json").stdout)} - private


@contextmanager
def judged(group: Group, folder: Path, **shard: Any) -> Iterator[tuple[System, Judge, Writer]]:
    """A system on the group, under writes and judged reads until the end."""
    with Memcached() as node:
        path = write(group, folder, node, adopt_promotions=True, **shard)
        moves = judged_moves(group.members[0], group.members[1], node, path, KEYS)
        with moves as (system, judge, writer), judged_client(system, judge):
            judge.wait_judged(20)
            yield system, judge, writer


def wait_adopted(system: System, times: int = 1) -> None:
    wait_until(lambda: system.invalidator.log().count("adopted: ") == times, "it is adopted", system.describe)
    system.wait_open()


def wait_primary(group: Group, witness: MysqlServer, previous: MysqlServer | None = None) -> MysqlServer:
    """Of which the witness and the primary itself know."""

    def find() -> MysqlServer | None:
        found = group.find_primary(witness, previous)
        return found if found is not None and group.find_primary(found, previous) is found else None

    return wait_until(find, "the group has a primary")


def test_the_members_are_a_primary_and_its_replicas(group: Group, tmp_path: Path) -> None:
    """`check` finds nothing wrong, and misses and the log come from the secondaries."""
    with Memcached() as node:
        path = write(group, tmp_path, node)
        assert find_rules(path) == set()
        with InvalidatorProcess(path) as invalidator, closing(Cache.open(path)) as cache:
            assert "reading the log of replica" in invalidator.log()
            secondaries = {f"127.0.0.1:{each.port}" for each in group.members[1:]}
            found = cache.get_many("customer", KEYS, explain=True)
            assert {server.name for each in found.values() for server in each.servers.values()} <= secondaries
            wait_for_hits(cache, "customer", KEYS, invalidator.log)


def test_an_invalidator_that_is_killed_again_and_again(group: Group, tmp_path: Path) -> None:
    with judged(group, tmp_path) as (system, judge, _):
        survive_kills(system, judge)


def test_a_planned_switchover_keeps_the_cache(group: Group, tmp_path: Path) -> None:
    """Nobody states that it is lossless: the members show it."""
    with judged(group, tmp_path) as (system, judge, writer):
        lives = system.lives()
        writer.move(None)
        group.promote(group.members[1])
        writer.move(group.members[1])
        wait_adopted(system)
        judge.wait_writes(20)
        judge.wait_judged(20)
        assert system.lives() == lives
        assert "new life" not in system.invalidator.log()


def test_a_killed_primary_is_succeeded_without_an_operator(group: Group, tmp_path: Path) -> None:
    previous, *others = group.members
    with judged(group, tmp_path, lossless_failover=True) as (system, judge, writer):
        lives = system.lives()
        writer.move(None)
        previous.kill()
        elected = wait_primary(group, others[0], previous)
        wait_until(lambda: not elected.execute("SELECT @@global.read_only")[0][0], "it is writable")
        writer.move(elected)
        wait_adopted(system)
        judge.wait_writes(20)
        judge.wait_judged(20)
        assert system.lives() == lives
        previous.start()
        group.join(previous)
        written = judge.outcomes.total()
        wait_until(lambda: judge.outcomes.total() > written, "reads go on", system.describe)


def test_an_elected_primary_with_a_backlog_has_lost_nothing(group: Group) -> None:
    """It is waited for. MySQL names it the primary at once, and lets nobody write until it has applied all."""
    previous, present, other = group.members
    with ExitStack() as stack:
        for each in (present, other):  # an open transaction keeps the ALTER from being applied
            reader = stack.enter_context(closing(each.connect("shop", autocommit=False)))
            reader.cursor().execute("SELECT * FROM customers")
        previous.execute("ALTER TABLE customers ADD COLUMN w INT", database="shop")
        start = look_at(_address(previous), "mysql", timeout_seconds=5).executed
        previous.kill()
        elected = wait_primary(group, other, previous)
        state = look_at(_address(elected), "mysql", timeout_seconds=5)
        assert state.is_elected
        assert not state.executed.contains(start)
        with closing(elected.connect()) as connection, pytest.raises(SourceUnavailable, match="was elected"):
            check_start(connection, "mysql", start, _address(elected))
    wait_until(lambda: not elected.execute("SELECT @@global.read_only")[0][0], "it is writable")
    with closing(elected.connect()) as connection:
        check_start(connection, "mysql", start, _address(elected))
    state = look_at(_address(elected), "mysql", timeout_seconds=5)
    assert not state.is_elected
    assert not state.follows
    previous.start()
    group.join(previous)


def _address(server: MysqlServer) -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, "app", "app", "shop")


def test_an_account_that_may_not_see_the_group(group: Group, tmp_path: Path) -> None:
    """Nobody could tell a secondary from a server that follows nobody, so the message names the missing right."""
    rights = "GRANT SELECT, CREATE, INSERT, UPDATE, DELETE ON shop.* TO few@'%'"
    primary = group.members[0]
    primary.execute("CREATE USER few@'%' IDENTIFIED BY 'few'")
    primary.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO few@'%'")
    primary.execute(rights)
    for each in group.members[1:]:
        each.wait_caught_up(primary)
    try:
        with Memcached() as node:
            path = write(group, tmp_path, node)
            path.write_text(path.read_text().replace("app:app", "few:few"))
            assert find_rules(path) == {"right", "hidden"}
            ran = run_cli("run", "-c", path)
            assert ran.returncode == OPERATOR
            assert "SELECT ON performance_schema.*" in ran.stderr
            primary.execute("GRANT SELECT ON performance_schema.* TO few@'%'")
            for each in group.members[1:]:
                each.wait_caught_up(primary)
            assert find_rules(path) == set()
    finally:
        primary.execute("DROP USER few@'%'")


def test_a_failover_is_lossless_only_in_a_group_that_is_there(group: Group, tmp_path: Path) -> None:
    """The name of a group alone says nothing, and a member that has stopped follows nobody."""
    with Memcached() as node:
        path = write(group, tmp_path, node, lossless_failover=True)
        assert find_rules(path) == set()
        for each in group.members[1:]:
            each.execute("STOP GROUP_REPLICATION")
        try:
            assert find_rules(path) == {"lossless", "not-replicating"}
        finally:
            for each in group.members[1:]:
                group.join(each)


def test_several_primaries_are_refused_by_name(group: Group, tmp_path: Path) -> None:
    primary = group.members[0]
    primary.execute("SELECT group_replication_switch_to_multi_primary_mode()")
    try:
        with Memcached() as node:
            path = write(group, tmp_path, node)
            assert "several-writers" in find_rules(path)
            ran = run_cli("run", "-c", path)
            assert ran.returncode == OPERATOR
            assert "group_replication_single_primary_mode is OFF" in ran.stderr
            with pytest.raises(SourceUnsuitable, match="group_replication_single_primary_mode is OFF"):
                Cache.open(path)
    finally:
        [(identity,)] = primary.execute("SELECT @@global.server_uuid")
        primary.execute("SELECT group_replication_switch_to_single_primary_mode(%s)", identity)
