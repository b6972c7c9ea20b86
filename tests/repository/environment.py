"""Distributions of this checkout, and environments that hold its wheel and only what pip installs with it.

Packages are linked from the environment of the tests: no index is asked, and the versions are those of the pins.
Used by the tests of packaging.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("appclient", "freshness", "invalidator", "spark")
EXTRAS: Final = tuple(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
CONFIG: Final = """[cache]
nodes = ["127.0.0.1:1"]
namespace = "shop"
[keyspaces.shop]
flavor = "mariadb"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
"""
"""Of servers that are not there."""

BUILT_FROM: Final = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore")


def copy_sources(folder: Path) -> None:
    """The files that a distribution is built from, without what only this checkout has."""
    for name in BUILT_FROM:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)


def build_wheel(folder: Path) -> Path:
    """The wheel of the sources in a folder, as pip builds it."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    ended = subprocess.run(
        [*command, "-w", "dist", "."], cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    (built,) = (folder / "dist").glob("freshness-*.whl")
    return built


def build_sdist(folder: Path) -> Path:
    """The source distribution of the sources in a folder, as `make dist` builds it."""
    ended = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr
    (built,) = (folder / "dist").glob("freshness-*.tar.gz")
    return built


def find_needed(wheel: Path, extras: Collection[str] = ()) -> set[str]:
    """The names of the distributions that pip installs with these extras of the wheel, besides itself."""
    with zipfile.ZipFile(wheel) as packed:
        (said,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
    own = metadata.PathDistribution(zipfile.Path(wheel, said.removesuffix("METADATA"))).requires or []
    return find_closure([("freshness", extra) for extra in ("", *extras)], {"freshness": own}) - {"freshness"}


def find_closure(wanted: Iterable[tuple[str, str]], known: Mapping[str, Sequence[str]] = {}) -> set[str]:
    """The names of distributions and all that they need. ``wanted``: names, each with an extra or an empty text;
    ``known``: the requirements of distributions that are not installed here."""
    seen: set[tuple[str, str]] = set()
    waiting = [*wanted]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in known.get(name) or metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    return {name for name, _ in seen}


def make_environment(folder: Path, wheel: Path | None, needed: Collection[str]) -> Path:
    """The interpreter of a new environment that holds the wheel, if one is given, and these distributions."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=500)
    (site,) = folder.glob("lib/python*/site-packages")
    if wheel is not None:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
    for name in needed:
        for path in metadata.files(name) or ():
            target = site / path
            if ".." not in path.parts and "__pycache__" not in path.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(path.locate())
    return folder / "bin" / "python"
