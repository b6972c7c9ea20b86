"""The overview of a running invalidator, on nodes in memory: states, problems with their remedies, reshards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.driver import running_clock
from freshness.config.access import NodeAccess
from freshness.config.config import load_config
from freshness.errors import SourceUnavailable, StreamStopped
from freshness.nodes.restoration import Restoration
from freshness.position import MysqlGtidSet
from invalidator.process.app import Invalidator
from invalidator.process.overview import POSITION_CHARACTERS_MAX, Overview
from invalidator.process.worker import ShardWorker
from tests.unit.invalidator.http.test_service import NODES, POLICY, SOURCE, Nodes, Watched, config

__all__ = ["config"]  # a fixture


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def invalidator(config: Any) -> Watched:
    return Watched(config)


@pytest.fixture
def worker(invalidator: Watched, nodes: Nodes) -> ShardWorker:
    """Streaming, with nodes that are open and complete."""
    worker = invalidator.worker
    worker.invalidator = nodes.shard
    worker.restoration = make_restoration()
    worker.is_streaming = worker.has_streamed = True
    nodes.join()
    nodes.open()
    now = running_clock()
    worker.recent.note_heartbeat(now, now - 0.0025)
    return worker


def make_restoration(*, is_complete: bool = True) -> Restoration:
    restoration = Restoration(NodeAccess("memcached"), NODES, POLICY, lambda _: None, lambda _: None)
    for each in restoration.restorers:
        each._life, each._is_first_round = b"lifelife", not is_complete
    return restoration


@pytest.fixture
def read(invalidator: Watched, worker: ShardWorker) -> Callable[[], dict[str, Any]]:
    overview = Overview(invalidator)

    def ask() -> dict[str, Any]:
        found = overview.read()
        assert "s3cr3t" not in json.dumps(found, allow_nan=False)
        return found

    return ask


def problems(found: dict[str, Any]) -> list[tuple[str, str]]:
    assert all(each["remedy"] and each["message"] for each in found["problems"])
    return [(each["severity"], each["where"]) for each in found["problems"]]


Read = Callable[[], dict[str, Any]]


def test_all_is_well(read: Read) -> None:
    found = read()
    assert (found["summary"], found["problems"], found["reshards"]) == ("All is well: 1 shard on 2 nodes", [], [])
    (shard,) = found["shards"]
    assert (shard["lineage"], shard["state"], shard["serving"]) == ("shop/-", "streaming", True)
    assert shard["position"] == f"{SOURCE}:1"
    assert 0.002 <= shard["lag_seconds"]["median"] == shard["lag_seconds"]["max"]
    assert [(each["node"], each["state"]) for each in found["nodes"]] == [(node, "open") for node in NODES]
    for node in found["nodes"]:
        assert node["lease_seconds_left"] > 0
        assert node["progress"] == f"{SOURCE}:1"
        assert node["has_all_stripes"] is True
        assert node["problem"] == ""


def test_before_anything_is_known(config: Any) -> None:
    found = Overview(Watched(config)).read()
    assert problems(found)[0] == ("warning", "shard shop/-")
    assert [each["state"] for each in found["nodes"]] == ["not joined"] * 2
    (shard,) = found["shards"]
    assert (shard["state"], shard["behind_seconds"], shard["position"]) == ("connecting", None, "")
    assert problems(Overview(Invalidator(config)).read()) == [("warning", "this process")]


def test_a_stream_that_is_not_open(read: Read, worker: ShardWorker) -> None:
    worker.is_streaming = False
    worker.failure = "127.0.0.1:1: refused (is it up?)"
    found = read()
    assert problems(found) == [("error", "shard shop/-")]
    assert "127.0.0.1:1: refused" in found["problems"][0]["message"]
    assert found["summary"] == "1 problem: shard shop/-"


@pytest.mark.parametrize(
    ("error", "state", "remedy"),
    [
        (StreamStopped("event 99 cannot be handled", hint="skip it"), "stopped", "skip it"),
        (SourceUnavailable("n:1: refused", hint="is it up?"), "waiting", "is it up?; it is tried again"),
    ],
)
def test_a_worker_that_has_ended(read: Read, worker: ShardWorker, error: Any, state: str, remedy: str) -> None:
    worker.ended_by = worker.failure = error
    found = read()
    assert found["shards"][0]["state"] == state
    (problem,) = found["problems"]
    assert error.message in problem["message"]
    assert (problem["severity"], problem["remedy"]) == ("error", remedy)


def test_a_bug_has_a_remedy_too(read: Read, worker: ShardWorker) -> None:
    worker.ended_by, worker.failure = ZeroDivisionError("by zero"), "by zero"
    assert "by zero" in read()["problems"][0]["message"]
    assert problems(read()) == [("error", "shard shop/-")]


def test_a_stream_that_stands_still_is_late_and_then_has_no_leases(read: Read, worker: ShardWorker) -> None:
    end = worker.assignment.cache.heartbeat_age_max_seconds
    assert read()["shards"][0]["leases_end_at_seconds"] == end
    worker.recent.begun_at = running_clock() - 0.75 * end
    assert problems(read()) == [("warning", "shard shop/-")]
    worker.recent.begun_at = running_clock() - end - 1
    assert problems(read()) == [("error", "shard shop/-")]
    assert "reads go to the database" in read()["problems"][0]["message"]


def test_heartbeats_that_do_not_come_back(read: Read, worker: ShardWorker) -> None:
    worker.failure = "no own heartbeat has come back"
    assert problems(read()) == [("error", "shard shop/-")]


def test_a_node_that_is_out(read: Read, nodes: Nodes) -> None:
    nodes.stores[NODES[1]].down = True
    nodes.driver.run(nodes.shard.renew())
    nodes.shard.leave_all()
    nodes.join()
    nodes.open()
    found = read()
    assert problems(found) == [("error", f"node {NODES[1]} of shop/-")]
    assert f"cache node {NODES[1]} is down" in found["problems"][0]["message"]
    up, down = found["nodes"]
    assert (up["state"], down["state"]) == ("open", "not joined")
    assert down["progress"] == ""


def test_a_lease_that_has_run_out(read: Read, nodes: Nodes) -> None:
    for member in nodes.shard.members.values():
        member.lease_until = member.clock() - 1
    found = read()
    assert [each["state"] for each in found["nodes"]] == ["lapsed", "lapsed"]
    assert [each["lease_seconds_left"] for each in found["nodes"]] == [None, None]
    assert problems(found) == [("error", f"node {node} of shop/-") for node in NODES]


def test_a_closed_node_is_told_once_and_by_its_cause(read: Read, worker: ShardWorker) -> None:
    young = Nodes()
    worker.invalidator = young.shard
    young.join()
    assert problems(read()) == [("warning", f"node {node} of shop/-") for node in NODES]
    worker.is_streaming = False
    assert problems(read()) == [("warning", "shard shop/-")]


def test_missing_stripes(read: Read, worker: ShardWorker) -> None:
    worker.restoration = make_restoration(is_complete=False)
    assert problems(read()) == [("warning", f"node {node} of shop/-") for node in NODES]


def test_a_shard_that_does_not_serve_has_closed_nodes_and_no_problem(
    read: Read, worker: ShardWorker, invalidator: Watched
) -> None:
    worker.assignment = replace(worker.assignment, shard=replace(worker.assignment.shard, serving=False))
    young = Nodes()
    worker.invalidator = young.shard
    young.join()
    found = read()
    assert [each["state"] for each in found["nodes"]] == ["closed", "closed"]
    assert found["problems"] == []


def test_a_reshard_is_told_by_the_shards_that_do_not_serve(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    shards = [("-", True), ("-80", False), ("80-", False)]
    path.write_text(
        'topology = 7\n[cache]\nnodes = ["127.0.0.1:21"]\nnamespace = "shop"\n[keyspaces.shop]\nflavor = "mysql"\n'
        'sharding = { column = "id", function = "hash" }\n'
        + "".join(
            f'[[keyspaces.shop.shards]]\nname = "{name}"\nserving = {str(serving).lower()}\n'
            f'primary = "mysql://app@127.0.0.1:1/shop{number}"\nlineage = "l{number}"\n'
            + ('continues = ["l0"]\n' if number == 1 else "")
            for number, (name, serving) in enumerate(shards)
        )
    )
    found = Overview(Invalidator(load_config(path, {}))).read()
    assert found["topology"] == 7
    assert found["reshards"] == [
        {
            "keyspace": "shop",
            "topology": 7,
            "shards": [
                {"lineage": "l1", "shard": "-80", "continues": ["l0"], "beside": ["l0"]},
                {"lineage": "l2", "shard": "80-", "continues": [], "beside": ["l0"]},
            ],
        }
    ]


def test_previous_nodes_are_told(invalidator: Watched, read: Read) -> None:
    assert read()["previous_nodes"] == []
    cache = replace(invalidator.config.cache, previous_nodes=("127.0.0.1:23",))
    invalidator.config = replace(invalidator.config, cache=cache)
    assert read()["previous_nodes"] == ["127.0.0.1:23"]


def test_a_long_position_is_cut_in_the_middle(read: Read, nodes: Nodes) -> None:
    scattered = MysqlGtidSet.parse(f"{SOURCE}:" + ":".join(str(number) for number in range(1, 999, 2)))
    nodes.shard.streamed = scattered
    (shard,) = read()["shards"]
    assert POSITION_CHARACTERS_MAX < len(shard["position"]) < POSITION_CHARACTERS_MAX + 5
    assert shard["position"].startswith(SOURCE)
    assert shard["position"].endswith(":997")
