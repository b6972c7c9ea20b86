"""How an opened stream takes over the configurations that are loaded while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import pytest

from freshness.config.config import Config, load_config
from freshness.config.keyspace import Shard
from freshness.database.vitess import VitessShard
from freshness.errors import ConfigError
from freshness.objects.keyfinder import KeyFinder
from invalidator.http.topology import describe_topology
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.open import OpenedStream, find_keys, find_skips
from invalidator.stream.query import RefreshRequest
from invalidator.stream.update_stream import UpdateStream

CONFIG = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:{port}/shop"
[objects.customer]
table = "customers"
"""
VITESS = CONFIG.replace('"mysql"', '"vitess"').replace("[objects", 'vtgate = "vitess://127.0.0.1:1/shop"\n[objects')


@dataclass
class FakeStream:
    taken: list[Sequence[Shard]] = field(default_factory=list)

    def set_shards(self, shards: Sequence[Shard]) -> None:
        self.taken.append(shards)


class Scene:
    """A stream that was opened in one configuration, and the current configuration."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "freshness.toml"
        self.now = self.load(1)
        self.stream = FakeStream()
        self.opened = OpenedStream(
            self.now.keyspaces["shop"],
            cast(UpdateStream, self.stream),
            LayoutBook(lambda _: {}),
            KeyFinder({}),
            self.now,
            lambda: self.now,
        )

    def load(self, port: int, text: str = CONFIG) -> Config:
        self._path.write_text(text.format(port=port))
        return load_config(self._path, {})


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_configuration_is_taken_over_once(scene: Scene) -> None:
    """Also one that was loaded between the opening of the stream and the first look."""
    scene.opened.follow()
    assert scene.stream.taken == []
    scene.now = scene.load(2)
    scene.opened.follow()
    scene.opened.follow()
    assert scene.stream.taken == [scene.now.keyspaces["shop"].shards]


def test_what_a_stream_cannot_go_on_in(scene: Scene) -> None:
    scene.now = replace(scene.now, objects={})
    for _ in range(2):
        with pytest.raises(ConfigError, match="objects have changed"):
            scene.opened.follow()
    scene.now = replace(scene.now, keyspaces={})
    with pytest.raises(ConfigError, match="keyspace shop is no longer configured"):
        scene.opened.follow()
    assert scene.stream.taken == []


def test_a_shard_of_vitess_is_described_by_its_vtgate(scene: Scene) -> None:
    described = describe_topology(scene.load(1, VITESS))["keyspaces"]["shop"]["shards"]
    assert described[0]["vtgate"] == "127.0.0.1:1/shop@replica"


def test_a_skipped_transaction_raises_all_tables_of_a_stream_of_any(tmp_path: Path) -> None:
    """It may have changed a table that nobody caches, and the operator names cached ones."""
    path = tmp_path / "freshness.toml"
    skip = '[[keyspaces.shop.shards.skip]]\ngtid = "0-1-7"\ntables = ["customers"]\nreason = "broken"\n[objects'
    path.write_text(CONFIG.format(port=1).replace('"mysql"', '"mariadb"').replace("[objects", skip))
    [shard] = load_config(path).keyspaces["shop"].shards
    assert [each.tables for each in find_skips(shard, is_cached=True)] == [("customers",)]
    [found] = find_skips(shard, is_cached=False)
    assert (found.gtid, found.tables) == ("0-1-7", ())


def test_a_refresh_needs_servers_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    for text in (CONFIG, VITESS.replace(":1/shop", ":1/shop?tablet_type=primary")):
        path.write_text(text.format(port=1))
        keyspace = load_config(path).keyspaces["shop"]
        with pytest.raises(ConfigError, match="has no replica"):
            find_keys(keyspace, ("a",), lambda _: {"a"}, RefreshRequest(("a",), "replica"))


def test_a_refresh_of_vitess_reads_tablets_of_the_streams_type_or_the_primary(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(VITESS.replace(":1/shop", ":1/shop?tablet_type=rdonly").format(port=1))
    [shard] = load_config(path).keyspaces["shop"].shards
    targets = {"replica": "shop:-@rdonly", "primary": "shop:-@primary"}
    for read_from, target in targets.items():
        request = RefreshRequest(("a",), cast(Literal["primary", "replica"], read_from))
        assert request.find_server(shard).database == target
        assert VitessShard.of(request.aim(shard)).target == target
