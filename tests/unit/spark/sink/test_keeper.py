"""The keeper's composition: which server it writes to and asks, and whose positions it reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.config.settings import Config, Keyspace, ServerAddress, Shard
from freshness.config.vtgate_address import VtgateAddress
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import empty_position
from spark.sink import keeper
from spark.sink.keeper import Keeper
from tests.unit.invalidator.archive.archive_world import make_config


class Stand:
    """Stands in for everything that connects, and says to what."""

    asked: list[tuple[str, ServerAddress, str]]

    def __init__(self, kind: str, *arguments: Any) -> None:
        if kind != "Pulse":
            self.asked.append((kind, arguments[0], arguments[1]))

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ServerAddress, str]]:
    Stand.asked = []
    for kind in ("HeartbeatWriter", "Primary", "Pulse"):
        monkeypatch.setattr(keeper, kind, lambda *arguments, _kind=kind: Stand(_kind, *arguments))
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
