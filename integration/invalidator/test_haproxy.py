"""HAProxy before the servers of a shard. It leads to the primary, which is replaced, or to each server in turn."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from appclient import Cache
from integration.configuration import write_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, call_cli, wait_for_hits, wait_until
from integration.invalidator.test_promotion import KEYS, Load, Scene, scene_of
from integration.judge import KILLS
from integration.servers import DatabaseServer, Memcached, Pair
from integration.servers.haproxy import Haproxy
from integration.servers.program import InvalidatorProcess


@contextmanager
def scene_behind(pair: Pair, node: Memcached, folder: Path) -> Iterator[tuple[Scene, Load, Haproxy]]:
    """The primary of the file is HAProxy, through which rows are written; both servers are its replicas."""
    with (
        Haproxy([pair.primary, pair.replica]) as proxy,
        scene_of(pair, node, folder, adopts=False, name=proxy) as (scene, load),
    ):
        load.move(through(proxy, pair.primary))
        yield scene, load, proxy


def through(proxy: Haproxy, server: DatabaseServer) -> DatabaseServer:
    """A server as it is reached behind a proxy."""
    reached = copy.copy(server)
    reached.port = proxy.port
    return reached


def find_rules(path: Path) -> dict[str, str]:
    """What `check` finds, with its severity."""
    return {each["rule"]: each["severity"] for each in json.loads(call_cli("check", "-c", path, "--json").stdout)}


def wait_written(load: Load) -> None:
    written = dict(load.written)
    wait_until(lambda: all(load.written[key] > written[key] for key in KEYS), "rows are written there")


def test_a_planned_switchover_keeps_the_cache(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, proxy):
        assert not {"several-addresses", "primary-spread"} & find_rules(scene.path).keys()
        life = scene.state()["life"]
        load.move(None)
        scene.previous.set_read_only(1)
        own_pair.wait_caught_up()
        scene.promote()
        scene.demote()
        proxy.lead_to(scene.present)
        load.move(through(proxy, scene.present))
        wait_written(load)
        load.stop()
        scene.wait_true_hits(load)
        assert scene.state()["life"] == life


def test_a_crash_of_the_primary(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, proxy):
        load.move(None)
        own_pair.wait_caught_up()
        life = scene.state()["life"]
        scene.previous.kill()
        scene.promote()
        proxy.lead_to(scene.present)
        load.move(through(proxy, scene.present))
        wait_until(lambda: scene.state().get("life", life) != life, "a new life begins", scene.describe)
        wait_written(load)
        load.stop()
        scene.wait_true_hits(load)


def test_old_connections_to_the_previous_primary(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    """HAProxy lets them be, and they show what the previous primary has, which lags as a replica."""
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, proxy):
        load.stop()
        text = scene.path.read_text()
        scene.path.write_text(text.replace(f'"{scene.present.url}", ', ""))
        with closing(Cache.open(scene.path)) as cache:
            scene.path.write_text(text)
            cache.database().find_shard(None).read_head()
            scene.previous.set_read_only(1)
            own_pair.wait_caught_up()
            scene.promote()
            scene.demote()
            proxy.ask(f"set server primary/s{scene.previous.port} state drain")
            proxy.ask(f"enable server primary/s{scene.present.port}")
            scene.previous.stop_replication()
            scene.present.execute("UPDATE customers SET v = 1000000", database="shop")
            with scene.present.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("UPDATE customers SET v = 1000001 WHERE id = 1")
                token = cache.database().commit_token(connection)
            scene.wait_acknowledged()
            found = cache.get_many("customer", KEYS)
            assert {row["v"] for key, row in found.items() if key != 1} == {1000000}
            assert cache.get("customer", 1)["v"] == 1000001
            assert cache.get("customer", 1, at_least=token)["v"] == 1000001


def test_an_invalidator_that_is_killed_again_and_again(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, _):
        for _ in range(KILLS):
            wait_written(load)
            scene.invalidator.kill()
            scene.invalidator.start()
        load.stop()
        own_pair.wait_caught_up()
        scene.wait_true_hits(load)


def test_an_address_that_leads_to_each_server_in_turn(pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    """Applications may read there. The primary's address must lead to one server."""
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    for key in KEYS:
        pair.primary.execute(f"INSERT INTO customers VALUES ({key}, 'c', 0)", database="shop")
    pair.wait_caught_up()
    with Haproxy([pair.primary, pair.replica]) as proxy:
        each = pair.primary.url.replace(str(pair.primary.port), str(proxy.replicas_port))
        for primary, replica, rule, severity in (
            (each, pair.replica.url, "primary-spread", "error"),
            (pair.primary.url, each, "several-addresses", "warning"),
        ):
            path = write_config(
                tmp_path,
                pair.primary.flavor,
                primary,
                [memcached.address],
                replicas=[replica],
                cache=CACHE,
                stream=STREAM,
            )
            assert find_rules(path).get(rule) == severity
        with InvalidatorProcess(path) as invalidator, closing(Cache.open(path)) as cache:
            for number in range(1, 20):
                key = KEYS[number % len(KEYS)]
                with pair.primary.connect("shop") as connection, connection.cursor() as cursor:
                    cursor.execute(f"UPDATE customers SET v = {number} WHERE id = {key}")
                    token = cache.database().commit_token(connection)
                assert cache.get("customer", key, at_least=token) == {"id": key, "name": "c", "v": number}
            wait_for_hits(cache, "customer", KEYS, invalidator.log)
            found = cache.get_many("customer", KEYS)
            rows = dict(pair.primary.execute("SELECT id, v FROM customers", database="shop"))
            assert {key: value["v"] for key, value in found.items()} == rows
