"""For all tests: properties have no time limit, since a busy machine is not a failure; costly tests are marked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings

from tests.selection import mark_rest

settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Before ``-m`` chooses."""
    mark_rest(items)
