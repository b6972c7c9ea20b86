"""Composites whose key has two columns, on real servers: member rows that move by either, and a race."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, Explanation, LoaderConnection, ReadOutcome
from freshness.errors import ConfigError
from integration.configuration import write_config
from integration.harness import System, call_cli, running_system, wait_for_hits
from integration.servers import Pair

Key = tuple[int, str]

# The same columns under other names, in another order, of other lengths.
TABLES: Final = (
    """CREATE TABLE pages (tenant_id INT, slug VARCHAR(50) COLLATE utf8mb4_bin, v INT, note VARCHAR(9),
  PRIMARY KEY (tenant_id, slug)) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci""",
    """CREATE TABLE blocks (id INT PRIMARY KEY, page VARCHAR(80) COLLATE utf8mb4_bin, tenant BIGINT, v INT,
  KEY (tenant, page)) CHARACTER SET utf8mb4""",
)
PAGE: Final = """[objects.page]
key = ["tenant_id", "slug"]
members = { pages = ["tenant_id", "slug"], blocks = ["tenant", "page"] }
"""


def load_page(database: LoaderConnection, tenant_id: int, slug: str) -> dict[str, Any]:
    key = (tenant_id, slug)
    page = database.query_one("SELECT v FROM pages WHERE tenant_id = %s AND slug = %s", key)
    blocks = database.query("SELECT id, v FROM blocks WHERE tenant = %s AND page = %s", key)
    return {"page": page and page["v"], "blocks": {str(block["id"]): block["v"] for block in blocks}}


def open_cache(system: System) -> Cache:
    cache = system.open_cache()
    cache.loader("page")(load_page)
    return cache


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    with running_system(pair, tmp_path, tables=TABLES, objects=PAGE) as started:
        yield started


@pytest.fixture
def cache(system: System) -> Iterator[Cache]:
    opened = open_cache(system)
    yield opened
    opened.close()


def outcomes_of(cache: Cache, keys: Sequence[Key]) -> list[str]:
    return [each.outcome.name for each in cache.get_many("page", keys, explain=True).values()]


def test_a_member_row_that_moves_by_one_column_of_its_key(system: System, cache: Cache) -> None:
    """The previous and the new owner are invalidated, nobody else. A row with NULL in either column has no owner."""
    first, slug, tenant = keys = [(5, "a"), (5, "b"), (6, "a")]
    system.execute("INSERT INTO pages (tenant_id, slug, v) VALUES (5, 'a', 1), (5, 'b', 2), (6, 'a', 3)")
    system.execute("INSERT INTO blocks VALUES (51, 'a', 5, 0)")
    system.settle()
    steps: list[tuple[str, Key | None]] = [
        ("page = 'b'", slug),
        ("page = 'a', tenant = 6", tenant),
        ("tenant = 5", first),
        ("page = NULL", None),
        ("page = 'a'", first),
        ("tenant = NULL", None),
        ("tenant = 6", tenant),
    ]
    owner: Key | None = first
    for change, new in steps:
        wait_for_hits(cache, "page", keys, system.describe)
        system.execute(f"UPDATE blocks SET {change} WHERE id = 51")
        system.settle()
        assert outcomes_of(cache, keys) == ["FILLED" if key in (owner, new) else "HIT" for key in keys], change
        owner = new
        for number, key in enumerate(keys, start=1):
            assert cache.get("page", key) == {"page": number, "blocks": {"51": 0} if key == owner else {}}
    assert cache.get("page", {"slug": "a", "tenant_id": "6"}) == {"page": 3, "blocks": {"51": 0}}
    # The other member, whose row is found by its primary key.
    wait_for_hits(cache, "page", keys, system.describe)
    system.execute("UPDATE pages SET slug = 'c' WHERE tenant_id = 6")
    system.settle()
    assert outcomes_of(cache, keys) == ["HIT", "HIT", "FILLED"]
    assert [cache.get("page", key)["page"] for key in (tenant, (6, "c"))] == [None, 3]
    # The operator names one by as many values, in the key's order.
    wait_for_hits(cache, "page", keys, system.describe)
    assert "shop:page:5:b" in call_cli("inspect", "page", "5", "b", "-c", system.config_path).stdout
    assert call_cli("invalidate", "page", "5", "b", "-c", system.config_path).returncode == 0
    assert [outcome == "HIT" for outcome in outcomes_of(cache, keys)] == [True, False, True]
    refused = call_cli("inspect", "page", "5", "-c", system.config_path)
    assert refused.returncode != 0
    assert "give tenant_id, slug" in refused.stderr


PLACES: Final[Sequence[Key]] = ((7, "a"), (7, "b"), (8, "b"), (8, "a"), (7, "b"), (8, "a"))
"""A block goes round between them: by the second column, the first, the second, both, both, the first."""


def is_sound(key: Key, value: dict[str, Any], least: int, newest: int) -> bool:
    """Whether a page can be so when the block's change ``least`` is acknowledged and ``newest`` is being written."""
    number = value["blocks"].get("71")
    if number is not None:
        return bool(number >= least and PLACES[number % len(PLACES)] == key)
    return any(PLACES[each % len(PLACES)] != key for each in range(least, newest + 1))


def test_race_of_a_writer_and_readers(system: System, cache: Cache) -> None:
    """After each acknowledgement every hit and every fill has the change (I1): the block moved to its new owner."""
    keys = sorted(set(PLACES))
    system.execute("INSERT INTO blocks VALUES (71, 'a', 7, 0)")
    system.settle()
    acknowledged, writing = [0], [0]
    stopping = threading.Event()
    outcomes: set[ReadOutcome] = set()
    failures: list[BaseException] = []

    def work() -> None:
        own = open_cache(system)
        try:
            while not stopping.is_set():
                least = acknowledged[0]
                read: dict[Key, Explanation] = own.get_many("page", keys, explain=True)
                for key, each in read.items():
                    outcomes.add(each.outcome)
                    if each.outcome in (ReadOutcome.HIT, ReadOutcome.FILLED):
                        assert is_sound(key, each.value, least, writing[0]), f"{least} is acknowledged: {each}"
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 31):
            writing[0] = number
            place = PLACES[number % len(PLACES)]
            system.execute("UPDATE blocks SET tenant = %s, page = %s, v = %s WHERE id = 71", *place, number)
            system.wait_covered()
            acknowledged[0] = number
            if number % 5 == 0:
                # On a MariaDB primary the watermark trails by up to two heartbeats: let it catch up.
                wait_for_hits(cache, "page", keys, system.describe)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    assert {ReadOutcome.HIT, ReadOutcome.FILLED} <= outcomes
    system.settle()
    wait_for_hits(cache, "page", keys, system.describe)
    blocks = {key: value["blocks"] for key, value in cache.get_many("page", keys).items()}
    assert blocks == {key: {"71": 30} if key == PLACES[0] else {} for key in keys}


@pytest.mark.parametrize(
    ("previous", "new", "says"),
    [
        ('"tenant", "page"', '"tenant", "slug"', r"table shop\.blocks has no column slug"),
        ('"tenant", "page"', '"page", "tenant"', "tenant_id in its key has several types"),
        ('"tenant", "page"', '"tenant", "id"', "slug in its key has several types"),
        ('["tenant_id", "slug"], blocks', '["tenant_id", "note"], blocks', "slug in its key in several spellings"),
    ],
)
def test_members_that_do_not_fit_the_key_are_refused(
    pair: Pair, tmp_path: Path, previous: str, new: str, says: str
) -> None:
    for table in TABLES:
        pair.primary.execute(table, database="shop")
    assert previous in PAGE
    path = write_config(
        tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"], objects=PAGE.replace(previous, new)
    )
    with pytest.raises(ConfigError, match=says) as refused:
        Cache.open(path)
    assert refused.value.hint
