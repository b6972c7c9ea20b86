"""The primary is replaced behind one address, while rows are written and read: nobody edits or starts anything.

A reader of the previous primary never stores rows that lack a change of the new one, and hits come back without help.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.harness import wait_until
from integration.invalidator.test_promotion import KEYS, Load, Scene, scene_of
from integration.servers import Memcached, Pair
from integration.servers.stable_name import StableName

pytestmark = pytest.mark.slow


@contextmanager
def scene_behind(pair: Pair, node: Memcached, folder: Path) -> Iterator[tuple[Scene, Load, StableName]]:
    """The primary of the file is a name; both servers are listed as replicas."""
    with (
        StableName(pair.primary.port) as name,
        scene_of(pair, node, folder, adopts=False, name=name) as (scene, load),
    ):
        yield scene, load, name


def wait_written(load: Load) -> None:
    written = dict(load.written)
    wait_until(lambda: all(load.written[key] > written[key] for key in KEYS), "rows are written there")


@pytest.mark.parametrize("are_cut", [True, False], ids=["connections are cut", "connections stay"])
def test_a_planned_switchover_behind_a_name_keeps_the_cache(
    own_pair: Pair, memcached: Memcached, tmp_path: Path, *, are_cut: bool
) -> None:
    """Over connections that stay open, the old primary refuses heartbeats as read-only (1290), as in blue/green."""
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, name):
        life = scene.state()["life"]
        with load.writing:
            load.primary = None
            scene.previous.set_read_only(1)
        own_pair.wait_caught_up()
        scene.promote()
        scene.demote()
        name.server_port = scene.present.port
        if are_cut:
            name.cut()
        load.primary = scene.present
        wait_written(load)
        load.stop()
        scene.wait_true_hits(load)
        assert scene.state()["life"] == life


def test_a_crash_behind_a_name_begins_new_lives(own_pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    """For a while nobody answers at the name."""
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, name):
        life = scene.state()["life"]
        with load.writing:
            load.primary = None
            own_pair.wait_caught_up()
            name.server_port = None
            scene.previous.kill()
        wait_until(lambda: scene.state()["state"] != "open", "the lease has run out", scene.describe)
        scene.promote()
        name.server_port = scene.present.port
        load.primary = scene.present
        wait_until(lambda: scene.state().get("life", life) != life, "a new life begins", scene.describe)
        wait_written(load)
        load.stop()
        scene.wait_true_hits(load)


def test_a_previous_primary_that_stores_nothing_behind_a_name(
    own_pair: Pair, memcached: Memcached, tmp_path: Path
) -> None:
    """The name leads to the previous primary for a while, restarted with ``innodb_read_only``, like an Aurora writer
    that became a reader: it refuses heartbeats (1015, 1036, 1836), and hits end. It receives nothing from the new
    primary, so the stream must leave it once the name leads elsewhere."""
    with scene_behind(own_pair, memcached, tmp_path) as (scene, load, name):
        with load.writing:
            load.primary = None
        own_pair.wait_caught_up()
        assert scene.previous.terminate() == 0
        scene.previous.add_options("--innodb-read-only=ON")
        scene.previous.start()
        scene.promote()
        wait_until(lambda: scene.state()["state"] != "open", "the lease has run out", scene.describe)
        assert scene.invalidator.is_running()
        load.primary = scene.present
        name.server_port = scene.present.port
        wait_written(load)
        load.stop()
        scene.wait_true_hits(load)
