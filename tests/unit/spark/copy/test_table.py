"""Rows of a copy, from the log and from a dump."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, TimestampNTZType

from freshness.database.walk import above_key
from freshness.stream.source import UNREADABLE
from spark.copy.table import CopyColumn, CopyTable, _upto, pace

GOODS: Final = CopyTable(
    "goods",
    (CopyColumn("id", LongType()), CopyColumn("v", StringType()), CopyColumn("code", BinaryType(), 4)),
    ("id",),
)
NOTHING: Final = (None, None, None)


def changes(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    """What a change of the stream makes, without its place."""
    told = {name: None if row is None else json.dumps(row) for name, row in (("before", before), ("after", after))}
    made = list(GOODS.to_changes({"lineage": "a", "ordinal": 7, "row": 3, **told}))
    assert all(row[:2] == (7, 3) for row in made)
    return [row[2:] for row in made]


ROW: Final = {"id": 1, "v": "a", "code": {"$bytes": "YWI="}}
CELLS: Final = (1, "a", b"ab\0\0")


def test_a_row_that_comes_and_goes() -> None:
    assert changes(None, ROW) == [(1, False, True, '["a", 1]', *CELLS)]
    assert changes(ROW, None) == [(0, True, True, '["a", 1]', *NOTHING)]


def test_a_row_whose_key_changes_is_gone_under_its_previous_one() -> None:
    assert changes(ROW, {**ROW, "id": 2}) == [
        (0, True, True, '["a", 1]', *NOTHING),
        (1, False, True, '["a", 2]', 2, *CELLS[1:]),
    ]
    assert changes(ROW, {**ROW, "v": "b"}) == [(1, False, True, '["a", 1]', 1, "b", CELLS[2])]


@pytest.mark.parametrize("after", [{"v": "b"}, {"id": 2}])
def test_a_change_that_lacks_columns_says_so(after: dict[str, Any]) -> None:
    """The table is dumped again."""
    assert changes(None, after) == [(0, False, False, None, *NOTHING)]


@pytest.mark.parametrize("name", ["v", "code", "id"])
def test_a_value_that_cannot_be_told_is_not_null(name: str) -> None:
    """Such as a label of an ENUM in a character set that is not known. The table is dumped again."""
    assert changes(None, {**ROW, name: {"$unreadable": True}}) == [(0, False, False, None, *NOTHING)]


@pytest.mark.parametrize(
    ("rate", "took", "pauses"),
    [
        (None, 1.0, []),
        (10.0, 0.0, [3.0, 1.0]),  # the first three seconds are for 30 rows
        (10.0, 2.0, [1.0, 0.0]),
        (1000.0, 1.0, [0.0, 0.0]),
    ],
)
def test_a_dump_is_no_faster_than_it_may_be(rate: float | None, took: float, pauses: list[float]) -> None:
    now, slept = [100.0], []

    def read() -> Iterator[list[int]]:
        for rows in ([0] * 30, [0] * 10, [], [0]):
            now[0] += took
            yield rows

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    assert [len(rows) for rows in pace(read(), rate, lambda: now[0], sleep)] == [30, 10]
    assert slept == pytest.approx(pauses)


def test_a_zero_date_is_null() -> None:
    column = CopyColumn("at", TimestampNTZType())
    assert column.to_cell(UNREADABLE) is None
    assert column.to_cell("0000-00-00 00:00:00") is None


def undone(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    told = {name: None if row is None else json.dumps(row) for name, row in (("before", before), ("after", after))}
    made = list(GOODS.to_undone_changes({"lineage": "a", "ordinal": 7, "row": 3, **told}))
    assert all(row[:2] == (-7, -3) for row in made)
    return [row[2:] for row in made]


def test_a_change_that_is_taken_back_leaves_the_row_as_it_was() -> None:
    assert undone(None, ROW) == [(0, True, True, '["a", 1]', *NOTHING)]
    assert undone(ROW, None) == undone(ROW, {**ROW, "v": "b"}) == [(1, False, True, '["a", 1]', *CELLS)]
    assert undone(ROW, {**ROW, "id": 2}) == [
        (0, True, True, '["a", 2]', *NOTHING),
        (1, False, True, '["a", 1]', *CELLS),
    ]
    assert undone(ROW, {"v": "b"}) == [(1, False, True, '["a", 1]', *CELLS)]


def test_a_change_without_the_whole_row_before_it_cannot_be_taken_back() -> None:
    """The image after has a value for the column, and it is the newer one."""
    assert undone({"id": 1, "v": "a"}, ROW) == [(0, False, False, None, *NOTHING)]


def test_the_columns_of_a_copy_as_json() -> None:
    columns = (CopyColumn("price", DecimalType(8, 2)), CopyColumn("at", TimestampNTZType()))
    for table in (GOODS, CopyTable("seats", columns, ("at", "price"))):
        assert CopyTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_a_dump_and_the_log_give_the_same_cells() -> None:
    """A dump has the zero bytes at the end of a BINARY(n), and the log has not."""
    assert GOODS.to_row("a", {"id": 1, "v": "a", "code": b"ab\0\0"}) == ('["a", 1]', *CELLS)
    assert GOODS.to_row("a", {"id": 1, "v": "a", "code": b"ab"}) == ('["a", 1]', *CELLS)


def test_ranges_touch_and_do_not_overlap() -> None:
    above, first = above_key(("a", "b"), (5, 6))
    assert (above, first) == ("(`a` > %s) OR (`a` = %s AND `b` > %s)", [5, 5, 6])
    assert _upto(("a", "b"), (5, 6)) == (f"NOT ({above})", first)
    assert above_key(("a",), None) == ("TRUE", [])
