"""One word, one meaning: no public class of the production code has the name of another one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("freshness", "invalidator", "appclient", "spark")


def find_public_types(folder: Path) -> dict[str, list[str]]:
    """Public classes and type aliases of a tree by their name → the files that define one. Generated code is left
    out."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        if path.stem.endswith("_pb2"):
            continue
        for node in ast.parse(path.read_text()).body:
            name = ""
            if isinstance(node, ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id if ast.unparse(node.annotation) == "TypeAlias" else ""
            if name and not name.startswith("_"):
                found[name].append(str(path.relative_to(folder.parent)))
    return found


def find_shared_names(folders: list[Path]) -> dict[str, list[str]]:
    """Names that several files define."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for name, files in find_public_types(folder).items():
            found[name] += files
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_public_name_stands_for_two_things() -> None:
    assert find_shared_names([CHECKOUT / package for package in PACKAGES]) == {}


def test_a_name_that_stands_twice_is_found(tmp_path: Path) -> None:
    for package, text in (("one", "class Verdict: ...\nclass _Own: ...\n"), ("two", "Verdict: TypeAlias = int\n")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text(text)
    shared = find_shared_names([tmp_path / "one", tmp_path / "two"])
    assert shared == {"Verdict": ["one/module.py", "two/module.py"]}
