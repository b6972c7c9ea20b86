"""Applications import the same modules and names, whatever the rooms behind them."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import pytest

import appclient

PUBLIC: Final = {
    "appclient.flask": ("Freshness",),
    "appclient.sqlalchemy": ("CachedReads",),
    "appclient.starlette": ("ReadYourWrites", "cache_lifespan", "request_reads", "thread_reads"),
    "appclient.testing": ("FakeSystem",),
    "appclient.testing.plugin": ("freshness_system",),
    "appclient.web": ("AsyncRequestReads", "RequestReads", "TokenCookie", "find_etag"),
}
"""Beside those of ``appclient.__all__``, and of Django, whose names need a project: see test_django.py."""


@pytest.mark.parametrize("name", appclient.__all__)
def test_a_name_of_the_package_is_there(name: str) -> None:
    assert getattr(appclient, name).__name__ == name
    assert name in dir(appclient)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Cahce'"):
        getattr(appclient, "Cahce")  # noqa: B009


@pytest.mark.parametrize("module", [*PUBLIC])
def test_a_module_that_applications_import(module: str) -> None:
    imported = import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(imported, name)] == []
