"""Rules for cache nodes whose answers no server at hand gives; the answers are as their documentation has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from freshness.algorithm.envelope import NodeRecord
from freshness.config.config import Config, load_config
from freshness.objects.nodepolicy import placements_of
from freshness.position import MysqlGtidSet
from invalidator.rules.node import NodeFacts, check_record
from invalidator.rules.rule import Rule

INFO = {"redis_version": "7.2.4", "role": "master", "maxmemory": "67108864", "maxmemory_policy": "allkeys-lru"}
CONFIG = {"save": "", "timeout": "0"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "freshness.toml"
    path.write_text(
        '[cache]\nnodes = ["10.0.0.1:6379"]\nnamespace = "shop"\nbackend = "redis"\nstripes = 1024\n'
        '[keyspaces.shop]\nflavor = "mysql"\n'
        '[[keyspaces.shop.shards]]\nprimary = "mysql://app:app@10.0.0.2/shop"\n'
        '[objects.customer]\ntable = "customers"\n'
    )
    return load_config(path)


def rules(config: Config, info: dict[str, str], answers: dict[str, str] = CONFIG) -> set[Rule]:
    facts = NodeFacts("10.0.0.1:6379", "redis", {"INFO": {**INFO, **info}, "CONFIG": answers})
    return {each.rule for each in facts.check(config)}


def test_a_right_redis(config: Config) -> None:
    assert rules(config, {}) == set()


def test_nodes_that_changed_under_the_same_topology(config: Config) -> None:
    """The record serves other nodes than the file names."""
    node, other = "10.0.0.1:6379", "10.0.0.9:6379"
    changed = replace(config, cache=replace(config.cache, nodes=(node, other)))
    both = replace(config, cache=replace(changed.cache, previous_nodes=(node,)))
    nothing, life = MysqlGtidSet(), b"lifelife"

    def find(file: Config, *rings: Config, topology: int = 1) -> list[str]:
        ring, *others = (placements_of(each.cache)[0].ring_version for each in rings)
        record = NodeRecord("s", life, life, True, 1, ring, 0, 0, node, 1, nothing, nothing, topology=topology)
        record = replace(record, starts=dict.fromkeys(others, nothing))
        return [each.message for each in check_record(node, record, None, "s", "", file)]

    assert find(config, config) == find(both, config, changed) == []
    assert "with other cache.nodes or another cache.namespace" in find(changed, config)[0]
    for file, rings in ((both, [config]), (changed, [config, changed])):
        [lacks] = find(file, *rings)
        assert "with other cache.nodes or cache.previous_nodes under the same topology 1" in lacks
        assert find(replace(file, topology=2), *rings) == [], "the next file"
    [later] = find(changed, config, changed, topology=2)
    assert "topology 2 of s is in force" in later


def test_a_right_valkey(config: Config) -> None:
    assert rules(config, {"server_name": "valkey", "valkey_version": "8.1.1"}) == set()


@pytest.mark.parametrize("info", [{"dragonfly_version": "df-v1.23.0"}, {"mvcc_depth": "0"}])
def test_other_servers_that_speak_redis(config: Config, info: dict[str, str]) -> None:
    assert rules(config, info) == {Rule.OTHER_CACHE}


def test_a_service_that_hides_its_configuration(config: Config) -> None:
    """ElastiCache and Memorystore refuse CONFIG, and tell the bound of memory in INFO all the same."""
    assert rules(config, {}, {}) == {Rule.CONFIG_HIDDEN}
    assert rules(config, {"maxmemory_policy": "noeviction"}, {}) == {Rule.CONFIG_HIDDEN, Rule.NO_EVICTION}
    assert rules(config, {"cluster_enabled": "1"}, {}) == {Rule.CONFIG_HIDDEN, Rule.REDIS_CLUSTER}
    assert rules(config, {"role": "slave"}, {}) == {Rule.CONFIG_HIDDEN, Rule.REDIS_REPLICA}


def test_many_connections_are_open(config: Config) -> None:
    few = {"maxclients": "1000", "connected_clients": "800", "rejected_connections": "0"}
    assert rules(config, few) == set()
    assert rules(config, {**few, "connected_clients": "801"}) == {Rule.NODE_CONNECTIONS}
    assert rules(config, {**few, "rejected_connections": "1"}) == {Rule.NODE_CONNECTIONS}


def test_memory_for_the_stripes_of_all_shards(config: Config) -> None:
    """65,536 stripes of about 100 bytes."""
    config = replace(config, cache=replace(config.cache, stripes=65_536))
    assert rules(config, {"maxmemory": str(14 << 20)}) == set()
    assert rules(config, {"maxmemory": str(12 << 20)}) == {Rule.SMALL_NODE}


@pytest.mark.parametrize(
    ("ahead", "found"), [(0.0, set()), (60.0, set()), (61.0, {Rule.CLOCK}), (-61.0, {Rule.CLOCK})]
)
def test_a_clock_that_differs(config: Config, ahead: float, found: set[Rule]) -> None:
    facts = NodeFacts("10.0.0.1:6379", "redis", {"INFO": INFO, "CONFIG": CONFIG}, ahead)
    assert {each.rule for each in facts.check(config)} == found
