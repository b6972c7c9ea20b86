"""One system for each flavor, with the project of the tests on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appclient import Explanation
from integration.django.project import running_shop
from integration.harness import System
from integration.servers import Flavor, database_pair


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    flavor: Flavor = request.param
    with database_pair(flavor) as pair, running_shop(pair, tmp_path_factory.mktemp(flavor)) as made:
        yield made


@pytest.fixture
def reads(system: System) -> Iterator[list[Explanation]]:
    """Reads through the cache from now on."""
    from appclient.django import get_cache

    found: list[Explanation] = []
    get_cache().on_read = found.append
    yield found
    get_cache().on_read = None


@pytest.fixture
def stopped_replica(system: System) -> Iterator[None]:
    """The replica shows the past until the end of the test."""
    system.settle()
    system.pair.replica.stop_replication()
    yield
    system.pair.replica.start_replication()
    system.pair.wait_caught_up()
