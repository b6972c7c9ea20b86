"""Each extra of pyproject.toml is enough for what it promises: its modules import where nothing else is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT: Final = Path(__file__).resolve().parents[2]
EXTRAS: Final = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

PROMISED: Final = {
    "appclient": ("appclient", "appclient.testing", "appclient.web"),
    "appclient,async": ("appclient.async_cache",),
    "appclient,prometheus": ("appclient.prometheus",),
    "appclient,opentelemetry": ("appclient.opentelemetry",),
    "appclient,sqlalchemy": ("appclient.sqlalchemy",),
    "appclient,starlette": ("appclient.starlette",),
    "appclient,flask": ("appclient.flask",),
    "django": ("appclient.django", "appclient.django.middleware"),
    "invalidator": ("invalidator.cli", "invalidator.process.app"),
}
"""Modules by the extras that the documentation names for them."""

PROGRAM: Final = """
import importlib, sys
hidden = frozenset(sys.argv[1].split())
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
for module in sys.argv[2:]:
    importlib.import_module(module)
"""


def find_needed(extras: str) -> set[str]:
    """The distributions that pip installs for these extras."""
    needed: set[str] = set()
    waiting = [Requirement(text) for extra in extras.split(",") for text in EXTRAS[extra]]
    while waiting:
        wanted = waiting.pop()
        named = canonicalize_name(wanted.name)
        needed.add(named)
        for text in metadata.requires(named) or ():
            found = Requirement(text)
            chosen = [{"extra": extra} for extra in wanted.extras] or [{"extra": ""}]
            applies = found.marker is None or any(found.marker.evaluate(each) for each in chosen)
            if applies and canonicalize_name(found.name) not in needed:
                waiting.append(found)
    return needed


@pytest.mark.parametrize("extras", PROMISED)
def test_an_extra_is_enough_for_its_modules(extras: str) -> None:
    needed = find_needed(extras)
    hidden = [
        module
        for module, distributions in metadata.packages_distributions().items()
        if module not in sys.stdlib_module_names
        and module not in ("freshness", "invalidator", "appclient", "spark")
        and not needed & {canonicalize_name(each) for each in distributions}
    ]
    assert "pyspark" in hidden, "something is hidden"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, " ".join(hidden), *PROMISED[extras]],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
