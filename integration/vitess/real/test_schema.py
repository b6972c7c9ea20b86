"""The schema of a row's own time on a real Vitess, whose tablets keep the versions of their schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from freshness.stream.schema import TableColumn, TableSchema
from integration.servers.vitess import Vitess
from integration.vitess.real.following import Follower, execute


@pytest.fixture
def vitess() -> Iterator[Vitess]:
    with Vitess(vttablet_options=("--track-schema-versions",)) as cluster:
        yield cluster


def test_rows_from_before_an_alter_come_with_the_layout_of_their_time(vitess: Vitess) -> None:
    start = execute(vitess, "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))")
    end = execute(
        vitess,
        "INSERT INTO customers VALUES (1, 'Ann')",
        "ALTER TABLE customers ADD COLUMN city VARCHAR(10) CHARACTER SET latin1 NOT NULL,"
        " ADD COLUMN amount DECIMAL(12,3), ADD COLUMN at DATETIME(6), ADD COLUMN kind ENUM('a','b'),"
        " MODIFY id INT UNSIGNED NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (id, city)",
        "INSERT INTO customers VALUES (2, 'Bea', 'Ulm', 1, NULL, 'a')",
    )
    vitess.wait_caught_up("0")
    with Follower(vitess, {"customers": ()}, start=start) as stream:
        stream.read_up_to(end)
    first, second = (change.schema for change in stream.changes)
    id_, name = (
        TableColumn("id", "bigint", False),
        TableColumn("name", "varchar", True, length=200, charset="utf8mb4"),
    )
    assert first == TableSchema((id_, name), ("id",), "vttablet")
    assert second == TableSchema(
        (
            TableColumn("id", "int", False, unsigned=True),
            name,
            TableColumn("city", "varchar", False, length=40, charset="latin1"),  # bytes of the text in utf8mb4
            TableColumn("amount", "decimal", True, length=12, scale=3),
            TableColumn("at", "datetime", True, scale=6),
            TableColumn("kind", "enum", True, charset="utf8mb4", labels=("a", "b")),
        ),
        ("id", "city"),
        "vttablet",
    )
