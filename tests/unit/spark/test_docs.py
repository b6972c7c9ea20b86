"""The names that docs/spark.md gives to programs exist."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs/spark.md").read_text()


def find_name(dotted: str) -> object:
    """The module, or the attribute of one. Raises AttributeError if it does not exist."""
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def test_the_imports_of_the_examples_work() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{alias.name}" for node in imports for alias in node.names]
    assert len(names) >= 4
    for name in names:
        assert find_name(name), name


def test_the_functions_that_the_text_names_exist() -> None:
    ours = "|".join(
        module.name for module in pkgutil.iter_modules([str(ROOT / "spark")])
    )  # others are Spark's settings
    names = set(re.findall(rf"`((?:spark\.(?:{ours})|freshness\.\w+)(?:\.\w+)+)", PAGE))
    assert {"spark.audit.job.audit", "spark.copy.state.read_copy"} <= names
    for name in names:
        assert find_name(name), name
