"""A package that is not installed is one line that names the extra, from every program and from the library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from freshness.errors import ConfigError, missing_package

HIDDEN = "import runpy, sys; package, module, *arguments = sys.argv[1:]; sys.modules[package] = None\n"
PROGRAM = HIDDEN + "sys.argv = [module, *arguments]; runpy.run_module(module, run_name='__main__', alter_sys=True)"
CONFIG = """[cache]
backend = "redis"
nodes = ["127.0.0.1:1"]
namespace = "shop"
[keyspaces.shop]
flavor = "mariadb"
[[keyspaces.shop.shards]]
primary = "mysql://app:x@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
[http]
listen = "127.0.0.1:9"
[archive]
path = "archive"
"""


def run_without(package: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this project in a process in which ``package`` cannot be imported."""
    command = [sys.executable, "-c", PROGRAM, package, module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


def assert_one_line(ran: subprocess.CompletedProcess[str], package: str, extra: str) -> None:
    assert ran.stderr.splitlines() == [
        f"{ran.args[4]}: the Python package {package} is not installed (pip install 'freshness[{extra}]')".replace(
            "invalidator.cli", "invalidator"
        )
    ]
    assert ran.returncode == ConfigError.exit_code


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("invalidator.cli", "typer"),
        *((f"spark.{job}", "pyspark") for job in ("sink", "copy", "archive", "table_at")),
        ("spark.audit", "rich"),
        ("spark.audit", "xxhash"),
        ("spark.sink", "pymysql"),
        ("spark.copy", "pyarrow"),
        ("spark.archive", "pyarrow"),
    ],
)
def test_a_program_without_a_package(module: str, package: str) -> None:
    extra = "spark" if module.startswith("spark") else "invalidator"
    assert_one_line(run_without(package, module, "--help"), package, extra)


def test_the_audit_needs_spark_only_where_it_is_asked_for(tmp_path: Path) -> None:
    options = [f"--{name}={tmp_path / name}" for name in ("archive", "history", "report")]
    ran = run_without("pyspark", "spark.audit", *options, "--engine", "spark")
    [line] = ran.stderr.splitlines()
    assert line.endswith("the Python package pyspark is not installed (pip install 'freshness[spark]')")
    assert ran.returncode == ConfigError.exit_code
    assert run_without("pyspark", "spark.audit", "--help").returncode == 0


@pytest.mark.parametrize(
    ("verb", "package", "extra"),
    [
        (["run"], "prometheus_client", "invalidator"),
        (["run"], "fastapi", "invalidator"),
        (["run"], "pyarrow", "invalidator"),
        (["check"], "pymysql", "invalidator"),
        (["status"], "rich", "invalidator"),
        (["status"], "redis", "redis"),
        (["inspect", "customer", "1"], "pymysql", "invalidator"),
        (["invalidate", "customer", "1"], "pymysql", "invalidator"),
        (["stream"], "msgspec", "invalidator"),
        (["record"], "pyarrow", "invalidator"),
        (["replay", "nowhere"], "pyarrow", "invalidator"),
    ],
)
def test_a_verb_without_a_package(verb: Sequence[str], package: str, extra: str, tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    ran = run_without(package, "invalidator.cli", *verb, "--config", str(path))
    assert_one_line(ran, package, extra)


def test_a_package_that_is_there_is_of_another_version() -> None:
    error = ImportError("cannot import name 'Filter' from 'pytest.nowhere'", name="pytest.nowhere")
    missing = missing_package(error, "spark")
    assert missing is not None
    assert str(missing).startswith("another version of the Python package pytest is needed: cannot import name")


def test_a_module_of_ours_or_of_python_is_no_package() -> None:
    for name in ("freshness.nowhere", "spark.audit.nowhere", "ssl", None):
        assert missing_package(ModuleNotFoundError(name=name), "spark") is None
    missing = missing_package(ModuleNotFoundError(name="google.protobuf"), "invalidator")
    assert missing is not None
    assert "freshness[vitess]" in missing.hint
