"""When a copy dumps a table, and when it publishes what it has: without a Spark session and without a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.types import LongType, StringType

from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError, SourceUnavailable
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken
from spark.copy import job
from spark.copy.folder import FolderTarget
from spark.copy.job import Snapshot
from spark.copy.state import CopyState, TableState, read_state, require_kept, write_state
from spark.copy.table import CopyColumn, CopyTable

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
LINEAGES: Final = ("shop/-80", "shop/80-")
GOODS: Final = CopyTable("goods", (CopyColumn("id", LongType()), CopyColumn("v", StringType())), ("id",))
KEYSPACE: Final = Keyspace(
    name="shop",
    flavor="mysql",
    shards=tuple(
        Shard(name=lineage.partition("/")[2], primary=ServerAddress("primary"), lineage=lineage)
        for lineage in LINEAGES
    ),
)


def up_to(number: int) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:1-{number}")


def applied(*numbers: int) -> dict[str, str]:
    """How far each lineage is."""
    return {lineage: str(up_to(number)) for lineage, number in zip(LINEAGES, numbers, strict=True)}


def state(position: Mapping[str, str], table: TableState) -> CopyState:
    return CopyState("shop", "mysql", dict(position), dict(position), {"goods": table})


class Frame:
    """Rows that a dump writes; notes when they are read."""

    def __init__(self, told: list[str]) -> None:
        self._told = told
        self.write = self

    def unionAll(self, _: Frame) -> Frame:
        return self

    def format(self, _: str) -> Frame:
        return self

    def mode(self, _: str) -> Frame:
        return self

    def save(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        self._told.append("rows are read")


class Scene:
    """A copy whose primary shows one transaction more at each look, and a clock that only pauses move."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch, shown: int) -> None:
        self.told: list[str] = []
        self.now = 0.0
        self.layout = GOODS
        self._shown: Iterator[int] = iter(range(shown, 1000))
        nothing: Any = None
        self.copy = Snapshot(
            nothing, KEYSPACE, FolderTarget(nothing, out), ["goods"], {}, clock=lambda: self.now, sleep=self.sleep
        )
        monkeypatch.setattr(job, "find_floor", self.find_floor)
        monkeypatch.setattr(job, "read_head", lambda *_: up_to(99))
        monkeypatch.setattr(job, "read_table", lambda *_: self.layout)
        monkeypatch.setattr(Snapshot, "_dump_shard", lambda *_: Frame(self.told))

    def find_floor(self, _: Keyspace, shard: Shard, __: ServerAddress) -> EventToken:
        shown = next(self._shown)
        self.told.append(f"{shard.name} shows {shown}")
        return EventToken(shard.lineage, shard.name, 1, 0, up_to(shown))

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_dump_waits_until_every_primary_shows_what_was_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: else rows from before the stream's position are in the copy for good."""
    scene = Scene(tmp_path, monkeypatch, shown=8)
    held = state(applied(10, 12), TableState())
    scene.copy._dump(held, "goods", deadline=60.0)
    shown = ["-80 shows 8", "-80 shows 9", "-80 shows 10", "80- shows 11", "80- shows 12"]
    assert scene.told == [*shown, "rows are read"]
    assert not held.tables["goods"].needs_dump
    assert held.tables["goods"].until == applied(99, 99)
    assert held.tables["goods"].layout == GOODS.to_json()


def test_a_primary_that_stays_behind_is_not_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch, shown=1)
    with pytest.raises(SourceUnavailable, match="does not show"):
        scene.copy._dump(state(applied(500, 500), TableState()), "goods", deadline=5.0)
    assert "rows are read" not in scene.told


def test_a_dump_of_a_replica_that_is_ahead_of_the_primary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was promoted: its rows would be published at a position of the previous primary that lacks them."""
    scene = Scene(tmp_path, monkeypatch, shown=12)
    replica = ServerAddress("replica")
    scene.copy.keyspace = replace(
        KEYSPACE, shards=tuple(replace(shard, replicas=(replica,)) for shard in KEYSPACE.shards)
    )
    scene.copy.is_from_replica = True
    monkeypatch.setattr(job, "read_head", lambda _, server: up_to(100 if server == replica else 99))
    with pytest.raises(SourceUnavailable, match="the primary of shop/-80 in the file, has"):
        scene.copy._dump(held := state(applied(10, 12), TableState()), "goods", deadline=60.0)
    assert held.tables["goods"].needs_dump


@pytest.mark.parametrize(
    ("numbers", "published"), [((11, 11), ""), ((12, 11), ""), ((11, 12), ""), ((12, 12), "goods/2")]
)
def test_a_table_is_published_when_the_stream_has_passed_its_dump_in_all_shards(
    numbers: tuple[int, int], published: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, rows that were read late are ahead of the others."""
    scene = Scene(tmp_path, monkeypatch, shown=1)
    held = state(applied(*numbers), TableState(needs_dump=False, folder="goods/2", until=applied(12, 12)))
    scene.copy._publish(held)
    assert held.tables["goods"].published == published
    assert read_state(tmp_path) == held


def test_a_table_that_is_to_be_dumped_again_stays_as_it_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch, shown=1)
    held = state(applied(12, 12), TableState(folder="goods/3", published="goods/2", until=applied(12, 12)))
    scene.copy._publish(held)
    assert held.tables["goods"].published == "goods/2"


@pytest.mark.parametrize(("columns", "needs_dump"), [(GOODS.columns, False), (GOODS.columns[:1], True)])
def test_a_table_whose_columns_are_others_now_is_dumped_again(
    columns: tuple[CopyColumn, ...], needs_dump: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that was left out before would be null in all earlier rows."""
    scene = Scene(tmp_path, monkeypatch, shown=1)
    held = state(applied(12, 12), TableState(needs_dump=False, folder="goods/1", layout=GOODS.to_json()))
    write_state(tmp_path, held)
    scene.layout = CopyTable("goods", columns, ("id",))
    assert scene.copy._open().tables["goods"].needs_dump is needs_dump


def test_two_runs_do_not_write_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would share its folders and its state."""
    first, second = Scene(tmp_path, monkeypatch, shown=1), Scene(tmp_path, monkeypatch, shown=1)

    def run_another(_: Snapshot) -> CopyState:
        with pytest.raises(ConfigError, match="is being written by another run"):
            second.copy.run()
        return state(applied(1, 1), TableState())

    monkeypatch.setattr(Snapshot, "_run", run_another)
    assert first.copy.run() == state(applied(1, 1), TableState())
    assert second.copy.target == first.copy.target


def test_a_generation_that_was_removed_while_it_was_read(tmp_path: Path) -> None:
    """Only the previous generation stays, for its readers."""
    for number in (4, 5):
        (tmp_path / f"customers/00000000{number}").mkdir(parents=True)
    require_kept(tmp_path, "customers/000000004")
    (tmp_path / "customers/000000006").mkdir()
    with pytest.raises(SourceUnavailable, match="replaced 2 times"):
        require_kept(tmp_path, "customers/000000004")
    with pytest.raises(SourceUnavailable, match="replaced"):
        require_kept(tmp_path, "customers/000000007")
