"""A table with a column of each type that a copy can have, and rows of tables in a form that can be compared."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from pyspark.sql import DataFrame

from integration.harness import System

SEATS_TABLE: Final = (
    "CREATE TABLE seats (hall VARCHAR(20) COLLATE utf8mb4_bin, seat BINARY(3), price DECIMAL(8,2), at DATETIME(3), "
    "day DATE, big BIGINT UNSIGNED, note TEXT, raw VARBINARY(20), changed TIMESTAMP NULL, share DOUBLE, "
    "mood ENUM('good', 'bad'), PRIMARY KEY (hall, seat))"
)
SEAT: Final = '[objects.seat]\ntable = "seats"\n'


def in_database(system: System, table: str) -> list[str]:
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM {table}")
        return sorted(str(row) for row in cursor.fetchall())


def in_frame(rows: DataFrame) -> list[str]:
    """The same of a copy."""
    return sorted(str(tuple(map(_shown, row))) for row in rows.collect())


def _shown(cell: Any) -> Any:
    """As PyMySQL gives it: BIGINT UNSIGNED is a DECIMAL(20, 0) in the copy."""
    if isinstance(cell, bytearray):
        return bytes(cell)
    if isinstance(cell, Decimal) and cell.as_tuple().exponent == 0:
        return int(cell)
    return cell
