"""A node that hangs: one read waits for it, and the others read on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from appclient import Cache
from appclient.connection import breaker
from appclient.connection.breaker import Breakers, GuardedNode
from appclient.database.shard import ShardDatabase
from freshness.algorithm.request import MISSING, Get, Reply, Request
from freshness.algorithm.rule import ReadOutcome
from freshness.config.access import NodeAccess
from freshness.config.config import load_config
from freshness.errors import NodeTimedOut, NodeUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore
from tests.unit.appclient.test_cache import CONFIG

HUNG, HEALTHY = "127.0.0.1:21", "127.0.0.1:22"
TIMEOUT_SECONDS = 1.0
ASKED: list[Request] = [Get(b"shop:customer:1")]


@dataclass
class Network:
    """Nodes and their clock. A node of ``hung`` answers nothing; ``seconds``: how long it takes to see that."""

    now: float = 1000.0
    seconds: float = TIMEOUT_SECONDS
    hung: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    failure: type[NodeUnavailable] = NodeTimedOut

    def open(self, _: NodeAccess, name: str) -> HangingNode:
        return HangingNode(name, self)

    def clock(self) -> float:
        return self.now


class HangingNode:
    """A connection to a node of the network."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self._network = network
        self._inner = MemoryNode(MemoryStore(name, clock=network.clock))
        self.close = self._inner.close

    def _ask(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        network = self._network
        network.asked.append(self.name)
        if self.name in network.hung:
            network.now += network.seconds
            raise network.failure(f"{self.name} did not answer")
        return ask(*arguments)

    def send(self, requests: Sequence[Request]) -> None:
        self._inner.send(requests)  # it fits into the buffers of a node that hangs, too

    @property
    def is_connected(self) -> bool:
        return self.name not in self._network.closed

    def connect(self) -> None:
        self._ask(self._inner.connect)
        self._network.closed.discard(self.name)

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        return list(self._ask(self._inner.receive))

    def find(self, key: bytes) -> bytes | None:
        found: bytes | None = self._ask(self._inner.find, key)
        return found

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        return list(self._ask(self._inner.perform, requests))


@pytest.fixture
def network() -> Network:
    return Network(hung={HUNG})


def guard(network: Network) -> Breakers:
    return Breakers([HUNG, HEALTHY], lambda name: network.open(NodeAccess("memory"), name), ASKED[0])


@pytest.fixture
def breakers(network: Network, monkeypatch: pytest.MonkeyPatch) -> Breakers:
    """Those of the network, whose thread does nothing: the test asks."""
    monkeypatch.setattr(Breakers, "_run", lambda _: None)
    return guard(network)


def connect(network: Network, breakers: Breakers, name: str = HUNG) -> GuardedNode:
    return GuardedNode(network.open(NodeAccess("memory"), name), breakers)


def fail(node: GuardedNode) -> str:
    with pytest.raises(NodeUnavailable) as failure:
        node.perform(ASKED)
    return failure.value.message


def test_after_one_wait_nobody_waits_until_a_probe_has_an_answer(network: Network, breakers: Breakers) -> None:
    mine, another = connect(network, breakers), connect(network, breakers)
    assert fail(mine) == f"{HUNG} did not answer"
    assert fail(another) == f"{HUNG} did not answer a moment ago, and is left alone until it does"
    with pytest.raises(NodeUnavailable):
        another.send(ASKED)
    assert network.asked == [HUNG]
    breakers.ask()
    assert "left alone" in fail(mine), "it still hangs"
    network.hung.clear()
    breakers.ask()
    assert mine.perform(ASKED) == [MISSING]
    assert another.perform(ASKED) == [MISSING]


def test_a_wait_for_the_answers_of_a_flow_counts_as_well(network: Network, breakers: Breakers) -> None:
    mine = connect(network, breakers)
    mine.send(ASKED)
    with pytest.raises(NodeUnavailable):
        mine.receive()
    assert "left alone" in fail(mine)


def test_a_wait_for_one_item_counts_as_well(network: Network, breakers: Breakers) -> None:
    mine = connect(network, breakers)
    for says in ("did not answer", "left alone"):
        with pytest.raises(NodeUnavailable, match=says):
            mine.find(b"k")
    assert connect(network, breakers, HEALTHY).find(b"k") is None


def test_a_connection_that_times_out_counts_as_well(network: Network, breakers: Breakers) -> None:
    network.closed.add(HUNG)
    mine = connect(network, breakers)
    with pytest.raises(NodeUnavailable):
        mine.connect()
    assert "left alone" in fail(mine)
    assert mine.is_connected, "nobody tries again meanwhile"


def test_a_node_that_fails_at_once_is_asked_each_time(network: Network, breakers: Breakers) -> None:
    network.failure = NodeUnavailable
    mine = connect(network, breakers)
    fail(mine)
    fail(mine)
    assert network.asked == [HUNG] * 2


def test_the_thread_that_asks_ends_when_all_nodes_answer_and_begins_anew(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PROBE_SECONDS", 0.001)
    breakers = guard(network)
    for _ in range(2):
        network.hung.add(HUNG)
        fail(connect(network, breakers))
        network.hung.clear()
        for thread in threading.enumerate():
            if thread.name == "cache node probe":
                thread.join()
        assert not breakers.opened[HUNG]
    assert connect(network, breakers).perform(ASKED) == [MISSING]


def test_a_probe_that_fails_otherwise_is_begun_anew(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would never try the node again."""
    monkeypatch.setattr(breaker, "PROBE_SECONDS", 0.001)
    run, begun = Breakers._run, []
    monkeypatch.setattr(Breakers, "_run", lambda _: begun.append("a thread"))
    breakers = guard(network)
    node = connect(network, breakers)
    fail(node)

    def ask(_: Breakers) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Breakers, "ask", ask)
    with pytest.raises(ZeroDivisionError):
        run(breakers)
    fail(node)
    assert begun == ["a thread"] * 2


def test_a_forked_process_asks_by_a_thread_of_its_own(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(Breakers, "_run", lambda _: begun.append(os.getpid()))
    breakers = guard(network)
    node = connect(network, breakers)
    fail(node)
    fail(node)
    child = os.getpid() + 1
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: child)
    fail(node)
    assert begun == [parent, child]


# -- a cache of two nodes ------------------------------------------------------------------------------------------


@pytest.fixture
def cache(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Of a database in which no customer exists."""
    schema: list[Any] = [(KeyColumn("id", ColumnKind.INTEGER),)]
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: schema.pop() if schema else ([], None))
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.replace(f'"{HUNG}"', f'"{HUNG}", "{HEALTHY}"'))
    return Cache(load_config(path, {}), open_node=network.open, clock=network.clock)


def read_in_threads(cache: Cache) -> list[ReadOutcome]:
    """Each of three threads reads forty keys of both nodes, one after the other."""
    outcomes: list[ReadOutcome] = []

    def read() -> None:
        for key in range(40):
            outcomes.append(cache.get("customer", key, explain=True).outcome)

    for _ in range(3):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    return outcomes


def test_threads_are_not_held_up_by_a_node_that_hangs(
    cache: Cache, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breakers, "_run", lambda _: None)
    outcomes = read_in_threads(cache)
    assert network.asked.count(HUNG) == 1
    assert network.now == 1000.0 + TIMEOUT_SECONDS
    down = outcomes.count(ReadOutcome.NODE_DOWN)
    assert 0 < down < len(outcomes), "the keys of both nodes are read"
    assert network.asked.count(HEALTHY) >= len(outcomes) - down


def test_where_no_breaker_opens_every_read_waits(
    cache: Cache, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breakers, "trip", lambda *_: None)
    down = read_in_threads(cache).count(ReadOutcome.NODE_DOWN)
    assert network.now == 1000.0 + down * TIMEOUT_SECONDS
