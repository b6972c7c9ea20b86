"""For all tests: properties have no time limit, since a busy machine is not a failure, and the same examples in each
run, since chance is none either; `make long` takes others. Costly tests are marked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings

from tests.selection import mark

settings.register_profile("random", settings.default, deadline=None)
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Before ``-m`` chooses."""
    mark(items)
