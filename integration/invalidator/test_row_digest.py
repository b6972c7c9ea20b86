"""One row, read from the log and read by a client, has one digest; a value that the log cannot convey has none.

Each case is a column of its own table, so that one without a digest does not hide another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from pymysql.cursors import DictCursor

from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position
from freshness.stream.source import RowChange, Shape
from freshness.values.codec import DIGEST_BYTES, encode_value, row_digest
from integration.servers import DatabaseServer, Flavor, Pair
from invalidator.binlog.rows.image import digest_image, read_row
from invalidator.binlog.rows.layout import Layout, read_layouts
from invalidator.binlog.source import BinlogSource

ARRIVES_SECONDS: Final = 60.0

TOLD: Final[tuple[tuple[str, str], ...]] = (
    ("TINYINT", "-128"),
    ("TINYINT(1)", "1"),
    ("SMALLINT UNSIGNED", "65535"),
    ("MEDIUMINT", "-8388608"),
    ("INT(8) UNSIGNED ZEROFILL", "42"),
    ("BIGINT UNSIGNED", "18446744073709551615"),
    ("DECIMAL(10,0)", "5"),
    ("DECIMAL(30,10)", "-12345678901234567890.0123456789"),
    ("DECIMAL(10,3)", "-0.001"),
    ("DECIMAL(10,3)", "100.000"),
    ("DECIMAL(65,30)", "12345678901234567890123456789012345.123456789012345678901234567891"),
    ("FLOAT", "0.5"),
    ("FLOAT(10,2)", "1.25"),
    ("DOUBLE", "0.1"),
    ("DOUBLE", "0.10000000149011612"),
    ("DOUBLE", "1e300"),
    ("DOUBLE", "-2.2250738585072014e-308"),
    ("DOUBLE", "123456789.123456789"),
    ("DOUBLE", "-0.0"),
    ("DOUBLE(30,10)", "12345678.0123456789"),
    ("BIT(1)", "b'1'"),
    ("BIT(8)", "b'10000001'"),
    ("BIT(12)", "b'100000000001'"),
    ("BIT(64)", "b'1000000000000000000000000000000000000000000000000000000000000001'"),
    ("YEAR", "2024"),
    ("YEAR", "0000"),
    ("DATE", "'2024-02-29'"),
    ("DATETIME", "'2024-01-02 03:04:05'"),
    ("DATETIME(1)", "'2024-01-02 03:04:05.6'"),
    ("DATETIME(3)", "'2024-01-02 03:04:05.678'"),
    ("DATETIME(5)", "'2024-01-02 03:04:05.67891'"),
    ("DATETIME(6)", "'1000-01-01 00:00:00.000001'"),
    ("TIMESTAMP NULL", "'2024-01-02 03:04:05'"),
    ("TIMESTAMP NULL", "NULL"),
    ("TIMESTAMP(3) NULL", "'2024-07-02 03:04:05.678'"),
    ("TIMESTAMP(6) NULL", "'2038-01-19 03:14:07.999999'"),
    ("TIMESTAMP NULL", "'1970-01-01 00:00:01'"),
    ("TIME", "'838:59:59'"),
    ("TIME", "'-01:02:03'"),
    ("TIME(3)", "'12:34:56.789'"),
    ("TIME(3)", "'-00:00:01.500'"),
    ("TIME(6)", "'-838:00:00.000001'"),
    ("CHAR(10)", "'abc   '"),
    ("CHAR(10) CHARACTER SET utf8mb4", "'€ é  '"),
    ("VARCHAR(300)", "'trailing   '"),
    ("VARCHAR(20) CHARACTER SET utf8mb4", "'\U0001f600'"),
    ("VARCHAR(20) CHARACTER SET latin1", "'€é'"),
    ("VARCHAR(20) CHARACTER SET utf16", "'€'"),
    ("VARCHAR(20) CHARACTER SET cp1251", "'plain'"),
    ("VARCHAR(20)", "''"),
    ("TINYTEXT", "'t'"),
    ("TEXT CHARACTER SET utf8mb4", "'grün'"),
    ("LONGTEXT", "REPEAT('x', 70000)"),
    ("BINARY(3)", "x'010000'"),
    ("BINARY(3)", "x'000000'"),
    ("VARBINARY(10)", "x'010000'"),
    ("VARBINARY(16)", "x''"),
    ("BLOB", "x'ff00'"),
    ("ENUM('a','b')", "'b'"),
    ("SET('x','y','z')", "'z,x'"),
    ("SET('x','y','z')", "''"),
    ("SET('x','','z')", "3"),
    ("GEOMETRY", "ST_GeomFromText('POINT(1 2)')"),
    ("INT", "NULL"),
    ("VARCHAR(20)", "NULL"),
    ("INT AS (id + 1) VIRTUAL", "DEFAULT"),
    ("INT AS (id + 1) STORED", "DEFAULT"),
    ("INT INVISIBLE", "7"),
)
TOLD_MYSQL: Final = (("BINARY(16)", "x'01000000000000000000000000000000'"), ("JSON", "NULL"))
TOLD_MARIADB: Final = (("JSON", "'{\"a\": 1}'"), ("VARCHAR(20) CHARACTER SET utf8mb3", "'é'"))
UNTOLD: Final[tuple[tuple[str, str], ...]] = (
    ("TIMESTAMP NULL", "'0000-00-00 00:00:00'"),
    ("FLOAT", "0.1"),
    ("FLOAT(20,10)", "0.1"),
    ("DATE", "'0000-00-00'"),
    ("VARCHAR(20) CHARACTER SET cp1251", "'я'"),
)
UNTOLD_MYSQL: Final = (("JSON", "'{\"a\": 1}'"), ("JSON", "'null'"))
UNTOLD_MARIADB: Final = (
    ("BINARY(16)", "x'01000000000000000000000000000001'"),
    ("UUID", "'6ccd780c-baba-1026-9564-5b8c656024db'"),
    ("INET6", "'::1'"),
)


def cases(flavor: Flavor, *, is_told: bool) -> list[tuple[str, str]]:
    if is_told:
        return [*TOLD, *(TOLD_MYSQL if flavor == "mysql" else TOLD_MARIADB)]
    return [*UNTOLD, *(UNTOLD_MYSQL if flavor == "mysql" else UNTOLD_MARIADB)]


def digests(server: DatabaseServer, columns: list[tuple[str, str]]) -> list[tuple[bytes | None, Any, Any]]:
    """For each case: the digest by the log, and the row as a client reads it and as the log has it. The row that
    `read_row` makes of the log has the very bytes of the one that the client reads."""
    address = ServerAddress("127.0.0.1", server.port, "app", "app", "shop")
    names = [f"t{number}" for number in range(len(columns))]
    for name, (kind, _) in zip(names, columns, strict=True):
        server.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v {kind})", database="shop")
    layouts = read_layouts(address)
    source = BinlogSource(address, server.flavor, frozenset(names))
    changes: dict[str, RowChange] = {}
    rows: dict[str, Mapping[str, Any]] = {}
    with connect(address) as connection:
        source.open(executed_position(connection, server.flavor))
        try:
            with connection.cursor(DictCursor) as cursor:
                cursor.execute("SET sql_mode = ''")
                for name, (_, value) in zip(names, columns, strict=True):
                    cursor.execute(f"INSERT INTO {name} (id, v) VALUES (1, {value})")
                    cursor.execute(f"SELECT * FROM {name}")
                    [rows[name]] = cursor.fetchall()
            deadline = time.monotonic() + ARRIVES_SECONDS
            while len(changes) < len(names):
                assert time.monotonic() < deadline, sorted(set(names) - set(changes))
                for transaction in source.poll(1.0, 100):
                    assert not transaction.raised_tables, transaction.reasons
                    changes |= {change.table: change for change in transaction.changes}
        finally:
            source.close()
    for name, (kind, value) in zip(names, columns, strict=True):
        row = read_row(changes[name].after, changes[name].shapes, layouts[name])
        assert row is None or encode_value(row) == encode_value(rows[name]), (kind, value, row, rows[name])
    return [
        (digest_image(changes[name].after, changes[name].shapes, layouts[name]), rows[name], changes[name].after)
        for name in names
    ]


def test_what_the_log_tells_has_the_digest_of_what_a_client_reads(pair: Pair, flavor: Flavor) -> None:
    columns = cases(flavor, is_told=True)
    found = digests(pair.primary, columns)
    wrong = [
        (case, row, image)
        for case, (digest, row, image) in zip(columns, found, strict=True)
        if digest is None or digest != row_digest(row) or len(digest) != DIGEST_BYTES
    ]
    assert wrong == []


def test_what_the_log_does_not_tell_has_no_digest(pair: Pair, flavor: Flavor) -> None:
    columns = cases(flavor, is_told=False)
    found = digests(pair.primary, columns)
    told = [case for case, (digest, _, _) in zip(columns, found, strict=True) if digest is not None]
    assert told == []


def test_an_image_that_leaves_columns_out_has_no_digest() -> None:
    names = frozenset(("id", "v"))
    shapes = dict.fromkeys(names, Shape("same"))
    layout = Layout(("id",), names, names)
    assert digest_image({"id": 1, "v": 2}, shapes, layout) == row_digest({"v": 2, "id": 1})
    assert digest_image({"v": 2}, shapes, layout) is None
    assert digest_image({"id": 1, "v": 2}, shapes, Layout(("id",), frozenset("id"), frozenset("id"))) is None
    assert digest_image({"id": 1, "v": 2}, None, layout) is None


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_rows_that_differ_have_digests_that_differ(pair: Pair) -> None:
    values = ["1", "'1'", "'a'", "'A'", "'a '", "NULL", "''", "'2'", "x'31'"]
    found = digests(pair.primary, [("VARCHAR(20) COLLATE utf8mb4_bin", value) for value in values])
    by_value = {row["v"]: digest for digest, row, _ in found}
    assert len(set(by_value.values())) == len(by_value) == 7
