"""The archive: what is written is read back, and what is broken is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from freshness.errors import ConfigError, FormatError, StreamStopped
from freshness.history.archive_file import UNFINISHED, find_files
from freshness.history.columns import CHANGES, CHANGES_VERSION, KIND_KEY, VERSION_KEY
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat, RowChange, Shape, Transaction
from freshness.values.codec import row_digest
from invalidator.archive import reader as archive_reader
from invalidator.archive.reader import open_archive
from invalidator.archive.writer import RotationPolicy
from invalidator.stream.message import StreamMessage
from tests.unit.invalidator.archive.archive_world import CONFIG, SOURCE, World, message, start, token

INSERT = RowChange("customers", "insert", None, {"id": 1, "v": "a"})
UPDATE = RowChange("customers", "update", {"id": 1, "v": "a"}, {"id": 2, "v": None})
DELETE = RowChange("customers", "delete", {"id": 2, "v": None}, None)
BEAT = Heartbeat("host.1", 7, 1, 2, 3)
SHAPES = {"id": Shape("same"), "v": Shape("text")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "archive")
    yield world
    world.close()


def insert(number: int) -> StreamMessage:
    return message(number, RowChange("customers", "insert", None, {"id": number, "v": "x"}))


def gtids(world: World) -> list[str]:
    return [str(each.token.position) for each in world.read()]


def rows(world: World) -> list[dict[str, Any]]:
    return [row for file in find_files(world.folder) for row in pq.read_table(file.path).to_pylist()]


# -- what stands in the files ----------------------------------------------------------------------------------


def test_what_is_written_is_read_back(world: World) -> None:
    messages = [
        message(5, INSERT, UPDATE),
        message(6, DELETE, raised_tables=frozenset(("customers",)), reasons=("TRUNCATE",), heartbeats=(BEAT,)),
        message(7),
        message(3, UPDATE, shard="80-"),
    ]
    for each in messages:
        world.writer.write(each)
    world.writer.close()
    found = {str(each.token): each.transaction for each in world.read()}
    assert found == {str(each.token): each.transaction for each in messages}


def test_the_columns_are_those_of_recorded_history(world: World) -> None:
    world.writer.write(insert(1))
    world.writer.close()
    [_, file] = find_files(world.folder)
    schema = pq.read_schema(file.path)
    assert schema.names == [column.name for column in CHANGES]
    assert [part.nullable for part in schema] == [column.nullable for column in CHANGES]
    assert schema.metadata[KIND_KEY.encode()] == b"changes"
    assert schema.metadata[VERSION_KEY.encode()] == str(CHANGES_VERSION).encode()


def test_the_place_says_keyspace_shard_and_hour(world: World) -> None:
    world.writer.write(insert(1))
    world.writer.close()
    places = {file.path.parent.relative_to(world.folder) for file in find_files(world.folder)}
    assert places == {Path("keyspace=shop/shard=-/hour=2025-11-21T04")}


def test_a_row_has_its_items_its_key_and_its_digests(world: World) -> None:
    change = RowChange("customers", "update", {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, SHAPES)
    world.writer.write(message(5, change))
    world.writer.close()
    [row] = rows(world)
    assert row["items"] == [b"shop:customer:1", b"shop:customer:2", b"shop:profile:1", b"shop:profile:2"]
    assert row["row_items"] == [b"shop:customer:2"]
    assert (row["key"], row["before"], row["after"]) == ('{"id":2}', '{"id":1,"v":"a"}', '{"id":2,"v":"b"}')
    assert row["before_digest"] == row_digest({"v": "a", "id": 1})
    assert row["after_digest"] == row_digest({"v": "b", "id": 2})
    assert (row["ordinal"], row["row"], row["rows"], row["gtid"]) == (1, 0, 1, f"{SOURCE}:5")
    assert row["received_us"] == world.now_us


def test_a_row_is_the_value_of_no_item_of_another_unique_key(tmp_path: Path) -> None:
    """Before the change that key may have belonged to another row: the row's before image is not the item's."""
    by_v = CONFIG + '[objects.by_v]\ntable = "customers"\nkey = "v"\n'
    with World(tmp_path / "archive", config=by_v) as world:
        world.writer.write(message(5, RowChange("customers", "update", {"id": 1, "v": 7}, {"id": 1, "v": 8}, SHAPES)))
        world.writer.close()
        [row] = rows(world)
    assert {b"shop:by_v:7", b"shop:by_v:8"} < set(row["items"])
    assert row["row_items"] == [b"shop:customer:1"]


def test_a_row_without_a_key_raises_its_table_as_the_invalidator_does(world: World) -> None:
    world.writer.write(message(5, RowChange("customers", "update", {"v": 1}, {"v": 2})))
    world.writer.close()
    change, raised = rows(world)
    assert (change["items"], change["key"]) == ([], None)
    assert (raised["op"], raised["table"], raised["row"]) == ("raise", "customers", -1)
    assert "customers.id" in raised["detail"]


# -- rotation ----------------------------------------------------------------------------------------------------


def ordinals(world: World) -> list[tuple[int, int]]:
    return [(file.first, file.last) for file in find_files(world.folder)]


def test_a_file_ends_by_rows(tmp_path: Path) -> None:
    with World(tmp_path, RotationPolicy(rows_max=3)) as world:
        for number in range(1, 8):
            world.writer.write(insert(number))
        assert ordinals(world) == [(1, 0), (1, 3), (4, 6)]
        assert world.writer.rows_open == 1


def test_a_file_ends_by_bytes(tmp_path: Path) -> None:
    with World(tmp_path, RotationPolicy(bytes_max=1000)) as world:
        world.writer.write(message(1, RowChange("customers", "insert", None, {"id": 1, "v": "x" * 2000})))
        assert ordinals(world) == [(1, 0), (1, 1)]


def test_a_file_ends_by_time_also_when_nothing_comes(world: World) -> None:
    world.writer.write(insert(1))
    world.now += world.policy.seconds - 1
    world.writer.tick()
    assert ordinals(world) == [(1, 0)]
    world.now += 1
    world.writer.tick()
    assert ordinals(world) == [(1, 0), (1, 1)]


def test_a_file_ends_with_its_hour(world: World) -> None:
    world.writer.write(insert(1))
    world.now_us += 3600 * 1_000_000
    world.writer.write(insert(2))
    world.writer.close()
    hours = [file.path.parent.name for file in find_files(world.folder)]
    assert hours == ["hour=2025-11-21T04", "hour=2025-11-21T04", "hour=2025-11-21T05"]
    assert datetime.fromtimestamp(world.now_us / 1e6, UTC).hour == 5


def test_rows_that_are_held_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("invalidator.archive.writer.GROUP_ROWS_MAX", 2)
    for number in range(1, 6):
        world.writer.write(insert(number))
    world.writer.close()
    [_, file] = find_files(world.folder)
    assert pq.read_metadata(file.path).num_row_groups == 3


# -- large transactions ----------------------------------------------------------------------------------------------


def pieces(number: int) -> list[StreamMessage]:
    return [
        message(number, INSERT, UPDATE, is_last=False),
        message(number, DELETE, first_row=2, is_last=False),
        message(number, INSERT, first_row=3, raised_tables=frozenset(("orders",)), reasons=("why",)),
    ]


def test_pieces_become_one_transaction(world: World) -> None:
    world.writer.write(insert(4))
    for each in pieces(5):
        world.writer.write(each)
    world.writer.write(insert(6))
    world.writer.close()
    assert [each.transaction for each in world.read()][1] == message(
        5, INSERT, UPDATE, DELETE, INSERT, raised_tables=frozenset(("orders",)), reasons=("why",)
    ).transaction
    assert [(row["ordinal"], row["row"], row["rows"]) for row in rows(world)] == [
        (1, 0, 1),
        *((2, row, 4) for row in (0, 1, 2, 3, -1)),
        (3, 0, 1),
    ]


def test_rows_of_other_key_ranges_are_left_out_and_the_others_keep_their_numbers(world: World) -> None:
    messages = [
        message(5, INSERT, UPDATE, row_numbers=(3, 7)),
        message(6, INSERT, row_numbers=(1,), is_last=False),
        message(6, UPDATE, DELETE, row_numbers=(12, 14), first_row=10),
    ]
    for each in messages:
        world.writer.write(each)
    world.writer.close()
    assert [list(each.rows) for each in world.read()] == [[3, 7], [1, 12, 14]]
    assert [(row["row"], row["rows"]) for row in rows(world)] == [(3, 2), (7, 2), (1, 3), (12, 3), (14, 3)]


def test_pieces_without_a_last_one_are_void(world: World) -> None:
    first, second, _ = pieces(5)
    world.writer.write(first)
    world.writer.write(second)
    for each in pieces(5):
        world.writer.write(each)
    world.writer.write(pieces(6)[0])
    world.writer.close()
    assert gtids(world) == [f"{SOURCE}:5"]
    assert len(rows(world)) == 5
    assert list(world.folder.rglob(f"*{UNFINISHED}")) == []


@pytest.mark.parametrize("number", [5, 6])
def test_a_whole_transaction_behind_void_pieces_is_recorded_and_they_are_not(number: int, world: World) -> None:
    """F29: a crash of the primary cut the pieces off; their number may be given again, or a later one comes."""
    world.writer.write(pieces(5)[0])
    world.writer.write(insert(number))
    world.writer.write(insert(7))
    world.writer.close()
    assert gtids(world) == [f"{SOURCE}:{number}", f"{SOURCE}:7"]
    assert [each.transaction for each in world.read()] == [insert(number).transaction, insert(7).transaction]
    assert list(world.folder.rglob(f"*{UNFINISHED}")) == []


def test_a_piece_that_is_missing_stops_the_archive(world: World) -> None:
    _, _, last = pieces(5)
    world.writer.write(pieces(4)[0])
    with pytest.raises(StreamStopped, match="goes on with row 3"):
        world.writer.write(last)


def test_a_large_transaction_is_read_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_reader, "PIECE_ROWS_MAX", 2)
    world.writer.write(message(5, INSERT, UPDATE, DELETE, INSERT))
    world.writer.close()
    assert [(each.first_row, len(each.transaction.changes), each.is_last) for each in world.read()] == [
        (0, 2, False),
        (2, 2, True),
    ]


# -- going on -----------------------------------------------------------------------------------------------------


def test_it_goes_on_where_complete_files_end(tmp_path: Path) -> None:
    world = World(tmp_path, begins_at=4)
    assert world.writer.resume == start(4)
    world.writer.write(insert(5))
    assert world.writer.resume == start(4)
    world.writer.close()
    assert world.writer.resume == start(5)
    world.reopen()
    assert world.writer.resume == start(5)
    world.writer.begin(start(9))  # the archive knows better
    assert world.writer.resume == start(5)
    world.writer.write(insert(6))
    world.writer.close()
    assert [row["ordinal"] for row in rows(world)] == [1, 2]


def test_a_lineage_that_came_later_is_not_resumed_before_its_first_complete_file(tmp_path: Path) -> None:
    world = World(tmp_path, begins_at=4)
    world.writer.write(message(3, UPDATE, shard="80-"))
    assert world.writer.resume == start(4)
    world.writer.close()
    assert world.writer.resume == {**start(4), **start(3, "80-")}


def test_what_comes_twice_is_written_once(world: World) -> None:
    for number in (5, 6, 5, 6, 7):
        world.writer.write(insert(number))
    assert world.writer.duplicates == 2
    world.writer.close()
    world.reopen()
    for number in (6, 7, 8):
        world.writer.write(insert(number))
    world.writer.close()
    assert gtids(world) == [f"{SOURCE}:{number}" for number in (5, 6, 7, 8)]


def test_a_transaction_of_a_new_epoch_is_no_duplicate(world: World) -> None:
    world.writer.write(insert(5))
    world.writer.write(message(5, INSERT, epoch=2))
    world.writer.close()
    assert [each.token.epoch for each in world.read()] == [1, 2]


def test_only_one_writer_at_a_time(world: World) -> None:
    with pytest.raises(ConfigError, match="another run"):
        World(world.folder)
    world.writer.close()
    world.reopen()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        World(tmp_path / "file")


def test_what_was_left_unfinished_is_removed_with_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.writer.write(insert(1))
    world.writer.close()
    torn = find_files(world.folder)[0].path.parent / f".changes-00000000-0000000000000002{UNFINISHED}"
    torn.write_bytes(b"PAR1 half")
    world.reopen()
    assert not torn.exists()
    assert torn.name in caplog.text


# -- reading ------------------------------------------------------------------------------------------------------


def write_three_files(tmp_path: Path) -> Path:
    with World(tmp_path, RotationPolicy(rows_max=1)) as world:
        for number in (1, 2, 3):
            world.writer.write(insert(number))
    return tmp_path


def test_one_file_or_a_part_can_be_read(tmp_path: Path) -> None:
    folder = write_three_files(tmp_path)
    second = find_files(folder)[2].path
    [lineage] = open_archive(second)
    assert [str(each.token.position) for each in lineage.messages()] == [f"{SOURCE}:2"]
    assert lineage.before.position == MysqlGtidSet.of(SOURCE, 1)


def test_a_missing_file_is_a_gap(tmp_path: Path) -> None:
    folder = write_three_files(tmp_path)
    find_files(folder)[2].path.unlink()
    with pytest.raises(FormatError, match="begins with transaction 3, the file before it ends with 1"):
        open_archive(folder)


def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    folder = write_three_files(tmp_path)
    path = find_files(folder)[2].path
    copy = path.parent.parent / "hour=copy"
    copy.mkdir()
    shutil.copy(path, copy / path.name)
    with pytest.raises(FormatError, match="begins with transaction 2"):
        open_archive(folder)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no file of an archive"):
        open_archive(tmp_path)


def test_a_damaged_newest_file_is_named_and_never_passed_over(tmp_path: Path) -> None:
    folder = write_three_files(tmp_path)
    path = find_files(folder)[-1].path
    path.write_bytes(path.read_bytes()[:-10])
    for use in (lambda: open_archive(folder), lambda: World(folder)):
        with pytest.raises(FormatError, match=rf"{path.name}: not readable as Parquet"):
            use()


def test_a_file_of_another_version(tmp_path: Path) -> None:
    folder = write_three_files(tmp_path)
    path = find_files(folder)[-1].path
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, VERSION_KEY.encode(): b"99"}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(FormatError, match="version '99'"):
        open_archive(folder)


def keep_rows(path: Path, places: list[int]) -> None:
    table = pq.read_table(path)
    metadata = {**pq.read_metadata(path).metadata}
    metadata.pop(b"ARROW:schema")
    pq.write_table(table.take(places).replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(("rows_left", "problem"), [(slice(0, 1), "is not whole"), (slice(1, 2), "is not whole")])
def test_rows_that_are_missing_are_found(rows_left: slice, problem: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.writer.write(message(1, INSERT, UPDATE))
    keep_rows(find_files(tmp_path)[-1].path, list(range(2))[rows_left])
    [lineage] = open_archive(tmp_path)
    with pytest.raises(FormatError, match=problem):
        list(lineage.messages())


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_transaction_that_is_missing_in_a_file_is_found_before_the_next_one_comes(
    missing: int, tmp_path: Path
) -> None:
    with World(tmp_path) as world:
        for number in (1, 2, 3):
            world.writer.write(insert(number))
    keep_rows(find_files(tmp_path)[-1].path, [row for row in range(3) if row != missing - 1])
    [lineage] = open_archive(tmp_path)
    read = lineage.messages()
    for number in range(1, missing):
        assert next(read).token == token(number)
    with pytest.raises(FormatError, match="it ends with" if missing == 3 else "comes after"):
        next(read)


def test_the_token_of_the_tests_is_a_token() -> None:
    assert EventToken.parse(str(token(5))) == token(5)
    assert Transaction(token(5).position, 0).is_last
