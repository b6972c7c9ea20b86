"""Applications import the same modules and names, whatever the rooms behind them."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final

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


def find_undocumented(named: Any) -> list[str]:
    """A public name of this project, and its public methods and properties, that have no docstring."""
    members = [(named.__name__, named)]
    if inspect.isclass(named):
        members += [(name, each) for name, each in inspect.getmembers(named) if not name.startswith("_")]
    written = [
        (name, getattr(each, "fget", each))
        for name, each in members
        if inspect.isclass(each) or inspect.isroutine(each) or isinstance(each, property)
    ]
    ours = [
        (name, each)
        for name, each in written
        if str(getattr(each, "__module__", "")).startswith(("appclient", "freshness"))
    ]
    return [name for name, each in ours if not (each.__doc__ if each is named else inspect.getdoc(each))]


@pytest.mark.parametrize(
    ("module", "name"),
    [*(("appclient", name) for name in appclient.__all__), *((key, name) for key in PUBLIC for name in PUBLIC[key])],
)
def test_a_name_and_its_methods_have_docstrings(module: str, name: str) -> None:
    assert find_undocumented(getattr(import_module(module), name)) == []


def test_a_method_without_a_docstring_is_found() -> None:
    kind: Any = type("Kind", (), {"__module__": "appclient.x", "of": lambda: None, "is_so": property(lambda _: None)})
    kind.of.__module__ = kind.is_so.fget.__module__ = "appclient.x"
    assert find_undocumented(kind) == ["Kind", "is_so", "of"]


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Cahce'"):
        getattr(appclient, "Cahce")  # noqa: B009


@pytest.mark.parametrize("module", [*PUBLIC])
def test_a_module_that_applications_import(module: str) -> None:
    imported = import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(imported, name)] == []
