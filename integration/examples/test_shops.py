"""The example applications: the short form of `make examples`, and each of them while something fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

import psutil
import pytest

from examples.scoreboard.load import WITHDRAWN, Browser, Findings, Ledger
from examples.scoreboard.profile import profile_shop
from examples.scoreboard.run import (
    DELAY_SECONDS,
    PRODUCTS,
    RunningShop,
    count_poisoned,
    put_under_load,
    read_page,
    run_shop,
    running_shop,
    score_load,
)
from examples.scoreboard.shop import SHOPS
from examples.scoreboard.tally import read_tally
from integration.harness import System, wait_until
from integration.servers import Flavor, database_pair

READS: Final = 4000
SEED: Final = 7
READS_WITH_A_FAULT: Final = 1500
HERD: Final = 40
WORKERS: Final = 2
LOADS_MAX: Final = 2 * WORKERS
"""A process loads a key at most twice for all that ask for it at once (docs/adr/0047)."""

LOAD_SECONDS: Final = 1.0

COLD: Final = 987_654

QUICK: Final = {("django", "mariadb"), ("fastapi", "mysql"), ("flask", "mariadb")}
"""The others are for a release."""


def marks_of(name: str, flavor: str) -> list[pytest.MarkDecorator]:
    return [] if (name, flavor) in QUICK else [pytest.mark.long]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, flavor), id=f"{name}-{flavor}", marks=marks_of(name, flavor))
        for name in SHOPS
        for flavor in ("mariadb", "mysql")
    ],
)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningShop]:
    """An application with the library, for all tests of this file."""
    name: str
    flavor: Flavor
    name, flavor = request.param
    with (
        database_pair(flavor) as pair,
        running_shop(SHOPS[name], pair, "freshness", tmp_path_factory.mktemp(name)) as made,
    ):
        yield made


@pytest.fixture
def system(running: RunningShop) -> System:
    assert running.system is not None
    return running.system


def test_no_page_shows_the_past_and_nothing_old_is_kept(running: RunningShop) -> None:
    score = score_load(running, reads=READS, seed=SEED)
    assert (score.own_past, score.old, score.withdrawn, score.poisoned) == (0, 0, 0, 0), score
    assert score.reads >= READS
    assert score.orders > 0
    assert score.failures > 0  # views that fail after their commit are among the orders
    assert score.hit_rate is not None
    assert score.hit_rate > 0.5


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("django", "signals"),
        pytest.param("fastapi", "aiocache", marks=pytest.mark.slow),
        pytest.param("flask", "dogpile", marks=pytest.mark.slow),
    ],
)
def test_the_same_load_finds_the_past_in_a_cache_that_is_deleted_after_the_commit(
    name: str, cache: str, tmp_path: Path
) -> None:
    with database_pair("mariadb") as pair:
        score = run_shop(SHOPS[name], pair, cache, tmp_path, reads=READS, seed=SEED)
    assert score.own_past > 0, score
    assert score.poisoned > 0, score


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_rows_without_the_orm_are_right_too(name: str, tmp_path: Path) -> None:
    with database_pair("mariadb") as pair:
        score = run_shop(SHOPS[name], pair, "rows", tmp_path, reads=READS, seed=SEED)
    assert score.is_right, score
    assert score.hit_rate is not None
    assert score.hit_rate > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_a_profile_names_the_parts_of_a_page(name: str, tmp_path: Path) -> None:
    with database_pair("mariadb") as pair:
        costs = dict(profile_shop(SHOPS[name], pair, tmp_path))
    assert costs["no cache"].ratio == 1
    for each in costs.values():
        assert each.milliseconds > 0
        assert sum(each.parts.values()) == pytest.approx(1, abs=0.01)
    ours = costs["`appclient.sqlalchemy`"].parts
    assert min(ours[part] for part in ("framework", "ORM", "adapter", "cache")) > 0


def version_of(page: dict[str, dict[str, object]] | None, key: int) -> int:
    assert page is not None, "the page was refused"
    version = page[str(key)]["version"]
    assert isinstance(version, int)
    return version


@contextmanager
def stopped_streams(system: System) -> Iterator[None]:
    """Neither the replica nor the invalidator hears of a commit: only a commit token leads to the new value."""
    system.pair.replica.stop_replication()
    system.invalidator.pause()
    try:
        yield
    finally:
        system.invalidator.resume()
        system.pair.replica.start_replication()
        system.settle()


@contextmanager
def logged(system: System) -> Iterator[None]:
    """Both servers keep a table of the statements that they are sent."""
    servers = (system.pair.primary, system.pair.replica)
    for server in servers:
        server.execute("SET GLOBAL log_output = 'TABLE'")
        server.execute("SET GLOBAL general_log = 1")
    try:
        yield
    finally:
        for server in servers:
            server.execute("SET GLOBAL general_log = 0")


@contextmanager
def slow_loads(system: System, table: str) -> Iterator[None]:
    """The replica answers no read of the table for longer than processes wait for each other's fill."""
    with system.pair.replica.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {table} WRITE")
        yield
        time.sleep(LOAD_SECONDS)
        cursor.execute("UNLOCK TABLES")


def count_loads(system: System, table: str, key: int) -> int:
    """Of a row, as its SELECTs on both servers."""
    sql = (
        "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE %s AND argument LIKE %s "
        "AND argument NOT LIKE '%%general_log%%'"
    )
    servers = (system.pair.primary, system.pair.replica)
    return sum(server.execute(sql, f"SELECT%{table}%", f"%{key}%")[0][0] for server in servers)


def test_a_herd_at_a_cold_key_loads_it_a_few_times(running: RunningShop, system: System) -> None:
    table = running.shop.products
    system.execute(
        f"INSERT INTO {table} (id, category_id, name, price, stock, is_sold, changed, version) "
        "VALUES (%s, 1, 'cold', 9.90, 1000, 1, NOW(6), 5)",
        COLD,
    )
    system.settle()
    with logged(system), ThreadPoolExecutor(HERD) as pool:
        with slow_loads(system, table):
            herd = [pool.submit(read_page, running.server.port, f"/products/{COLD}") for _ in range(HERD)]
        pages = [each.result() for each in herd]
        loads = count_loads(system, table, COLD)
    assert pages == [{str(COLD): {"version": 5, "price": "9.90", "stock": 1000}}] * HERD
    assert 1 <= loads <= LOADS_MAX


def test_a_price_that_was_rolled_back_is_never_shown(running: RunningShop, system: System) -> None:
    key, findings, lock = 250, Findings(), Lock()
    browsers = [Browser(running.server.port, Ledger(), findings, lock) for _ in range(5)]
    before = version_of(read_page(running.server.port, f"/products/{key}"), key)

    def act(number: int) -> None:
        for _ in range(10):
            if number == 0:
                browsers[number].order(key, "roll back")
            else:
                browsers[number].read(f"/products/{key}", 2)
        browsers[number].close()

    with ThreadPoolExecutor(len(browsers)) as pool:
        list(pool.map(act, range(len(browsers))))
    assert (findings.orders, findings.refused, findings.withdrawn) == (10, 0, 0)
    assert findings.statuses == {200: 50}
    system.settle()
    page = read_page(running.server.port, f"/products/{key}")
    assert version_of(page, key) == before
    assert page is not None
    assert page[str(key)]["price"] != WITHDRAWN


def test_a_client_sees_its_commit_though_the_view_failed_after_it(running: RunningShop, system: System) -> None:
    key, findings = 260, Findings()
    browser = Browser(running.server.port, Ledger(), findings, Lock())
    system.settle()
    before = version_of(read_page(running.server.port, f"/products/{key}"), key)
    with stopped_streams(system):
        browser.order(key, "fail")
        answer = browser.read(f"/products/{key}", 2)
        stranger = read_page(running.server.port, f"/products/{key}")
    browser.close()
    assert findings.statuses == {500: 1, 200: 1}
    assert answer is not None
    assert version_of(answer["products"], key) == before + 1
    assert version_of(stranger, key) == before, "nobody but the cookie tells of the commit"


def workers_of(running: RunningShop) -> set[int]:
    """The process ids of those that serve. uvicorn has a helper of multiprocessing beside them."""
    found = set()
    for child in psutil.Process(running.server.pid).children():
        with suppress(psutil.NoSuchProcess):  # it may have ended
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


def assert_right(running: RunningShop, findings: Findings) -> None:
    assert (findings.own_past, findings.old, findings.withdrawn, findings.refused) == (0, 0, 0, 0), findings
    assert findings.orders > 0
    assert count_poisoned(running) == 0


def test_sessions_that_are_done_at_once_are_disturbed_all_the_same(running: RunningShop) -> None:
    calls: list[str] = []
    put_under_load(running, 0, 13, half_way=lambda: calls.append("half way"), read_on_seconds=0)
    assert calls == ["half way"]


@pytest.mark.slow
def test_a_worker_that_is_killed_under_load_is_replaced(running: RunningShop) -> None:
    before = workers_of(running)
    assert len(before) == WORKERS

    def kill_one() -> None:
        psutil.Process(min(before)).kill()
        wait_until(lambda: len(workers_of(running) - before) == 1, "another worker is there")

    findings, _ = put_under_load(running, READS_WITH_A_FAULT, 11, half_way=kill_one, read_on_seconds=1)
    assert workers_of(running) & before == before - {min(before)}
    assert_right(running, findings)


@pytest.mark.slow
def test_pages_are_right_without_the_replica_and_hits_come_back(running: RunningShop, system: System) -> None:
    replica = running.pair.replica

    def lose_replica() -> None:
        replica.kill()
        started = read_tally(running.tally)[1]
        wait_until(lambda: read_tally(running.tally)[1] > started + READS_WITH_A_FAULT, "pages are read without it")
        replica.start()
        replica.replicate_from(running.pair.primary, delay_seconds=DELAY_SECONDS)

    findings, _ = put_under_load(running, 2 * READS_WITH_A_FAULT, 12, half_way=lose_replica, read_on_seconds=1)
    assert_right(running, findings)
    system.settle()
    path = f"/basket?keys={','.join(map(str, range(1, PRODUCTS + 1)))}"

    def are_all_hits() -> bool:
        hits, reads = read_tally(running.tally)
        assert read_page(running.server.port, path) is not None
        return read_tally(running.tally) == (hits + PRODUCTS, reads + PRODUCTS)

    wait_until(are_all_hits, "all products are hits", system.describe)
