"""A table with a column of each type that a copy can have, and rows of tables in a form that can be compared."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from pyspark.sql import DataFrame

from integration.servers import DatabaseServer
from integration.servers.database import SCHEMA

SEATS_TABLE: Final = (
    "CREATE TABLE seats (hall VARCHAR(20) COLLATE utf8mb4_bin, seat BINARY(3), price DECIMAL(8,2), at DATETIME(3), "
    "day DATE, big BIGINT UNSIGNED, note TEXT, raw VARBINARY(20), changed TIMESTAMP NULL, share DOUBLE, "
    "mood ENUM('good', 'bad'), home BIGINT, v INT, PRIMARY KEY (hall, seat))"
)
REPLACE_SEAT: Final = (
    "REPLACE INTO seats VALUES (%s, %s, %s, '2026-01-31 10:00:00.125', '2026-02-01', %s, %s, %s, "
    "'2026-03-01 00:00:00', 0.1, 'bad', %s, %s)"
)
"""Its values: hall, seat, price, big, note, raw, home, v."""

SEAT: Final = '[objects.seat]\ntable = "seats"\n'


def in_database(table: str, *servers: DatabaseServer) -> list[str]:
    """The rows of all of these servers."""
    found: list[str] = []
    for server in servers:
        with server.connect(SCHEMA) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT * FROM {table}")
            found += (str(row) for row in cursor.fetchall())
    return sorted(found)


def in_frame(rows: DataFrame) -> list[str]:
    """The same of a copy."""
    return sorted(str(tuple(map(shown, row))) for row in rows.collect())


def shown(cell: Any) -> Any:
    """As PyMySQL gives it: BIGINT UNSIGNED is a DECIMAL(20, 0) in the copy."""
    if isinstance(cell, bytearray):
        return bytes(cell)
    if isinstance(cell, Decimal) and cell.as_tuple().exponent == 0:
        return int(cell)
    return cell
