"""A replica is promoted while rows are written and read, and the invalidator goes on with it: nobody edits its file.

The cache is kept after a planned switchover, and starts empty after a crash. Where two servers are writable nobody is
followed, and nothing is stored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, ReadOutcome
from freshness.database.connection import executed_position
from integration.configuration import write_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, call_cli, wait_covered, wait_until
from integration.servers import DatabaseServer, Memcached, Pair
from integration.servers.haproxy import Haproxy
from integration.servers.program import InvalidatorProcess
from integration.servers.stable_name import StableName
from invalidator.process.status import read_nodes

KEYS: Final = tuple(range(1, 21))
WRITES_MAX: Final = 100_000
BREATH_SECONDS: Final = 0.01
LINEAGE: Final = "shop/-"


class Load(threading.Thread):
    """Counts up ``v`` of every row on the current primary, and keeps reading through a cache."""

    def __init__(self, path: Path, primary: DatabaseServer) -> None:
        super().__init__(name="load", daemon=True)
        self.primary: DatabaseServer | None = primary
        self.written = dict.fromkeys(KEYS, 0)
        self.error: BaseException | None = None
        self.writing = threading.Lock()
        self._path = path
        self._ending = threading.Event()

    def run(self) -> None:
        cache = Cache.open(self._path)
        try:
            for number in range(1, WRITES_MAX):
                if self._ending.wait(BREATH_SECONDS):
                    return
                key = KEYS[number % len(KEYS)]
                with self.writing:
                    if self.primary is not None:
                        self.primary.execute(f"UPDATE customers SET v = {number} WHERE id = {key}", database="shop")
                        self.written[key] = number
                value = cache.get("customer", key)
                assert value is not None
                assert value["v"] <= number, "from the future"
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error
        finally:
            cache.close()

    def move(self, primary: DatabaseServer | None) -> None:
        """Write there from now on, or nowhere; no write is under way then."""
        with self.writing:
            self.primary = primary

    def stop(self) -> None:
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error


class Scene:
    """A pair whose replica is read-only, a node, and an invalidator that may adopt promotions."""

    def __init__(
        self,
        pair: Pair,
        node: Memcached,
        folder: Path,
        *,
        adopts: bool = True,
        name: StableName | Haproxy | None = None,
    ) -> None:
        self.pair, self.previous, self.present = pair, pair.primary, pair.replica
        self.previous.execute(CUSTOMERS_TABLE, database="shop")
        for key in KEYS:
            self.previous.execute(f"INSERT INTO customers VALUES ({key}, 'c', 0)", database="shop")
        if pair.primary.flavor == "mariadb":  # else app, as whom heartbeats are written, is above read_only
            with self.previous.connect(user="root") as connection, connection.cursor() as cursor:
                cursor.execute("REVOKE READ_ONLY ADMIN ON *.* FROM app@'%'")
        pair.wait_caught_up()
        self.present.set_read_only(1)
        replicas = [self.present.url] if name is None else [self.present.url, self.previous.url]
        self.path = write_config(
            folder,
            self.previous.flavor,
            self.previous.url if name is None else self.previous.url.replace(str(self.previous.port), str(name.port)),
            [node.address],
            replicas=replicas,
            shard={"adopt_promotions": adopts},
            cache=CACHE,
            stream=STREAM,
        )
        self.text = self.path.read_bytes()
        self.invalidator = InvalidatorProcess(self.path)

    def state(self) -> dict[str, Any]:
        [state] = read_nodes(self.invalidator._config)
        return state

    def describe(self) -> str:
        return f"{self.state()}\n{self.invalidator.log()[-4000:]}"

    def outcomes(self) -> dict[int, tuple[ReadOutcome, int]]:
        cache = Cache.open(self.path)
        try:
            found = cache.get_many("customer", KEYS, explain=True)
            return {key: (each.outcome, each.value["v"]) for key, each in found.items()}
        finally:
            cache.close()

    def wait_true_hits(self, load: Load) -> None:
        """Every row is a hit with the value that was written last. Nothing is written during the wait."""

        def are_hits() -> bool:
            found = self.outcomes()
            for key, (outcome, v) in found.items():
                assert outcome is not ReadOutcome.HIT or v == load.written[key], (key, self.describe())
            return all(outcome is ReadOutcome.HIT for outcome, _ in found.values())

        self.wait_acknowledged()
        wait_until(are_hits, "all are hits", self.describe)

    def wait_acknowledged(self) -> None:
        with self.present.connect() as connection:
            head = executed_position(connection, self.present.flavor)
        wait_covered(self.invalidator._config, {LINEAGE: head}, self.describe)

    def promote(self) -> None:
        self.present.remove_sources()
        self.present.set_read_only(0)

    def demote(self) -> None:
        """Make the previous primary a replica of the current one."""
        if self.previous.flavor == "mariadb":
            with self.previous.connect(user="root") as connection, connection.cursor() as cursor:
                cursor.execute("SET GLOBAL gtid_slave_pos = @@global.gtid_binlog_pos")
        self.previous.replicate_from(self.present)

    def wait_adopted(self, load: Load, *, times: int = 1) -> None:
        wait_until(lambda: self.invalidator.log().count("adopted: ") == times, "it is adopted", self.describe)
        wait_until(lambda: self.state()["state"] == "open", "the node is open", self.describe)
        assert self.path.read_bytes() == self.text


@contextmanager
def scene_of(
    pair: Pair, node: Memcached, folder: Path, *, adopts: bool = True, name: StableName | Haproxy | None = None
) -> Iterator[tuple[Scene, Load]]:
    """``name``: the address of the primary in the file, whose replicas are then both servers."""
    scene = Scene(pair, node, folder, adopts=adopts, name=name)
    with ExitStack() as stack:
        stack.enter_context(scene.invalidator)
        load = Load(scene.path, scene.previous)
        load.start()
        stack.callback(load.stop)
        wait_until(lambda: min(load.written.values()) > 0, "every row was written")
        yield scene, load


def test_a_planned_switchover_is_adopted_and_the_cache_is_kept(
    own_pair: Pair, memcached: Memcached, tmp_path: Path
) -> None:
    with scene_of(own_pair, memcached, tmp_path) as (scene, load):
        life = scene.state()["life"]
        with load.writing:
            load.primary = None
            scene.previous.set_read_only(1)
        own_pair.wait_caught_up()
        scene.promote()
        scene.demote()
        load.primary = scene.present
        scene.wait_adopted(load)
        written = dict(load.written)
        wait_until(lambda: all(load.written[key] > written[key] for key in KEYS), "rows are written there")
        load.stop()
        assert scene.state()["life"] == life
        scene.wait_true_hits(load)
        checked = call_cli("check", "-c", scene.path, "--json")
        assert checked.returncode == 0, checked.stdout
        assert f"{scene.previous.port} is read-only" in checked.stdout
        assert not any(rule in checked.stdout for rule in ("not-replicating", "primary-changed", "read_only = OFF"))
        scene.previous.stop_replication()
        scene.present.execute("UPDATE customers SET v = v + 1", database="shop")
        load.written = {key: v + 1 for key, v in load.written.items()}
        scene.wait_acknowledged()
        assert {key: v for key, (_, v) in scene.outcomes().items()} == load.written
        scene.wait_true_hits(load)
        inspected = call_cli("inspect", "customer", "1", "-c", scene.path, "--json")
        assert json.loads(inspected.stdout)["equals_primary"] is True, inspected.stdout
        probed = call_cli("probe", "--once", "--share", "1", "-c", scene.path, "--json")
        assert probed.returncode == 0, probed.stdout


@pytest.mark.slow
def test_a_crash_is_followed_by_the_replica_that_was_promoted_also_after_a_restart(
    own_pair: Pair, memcached: Memcached, tmp_path: Path
) -> None:
    with scene_of(own_pair, memcached, tmp_path) as (scene, load):
        life = scene.state()["life"]
        with load.writing:
            load.primary = None
            own_pair.wait_caught_up()
            scene.previous.kill()
        scene.promote()
        load.primary = scene.present
        scene.wait_adopted(load)
        wait_until(
            lambda: scene.state().get("life", life) != life and scene.state()["state"] == "open",
            "the node begins a new life: nothing shows what the previous primary had",
            scene.describe,
        )
        written = dict(load.written)
        wait_until(lambda: all(load.written[key] > written[key] for key in KEYS), "rows are written there")
        load.stop()
        scene.wait_true_hits(load)
        scene.invalidator.kill()
        scene.invalidator.launch()
        scene.wait_adopted(load, times=2)
        scene.wait_true_hits(load)


def test_two_writable_servers_are_refused(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    with scene_of(own_pair, memcached, tmp_path) as (scene, load):
        load.stop()
        scene.promote()
        wait_until(lambda: "2 servers of shop/- are writable at a time" in scene.invalidator.log(), "it is told")
        wait_until(lambda: scene.state()["state"] != "open", "the lease has run out", scene.describe)
        for _ in range(3):
            found = scene.outcomes()
            assert {outcome for outcome, _ in found.values()} == {ReadOutcome.NO_RECORD}
        assert "adopted: " not in scene.invalidator.log()
        scene.present.set_read_only(1)
        wait_until(lambda: scene.state()["state"] == "open", "the node is open again", scene.describe)


def test_a_promotion_that_may_not_be_adopted_is_not(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    with scene_of(own_pair, memcached, tmp_path, adopts=False) as (scene, load):
        load.stop()
        scene.previous.set_read_only(1)
        own_pair.wait_caught_up()
        scene.promote()
        wait_until(lambda: "heartbeat not written" in scene.invalidator.log(), "it is told", scene.describe)
        wait_until(lambda: scene.state()["state"] != "open", "the lease has run out", scene.describe)
        assert "adopted: " not in scene.invalidator.log()
