"""The schema of a table from a FIELD event; a real Vitess: integration/vitess/real/test_stream.py."""

from __future__ import annotations

from typing import Any

import pytest

from freshness.stream.schema import TableColumn
from integration.servers.vtgate import column
from invalidator.vstream.row import describe_fields


@pytest.mark.parametrize(
    ("kind", "parts", "described"),
    [
        (778, {"column_type": "bigint(20) unsigned", "flags": 33}, TableColumn("c", "bigint", False, unsigned=True)),
        (265, {"column_type": "int unsigned", "flags": 32}, TableColumn("c", "bigint", True)),
        (1036, {"flags": 32}, TableColumn("c", "double", True, unsigned=True)),
        (778, {"flags": 32}, TableColumn("c", "bigint", True, unsigned=True)),
        (18, {"column_type": "decimal(12,3)"}, TableColumn("c", "decimal", True, length=12, scale=3)),
        (18, {"column_type": "decimal(12)"}, TableColumn("c", "decimal", True, length=12, scale=0)),
        (18, {}, TableColumn("c", "decimal", True, length=10, scale=0)),
        (785, {"column_type": "year", "flags": 96}, TableColumn("c", "year", True)),
        (2064, {"column_type": "datetime(6)"}, TableColumn("c", "datetime", True, scale=6)),
        (2073, {"column_type": "bit(9)", "flags": 32}, TableColumn("c", "bit", True, length=9)),
        (
            6165,
            {"column_type": "varchar(20)", "column_length": 80, "charset": 45},
            TableColumn("c", "varchar", True, length=80, charset="utf8mb4"),
        ),
        (
            10262,
            {"column_type": "varchar(20)", "column_length": 80, "charset": 46},
            TableColumn("c", "varchar", True, length=80, charset="utf8mb4"),
        ),
        (
            10262,
            {"column_type": "varbinary(20)", "column_length": 20, "charset": 63},
            TableColumn("c", "varbinary", True, length=20),
        ),
        (
            2074,
            {"column_type": "ENUM('a','it''s')", "charset": 45},
            TableColumn("c", "enum", True, charset="utf8mb4", labels=("a", "it's")),
        ),
        (9999, {}, TableColumn("c", "unknown", True)),
    ],
)
def test_columns(kind: int, parts: dict[str, Any], described: TableColumn) -> None:
    assert describe_fields([column("c", kind, **parts)]).columns == (described,)


def test_the_key_is_told_by_its_flag_and_else_not_known() -> None:
    fields = [column(name, 265, flags=flags) for name, flags in (("a", 3), ("b", 0), ("c", 2))]
    found = describe_fields(fields)
    assert (found.key, found.key_source) == (("a", "c"), "vttablet")
    found = describe_fields(fields[1:2])
    assert (found.key, found.key_source) == (None, "unknown"), "no flag: no key, or none that was told"
