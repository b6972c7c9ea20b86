"""Rules for the other servers of a shard, in cases that no local server produces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from freshness.config.config import load_config
from freshness.position import empty_position
from invalidator.replica.server import ServerState
from invalidator.rules.finding import CheckFinding
from invalidator.rules.replica import ShardFacts
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts

NODE = {"version": "10.11.6-MariaDB", "wsrep_on": "ON", "server_id": "1", "wsrep_gtid_domain_id": "7"}
RIGHT = {"version": "8.0.39", "gtid_mode": "ON", "max_connections": "1000", "read_only": "OFF"}
WRITER = {**RIGHT, "aurora_version": "3.08.0", "innodb_read_only": "OFF", "server_uuid": "a", "server_id": "1"}
READER = {**WRITER, "innodb_read_only": "ON", "server_uuid": "b", "server_id": "2"}


def find(
    folder: Path,
    primary: dict[str, str],
    replica: dict[str, str],
    *,
    lossless: bool = False,
    members: int = 0,
    state: ServerState | None = None,
) -> list[CheckFinding]:
    """``members``: number of members that the primary sees in its group; 0 if it is in none. ``state``: state of the
    replica. If it is given, promotions are adopted."""
    path = folder / "freshness.toml"
    path.write_text(
        '[cache]\nnodes = ["10.0.0.1:11211"]\nnamespace = "shop"\n[keyspaces.shop]\nflavor = "mysql"\n'
        '[[keyspaces.shop.shards]]\nprimary = "mysql://app:app@10.0.0.2/shop"\n'
        'replicas = ["mysql://app:app@10.0.0.3/shop"]\n'
        f"lossless_failover = {str(lossless).lower()}\nadopt_promotions = {str(state is not None).lower()}\n"
        '[objects.customer]\ntable = "customers"\n'
    )
    config = load_config(path)
    [shard] = config.keyspaces["shop"].shards
    facts = ShardFacts(
        config,
        shard,
        ServerFacts(
            shard.primary,
            "mysql",
            primary,
            replication=({"Member_Role": "PRIMARY", "Members_Online": str(members)},) if members else (),
            topologies={},
        ),
        [ServerFacts(shard.replicas[0], "mysql", replica, state=state)],
    )
    return list(facts.check())


def check(folder: Path, primary: dict[str, str], replica: dict[str, str], **options: Any) -> set[Rule]:
    """As `find`: the rules."""
    return {each.rule for each in find(folder, primary, replica, **options)}


def test_a_reader_of_aurora(tmp_path: Path) -> None:
    assert check(tmp_path, WRITER, READER) == {Rule.SERVICE, Rule.UNTESTED, Rule.AURORA_READER}


@pytest.mark.parametrize(
    "variables",
    [
        {"rpl_semi_sync_source_status": "ON", "rpl_semi_sync_source_wait_point": "AFTER_SYNC"},
        {"rpl_semi_sync_master_status": "ON", "rpl_semi_sync_master_wait_point": "AFTER_SYNC"},
    ],
)
def test_what_makes_a_failover_lossless(tmp_path: Path, variables: dict[str, str]) -> None:
    assert Rule.LOSSLESS not in check(tmp_path, {**RIGHT, **variables}, RIGHT, lossless=True)
    off = {
        name: value.replace("ON", "OFF").replace("AFTER_SYNC", "AFTER_COMMIT") for name, value in variables.items()
    }
    assert Rule.LOSSLESS in check(tmp_path, {**RIGHT, **off}, RIGHT, lossless=True)


@pytest.mark.parametrize("name", ["server_id", "wsrep_gtid_domain_id"])
def test_nodes_of_galera_give_one_gtid(tmp_path: Path, name: str) -> None:
    wrong = {Rule.SEVERAL_WRITERS, Rule.SERVER_ID_CLASH}
    assert not check(tmp_path, NODE, {**NODE, "port": "2"}) & wrong
    assert check(tmp_path, NODE, {**NODE, "port": "2", name: "9"}) & wrong == {Rule.SEVERAL_WRITERS}


@pytest.mark.parametrize("is_primary", [True, False])
def test_a_node_of_galera_that_stands_apart_is_told_to_join_and_keeps_its_id(
    tmp_path: Path, is_primary: bool
) -> None:
    apart = {**NODE, "port": "2", "wsrep_on": "OFF", "wsrep_provider": "libgalera_smm.so"}
    found = find(tmp_path, *((apart, NODE) if is_primary else (NODE, apart)))
    assert Rule.SERVER_ID_CLASH not in {each.rule for each in found}
    [told] = [each for each in found if each.rule is Rule.SEVERAL_WRITERS]
    assert told.where == f"10.0.0.{2 if is_primary else 3}:3306"
    assert "wsrep_on is OFF" in told.message


def test_a_replica_of_a_cluster_that_has_the_id_of_a_node_needs_another_one(tmp_path: Path) -> None:
    replica = {**NODE, "port": "2", "wsrep_on": "OFF", "wsrep_provider": "none"}
    assert check(tmp_path, NODE, replica) & {Rule.SERVER_ID_CLASH, Rule.SEVERAL_WRITERS} == {Rule.SERVER_ID_CLASH}


def test_a_group_of_several_members_makes_a_failover_lossless(tmp_path: Path) -> None:
    named = {**RIGHT, "group_replication_group_name": "5f0d1f3e-0000-0000-0000-000000000001"}
    for members in (0, 1, 2):
        found = check(tmp_path, named, RIGHT, lossless=True, members=members)
        assert (Rule.LOSSLESS in found) == (members < 2)


@pytest.mark.parametrize("follows", [True, False])
def test_a_second_writable_server_that_follows_nobody_may_be_the_true_primary(tmp_path: Path, follows: bool) -> None:
    """As after a crash, if the previous primary comes back as it was: only an operator knows which one is right."""
    nothing = empty_position("mysql")
    state = ServerState("b", nothing, nothing, follows, "", "", {})
    found = [each for each in find(tmp_path, RIGHT, RIGHT, state=state) if each.rule is Rule.ADOPTION_BLOCKED]
    assert [each.statements for each in found] == [("SET PERSIST read_only = ON",) if follows else ()]
    assert follows or found[0].hint == "set read_only on all but the primary"
