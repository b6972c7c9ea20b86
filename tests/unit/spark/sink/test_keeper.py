"""The keeper's composition: which server it writes to and asks, and whose positions it reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import Streamed
from freshness.config.access import NodeAccess
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import StreamStopped
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.nodes.restoration import Restoration
from freshness.position import empty_position
from spark.sink import keeper
from spark.sink.keeper import Keeper, LineageKeeper
from spark.sink.sender import Part, Ticket
from tests.unit.invalidator.archive.archive_world import NODES, make_config, make_registry


class Stand:
    """Stands in for everything that connects, and says to what. ``hurried``: heartbeats that were wanted at once."""

    asked: list[tuple[str, ServerAddress, str]]
    hurried: list[float]

    def __init__(self, kind: str, *arguments: Any) -> None:
        if kind != "Pulse":
            self.asked.append((kind, arguments[0], arguments[1]))

    def hurry(self, since: float) -> None:
        self.hurried.append(since)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ServerAddress, str]]:
    Stand.asked, Stand.hurried = [], []
    for kind in ("HeartbeatWriter", "Primary", "Pulse"):
        monkeypatch.setattr(keeper, kind, lambda *arguments, _kind=kind, **_: Stand(_kind, *arguments))
    monkeypatch.setattr(keeper, "open_node", lambda _, name: MemoryNode(MemoryStore(name, clock=lambda: 0.0)))
    return Stand.asked


@pytest.fixture
def behind_vtgate(tmp_path: Path) -> Config:
    config = make_config(tmp_path)
    address = ServerAddress("127.0.0.1", 1, "app", "", "shop")
    shard = Shard(primary=address, lineage="shop/-", vtgate=VtgateAddress("127.0.0.1", "shop"))
    return replace(config, keyspaces={"shop": Keyspace(name="shop", flavor="vitess", shards=(shard,))})


def test_heartbeats_and_heads_are_of_the_server_that_can_be_written(
    behind_vtgate: Config, asked: list[tuple[str, ServerAddress, str]]
) -> None:
    Keeper(behind_vtgate, {}).close()
    [shard] = behind_vtgate.keyspaces["shop"].shards
    assert [kind for kind, _, _ in asked] == ["HeartbeatWriter", "HeartbeatWriter", "Primary"]
    assert {(address, flavor) for _, address, flavor in asked} == {(shard.writable, "mysql")}
    assert shard.writable != shard.primary


@pytest.mark.usefixtures("asked")
def test_executors_read_positions_in_the_flavor_of_gtids(behind_vtgate: Config) -> None:
    made = Keeper(behind_vtgate, {})
    made.close()
    assert made.plan.flavors == {"shop/-": "mysql"}
    assert empty_position(made.plan.flavors["shop/-"]) == made.lineages["shop/-"].acknowledger.streamed


class Restoring(Restoration):
    """Puts nothing back: its thread is not started."""

    made: Restoring

    def __init__(self, access: NodeAccess, nodes: Any, policy: NodePolicy, *rest: Any) -> None:
        super().__init__(access, nodes, policy, *rest)
        self.of = policy.namespace, policy.lineage, tuple(nodes)
        self.read_stream, self.calls = self._driver.read_stream, list[str]()
        Restoring.made = self

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.usefixtures("asked")
def test_stripes_are_put_back_until_the_keeper_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "Restoration", Restoring)
    made = Keeper(make_config(tmp_path), {})
    assert Restoring.made.of == ("shop", "shop/-", NODES)
    assert Restoring.made.calls == ["start"]
    made.close()
    assert Restoring.made.calls == ["start", "stop"]


@pytest.mark.usefixtures("asked")
def test_a_heartbeat_that_a_missing_stripe_waits_for_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "Restoration", Restoring)
    made = Keeper(make_config(tmp_path), {})
    read_stream, acknowledger = Restoring.made.read_stream, made.lineages["shop/-"].acknowledger
    assert read_stream(5.0) is None
    acknowledger.passed = Streamed(empty_position("mysql"), 1, 7.0)
    assert read_stream(6.0) is acknowledger.passed
    assert read_stream(8.0) is acknowledger.passed
    assert Stand.hurried == [5.0, 8.0]
    made.close()


@pytest.mark.usefixtures("asked")
def test_a_statement_that_may_have_altered_keys_is_looked_at_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path)
    known = make_registry(config)
    found, looks, acknowledged = [known], list[tuple[Any, ...]](), list[Any]()

    def load(*arguments: Any) -> Any:
        looks.append(arguments)
        return found[-1]

    monkeypatch.setattr(keeper, "load_registry", load)
    monkeypatch.setattr(LineageKeeper, "commit", lambda _, parts, __: acknowledged.extend(parts))
    made = Keeper(config, known)
    ticket: Any = Ticket(1, {"shop/-": None})  # type: ignore[dict-item]
    changed, raised = Part("shop/-"), Part("shop/-", raised={"orders": empty_position("mysql")})
    made.commit(ticket, [changed])
    assert looks == []
    made.commit(ticket, [raised])
    made.require_keys(["shop/-", "elsewhere"])
    assert looks == [(config, ["shop"], "shop/-", known)] * 2
    found.append({**known, "profile": known["profile"].closed("its key is a text")})
    with pytest.raises(StreamStopped, match="the key columns of profile were altered on shop/-"):
        made.commit(ticket, [raised])
    assert acknowledged == [changed, raised]
    made.close()
