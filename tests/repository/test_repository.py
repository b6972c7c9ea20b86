"""Checks of the tree itself: what must never be committed, and the rules that no linter knows."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from integration import provision
from integration.stages import STAGES
from spark.session import VERSIONS

CHECKOUT = Path(__file__).resolve().parent.parent.parent
FILE_BYTES_MAX = 2 << 20

# In parts, so that this file does not hold what it looks for.
REGISTRY_HOSTS = re.compile(
    "|".join(
        name.replace("_", r"\.")
        for name in (
            "pypi_org",
            "pythonhosted_org",
            "deb_debian_org",
            "security_debian_org",
            "archive_ubuntu_com",
            "registry_npmjs_org",
            "proxy_golang_org",
            "repo1?_maven",
            "static_crates_io",
        )
    )
)
# Home directories and working folders of one machine. Not below another folder: /srv/home/x is none.
MACHINE_PATH = re.compile(r"(?<![\w.~}$-])/(?:root|home|work|Users)/[\w.]")


def _tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    # A file that is deleted in the working tree is still listed.
    return [path for name in listing.stdout.split("\0") if name and (path := CHECKOUT / name).is_file()]


@functools.cache
def _texts() -> dict[Path, str]:
    texts = {}
    for path in _tracked():
        content = path.read_bytes()
        if b"\0" not in content:
            texts[path.relative_to(CHECKOUT)] = content.decode()
    return texts


@functools.cache
def _modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in _texts().items() if path.suffix == ".py"}


def _find_lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in _texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def _verbs() -> set[str]:
    return set(re.findall(r"^([a-z]+):.* ## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))


def test_no_file_names_a_package_registry() -> None:
    assert _find_lines(REGISTRY_HOSTS) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert _find_lines(MACHINE_PATH) == []


def test_the_patterns_find_what_they_are_for() -> None:
    for host in (("pypi", "org"), ("files", "pythonhosted", "org"), ("deb", "debian", "org")):
        assert REGISTRY_HOSTS.search(f"https://{'.'.join(host)}/simple")
    for folder in ("root", "home", "work", "Users"):
        assert MACHINE_PATH.search(f"see '/{folder}/x'")
    assert not MACHINE_PATH.search("/srv/home/x and $HOME/work/x and ./work/x")


PINS = sorted((CHECKOUT / "requirements").glob("*.txt"))


def _groups() -> dict[str, list[str]]:
    """Each group of packages with its direct requirements."""
    groups = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["dependency-groups"]
    return {name: [each for each in group if isinstance(each, str)] for name, group in groups.items()}


def _pinned(path: Path) -> dict[str, set[str]]:
    """The packages that a file pins, with their extras."""
    found = re.findall(r"^([\w.-]+)(?:\[([\w,-]+)\])?==", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): {*extras.split(",")} for name, extras in found}


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
def test_every_requirement_is_pinned_and_hashed_and_names_no_index(path: Path) -> None:
    lines = path.read_text().replace("\\\n", " ").splitlines()
    requirements = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(requirements) > 5
    for line in requirements:
        assert re.match(r"[\w.\[\],-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line
        assert "://" not in line
        assert "index" not in line


def test_groups_pin_the_same_versions() -> None:
    """They are installed into one environment, one after the other."""
    pins: dict[str, set[str]] = {}
    for path in PINS:
        for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?(==.*?) *\\?$", path.read_text(), re.MULTILINE):
            pins.setdefault(f"{name}{version.partition(';')[2]}", set()).add(version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}


def test_every_group_is_pinned() -> None:
    assert [path.stem for path in PINS] == sorted(_groups()) == sorted(provision.GROUPS)
    for name, group in _groups().items():
        missing = {canonicalize_name(Requirement(each).name) for each in group}
        missing -= _pinned(CHECKOUT / f"requirements/{name}.txt").keys()
        assert not missing, "run: make pins"


def test_pins_have_the_extras_that_others_ask_for() -> None:
    """A pin without its extra names another requirement to pip, which takes a newer release that has no hash here."""
    pinned: dict[str, set[str]] = {}
    for path in PINS:
        for name, extras in _pinned(path).items():
            pinned[name] = pinned.get(name, set()) | extras
    demands = [(name, Requirement(each)) for name, group in _groups().items() for each in group]
    demands += [
        (distribution.name, Requirement(text))
        for distribution in metadata.distributions()
        if canonicalize_name(distribution.name) in pinned
        for text in distribution.requires or ()
    ]
    for name, requirement in demands:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            missing = requirement.extras - pinned[canonicalize_name(requirement.name)]
            assert not missing, f"{name} asks for {requirement}: run make pins"


def test_no_file_is_large() -> None:
    assert {path.name: size for path in _tracked() if (size := path.stat().st_size) > FILE_BYTES_MAX} == {}


def test_every_module_says_what_it_is() -> None:
    assert [str(path) for path, module in _modules().items() if not ast.get_docstring(module)] == []


def test_spark_is_never_imported_bare() -> None:
    """``import spark`` would shadow what every Spark program calls its session."""
    found = [
        f"{path}:{node.lineno}"
        for path, module in _modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Import) and any(name.name == "spark" for name in node.names)
    ]
    assert found == []


def test_make_alone_lists_every_verb() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    make = ["make", "-f", "Makefile"]
    listing = subprocess.run(make, cwd=CHECKOUT, env=environment, check=True, capture_output=True, text=True)
    listed = {line.split()[0] for line in listing.stdout.splitlines() if line.startswith("  ")}
    assert listed == _verbs()
    assert {"help", "setup", "demo", "test", "lint", "types", "unit", "integration", "bench", "clean"} <= listed
    assert listing.stderr == ""


def test_the_continuous_check_runs_everything() -> None:
    script = CHECKOUT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().endswith("exec make full\n")
    assert {"style", "unit", "core", "rest", "slow", "kafka", "vitess"} < set(STAGES) <= _verbs()


@pytest.mark.parametrize(
    ("subject", "is_taken"),
    [
        ("check: report a Redis login failure as an error", True),
        ("Merge branch 'main'", True),
        ("x", False),
        ("check: x", False),
        ("Report a Redis login failure as an error", False),
        (f"check: report {'a Redis login failure ' * 4}", False),
    ],
)
def test_the_hook_takes_subjects_that_name_their_area(subject: str, is_taken: bool, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nThe body.\n")
    hook = CHECKOUT / "integration" / "hooks" / "commit-msg"
    ended = subprocess.run([hook, message], capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == is_taken
    assert ("expected at most 72 characters" in ended.stderr) != is_taken


def test_every_verb_that_is_documented_exists() -> None:
    """A folder of the name of a verb hides that the verb is missing: make then has nothing to do."""
    for page in (*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")):
        text = page.read_text()
        named = set(re.findall(r"`make ([a-z]+)|^\s*make ([a-z]+)", text, re.MULTILINE))
        assert {one or other for one, other in named} <= _verbs(), page
        if page.name == "README.md":
            assert {"demo", "test"} <= {one or other for one, other in named}


def test_every_verb_runs_something_that_is_there() -> None:
    """A verb is left out until there is something to run: ``python -m`` of the Makefile names our modules."""
    named = re.findall(r"-m (tests|examples|benchmarks|spark|docs)\b([.\w]*)", (CHECKOUT / "Makefile").read_text())
    for root, rest in named:
        place = CHECKOUT / (root + rest).replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), f"{root}{rest}"


def test_the_spark_that_is_claimed_is_the_one_that_is_tested() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    claimed = [each for each in project["optional-dependencies"]["spark"] if each.startswith("pyspark")]
    pins = (CHECKOUT / "requirements/spark.txt").read_text()
    [(major, minor)] = re.findall(r"^pyspark==(\d+)\.(\d+)\.", pins, re.MULTILINE)
    assert f"{major}.{minor}" == VERSIONS[-1]
    assert claimed == [f"pyspark>={VERSIONS[0]},<{major}.{int(minor) + 1}"]


# -- the product's sizes ---------------------------------------------------------------------------------

LARGE: Final = {
    "invalidator/cli/probe.py: probe has 10 parameters": "options of a verb",
    "invalidator/cli/publish.py: publish has 9 parameters": "options of a verb",
    "invalidator/cli/stream.py: stream has 14 parameters": "options of a verb",
}
"""Exceptions from the limits, and why."""


def find_large(path: Path) -> Iterator[str]:
    """A file over 500 lines, functions over 60 or with over 8 parameters, classes over 25 methods."""
    text, name = path.read_text(), path.relative_to(CHECKOUT)
    if len(text.splitlines()) > 500:
        yield f"{name} has {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > 25:
                yield f"{name}: {node.name} has {methods} methods"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            count = sum(each.arg not in ("self", "cls") for each in given)
            if count > 8:
                yield f"{name}: {node.name} has {count} parameters"
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > 60:
                yield f"{name}: {node.name} has {length} lines"


def test_no_file_function_or_class_of_the_product_is_large() -> None:
    files = [
        path
        for package in ("freshness", "invalidator", "appclient", "spark")
        for path in (CHECKOUT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py")
    ]
    assert files
    assert {problem for path in files for problem in find_large(path)} == LARGE.keys()
