"""The update stream for Spark: the archive in batches and micro-batches, merged files, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshness.errors import ConfigError, FormatError, FreshnessError, HistoryPurged, SourceUnavailable, StreamStopped
from freshness.history.archive_file import find_files
from freshness.history.columns import CHANGES, KIND_KEY, VERSION_KEY
from freshness.stream.source import RowChange
from invalidator.archive.reader import open_archive
from invalidator.archive.writer import RotationPolicy
from spark.archive import __main__ as command
from spark.archive.compaction import compact, find_holes
from spark.audit.engine.local import LocalEngine
from spark.audit.input.recording import open_changes
from spark.failure import find_failure
from spark.session import open_session
from spark.sink.acknowledger import require_whole
from spark.sink.sender import Part, join_ranges
from spark.stream import source as updatestream
from spark.stream.archive_folder import ArchiveFolder
from spark.stream.source import StreamOptions
from tests.unit.invalidator.archive.archive_world import NOW_US, SOURCE, World, message

HOUR_US: Final = 3_600_000_000
SLOW_PYTHON: Final = """#!/bin/sh
# Python, but that the first two processes that plan a stream do not start in the ten seconds that Spark allows.
case "$*" in
*python_streaming_source_runner*)
    for late in 1 2; do mkdir "${{0%/*}}/late.$late" && exec sleep 15; done ;;
esac
exec {python} "$@"
"""
TWO_PER_FILE: Final = RotationPolicy(rows_max=2)


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """One Spark session for the file."""
    opened = open_session("tests", "local[2]")
    updatestream.register(opened)
    yield opened
    opened.stop()


def change(number: int, key: int = 0) -> RowChange:
    return RowChange("customers", "insert", None, {"id": key or number % 5, "v": f"value {number}"})


def write(folder: Path, numbers: range, *, hours: int = 1) -> Path:
    """An archive of one row for each transaction, two in a file, over some hours. It may be there already."""
    with World(folder, TWO_PER_FILE, begins_at=10) as world:
        for place, number in enumerate(numbers):
            world.now_us = NOW_US + place * hours // len(numbers) * HOUR_US
            world.writer.write(message(number, change(number)))
    return folder


def load(session: SparkSession, folder: Path, **options: str) -> DataFrame:
    return session.read.format("updatestream").options(path=str(folder), **options).load()


def follow(session: SparkSession, folder: Path, name: str, checkpoint: Path, **options: str) -> list[Any]:
    """Micro-batches until there is no more; the offsets at which each ended."""
    frame = session.readStream.format("updatestream").options(path=str(folder), **options).load()
    writer = frame.writeStream.format("parquet").option("path", str(checkpoint.parent / name))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = updatestream.start_query(writer)
    query.awaitTermination()
    return [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]


def ordinals(frame: DataFrame) -> list[int]:
    return sorted(row["ordinal"] for row in frame.where("op = 'insert'").collect())


def failure_of(act: Callable[[], Any]) -> FreshnessError:
    with pytest.raises((FreshnessError, PySparkException)) as caught:
        act()
    found = find_failure(caught.value)
    assert found is not None, caught.value
    return found


# -- batches ---------------------------------------------------------------------------------------------------


def test_a_batch_is_the_whole_archive_with_its_columns(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 31))
    frame = load(session, folder)
    assert frame.columns == [column.name for column in CHANGES]
    assert frame.count() == 20
    row = frame.where("shard = '-' AND ordinal = 7").collect()[0]
    assert (row["gtid"], row["lineage"], row["op"]) == (f"{SOURCE}:17", "shop/-", "insert")
    assert (json.loads(row["after"]), json.loads(row["key"])) == ({"id": 2, "v": "value 17"}, {"id": 2})
    assert [bytes(item) for item in row["items"]] == [b"shop:customer:2", b"shop:profile:2"]
    some = load(session, folder, columns="ordinal, op")
    assert some.columns == ["ordinal", "op"]
    assert ordinals(some) == list(range(1, 21))


def test_filters_go_down_to_the_files_and_say_the_same(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 31))
    frame = load(session, folder)
    everything = session.createDataFrame(frame.collect(), frame.schema)
    for condition in (
        "ordinal > 4 AND ordinal <= 9",
        "op = 'insert' AND ordinal >= 18",
        "ordinal IN (2, 3, 99)",
        "table = 'customers' AND before IS NOT NULL",
        "ordinal < 4 AND (key LIKE '%1%' OR shard <> '-')",
        "shard = '80-'",
    ):
        found, wanted = frame.where(condition), everything.where(condition)
        assert sorted(map(str, found.collect())) == sorted(map(str, wanted.collect())), condition
    plan = frame.where("ordinal > 4").select("ordinal")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, "Spark filters again what the files have filtered"


# -- micro-batches ---------------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 21))
    checkpoint = tmp_path / "checkpoint"
    offsets = follow(session, folder, "out", checkpoint, files_per_batch="3")
    assert [each["shop/-"]["ordinal"] for each in offsets] == [6, 10]
    write(folder, range(21, 26))
    follow(session, folder, "out", checkpoint, files_per_batch="3")
    frame = session.read.parquet(str(tmp_path / "out"))
    assert ordinals(frame) == list(range(1, 16))
    marks = frame.where("op IN ('begin', 'empty')").orderBy("ordinal", F.desc("op")).collect()
    ends = [(row["op"], row["ordinal"], row["gtid"].rpartition("-")[2]) for row in marks]
    assert ends == [
        ("begin", 0, "10"),
        ("empty", 6, "16"),
        ("begin", 6, "16"),
        ("empty", 10, "20"),
        ("begin", 10, "20"),
        ("empty", 15, "25"),
    ]


def test_a_stream_goes_on_in_the_middle_of_a_merged_file(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 31), hours=2)
    checkpoint = tmp_path / "checkpoint"
    [offset] = follow(session, folder, "first", checkpoint)
    assert offset["shop/-"]["ordinal"] == 20
    # As if the stream had ended inside of what is merged now
    half = tmp_path / "half"
    begin = ArchiveFolder(str(folder)).read_footer(str(find_files(folder)[3].path)).before
    compact(session, str(folder), grace_seconds=0)
    follow(session, folder, "out", half / "checkpoint", since=str(begin))
    assert ordinals(session.read.parquet(str(half / "out"))) == list(range(1, 21)), "since lies within a file"


def test_a_stream_begins_now_or_at_a_token(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 21))
    token = ArchiveFolder(str(folder)).read_footer(str(find_files(folder)[3].path)).before
    follow(session, folder, "out", tmp_path / "checkpoint", since=str(token))
    assert ordinals(session.read.parquet(str(tmp_path / "out"))) == [5, 6, 7, 8, 9, 10]
    assert follow(session, folder, "none", tmp_path / "other", since="now") in ([], [None]) or not (
        ordinals(session.read.parquet(str(tmp_path / "none")))
    )


@pytest.mark.slow
def test_a_stream_whose_python_process_starts_too_late_is_started_again(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, slow = write(tmp_path / "archive", range(11, 31)), tmp_path / "python"
    slow.write_text(SLOW_PYTHON.format(python=sys.executable))
    slow.chmod(0o755)
    monkeypatch.setattr(session.sparkContext, "pythonExec", str(slow))
    updatestream.register(session)  # the format remembers its Python
    try:
        with monkeypatch.context() as patched:
            patched.setattr(updatestream, "STARTS_MAX", 1)
            assert isinstance(
                failure_of(lambda: follow(session, folder, "out", tmp_path / "state")), SourceUnavailable
            )
        follow(session, folder, "out", tmp_path / "state")
    finally:
        monkeypatch.undo()
        updatestream.register(session)
    assert sorted(tmp_path.glob("late.*")) == [tmp_path / "late.1", tmp_path / "late.2"]
    assert ordinals(session.read.parquet(str(tmp_path / "out"))) == list(range(1, 21))


# -- merging ---------------------------------------------------------------------------------------------------


def messages_of(folder: Path) -> list[Any]:
    return [(each.token, each.transaction) for shard in open_archive(folder) for each in shard.messages()]


def test_merged_files_hold_the_same_and_replace_the_others(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "archive", range(11, 51), hours=2)
    before, files = messages_of(folder), find_files(folder)
    assert command.main([str(folder), "--json"], session) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(each["inputs"], each["outputs"], each["rows"]) for each in result["merged"]] == [(10, 1, 20)]
    assert (result["deleted"], result["problems"]) == (0, [])
    assert len(find_files(folder)) == len(files) - 9
    assert len(list(folder.rglob("*.parquet"))) == len(files) + 1, "the small ones stay for their readers"
    assert messages_of(folder) == before, "in the order of the ordinals"
    assert load(session, folder).where("op = 'insert'").count() == 40, "and none of them twice"
    assert open_changes(LocalEngine(), str(folder)).rows == 40, "nor in an audit"
    merged = max(find_files(folder), key=lambda file: file.last - file.first).path
    keys = parquet.read_table(merged).column("key").to_pylist()
    assert sum(one != other for one, other in pairwise(keys)) == len(set(keys)) - 1, "by key"

    result = compact(session, str(folder), grace_seconds=0)
    assert (result["deleted"], result["merged"]) == (10, [])
    assert messages_of(folder) == before
    with World(folder, TWO_PER_FILE) as world:
        world.writer.write(message(51, change(51)))
    assert len(messages_of(folder)) == len(before) + 1, "the writer goes on behind merged files"


def test_a_check_merges_nothing_and_says_so_to_a_person_and_as_json(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "archive", range(11, 31), hours=2)
    count = len(list(folder.rglob("*.parquet")))
    assert command.main([str(folder), "--check"], session) == 0
    assert capsys.readouterr().out == "0 files deleted, 0 problems\n"
    assert command.main([str(folder), "--check", "--json"], session) == 0
    assert json.loads(capsys.readouterr().out) == {"problems": [], "holes": {}, "merged": [], "deleted": 0}
    assert len(list(folder.rglob("*.parquet"))) == count


def test_a_reader_that_has_listed_the_small_files_finds_them_in_the_large_one(
    session: SparkSession, tmp_path: Path
) -> None:
    folder = write(tmp_path / "archive", range(11, 31), hours=2)
    reader = ArchiveFolder(str(folder))
    [shard] = reader.list_shards()
    spans = shard.spans(2, 8)
    compact(session, str(folder), grace_seconds=0)
    compact(session, str(folder), grace_seconds=0)
    assert not any(Path(span.path).exists() for span in spans)
    read = [
        ordinal
        for span in spans
        for batch in ArchiveFolder(str(folder)).read("shop", "shop/-", span, ["ordinal"])
        for ordinal in batch.column("ordinal").to_pylist()
    ]
    assert sorted(read) == [3, 4, 5, 6, 7, 8]


def test_old_files_are_deleted_from_the_front(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 31), hours=2)
    compact(session, str(folder), keep_days=1, clock=lambda: 2e9)
    left = find_files(folder)
    assert [file.last for file in left] == [20], "never the newest, and nothing that was merged comes back"
    [shard] = ArchiveFolder(str(folder)).list_shards()
    with pytest.raises(HistoryPurged, match="begins with transaction 19"):
        shard.spans(3, 20)


@pytest.mark.parametrize("damage", ["lost", "emptied", "rows", "renamed", "swapped"])
def test_what_is_not_whole_is_told_and_nothing_is_merged(
    damage: str, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "archive", range(11, 31), hours=2)
    file = find_files(folder)[4].path
    table, footer = parquet.read_table(file), parquet.read_metadata(file).metadata
    match damage:
        case "lost":
            file.unlink()
        case "emptied":
            rewrite(file, table.slice(0, 1), footer)
        case "rows":
            rewrite(file, table.set_column(6, "rows", pyarrow.array([2, 1], pyarrow.int32())), footer)
        case "renamed":
            file.rename(file.with_name(file.name.replace("008.parquet", "009.parquet")))
        case "swapped":
            other = find_files(folder)[5].path
            rewrite(file, parquet.read_table(other).set_column(4, "ordinal", table.column("ordinal")), footer)
    count = len(list(folder.rglob("*.parquet")))
    code = command.main([str(folder), "--json"], session)
    told = capsys.readouterr()
    assert code == 4, told
    assert json.loads(told.out)["problems"], damage
    assert len(list(folder.rglob("*.parquet"))) == count


def rewrite(path: Path, table: pyarrow.Table, metadata: dict[bytes, bytes]) -> None:
    kept = {key: value for key, value in metadata.items() if key != b"ARROW:schema"}
    parquet.write_table(table.replace_schema_metadata(kept), path)


def test_a_killed_run_leaves_nothing_that_is_read(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 31), hours=2)
    before = messages_of(folder)
    left = find_files(folder)[2].path.parent / ".changes-x.merging"
    left.write_bytes(b"half")
    assert messages_of(folder) == before
    compact(session, str(folder))
    assert not left.exists()


def test_sources_with_holes_are_named() -> None:
    from freshness.position import parse_position

    whole = f"{SOURCE}:1-9"
    assert find_holes(parse_position("mysql", whole)) == []
    assert find_holes(parse_position("mysql", f"{SOURCE}:1-5:7-9")) == [f"{SOURCE}:1-5:7-9"]


# -- what is refused -------------------------------------------------------------------------------------------


def test_a_cut_file_is_named(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 15))
    path = find_files(folder)[2].path
    path.write_bytes(path.read_bytes()[:-9])
    error = failure_of(lambda: load(session, folder).count())
    assert isinstance(error, FormatError)
    assert path.name in str(error)


def test_an_unknown_version_is_refused(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 15))
    path = find_files(folder)[2].path
    metadata = dict(parquet.read_metadata(path).metadata)
    assert metadata[KIND_KEY.encode()] == b"changes"
    rewrite(path, parquet.read_table(path), {**metadata, VERSION_KEY.encode(): b"99"})
    error = failure_of(lambda: load(session, folder).count())
    assert isinstance(error, FormatError)
    assert "version '99'" in str(error)


def test_an_empty_folder_is_an_error_and_not_an_empty_stream(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = failure_of(lambda: load(session, tmp_path).count())
    assert isinstance(error, ConfigError)
    assert "no file of an archive" in str(error)
    assert isinstance(failure_of(lambda: load(session, tmp_path / "none").count()), ConfigError)
    assert command.main([str(tmp_path)], session) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_is_missing_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 21))
    find_files(folder)[3].path.unlink()
    error = failure_of(lambda: load(session, folder).count())
    assert isinstance(error, FormatError)
    assert "begins with transaction 7" in str(error)


def test_a_checkpoint_older_than_the_archive_stops_the_stream(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 15))
    follow(session, folder, "out", tmp_path / "checkpoint")
    write(folder, range(15, 31))
    for file in find_files(folder)[:-2]:
        file.path.unlink()
    error = failure_of(lambda: follow(session, folder, "out", tmp_path / "checkpoint"))
    assert isinstance(error, HistoryPurged)
    assert "wanted is 5" in str(error)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either path or url"),
        ({"path": "a", "url": "http://b"}, "either path or url"),
        ({"url": "http://b"}, "which keyspace"),
        ({"path": "a", "columns": "ordinal, salary"}, "no column 'salary'"),
        ({"path": "a", "files_per_batch": "0"}, "files_per_batch"),
        ({"path": "a", "keyrange": "-80"}, "option 'keyrange'"),
        ({"path": "a", "key_range": "80-40"}, "holds nothing"),
        ({"path": "a", "since": ""}, "option 'since' of updatestream is empty"),
        ({"url": "http://b", "keyspace": "shop", "token_file": " "}, "option 'token_file' of updatestream is empty"),
    ],
)
def test_wrong_options_are_told(options: dict[str, str], said: str) -> None:
    with pytest.raises((ConfigError, FormatError), match=said):
        StreamOptions.parse(options)


def test_a_part_of_a_shard_is_refused(session: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "archive", range(11, 13))
    error = failure_of(lambda: load(session, folder, key_range="-40").count())
    assert "name whole shards" in str(error)


# -- what the sink is given ------------------------------------------------------------------------------------


def part(ranges: list[list[int]], before: int | None, upto: int) -> Part:
    from freshness.position import parse_position

    at = None if before is None else parse_position("mysql", f"{SOURCE}:1-{before}")
    return Part("shop/-", at, before or 0, parse_position("mysql", f"{SOURCE}:1-{upto}"), ranges)


def test_a_micro_batch_must_be_whole() -> None:
    before, streamed = require_whole("shop/-", [part([[6, 8]], 5, 8), part([[9, 9]], 8, 9)])
    assert (str(before), str(streamed)) == (f"{SOURCE}:1-5", f"{SOURCE}:1-9")
    for parts in ([part([[6, 8]], None, 8)], [part([[6, 6], [8, 8]], 5, 8)], [part([[7, 8]], 5, 8)]):
        with pytest.raises(StreamStopped):
            require_whole("shop/-", parts)
    assert join_ranges([[5, 6], [1, 2], [4, 4], [9, 9]]) == [[1, 2], [4, 6], [9, 9]]
