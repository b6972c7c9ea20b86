"""A copy that follows an archive which also has shards from before a reshard: with Spark, and without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError
from freshness.stream.source import RowChange
from spark.copy import job
from spark.copy.folder import FolderTarget
from spark.copy.job import Snapshot
from spark.copy.state import CopyState, read_copy
from spark.failure import find_failure
from spark.session import open_session
from tests.unit.invalidator.archive.archive_world import World, message, start, token
from tests.unit.spark.table_at.history import CUSTOMERS, up_to

SERVING: Final = ("-80", "80-")
PREVIOUS: Final = "-"


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """One Spark session for the file."""
    opened = open_session("tests", "local[2]")
    yield opened
    opened.stop()


def write(archive: Path, *numbers: int, shard: str) -> None:
    """A row for each transaction."""
    with World(archive) as world:
        world.writer.begin(start(numbers[0] - 1, shard))
        for number in numbers:
            row = {"id": number, "v": shard}
            world.writer.write(message(number, RowChange("customers", "insert", None, row), shard=shard))


@pytest.fixture
def copy(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Of two shards, whose dump brings nothing; an archive has them and the one that they were made of."""
    write(tmp_path / "archive", 1, 2, 3, shard=PREVIOUS)
    write(tmp_path / "archive", 4, 5, shard=SERVING[0])
    write(tmp_path / "archive", 4, 5, 6, shard=SERVING[1])

    def dump(*_: Any) -> DataFrame:
        return session.createDataFrame([], CUSTOMERS.schema())

    monkeypatch.setattr(job, "find_floor", lambda _, shard, __: token(3, shard.name, everything=True))
    monkeypatch.setattr(job, "read_head", lambda *_: up_to(4))
    monkeypatch.setattr(job, "read_table", lambda *_: CUSTOMERS)
    monkeypatch.setattr(Snapshot, "_dump_shard", dump)
    shards = (Shard(name=name, primary=ServerAddress("primary"), lineage=f"shop/{name}") for name in SERVING)
    keyspace = Keyspace(name="shop", flavor="mysql", shards=tuple(shards))
    source = {"path": str(tmp_path / "archive"), "tables": "customers"}
    target = FolderTarget(session, tmp_path / "copy")
    return Snapshot(session, keyspace, target, ["customers"], source, sleep=lambda _: None)


def rows(copy: Snapshot) -> list[tuple[int, str]]:
    return sorted((row["id"], row["v"]) for row in read_copy(copy.session, str(copy.target), "customers").collect())


def test_a_copy_that_begins_after_a_reshard_has_the_shards_of_now(copy: Snapshot, tmp_path: Path) -> None:
    state = copy.run()
    made = [(4, "-80"), (4, "80-"), (5, "-80"), (5, "80-"), (6, "80-")]
    assert rows(copy) == made
    assert state.position.keys() == {"shop/-80", "shop/80-"}
    write(tmp_path / "archive", 6, shard=SERVING[0])
    assert isinstance(copy.run(), CopyState)
    assert rows(copy) == sorted([*made, (6, "-80")])


def test_a_shard_that_the_copy_does_not_have_stops_it(copy: Snapshot, tmp_path: Path) -> None:
    """Else it would be a copy of a part of the keyspace, and nobody would know."""
    copy.run()
    made = rows(copy)
    write(tmp_path / "archive", 4, shard=PREVIOUS)
    with pytest.raises(PySparkException) as caught:
        copy.run()
    failure = find_failure(caught.value)
    assert isinstance(failure, ConfigError)
    assert "shop/- came to the stream" in str(failure)
    assert rows(copy) == made
