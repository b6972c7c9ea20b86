"""The token of a read: what the statement asks the server for, and what its answer says."""

from __future__ import annotations

from typing import Any

import pytest

from freshness.errors import FormatError
from freshness.position import parse_position
from freshness.stream.heartbeat import EPOCH_ROW, parse_token, token_sql, topology_row

LINEAGE = "shop/-"
SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def row(name: str, *, position: str = "0-1-5", epoch: int = 3, mark: str = "", min_us: int = 0) -> Any:
    """A row of the answer: the server's position, and a row of the heartbeat table."""
    return position, name, epoch, mark, min_us


@pytest.mark.parametrize(
    ("flavor", "variable"), [("mysql", "@@global.gtid_executed"), ("mariadb", "@@global.gtid_slave_pos")]
)
def test_the_position_is_the_one_that_the_engine_shows(flavor: str, variable: str) -> None:
    """F2: the log's own is ahead of what a SELECT sees, and what was purged is behind all of it."""
    assert token_sql(flavor).startswith(f"SELECT {variable}, id, epoch, watermark, min_us FROM ")
    assert token_sql(flavor, "@@read_only").startswith(f"SELECT @@read_only, {variable}, id, ")


def test_watermarks_of_this_epoch_move_the_token_on_mariadb_alone() -> None:
    rows = [row(EPOCH_ROW), row("one", mark="0-1-9", min_us=7), row("two", mark="1-2-4", min_us=8)]
    found = parse_token("mariadb", LINEAGE, "-", rows)
    assert found is not None
    assert found.position == parse_position("mariadb", "0-1-9,1-2-4")
    assert (found.epoch, found.timestamp_us) == (3, 8)
    on_mysql = parse_token(
        "mysql", LINEAGE, "-", [(f"{SOURCE}:1-5", *each[1:3], f"{SOURCE}:1-9", 0) for each in rows]
    )
    assert on_mysql is not None
    assert on_mysql.position == parse_position("mysql", f"{SOURCE}:1-5")


@pytest.mark.parametrize(
    "other",
    [
        row("of a lost history", epoch=2, mark="0-1-9"),
        row(topology_row("shop", LINEAGE), mark="0-1-9"),
        row("without one"),
    ],
)
def test_other_rows_do_not_move_the_token(other: Any) -> None:
    """F28: a failover may have lost what an invalidator that is gone saw in a previous epoch."""
    found = parse_token("mariadb", LINEAGE, "-", [row(EPOCH_ROW, mark="0-1-9"), other])
    assert found is not None
    assert found.position == parse_position("mariadb", "0-1-5")


def test_without_an_epoch_there_is_no_token() -> None:
    assert parse_token("mariadb", LINEAGE, "-", []) is None
    assert parse_token("mariadb", LINEAGE, "-", [row("one", mark="0-1-9")]) is None


def test_a_position_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(FormatError, match="the server's own position"):
        parse_token("mariadb", LINEAGE, "-", [row(EPOCH_ROW, position="nonsense")])
