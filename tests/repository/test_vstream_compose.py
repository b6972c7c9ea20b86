"""The compose file of Vitess has Compose's shape, and publishes on loopback what its tests ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).resolve().parent.parent.parent / "compose"


def test_the_service_is_of_known_shape_and_on_loopback() -> None:
    services: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "vitess.yaml").read_text())["services"]
    (service,) = services.values()
    assert set(service) == {"image", "environment", "ports", "healthcheck"}
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    environment = service["environment"]
    assert len(environment["KEYSPACES"].split(",")) == len(environment["NUM_SHARDS"].split(","))
    # Vitess's test server: gRPC is one above PORT, the MySQL protocol three.
    published = {int(port.rsplit(":", 1)[1]) for port in service["ports"]}
    assert published == {int(environment["PORT"]) + 1, int(environment["PORT"]) + 3}
    named = set(map(int, re.findall(r"127\.0\.0\.1:(\d+)/", (COMPOSE / "test_vitess.py").read_text())))
    assert named == published
