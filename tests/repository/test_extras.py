"""Each extra alone, in an environment with the wheel and what pip installs with that extra, does what it is for.

A package that an extra does not declare is not there. The parts of other extras say in one line which they need.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.utils import canonicalize_name

from tests.repository.environment import (
    CHECKOUT,
    CONFIG,
    EXTRAS,
    build_wheel,
    copy_sources,
    find_closure,
    find_needed,
    make_environment,
)

SYSTEM: Final = """
from appclient.testing import FakeSystem
system = FakeSystem("freshness.toml", "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
system.execute("INSERT INTO customers VALUES (42, 'Ada')")
"""
APPLICATION: Final = """
import appclient, appclient.web
assert [system.cache.get("customer", 42)["name"] for _ in range(2)] == ["Ada", "Ada"]
assert system.cache.get("customer", 42, explain=True).is_hit
"""
READ: Final = """
from appclient import Cache
from freshness.errors import SourceUnavailable
cache = Cache.open("freshness.toml", telemetry=telemetry)
try:
    cache.get("customer", 42)
except SourceUnavailable as error:
    assert "127.0.0.1:1" in str(error)
else:
    raise AssertionError("nothing listens there")
"""
"""A read with a telemetry, of servers that are not there."""

USES: Final = {
    "appclient": SYSTEM + APPLICATION,
    "async": SYSTEM
    + """
import asyncio
from appclient import AsyncCache
async def read():
    async with await system.open_async() as cache:
        assert isinstance(cache, AsyncCache)
        assert (await cache.get("customer", 42))["name"] == "Ada"
asyncio.run(read())
""",
    "django": SYSTEM
    + """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["appclient.django"],
    MIDDLEWARE=["appclient.django.middleware.ReadYourWritesMiddleware"],
    SECRET_KEY="a secret",
    DATABASES={"default": {"ENGINE": "django.db.backends.mysql", "HOST": "127.0.0.1", "PORT": 1, "NAME": "shop"}},
    FRESHNESS={"CONFIG": "freshness.toml"},
)
import pymysql
pymysql.install_as_MySQLdb()
pymysql.version_info = (2, 2, 1, "final", 0)
django.setup()
from django.db import models
from appclient.django.models import CachedModel
class Customer(CachedModel):
    id = models.BigAutoField(primary_key=True)
    class Meta:
        app_label = "shop"
        db_table = "customers"
assert "customers" in str(Customer.objects.filter(pk=42).query)
"""
    + APPLICATION,
    "sqlalchemy": SYSTEM
    + """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from appclient.sqlalchemy import CachedReads
class Base(DeclarativeBase): pass
class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
engine = create_engine("mysql+pymysql://app@127.0.0.1:1/shop", creator=system.connect)
sessions = sessionmaker(engine)
CachedReads(system.cache, sessions)
system.cache.get("customer", 42)
with sessions() as session:
    assert session.get(Customer, 42).name == "Ada"
""",
    "starlette": SYSTEM
    + """
import asyncio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from appclient import AsyncCache
from appclient.starlette import ReadYourWrites, cache_lifespan, request_reads
from appclient.web import TokenCookie
AsyncCache.open = lambda *_, **__: system.open_async()
async def page(request):
    reads = await request_reads(request)
    return PlainTextResponse((await reads.get("customer", 42))["name"])
app = Starlette(routes=[Route("/", page)])
app.add_middleware(ReadYourWrites, cookie=TokenCookie(["a secret of the application"]))
async def ask():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b""}
    async def send(message):
        sent.append(message)
    async with cache_lifespan("freshness.toml")(app) as state:
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "state": state}
        await app(scope, receive, send)
    assert sent[1]["body"] == b"Ada", sent
asyncio.run(ask())
""",
    "flask": SYSTEM
    + """
from flask import Flask
from appclient import Cache
from appclient.flask import Freshness
Cache.open = lambda *_, **__: system.cache
app = Flask("shop")
app.config.update(SECRET_KEY="a secret of the application", FRESHNESS_CONFIG="freshness.toml")
fresh = Freshness(app)
app.add_url_rule("/", view_func=lambda: fresh.reads.get("customer", 42))
assert app.test_client().get("/").json["name"] == "Ada"
""",
    "prometheus": """
from prometheus_client import CollectorRegistry, generate_latest
from appclient import PrometheusTelemetry
registry = CollectorRegistry()
telemetry = PrometheusTelemetry(registry)
"""
    + READ
    + """
assert b'pool="127.0.0.1:1"' in generate_latest(registry)
""",
    "opentelemetry": "from appclient import OpenTelemetry\ntelemetry = OpenTelemetry()\n" + READ,
    "redis": """
from freshness.algorithm.request import Get
from freshness.errors import NodeUnavailable
from freshness.nodes.redis import RedisNode
try:
    RedisNode("127.0.0.1:1").connect()
except NodeUnavailable as error:
    assert "127.0.0.1:1" in str(error)
else:
    raise AssertionError("nothing listens there")
""",
    "history": """
from pathlib import Path
from freshness.history.recorder import Recorder
recorder = Recorder(Path("history"))
assert recorder.wants(b"shop:customer:42")
recorder.close()
""",
    "compression": """
from freshness.values.compression import compressing, unpack
packed = compressing(lambda value: value, 10)(b"x" * 1000)
assert len(packed) < 100 and unpack(packed) == b"x" * 1000
""",
    "vitess": """
from invalidator.vstream.proto import vitess_pb2
import grpc
""",
    "srv": """
import dns.resolver
assert callable(dns.resolver.resolve)
""",
    "sharding": """
from freshness.database.sharding import keyspace_id
assert keyspace_id("hash", 1).hex() == "166b40b44aba4bd6"
assert len(keyspace_id("xxhash", 1)) == 8
""",
    "invalidator": """
import http.client, socket
from freshness.config.config import load_config
from invalidator import cli
from invalidator.archive.record import ArchiveRecorder
from invalidator.http.service import HttpService, create_api
from invalidator.process.app import Invalidator
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
service = HttpService(create_api(Invalidator(load_config("freshness.toml")), dict), f"127.0.0.1:{port}")
service.start()
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=500)
connection.request("GET", "/healthz")
assert connection.getresponse().read() == b'{"status":"ok"}'
connection.close()
service.stop()
""",
    "kafka": """
from invalidator.publish.kafka import KafkaWriter
from invalidator.publish.publish import Start
""",
    "spark": """
import spark.archive.compaction, spark.copy.target, spark.sink.__main__, spark.table_at.place
from spark.audit.__main__ import main
""",
    "delta": """
import pyarrow
from datetime import date
from spark.audit.report.trend_table import open_tables
rows = pyarrow.table({"as_of_us": [1]})
open_tables("delta:tables").replace("audits", rows, date(2026, 1, 31), 1)
""",
    "iceberg": """
from freshness.errors import ConfigError
from spark.audit.report.trend_table import open_tables
try:
    open_tables("iceberg:nowhere.audits")
except ConfigError as error:
    assert "the Iceberg catalog nowhere cannot be opened" in str(error), error
""",
}
"""A program for each extra, in a folder with a freshness.toml."""

PARTS: Final = {
    "appclient": ("appclient:Cache", "appclient:GtidConnection", "appclient.testing:FakeSystem"),
    "async": ("appclient:AsyncCache", "appclient.async_cache", "appclient.testing.loop"),
    "django": ("appclient.django", "appclient.testing.django"),
    "sqlalchemy": ("appclient.sqlalchemy",),
    "starlette": ("appclient.starlette",),
    "flask": ("appclient.flask",),
    "prometheus": ("appclient:PrometheusTelemetry", "appclient.telemetry.prometheus"),
    "opentelemetry": ("appclient:OpenTelemetry", "appclient.telemetry.opentelemetry"),
    "invalidator": ("invalidator.cli",),
    "spark": ("spark.audit.__main__", "spark.sink.__main__", "spark.archive.__main__"),
}
"""Modules, and names of modules, by the extra that their error names if it is not installed."""

FIND: Final = """
import json, sys
from importlib.util import find_spec
print(json.dumps([module for module in sys.argv[1:] if find_spec(module) is not None]))
"""
OWN_TESTS: Final = """
import appclient, appclient.testing

def test_own():
    assert "Cache" in dir(appclient)

def test_of_the_library(freshness_system):
    pass
"""
TRY: Final = """
import importlib, io, json, sys
said = {}
for part in sys.argv[1:]:
    sys.stderr = io.StringIO()
    module, _, name = part.partition(":")
    try:
        imported = importlib.import_module(module)
        if name:
            getattr(imported, name)
        said[part] = "imported"
    except ModuleNotFoundError as error:
        said[part] = str(error)
    except SystemExit:  # of a program, which has written one line
        said[part] = sys.stderr.getvalue().strip()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel") / "sources"
    copy_sources(folder)
    return build_wheel(folder)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "freshness.toml").write_text(CONFIG)

    def run(python: Path, program: str, *arguments: str) -> str:
        ended = subprocess.run(
            [python, "-I", "-W", "error::SyntaxWarning", "-c", program, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def find_foreign(needed: set[str]) -> list[str]:
    """The modules of this environment's packages that are not among these distributions."""
    return sorted(
        module
        for module, distributions in metadata.packages_distributions().items()
        if module.isidentifier()
        and module not in ("freshness", "invalidator", "appclient", "spark")
        and not needed & {canonicalize_name(each) for each in distributions}
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_does_what_it_is_for(extra: str, wheel: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    needed = find_needed(wheel, [extra])
    python = make_environment(tmp_path / "environment", wheel, needed)
    run(python, USES[extra])
    foreign = find_foreign(needed)
    assert {"pytest", "mypy"} <= set(foreign)
    found = json.loads(run(python, FIND, *foreign))
    assert found == [], "only what the extra declares is there"


BESIDE: Final = ("compression", "history", "redis", "sharding", "srv", "vitess")
"""Extras of packages that the library and the invalidator use: they belong beside one of these."""


@pytest.mark.parametrize("extra", ["", *BESIDE])
def test_an_environment_without_the_library_runs_its_own_tests(
    extra: str, wheel: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    """The fixture of `appclient.testing` is offered to each run of pytest: only its use asks for the library."""
    needed = find_needed(wheel, [extra] if extra else []) | find_closure([("pytest", "")])
    python = make_environment(tmp_path / "environment", wheel, needed)
    (tmp_path / "test_own.py").write_text(OWN_TESTS)
    said = run(python, "import sys, pytest; sys.exit(pytest.main(['-q', 'test_own.py']) != 1)")
    assert "1 passed, 1 error" in said
    assert "is not installed (pip install 'freshness[appclient]')" in said


def test_the_page_says_which_extras_belong_beside_others() -> None:
    page = (CHECKOUT / "docs" / "quickstart.md").read_text()
    found = re.search(r"The extras\s+(.*?)\s+belong\s+beside", page, re.DOTALL)
    assert found is not None
    assert re.findall(r"`(\w+)`", found[1]) == [*BESIDE]


def test_every_extra_has_a_use() -> None:
    assert set(USES) == set(EXTRAS)
    assert set(PARTS) <= set(EXTRAS)


@pytest.mark.parametrize("installed", ["", "appclient"])
def test_a_part_whose_extra_is_missing_says_which(
    installed: str, wheel: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    needed = find_needed(wheel, [installed] if installed else [])
    assert bool(needed) == bool(installed), "without an extra nothing else is installed"
    python = make_environment(tmp_path / "environment", wheel, needed)
    modules = {module: extra for extra, parts in PARTS.items() for module in parts}
    said = json.loads(run(python, TRY, *modules))
    wrong = {
        module: said[module]
        for module, extra in modules.items()
        if not is_clear(module, said[module], extra, installed)
    }
    assert wrong == {}


def is_clear(module: str, said: str, extra: str, installed: str) -> bool:
    """Whether a module of this extra names the extra that it needs, or loads because the extra is installed."""
    if extra == installed:
        return said == "imported"
    # Parts of the library first ask for the library if it is missing
    named = [extra] if installed or not module.startswith("appclient") else ["appclient", extra]
    return any(said.endswith(f"is not installed (pip install 'freshness[{each}]')") for each in named)
