"""Each function that applications import documents its parameters, its answer and its errors."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

import pytest

from docs.site import PUBLIC

LIBRARY_ONLY: Final = {
    "AsyncCache.column_types",
    "AsyncCache.create",
    "Cache.column_types",
    "CachedReads.check_zone",
    "CachedReads.fetch",
    "CachedSelect.load",
    "Database.find_shard",
    "Database.snapshot",
    "ErrorLine.of",
    "GtidConnection.connect",
    "LoaderConnection.end",
    "LoaderConnection.join",
    "OpenTelemetry.observe",
    "OwnPool.of",
    "PrometheusTelemetry.observe",
    "QueryResult.of",
}
"""What the library itself calls on objects of the application."""
MADE_BY_APPLICATIONS: Final = (
    "CachedReads",
    "FakeSystem",
    "Freshness",
    "OpenTelemetry",
    "PrometheusTelemetry",
    "ReadYourWrites",
    "TokenCookie",
)
"""Classes whose constructor is public. The library makes all others."""
_REFERENCE: Final = re.compile(r"(?:\bSee|\b[Aa]s|\bas by|are those of) `([\w.]+)`")
"""A "see" within a sentence is further reading."""


def find_public() -> dict[str, Any]:
    """Each public object by its name, as the application imports it."""
    found: dict[str, Any] = {}
    for module, names in PUBLIC.items():
        found |= {name: getattr(import_module(module), name) for name in names}
    return found


def find_functions(name: str, item: Any) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """The function, or the public methods of the class: name, function, documentation."""
    if inspect.isfunction(item):
        yield name, item, inspect.getdoc(item) or ""
    elif inspect.isclass(item):
        for owner in reversed(item.__mro__):
            if not owner.__module__.startswith(("appclient", "freshness")):
                continue
            for own, value in vars(owner).items():
                function = inspect.unwrap(getattr(value, "__func__", value))
                is_public = own == "__init__" if name in MADE_BY_APPLICATIONS else False
                if not inspect.isfunction(function) or not (is_public or own[0] != "_"):
                    continue
                about = item.__doc__ if own == "__init__" else inspect.getdoc(function)
                yield f"{name}.{own}", function, about or ""


FUNCTIONS: Final = {
    name: (function, text)
    for public, item in find_public().items()
    for name, function, text in find_functions(public, item)
    if name not in LIBRARY_ONLY
}


def read_with_references(name: str, text: str) -> str:
    """The documentation with that of the functions and classes that it refers to."""
    whole, seen, waiting = "", {name}, [(name, text)]
    while waiting:
        owner, text = waiting.pop()
        whole += text + "\n"
        for reference in _REFERENCE.findall(" ".join(text.split())):
            full = reference if reference in FUNCTIONS else f"{owner.partition('.')[0]}.{reference}"
            if full in FUNCTIONS and full not in seen:
                seen.add(full)
                waiting.append((full, FUNCTIONS[full][1]))
        if name.endswith(".open") and "the class" in text:
            whole += find_public()[owner.partition(".")[0]].__doc__
    return whole


def find_raised(function: Callable[..., Any]) -> set[str]:
    """The classes of errors that the function itself raises."""
    if function.__code__.co_filename.startswith("<"):
        return set()  # of a dataclass
    raised = [
        node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        if isinstance(node, ast.Raise)
    ]
    return {each.id for each in raised if isinstance(each, ast.Name) and each.id[0].isupper()}


def find_gaps(name: str, function: Callable[..., Any], text: str) -> list[str]:
    """The parameters and errors that the documentation does not name; "text" without any."""
    whole = read_with_references(name, text)
    parameters = [each for each in inspect.signature(function).parameters if each not in ("self", "cls", "options")]
    gaps = [each for each in parameters if not re.search(rf"``{each}``", whole)]
    gaps += [each for each in sorted(find_raised(function)) if each not in whole]
    return gaps if text.strip() else ["text", *gaps]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_parameters_answer_and_errors_are_documented(name: str) -> None:
    assert find_gaps(name, *FUNCTIONS[name]) == []


def test_what_the_library_alone_uses_is_there() -> None:
    found = {name for public, item in find_public().items() for name, *_ in find_functions(public, item)}
    assert found >= LIBRARY_ONLY
    assert set(MADE_BY_APPLICATIONS) <= find_public().keys()


def test_a_gap_is_found() -> None:
    def load(key: str, *, shard: str) -> str:
        """The value of ``key``. See `Cache.get`."""
        if not key:
            raise LookupError(shard)
        return key

    assert find_gaps("load", load, inspect.getdoc(load) or "") == ["shard", "LookupError"]
    assert find_gaps("load", load, "") == ["text", "key", "shard", "LookupError"]
    assert find_gaps("load", load, "``key`` and ``shard``. Raises LookupError.") == []
    assert find_gaps("load", load, "See `Database.query`. ``key``. Raises LookupError.") == []
