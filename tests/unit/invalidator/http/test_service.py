"""The HTTP service without servers: what it says before, while and after nodes are joined."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from freshness import __version__
from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import BlockingDriver, running_clock
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import Head
from freshness.config.access import NodeAccess
from freshness.config.config import Config, load_config
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.nodes.restoration import Restoration
from freshness.objects.keyfinder import KeyFinder
from freshness.position import MysqlGtidSet, empty_position
from freshness.stream.source import Heartbeat, Transaction
from integration.servers.process import find_free_port
from invalidator.http.service import create_api, open_socket
from invalidator.loop.shard import ShardInvalidator
from invalidator.process.app import Invalidator
from invalidator.process.assignment import Assignment
from invalidator.process.worker import MetricsObserver, ShardWorker

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NODES = ("127.0.0.1:21", "127.0.0.1:22")
POLICY = NodePolicy("shop", "shop/-", Placement(NODES, "shop").ring_version, {}, 64, 5, 4, 1)
LOCAL = "http://127.0.0.1"
STATUS = {"namespace": "shop", "nodes": [{"node": NODES[0], "state": "open"}]}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "freshness.toml"
    path.write_text(
        f"""[cache]
nodes = ["{NODES[0]}", "{NODES[1]}"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app:s3cr3t@127.0.0.1:1/shop"
"""
    )
    return load_config(path, {})


class Watched(Invalidator):
    """An invalidator of one shard, whose worker is not run."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        (keyspace,) = config.keyspaces.values()
        (shard,) = keyspace.shards
        cache = config.cache
        task = Assignment(keyspace.name, keyspace.flavor, shard, cache, cache.nodes, config.stream, {})
        self.worker = ShardWorker(task, self.metrics.of_shard(shard.lineage))

    @property
    def workers(self) -> list[ShardWorker]:
        return [self.worker]


@pytest.fixture
def invalidator(config: Config) -> Watched:
    return Watched(config)


@pytest.fixture
def worker(invalidator: Watched) -> ShardWorker:
    return invalidator.worker


@pytest.fixture
def client(invalidator: Invalidator) -> TestClient:
    return TestClient(create_api(invalidator, lambda: STATUS), base_url=LOCAL)


class Nodes:
    """The shard of a running invalidator, on nodes in memory."""

    def __init__(self) -> None:
        self.stores = {node: MemoryStore(node, clock=lambda: 1000.0) for node in NODES}
        nothing = empty_position("mysql")
        self.driver = BlockingDriver(
            {node: MemoryNode(store) for node, store in self.stores.items()},
            lambda _: None,
            read_head=lambda: Head(nothing, 1),
        )
        placement = Placement(NODES, "shop")
        self.shard = ShardInvalidator(
            members=create_members(NODES, POLICY, lambda: 1000.0, lambda: b"12345678", nothing),
            instance="me",
            clock=lambda: 1000.0,
            find_heartbeat=lambda _: 1000.0,
            streamed=nothing,
            placement=placement,
            finder=KeyFinder({}),
        )

    def join(self) -> None:
        self.driver.run(self.shard.join_missing())

    def open(self) -> None:
        """The invalidator's own heartbeat comes back: the joined nodes may be trusted."""
        beat = Heartbeat("me", 1, 0, 0, 1)
        self.driver.run(self.shard.apply([Transaction(MysqlGtidSet.of(SOURCE, 1), 0, heartbeats=(beat,))]))


def test_alive_from_the_start(client: TestClient) -> None:
    response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


BOTH = [f"{node} shop/-" for node in NODES]


def test_not_ready_before_the_nodes_are_known(client: TestClient, worker: ShardWorker) -> None:
    worker.failure = "127.0.0.1:1: connecting: refused"
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {
        "ready": False,
        "streams_not_open": ["shop/-"],
        "nodes_not_joined": BOTH,
        "nodes_not_open": [],
        "last_errors": {"shop/-": "127.0.0.1:1: connecting: refused"},
    }


def test_not_ready_without_any_shard(config: Config) -> None:
    assert (
        TestClient(create_api(Invalidator(config), lambda: STATUS), base_url=LOCAL).get("/readyz").status_code == 503
    )


def test_ready_when_every_node_is_joined_and_open_and_the_stream_is(client: TestClient, worker: ShardWorker) -> None:
    nodes = Nodes()
    worker.invalidator = nodes.shard
    worker.is_streaming = True
    nodes.join()
    response = client.get("/readyz")
    assert (response.status_code, response.json()["nodes_not_open"]) == (503, BOTH)
    nodes.open()
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json() == {
        "ready": True,
        "streams_not_open": [],
        "nodes_not_joined": [],
        "nodes_not_open": [],
        "last_errors": {},
    }
    worker.is_streaming = False
    response = client.get("/readyz")
    assert (response.status_code, response.json()["streams_not_open"]) == (503, ["shop/-"])
    worker.is_streaming = True
    nodes.shard.leave_all()
    response = client.get("/readyz")
    assert (response.status_code, response.json()["nodes_not_joined"]) == (503, BOTH)


def test_a_shard_that_does_not_serve_is_ready_with_closed_nodes(client: TestClient, worker: ShardWorker) -> None:
    nodes = Nodes()
    worker.invalidator = nodes.shard
    worker.is_streaming = True
    nodes.join()
    task = worker.assignment
    worker.assignment = replace(task, shard=replace(task.shard, serving=False))
    assert client.get("/readyz").status_code == 200


def test_not_ready_while_one_node_is_down(client: TestClient, worker: ShardWorker) -> None:
    nodes = Nodes()
    worker.invalidator = nodes.shard
    worker.is_streaming = True
    nodes.stores[NODES[1]].down = True
    nodes.join()
    nodes.open()
    response = client.get("/readyz")
    assert response.status_code == 503
    assert (response.json()["nodes_not_joined"], response.json()["nodes_not_open"]) == ([BOTH[1]], [])
    assert f"cache node {NODES[1]} is down" in response.json()["last_errors"]["shop/-"]


def test_the_stream_is_open_from_its_opening_to_its_end(worker: ShardWorker) -> None:
    observer = MetricsObserver(worker, Nodes().shard, lambda: 0.0)
    observer.stream_opened(MysqlGtidSet.of(SOURCE, 1))
    assert worker.is_streaming
    observer.stream_closed()
    assert not worker.is_streaming


def test_the_stripes_that_were_put_back_are_counted_once(
    client: TestClient, worker: ShardWorker, invalidator: Watched
) -> None:
    worker.restoration = Restoration(NodeAccess("memcached"), NODES, POLICY, lambda _: None, lambda _: None)
    first, second = worker.restoration.restorers
    observer = MetricsObserver(worker, Nodes().shard, lambda: 0.0)

    def shown() -> list[str]:
        names = "freshness_stripes_restored_total", "freshness_nodes_complete"
        lines = client.get("/metrics").text.splitlines()
        return [line.split()[1] for name in names for line in lines if line.startswith(f"{name}{{")]

    first.restored, second.restored = 3, 4
    observer.nodes_joined(2)
    assert shown() == ["7.0", "0.0"]
    second.restored, second._life, second._is_first_round = 5, b"lifelife", False
    observer.nodes_joined(2)
    assert shown() == ["8.0", "1.0"]


def test_a_worker_that_hangs_is_seen_in_its_metrics(
    client: TestClient, worker: ShardWorker, invalidator: Watched
) -> None:
    """They are made when they are asked for, since the worker's own thread may be the one that hangs."""
    names = "freshness_heartbeat_age_seconds", "freshness_nodes_closed"

    def shown() -> list[float]:
        lines = client.get("/metrics").text.splitlines()
        return [float(line.split()[1]) for name in names for line in lines if line.startswith(f"{name}{{")]

    nodes = Nodes()
    worker.invalidator = nodes.shard
    worker.created_at = running_clock() - 100
    age, closed = shown()
    assert (age >= 100, closed) == (True, 2), "since the worker began"
    worker.recent.note_heartbeat(running_clock(), running_clock() - 7)
    nodes.join()
    nodes.open()
    age, closed = shown()
    assert (7 <= age < 100, closed) == (True, 0)
    for member in nodes.shard.members.values():
        member.lease_until = member.clock() - 1
    assert shown()[1] == 2, "no lease"
    worker.assignment = replace(worker.assignment, shard=replace(worker.assignment.shard, serving=False))
    age, closed = shown()
    assert (isnan(age), closed) == (True, 0)


def commit_lags(worker: ShardWorker) -> tuple[float, float]:
    """(how many, their sum in seconds)"""
    samples = next(iter(worker.metrics.commit_lag_seconds.collect())).samples
    found = {sample.name.removeprefix("freshness_commit_lag_seconds"): sample.value for sample in samples}
    return found["_count"], found["_sum"]


def test_the_lag_of_a_batch_is_that_of_its_first_transaction(worker: ShardWorker) -> None:
    now_us = time.time_ns() // 1000
    first, second = now_us - 5_000_000_000, now_us - 10_000_000
    batch = [Transaction(MysqlGtidSet.of(SOURCE, n), at) for n, at in ((2, first), (3, second))]
    observer = MetricsObserver(worker, Nodes().shard, lambda: 0.0)
    observer.applied(batch, 0, running_clock())
    count, total = commit_lags(worker)
    assert count == 1
    assert total >= 5000
    # A clock that is behind the primary's, and a log that says nothing
    ahead, silent = (Transaction(MysqlGtidSet.of(SOURCE, 9), at) for at in (now_us + 3_600_000_000, 0))
    observer.applied([ahead], 0, running_clock())
    observer.applied([silent], 0, running_clock())
    assert commit_lags(worker) == (2, total)


def test_a_log_of_whole_seconds_tells_no_lag(worker: ShardWorker) -> None:
    worker.assignment = replace(worker.assignment, flavor="mariadb")
    batch = [Transaction(MysqlGtidSet.of(SOURCE, 2), 1)]
    MetricsObserver(worker, Nodes().shard, lambda: 0.0).applied(batch, 0, running_clock())
    assert commit_lags(worker) == (0, 0)


def test_metrics_are_this_invalidators_own(client: TestClient, invalidator: Watched) -> None:
    invalidator.worker.metrics.transactions.inc(7)
    invalidator.metrics.nodes_configured.set(2)
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert 'freshness_transactions_total{lineage="shop/-"} 7.0' in lines
    assert "freshness_nodes_configured 2.0" in lines
    other = TestClient(create_api(Watched(invalidator.config), lambda: STATUS), base_url=LOCAL)
    assert 'freshness_transactions_total{lineage="shop/-"} 0.0' in other.get("/metrics").text


def test_a_shard_that_is_gone_is_shown_no_more(client: TestClient, invalidator: Watched) -> None:
    invalidator.metrics.forget_shard("shop/-")
    assert "shop/-" not in client.get("/metrics").text


def test_status_is_what_the_nodes_say(client: TestClient) -> None:
    response = client.get("/v1/status")
    assert (response.status_code, response.json()) == (200, STATUS)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/status"])
def test_it_only_reads(client: TestClient, path: str) -> None:
    verbs: list[Callable[[str], Any]] = [client.post, client.put, client.delete]
    assert [verb(path).status_code for verb in verbs] == [405, 405, 405]


def test_the_paths_are_described_and_hold_no_secret(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    assert description["info"]["version"] == __version__
    assert {"/healthz", "/readyz", "/metrics", "/v1/status"} <= set(description["paths"])
    for path in ("/healthz", "/readyz", "/metrics", "/v1/status", "/openapi.json"):
        assert "s3cr3t" not in client.get(path).text


def test_a_response_does_not_wait_until_its_head_is_acknowledged() -> None:
    with (
        open_socket(f"127.0.0.1:{find_free_port()}", demands_token=False) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
