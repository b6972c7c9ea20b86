"""The policy of a lineage's nodes is what the configuration says."""

from __future__ import annotations

from pathlib import Path

from freshness.algorithm.membership import NodePolicy
from freshness.config.config import load_config
from freshness.database.schema import keyspace_id
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.objects.nodepolicy import node_policy
from freshness.objects.registry import build_registry

TEXT = """
[cache]
nodes = ["a:1", "b:1"]
namespace = "shop"
stripes = 512
lease_seconds = 3
max_staleness_seconds = 20
node_refresh_seconds = 2
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:3306/shop"
[objects.customer]
table = "customers"
"""


def test_a_policy_has_the_settings_and_the_objects(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TEXT)
    config = load_config(path, {})
    definitions = build_registry(config, lambda *_: (KeyColumn("id", ColumnKind.INTEGER),), keyspace_id)
    policy = node_policy(config.cache, "shop/-", definitions, topology=3)
    assert policy == NodePolicy(
        namespace="shop",
        lineage="shop/-",
        ring=Placement(("a:1", "b:1"), "shop").ring_version,
        objects={"customer": definitions["customer"].policy.fingerprint},
        stripes=512,
        lease_seconds=3,
        heartbeat_age_max_seconds=20 - 2 * 3 - 2,
        node_refresh_seconds=2.0,
        topology=3,
    )
    assert not node_policy(config.cache, "shop/-", definitions, topology=3, is_serving=False).is_serving


def test_the_previous_nodes_are_a_ring_that_is_served_too(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TEXT.replace("namespace", 'previous_nodes = ["b:1", "c:1"]\nnamespace'))
    cache = load_config(path, {}).cache
    policy = node_policy(cache, "shop/-", {}, topology=3)
    rings = [Placement(nodes, "shop").ring_version for nodes in (("a:1", "b:1"), ("b:1", "c:1"))]
    assert (policy.ring, policy.rings) == (rings[0], set(rings))
    assert cache.all_nodes == ("a:1", "b:1", "c:1")
