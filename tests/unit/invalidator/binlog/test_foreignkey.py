"""What foreign keys reach by what is logged, of MySQL: `ForeignKeys` (F23)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from freshness.database.foreignkey import Cascades, Cause
from freshness.stream.source import UNREADABLE, RowChange
from invalidator.binlog.foreignkey import ForeignKeys
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable
from invalidator.binlog.wire.event import LogEvent

DELETED = Cause("shop", "parent")
RENAMED = Cause("shop", "parent", "id")
MOVED = Cause("shop", "child", "parent")
CASCADES: Cascades = {
    "child": frozenset((DELETED, RENAMED)),
    "grandchild": frozenset((DELETED, RENAMED, MOVED, Cause("elsewhere", "far"))),
}


def foreign_keys(cascades: Cascades = CASCADES) -> ForeignKeys:
    made = ForeignKeys("mysql", lambda: cascades)
    made.restart()
    return made


def event(flags: int = 1) -> LogEvent:
    packet = bytes(20) + struct.pack("<QH", 0, 2)
    packet = packet[:26] + bytes((flags,)) + packet[27:]
    return LogEvent(31, 0, 1, 4, 0, packet, 20, len(packet))


def updated(before: dict[str, Any], after: dict[str, Any], table: str = "parent") -> ChangedRows:
    change = RowChange(table, "update", before, after)
    return ChangedRows(MappedTable("shop", table, True, b""), "update", True, (change,))


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        ({"id": 1, "v": 1}, {"id": 1, "v": 2}, set()),
        ({"id": 1, "v": 1}, {"id": 2, "v": 1}, {RENAMED}),
        ({"id": "a"}, {"id": "A"}, {RENAMED}),
        ({"id": UNREADABLE}, {"id": UNREADABLE}, {RENAMED}),
        ({"id": 1}, {"v": 2}, {RENAMED}),
        ({"v": 1}, {"v": 2}, {RENAMED}),
    ],
)
def test_an_update_counts_by_the_columns_of_foreign_keys(
    before: dict[str, Any], after: dict[str, Any], causes: set[Cause]
) -> None:
    assert foreign_keys().find_causes(updated(before, after), event()) == causes


def test_rows_that_cannot_be_read_may_have_changed_any_key() -> None:
    table = MappedTable("shop", "parent", False, b"\1\2\3")
    assert foreign_keys().find_causes(ChangedRows(table, "update", True), event()) == {RENAMED}


@pytest.mark.parametrize("flags", [16, 17, 2, 19])
def test_an_event_that_says_so_reaches_nothing_that_is_not_logged(flags: int) -> None:
    rows = ChangedRows(MappedTable("shop", "parent", False, b""), "delete", True)
    assert foreign_keys().find_causes(rows, event(flags)) == set()
    assert foreign_keys().find_causes(rows, event(1)) == {DELETED}


def test_the_name_of_a_parent_in_another_database_is_another_table() -> None:
    rows = ChangedRows(MappedTable("elsewhere", "parent", False, b""), "delete", True)
    assert foreign_keys().find_causes(rows, event()) == set()


@pytest.mark.parametrize(
    ("sql", "database", "reached"),
    [
        ("ALTER TABLE child DROP FOREIGN KEY child_ibfk_1", "shop", {"grandchild"}),
        ("ALTER TABLE parent ADD COLUMN v INT", "shop", {"child", "grandchild"}),
        ("RENAME TABLE old TO parent", "shop", {"child", "grandchild"}),
        ("DROP TABLE elsewhere.far", "shop", {"grandchild"}),
        ("DROP TABLE far", "elsewhere", {"grandchild"}),
        ("DROP DATABASE elsewhere", "", {"grandchild"}),
        ("ALTER TABLE other ADD COLUMN v INT", "shop", set()),
        ("GRANT SELECT ON shop.parent TO someone", "shop", set()),
    ],
)
def test_a_definition_reaches_what_its_table_cascades_to(sql: str, database: str, reached: set[str]) -> None:
    """It may have cut a chain of foreign keys, over which rows changed before."""
    assert foreign_keys().find_reached_by(sql, database) == reached


def test_a_new_foreign_key_is_read_before_its_statement_counts() -> None:
    known: dict[str, frozenset[Cause]] = {}
    made = foreign_keys(known)
    known["child"] = frozenset((DELETED,))
    assert made.find_reached_by("CREATE TABLE x (a INT REFERENCES parent (id))", "shop") == {"child"}
