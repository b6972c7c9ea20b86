"""The prober on real servers: it finds and removes a planted fault, and raises no alarm over lag alone (F52)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache
from freshness.config.config import load_config
from integration.harness import System, plant, run_cli, running_system, wait_for_hits, wait_until
from integration.servers import Memcached, Pair
from integration.servers.redis import Redis
from invalidator.probe.prober import ProbePlan
from invalidator.probe.process import ProbeProcess
from invalidator.probe.report import ProbeSummary
from invalidator.probe.tally import SWEEP, ProbeTally, Verdict

KEYS = range(1, 9)
SCALES = (0.3, 2.0)
PATIENT: Final[dict[str, Any]] = {"lease_seconds": 10, "max_staleness_seconds": 40}
"""Leases that outlive a pause of the invalidator: old values are served during it, within the bound."""


@contextmanager
def cached_system(
    pair: Pair,
    folder: Path,
    *,
    has_replica: bool = False,
    kind: type[Memcached | Redis] = Memcached,
    **cache: Any,
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
def probing(
    system: System, *, scales_seconds: tuple[float, ...] = SCALES, **plan: Any
) -> Iterator[ProbeTally]:
    """A prober of all keys in a thread of this process; its first sweep is over."""
    config = load_config(system.config_path)
    stopping = threading.Event()
    process = ProbeProcess(
        lambda: config, ProbePlan(share=1.0, scales_seconds=scales_seconds, rate=500, **plan), stopping.is_set
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(process.run)
        try:
            wait_until(
                lambda: process.tally.sweeps or running.done(), "the first sweep is over", system.describe
            )
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


def test_an_old_value_that_is_written_by_hand_is_found_at_the_scale_of_its_change(
    pair: Pair, tmp_path: Path
) -> None:
    """No sweep comes along: the comparison that follows the change finds it."""
    with cached_system(pair, tmp_path) as (system, cache):
        # The last one is for a machine that takes long to plant the value.
        with probing(
            system, scales_seconds=(*SCALES, 10.0, 30.0), sweep_seconds=3600.0, repairs=True
        ) as tally:
            system.execute("UPDATE customers SET v = 1 WHERE id = 5")
            system.wait_covered()
            wait_for_hits(cache, "customer", [5], system.describe)
            plant(system.config, system.registry, "customer", 5, lambda value: {**value, "v": 0})
            assert cache.get("customer", 5)["v"] == 0
            wait_until(lambda: tally.repaired["customer"], "it is removed", system.describe)
            assert wait_for_hits(cache, "customer", KEYS, system.describe)[5].value["v"] == 1
        summary = ProbeSummary.of(tally)
        assert (summary.losses, summary.repaired, summary.not_repaired) == (1, 1, 0)
        assert {key[1] for key, each in tally.verdicts.items() if key[2] == "loss" and each} <= {
            "0.3",
            "2",
            "10",
        }


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


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_one_sweep_on_the_command_line(pair: Pair, tmp_path: Path) -> None:
    with cached_system(pair, tmp_path) as (system, _):
        arguments = ("probe", "--config", system.config_path, "--share", "1", "--once", "--json")
        clean = run_cli(*arguments)
        answer = json.loads(clean.stdout)
        assert (clean.returncode, answer["losses"]) == (0, 0), clean
        [result] = answer["results"]
        assert (result["object"], result["scale"], result["right"]) == ("customer", "sweep", len(KEYS))

        plant(system.config, system.registry, "customer", 2, lambda value: {**value, "name": "planted"})
        found = run_cli(*arguments[:-1], "--repair")
        assert found.returncode == 5, found
        assert "1 poisoned, 1 removed" in found.stdout
        assert "planted" in found.stdout
        again = run_cli(*arguments)
        assert (again.returncode, json.loads(again.stdout)["losses"]) == (0, 0), again
