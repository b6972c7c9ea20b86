"""The page about moving from another cache: its blocks run, and its comparison says which of two caches is old."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from appclient.testing import FakeSystem
from tests.unit.appclient.test_testing_django import run_django, write_project

PAGE: Final = Path(__file__).parents[3] / "docs" / "moving.md"
SCHEMA: Final = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total INTEGER);
INSERT INTO customers VALUES (42, 'Ada');
INSERT INTO orders VALUES (1, 42, 100);
"""


def block(language: str, part: str) -> str:
    (found,) = [
        text
        for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        if part in text
    ]
    return str(found)


def run_block(part: str, replace: Mapping[str, str] = MappingProxyType({}), **names: Any) -> dict[str, Any]:
    text = block("python", part)
    for old, new in replace.items():
        assert old in text
        text = text.replace(old, new)
    names["__name__"] = "shop"  # dogpile spells keys with it
    exec(text, names)
    return names


class Memcache(dict[str, Any]):
    """A client of memcached, as far as the page uses one."""

    def set(self, key: str, value: Any, expire: int) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[FakeSystem]:
    path = tmp_path / "freshness.toml"
    path.write_text(block("toml", "[objects.profile]"))
    opened = FakeSystem(path, SCHEMA)
    yield opened
    opened.close()


@pytest.fixture
def read_both(system: FakeSystem) -> Callable[..., Any]:
    names = run_block("def read_both")
    run_block("def define_loaders")["define_loaders"](system.cache)
    compare: Callable[..., Any] = names["read_both"]
    return compare


def test_by_hand_the_late_replica_is_stored_and_the_comparison_says_so(
    system: FakeSystem, read_both: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    before = run_block("def get_profile")
    memcache = Memcache()

    def old() -> Any:
        with closing(system.replicas[0].connect()) as replica:
            return before["get_profile"](memcache, replica, 42)

    served = old()
    assert served == {"name": "Ada", "totals": [100]}
    assert read_both(system.cache, system.connect, "profile", 42, served) == served
    assert caplog.messages == []
    system.stop_replication()
    with system.connect() as connection:
        before["add_order"](connection, memcache, 42, 2, 50)
    old()  # stores what the late replica shows
    system.start_replication()
    assert read_both(system.cache, system.connect, "profile", 42, old())["totals"] == [100]
    assert caplog.messages == ["profile 42: the present cache is old, the new one is right"]
    assert system.cache.get("profile", 42) == {"name": "Ada", "totals": [100, 50]}
    assert system.find_stale() == []


class Fenced(Memcache):
    """A writer's delete raises the generation; a reader stores under the one that it read first."""

    def __init__(self) -> None:
        super().__init__()
        self.raised = self.seen = 0

    def get(self, key: str, default: Any = None, /) -> Any:
        self.seen = self.raised
        return super().get(key, default)

    def set(self, key: str, value: Any, expire: int) -> None:
        if self.seen == self.raised:
            super().set(key, value, expire)

    def delete(self, key: str) -> None:
        self.raised += 1
        super().delete(key)


def test_neither_a_fence_nor_a_second_delete_keeps_a_late_replica_out(system: FakeSystem) -> None:
    before = run_block("def get_profile")
    memcache = Fenced()

    def read() -> Any:
        with closing(system.replicas[0].connect()) as replica:
            return before["get_profile"](memcache, replica, 42)["totals"]

    memcache.get("profile:42")
    memcache.delete("profile:42")
    memcache.set("profile:42", "of a slow reader", 300)
    assert memcache.get("profile:42") is None
    system.stop_replication()
    with system.connect() as connection:
        before["add_order"](connection, memcache, 42, 2, 50)
    assert read() == [100]
    memcache.delete("profile:42")  # some seconds later
    assert read() == [100]
    system.start_replication()
    assert read() == [100]


def test_the_comparison_says_so_where_the_new_cache_is_old(
    system: FakeSystem, read_both: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    right = system.cache.get("profile", 42)
    system.crash_invalidator()
    system.execute("UPDATE customers SET name = 'Grace'")
    right = {**right, "name": "Grace"}
    assert read_both(system.cache, system.connect, "profile", 42, right) == right
    assert caplog.messages == ["profile 42: the present cache is right, the new one is old"]


def test_from_dogpile_the_function_keeps_its_name(system: FakeSystem, read_both: Callable[..., Any]) -> None:
    read_profile = run_block("def get_profile")["read_profile"]
    before = run_block(
        "make_region().configure",
        replace={"dogpile.cache.pymemcache": "dogpile.cache.memory"},
        read_profile=read_profile,
        open_replica=lambda: closing(system.replicas[0].connect()),
    )
    after = run_block('def profile(customer_id):\n    return cache.get("profile"', cache=system.cache)
    assert before["profile"](42) == after["profile"](42) == {"name": "Ada", "totals": [100]}
    with system.connect() as connection:
        before["add_order_and_invalidate"](connection, 42, 2, 50)
    assert before["profile"](42) == after["profile"](42) == {"name": "Ada", "totals": [100, 50]}
    call = re.search(r"`(read_both\([^`]*\))`", PAGE.read_text())
    assert call is not None
    names = {"read_both": read_both, "cache": system.cache, "connect": system.connect, "customer_id": 42}
    assert eval(call[1], {**names, "profile": before["profile"]})["totals"] == [100, 50]


TESTS: Final = """
from cachalot.settings import cachalot_settings
from shop.models import Product, Review

from appclient.testing.django import CachedTestCase


class Beside(CachedTestCase):
    def test_each_has_its_own_queries(self):
        lamp = Product.objects.create(name="lamp", price=100)
        review = Review.objects.create(product=lamp, text="bright")
        outcomes = []
        self.system.on_read = lambda read: outcomes.append(read.outcome.name)
        for _ in range(2):
            self.assertEqual(Product.objects.get(pk=lamp.pk).name, "lamp")
        self.assertEqual(outcomes, ["FILLED", "HIT"])
        for queries in (1, 0):
            with self.assertNumQueries(queries, using="replica"):
                self.assertEqual(Review.objects.filter(pk=review.pk).get().text, "bright")
        for queries in (1, 1):
            with self.assertNumQueries(queries, using="replica"):
                self.assertEqual(Product.objects.filter(pk=lamp.pk).get().name, "lamp")
"""


def test_cachalot_and_cached_models_run_beside_each_other(tmp_path: Path) -> None:
    write_project(tmp_path, "")
    (tmp_path / "shop" / "tests.py").write_text(TESTS)
    with (tmp_path / "project" / "settings.py").open("a") as settings:
        settings.write(block("python", "CACHALOT_UNCACHABLE_TABLES"))
    found = run_django(tmp_path, "-m", "django", "test", "shop")
    assert found.stderr.endswith("\nOK\n"), found.stderr
