"""Tests on a real broker of Kafka: `make kafka` runs them; they need its jars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.servers.kafka import Kafka

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("kafka")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """One broker for the run. A test may restart it, and has topics of its own."""
    with Kafka() as broker:
        yield broker
