"""The catalogue of failures holds: what it claims has tests, what it names exists, and what is cited is in it."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from docs.generate import PAGES, PLANTED_BUGS, STATUSES, Failure, load_failures, render
from tests.simulation.bugs import PLANTED

CHECKOUT = PAGES.parent
FAILURES = load_failures()
PAGE = PAGES / "failure-modes.md"
CITATION = re.compile(r"\bF([1-9]\d{0,2})\b")
CITING = {".py", ".md", ".toml"}
PRODUCTION = ("freshness.", "invalidator.", "appclient.", "spark.")


@functools.cache
def _tests_of(path: str) -> dict[str, ast.FunctionDef]:
    """Every test of a file by its pytest id after the path; a class also has the tests that it inherits from a class
    of the same file."""
    module = ast.parse((CHECKOUT / path).read_text())
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}

    def methods(of: ast.ClassDef) -> Iterator[ast.FunctionDef]:
        for base in of.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                yield from methods(classes[base.id])
        yield from (node for node in of.body if isinstance(node, ast.FunctionDef))

    found = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    for name, node in classes.items():
        if name.startswith("Test"):
            found |= {f"{name}::{method.name}": method for method in methods(node)}
    return {name: node for name, node in found.items() if name.split("::")[-1].startswith("test_")}


def _problem(test: str) -> str | None:
    path, _, name = test.partition("::")
    if path == PLANTED_BUGS:
        return None if name in PLANTED else f"the simulator plants no bug {name!r}"
    if not path.startswith(("tests/", "integration/")) or not (CHECKOUT / path).is_file():
        return f"there is no file {path}"
    return None if name in _tests_of(path) else f"there is no test {test}"


def _plants(test: str) -> bool:
    """Whether it takes a defence out of the production code: a bug of the simulator, or a test that patches one of
    our modules, or that alters the requests of a production procedure on their way (`World.answer_instead`, `order`).
    To patch the test's own world proves nothing."""
    path, _, name = test.partition("::")
    if path == PLANTED_BUGS:
        return True
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    return any(_patches_production(node, vars(module)) for node in _reached_from(path, _tests_of(path)[name]))


def _reached_from(path: str, test: ast.FunctionDef) -> Iterator[ast.AST]:
    """Everything in a test, and in the functions of its file that it names, one through another."""
    helpers = {
        node.name: node
        for node in ast.parse((CHECKOUT / path).read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_")
    }
    coming = [test]
    while coming:
        for node in ast.walk(coming.pop()):
            yield node
            if isinstance(node, ast.Name) and node.id in helpers:
                coming.append(helpers.pop(node.id))


def _patches_production(node: ast.AST, names: Mapping[str, object]) -> bool:
    match node:
        case ast.Call(args=[_, ast.Constant(value="connect"), *_]):
            return False  # a server of the test's own
        case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(target)), *_]):
            return target.startswith(PRODUCTION)
        case ast.Call(
            func=ast.Attribute(attr="setattr"), args=[ast.JoinedStr(values=[ast.Constant(value=str(target)), *_]), *_]
        ):
            return target.startswith(PRODUCTION)
        case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Name(id=name), *_]) if name in names:
            return _home_of(names[name]).startswith(PRODUCTION)
        case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Attribute() as target, *_]):
            text = ast.unparse(target)
            found = text.split(".")[0] in names and eval(text, dict(names))  # of our own file
            return _home_of(found).startswith(PRODUCTION)
        case ast.Attribute(attr="answer_instead" | "order", ctx=ast.Store()):
            return True
    return False


def _home_of(target: object) -> str:
    """The module of a class, or a module's own name; with a dot at its end."""
    found = target.__name__ if isinstance(target, ModuleType) else getattr(target, "__module__", "")
    return f"{found}."


def _cited() -> Iterator[tuple[str, str]]:
    """(where, number) of every citation in files under version control."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    for name in listing.stdout.split("\0"):
        path = CHECKOUT / name
        if path.suffix not in CITING or path == PAGE or not path.is_file():
            continue
        for line, text in enumerate(path.read_text().splitlines(), 1):
            for number in CITATION.findall(text):
                yield f"{name}:{line}", f"F{number}"


def test_numbers_are_without_a_gap() -> None:
    assert [one.number for one in FAILURES] == [f"F{n}" for n in range(1, len(FAILURES) + 1)]
    assert len(FAILURES) >= 100, "numbers are stable: none is taken away"


@pytest.mark.parametrize("one", FAILURES, ids=lambda one: one.number)
class TestEveryFailure:
    def test_it_is_told_in_full(self, one: Failure) -> None:
        assert one.status in STATUSES
        assert one.title
        assert not one.title.endswith(".")
        assert one.known_from
        assert one.what.endswith(".")

    def test_its_tests_exist(self, one: Failure) -> None:
        assert [problem for test in (*one.tests, *one.planted) if (problem := _problem(test))] == []
        assert len({*one.tests, *one.planted}) == len(one.tests) + len(one.planted)

    def test_a_defence_has_tests_and_is_planted_out_or_says_why_not(self, one: Failure) -> None:
        if one.status == "defended":
            assert one.tests or one.planted
            assert bool(one.planted) != bool(one.unplanted)
        assert [test for test in one.planted if not _plants(test)] == []


def test_whatever_is_cited_is_in_the_catalogue() -> None:
    known = {one.number for one in FAILURES}
    cited = list(_cited())
    assert len(cited) > 200
    assert [f"{where} cites {number}" for where, number in cited if number not in known] == []


def test_citations_are_found_and_other_names_are_not() -> None:
    found = CITATION.findall(f"(F28, F29); F1: F{104} is none of ours; F21-F23; UTF8, F0, 0xF2, F2a, F16C, Fx")
    assert found == ["28", "29", "1", "104", "21", "23"]


def test_the_page_is_made_from_the_catalogue() -> None:
    text = PAGE.read_text()
    assert render(text) == text, "run: make docs"
    rows = re.findall(r'^\| <a id="f(\d+)"></a>F\1 \|', text, re.MULTILINE)
    assert sorted(map(int, rows)) == list(range(1, len(FAILURES) + 1))


def test_a_plant_in_the_tests_own_world_is_noticed() -> None:
    assert _plants("tests/schedules/test_defences.py::test_lease_follows_the_own_heartbeat")
    assert _plants("tests/schedules/test_stripes.py::test_an_absent_stripe_refuses"), "by a helper"
    assert _plants("tests/schedules/test_defences.py::test_fill_is_by_cas"), "by another request"
    for name in (
        "test_defences.py::test_token_is_what_a_server_shows",  # another server of the world
        "test_defences.py::test_token_is_read_before_rows",  # a switch of the world
        "test_holes.py::test_no_answer_is_never_a_default_answer",  # another transport of the world
    ):
        assert not _plants(f"tests/schedules/{name}"), name


def test_a_test_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    assert _problem("tests/schedules/test_defences.py::test_fill_is_by_cas") is None
    assert _problem("tests/contract/test_backends.py::TestMemory::test_delete") is None
    for name in (
        "tests/schedules/test_defences.py::prove",
        "tests/schedules/test_defences.py::test_nothing",
        "tests/contract/test_backends.py::BackendContract::test_delete",
        "tests/unit/test_nowhere.py::test_fill_is_by_cas",
        "tests/simulation/bugs.py::no such bug",
        str(tmp_path),
    ):
        assert _problem(name) is not None, name
