"""Tests on a real Vitess: `make vitess` runs them; building it needs Go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.servers.vitess import Vitess

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("vitess")


@pytest.fixture(scope="session")
def vitess() -> Iterator[Vitess]:
    """One shard with two tablets, for the run. Tests that break a tablet start a cluster of their own."""
    with Vitess() as cluster:
        yield cluster
