"""What a stream of a real Vitess brings is what the binary log of the very same tablet's MySQL holds.

Random transactions over tables of all types: several tables and rows, compressed, with partial JSON documents, large
ones, and DDL between them. `BinlogSource` is the reference. A stream may raise a table whose rows the log has, as
after a DDL; it may never have other rows, or none.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from freshness.config.server import ServerAddress
from freshness.position import Position
from freshness.stream.source import UNREADABLE, RowChange, Transaction
from integration.servers.vitess import Tablet, Vitess
from integration.vitess.real.following import Follower, executed
from invalidator.binlog.rows.image import digest_image
from invalidator.binlog.rows.layout import Layout
from invalidator.binlog.source import BinlogSource

TRANSACTIONS: Final = int(os.environ.get("FRESHNESS_ORACLE_TRANSACTIONS", "6500"))
BATCH: Final = 100
"""Transactions after which both streams are read to the end."""

TYPES: Final[dict[str, tuple[str, ...]]] = {
    "TINYINT": ("-128", "0", "127"),
    "SMALLINT UNSIGNED": ("0", "65535"),
    "MEDIUMINT": ("-8388608", "8388607"),
    "INT UNSIGNED": ("0", "4294967295"),
    "BIGINT UNSIGNED": ("0", "18446744073709551615"),
    "BOOLEAN": ("TRUE", "FALSE"),
    "DECIMAL(20,4)": ("-12.5", "0", "1234567890123456.7890"),
    "FLOAT": ("1.5", "-0.0625", "1e20"),
    "DOUBLE": ("1.1", "-1e300", "0"),
    "YEAR": ("1901", "2026", "2155"),
    "DATE": ("'2026-01-31'", "'1000-01-01'", "'9999-12-31'"),
    "DATETIME": ("'2026-01-31 23:59:58'", "'1000-01-01'"),
    "DATETIME(6)": ("'2026-01-31 23:59:58.000001'", "'9999-12-31 23:59:59.999999'"),
    "TIMESTAMP NULL": ("'2026-01-31 23:59:58'", "'1970-01-02 00:00:01'"),
    "TIMESTAMP(3) NULL": ("'2026-01-31 23:59:58.5'",),
    "TIME": ("'-838:59:59'", "'00:00:00'", "'12:30:01'"),
    "TIME(4)": ("'-00:00:00.0001'", "'12:00:00.25'"),
    "CHAR(5) CHARACTER SET latin1": ("'ü'", "''", "'a b'"),
    "CHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ("'ü😀'", "'x'"),
    "VARCHAR(20) CHARACTER SET utf8mb4": ("'ü😀'", "''", "' end '"),
    "VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin": ("'größe'", "''"),
    "VARCHAR(20) CHARACTER SET utf16": ("'ü😀'", "''"),
    "VARCHAR(20) CHARACTER SET sjis": ("'日本'", "'x'"),
    "VARCHAR(20) CHARACTER SET dec8": ("'größe'", "'x'"),
    "TEXT": ("'long'", "REPEAT('x', 3000)"),
    "LONGTEXT CHARACTER SET latin1": ("'größe'", "''"),
    "BINARY(4)": ("'A1'", "X'00'", "X'FF00FF00'"),
    "VARBINARY(9)": ("X'41003100'", "''"),
    "BLOB": ("X'FF00'", "REPEAT('y', 2000)"),
    "BIT(1)": ("b'0'", "b'1'"),
    "BIT(10)": ("b'1000000001'", "b'0'"),
    "ENUM('small','it''s','größe')": ("'small'", "'it''s'", "'größe'"),
    "ENUM('small','größe') CHARACTER SET latin1 COLLATE latin1_bin": ("'small'", "'größe'"),
    "SET('a','b','größe')": ("'a'", "'a,größe'", "''"),
    "SET('a','b') COLLATE utf8mb4_bin": ("'a,b'", "''"),
    "JSON": (
        """'{"a": [1, null], "b": "ü"}'""",
        "'[]'",
        "'12'",
        "'null'",
        """'{"n": 1.5, "big": 18446744073709551615}'""",
    ),
    "GEOMETRY": ("ST_GeomFromText('POINT(1 2)')",),
}
COLUMNS: Final = {f"c{index}": kind for index, kind in enumerate(TYPES)}
TABLES: Final = {
    "everything": f"CREATE TABLE everything (id BIGINT PRIMARY KEY, {', '.join(map(' '.join, COLUMNS.items()))})",
    "pairs": "CREATE TABLE pairs (a INT, b VARCHAR(10) COLLATE utf8mb4_bin, v INT, doc JSON, PRIMARY KEY (a, b))",
    "kinds": "CREATE TABLE kinds (e ENUM('x','größe') COLLATE utf8mb4_bin, n INT, v INT, PRIMARY KEY (e, n))",
}
KEYS: Final = {"everything": ("id",), "pairs": ("a", "b"), "kinds": ("e", "n")}
WHOLE: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(TABLES, ())
CHANGED: Final = ("pairs", "kinds")
"""The tables whose schema changes."""

IDS: Final = 40
DDL: Final = (
    "TRUNCATE TABLE {table}",
    "ALTER TABLE {table} ADD more INT",
    "ALTER TABLE {table} ADD more INT FIRST",
    "ALTER TABLE {table} DROP v",
    "RENAME TABLE {table} TO previous, elsewhere TO {table}",
    "DROP TABLE {table}",
    "ALTER TABLE {table} ENGINE = InnoDB",
)


class Writer:
    """Random statements on a connection to the tablet's MySQL."""

    def __init__(self, tablet: Tablet, seed: int) -> None:
        self._tablet = tablet
        self._random = random.Random(seed)
        self._connection = tablet.mysql.connect(tablet.database)
        self.ddl = 0

    def close(self) -> None:
        self._connection.close()

    def execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    def recreate(self, tables: Iterable[str]) -> None:
        for table in (*tables, "elsewhere", "previous"):
            self.execute(f"DROP TABLE IF EXISTS {table}")
        for table in tables:
            self.execute(TABLES[table])

    def transact(self) -> None:
        chance = self._random.random()
        self.execute(f"SET SESSION binlog_transaction_compression = {'ON' if chance < 0.2 else 'OFF'}")
        self.execute(f"SET SESSION binlog_row_value_options = '{'PARTIAL_JSON' if 0.1 < chance < 0.4 else ''}'")
        statements = self._random.choice((1, 1, 1, 2, 3, 8)) if chance > 0.005 else 400
        self.execute("BEGIN")
        for _ in range(statements):
            self.execute(self._statement())
        self.execute("COMMIT" if self._random.random() < 0.95 else "ROLLBACK")

    def change_schema(self) -> None:
        """One statement of `DDL`; `recreate` makes the tables as they were."""
        self.execute("CREATE TABLE elsewhere (a INT, b VARCHAR(10), c INT, d INT, e INT)")
        self.execute(self._random.choice(DDL).format(table=self._random.choice(CHANGED)))
        self.ddl += 1

    def _statement(self) -> str:
        pick = self._random
        a, b = pick.randrange(IDS), f"'{pick.choice('xyzÄ')}{pick.randrange(4)}'"
        e, number = pick.choice(("'x'", "'größe'")), pick.randrange(IDS)
        doc = f"""'{{"a": {pick.randrange(9)}, "long": "{"z" * 60}"}}'"""
        return pick.choice(
            (
                self._everything(),
                self._everything(),
                f"DELETE FROM everything WHERE id = {a}",
                f"UPDATE everything SET id = id + 100 WHERE id = {a} AND NOT EXISTS"
                f" (SELECT * FROM (SELECT id FROM everything) AS t WHERE id = {a + 100})",
                f"INSERT INTO pairs (a, b, v, doc) VALUES ({a}, {b}, {number}, {doc})"
                f" ON DUPLICATE KEY UPDATE v = v + 1, doc = JSON_SET(doc, '$.a', {number})",
                f"UPDATE pairs SET doc = JSON_SET(doc, '$.a', {number}) WHERE a < {a}",
                f"DELETE FROM pairs WHERE a = {a}",
                f"REPLACE INTO kinds (e, n, v) VALUES ({e}, {number}, {a})",
                f"UPDATE kinds SET v = v + 1 WHERE n < {number}",
                f"DELETE FROM kinds WHERE n = {number}",
            )
        )

    def _everything(self) -> str:
        chosen = self._random.sample(sorted(COLUMNS), self._random.randrange(1, len(COLUMNS)))
        values = {c: self._random.choice((*TYPES[COLUMNS[c]], "NULL")) for c in chosen}
        key = self._random.randrange(IDS)
        return (
            f"INSERT INTO everything (id, {', '.join(values)}) VALUES ({key}, {', '.join(values.values())})"
            f" ON DUPLICATE KEY UPDATE {', '.join(f'{c} = VALUES({c})' for c in values)}"
        )


class Log:
    """The tablet's binary log."""

    def __init__(self, tablet: Tablet, start: Position) -> None:
        address = ServerAddress("127.0.0.1", tablet.mysql.port, "app", "app", tablet.database)
        self._source = BinlogSource(address, "mysql", frozenset(TABLES))
        self._source.open(start)
        self._position = start

    def read_up_to(self, end: Position) -> list[Transaction]:
        received = []
        while not self._position.contains(end):
            for transaction in self._source.poll(1.0, 1000):
                received.append(transaction)
                self._position = self._position.union(transaction.position)
        return received

    def close(self) -> None:
        self._source.close()


def by_position(transactions: list[Transaction]) -> dict[str, Transaction]:
    return {str(each.position): each for each in transactions if each.changes or each.raised_tables}


def row_of(image: Any, table: str, *, is_keyed: bool) -> dict[str, Any] | None:
    if image is None:
        return None
    return {name: image.get(name) for name in KEYS[table]} if is_keyed else dict(image)


def digest_of(change: RowChange, side: str, name: str) -> bytes | None:
    """The digest of a row with this column alone."""
    image, shapes = getattr(change, side), change.shapes
    assert shapes is not None
    if name not in image or name not in shapes:
        return None
    only = frozenset((name,))
    return digest_image({name: image[name]}, {name: shapes[name]}, Layout((), only, only))


def differences(wanted: RowChange, found: RowChange, *, is_keyed: bool, counted: Counter[str]) -> Iterator[str]:
    if (wanted.table, wanted.op) != (found.table, found.op):
        yield f"{wanted.op} of {wanted.table} is {found.op} of {found.table}"
        return
    for side in ("before", "after"):
        log = row_of(getattr(wanted, side), wanted.table, is_keyed=is_keyed)
        stream = row_of(getattr(found, side), wanted.table, is_keyed=is_keyed)
        if (log is None) != (stream is None):
            yield f"{side}: {log} is {stream}"
            continue
        for name, value in (log or {}).items():
            assert stream is not None
            counted["values"] += 1
            if not is_keyed:
                one, other = digest_of(wanted, side, name), digest_of(found, side, name)
                if other is not None and one is not None and other != one:
                    yield f"{side}.{name}: another digest: {value!r} is {stream[name]!r}"
                counted["digests left out"] += other is None and one is not None
            if stream.get(name, UNREADABLE) is UNREADABLE and name not in KEYS[wanted.table]:
                counted["unreadable"] += value is not UNREADABLE
            elif value is UNREADABLE:
                counted["better than the log"] += 1
            elif stream[name] != value:
                kind = COLUMNS.get(name, name)
                yield f"{side}.{name} ({kind}): {value!r} is {stream[name]!r}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    with Vitess(mysql_options=("--default-time-zone=+00:00",)) as made:
        yield made


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("tables", [WHOLE, KEYS], ids=["whole rows", "keys"])
def test_the_stream_is_the_log(cluster: Vitess, seed: int, tables: dict[str, tuple[str, ...]]) -> None:
    tablet = cluster.primary("0")
    pick = random.Random(seed)
    counted: Counter[str] = Counter()
    wrong: list[str] = []
    with closing(Writer(tablet, seed)) as writer:
        writer.recreate(TABLES)
        start = executed(tablet)
        with (
            closing(Log(tablet, start)) as log,
            Follower(cluster, tables, start=start, parts={"tablet_type": "primary"}) as stream,
        ):
            for batch in range(TRANSACTIONS // BATCH):
                for _ in range(BATCH):
                    writer.transact()
                if batch % 5 == 4:
                    writer.change_schema()
                    for _ in range(pick.randrange(3)):
                        writer.execute("INSERT IGNORE INTO everything (id) VALUES (1)")
                    writer.recreate(CHANGED)
                end = executed(tablet)
                stream.read_up_to(end)
                logged, streamed = by_position(log.read_up_to(end)), by_position(stream.received)
                stream.received.clear()
                for position, expected in logged.items():
                    counted["transactions"] += 1
                    if position not in streamed:
                        wrong.append(f"{position} has not come: {expected}")
                        continue
                    found = streamed[position]
                    if not expected.raised_tables <= found.raised_tables:
                        wrong.append(f"{position}: {expected.raised_tables} not raised: {found}")
                    counted["raised"] += len(found.raised_tables - expected.raised_tables)
                    wanted = [each for each in expected.changes if each.table not in found.raised_tables]
                    got = [each for each in found.changes if each.table not in found.raised_tables]
                    if len(wanted) != len(got):
                        wrong.append(f"{position}: {len(got)} of {len(wanted)} rows")
                        continue
                    counted["rows"] += len(got)
                    for one, other in zip(wanted, got, strict=True):
                        wrong += differences(one, other, is_keyed=tables is KEYS, counted=counted)
                counted["extra"] += len(streamed.keys() - logged.keys())
                assert not wrong, "\n".join(wrong[:20])
    print(f"\n{counted} {writer.ddl} DDL, {len(stream.ends)} ends")
    assert counted["transactions"] > TRANSACTIONS / 2
    assert counted["rows"] > counted["transactions"]
    assert counted["raised"] < counted["transactions"] / 20
    assert counted["digests left out"] < counted["values"] / 20
