"""A cluster of Galera with three nodes, each of which takes writes: it is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appclient import Cache
from freshness.database.cluster import REMEDY
from freshness.errors import SourceUnsuitable
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, call_cli, run_cli
from integration.servers import Memcached
from integration.servers.galera import GaleraCluster, galera_of_three

OPERATOR: Final = 4
NAMED: Final = "wsrep_on is ON: it is a node of a Galera cluster"


@pytest.fixture(scope="module")
def cluster() -> Iterator[GaleraCluster]:
    with galera_of_three() as formed:
        formed.nodes[0].execute(CUSTOMERS_TABLE, database="shop")
        yield formed


def test_it_is_refused_by_name_and_nothing_else_is_advised(cluster: GaleraCluster, tmp_path: Path) -> None:
    """Most advice would be wrong: the server ids of its nodes are equal on purpose, each of them is writable and
    follows nobody, and positions of replication say nothing."""
    primary, *others = [each.url for each in cluster.nodes]
    with Memcached() as node:
        shard = {"adopt_promotions": True}
        path = write_config(tmp_path, "mariadb", primary, [node.address], replicas=others, shard=shard)
        findings = json.loads(call_cli("check", "-c", path, "--json").stdout)
        assert {each["message"].partition(": ")[2] for each in findings} == {NAMED}
        assert {each["hint"] for each in findings} == {REMEDY}
        ran = run_cli("run", "-c", path)  # which looks for one writable server first
        assert ran.returncode == OPERATOR
        assert NAMED in ran.stderr
        assert REMEDY in ran.stderr
        with pytest.raises(SourceUnsuitable, match=NAMED) as refused:
            Cache.open(path)
        assert refused.value.hint == REMEDY
