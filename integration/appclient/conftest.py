"""What several tests of the library start once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from integration.appclient.sessions import running_tenants
from integration.harness import System
from integration.servers import Flavor, Pair


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Pair], System]]:
    """The shop beside another tenant's on each pair, started when it is first asked for."""
    with ExitStack() as stack:
        running: dict[Flavor, System] = {}

        def start(pair: Pair) -> System:
            flavor = pair.primary.flavor
            if flavor not in running:
                running[flavor] = stack.enter_context(running_tenants(pair, tmp_path_factory.mktemp(flavor)))
            return running[flavor]

        yield start
