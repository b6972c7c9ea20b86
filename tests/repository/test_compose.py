"""The compose file has the shape that Compose expects, and the settings without which a server loses changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from freshness.config.config import load_config

COMPOSE = Path(__file__).resolve().parent.parent.parent / "compose"
SERVICE_KEYS = {
    "image",
    "build",
    "command",
    "environment",
    "volumes",
    "depends_on",
    "healthcheck",
    "profiles",
    "restart",
}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    found: dict[str, dict[str, Any]] = document["services"]
    return found


def test_every_service_is_of_known_shape(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        assert ("image" in service) != ("build" in service), name
        assert set(service.get("depends_on", {})) <= set(services), name
        for dependency, condition in service.get("depends_on", {}).items():
            if condition == {"condition": "service_healthy"}:
                assert "healthcheck" in services[dependency], dependency
        for volume in service.get("volumes", []):
            assert (COMPOSE / volume.split(":")[0]).is_file(), volume


def test_the_servers_of_a_pair_have_ids_of_their_own(services: dict[str, dict[str, Any]]) -> None:
    commands = [services[name]["command"] for name in ("mariadb-primary", "mariadb-replica")]
    assert ["--server-id=1" in commands[0], "--server-id=2" in commands[1]] == [True, True]
    for command in commands:
        assert {"--log-bin=bin", "--binlog-format=ROW", "--binlog-row-metadata=FULL"} <= set(command)


def test_the_configuration_names_services_of_the_file(services: dict[str, dict[str, Any]]) -> None:
    config = load_config(COMPOSE / "freshness.toml", services["invalidator"]["environment"])
    hosts = {node.partition(":")[0] for node in config.cache.nodes}
    for keyspace in config.keyspaces.values():
        for shard in keyspace.shards:
            hosts |= {server.host for server in (shard.primary, *shard.replicas)}
    assert hosts == {"memcached-1", "memcached-2", "mariadb-primary", "mariadb-replica"}
