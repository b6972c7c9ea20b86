"""A table at another position, from files of an archive and of a copy; and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from freshness.history.archive_file import find_files
from freshness.keys.keyrange import KeyRange
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from freshness.stream.source import RowChange
from invalidator.archive.writer import RotationPolicy
from invalidator.stream.message import StreamMessage
from spark.batch import to_batches
from spark.copy.state import CopyState, TableState, write_state
from spark.session import open_session
from spark.table_at import __main__ as command
from tests.unit.invalidator.archive.archive_world import NOW_US, SOURCE, World, message, start, token
from tests.unit.spark.table_at.history import CUSTOMERS, LINEAGES, History, up_to

THREE_PER_FILE: Final = RotationPolicy(rows_max=3)
ONE: Final = "shop/-"


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """One Spark session for the file."""
    opened = open_session("tests", "local[2]")
    yield opened
    opened.stop()


def write_archive(folder: Path, *messages: StreamMessage, begins_at: int = 0) -> None:
    """Of one shard, or of what the messages name."""
    with World(folder / "archive", THREE_PER_FILE, begins_at=begins_at) as world:
        for each in messages:
            name = each.shard
            world.writer.begin(start(begins_at, name))
            world.writer.write(each)


def write_copy(folder: Path, position: Mapping[str, Position], rows: list[tuple[Any, ...]]) -> None:
    """Rows with their keys, as `CopyTable.to_row` gives them."""
    table = TableState(False, "customers/000000002", "customers/000000002", layout=CUSTOMERS.to_json())
    schema = to_arrow_schema(CUSTOMERS.schema())
    (folder / "copy" / table.folder).mkdir(parents=True)
    batches = list(to_batches(rows, schema))
    parquet.write_table(pyarrow.Table.from_batches(batches, schema), folder / "copy" / table.folder / "part.parquet")
    begin = {lineage: str(EventToken(lineage, "-", 1, 0, MysqlGtidSet())) for lineage in position}
    told = {lineage: str(each) for lineage, each in position.items()}
    write_state(folder / "copy", CopyState("shop", "mysql", begin, told, {"customers": table}))


def vector(numbers: Mapping[str, int], *, keyspace: str = "shop", epoch: int = 1) -> str:
    """A resume text: how many transactions of each lineage."""
    tokens = {
        lineage: replace(token(number, lineage.partition("/")[2], epoch=epoch), position=up_to(number))
        for lineage, number in numbers.items()
    }
    return ResumeVector(keyspace, KeyRange.parse("-"), tokens).format()


def time(number: float) -> str:
    """That of a transaction, as `message` numbers them."""
    return datetime.fromtimestamp((NOW_US + number) / 1e6, UTC).isoformat()


def run(session: SparkSession, folder: Path, at: str, out: str = "out", **options: str) -> int:
    arguments = {"archive": folder / "archive", "copy": folder / "copy", "table": "customers"} | options
    told = [part for name, text in arguments.items() for part in (f"--{name}", str(text))]
    return command.main([*told, "--at", at, "--out", str(folder / out), "--json"], session)


def made(folder: Path, out: str = "out") -> list[tuple[Any, ...]]:
    return sorted((each["id"], each["v"]) for each in parquet.read_table(folder / out).to_pylist())


def test_a_table_of_two_shards_at_other_positions(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as `test_position_pair`, through files, Spark and the command line."""
    history, chance = History(7, transactions=16), Random(3)
    numbered = groupby(history.changes, key=lambda each: (each["lineage"], each["ordinal"]))
    changes = {place: list(group) for place, group in numbered}
    messages = []
    for lineage in LINEAGES:
        for number in range(1, len(history.tables[lineage])):
            images = [
                [None if each[name] is None else json.loads(each[name]) for name in ("before", "after")]
                for each in changes.get((lineage, number), ())
            ]
            rows = [RowChange("customers", "update", before, after) for before, after in images]
            messages.append(message(number, *rows, shard=lineage.partition("/")[2]))
    write_archive(tmp_path, *messages)
    copied, *wanted = chance.sample(history.vectors(), 4)
    write_copy(
        tmp_path,
        {lineage: up_to(number) for lineage, number in copied.items()},
        list(history.table_at(copied).values()),
    )
    for number, each in enumerate([copied, *wanted]):
        assert run(session, tmp_path, vector(each), f"out{number}") == 0, capsys.readouterr().err
        told = json.loads(capsys.readouterr().out)
        expected = sorted(row[1:] for row in history.table_at(each).values())
        assert made(tmp_path, f"out{number}") == expected
        assert told["rows"] == len(expected)
        assert told["position"] == {lineage: str(up_to(each[lineage])) for lineage in LINEAGES}
        assert ResumeVector.parse(told["resume"]) == ResumeVector.parse(vector(each))
        assert bool(sum(told["applied"].values())) == any(
            copied[lineage] < row["ordinal"] <= each[lineage]
            for row in history.changes
            for lineage in [row["lineage"]]
        )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# -- one shard, in which transaction N gives row 1 the value N --------------------------------------------------


def update(number: int) -> RowChange:
    return RowChange("customers", "update", row(number - 1), row(number))


def row(number: int) -> dict[str, Any]:
    return {"id": 1, "v": str(number)}


def steps(*numbers: int, **options: Any) -> list[StreamMessage]:
    return [message(number, update(number), **options) for number in numbers]


def copy_at(folder: Path, number: int) -> None:
    write_copy(folder, {ONE: up_to(number)}, [CUSTOMERS.to_row(ONE, row(number))])


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """An archive of the transactions 11 to 20, and a copy at 15."""
    write_archive(tmp_path, *steps(*range(11, 21)), begins_at=10)
    copy_at(tmp_path, 15)
    return tmp_path


def at(number: int) -> str:
    return vector({ONE: number})


def timed(number: int, later: int) -> StreamMessage:
    """A transaction whose time is not its number."""
    told = message(number, update(number))
    return replace(
        told,
        token=replace(told.token, timestamp_us=NOW_US + later),
        transaction=told.transaction._replace(timestamp_us=NOW_US + later),
    )


def test_a_time_is_everything_before_the_first_later_transaction(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times do not rise strictly: a transaction that is not later stands behind one that is."""
    times = {11: 1, 12: 1, 13: 5, 14: 2, 15: 9}
    write_archive(tmp_path, *(timed(*each) for each in times.items()), begins_at=10)
    copy_at(tmp_path, 14)
    for later, number in ((1, 12), (4, 12), (5, 14), (8, 14)):
        assert run(session, tmp_path, time(later), f"out{later}") == 0, capsys.readouterr().err
        assert made(tmp_path, f"out{later}") == [(1, str(number))]
        vector_found = ResumeVector.parse(json.loads(capsys.readouterr().out)["resume"])
        assert vector_found.tokens[ONE].position == up_to(number)
    assert run(session, tmp_path, time(0)) == 4
    assert "begins after" in capsys.readouterr().err
    assert run(session, tmp_path, time(9)) == 3
    assert "does not reach" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [12, 19])
def test_the_token_of_an_event_is_everything_up_to_it(session: SparkSession, world: Path, number: int) -> None:
    """The token names its own transaction alone."""
    assert run(session, world, str(token(number))) == 0
    assert made(world) == [(1, str(number))]


def test_a_position_as_a_token(session: SparkSession, world: Path) -> None:
    assert run(session, world, str(token(17, everything=True))) == 0
    assert made(world) == [(1, "17")]


def test_the_summary(session: SparkSession, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--archive", str(world / "archive"), "--copy", str(world / "copy"), "--table", "customers"]
    assert command.main([*options, "--at", at(13), "--out", str(world / "out")], session) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"{ONE}: at {SOURCE}:1-13, 0 changes applied, 2 taken back"
    assert second == f"customers: 1 rows in {world / 'out'}"
    assert ResumeVector.parse(third).tokens[ONE].position == up_to(13)


# -- refusals ---------------------------------------------------------------------------------------------------


def assert_refused(
    session: SparkSession,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
    code: int,
    *words: str,
    **options: str,
) -> None:
    """With the exit code and the words, and without a folder."""
    capsys.readouterr()  # what was printed before
    found, told = run(session, folder, place, **options), capsys.readouterr()
    assert (found, told.out) == (code, ""), told.err
    for each in words:
        assert each in told.err
    assert not (folder / "out").exists()
    assert list(folder.glob(".out*")) == []


def hole() -> str:
    position = MysqlGtidSet.parse(f"{SOURCE}:1-16:18")
    return str(EventToken(ONE, "-", 1, 0, position))


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        (at(9), 4, ["the archive of shop/- begins after", "give a later place"]),
        (at(21), 3, ["does not reach --at yet", f"{SOURCE}:1-21", "invalidator record"]),
        (str(token(21)), 3, ["does not reach --at yet"]),
        (str(token(7)), 4, ["begins after"]),
        (vector({"shop/-80": 12}), 2, ["--at names shop/-80, the copy has shop/-"]),
        (vector({ONE: 12, "shop/x": 1}), 2, ["--at names shop/-, shop/x"]),
        (vector({ONE: 12}, keyspace="other"), 2, ["keyspace other, the copy is of shop"]),
        (vector({ONE: 12}, epoch=2), 4, ["history of shop/- was lost", "the epochs are 1, 2"]),
        (hole(), 2, ["--at has transaction 8 of shop/- and lacks transaction 7", "no server"]),
        ("yesterday", 2, ["--at 'yesterday'", "2026-01-31T12:00:00Z"]),
        ("2026-01-31T12:00:00", 2, ["expected a time such as"]),
        ("fr1.AAAA", 2, ["resume text"]),
    ],
)
def test_a_place_that_cannot_be_had(
    session: SparkSession, world: Path, capsys: pytest.CaptureFixture[str], place: str, code: int, words: list[str]
) -> None:
    assert_refused(session, world, capsys, place, code, *words)


@pytest.mark.parametrize(("number", "code"), [(13, 0), (16, 0), (18, 4), (20, 4)])
def test_a_table_that_was_changed_as_a_whole_in_between(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    """Outside of the two positions it does not matter, nor does another table."""
    raised = [
        message(12, raised_tables=frozenset(["customers"]), reasons=("TRUNCATE",)),
        message(14, update(14), raised_tables=frozenset(["orders"]), reasons=("TRUNCATE",)),
        message(17, raised_tables=frozenset(["customers"]), reasons=("ALTER TABLE",)),
    ]
    numbers = {each.token.position: each for each in [*steps(*range(11, 21)), *raised]}
    write_archive(tmp_path, *numbers.values(), begins_at=10)
    copy_at(tmp_path, 15)
    if code == 0:
        assert run(session, tmp_path, at(number), "fine") == 0
        assert made(tmp_path, "fine") == [(1, str(number))]
    else:
        assert_refused(session, tmp_path, capsys, at(number), code, "ALTER TABLE", "transaction 7 of shop/-")
    assert_refused(session, tmp_path, capsys, at(11), 4, "TRUNCATE")


def test_a_row_that_lacks_columns_is_applied_and_not_taken_back(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The image before has the key alone: with the image after, that is the newer row and not the older."""
    cut = [message(number, RowChange("customers", "update", {"id": 1}, row(number))) for number in range(11, 15)]
    write_archive(tmp_path, *cut, message(15, RowChange("customers", "update", row(14), {"v": "15"})), begins_at=10)
    copy_at(tmp_path, 12)
    assert run(session, tmp_path, at(15), "forward") == 0
    assert made(tmp_path, "forward") == [(1, "15")]
    words = ["transaction 2 of shop/-", "without all columns", "binlog_row_image"]
    assert_refused(session, tmp_path, capsys, at(11), 4, *words)


def test_a_new_row_that_lacks_columns_is_refused(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_archive(
        tmp_path, *steps(11, 12), message(13, RowChange("customers", "insert", None, {"id": 1})), begins_at=10
    )
    copy_at(tmp_path, 11)
    assert_refused(session, tmp_path, capsys, at(13), 4, "transaction 3 of shop/-", "without all columns")
    assert run(session, tmp_path, at(12)) == 0


def test_a_file_that_is_missing(session: SparkSession, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(file for file in find_files(world / "archive") if file.first == 4)
    file.path.unlink()
    assert_refused(session, world, capsys, at(12), 2, "begins with transaction", "is missing")


def test_a_file_that_lacks_a_transaction(
    session: SparkSession, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(file for file in find_files(world / "archive") if file.first == 4)
    table = parquet.read_table(file.path)
    metadata = parquet.read_metadata(file.path).metadata
    with parquet.ParquetWriter(file.path, table.schema) as writer:
        writer.write_table(table.filter([ordinal != 5 for ordinal in table.column("ordinal").to_pylist()]))
        writer.add_key_value_metadata({key: text for key, text in metadata.items() if key != b"ARROW:schema"})
    hint = "`freshness-spark archive --check`"
    assert_refused(session, world, capsys, at(12), 4, "transaction 6 comes after 4", hint)


def test_an_epoch_that_was_raised_in_between(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_archive(tmp_path, *steps(*range(11, 15)), *steps(*range(15, 18), epoch=2), begins_at=10)
    copy_at(tmp_path, 12)
    assert_refused(session, tmp_path, capsys, vector({ONE: 17}), 4, "was lost", "the epochs are 1, 2")
    assert_refused(session, tmp_path, capsys, vector({ONE: 17}, epoch=2), 4, "the epochs are 1, 2")
    assert run(session, tmp_path, at(11)) == 0


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(25, 3, ["the copy is ahead of it"]), (8, 4, ["the copy is at", "lacks some of that"])],
)
def test_a_copy_that_is_not_within_the_archive(
    session: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
    words: list[str],
) -> None:
    write_archive(tmp_path, *steps(*range(11, 21)), begins_at=10)
    copy_at(tmp_path, number)
    assert_refused(session, tmp_path, capsys, at(15), code, *words)


def test_a_lineage_that_only_one_of_them_has(
    session: SparkSession, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reshard: the new shard was written after the time, and the copy does not have it."""
    write_archive(world, *steps(11, 12, shard="80-"), begins_at=10)
    assert_refused(session, world, capsys, time(11), 4, "shop/80- of the archive was written after", "resume text")
    assert run(session, world, time(12), "later") == 0
    write_copy(world / "two", {ONE: up_to(15), "shop/x": up_to(3)}, [])
    words = ["the copy has lineage shop/x", "a copy ends with a reshard"]
    assert_refused(session, world, capsys, time(12), 4, *words, copy=str(world / "two/copy"))


@pytest.mark.parametrize(
    ("table", "code", "words"),
    [
        (TableState(), 2, ["no published copy of customers"]),
        (TableState(True, "a/2", "a/2"), 3, ["is being dumped again", "run `freshness-spark copy`"]),
        (TableState(False, "a/3", "a/2"), 3, ["is being dumped again"]),
    ],
)
def test_a_copy_that_is_not_exact_at_its_position(
    session: SparkSession,
    world: Path,
    capsys: pytest.CaptureFixture[str],
    table: TableState,
    code: int,
    words: list[str],
) -> None:
    write_state(
        world / "copy", CopyState("shop", "mysql", {ONE: str(token(0))}, {ONE: str(up_to(15))}, {"customers": table})
    )
    assert_refused(session, world, capsys, at(12), code, *words)


def test_a_folder_that_is_there_is_not_touched(
    session: SparkSession, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (world / "out").mkdir()
    assert run(session, world, at(12)) == 2
    assert "is there already" in capsys.readouterr().err
    assert list((world / "out").iterdir()) == []
    assert run(session, world, at(12), "no/out") == 2
    assert "is no folder" in capsys.readouterr().err
    assert run(session, world, at(12), "other", archive="s3://bucket/archive") == 2
    assert "local or mounted" in capsys.readouterr().err


def test_without_a_copy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--archive", "a", "--table", "t", "--at", "2026-01-31T12:00:00Z", "--out", str(tmp_path / "out")]
    assert command.main(options) == 2
    assert "give --copy" in capsys.readouterr().err
