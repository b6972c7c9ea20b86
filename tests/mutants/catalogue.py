"""The list of mutants, as it stands in the ``*.toml`` beside this file.

Each file of the production code is a ``[[file]]`` with its ``path`` and its ``tests``: files or node ids of pytest,
in the lowest layer that can show it. Each ``[[file.mutant]]`` of it has

* ``find``, a piece of that file that stands in it exactly once, and ``put``, which takes its place;
* ``breaks``, in one sentence, what goes wrong then;
* ``tests``, if other tests than those of the file must notice it;
* ``equivalent``, if nothing goes wrong: the reason. Such a mutant must survive;
* ``is_sample``: it is one of the few that `make full` tries.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
PRODUCTION: Final = ("freshness/", "invalidator/", "appclient/", "spark/")


@dataclass(frozen=True, slots=True)
class Mutant:
    """``path`` and ``tests`` are relative to the top of the tree; see the module for the rest."""

    path: str
    find: str
    put: str
    breaks: str
    tests: tuple[str, ...]
    equivalent: str = ""
    is_sample: bool = False

    def apply(self, tree: Path) -> str:
        """The file's text with this change. Raises `ValueError` unless the piece occurs in it exactly once."""
        text = (tree / self.path).read_text()
        if (count := text.count(self.find)) != 1:
            raise ValueError(f"{self.path} has it {count} times: {self.find!r}")
        if self.find.split() == self.put.split():
            raise ValueError(f"{self.path}: nothing changes: {self.put!r}")
        return text.replace(self.find, self.put)

    def check(self, tree: Path) -> None:
        """Raises as `apply`, and `SyntaxError` if the result is not Python. For the main thread: two threads that
        parse at once fail in Python 3.11."""
        ast.parse(self.apply(tree))


def load(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants of a folder's files, in order."""
    return [mutant for path in sorted(folder.glob("*.toml")) for mutant in _read(path)]


def _read(path: Path) -> Iterator[Mutant]:
    for file in tomllib.loads(path.read_text())["file"]:
        for entry in file["mutant"]:
            tests = tuple(entry.pop("tests", file["tests"]))
            yield Mutant(path=file["path"], tests=tests, **entry)


def missing_tests(mutant: Mutant, tree: Path) -> list[str]:
    """Those of its tests that the tree does not have, by file and by name; parameters of a test are not looked at."""
    return [test for test in mutant.tests if not _exists(test, tree)]


def _exists(test: str, tree: Path) -> bool:
    path, *names = test.partition("[")[0].split("::")
    if not (tree / path).exists():
        return False
    body = _parse(tree / path).body if names else []
    for name in names:
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
