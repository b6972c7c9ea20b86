"""Each contract of the architecture fails when it is broken: one forbidden import for each, planted into a copy."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("freshness", "invalidator", "appclient", "spark")

PLANTED: Final[dict[str, tuple[str, str]]] = {
    "freshness imports none of its users": ("freshness/history/open.py", "import appclient"),
    "the folders of freshness are layers": ("freshness/keys/keyrange.py", "import freshness.stream.resume"),
    "the algorithm and the positions reach no socket, no thread and no database": (
        "freshness/algorithm/apply.py",
        "import threading",
    ),
    "the invalidator, the application library and the Spark jobs do not know each other": (
        "spark/folder.py",
        "import invalidator.statement",
    ),
    "the folders of the application library are layers": (
        "appclient/connection/pool.py",
        "import appclient.database.choice",
    ),
    "the folders of the invalidator are layers": (
        "invalidator/vstream/transaction.py",
        "import invalidator.binlog.transaction",
    ),
    "the folders of the binary log are layers": (
        "invalidator/binlog/wire/tablemap.py",
        "import invalidator.binlog.keys.plan",
    ),
    "the library that the decoder is tested against is imported by nothing that runs in production": (
        "invalidator/binlog/rows/value.py",
        "import pymysqlreplication",
    ),
    "the loop reaches no socket, no thread and no database": ("invalidator/loop/loop.py", "import socket"),
    "what the sink sends and acknowledges reaches no socket, no thread and no database": (
        "spark/sink/acknowledger.py",
        "import threading",
    ),
    "the Spark jobs do not know each other, and share the stream": (
        "spark/copy/table.py",
        "import spark.archive.compaction",
    ),
    "the steps of the audit are layers": ("spark/audit/judge/replay.py", "import spark.audit.input.evidence"),
    "only the folders of adapters know third-party packages": ("freshness/objects/registry.py", "import msgspec"),
    "the technologies of cache nodes do not know each other": (
        "freshness/nodes/redis.py",
        "import freshness.nodes.memory",
    ),
    "memcached's protocol is the memcached node's own": ("freshness/nodes/redis.py", "import freshness.nodes.meta"),
    "the scripts of Redis are the Redis node's own": (
        "freshness/nodes/memcached.py",
        "import freshness.nodes.scripts",
    ),
}
"""Contract → a file, and the import that the contract forbids there."""


def read_contracts() -> list[str]:
    document = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    return [contract["name"] for contract in document["tool"]["importlinter"]["contracts"]]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The production code and its contracts, without the repository around them."""
    folder = tmp_path_factory.mktemp("contracts")
    for package in PACKAGES:
        shutil.copytree(CHECKOUT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    return folder


def find_broken(folder: Path) -> set[str]:
    """The contracts that the code in a folder breaks."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={"COLUMNS": "400"})
    lines = run.stdout.splitlines()
    assert any(line.startswith("Contracts: ") for line in lines), run.stdout + run.stderr
    assert (run.returncode != 0) == (" 0 broken" not in run.stdout), run.stdout
    states = [match for line in lines if (match := re.fullmatch(r"(.+) (KEPT|BROKEN)(?: \(.*\))?", line))]
    assert {match[1] for match in states} == set(read_contracts()), run.stdout
    return {match[1] for match in states if match[2] == "BROKEN"}


def test_every_contract_has_a_planted_import() -> None:
    assert sorted(PLANTED) == sorted(read_contracts())


def test_the_tree_breaks_no_contract(copy: Path) -> None:
    assert find_broken(copy) == set()


@pytest.mark.parametrize("contract", [*PLANTED])
def test_the_contract_fails_when_it_is_broken(contract: str, copy: Path) -> None:
    name, line = PLANTED[contract]
    file = copy / name
    sound = file.read_text()
    file.write_text(f"{sound}\n{line}\n")
    try:
        assert contract in find_broken(copy)
    finally:
        file.write_text(sound)


# -- circles inside of a folder, which no contract sees -----------------------------------------------------


def find_imports(folder: Path) -> dict[str, set[str]]:
    """Each module of the packages, and the modules that it imports, also inside of functions."""
    modules = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (folder / package).rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = found[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    whole = f"{node.module}.{each.name}"
                    imported.add(whole if whole in modules else node.module)
            elif isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
        imported.intersection_update(modules)
    return found


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    """The modules that remain when those without imports of the rest are taken away, again and again."""
    left = {name: set(imported) for name, imported in imports.items()}
    while free := {name for name, imported in left.items() if not imported}:
        left = {name: imported - free for name, imported in left.items() if name not in free}
    return sorted(left)


def test_no_modules_import_each_other() -> None:
    assert find_circle(find_imports(CHECKOUT)) == []


def test_a_circle_is_found(copy: Path) -> None:
    file = copy / "freshness/keys/keyrange.py"
    sound = file.read_text()
    file.write_text(f"{sound}\nimport freshness.stream.resume\n")
    try:
        assert {"freshness.keys.keyrange", "freshness.stream.resume"} <= set(find_circle(find_imports(copy)))
    finally:
        file.write_text(sound)
