"""The installed package, as an application has it: what its wheel holds, and what a type checker knows of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.utils import canonicalize_name

from tests.repository.environment import (
    CHECKOUT,
    EXTRAS,
    PACKAGES,
    build_sdist,
    build_wheel,
    copy_sources,
    find_needed,
)

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
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel") / "sources"
    copy_sources(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    return build_wheel(sources)


@pytest.fixture(scope="module")
def sdist(sources: Path) -> Path:
    return build_sdist(sources)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel, and with the other packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=500)
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


def find_modules() -> set[str]:
    return {str(path.relative_to(CHECKOUT)) for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py")}


BESIDE: Final = {
    "appclient/py.typed",
    "freshness/py.typed",
    *(f"invalidator/http/dashboard/{name}" for name in ("icon.svg", "index.html", "script.js", "style.css")),
}
"""What else than modules is needed: that the packages are typed, and the page of the invalidator."""


def test_the_wheel_has_the_modules_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (points,) = (name for name in names if name.endswith("entry_points.txt"))
        said = packed.read(points).decode()
    about = {name for name in names if re.match(r"freshness-[^/]*\.dist-info/", name)}
    assert names - about == find_modules() | BESIDE
    assert {name.partition("/")[2] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert "freshness = appclient.testing.plugin" in said
    assert "invalidator = invalidator.cli:main" in said


def test_the_source_distribution_is_enough_for_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        packed.extractall(tmp_path, filter="data")
    about = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"}
    assert names == find_modules() | BESIDE | about
    (folder,) = tmp_path.iterdir()
    assert build_wheel(folder).read_bytes() == wheel.read_bytes()


def test_two_builds_are_the_same_bytes(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """Neither the time nor the place, nor the user's mask, is in them."""
    other = tmp_path / "elsewhere"
    copy_sources(other)
    for path in (other, *other.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = os.umask(0o077)
    try:
        wheels = build_wheel(other), build_sdist(other)
    finally:
        os.umask(before)
    for built, first in zip(wheels, (wheel, sdist), strict=True):
        assert built.name == first.name
        assert built.read_bytes() == first.read_bytes()


def test_the_installed_package_is_what_is_checked(python: Path, tmp_path: Path) -> None:
    program = "import appclient, freshness; print(appclient.__file__, freshness.__file__)"
    run = subprocess.run(
        [python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500
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


@pytest.mark.slow
def test_the_bill_of_materials_has_what_all_extras_need(tmp_path: Path) -> None:
    """It asks the package index, as a release does."""
    copy_sources(tmp_path)
    shutil.copy(CHECKOUT / "Makefile", tmp_path / "Makefile")
    shutil.copytree(CHECKOUT / "requirements", tmp_path / "requirements")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # The environment is there, and must not be made one of these sources
    ended = subprocess.run(
        ["make", "sbom", "PROVISION=true"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    bill = json.loads((tmp_path / "dist" / "freshness.cdx.json").read_text())
    assert bill["metadata"]["component"]["name"] == "freshness"
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    assert listed == {name: metadata.version(name) for name in find_needed(build_wheel(tmp_path), EXTRAS)}
