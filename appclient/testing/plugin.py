"""The fixture ``freshness_system`` for pytest, by the entry point ``pytest11``.

It imports the library only when a test uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from appclient.testing import FakeSystem


@pytest.fixture
def freshness_system() -> Iterator[Callable[..., FakeSystem]]:
    """A function that makes a `FakeSystem` of the same arguments. At the end of the test it is closed, and the test
    fails if the cache has a hit that differs from the primary."""
    from appclient.testing import FakeSystem

    made: list[FakeSystem] = []

    def make(*arguments: Any) -> FakeSystem:
        made.append(FakeSystem(*arguments))
        return made[-1]

    yield make
    stale = [text for system in made for text in system.find_stale()]
    for system in made:
        system.close()
    if stale:
        pytest.fail("stale hits:\n" + "\n".join(stale), pytrace=False)
