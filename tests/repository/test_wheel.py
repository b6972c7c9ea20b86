"""The installed package, as an application has it: what its wheel holds, and what a type checker knows of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).parents[2]
PACKAGED: Final = ("appclient", "freshness", "invalidator", "spark", "pyproject.toml", "README.md", "LICENSE")
APPLICATION: Final = """
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import attrs
import msgspec
import pydantic
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from appclient import AsyncCache, AsyncLoaderConnection, Cache, CommitToken, LoaderConnection, TypedObject
from appclient.flask import Freshness
from appclient.sqlalchemy import CachedReads
from appclient.starlette import cache_lifespan, request_reads
from appclient.testing import FakeSystem
from appclient.web import AsyncRequestReads, RequestReads, TokenCookie


@dataclass
class ByDataclass:
    id: int


@attrs.define
class ByAttrs:
    id: int


class ByStruct(msgspec.Struct):
    id: int


class ByPydantic(pydantic.BaseModel):
    id: int


class ByTypedDict(TypedDict):
    id: int


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


def by_threads(cache: Cache) -> None:
    assert_type(cache.of("customer", ByDataclass).get(1), ByDataclass | None)
    assert_type(cache.of("customer", ByAttrs).get(1), ByAttrs | None)
    assert_type(cache.of("customer", ByStruct).get(1), ByStruct | None)
    assert_type(cache.of("customer", ByPydantic).get(1), ByPydantic | None)
    assert_type(cache.of("customer", ByTypedDict).get(1), ByTypedDict | None)
    assert_type(cache.of("orders", list[ByStruct]).get(1), list[ByStruct] | None)
    assert_type(cache.of("customer", ByStruct).get_many([1]), dict[Any, ByStruct | None])
    customers: TypedObject[ByStruct] = cache.of("customer", ByStruct)
    customers.get(1).id  # type: ignore[union-attr]  # it may be None
    customers.get(1, at_last=None)  # type: ignore[call-arg]
    cache.of("customer", ByStruct(1))  # type: ignore[arg-type]

    @cache.loader("profile")
    def load_profile(db: LoaderConnection, customer_id: int) -> dict[str, Any]:
        return {"customer": db.query_one("SELECT 1"), "orders": db.query("SELECT 1", (customer_id,))}

    assert_type(load_profile(LoaderConnection.__new__(LoaderConnection), 1), dict[str, Any])
    assert_type(cache.database().commit_token(object()), CommitToken | None)


async def by_tasks() -> None:
    async with await AsyncCache.open("freshness.toml") as cache:
        assert_type(await cache.of("customer", ByDataclass).get(1), ByDataclass | None)
        assert_type(await cache.of("customer", ByAttrs).get(1), ByAttrs | None)
        assert_type(await cache.of("customer", ByStruct).get(1), ByStruct | None)
        assert_type(await cache.of("customer", ByPydantic).get(1), ByPydantic | None)
        assert_type(await cache.of("customer", ByTypedDict).get(1), ByTypedDict | None)
        assert_type(await cache.of("orders", list[ByStruct]).get(1), list[ByStruct] | None)
        assert_type(await cache.of("customer", ByStruct).get_many([1]), dict[Any, ByStruct | None])

        @cache.loader("profile")
        async def load_profile(db: AsyncLoaderConnection, customer_id: int) -> dict[str, Any]:
            return {"customer": await db.query_one("SELECT 1", (customer_id,))}

        sessions = async_sessionmaker(create_async_engine("mysql+aiomysql://app@127.0.0.1/shop"))
        reads = CachedReads(cache, sessions)
        async with sessions() as session:
            assert_type(await session.get(Customer, 1), Customer | None)
            assert_type(reads.commit_token(session), CommitToken | None)


def by_sessions(cache: Cache) -> None:
    sessions = sessionmaker(create_engine("mysql+pymysql://app@127.0.0.1/shop"))
    reads = CachedReads(cache, sessions)
    with sessions() as session:
        assert_type(session.get(Customer, 1), Customer | None)
        assert_type(reads.commit_token(session), CommitToken | None)


def in_requests(reads: RequestReads, on_loop: AsyncRequestReads, fresh: Freshness) -> None:
    assert_type(reads.token, CommitToken | None)
    assert_type(on_loop.token, CommitToken | None)
    assert_type(fresh.reads, RequestReads)
    assert_type(reads.of("customer", ByStruct).get(1), ByStruct | None)
    TokenCookie(["a secret of the application"], seconds=60)


async def in_requests_on_a_loop(reads: AsyncRequestReads) -> None:
    assert_type(await reads.of("customer", ByStruct).get(1), ByStruct | None)


async def in_tests(system: FakeSystem) -> None:
    assert_type(system.cache, Cache)
    assert_type(await system.open_async(), AsyncCache)
    assert_type(system.find_stale(), list[str])
"""
"""Each of its lines has the type that the documentation promises: `assert_type` fails on Any."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run(
        [*command, "-w", "dist", "."], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    (built,) = (folder / "dist").glob("freshness-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel, and with the other packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


def check_types(python: Path, folder: Path, application: str) -> str:
    script = folder / "application.py"
    script.write_text(application)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache")]
    run = subprocess.run(
        [*command, "--python-executable", str(python), str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return run.stdout + run.stderr


def test_the_wheel_has_the_packages_and_says_that_they_are_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (points,) = (name for name in names if name.endswith("entry_points.txt"))
        said = packed.read(points).decode()
    assert {"appclient/py.typed", "freshness/py.typed", "appclient/testing/plugin.py"} <= names
    for package in ("appclient", "freshness", "invalidator", "spark"):
        modules = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / package).rglob("*.py")}
        assert modules <= names, package
    page = CHECKOUT / "invalidator" / "http" / "dashboard"
    assert {str(path.relative_to(CHECKOUT)) for path in page.iterdir()} <= names, (
        "the page of the invalidator"
    )
    assert "freshness = appclient.testing.plugin" in said
    assert {name.split("/")[0] for name in names if not re.match(r"freshness-.*\.dist-info/", name)} == {
        "appclient",
        "freshness",
        "invalidator",
        "spark",
    }


def test_the_installed_package_is_what_is_checked(python: Path, tmp_path: Path) -> None:
    program = "import appclient, freshness; print(appclient.__file__, freshness.__file__)"
    run = subprocess.run(
        [python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.count(str(python.parents[1])) == 2, run.stdout


def test_an_application_under_mypy_strict_has_the_types_of_its_values(python: Path, tmp_path: Path) -> None:
    found = check_types(python, tmp_path, APPLICATION)
    assert "Success: no issues found in 1 source file" in found, found


def test_the_documented_example_of_a_class_is_typed(python: Path, tmp_path: Path) -> None:
    page = (CHECKOUT / "docs" / "application.md").read_text()
    (example,) = re.findall(r"^```python\n([^`]*cache\.of\([^`]*)^```$", page, re.MULTILINE)
    found = check_types(python, tmp_path, example + "wrong: Customer = customers.get(42)\n")
    assert 'variable has type "Customer"' in found
    assert "Found 1 error" in found
