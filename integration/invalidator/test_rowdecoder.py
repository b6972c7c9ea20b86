"""Whole rows of real logs: what the decoder gives is what the server shows, and what mysql-replication gives.

Random tables of all column types, random statements, all row images. The test of random tables takes
FRESHNESS_ROWS_SECONDS on each server (5), from the seed FRESHNESS_ROWS_SEED ("1"); it prints what it compared.
"""

from __future__ import annotations

import json
import os
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

import pymysql
import pytest
from pymysql.cursors import DictCursor

from freshness.database.connection import Connection, connect, executed_position, quote_name
from freshness.stream.source import UNREADABLE, RowChange, Shape
from freshness.values.json import from_json, to_json
from integration.invalidator.test_binlog import address_of
from integration.invalidator.test_keyreader import (
    CHARSETS,
    KEY_TYPES,
    ONLY,
    OTHER_TYPES,
    Column,
    Value,
    random_date,
    random_time,
    read_log,
    text_in,
)
from integration.servers import DatabaseServer, Flavor, Pair
from invalidator.binlog.rows.decoder import ChangedRows, RowDecoder
from invalidator.binlog.rows.image import _as_read
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.compression import PLAIN_KINDS, unpack_rows, unpack_transaction
from invalidator.binlog.wire.event import FormatDescription, LogEvent
from invalidator.charset import find_codec
from invalidator.publish.envelope import UNAVAILABLE, to_debezium
from tests.unit.invalidator.binlog.library import Images, LibraryDecoder

SECONDS: Final = float(os.environ.get("FRESHNESS_ROWS_SECONDS", "5"))
SEED: Final = os.environ.get("FRESHNESS_ROWS_SEED", "1")
ROUNDS_MIN: Final = 12
TRANSACTION_PAYLOAD: Final = 40


# -- the log, decoded twice -------------------------------------------------------------------------------


@dataclass
class Decoded:
    """The row events of one statement. ``by_library``: None for an event that it does not read."""

    rows: list[ChangedRows] = field(default_factory=list)
    by_library: list[list[Images] | None] = field(default_factory=list)


def decode(flavor: Flavor, packets: Sequence[bytes]) -> Decoded:
    decoder, decoded = RowDecoder(flavor, "shop", frozenset(("goods",))), Decoded()
    library = LibraryDecoder(flavor)
    for event in log_events(packets):
        if isinstance(event, FormatDescription):
            decoder.start_file(event)
            library = LibraryDecoder(flavor, event)
        elif event.kind == events.TABLE_MAP:
            if decoder.map_table(event).wanted:
                try:
                    library.map_table(event)
                except Exception:  # noqa: BLE001 - a column type that it does not know
                    library = LibraryDecoder(flavor, library._format)
        elif event.kind in events.ROW_EVENTS:
            decoded.rows.append(decoder.read_rows(event))
            try:
                decoded.by_library.append(library.read_rows(event))
            except Exception:  # noqa: BLE001 - as above
                decoded.by_library.append(None)
    return decoded


def log_events(packets: Sequence[bytes]) -> Iterator[LogEvent | FormatDescription]:
    for packet in packets:
        if packet[5] == events.FORMAT_DESCRIPTION:
            yield events.parse_format_description(packet)
            continue
        event = events.parse_event(packet, has_checksum=True)
        if event.kind == TRANSACTION_PAYLOAD:
            for inner in unpack_transaction(event):
                yield events.parse_event(inner, has_checksum=True)
        else:
            yield unpack_rows(event) if event.kind in PLAIN_KINDS else event


# -- what a client reads ----------------------------------------------------------------------------------


def is_read_as(value: Any, shape: Shape, shown: Any, column: Column) -> bool:
    """Whether a client that reads ``shown`` reads what the log has. More exact than a digest needs."""
    read = _as_read(value, shape)
    if read is not UNREADABLE:
        # A DATE or DATETIME that PyMySQL cannot convert stays text, and never equals.
        return read == shown and (type(read) is type(shown) or isinstance(shown, (int, Decimal)))
    if value is UNREADABLE:
        return shown is not None and is_beyond_python(column, shown)
    if column.sql.startswith("JSON"):
        return (shown is None and value is None) or (shown is not None and is_same_json(value, json.loads(shown)))
    if shown is None or value is None:
        return value is shown
    if column.sql.startswith("FLOAT"):
        return isinstance(value, float) and float(f"{value:.6g}") == shown
    if isinstance(value, (timedelta, datetime)):
        return bool(value == shown) or str(shown).startswith("0000-00-00")
    if column.sql.startswith(("UUID", "INET", "BINARY", "VECTOR")):
        return isinstance(value, bytes)
    if "CHARACTER SET" in column.sql:
        return is_same_text(value, shown, column.sql.split()[-1])
    return False


def is_beyond_python(column: Column, shown: Any) -> bool:
    """Whether a value of this column may be `UNREADABLE`."""
    if column.sql.startswith(("DATE", "DATETIME")):
        return isinstance(shown, str)
    if column.sql.startswith("JSON"):
        return "base64:" in shown or column.sql == "JSON "
    return column.sql.startswith(("VECTOR", "ENUM", "SET"))


OTHER_CHARACTERS: Final = frozenset(
    ("big5", "cp1256", "cp866", "cp932", "euckr", "gbk", "greek", "hebrew", "koi8u", "latin7", "macroman", "sjis",
     "tis620", "ujis")
)  # fmt: skip
"""Character sets of which Python's table, by which rows are read, has a few other characters than the server's."""


def is_same_text(value: Any, shown: str, charset: str) -> bool:
    if find_codec(charset) is None:
        return isinstance(value, bytes)
    if charset in OTHER_CHARACTERS:
        return isinstance(value, str) and len(value) == len(shown)
    return bool(value == shown)


def is_same_json(value: Any, shown: Any) -> bool:
    if isinstance(value, dict):
        return (
            isinstance(shown, dict)
            and list(value) == list(shown)
            and is_same_json([*value.values()], [*shown.values()])
        )
    if isinstance(value, list):
        return isinstance(shown, list) and len(value) == len(shown) and all(map(is_same_json, value, shown))
    if isinstance(value, bytes):  # of SQL
        return str(shown).endswith(b64encode(value).decode())
    if isinstance(value, datetime):
        return shown in (f"{value:%Y-%m-%d %H:%M:%S.%f}", f"{value:%Y-%m-%d}")
    if isinstance(value, time_of_day):
        return bool(f"{value:%H:%M:%S.%f}" == shown)
    if isinstance(value, Decimal):
        return float(value) == float(shown)
    return type(value) is type(shown) and bool(value == shown)


# -- random tables ----------------------------------------------------------------------------------------


def random_document(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 4 else 7)
    if kind < 7:
        return (
            None, chance.random() < 0.5, chance.randrange(-(1 << 15), 1 << 16), chance.randrange(-(1 << 63), 1 << 64),
            chance.uniform(-1e9, 1e9), "text é€🚲"[: chance.randrange(10)], "x" * chance.choice((5, 130, 20000)),
        )[kind]  # fmt: skip
    count = chance.choice((0, 1, 3, 300 if depth == 0 else 5))
    parts = [random_document(chance, depth + 1) for _ in range(count)]
    return parts if kind == 7 else {f"k{place}é": part for place, part in enumerate(parts)}


def random_json(chance: random.Random) -> str:
    return f"CAST(_utf8mb4 x'{json.dumps(random_document(chance)).encode().hex()}' AS JSON)"


def random_opaque(chance: random.Random) -> str:
    moment = f"{random_date(chance)} {random_time(chance)}"
    parts = (
        f"CAST('{moment}' AS DATETIME(6))", f"CAST('{random_date(chance)}' AS DATE)",
        "TIMESTAMP'2024-01-02 03:04:05'",
        f"CAST('{random_time(chance)}' AS TIME(6))", "CAST('-01:02:03' AS TIME)", "CAST('100:00:00' AS TIME)",
        f"CAST({chance.uniform(-999, 999):.3f} AS DECIMAL(20, 3))", "x'ff00'", "CAST('abc' AS BINARY)",
    )  # fmt: skip
    chosen = chance.sample(parts, chance.randrange(1, 4))
    return f"JSON_ARRAY({', '.join(chosen)})"


def text_of(charset: str) -> Value:
    return text_in("utf8mb4" if charset in ("utf8mb3", "utf16le") else charset)


def random_duration(chance: random.Random) -> str:
    return f"'{chance.choice(('', '-'))}{chance.randrange(839)}:{random_time(chance)[3:]}'"


LABELS: Final = "('a','Bé','c d','','ß')"
MORE_TYPES: Final[Mapping[str, Value]] = {
    **{
        f"{kind}({size}) CHARACTER SET {charset}": text_of(charset)
        for charset in CHARSETS
        for kind, size in (("VARCHAR", 60), ("CHAR", 20))
    },
    **{
        f"ENUM{LABELS} CHARACTER SET {charset}": lambda chance: str(chance.randrange(6))
        for charset in ("latin1", "utf8mb4", "utf16", "cp1250", "ucs2")
    },
    **{
        f"SET{LABELS.replace(chr(39) * 2, chr(39) + 'e' + chr(39))} CHARACTER SET {charset}": (
            lambda chance: str(chance.randrange(32))
        )
        for charset in ("latin1", "utf8mb4", "utf16", "cp1250")
    },
    "ENUM('x')": lambda chance: "1",
    f"SET({','.join(repr(f's{n}') for n in range(64))})": lambda chance: str(chance.randrange(1 << 64)),
    **{f"BIT({bits})": (lambda chance: str(chance.randrange(2))) for bits in (2, 8, 9, 33, 64)},
    "DECIMAL(65,30)": lambda chance: f"{chance.randrange(-(10**35), 10**35)}.{chance.randrange(10**30):030d}",
    "DECIMAL(1,0)": lambda chance: str(chance.randrange(-9, 10)),
    "DECIMAL(10,4) UNSIGNED": lambda chance: f"{chance.uniform(0, 99999):.4f}",
    "FLOAT(10,2)": lambda chance: f"{chance.uniform(-9, 9):.2f}",
    "DOUBLE UNSIGNED": lambda chance: repr(chance.uniform(0, 1e300)),
    **{f"TIME({digits})": random_duration for digits in range(7)},
    "DATE": lambda chance: f"'{chance.choice((random_date(chance), '0000-00-00', '2024-00-01'))}'",
    "DATETIME(4)": lambda chance: f"'{chance.choice(('0000-00-00', random_date(chance)))} {random_time(chance)}'",
    "YEAR": lambda chance: chance.choice(("0", "1901", "2155", "2024")),
    "TINYBLOB": lambda chance: f"x'{chance.randbytes(chance.randrange(100)).hex()}'",
    "MEDIUMBLOB": lambda chance: f"REPEAT('z', {chance.choice((0, 5, 70000))})",
    "TEXT CHARACTER SET latin1": text_of("latin1"),
    "LONGTEXT CHARACTER SET utf16": text_of("utf16"),
    "BINARY(20)": lambda chance: f"x'{chance.randbytes(chance.randrange(20)).hex()}'",
    "GEOMETRY": lambda chance: f"ST_GeomFromText('LINESTRING(0 0, {chance.randrange(9)} 1)')",
}  # fmt: skip
JSON_TYPES: Final[dict[str, dict[str, Value]]] = {
    "mysql": {"JSON": random_json, "JSON ": random_opaque},
    "mariadb": {
        "VARCHAR(99) CHARACTER SET utf16 COLLATE uca1400_ai_ci": text_of("utf16"),
        "VARCHAR(98) CHARACTER SET utf8mb4 COLLATE uca1400_as_cs": text_of("utf8mb4"),
    },
}


def random_columns(chance: random.Random, flavor: Flavor) -> list[Column]:
    kinds: dict[str, Value] = {**KEY_TYPES, **OTHER_TYPES, **ONLY[flavor], **MORE_TYPES, **JSON_TYPES[flavor]}
    return [
        Column(f"c{place}", sql, False, kinds[sql])
        for place, sql in enumerate(chance.choices(list(kinds), k=chance.choice((1, 2, 8, 20, 40))))
    ]


KEYS: Final = ("PRIMARY KEY (rid)", "PRIMARY KEY (k, rid)", "UNIQUE KEY (rid)", "KEY (k)")


def create_table(connection: Connection, chance: random.Random, columns: Sequence[Column]) -> bool:
    """A table whose rows are distinguished by ``rid``; False if the server allows no such table."""
    lines = ["rid INT NOT NULL", "k VARCHAR(20) NOT NULL"]
    lines += [f"{quote_name(each.name)} {each.sql}{' NULL' if 'NULL' not in each.sql else ''}" for each in columns]
    chance.shuffle(lines)
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS goods")
        try:
            cursor.execute(f"CREATE TABLE goods ({', '.join(lines)}, {chance.choice(KEYS)})")
        except pymysql.MySQLError as error:
            if error.args[0] not in (1118, 1071):  # a row, or a key, that is too large
                raise
            return False
    return True


def random_statements(chance: random.Random, columns: Sequence[Column]) -> Iterator[str]:
    names = ", ".join(("rid", "k", *(quote_name(each.name) for each in columns)))
    rid = iter(range(1, 10**6))

    def insert(count: int) -> str:
        rows = ", ".join(
            f"({next(rid)}, 'k{chance.randrange(9)}', {', '.join(each.random_value(chance) for each in columns)})"
            for _ in range(count)
        )
        return f"INSERT INTO goods ({names}) VALUES {rows}"

    def update(count: int) -> str:
        changed = chance.sample(list(columns), min(len(columns), chance.choice((1, 2, 5))))
        values = ", ".join(f"{quote_name(each.name)} = {each.random_value(chance)}" for each in changed)
        return f"UPDATE goods SET {values} WHERE rid >= {chance.randrange(20)} LIMIT {count}"

    yield insert(1)
    yield insert(20)
    yield update(1)
    yield update(12)
    for each in columns:
        if each.sql.startswith("JSON"):
            path = chance.choice(("$.k0é", "$[0]", "$.new"))
            yield f"UPDATE goods SET {each.name} = JSON_SET({each.name}, '{path}', {chance.randrange(99)})"
    yield insert(5)
    yield f"DELETE FROM goods LIMIT {chance.choice((1, 30))}"


def select_all(connection: Connection, columns: Sequence[Column]) -> dict[int, dict[str, Any]]:
    """The rows by ``rid``. PyMySQL does not know VECTOR."""
    shown = ["rid", "k", *(f"HEX({c.name}) AS {c.name}" if "VECTOR" in c.sql else c.name for c in columns)]
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(f"SELECT {', '.join(shown)} FROM goods")
        return {row["rid"]: row for row in cursor.fetchall()}


# -- the tests --------------------------------------------------------------------------------------------


@pytest.mark.timeout(SECONDS * 3 + 600)
def test_rows_of_random_tables_are_those_that_the_server_shows(pair: Pair) -> None:
    server, flavor = pair.primary, pair.primary.flavor
    chance = random.Random(f"{flavor} {SEED}")
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS
    with connect(address_of(server), read_timeout_seconds=60.0) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        while time.monotonic() < deadline or counts["tables"] < ROUNDS_MIN:
            columns = random_columns(chance, flavor)
            cursor.execute(f"SET binlog_row_image = {chance.choice(('FULL', 'FULL', 'MINIMAL', 'NOBLOB'))}")
            is_partial = False
            if flavor == "mysql":
                is_partial = chance.random() < 0.5
                options = f"binlog_row_value_options = '{'PARTIAL_JSON' if is_partial else ''}'"
                cursor.execute(f"SET {options}, binlog_transaction_compression = {chance.choice(('ON', 'OFF'))}")
            if not create_table(connection, chance, columns):
                continue
            counts["tables"] += 1
            for statement in random_statements(chance, columns):
                _run_and_compare(connection, server, statement, columns, is_partial, counts)
    print(counts)
    assert counts["values"] > 5_000
    assert counts["by the library"] > 50


def _run_and_compare(
    connection: Connection,
    server: DatabaseServer,
    statement: str,
    columns: Sequence[Column],
    is_partial: bool,
    counts: Counter[str],
) -> None:
    before, start = select_all(connection, columns), executed_position(connection, server.flavor)
    with connection.cursor() as cursor:
        cursor.execute(statement)
    after = select_all(connection, columns)
    decoded = decode(server.flavor, read_log(server, start))
    by_name = {column.name: column for column in columns}
    for rows in decoded.rows:
        assert rows.problem == "", (rows.problem, statement[:300])
        for change in rows.changes:
            _compare_change(change, before, after, by_name, is_partial, counts)
    # A statement that changes nothing logs nothing.
    changed = {rid for rid in before | after if before.get(rid) != after.get(rid)}
    assert len({_rid(change) for rows in decoded.rows for change in rows.changes}) >= len(changed)
    for rows, of_library in zip(decoded.rows, decoded.by_library, strict=True):
        if of_library is None:
            counts["not read by the library"] += 1
            continue
        counts["by the library"] += 1
        for change, images in zip(rows.changes, of_library, strict=True):
            for ours, theirs in zip((change.before, change.after), images, strict=True):
                _compare_images(ours, theirs, by_name, counts)


def _rid(change: RowChange) -> int:
    rid = (change.before or {}).get("rid", (change.after or {}).get("rid"))
    assert isinstance(rid, int)
    return rid


def _compare_change(
    change: RowChange,
    before: Mapping[int, Mapping[str, Any]],
    after: Mapping[int, Mapping[str, Any]],
    columns: Mapping[str, Column],
    is_partial: bool,
    counts: Counter[str],
) -> None:
    rid, shapes = _rid(change), change.shapes
    assert shapes is not None
    assert (change.before is None, change.after is None) == (change.op == "insert", change.op == "delete")
    for image, shown in ((change.before, before), (change.after, after)):
        for name, value in (image or {}).items():
            column = columns.get(name, Column(name, "VARCHAR(20)", True, str))
            if value is UNREADABLE and is_partial and image is change.after and column.sql.startswith("JSON"):
                counts["partial"] += 1
                continue
            expected = shown[rid][name]
            assert is_read_as(value, shapes[name], expected, column), (column.sql, value, expected, shapes[name])
            counts["values"] += 1
            counts["untold"] += value is UNREADABLE


def _compare_images(
    ours: Mapping[str, object] | None,
    theirs: Mapping[str, object] | None,
    columns: Mapping[str, Column],
    counts: Counter[str],
) -> None:
    assert (ours is None) == (theirs is None)
    assert list(ours or ()) == list(theirs or ())
    for name, value in (ours or {}).items():
        by_library = (theirs or {})[name]
        if by_library is UNREADABLE:
            counts["only ours"] += value is not UNREADABLE
        elif not _is_wrong_in_library(columns.get(name), value, by_library):
            assert (type(value), repr(value)) == (type(by_library), repr(by_library)) or (
                isinstance(value, set) and value == by_library
            ), (name, columns.get(name), value, by_library)


def _is_wrong_in_library(column: Column | None, value: object, by_library: object) -> bool:
    """Labels that are not UTF-8, wide text under uca1400 (MariaDB 11.8's default), of which it leaves the bytes,
    values of SQL inside of JSON, negative times."""
    if column is None:
        return False
    has_labels = column.sql.startswith(("ENUM", "SET")) and "CHARACTER SET" in column.sql
    return (
        (has_labels and not column.sql.endswith("utf8mb4"))
        or (isinstance(value, timedelta) and value < timedelta())
        or (
            isinstance(by_library, bytes)
            and any(f"CHARACTER SET {wide} " in f"{column.sql} " for wide in ("utf16", "ucs2", "utf32"))
        )
        or column.sql == "JSON "
    )


# -- extremes ---------------------------------------------------------------------------------------------

EXTREMES: Final[Mapping[str, Sequence[str]]] = {
    "BIGINT UNSIGNED": ("0", "18446744073709551615"),
    "DECIMAL(65,30)": ("0", "-0.000000000000000000000000000001"),
    "DOUBLE": ("-1.7976931348623157e308", "0"),
    "FLOAT": ("0.5", "-16777200"),
    "BIT(1)": ("b'0'", "b'1'"),
    "BIT(64)": ("0", "b'1'", "18446744073709551615"),
    "YEAR": ("0", "1901", "1970", "2155"),
    "DATE": ("'0001-01-01'", "'9999-12-31'"),
    "DATETIME": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
    "DATETIME(6)": ("'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    "TIMESTAMP NULL": ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
    "TIMESTAMP(6) NULL": ("'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"),
    "TIME": ("'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"),
    "TIME(2)": ("'-00:00:00.01'", "'-838:00:00.99'"),
    "TIME(6)": ("'-00:00:00.000001'", "'-01:00:00.5'", "'838:59:58.999999'"),
    "CHAR(4)": ("''", "'a '", "' '"),
    "VARCHAR(4)": ("''", "'a '", "' '"),
    "BINARY(4)": ("x''", "x'00000000'", "x'00ff'", "x'ff000000'"),
    "BINARY(5)": ("x''", "x'0000000000'", "x'00ff'", "x'61'"),
    "VARBINARY(5)": ("x''", "x'0000'", "x'ff0000'"),
    "BLOB": ("x''", "x'00'"),
    "ENUM('','a')": ("''", "0", "'a'"),
    "ENUM('a','b')": ("''", "'b'"),
    "SET('a','b')": ("''", "'b,a'"),
    "SET('a','','b')": ("0", "2", "3", "7"),
}
"""Literals by type, which a client reads as the log has them."""

EXTREMES_UNREADABLE: Final[Mapping[str, Sequence[str]]] = {
    "DATE": ("'0000-00-00'", "'2024-00-10'", "'0000-01-01'"),
    "DATETIME": ("'0000-00-00 00:00:00'", "'2024-01-00 00:00:00'"),
    "DATETIME(6)": ("'0000-00-00 00:00:00'",),
    "TIMESTAMP NULL": ("0",),
    "TIMESTAMP(6) NULL": ("0",),
}
"""Literals that Python does not have."""

JSON_EXTREMES: Final[Mapping[str, Sequence[str]]] = {
    "JSON": ("'{}'", "'[]'", "'\"\"'", "'[null]'", "'18446744073709551615'", "'-0.0'", "'true'")
}
JSON_UNREADABLE: Final[Mapping[str, Sequence[str]]] = {"JSON": ("'null'",)}


def as_selected(value: Any, column: Column) -> object:
    """The value of SELECT, of what the stream has."""
    if column.sql.startswith("BIT"):
        return int(value, 2).to_bytes((len(value) + 7) // 8, "big")
    if column.sql.startswith("SET"):
        labels = [label.strip("'") for label in column.sql[len("SET(") : -1].split(",")]
        return ",".join(label for label in labels if label in value)
    return value


def test_extremes_of_each_type_are_what_a_select_shows(pair: Pair, flavor: Flavor) -> None:
    """In the stream and its lines, or `UNREADABLE`; in Kafka what both rows make."""
    is_mysql = flavor == "mysql"
    tables = [
        (sql, literal, is_told)
        for cases, is_told in (
            (EXTREMES, True),
            (JSON_EXTREMES, is_mysql),
            (EXTREMES_UNREADABLE, False),
            (JSON_UNREADABLE, False),
        )
        for sql, literals in cases.items()
        for literal in (*literals, "NULL")
        if is_mysql or sql != "JSON"
    ]
    wrong: list[object] = []
    with connect(address_of(pair.primary), read_timeout_seconds=60.0) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        for sql, literal, is_told in tables:
            column, expects_value = Column("v", sql, False, str), is_told or literal == "NULL"
            create = f"CREATE TABLE goods (rid INT PRIMARY KEY, v {sql})"
            with connection.cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS goods")
                cursor.execute(create)
                start = executed_position(connection, flavor)
                cursor.execute(f"INSERT INTO goods VALUES (1, {literal})")
                cursor.execute("SELECT v FROM goods")
                [(shown,)] = cursor.fetchall()
            [rows] = decode(flavor, read_log(pair.primary, start)).rows
            [change] = rows.changes
            assert change.after is not None
            assert change.shapes is not None
            value = from_json(json.loads(json.dumps(to_json(change.after["v"]))))
            if not expects_value:
                is_right = value is UNREADABLE
            elif sql == "JSON" and shown is not None:
                is_right = is_same_json(value, json.loads(shown))
            else:
                is_right = value == shown if value is None else as_selected(value, column) == shown
            in_kafka = to_debezium(value, change.shapes["v"])
            is_right = is_right and (in_kafka == UNAVAILABLE) == (not expects_value)
            if not is_right:
                wrong.append((sql, literal, shown, value, in_kafka))
    assert wrong == []


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_temporal_columns_of_old_mariadb(pair: Pair) -> None:
    """Without a fraction they are read. With one their width is not in the log: the table is raised."""
    server = pair.primary
    values = {"TIME": "'-12:34:56'", "DATETIME": "'2024-02-29 12:34:56'", "TIMESTAMP": "'2024-02-29 12:34:56'"}
    server.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        with connect(address_of(server), read_timeout_seconds=60.0) as connection:
            for digits in range(7):
                for kind, value in values.items():
                    with connection.cursor() as cursor:
                        cursor.execute("DROP TABLE IF EXISTS goods")
                        column = f"v {kind}({digits}) NOT NULL DEFAULT {value}"
                        cursor.execute(f"CREATE TABLE goods (rid INT, {column}, k VARCHAR(20))")
                        start = executed_position(connection, server.flavor)
                        literal = f"{value[:-1]}.654321'" if digits else value
                        cursor.execute(f"INSERT INTO goods VALUES (1, {literal}, 'k')")
                        cursor.execute("SELECT rid, v, k FROM goods")
                        [(rid, shown, k)] = cursor.fetchall()
                    [rows] = decode(server.flavor, read_log(server, start)).rows
                    if digits:
                        assert "cannot be decoded" in rows.problem, (kind, digits)
                    else:
                        [change] = rows.changes
                        assert change.after == {"rid": rid, "v": shown, "k": k}
    finally:
        server.execute("SET GLOBAL mysql56_temporal_format = ON")
