"""What a worker makes of its assignment, without servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.request import Streamed
from freshness.config.reader import load_config
from freshness.config.settings import Config
from freshness.errors import ConfigError
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import build_registry
from freshness.position import empty_position
from invalidator.process.metrics import Metrics
from invalidator.process.worker import Assignment, ShardWorker

CONFIG = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.shop]
flavor = "vitess"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
vtgate = "vitess://127.0.0.1:1/shop"
[objects.customer]
table = "customers"
[objects.profile]
key = "customer_id"
members = { customers = "id", orders = "customer_id" }
"""


def worker_of(folder: Path) -> ShardWorker:
    path = folder / "freshness.toml"
    path.write_text(CONFIG)
    config: Config = load_config(path, {})
    registry = build_registry(
        config, lambda _, __, name: (KeyColumn(name or "id", ColumnKind.INTEGER),), lambda *_: b""
    )
    keyspace = config.keyspaces["shop"]
    assignment = Assignment(
        "shop",
        keyspace.gtid_flavor,
        keyspace.shards[0],
        config.cache,
        config.cache.nodes,
        config.stream,
        registry,
    )
    return ShardWorker(assignment, Metrics().of_shard("shop/-"))


def test_vtgate_is_asked_for_the_columns_of_all_keys(tmp_path: Path) -> None:
    from invalidator.vstream.source import VStreamSource

    source = worker_of(tmp_path)._create_source({})
    assert isinstance(source, VStreamSource)
    assert source._stream._tables == {"customers": ("id",), "orders": ("customer_id",)}


def test_vitess_without_its_package_is_a_mistake_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "invalidator.vstream.source", None)
    with pytest.raises(ConfigError, match=r"pip install 'freshness\[vitess\]'"):
        worker_of(tmp_path)._create_source({})


class Following:
    """An invalidator and its pulse, as far as a restoration asks them."""

    def __init__(self) -> None:
        self.passed: Streamed | None = None
        self.hurried: list[float] = []

    def read_stream(self, _: float) -> Streamed | None:
        return self.passed

    def hurry(self, since: float) -> None:
        self.hurried.append(since)


def test_a_stripe_that_waits_for_a_heartbeat_makes_the_next_one_come_at_once(tmp_path: Path) -> None:
    following: Any = Following()
    restoration = worker_of(tmp_path)._create_restoration(following, following)
    assert [each.node for each in restoration.restorers] == ["127.0.0.1:11211"]
    ask = restoration._driver.read_stream
    assert ask(5.0) is None
    following.passed = Streamed(empty_position("mysql"), 1, 4.0)
    assert ask(5.0) is following.passed
    assert following.hurried == [5.0, 5.0]
    following.passed = Streamed(empty_position("mysql"), 1, 5.0)
    assert ask(5.0) is following.passed
    assert following.hurried == [5.0, 5.0], "it has come back"
