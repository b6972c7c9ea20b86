"""The prober on real servers: it finds and removes a planted fault, and raises no alarm over lag alone (F52)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache
from freshness.config.config import Config, load_config
from freshness.database.schema import load_registry
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    System,
    plant,
    run_cli,
    running_system,
    wait_covered,
    wait_for_hits,
    wait_until,
)
from integration.invalidator.test_reshard import deployment
from integration.invalidator.test_reshard import open_cache as open_reshard_cache
from integration.servers import Memcached, Pair
from integration.servers.program import InvalidatorProcess
from integration.servers.redis import Redis
from integration.shards import start_shards
from integration.vitess import test_keyspace as vitess
from invalidator.probe.prober import ProbePlan
from invalidator.probe.process import ProbeProcess
from invalidator.probe.report import NO_ANSWER, ProbeSummary
from invalidator.probe.tally import SWEEP, VERDICTS, ProbeTally, Verdict

KEYS = range(1, 9)
SCALES = (0.3, 2.0)
PATIENT: Final[dict[str, Any]] = {"lease_seconds": 10, "max_staleness_seconds": 40}
"""Leases that outlive a pause of the invalidator: old values are served during it, within the bound."""


@contextmanager
def cached_system(
    pair: Pair, folder: Path, *, has_replica: bool = False, kind: type[Memcached | Redis] = Memcached, **cache: Any
) -> Iterator[tuple[System, Cache]]:
    """Eight customers, all of them cached."""
    settings = {"backend": kind.technology, **cache}
    nodes: list[Any] = [kind(), kind()]
    with running_system(pair, folder, nodes=nodes, has_replica=has_replica, cache=settings) as system:
        rows = ", ".join(f"({key}, 'n{key}', 0)" for key in KEYS)
        system.execute(f"INSERT INTO customers VALUES {rows}")
        system.settle()
        cache_client = system.open_cache()
        try:
            wait_for_hits(cache_client, "customer", KEYS, system.describe)
            yield system, cache_client
        finally:
            cache_client.close()


@contextmanager
def probing(system: System, *, scales_seconds: tuple[float, ...] = SCALES, **plan: Any) -> Iterator[ProbeTally]:
    """A prober of all keys in a thread of this process; its first sweep is over."""
    config = load_config(system.config_path)
    stopping = threading.Event()
    process = ProbeProcess(
        lambda: config, ProbePlan(share=1.0, scales_seconds=scales_seconds, rate=500, **plan), stopping.is_set
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(process.run)
        try:
            wait_until(lambda: process.tally.sweeps or running.done(), "the first sweep is over", system.describe)
            yield process.tally
        finally:
            stopping.set()
            running.result()


def count(tally: ProbeTally, *verdicts: Verdict) -> int:
    """Comparisons with one of these verdicts."""
    return sum(tally.total(each) for each in verdicts)


def change_outside_the_log(system: System, sql: str) -> None:
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(sql)


@pytest.mark.parametrize("kind", [Memcached, Redis])
def test_a_row_that_was_changed_outside_the_log_is_found_and_its_entry_removed(
    pair: Pair, kind: type[Memcached | Redis], tmp_path: Path
) -> None:
    with cached_system(pair, tmp_path, kind=kind) as (system, cache):
        with probing(system, sweep_seconds=0.5, repairs=True) as tally:
            change_outside_the_log(system, "UPDATE customers SET name = 'other' WHERE id = 3")
            assert cache.get("customer", 3)["name"] == "n3", "it was invalidated: there is no fault to find"
            wait_until(lambda: tally.repaired["customer"], "it is removed", system.describe)
            found = wait_for_hits(cache, "customer", KEYS, system.describe)
            assert found[3].value["name"] == "other"
            swept = tally.sweeps
            wait_until(lambda: tally.sweeps > swept + 1, "all are compared again", system.describe)
        summary = ProbeSummary.of(tally)
        assert (summary.losses, summary.repaired, summary.not_repaired, summary.exit_code) == (1, 1, 0, 5)
        (example,) = summary.examples
        assert "'n3'" in example.cached
        assert "'other'" in example.primary
        assert {key[1] for key, each in tally.verdicts.items() if key[2] == "loss" and each} == {SWEEP}


def test_an_old_value_that_is_written_by_hand_is_found_at_the_scale_of_its_change(pair: Pair, tmp_path: Path) -> None:
    """No sweep comes along: the comparison that follows the change finds it."""
    with cached_system(pair, tmp_path) as (system, cache):
        # The last one is for a machine that takes long to plant the value.
        with probing(system, scales_seconds=(*SCALES, 10.0, 30.0), sweep_seconds=3600.0, repairs=True) as tally:
            system.execute("UPDATE customers SET v = 1 WHERE id = 5")
            system.wait_covered()
            wait_for_hits(cache, "customer", [5], system.describe)
            plant(system.config, system.registry, "customer", 5, lambda value: {**value, "v": 0})
            assert cache.get("customer", 5)["v"] == 0
            wait_until(lambda: tally.repaired["customer"], "it is removed", system.describe)
            assert wait_for_hits(cache, "customer", KEYS, system.describe)[5].value["v"] == 1
        summary = ProbeSummary.of(tally)
        assert (summary.losses, summary.repaired, summary.not_repaired) == (1, 1, 0)
        assert {key[1] for key, each in tally.verdicts.items() if key[2] == "loss" and each}.isdisjoint({SWEEP})


@pytest.mark.slow
def test_lag_alone_is_no_alarm(pair: Pair, tmp_path: Path) -> None:
    """The replica stands still, then the invalidator; old values are served, within the bound, and then disappear."""
    with (
        cached_system(pair, tmp_path, has_replica=True, **PATIENT) as (system, cache),
        probing(system, sweep_seconds=0.5) as tally,
    ):
        pair.replica.stop_replication()
        try:
            system.execute("UPDATE customers SET v = 1")
            system.wait_covered()
            cache.get_many("customer", KEYS)
            changes = len(KEYS)
            wait_until(lambda: tally.changes >= changes, "the prober has seen the changes", system.describe)
            _wait_compared(tally, changes, system)
        finally:
            pair.replica.start_replication()
        assert count(tally, "lag", "loss", "unknown") == 0, "nothing old was served"

        system.settle()
        wait_for_hits(cache, "customer", KEYS, system.describe)
        system.invalidator.pause()
        try:
            system.execute("UPDATE customers SET v = 2")
            wait_until(lambda: count(tally, "lag"), "lag is seen", system.describe)
            # Long enough for a suspect to be looked at as often as it takes to condemn it.
            looked = tally.sweeps
            wait_until(lambda: tally.sweeps > looked + 8, "more sweeps", system.describe)
        finally:
            system.invalidator.resume()
        system.settle()
        wait_for_hits(cache, "customer", KEYS, system.describe)
        wait_until(lambda: not tally.suspects, "no suspect is left", system.describe)
        assert count(tally, "loss", "unknown") == 0, tally
        assert sum(tally.lags.values()) == count(tally, "lag")
        assert ProbeSummary.of(tally).exit_code == 0


def _wait_compared(tally: ProbeTally, changes: int, system: System) -> None:
    """Return when ``changes`` changes were compared at both scales."""

    def is_done() -> bool:
        compared = sum(each for key, each in tally.verdicts.items() if key[1] != SWEEP)
        return compared + sum(tally.dropped.values()) >= changes * len(SCALES)

    wait_until(is_done, "all scales are over", system.describe)


# -- one sweep on the command line -------------------------------------------------------------------------

SEAT_TABLE: Final = (
    "CREATE TABLE seats (hall VARCHAR(20) COLLATE utf8mb4_bin, seat BINARY(3), price DECIMAL(8,2), at DATETIME, "
    "PRIMARY KEY (hall, seat, price, at))"
)
SEAT: Final = """[objects.seat]
table = "seats"
[objects.seat_by_price]
table = "seats"
key = ["price", "at", "seat", "hall"]
[objects.seats_of_hall]
table = "seats"
key = "hall"
order_by = ["price desc", "seat"]
limit = 2
"""
SEAT_KEY: Final = ("A: ü~", b"a\x00b", "1.50", "2026-01-31 10:00:00")
POISON: Final = "poison"
PLANTED: Final = {"customer": "name", "order": "total"}
"""The column whose value is another in what is planted."""


def sweep(path: Path, *options: str, tries_max: int = 5) -> tuple[int, dict[str, Any]]:
    """Compare all entries once; each verdict beside its number. Again if a server did not answer in time: on a busy
    machine that proves nothing."""
    arguments = ("--once", "--share", "1", "--rate", "10000", "--json", *options)
    for _ in range(tries_max):
        ended = run_cli("probe", "--config", path, *arguments)
        answer = json.loads(ended.stdout)
        answer |= {each: sum(result[each] for result in answer["results"]) for each in VERDICTS}
        if ended.returncode != NO_ANSWER or answer["losses"]:
            break
    return ended.returncode, answer


def plant_poison(config: Config, key: int | str, name: str = "customer") -> str:
    """Put another value under a live entry; return the item's key."""

    def change(value: Any) -> Any:
        return [] if isinstance(value, list) else {**value, PLANTED[name]: POISON}

    return plant(config, load_registry(config), name, key, change)


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_one_sweep_compares_every_kind_of_entry(pair: Pair, tmp_path: Path) -> None:
    """Rows and the absence of one, a key of four columns in two orders, lists; composites are counted alone."""
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE, SEAT_TABLE)
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + PROFILE + SEAT) as system:
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'n', 0)", key)
        system.execute("INSERT INTO seats VALUES (%s, %s, %s, %s)", *SEAT_KEY)
        system.settle()
        cache: Cache = system.open_cache()
        cache.loader("profile")(lambda database, key: database.query_one("SELECT %s AS id", (key,)))
        hall, seat, price, at = SEAT_KEY
        for name, keys in {
            "customer": [*KEYS, 999],
            "profile": [1, 2],
            "seat": [SEAT_KEY],
            "seat_by_price": [(price, at, seat, hall)],
            "seats_of_hall": [hall, "nowhere"],
        }.items():
            wait_for_hits(cache, name, keys, system.describe)
        cache.close()
        code, clean = sweep(system.config_path)
        rows = len(KEYS) + 5
        assert (code, clean["right"], clean["uncomparable"], clean["losses"]) == (0, rows, 2, 0), clean

        item = plant_poison(system.config, 7)
        plant_poison(system.config, hall, "seats_of_hall")
        code, found = sweep(system.config_path)
        assert (code, found["losses"], found["right"], found["unknown"]) == (5, 2, rows - 2, 0), found
        by_object = {each["object"]: each for each in found["examples"]}
        assert by_object["customer"]["item"] == item
        assert POISON in by_object["customer"]["cached"]
        assert POISON not in by_object["customer"]["primary"]
        assert by_object["seats_of_hall"]["cached"] == "[]"

        shown = run_cli("probe", "--config", system.config_path, "--share", "1", "--once", "--repair")
        assert (shown.returncode, "2 poisoned, 2 removed" in shown.stdout) == (5, True), shown
        assert POISON in shown.stdout
        code, again = sweep(system.config_path)
        assert (code, again["losses"], again["right"]) == (0, 0, rows - 2), again

        stopped = system.nodes[0]
        stopped.stop()
        code, answer = sweep(system.config_path, tries_max=1)
        assert code == NO_ANSWER, answer
        assert any(stopped.address in error for error in answer["errors"])
        assert answer["right"] > 0, "the other node was not swept"


def values_of(cache: Cache, name: str, keys: Sequence[int]) -> dict[int, Any]:
    """What is served; all of them hits."""
    found = cache.get_many(name, keys, explain=True)
    assert all(each.is_hit for each in found.values())
    return {key: each.value for key, each in found.items()}


def sweep_two_shards(
    path: Path, cache: Cache, keys: Mapping[str, Sequence[int]], describe: Callable[[], str]
) -> None:
    """Everything is cached and clean; of each object the last key is poisoned, found, and removed, and no other."""
    for name, of_object in keys.items():
        wait_for_hits(cache, name, of_object, describe)
    right = {name: values_of(cache, name, of_object) for name, of_object in keys.items()}
    rows = len(keys["customer"]) + len(keys["order"])
    code, clean = sweep(path)
    assert (code, clean["right"], clean["uncomparable"]) == (0, rows, len(keys["profile"])), (clean, describe())

    config = load_config(path)
    items = sorted(plant_poison(config, keys[name][-1], name) for name in PLANTED)
    code, found = sweep(path)
    assert (code, found["losses"], found["right"], found["unknown"]) == (5, 2, rows - 2, 0), found
    assert sorted(each["item"] for each in found["examples"]) == items
    code, found = sweep(path, "--repair")
    assert (code, found["losses"], found["repaired"]) == (5, 2, 2), found

    for name in PLANTED:
        *good, bad = keys[name]
        assert values_of(cache, name, good) == {key: right[name][key] for key in good}, "a good one was touched"
        assert not cache.get(name, bad, explain=True).is_hit
        assert wait_for_hits(cache, name, [bad], describe)[bad].value == right[name][bad]
    code, clean = sweep(path)
    assert (code, clean["losses"], clean["right"]) == (0, 0, rows), clean


SHARD_KEYS: Final = range(1, 41)


def test_every_shard_is_swept(tmp_path: Path) -> None:
    """An order's key does not tell its shard; a row that a reshard left on the wrong shard is nobody's."""
    with ExitStack() as stack:
        # Without its primary the lease of a shard lapses, and its entries are nobody's: not before they are swept
        lasting = {"lease_seconds": 90, "max_staleness_seconds": 300}
        made, router = stack.enter_context(deployment("mariadb", tmp_path, ["-80", "80-"], cache=lasting))
        for key in SHARD_KEYS:
            router.execute(key, "INSERT INTO customers VALUES (%s, %s, 0)", key, f"customer {key}")
            router.execute(key, "INSERT INTO orders VALUES (%s, %s, %s)", 100 + key, key, key)
        customers = sorted(SHARD_KEYS, key=lambda key: router.find(key).name == "80-")
        first, last = router.find(customers[0]), router.find(customers[-1])
        assert (first.name, last.name) == ("-80", "80-")
        first.primary.execute("INSERT INTO customers VALUES (%s, 'left', 0)", customers[-1], database="shop")
        for shard in router.shards:
            shard.wait_caught_up()
        made.wait_covered(router.shards)
        cache = open_reshard_cache(made.path)
        stack.callback(cache.close)
        keys = {"customer": customers, "order": [100 + key for key in customers], "profile": customers[:5]}
        sweep_two_shards(made.path, cache, keys, made.describe)

        last.primary.stop()
        code, answer = sweep(made.path, tries_max=1)
        assert code == NO_ANSWER, answer
        of_first = [key for key in customers if router.find(key) is first]
        rows = len(keys["customer"]) + len(keys["order"])
        assert answer["right"] == len(of_first), "the other shard was not swept"
        assert (answer["unknown"], answer["losses"]) == (rows - len(of_first), 0), answer


def test_a_keyspace_of_vitess_is_swept_on_its_shards(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(start_shards("mysql", vitess.NAMES, replicas=0))
        for shard in cluster.shards:
            vitess.prepare(shard)
        made = stack.enter_context(vitess.deployed(cluster.shards, tmp_path))
        for key in SHARD_KEYS:
            made.execute(key, "INSERT INTO customers VALUES (%s, %s, 0)", key, f"customer {key}")
            made.execute(key, "INSERT INTO orders VALUES (%s, %s, %s)", 100 + key, key, key)
        invalidator = stack.enter_context(InvalidatorProcess(made.path))
        wait_covered(made.config, made.heads(), invalidator.log)
        cache = vitess.open_cache(made.path)
        stack.callback(cache.close)
        customers = sorted(SHARD_KEYS, key=cluster.shards[1].contains)
        keys = {"customer": customers, "order": [100 + key for key in customers], "profile": customers[:5]}
        sweep_two_shards(made.path, cache, keys, invalidator.log)
